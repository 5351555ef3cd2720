"""Precision, recall and F1 of mentions, concepts and relations of documents, counted as the corpora's own scripts do.

Everything counts once in a document: a mention by its span and type, a concept by its type and identifier, a relation
between concepts by its identifiers. Counts are summed over documents. Sources: the evaluators of BioCreative V CDR
(Wei et al. 2016) and of BioRED (Luo et al. 2022).
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Literal, NamedTuple

from bertrelay.errors import RequestError
from bertrelay.stage import Metrics
from domain.biomedical.documents.document import Argument, Document
from domain.biomedical.documents.formats import FormatName, read_documents

DEFAULT_DATABASE = "MESH:"
"""The prefix of identifiers that some files of BC5CDR have and others lack."""
Level = Literal["pair", "type", "novelty", "all"]
LEVELS: tuple[Level, ...] = ("pair", "type", "novelty", "all")
"""Parts of a relation that must be right: its two ends, with its type, with its novelty, with both."""


class Matches(NamedTuple):
    """Numbers of right predictions, wrong ones, and gold items that were not predicted."""

    right: int
    spurious: int
    missed: int

    def metrics(self, name: str) -> Metrics:
        """Counts, and precision, recall and F1; a ratio without a denominator is absent."""
        values: Metrics = {f"{name}/{field}": count for field, count in self._asdict().items()}
        denominators = {
            "precision": self.right + self.spurious,
            "recall": self.right + self.missed,
            "f1": self.right + (self.spurious + self.missed) / 2,
        }
        ratios = {f"{name}/{ratio}": self.right / count for ratio, count in denominators.items() if count}
        return values | ratios


Key = tuple[object, ...]
"""An item of a document, of which equal ones count once."""


def mention_keys(document: Document, types: Collection[str] = ()) -> set[Key]:
    """Span and type of each mention; individual mentions of a composite one are no others. types: all when empty."""
    return {
        (entity.spans, entity.type)
        for entity in document.entities
        if not entity.is_part and (not types or entity.type in types)
    }


def concept_keys(document: Document, types: Collection[str] = ()) -> set[Key]:
    """Type and identifier of each concept; a composite mention has several. types: all when empty."""
    return {
        (entity.type, _plain(name))
        for entity in document.entities
        for name in entity.identifiers
        if not types or entity.type in types
    }


def relation_keys(document: Document, level: Level = "all", is_directed: bool = False) -> set[Key]:
    """The parts of each relation that count at a `level`; its ends are without an order unless `is_directed`.

    A relation of three ends counts as three of two. Identifiers are compared as they are in the files.
    """
    return {
        (*_ends(pair, is_directed), *parts_at(level, relation.type, relation.novel))
        for relation in document.relations
        for pair in combinations([_end(document, argument) for argument in relation.arguments], 2)
    }


def _end(document: Document, argument: Argument) -> Key:
    """A mention as its spans and type, or a concept as its identifier; with its role."""
    if isinstance(argument.target, str):
        return _plain(argument.target), argument.role
    entity = document.entities[argument.target]
    return entity.spans, entity.type, argument.role


def _ends(pair: tuple[Key, ...], is_directed: bool) -> Key:
    """The two ends, with their roles if the direction counts, else in one order."""
    if is_directed:
        return pair
    return tuple(sorted((end[:-1] for end in pair), key=repr))


def parts_at(level: Level, kind: str, novel: bool | None) -> Key:
    """The parts of a relation, beside its ends, that count at a level; kind: its type."""
    of_kind = (kind,) if level in ("type", "all") else ()
    return (*of_kind, novel) if level in ("novelty", "all") else of_kind


def _plain(identifier: str) -> str:
    return identifier.removeprefix(DEFAULT_DATABASE)


def match(gold: Iterable[Document], predicted: Iterable[Document], keys_of: Callable[[Document], set[Key]]) -> Matches:
    """Counts the keys that predicted documents share with the gold documents of their ids, over all documents.

    A gold document without a prediction is missed as a whole. Raises RequestError for a predicted document that the
    gold data lacks.
    """
    keys = {document.id: keys_of(document) for document in predicted}
    right = missed = 0
    total = sum(map(len, keys.values()))
    for document in gold:
        expected, actual = keys_of(document), keys.pop(document.id, set())
        right += len(expected & actual)
        missed += len(expected - actual)
    if keys:
        raise RequestError(
            f"expected predictions for documents of the gold data, found {len(keys):,} others. Give the files of one "
            "corpus."
        )
    return Matches(right, total - right, missed)


def score_files(
    gold: Path,
    predicted: Path,
    *,
    gold_format: FormatName | None = None,
    predicted_format: FormatName | None = None,
    types: Collection[str] = (),
    directed: bool = False,
) -> Metrics:
    """Scores annotations of `predicted` against those of `gold`, files of the same documents in any formats.

    Metrics of `mentions`, of `concepts` where there are identifiers, and of `relations/pair`, `relations/type` and, for
    gold relations with novelty, `relations/novelty` and `relations/all`; absent where neither file has any.
    types: of mentions and concepts that count; all when empty.
    directed: the roles of the arguments of a relation must be right, too.
    Raises RequestError for unusable documents, and for predicted ones that the gold data lacks.
    """
    expected, actual = list(read_documents(gold, gold_format)), list(read_documents(predicted, predicted_format))
    has_novelty = any(relation.novel is not None for document in expected for relation in document.relations)
    keys: dict[str, Callable[[Document], set[Key]]] = {
        "mentions": partial(mention_keys, types=types),
        "concepts": partial(concept_keys, types=types),
        **{
            f"relations/{level}": partial(relation_keys, level=level, is_directed=directed)
            for level in (LEVELS if has_novelty else LEVELS[:2])
        },
    }
    metrics: Metrics = {}
    for name, keys_of in keys.items():
        matches = match(expected, actual, keys_of)
        metrics |= matches.metrics(name) if any(matches) else {}
    return metrics
