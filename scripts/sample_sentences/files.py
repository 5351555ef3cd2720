"""Draws the sample sentences and packs them, as `pipelines.samples` reads them:

    python -m scripts.sample_sentences.files

`data/samples.toml` and `data/sbert-paper.toml` list the files. A pack has the columns of its files, the lines of each
below `# POSITION FILE`; those of one language are compressed together, which makes them a quarter smaller.
"""

import bz2
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from pipelines.samples.grammar import DATA
from scripts.sample_sentences.grammar import grammar, load
from scripts.sample_sentences.meanings import LANGUAGES, Features, render
from scripts.sample_sentences.sentences import Item, Meanings, labelled, scored, singles, triplets

SIZES = {"parallel_train": 11_000, "parallel_test": 1_200, "nli": 6_000, "sts": 6_000, "triplets": 3_000}
"""Rows of `samples.toml`."""
PAPER_SIZES = {"sts": 60, "train": 600, "classes": 60}
"""Rows of `sbert-paper.toml`."""
PARAPHRASE = 3.0
DRAWS: dict[str, Callable[[Meanings], Iterator[Item]]] = {
    "scored": scored,
    "labelled": labelled,
    "triplets": triplets,
    "singles": singles,
}


def main() -> None:
    """Writes both packs."""
    columns: defaultdict[str, list[str]] = defaultdict(list)
    for name, lines in draw_files("samples", 7, SIZES).items():
        for position, column in enumerate(zip(*(line.split("\t") for line in lines), strict=True)):
            language = column[0].rpartition("_")[2]
            columns[language if language in LANGUAGES else "en"].append(_section(f"{position} {name}", column))
    parts = [bz2.compress("".join(sections).encode()) for sections in columns.values()]
    (DATA / "sentences.txt.bz2").write_bytes(b"".join(parts))
    papers = "".join(_section(f"0 {name}", lines) for name, lines in draw_files("sbert-paper", 1, PAPER_SIZES).items())
    (DATA / "sbert-paper.txt.bz2").write_bytes(bz2.compress(papers.encode()))


def _section(title: str, lines: Iterable[str]) -> str:
    return f"# {title}\n" + "".join(f"{line}\n" for line in lines)


def draw_files(data: str, seed: int, sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """The lines of each file that the data lists.

    Tests are drawn first, development parts next, and training avoids the sentences of both, in every language.
    """
    source, files = Meanings(seed), dict[str, list[str]]()
    for form in load(data)["files"]:
        for name in form.get("names", [""]):
            size = sizes["train" if name == "train" and form["size"] == "sts" else form["size"]]
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


if __name__ == "__main__":
    main()
