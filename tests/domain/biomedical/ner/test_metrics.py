"""Metrics of entities against seqeval, and pairs of entities against pairs by hand."""

import random
from collections import Counter
from itertools import accumulate, pairwise

import numpy as np
import pytest
from seqeval.metrics import classification_report
from seqeval.scheme import IOB2

from bertrelay.evaluation.statistics import with_interval
from domain.biomedical.documents.document import Document, Entity
from domain.biomedical.documents.tags import TokenSpan, spans_of, unopened_spans
from domain.biomedical.ner.metrics import (
    Pairing,
    compared,
    confusions,
    count_entities,
    entity_metrics,
    pairings,
    which_are_right,
)

TYPES = ["Chemical", "Disease"]
TAGS = ["O", *(f"{prefix}-{name}" for name in TYPES for prefix in "BI")]


def random_tags(seed, sentences=60):
    """Tags at random, so that most sequences are illegal somewhere."""
    generator = np.random.default_rng(seed)
    return [generator.choice(TAGS, generator.integers(1, 15)).tolist() for _ in range(sentences)]


def lenient_spans(tags):
    return sorted(spans_of(tags) + unopened_spans(tags))


def metrics(gold, predicted, find=spans_of, units=None, **more):
    spans = [[find(tags) for tags in sentences] for sentences in (gold, predicted)]
    units = np.arange(len(gold)) if units is None else units
    return entity_metrics(count_entities(spans[0], [()] * len(gold), spans[1], units, TYPES), TYPES, **more)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("find", "theirs"), [(spans_of, {"mode": "strict", "scheme": IOB2}), (lenient_spans, {})], ids=["strict", "lenient"]
)
def test_metrics_are_those_of_seqeval(seed, find, theirs):
    gold, predicted = random_tags(seed), random_tags(seed + 100)
    predicted = [(mine[:5] + ours[5:] + ["O"] * 5)[: len(ours)] for ours, mine in zip(gold, predicted, strict=True)]
    ours = metrics(gold, predicted, find)
    report = classification_report(gold, predicted, output_dict=True, zero_division=0, **theirs)
    for name, row in (("", "micro avg"), *((f"/{kind}", kind) for kind in TYPES)):
        for measure, key in (("precision", "precision"), ("recall", "recall"), ("f1", "f1-score")):
            assert ours[f"{measure}{name}"] == pytest.approx(report[row][key])


def test_intervals_contain_the_metric_and_come_from_units():
    gold = random_tags(1)
    predicted = [tags if n % 3 else ["O"] * len(tags) for n, tags in enumerate(gold)]
    by_sentence = metrics(gold, predicted, measured=with_interval)
    in_one = metrics(gold, predicted, units=np.zeros(60, int), measured=with_interval)
    assert by_sentence["recall_low"] < by_sentence["recall"] < by_sentence["recall_high"]
    assert by_sentence["f1"] == in_one["f1"]
    assert "f1_low" not in in_one  # one document has no spread


def test_gold_entities_beyond_tags_count_as_missed_and_what_was_not_measured_is_null():
    span = TokenSpan(0, 1, "Disease")
    counts = count_entities([[span]], [("Disease", "Disease")], [[span]], np.array([0]), ["Disease"])
    assert entity_metrics(counts, ["Disease"])["recall"] == pytest.approx(1 / 3)
    nothing = entity_metrics(count_entities([[]], [()], [[]], np.array([0]), ["Disease"]), ["Disease"])
    assert [nothing[name] for name in ("precision", "recall", "f1")] == [None] * 3


def test_every_gold_entity_is_paired_once_and_by_kind():
    gold = [TokenSpan(*values) for values in ((0, 2, "A"), (3, 5, "A"), (6, 7, "B"), (8, 9, "A"), (10, 12, "A"))]
    predicted = [TokenSpan(*values) for values in ((0, 2, "A"), (4, 5, "A"), (6, 7, "A"), (11, 12, "B"), (13, 14, "B"))]
    pairs = list(pairings(gold, predicted))
    assert [pair.kind for pair in pairs] == ["right", "wrong_span", "wrong_type", "missed", "wrong_both", "spurious"]
    assert [pair.gold for pair in pairs if pair.gold] == gold
    pairs = list(pairings([TokenSpan(0, 4, "A")], [TokenSpan(0, 3, "B"), TokenSpan(3, 4, "A")]))  # of the right type
    assert [(pair.kind, pair.predicted) for pair in pairs] == [("wrong_span", TokenSpan(3, 4, "A"))]


def test_confusions_are_counted_by_type_and_by_mention():
    tokens = [("no", "acute", "flu"), ("acute", "flu", "seen")]
    pairs = [
        [Pairing(TokenSpan(1, 3, "D"), TokenSpan(2, 3, "D"))],
        [Pairing(TokenSpan(0, 2, "D"), TokenSpan(1, 2, "D")), Pairing(None, TokenSpan(2, 3, "C"))],
    ]
    confused = confusions(tokens, pairs)
    assert confused["types"][0] == {"kind": "wrong_span", "gold": "D", "predicted": "D", "count": 2}
    assert confused["mentions"] == [
        {"kind": "wrong_span", "gold": "acute flu", "predicted": "flu", "count": 2},
        {"kind": "spurious", "gold": None, "predicted": "seen", "count": 1},
    ]


def test_right_ones_are_reported_in_the_order_of_the_predictions():
    first, second = TokenSpan(0, 1, "A"), TokenSpan(2, 3, "A")
    np.testing.assert_array_equal(which_are_right([[second], [first]], [[first, second], [first]]), [False, True, True])


def test_marked_verdicts_are_the_counted_kinds_of_pairs():
    """Random entities: in characters as pages have them, in words as metrics count them."""
    draw = random.Random(3)
    seen = Counter()
    for _ in range(300):
        words = ["x" * draw.randint(1, 12) for _ in range(12)]
        starts = list(accumulate((len(word) + 1 for word in words), initial=0))
        both = [random_spans(draw, len(words)) for _ in range(2)]
        left, right = compared(
            *(
                Document("1", " ".join(words), tuple(Entity(starts[s], starts[e] - 1, t) for s, e, t in spans))
                for spans in both
            )
        )
        counted = Counter(pair.kind for pair in pairings(*both))
        assert [entity.verdict for entity in left] == [pair.kind for pair in pairings(*both) if pair.gold]
        assert Counter(entity.verdict for entity in right)["spurious"] == counted["spurious"]
        seen.update(counted)
    assert len(seen) == 6 and min(seen.values()) > 20


def random_spans(draw, words):
    borders = sorted({draw.randint(0, words) for _ in range(7)})
    return [TokenSpan(*span, draw.choice("XY")) for span in pairwise(borders) if draw.random() < 0.7]
