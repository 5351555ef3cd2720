"""Made-up sentences in the official file formats of every data set of the SBERT paper: `data/sbert-paper.toml`."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from bertrelay.stage import Metrics, StageContext
from pipelines.samples.grammar import grammar, load, write_lines
from pipelines.samples.meanings import Features, render
from pipelines.samples.sentences import Item, Meanings, labelled, scored, singles, triplets
from pipelines.samples.settings import SbertPaperSettings

FOLDER = "sbert-paper"
PARAPHRASE = 3.0
WORD_DIM = 50
DRAWS: dict[str, Callable[[Meanings], Iterator[Item]]] = {
    "scored": scored,
    "labelled": labelled,
    "triplets": triplets,
    "singles": singles,
}


def run(settings: SbertPaperSettings, context: StageContext) -> Metrics:
    """The stage `samples.sbert-paper`: how many files it writes, and how many lines."""
    counts = write_sbert_paper(context.output, settings) if context.process_group.is_main else {}
    return {"files": len(counts), "lines": sum(counts.values())}


def write_sbert_paper(folder: Path, settings: SbertPaperSettings) -> dict[str, int]:
    """Writes all files below `folder`, a function of `settings` alone; lines by file."""
    source, files = Meanings(settings.seed), dict[str, list[str]]()
    for form in load("sbert-paper")["files"]:
        header = [form["header"]] if "header" in form else []
        for name in form.get("names", [""]):
            size = settings.train if name == "train" and form["size"] == "sts" else getattr(settings, form["size"])
            for number, item in enumerate(_drawn(source, form, size * form.get("times", 1))):
                shown = {"name": name, **_shown(form, number, item)}
                for path, line in form["lines"].items():
                    files.setdefault(path.format(**shown), [*header]).append(line.format(**shown))
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


def _drawn(source: Meanings, form: dict[str, Any], size: int) -> Iterator[Item]:
    """The items of a file, or of the files of one draw, in which classes follow one another."""
    items = DRAWS[form["draw"]](source)
    if "classes" not in form:
        yield from islice(items, size)
        return
    by_class: dict[str, list[Item]] = {name: [] for name in form["classes"]}
    while min(map(len, by_class.values())) < size:
        item = next(items)
        by_class[_class(form, item)].append(item)
    for listed in by_class.values():
        yield from listed[:size]


def _class(form: dict[str, Any], item: Item) -> str:
    return grammar("sbert-paper").fill(f"{{{form['rule']}}}", item[0])  # type: ignore[arg-type]


def _shown(form: dict[str, Any], number: int, item: Item) -> dict[str, object]:
    """What the path and the line of an item may name."""
    texts = [render(part, "en") for part in item if isinstance(part, Features)]
    if form.get("quoted"):
        texts = [f'"{text}"' if "," in text else text for text in texts]
    shown: dict[str, object] = dict(zip(("first", "second", "third"), texts, strict=False))
    shown |= {"number": number, "place": number + 1, "even": 2 * number, "odd": 2 * number + 1}
    match item[-1]:
        case str(label):
            shown |= {"label": label, "LABEL": label.upper(), "relatedness": load("sbert-paper")["relatedness"][label]}
        case float(score):
            is_unscored = "unscored" in form and number % form["unscored"] == 0
            shown |= {"score": "" if is_unscored else score, "is_paraphrase": int(score >= PARAPHRASE)}
    return shown | ({"class": _class(form, item)} if "rule" in form else {})
