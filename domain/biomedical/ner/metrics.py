"""How well entities are found: precision, recall and F1 over whole entities, and what goes wrong.

Strict is seqeval's strict mode in IOB2: an entity begins with B and counts when start, end and type are right. Lenient
is seqeval's default, which also takes `O I-X` for an entity; for legal tags both are the same.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertrelay.evaluation.statistics import with_interval
from bertrelay.stage import Metrics
from domain.biomedical.documents.tokens import TokenSpan, spans_of

Tags = Sequence[str]
FindSpans = Callable[[Tags], list[TokenSpan]]
Counts = NDArray[np.int64]


def strict_spans(tags: Tags) -> list[TokenSpan]:
    return spans_of(tags, "IOB2")


def lenient_spans(tags: Tags) -> list[TokenSpan]:
    """As seqeval reads tags by default, and conlleval before it."""
    from seqeval.metrics.sequence_labeling import get_entities

    return [TokenSpan(start, end + 1, "" if kind == "_" else kind) for kind, start, end in get_entities(list(tags))]


class EntityCounts(NamedTuple):
    """Right, gold and predicted entities by unit (a document or a sentence) and type, each (units, types)."""

    right: Counts
    gold: Counts
    predicted: Counts


def count_entities(
    gold: Sequence[Sequence[TokenSpan]],
    untaggable: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[TokenSpan]],
    units: Counts,
    types: Sequence[str],
) -> EntityCounts:
    """What was found of the entities of each sentence.

    untaggable: the types of gold entities of a sentence that tags cannot represent. units: each sentence's unit.
    """
    place = {name: number for number, name in enumerate(types)}
    counts = EntityCounts(*(np.zeros((int(units.max(initial=-1)) + 1, len(types)), np.int64) for _ in range(3)))
    for unit, wanted, more, found in zip(units.tolist(), gold, untaggable, predicted, strict=True):
        right = [span.type for span in set(wanted) & set(found)]
        found_types = (right, [*(span.type for span in wanted), *more], [span.type for span in found])
        for total, kinds in zip(counts, found_types, strict=True):
            for kind in kinds:
                total[unit, place[kind]] += 1
    return counts


def which_are_right(gold: Sequence[Sequence[TokenSpan]], predicted: Sequence[Sequence[TokenSpan]]) -> NDArray[np.bool_]:
    """Of every predicted entity, sentence after sentence, whether it is a gold one, (predicted entities,)."""
    golds = map(set, gold)
    return np.array([span in wanted for wanted, found in zip(golds, predicted, strict=True) for span in found], bool)


def entity_metrics(counts: EntityCounts, types: Sequence[str], intervals: bool = True) -> Metrics:
    """`precision`, `recall`, `f1` over all entities and for each type (`f1/Disease`), with 95 % intervals over units.

    No precision without predictions, no recall without gold entities; an F1 as soon as there are either.
    """
    metrics: Metrics = {}
    everything = list(range(counts.gold.shape[1]))
    groups = {"": everything, **{f"/{name}": [number] for number, name in enumerate(types) if name}}
    for ending, which in groups.items():
        columns = [each[:, which].sum(axis=1) for each in counts]
        for name, statistic in (("precision", _precision), ("recall", _recall), ("f1", _f1)):
            if intervals:
                values = with_interval(name, statistic, *columns)
                metrics |= {f"{name}{ending}{key.removeprefix(name)}": value for key, value in values.items()}
            else:
                metrics[f"{name}{ending}"] = statistic(*columns)
    return metrics


def _precision(right: Counts, gold: Counts, predicted: Counts) -> float | None:  # noqa: ARG001
    return float(right.sum() / predicted.sum()) if predicted.any() else None


def _recall(right: Counts, gold: Counts, predicted: Counts) -> float | None:  # noqa: ARG001
    return float(right.sum() / gold.sum()) if gold.any() else None


def _f1(right: Counts, gold: Counts, predicted: Counts) -> float | None:
    both = gold.sum() + predicted.sum()
    return float(2 * right.sum() / both) if both else None


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
        same_span, same_type = self.gold[:2] == self.predicted[:2], self.gold.type == self.predicted.type
        return {(True, True): "right", (True, False): "wrong_type", (False, True): "wrong_span"}.get(
            (same_span, same_type), "wrong_both"
        )


Confusion = tuple[str, str | None, str | None]
"""The kind, and the gold and predicted type or mention."""

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
    by_type: Counter[Confusion] = Counter()
    by_mention: Counter[Confusion] = Counter()
    for words, pairs in zip(tokens, found, strict=True):
        for pair in pairs:
            if pair.kind != "right":
                by_type[pair.kind, pair.gold and pair.gold.type, pair.predicted and pair.predicted.type] += 1
                by_mention[pair.kind, _mention(pair.gold, words), _mention(pair.predicted, words)] += 1
    return {"types": _listed(by_type, most), "mentions": _listed(by_mention, most)}


def _mention(span: TokenSpan | None, words: Sequence[str]) -> str | None:
    return None if span is None else " ".join(words[span.start : span.end])


def _listed(counted: Counter[Confusion], most: int) -> list[dict[str, object]]:
    return [
        {"kind": kind, "gold": gold, "predicted": predicted, "count": count}
        for (kind, gold, predicted), count in counted.most_common(most)
    ]
