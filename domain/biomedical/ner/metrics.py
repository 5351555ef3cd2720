"""How well entities are found: precision, recall and F1 over whole entities.

Strict is seqeval's strict mode in IOB2, and `tokens.spans_of`: an entity begins with B and counts when start, end and
type are right. Lenient is seqeval's default, which also takes `O I-X` for an entity; for legal tags both are the same.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bertrelay.stage import Metrics
from domain.biomedical.documents.tokens import TokenSpan

Spans = Sequence[Sequence[TokenSpan]]
"""The entities of each sentence."""
Counts = NDArray[np.int64]


def lenient_spans(tags: Sequence[str]) -> list[TokenSpan]:
    """As seqeval reads tags by default, and conlleval before it."""
    from seqeval.metrics.sequence_labeling import get_entities

    return [TokenSpan(start, end + 1, "" if kind == "_" else kind) for kind, start, end in get_entities(list(tags))]


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
