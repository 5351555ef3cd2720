"""Texts with entities or answers marked in colour: as pages of their own, and as HTML for a report.

The hues are those of Okabe and Ito, which the colour-blind can distinguish; every mark also has a label: the type of an
entity, or the number of a question.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup, escape

from bertrelay.data.tables import Rejected
from bertrelay.files import atomic_write
from domain.biomedical.documents.document import Document, Entity, Relation
from domain.biomedical.documents.losses import (
    Counts,
    keep_entities,
    remove_overlaps,
    remove_parts,
)
from domain.biomedical.documents.soundness import DISCONTINUOUS, check_contiguous
from domain.biomedical.documents.triples import ends_of
from domain.biomedical.documents.writing import Write, Writer

VERDICTS = {
    "right": ("✓", "found"),
    "missed": ("−", "missed"),
    "spurious": ("+", "spurious"),
    "wrong_span": ("↔", "wrong boundary"),
    "wrong_type": ("≠", "wrong type"),
    "wrong_both": ("↔≠", "wrong boundary and type"),
}
"""Sign and meaning of the kinds of pairs in `ner.metrics`."""
HUES = 8
FOLDER = Path(__file__).parent
PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}
"""The pictures in Unicode of control characters, which HTML cannot hold."""

Hues = Mapping[str, str]
"""The class of each type in the style sheet."""


class Highlight(NamedTuple):
    """Characters [start, end) of a text. classes: of the style sheet. label: what follows the last character."""

    start: int
    end: int
    classes: str
    label: str = ""
    title: str = ""
    anchor: str = ""


class MarkedEntity(NamedTuple):
    """An entity with its verdict, one of `VERDICTS`, beside the gold or predicted entity of its pair."""

    entity: Entity
    verdict: str | None = None


def style() -> Markup:
    return Markup((FOLDER / "page.css").read_text(encoding="utf-8"))


def marked(text: str, marks: Sequence[Highlight]) -> Markup:
    """The text as a paragraph of HTML with `marks`; where they overlap, the first one gives the colour."""
    borders = sorted({0, len(text), *(border for mark in marks for border in mark[:2])})
    beginning: defaultdict[int, dict[int, Highlight]] = defaultdict(dict)
    for number, mark in enumerate(marks):
        beginning[mark.start][number] = mark
    over: dict[int, Highlight] = {}
    parts = []
    for start, end in pairwise(borders):
        over = {number: mark for number, mark in {**over, **beginning[start]}.items() if mark.end >= end}
        parts.append(_part(text, start, end, [over[number] for number in sorted(over)]))
    return Markup('<p class="marked" dir="auto">{}</p>').format(Markup().join(parts))


def _part(text: str, start: int, end: int, over: Sequence[Highlight]) -> Markup:
    """The characters [start, end), which the marks `over` cover."""
    inside = shown(text[start:end])
    if not over:
        return inside
    names = [mark.anchor for mark in over if mark.anchor and mark.start == start]
    anchors = [Markup('<span class="anchor" id="{}"></span>').format(name) for name in names]
    classes = [over[0].classes, *(["shared"] if len(over) > 1 else []), *(["joined"] if over[0].start < start else [])]
    labels = [mark.label for mark in over if mark.end == end and mark.label]
    label = Markup(' data-label="{}"').format(", ".join(labels)) if labels else Markup()
    title = "; ".join(mark.title for mark in over if mark.title)
    mark = Markup('<mark class="{}" title="{}"{}>{}</mark>').format(" ".join(classes), title, label, inside)
    return Markup().join([*anchors, mark])


def shown(text: str) -> Markup:
    """The text escaped for HTML, with pictures of control characters."""
    return escape(text.replace("\r\n", "\n").translate(PICTURES))


def percent(probability: float) -> str:
    """A probability as `93 %`; only exact 0 and 1 are `0 %` and `100 %`."""
    if 0 < probability < 0.01:
        return "< 1 %"
    return "> 99 %" if 0.99 < probability < 1 else f"{probability:.0%}".replace("%", " %")


def render(template: Path, **values: object) -> str:
    """The page of a template, which may extend the templates beside this module."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([template.parent, FOLDER]), autoescape=True, undefined=StrictUndefined
    )
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters["percent"] = percent
    return environment.get_template(template.name).render(style=style(), **values)


