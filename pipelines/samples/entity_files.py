"""Writing made-up abstracts with their entities: as documents in JSONL, as tagged tokens, and the tests in PubTator."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from domain.biomedical.documents import FormatName, write_documents
from domain.biomedical.documents.document import Document
from pipelines.samples.entities import Abstracts
from pipelines.samples.settings import EntitySettings

FORMATS: dict[str, tuple[FormatName, ...]] = {
    "train": ("jsonl", "conll"),
    "dev": ("jsonl", "conll"),
    "test": ("jsonl", "conll", "pubtator"),
}
SUFFIXES: dict[FormatName, str] = {"conll": "tsv"}

Parts = dict[str, list[Document]]


def write_entities(folder: Path, settings: EntitySettings) -> dict[str, int]:
    """Writes `entities.train.jsonl` and its like, a function of `settings` alone; documents by file name."""
    return write_parts(folder, draw_parts(settings))


def draw_parts(settings: EntitySettings) -> Parts:
    """The documents of train, dev and test: no sentence stands in two, and half of a test's names in no other part."""
    abstracts = Abstracts(settings.seed)
    sizes = {part: getattr(settings, part) for part in FORMATS}
    return {part: [abstracts.draw(f"{part}-{number}") for number in range(size)] for part, size in sizes.items()}


def write_parts(folder: Path, parts: Parts) -> dict[str, int]:
    """Writes each part in its formats; documents by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    for part, documents in parts.items():
        for name in FORMATS[part]:
            file = f"entities.{part}.{SUFFIXES.get(name, name)}"
            write_documents(folder / file, _as_held(documents, name), name)
            counts[file] = len(documents)
    return counts


def _as_held(documents: Sequence[Document], name: FormatName) -> Sequence[Document]:
    """Without their words where these can be found again in the text: they would be most of a JSONL file."""
    return documents if name == "conll" else [replace(document, sentences=()) for document in documents]
