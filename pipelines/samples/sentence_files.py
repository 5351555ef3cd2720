"""Files of synthetic sentences, as `data/sbert-paper.toml` and `data/samples.toml`, which explains both, list them."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from bertrelay.stage import Metrics, StageContext
from pipelines.samples.grammar import grammar, load, write_lines
from pipelines.samples.meanings import Features, render
from pipelines.samples.sentences import Item, Meanings, labelled, scored, singles, triplets
from pipelines.samples.settings import SampleSettings, SbertPaperSettings

FOLDER = "sbert-paper"
PLAIN_FILES = {"english.txt": "en", "german.txt": "de", "korean.txt": "ko"}
PLAIN_SENTENCES, QUERIES = 200, 20
PARAPHRASE = 3.0
WORD_DIM = 50
DRAWS: dict[str, Callable[[Meanings], Iterator[Item]]] = {
    "scored": scored,
    "labelled": labelled,
    "triplets": triplets,
    "singles": singles,
}


def run(settings: SampleSettings, context: StageContext) -> Metrics:
    """The stage `samples.write`: writes the sample files; the rows of each part, as `sentences/nli.train`."""
    counts = write_samples(context.output, settings) if context.process_group.is_main else {}
    return {f"sentences/{name.removesuffix('.gz').removesuffix('.tsv')}": n for name, n in counts.items()}


def run_sbert_paper(settings: SbertPaperSettings, context: StageContext) -> Metrics:
    """The stage `samples.sbert-paper`: how many files it writes, and how many lines."""
    counts = write_sbert_paper(context.output, settings) if context.process_group.is_main else {}
    return {"files": len(counts), "lines": sum(counts.values())}


def write_samples(folder: Path, settings: SampleSettings) -> dict[str, int]:
    """Writes all sample files into `folder`, a function of `settings` alone; rows by file name.

    Tests are drawn first, development parts next, and training avoids the sentences of both, in every language.
    """
    files = _drawn_files("samples", settings)
    for name, lines in files.items():
        write_lines(folder / name, lines)
    return {name: len(lines) - 1 for name, lines in files.items()}


def write_plain_files(folder: Path, seed: int, sentences: int = PLAIN_SENTENCES) -> dict[str, int]:
    """Writes sentences line by line in three languages, queries, and the lines that are translations; rows by name."""
    meanings = [meaning for (meaning,) in islice(singles(Meanings(seed)), sentences)]
    lines = {name: [render(meaning, language) for meaning in meanings] for name, language in PLAIN_FILES.items()}
    lines["questions.txt"] = lines["english.txt"][:QUERIES]
    pairs = [f"{number}\t{number}" for number in range(1, sentences + 1)]
    for name, listed in (lines | {"pairs.tsv": ["source_line\ttarget_line", *pairs]}).items():
        write_lines(folder / name, listed)
    return {name: len(listed) for name, listed in lines.items()} | {"pairs.tsv": sentences}


def write_sbert_paper(folder: Path, settings: SbertPaperSettings) -> dict[str, int]:
    """Writes the files of the SBERT paper's data sets below `folder`, from `settings` alone; lines by file."""
    files = _drawn_files("sbert-paper", settings)
    # A random vector for each word of all sentences, so that words have nothing in common.
    words = {word.strip('.,"') for lines in files.values() for line in lines for word in line.lower().split()}
    random = Random(settings.seed)
    files["glove.txt"] = [
        " ".join([word, *(f"{random.gauss(0, 1):.4f}" for _ in range(WORD_DIM))])
        for word in sorted(words)
        if word.isalpha()
    ]
    for name, lines in files.items():
        write_lines(folder / name, lines)
    return {name: len(lines) for name, lines in files.items()}


def _drawn_files(data: str, settings: SampleSettings | SbertPaperSettings) -> dict[str, list[str]]:
    """The lines of each file that the data lists."""
    source, files = Meanings(settings.seed), dict[str, list[str]]()
    for form in load(data)["files"]:
        for name in form.get("names", [""]):
            size = getattr(settings, "train" if name == "train" and form["size"] == "sts" else form["size"])
            items = list(_drawn(data, source, form, size * form.get("times", 1) // form.get("divided", 1)))
            if form.get("held_out"):
                source.hold_out(items)
            for number, item in enumerate(items):
                shown = {"name": name, **_shown(data, form, number, item)}
                for path, (*header, line) in form["lines"].items():
                    files.setdefault(path.format(**shown), header.copy()).append(line.format(**shown))
    return files


def _drawn(data: str, source: Meanings, form: dict[str, Any], size: int) -> Iterator[Item]:
    """The items of a file, or of the files of one draw, in which classes follow one another."""
    items = DRAWS[form["draw"]](source)
    if "classes" not in form:
        yield from islice(items, size)
        return
    by_class: dict[str, list[Item]] = {name: [] for name in form["classes"]}
    while min(map(len, by_class.values())) < size:
        item = next(items)
        by_class[_class(data, form, item)].append(item)
    for listed in by_class.values():
        yield from listed[:size]


def _class(data: str, form: dict[str, Any], item: Item) -> str:
    return grammar(data).fill(f"{{{form['rule']}}}", item[0])  # type: ignore[arg-type]


class _Renderings(dict[str, str]):
    """A meaning in the language that is asked for."""

    def __init__(self, meaning: Features, quoted: bool) -> None:
        super().__init__()
        self._meaning, self._quoted = meaning, quoted

    def __missing__(self, language: str) -> str:
        text = render(self._meaning, language)
        return f'"{text}"' if self._quoted and "," in text else text


def _shown(data: str, form: dict[str, Any], number: int, item: Item) -> dict[str, object]:
    """What the path and the line of an item may name."""
    sentences = [_Renderings(part, form.get("quoted", False)) for part in item if isinstance(part, Features)]
    shown: dict[str, object] = dict(zip(("first", "second", "third"), sentences, strict=False))
    shown |= {"number": number, "place": number + 1, "even": 2 * number, "odd": 2 * number + 1}
    match item[-1]:
        case str(label):
            related = load("sbert-paper")["relatedness"][label]
            shown |= {"label": label, "LABEL": label.upper(), "relatedness": related}
        case float(score):
            is_unscored = "unscored" in form and number % form["unscored"] == 0
            shown |= {"score": "" if is_unscored else score, "is_paraphrase": int(score >= PARAPHRASE)}
    return shown | ({"class": _class(data, form, item)} if "rule" in form else {})
