"""How well entities are found: precision, recall and F1 over whole entities.

Strict is seqeval's strict mode in IOB2, and `tags.spans_of`: an entity begins with B and counts when start, end and
type are right. Lenient is seqeval's default, which also takes `O I-X` for an entity; for legal tags both are the same.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertrelay.stage import Metrics
from domain.biomedical.documents.document import Document
from domain.biomedical.documents.html import MarkedEntity
from domain.biomedical.documents.tags import TokenSpan

Spans = Sequence[Sequence[TokenSpan]]
"""The entities of each sentence."""
Counts = NDArray[np.int64]


def count_entities(
    gold: Spans, untaggable: Sequence[Sequence[str]], predicted: Spans, units: Counts, types: Sequence[str]
) -> Counts:
    """Right, gold and predicted entities by unit (a document or a sentence) and type, (3, units, types).

    untaggable: the types of gold entities of a sentence that tags cannot represent. units: each sentence's unit.
    """
    place = {name: number for number, name in enumerate(types)}
    counts = np.zeros((3, int(units.max(initial=-1)) + 1, len(types)), np.int64)
    for unit, wanted, more, found in zip(units.tolist(), gold, untaggable, predicted, strict=True):
        right = [span.type for span in set(wanted) & set(found)]
        found_types = (right, [*(span.type for span in wanted), *more], [span.type for span in found])
        for row, kinds in zip(counts[:, unit], found_types, strict=True):
            np.add.at(row, [place[kind] for kind in kinds], 1)
    return counts


def which_are_right(gold: Spans, predicted: Spans) -> NDArray[np.bool_]:
    """Of all predicted entities, sentence after sentence, which ones are in the gold data."""
    pairs = zip(map(set, gold), predicted, strict=True)
    return np.array([span in wanted for wanted, found in pairs for span in found], bool)


def plain(name: str, statistic: Callable[..., float | None], *columns: Counts) -> Metrics:
    """`statistic(*columns)` as `name`; `with_interval` of `bertrelay.evaluation.statistics` adds its interval."""
    return {name: statistic(*columns)}


def entity_metrics(counts: Counts, types: Sequence[str], measured: Callable[..., Metrics] = plain) -> Metrics:
    """`precision`, `recall`, `f1` over all entities and for each type (`f1/Disease`), `measured` over units.

    No precision without predictions, no recall without gold entities; an F1 as soon as there are either.
    """
    metrics: Metrics = {}
    groups = {"": slice(None), **{f"/{name}": slice(number, number + 1) for number, name in enumerate(types) if name}}
    for ending, which in groups.items():
        right, gold, predicted = counts[:, :, which].sum(axis=2)
        columns = {"precision": (right, predicted), "recall": (right, gold), "f1": (2 * right, gold + predicted)}
        for name, (part, whole) in columns.items():
            found = measured(name, _ratio, part, whole)
            metrics |= {f"{name}{ending}{key.removeprefix(name)}": value for key, value in found.items()}
    return metrics


def _ratio(part: Counts, whole: Counts) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None


# Gold and predicted entities in pairs


@dataclass(frozen=True)
class Pairing:
    """A gold entity and what was predicted there; None where there is none."""

    gold: TokenSpan | None
    predicted: TokenSpan | None

    @property
    def kind(self) -> str:
        """`right`, `wrong_type`, `wrong_span`, `wrong_both`, `missed` or `spurious`."""
        if self.gold is None or self.predicted is None:
            return "missed" if self.predicted is None else "spurious"
        if self.gold[:2] == self.predicted[:2]:
            return "right" if self.gold == self.predicted else "wrong_type"
        return "wrong_span" if self.gold.type == self.predicted.type else "wrong_both"


KINDS = ("right", "wrong_span", "wrong_type", "wrong_both", "missed", "spurious")


def pairings(gold: Sequence[TokenSpan], predicted: Sequence[TokenSpan]) -> Iterator[Pairing]:
    """Each gold entity of a sentence with the prediction that is nearest to it, and predictions that share no word.

    Nearest is the same entity, then one of its type that shares words with it, then any that does; of several the one
    that shares most. So each gold entity occurs once, in the order of `gold`, and its kind is the same by words and by
    characters.
    """
    for wanted in gold:
        near = [found for found in predicted if _shared(wanted, found)]
        best = max(
            near, key=lambda found: (found == wanted, found.type == wanted.type, _shared(wanted, found)), default=None
        )
        yield Pairing(wanted, best)
    for found in predicted:
        if not any(_shared(wanted, found) for wanted in gold):
            yield Pairing(None, found)


def _shared(first: TokenSpan, second: TokenSpan) -> int:
    return max(0, min(first.end, second.end) - max(first.start, second.start))


def confusions(
    tokens: Sequence[Sequence[str]], found: Sequence[Sequence[Pairing]], most: int = 25
) -> dict[str, list[dict[str, object]]]:
    """The commonest confusions: of types, by kind, and of mentions in words, each with how often it occurred."""
    wrong = [
        (words, pair) for words, pairs in zip(tokens, found, strict=True) for pair in pairs if pair.kind != "right"
    ]

    def listed(name: Callable[[TokenSpan, Sequence[str]], str]) -> list[dict[str, object]]:
        counted = Counter(
            (pair.kind, *(span and name(span, words) for span in (pair.gold, pair.predicted))) for words, pair in wrong
        )
        return [
            {"kind": kind, "gold": gold, "predicted": predicted, "count": count}
            for (kind, gold, predicted), count in counted.most_common(most)
        ]

    return {
        "types": listed(lambda span, _: span.type),
        "mentions": listed(lambda span, words: " ".join(words[span.start : span.end])),
    }


def compared(gold: Document, predicted: Document) -> tuple[list[MarkedEntity], list[MarkedEntity]]:
    """Gold and predicted entities, each with the verdict on the pair that scoring puts it in."""
    return _paired(gold, predicted, "missed"), _paired(predicted, gold, "spurious")


def _paired(document: Document, other: Document, alone: str) -> list[MarkedEntity]:
    mine, theirs = (
        [TokenSpan(each.start, each.end, each.type) for each in annotated.entities] for annotated in (document, other)
    )
    pairs = zip(document.entities, pairings(mine, theirs), strict=False)  # the unpaired ones of `other` come last
    return [MarkedEntity(entity, alone if pair.predicted is None else pair.kind) for entity, pair in pairs]
