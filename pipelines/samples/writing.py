"""Writing the sample files: tests are drawn first, development parts next, and training avoids them all."""

import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipelines.samples.grammar import Meaning
from pipelines.samples.settings import SampleSettings
from pipelines.samples.tasks import (
    LANGUAGES,
    Row,
    Source,
    draw_labelled,
    draw_scored,
    draw_single,
    draw_triplets,
    translations,
)

PAIR = ("sentence1", "sentence2")
COLUMNS = {
    "nli": ("premise", "hypothesis", "label"),
    "sts": (*PAIR, "score"),
    "triplets": ("anchor", "positive", "negative"),
    "parallel": tuple(LANGUAGES),
}
MULTILINGUAL = (*(f"{sentence}_{language}" for sentence in PAIR for language in LANGUAGES), "score")

Items = Sequence[tuple[Meaning | str | float, ...]]


def write_samples(folder: Path, settings: SampleSettings) -> dict[str, int]:
    """Writes all sample files into `folder`, a function of `settings` alone; rows by file name.

    The sentences of tests and development parts appear in no training file, in no language.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = Source(settings.seed)
    parts: dict[str, Items] = {}
    parts["parallel.test"] = _held(source, draw_single(source, settings.parallel_test))
    parts["sts.test"] = _held(source, draw_scored(source, settings.sts // 6))
    parts["nli.dev"] = _held(source, draw_labelled(source, settings.nli // 12))
    parts["sts.dev"] = _held(source, draw_scored(source, settings.sts // 12))
    parts["triplets.dev"] = _held(source, draw_triplets(source, settings.triplets // 10))
    parts["nli.train"] = draw_labelled(source, settings.nli)
    parts["sts.train"] = draw_scored(source, settings.sts)
    parts["triplets.train"] = draw_triplets(source, settings.triplets)
    parts["parallel.train"] = draw_single(source, settings.parallel_train)
    return _write_all(folder, parts)


def _held(source: Source, items: Items) -> Items:
    for meaning in (part for item in items for part in item if isinstance(part, Meaning)):
        source.hold_out(meaning)
    return items


def _write_all(folder: Path, parts: dict[str, Items]) -> dict[str, int]:
    for name, items in parts.items():
        kind = name.partition(".")[0]
        rows = [_translated(item) if kind == "parallel" else _english(item) for item in items]
        _write(folder / _file_name(name), COLUMNS[kind], rows)
    tested = parts["sts.test"]
    _write(folder / "sts.multilingual.test.tsv", MULTILINGUAL, [_translated(item) for item in tested])
    return {_file_name(name): len(items) for name, items in parts.items()} | {"sts.multilingual.test.tsv": len(tested)}


def _file_name(part: str) -> str:
    return f"{part}.tsv.gz" if part == "parallel.train" else f"{part}.tsv"


def _english(item: tuple[Meaning | str | float, ...]) -> Row:
    return tuple(LANGUAGES["en"](part) if isinstance(part, Meaning) else str(part) for part in item)


def _translated(item: tuple[Meaning | str | float, ...]) -> Row:
    return tuple(word for part in item for word in (translations(part) if isinstance(part, Meaning) else (str(part),)))


def _write(path: Path, columns: Row, rows: Iterable[Row]) -> None:
    content = "".join("\t".join(row) + "\n" for row in (columns, *rows)).encode()
    # Without the time in its header, the same rows compress to the same bytes.
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
