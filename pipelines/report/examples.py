"""What stages that evaluate entities and answers wrote, as the report shows it: confusions, slices, examples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertrelay.files import read_json
from bertrelay.metrics import declared
from pipelines.report.charts import COLOURS, Curve, picture, plain
from pipelines.report.tables import Figure

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

    from domain.biomedical.documents.document import Document

CONFUSIONS = "confusions.json"
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
    confusions, examples = read_json(folder / CONFUSIONS), read_json(folder / "examples.json")
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


SLICES = "slices.json"
WAYS = {
    "answer_words": "By the length of the right answer",
    "position": "By its place in the text",
}
MARKERS = ("o", "s")
"""One for each measure beside its colour, for the colour-blind and for paper."""
MOST_UPRIGHT = 6
"""More names of slices than these would run into one another below a picture."""

Slice = tuple[str, str, list[Figure]]


@dataclass(frozen=True)
class Example:
    """A question, what was answered and how sure it was, what is right, and the text around both."""

    question: str
    answer: str
    probability: str
    golds: str
    passages: list["Markup"]


@dataclass(frozen=True)
class AnswerPictures:
    """tables: (caption, slices), each slice its name, its questions, and its figures in the order of `measures`."""

    measures: list[str]
    curves: list[Curve]
    tables: list[tuple[str, list[Slice]]]
    wrong: list[Example]
    right: list[Example]


def _measure(name: str) -> str:
    """What a metric of answers is called."""
    return declared("domain:answers")[0].labels["measure"][name]


def answer_pictures(folder: Path, with_text: bool = True) -> AnswerPictures | None:
    """What is to be shown of the stage in `folder`, if it scored answers; without text, no question."""
    slices, examples = read_json(folder / SLICES), read_json(folder / "examples.json")
    if slices is None or examples is None or "answer_words" not in slices:
        return None
    by_caption = {caption: slices[way] for way, caption in WAYS.items() if slices[way]}
    return AnswerPictures(
        [_measure(name) for name in ("exact_match", "f1")],
        [Curve(caption, _drawn(listed)) for caption, listed in by_caption.items()],
        [(caption, [_slice(each) for each in listed]) for caption, listed in by_caption.items()],
        [_example(each, is_right=False) for each in examples["wrong"] if with_text],
        [_example(each, is_right=True) for each in examples["right"] if with_text],
    )


def _slice(each: Mapping[str, Any]) -> Slice:
    figures = [Figure(each[name], each.get(f"{name}_low"), each.get(f"{name}_high")) for name in ("exact_match", "f1")]
    return each["name"], f"{each['questions']:,}", figures


def _drawn(listed: Sequence[Mapping[str, Any]]) -> str:
    return picture(lambda axes: _plot(axes, listed))


def _plot(axes: "Axes", listed: Sequence[Mapping[str, Any]]) -> None:
    """A point with its interval for each slice and measure."""
    for number, name in enumerate(("exact_match", "f1")):
        values = [each[name] for each in listed]
        below = [value - each.get(f"{name}_low", value) for value, each in zip(values, listed, strict=True)]
        above = [each.get(f"{name}_high", value) - value for value, each in zip(values, listed, strict=True)]
        axes.errorbar(
            [place + 0.16 * (number - 0.5) for place in range(len(listed))],
            values,
            [below, above],
            color=COLOURS[number],
            fmt=MARKERS[number],
            markersize=4,
            elinewidth=1.2,
            label=_measure(name),
        )
    plain(axes)
    names = [each["name"].removesuffix(" words").removesuffix(" word").removesuffix(" %") for each in listed]
    slanted: dict[str, Any] = {"rotation": 30, "ha": "right"} if len(names) > MOST_UPRIGHT else {}
    axes.set_xticks(range(len(listed)), names, **slanted)
    axes.set_xlabel("words" if "word" in listed[0]["name"] else "% of the text")
    axes.set_ylim(-0.03, 1.03)
    axes.legend(frameon=False, fontsize=7)


def _example(each: Mapping[str, Any], is_right: bool) -> Example:
    from domain.biomedical.page import marked, percent

    passages = [marked(passage["text"], _marks(passage["marks"], is_right)) for passage in each["passages"]]
    golds = " / ".join(dict.fromkeys(gold for gold in each["golds"] if gold))
    return Example(each["question"], each["answer"], percent(each["probability"]), golds, passages)


def _marks(listed: Sequence[Mapping[str, Any]], is_right: bool) -> list[Any]:
    """The answer, and the right ones that are elsewhere or longer or shorter."""
    from domain.biomedical.page import Highlight

    answers = [(each["start"], each["end"]) for each in listed if each["kind"] == "answer"]
    golds = _joined((each["start"], each["end"]) for each in listed if each["kind"] == "gold")
    style = ("right hue-2", "✓") if is_right else ("wrong hue-6", "✗")
    found = [Highlight(start, end, *style, "answered") for start, end in answers]
    if is_right and found:
        return found
    return [*found, *(Highlight(start, end, "gold hue-0", "gold", "right") for start, end in golds)]


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans that overlap as one: two golds of one place are the same answer in more and in fewer words."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            start, end = joined[-1][0], max(end, joined.pop()[1])
        joined.append((start, end))
    return joined
