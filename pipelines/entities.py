"""What a scoring of entities left behind, to what a report shows: confusions, and sentences in colour."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertrelay.files import read_json

if TYPE_CHECKING:
    from markupsafe import Markup

    from domain.biomedical.documents.document import Document

CONFUSIONS, EXAMPLES = "confusions.json", "examples.json"
KINDS = {
    "wrong_span": "wrong border",
    "wrong_type": "wrong type",
    "wrong_both": "wrong border and type",
    "missed": "missed",
    "spurious": "spurious",
}
NO_EXAMPLES: dict[str, Any] = {"right": [], "wrong": []}
SHOWN = 12


@dataclass(frozen=True)
class EntityPictures:
    """The commonest confusions (kind, gold, predicted, count), and sentences as HTML.

    wrong: gold and predicted entities of a sentence; right: those of sentences in which both are the same.
    """

    types: list[tuple[str, str, str, int]]
    mentions: list[tuple[str, str, str, int]]
    legend: "Markup"
    wrong: list[tuple["Markup", "Markup"]]
    right: list["Markup"]


def entity_pictures(folder: Path, with_text: bool = True) -> EntityPictures | None:
    """What is to be shown of the stage in `folder`, if it scored entities; without text, no mention and no sentence."""
    confusions, examples = read_json(folder / CONFUSIONS), read_json(folder / EXAMPLES)
    if confusions is None or examples is None or "mentions" not in confusions:
        return None
    if not with_text:
        confusions, examples = {**confusions, "mentions": []}, NO_EXAMPLES
    from domain.biomedical.page import compared, hues_of, legend, marked_entities

    pairs = {
        name: [
            (_document(each["tokens"], each["gold"]), _document(each["tokens"], each["predicted"])) for each in listed
        ]
        for name, listed in examples.items()
    }
    everyone = [document for listed in pairs.values() for pair in listed for document in pair]
    hues = hues_of(entity.type for document in everyone for entity in document.entities)
    wrong = [(gold.text, *compared(gold, found)) for gold, found in pairs["wrong"]]
    judged = [
        each for _, gold, found in wrong for each in [*gold, *(one for one in found if one.verdict == "spurious")]
    ]
    return EntityPictures(
        _rows(confusions["types"]),
        _rows(confusions["mentions"]),
        legend(judged, hues),
        [(marked_entities(text, gold, hues), marked_entities(text, found, hues)) for text, gold, found in wrong],
        [marked_entities(found.text, compared(gold, found)[1], hues) for gold, found in pairs["right"]],
    )


def _rows(listed: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str, int]]:
    return [
        (KINDS[each["kind"]], each["gold"] or "–", each["predicted"] or "–", each["count"])
        for each in list(listed)[:SHOWN]
    ]


def _document(tokens: Sequence[str], spans: Sequence[Sequence[Any]]) -> "Document":
    """A sentence as a text, its tokens with a space between them, and the entities at their places in it."""
    from domain.biomedical.documents.document import Document, Entity

    starts = list(accumulate((len(token) + 1 for token in tokens), initial=0))
    entities = [Entity(starts[start], starts[end] - 1, kind, *confidence) for start, end, kind, *confidence in spans]
    return Document("", " ".join(tokens), tuple(entities))