def hues_of(types: Iterable[str]) -> dict[str, str]:
    """A hue for each type, in any order of the types; from the ninth on they repeat, underlined twice."""
    numbered = enumerate(sorted(set(types)))
    return {name: f"hue-{number % HUES}{' again' if number >= HUES else ''}" for number, name in numbered}


def marked_entities(text: str, entities: Sequence[MarkedEntity], hues: Hues) -> Markup:
    return marked(text, [_entity_mark(entity, verdict, hues) for entity, verdict in entities])


def _entity_mark(entity: Entity, verdict: str | None, hues: Hues) -> Highlight:
    name, (sign, meaning) = entity.type or "entity", VERDICTS[verdict] if verdict else ("", "")
    confidence = "" if entity.confidence is None else percent(entity.confidence)
    title = ", ".join(filter(None, [name, meaning, confidence, entity.identifier]))
    classes = " ".join(filter(None, [hues[entity.type], verdict]))
    return Highlight(entity.start, entity.end, classes, f"{sign} {name}".strip(), title)


def legend(entities: Iterable[MarkedEntity], hues: Hues) -> Markup:
    """The types with their hues and counts, and the verdicts with their signs and counts."""
    listed = list(entities)
    types = Counter(marked_entity.entity.type for marked_entity in listed)
    verdicts = Counter(marked_entity.verdict for marked_entity in listed if marked_entity.verdict)
    rows = [
        Markup('<li><mark class="{}">{}</mark><b>{:,}</b></li>').format(hue, name or "entity", types[name])
        for name, hue in hues.items()
    ]
    rows += [
        Markup("<li>{} {}<b>{:,}</b></li>").format(sign, meaning, verdicts[verdict])
        for verdict, (sign, meaning) in VERDICTS.items()
        if verdicts
    ]
    return Markup('<ul class="legend">{}</ul>').format(Markup().join(rows))


@contextmanager
def _open_page(path: Path, check: Callable[[Document], None]) -> Iterator[Write]:
    """Opens a page of documents, named after its file, which is written when the block ends."""
    documents: list[Document] = []

    def write(document: Document) -> None:
        check(document)
        documents.append(document)

    with atomic_write(path) as building:
        yield write
        building.write_text(entity_page(documents, path.stem), encoding="utf-8")


def check(document: Document) -> None:
    """Raises Rejected for entities that a page cannot mark."""
    check_contiguous(document, "a page")
    spans = sorted((entity.start, entity.end) for entity in document.entities)
    if any(following[0] < before[1] for before, following in pairwise(spans)):
        raise Rejected("nested or overlapping entities", "on a page a character has one colour")


def entity_page(documents: Iterable[Document], title: str) -> str:
    """The page of `documents`, an article for each."""
    listed = [(document, [MarkedEntity(entity) for entity in document.entities]) for document in documents]
    everything = [entity for _, entities in listed for entity in entities]
    hues = hues_of(marked_entity.entity.type for marked_entity in everything)
    articles = [
        (
            document.id,
            marked_entities(document.text, entities, hues),
            [_shown_relation(document, one) for one in document.relations],
        )
        for document, entities in listed
    ]
    return render(
        FOLDER / "entities.html.jinja",
        title=title,
        articles=articles,
        entities=len(everything),
        legend=legend(everything, hues),
    )


def _shown_relation(document: Document, relation: Relation) -> tuple[str, str, str]:
    """Type of a relation, its arguments with their identifiers, and its novelty and probability."""
    ends = [
        " ".join(filter(None, [end.mention, end.identifier and f"({end.identifier})"]))
        for end in ends_of(document, relation)
    ]
    novelty = {True: "new finding", False: "background", None: ""}[relation.novel]
    confidence = "" if relation.confidence is None else percent(relation.confidence)
    return shown(relation.type), shown(" – ".join(ends)), ", ".join(filter(None, [novelty, confidence]))


LACKS = ("identifier_score", "database", "parts", "is_part", "passages", "sentences", "fields")


def fit(document: Document, left_out: Counts) -> Document:
    """The document with entities that a page can mark, and with their relations."""
    document = remove_parts(document, left_out, *LACKS)
    document = keep_entities(document, left_out, lambda entity: DISCONTINUOUS if entity.fragments else "")
    return remove_overlaps(document, left_out)


WRITER = Writer(check, _open_page, fit)
