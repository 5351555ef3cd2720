"""Tags, their schemes and spans."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2, IOBES, Entities

from domain.biomedical.documents.tags import (
    TokenSpan,
    illegal_positions,
    is_tag,
    labels,
    normalize_tags,
    scheme_of_tags,
    spans_of,
    tags_of,
    unopened_spans,
)

SCHEMES = {"IOB2": IOB2, "IOBES": IOBES}


def random_tags(draw, scheme):
    return [draw.choice(labels(["X", "Y-Z"], scheme)) for _ in range(draw.randint(1, 9))]


@pytest.mark.parametrize("scheme", ["IOB2", "IOBES"])
def test_spans_are_those_of_seqevals_strict_mode_on_any_tags(scheme):
    draw = random.Random(1)
    for _ in range(2000):
        tags = random_tags(draw, scheme)
        theirs = {(entity.start, entity.end, entity.tag) for entity in Entities([tags], SCHEMES[scheme]).entities[0]}
        assert set(spans_of(tags, scheme)) == theirs, tags


def test_opened_and_unopened_spans_are_those_of_seqevals_lenient_mode_and_give_the_tags_back():
    draw = random.Random(2)
    legal = 0
    for _ in range(2000):
        tags = random_tags(draw, "IOB2")
        opened, unopened = spans_of(tags), unopened_spans(tags)
        lenient = [(start, end + 1, name) for name, start, end in get_entities(tags)]
        assert sorted(opened + unopened) == lenient, tags
        assert tags_of(opened, len(tags), unopened=unopened) == tags
        assert bool(illegal_positions(tags)) == bool(unopened)
        legal += not unopened
    assert 100 < legal < 1900


def test_illegal_positions_are_those_found_by_hand():
    iob2 = {"O I-X": [1], "I-X B-X I-Y": [0, 2], "B-X I-X O B-X B-X": [], "": []}
    iobes = {"B-X O": [1], "B-X I-X": [1], "S-X E-X": [1], "B-X I-X E-X S-X O B-Y E-Y": [], "B-X E-Y": [1], "": []}
    for scheme, cases in (("IOB2", iob2), ("IOBES", iobes)):
        for tags, positions in cases.items():
            assert illegal_positions(tags.split(), scheme) == positions


@pytest.mark.parametrize("scheme", ["IOB2", "IOBES"])
def test_tags_give_their_spans_back(scheme):
    draw = random.Random(3)
    for _ in range(500):
        borders = sorted(draw.sample(range(20), 6))
        spans = [TokenSpan(*pair, draw.choice(["X", ""])) for pair in zip(borders[::2], borders[1::2], strict=True)]
        tags = tags_of(spans, 20, scheme)
        assert not illegal_positions(tags, scheme)
        assert spans_of(tags, scheme) == spans


def test_spans_have_the_same_tags_as_by_hand():
    spans = [TokenSpan(0, 3, "X"), TokenSpan(3, 4, "X"), TokenSpan(5, 7, "")]
    assert tags_of(spans, 7) == ["B-X", "I-X", "I-X", "B-X", "O", "B", "I"]
    assert tags_of(spans, 7, "IOBES") == ["B-X", "I-X", "E-X", "S-X", "O", "B", "E"]
    assert spans_of(["I-X", "S-X", "B-X"], "IOBES") == [TokenSpan(1, 2, "X")]  # only what is whole
    for span in [(0, 0), (1, 4), (0, 2)]:
        with pytest.raises(ValueError, match="no span of their own"):
            tags_of([TokenSpan(1, 2, "X"), TokenSpan(*span, "X")], 3)


def test_tags_of_a_scheme_are_known_and_no_others():
    assert all(is_tag(tag, "IOB2") for tag in ["B", "B-X", "I-a-b", "O"])
    assert not any(is_tag(tag, "IOB2") for tag in ["", "X", "B-", "O-X", "E-X", "Disease", "b-X", "BI-X", "-X"])


def in_iob1(tags):
    """IOB2 tags in IOB1: an entity begins with I, but for one that touches another of its type."""
    return [
        f"I{tag[1:]}" if tag[0] == "B" and not (before != "O" and before[1:] == tag[1:]) else tag
        for tag, before in zip(tags, ["O", *tags], strict=False)
    ]


def in_a_row(sentences):
    return [tag for tags in sentences for tag in [*tags, "O"]]


@pytest.mark.parametrize("types", [["X", "Y-Z"], [""]])
def test_iob1_and_bilou_are_recognised_and_have_the_same_spans(types):
    draw = random.Random(4)
    schemes = Counter()
    for _ in range(300):
        spans, sentences = [], []
        for _ in range(4):
            borders = sorted(draw.choices(range(12), k=6))
            spans.append([TokenSpan(*pair, draw.choice(types)) for pair in pairwise(borders) if pair[0] < pair[1]])
            spans[-1] = [span for span in spans[-1] if draw.random() < 0.6]
            sentences.append(tags_of(spans[-1], 12))
        assert scheme_of_tags(in_a_row(sentences)) == "IOB2" or not any(spans)
        iob1 = [in_iob1(tags) for tags in sentences]
        bilou = [[tag.replace("E", "L").replace("S", "U") for tag in tags_of(listed, 12, "IOBES")] for listed in spans]
        schemes[scheme_of_tags(in_a_row(iob1)), scheme_of_tags(in_a_row(bilou))] += any(spans)
        if any(spans):
            assert [spans_of(normalize_tags(tags, "IOB1")) for tags in iob1] == spans
            assert [spans_of(normalize_tags(tags, "BILOU"), "IOBES") for tags in bilou] == spans
    assert set(+schemes) == {("IOB1", "BILOU")}
    assert scheme_of_tags(["O", "I-X", "O", "B-X"]) == "IOB2"  # with a mistake, for B does not divide here
    for tags, scheme in {"O I-X B-X": "IOB1", "B-X I-X": "IOB2", "O O": "IOB2", "B-X E-X U-X": "IOBES"}.items():
        assert scheme_of_tags(tags.split()) == scheme
    iob2, iobes = ["B-X", "I-X", "O"] * 5, ["B-X", "E-X", "S-X"] * 5
    for mistyped in ("E-X", "L-X", "S-X", "U-X", "I-X", "Q"):
        assert scheme_of_tags([*iob2, mistyped]) == "IOB2"
        assert scheme_of_tags([*iobes, mistyped]) == "IOBES"
