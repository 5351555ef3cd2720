"""Precision, recall and F1 over whole entities; alignment of gold and predicted entities, and confusions.

Strict is seqeval's strict mode in IOB2, as `tags.spans_of`: an entity begins with B and counts if start, end and type
are right. Lenient is seqeval's default, which also takes `O I-X` for an entity; for legal tags both are the same.
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
from domain.biomedical.ner.data import Example

Spans = Sequence[Sequence[TokenSpan]]
"""The entities of each sentence."""
Counts = NDArray[np.int64]


def count_entities(
    gold: Spans, untaggable: Sequence[Sequence[str]], predicted: Spans, units: Counts, types: Sequence[str]
) -> Counts:
    """Counts right, gold and predicted entities by unit (a document or a sentence) and type, (3, units, types).

    untaggable: types of each sentence's gold entities that tags cannot represent. units: the unit of each sentence.
    """
    column_of = {name: number for number, name in enumerate(types)}
    counts = np.zeros((3, int(units.max(initial=-1)) + 1, len(types)), np.int64)
    for unit, gold_spans, beyond, spans in zip(units.tolist(), gold, untaggable, predicted, strict=True):
        right = [span.type for span in set(gold_spans) & set(spans)]
        types_of_rows = (right, [*(span.type for span in gold_spans), *beyond], [span.type for span in spans])
        for row, kinds in zip(counts[:, unit], types_of_rows, strict=True):
            np.add.at(row, [column_of[kind] for kind in kinds], 1)
    return counts


def which_are_right(gold: Spans, predicted: Spans) -> NDArray[np.bool_]:
    """Flags of all predicted entities, sentence after sentence, that are in the gold data, (entities,)."""
    pairs = zip(map(set, gold), predicted, strict=True)
    return np.array([span in gold_spans for gold_spans, spans in pairs for span in spans], bool)


def which_are_scored(examples: Sequence[Example], predicted: Spans) -> NDArray[np.bool_]:
    """Flags of all predicted entities, sentence after sentence, whose type the corpus annotates, (entities,)."""
    pairs = zip(examples, predicted, strict=True)
    return np.array([example.annotates(span.type) for example, spans in pairs for span in spans], bool)


def plain(name: str, statistic: Callable[..., float | None], *columns: Counts) -> Metrics:
    """`statistic(*columns)` as `name`; `with_interval` of `bertrelay.evaluation.statistics` adds its interval."""
    return {name: statistic(*columns)}


def entity_metrics(counts: Counts, types: Sequence[str], measured: Callable[..., Metrics] = plain) -> Metrics:
    """`precision`, `recall`, `f1` over all entities and for each type (`f1/Disease`), `measured` over units.

    No precision without predictions, no recall without gold entities, no F1 without either.
    """
    metrics: Metrics = {}
    groups = {"": slice(None), **{f"/{name}": slice(number, number + 1) for number, name in enumerate(types) if name}}
    for ending, columns in groups.items():
        right, gold, predicted = counts[:, :, columns].sum(axis=2)
        ratios = {"precision": (right, predicted), "recall": (right, gold), "f1": (2 * right, gold + predicted)}
        for name, (part, whole) in ratios.items():
            values = measured(name, _ratio, part, whole)
            metrics |= {f"{name}{ending}{key.removeprefix(name)}": value for key, value in values.items()}
    return metrics


def metrics_of_corpora(
    names: Sequence[str],
    corpora: Sequence[str],
    gold: Spans,
    untaggable: Sequence[Sequence[str]],
    predicted: Spans,
    units: Counts,
    measured: Callable[..., Metrics] = plain,
) -> Metrics:
    """`NAME/f1` and so on, and with several types `NAME/f1/Disease`, of each corpus in `names` by itself.

    corpora: the corpus of each sentence. Others as in `count_entities`.
    """
    metrics: Metrics = {}
    for name in dict.fromkeys(names):
        rows = [row for row, corpus in enumerate(corpora) if corpus == name]
        spans, predictions = ([column[row] for row in rows] for column in (gold, predicted))
        beyond = [untaggable[row] for row in rows]
        types = sorted({span.type for listed in (*spans, *predictions) for span in listed}.union(*beyond))
        counts = count_entities(spans, beyond, predictions, np.unique(units[rows], return_inverse=True)[1], types)
        of_corpus = entity_metrics(counts, types if types[1:] else [], measured)
        metrics |= {f"{name}/{key}": value for key, value in of_corpus.items()}
    return metrics


def _ratio(part: Counts, whole: Counts) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None


@dataclass(frozen=True)
class Pairing:
    """A gold entity and the predicted one aligned with it; one of them may be None."""

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
    """Aligns the entities of a sentence: each gold entity with the nearest prediction, then predictions without any.

    Nearest is the same entity, then one of its type that shares words with it, then any that does; of several the one
    that shares most. So each gold entity occurs once, in the order of `gold`, and its kind is the same by words and by
    characters. Gold (0, 2, A) and (5, 6, A) and the predictions (1, 2, A) and (8, 9, B) give wrong_span, missed and
    spurious.
    """
    for span in gold:
        near = [other for other in predicted if _overlap(span, other)]
        best = max(
            near, key=lambda other: (other == span, other.type == span.type, _overlap(span, other)), default=None
        )
        yield Pairing(span, best)
    for other in predicted:
        if not any(_overlap(span, other) for span in gold):
            yield Pairing(None, other)


def _overlap(first: TokenSpan, second: TokenSpan) -> int:
    return max(0, min(first.end, second.end) - max(first.start, second.start))


def confusions(
    tokens: Sequence[Sequence[str]], pairs: Sequence[Sequence[Pairing]], most: int = 25
) -> dict[str, list[dict[str, object]]]:
    """The `most` frequent confusions of types and of mentions in words, by kind, with their counts.

    tokens, pairs: of each sentence.
    """
    wrong = [
        (words, pair) for words, listed in zip(tokens, pairs, strict=True) for pair in listed if pair.kind != "right"
    ]

    def most_frequent(name: Callable[[TokenSpan, Sequence[str]], str]) -> list[dict[str, object]]:
        counts = Counter(
            (pair.kind, *(span and name(span, words) for span in (pair.gold, pair.predicted))) for words, pair in wrong
        )
        return [
            {"kind": kind, "gold": gold, "predicted": predicted, "count": count}
            for (kind, gold, predicted), count in counts.most_common(most)
        ]

    return {
        "types": most_frequent(lambda span, _: span.type),
        "mentions": most_frequent(lambda span, words: " ".join(words[span.start : span.end])),
    }


def compared(gold: Document, predicted: Document) -> tuple[list[MarkedEntity], list[MarkedEntity]]:
    """Gold and predicted entities, each with the kind of its pair."""
    return _marked(gold, predicted, "missed"), _marked(predicted, gold, "spurious")


def _marked(document: Document, other: Document, unpaired: str) -> list[MarkedEntity]:
    spans, other_spans = (
        [TokenSpan(entity.start, entity.end, entity.type) for entity in annotated.entities]
        for annotated in (document, other)
    )
    pairs = zip(document.entities, pairings(spans, other_spans), strict=False)  # unpaired ones of `other` come last
    return [MarkedEntity(entity, unpaired if pair.predicted is None else pair.kind) for entity, pair in pairs]
