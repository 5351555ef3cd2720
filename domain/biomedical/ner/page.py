"""Texts with their entities in colour: as a page of its own, and as pieces of HTML for a report.

The hues are told apart by the colour-blind (after Okabe and Ito), and every entity bears the name of its type as well.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from markupsafe import Markup, escape

from domain.biomedical.documents.document import Document, Entity, Unfit
from domain.biomedical.documents.tokens import TokenSpan

Verdict = Literal["found", "missed", "spurious", "border", "type", "both"]

SIGNS: dict[Verdict, str] = {"found": "✓", "missed": "−", "spurious": "+", "border": "↔", "type": "≠", "both": "↔≠"}
MEANINGS: dict[Verdict, str] = {
    "found": "found",
    "missed": "missed",
    "spurious": "spurious",
    "border": "wrong border",
    "type": "wrong type",
    "both": "wrong border and type",
}
VERDICTS: dict[str, Verdict] = {"right": "found", "wrong_span": "border", "wrong_type": "type", "wrong_both": "both"}
"""Of entities that have one beside them on the other side, by what `scoring` calls the pair."""
HUES = 8
ROOM = Path(__file__).parent
PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}
"""Control characters, which HTML cannot hold, as the pictures that Unicode has of them."""

Hues = Mapping[str, int]
"""The number of each type's hue."""


class Judged(NamedTuple):
    """An entity, and how it compares with the other side."""

    entity: Entity
    verdict: Verdict | None = None


# Pieces


def style() -> Markup:
    """The style sheet of everything that this room draws."""
    return Markup((ROOM / "entities.css").read_text(encoding="utf-8"))


def hues_of(types: Iterable[str]) -> dict[str, int]:
    """A hue for each type, the same whatever order they come in; from the ninth on they repeat, underlined twice."""
    return {name: place for place, name in enumerate(sorted(set(types)))}


def marked(text: str, entities: Sequence[Judged], hues: Hues) -> Markup:
    """The text as a paragraph of HTML with its entities marked. Raises Unfit for entities that overlap."""
    check_apart([judged.entity for judged in entities])
    parts, end = [], 0
    for judged in sorted(entities, key=lambda each: each.entity.start):
        parts += [shown(text[end : judged.entity.start]), _mark(text, judged, hues)]
        end = judged.entity.end
    return Markup('<p class="marked" dir="auto">{}</p>').format(Markup().join([*parts, shown(text[end:])]))


def legend(entities: Iterable[Judged], hues: Hues) -> Markup:
    """The types with their hues and counts, and the verdicts with their signs and counts."""
    judged = list(entities)
    types = Counter(each.entity.type for each in judged)
    verdicts = Counter(each.verdict for each in judged if each.verdict)
    rows = [
        Markup('<li><mark class="{}">{}</mark><b>{:,}</b></li>').format(_hue(name, hues), name or "entity", types[name])
        for name in hues
    ]
    rows += [
        Markup("<li>{} {}<b>{:,}</b></li>").format(sign, MEANINGS[verdict], verdicts[verdict])
        for verdict, sign in SIGNS.items()
        if verdicts
    ]
    return Markup('<ul class="legend">{}</ul>').format(Markup().join(rows))


def compared(gold: Document, predicted: Document) -> tuple[list[Judged], list[Judged]]:
    """The entities of both sides, each judged by the one that it is paired with on the other, as they are scored."""
    return _judged(gold, predicted, "missed"), _judged(predicted, gold, "spurious")


def _judged(document: Document, other: Document, alone: Verdict) -> list[Judged]:
    from domain.biomedical.ner.metrics import pairings  # a page of one side does without

    mine, theirs = ([TokenSpan(*entity[:3]) for entity in side.entities] for side in (document, other))
    pairs = zip(document.entities, pairings(mine, theirs), strict=False)  # those of `other` that are alone come last
    return [Judged(entity, alone if pair.predicted is None else VERDICTS[pair.kind]) for entity, pair in pairs]


def check_apart(entities: Sequence[Entity]) -> None:
    """Raises Unfit for entities that overlap."""
    spans = sorted((entity.start, entity.end) for entity in entities)
    if any(following[0] < before[1] for before, following in pairwise(spans)):
        raise Unfit("nested or overlapping entities", "on a page a character has one colour")


def _mark(text: str, judged: Judged, hues: Hues) -> Markup:
    entity, verdict = judged
    name = entity.type or "entity"
    label = f"{SIGNS[verdict]} {name}" if verdict else name
    told = [name, *([MEANINGS[verdict]] if verdict else []), *_confidence(entity), *filter(None, [entity.identifier])]
    classes = " ".join(filter(None, [_hue(entity.type, hues), verdict]))
    inside = shown(text[entity.start : entity.end])
    pattern = Markup('<mark class="{}" data-label="{}" title="{}">{}</mark>')
    return pattern.format(classes, label, ", ".join(told), inside)


def _confidence(entity: Entity) -> list[str]:
    return [] if entity.confidence is None else [f"{entity.confidence:.1%}"]


def _hue(name: str, hues: Hues) -> str:
    again = " again" if hues[name] >= HUES else ""
    return f"hue-{hues[name] % HUES}{again}"


def shown(text: str) -> Markup:
    """The text as HTML holds it, control characters as pictures of them."""
    return escape(text.replace("\r\n", "\n").translate(PICTURES))


# Pages


def page(documents: Iterable[Document], title: str) -> str:
    """A page of documents with their entities. Raises Unfit for entities that overlap or are discontinuous."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    listed = list(documents)
    entities = [[Judged(entity) for entity in document.entities] for document in listed]
    everything = list(chain.from_iterable(entities))
    hues = hues_of(each.entity.type for each in everything)
    environment = Environment(
        loader=FileSystemLoader(ROOM), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.jinja").render(
        title=title,
        articles=[(each.id, marked(each.text, found, hues)) for each, found in zip(listed, entities, strict=True)],
        entities=len(everything),
        legend=legend(everything, hues),
        style=style(),
    )
