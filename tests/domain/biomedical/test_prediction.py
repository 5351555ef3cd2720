"""Streams of sentences beside one sentence at a time, and long ones beside a walk over their windows."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asked_texts import start_tagger

from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.model import EntityModel, Words, WordSplitter
from domain.biomedical.ner.tagger import WordSpan, decoded_blocks

WORDS = ["the", "patient", "angina", "pectoris", "fluxyz", "gout", "of", "\x01"]


@pytest.fixture
def model(tiny_bert: Path) -> EntityModel:
    found = start_tagger(tiny_bert, LabelSet.of_types(["Disease"]), max_tokens=16, overlap=6)
    found.network.eval()
    return found


@pytest.fixture
def sentences() -> list[list[str]]:
    generator = np.random.default_rng(0)
    return [generator.choice(WORDS, length).tolist() for length in generator.integers(0, 50, 40)]


def predict(model: EntityModel, sentences: Iterable[Words]) -> list[np.ndarray]:
    """The emissions of each sentence, (words, tags)."""
    return [
        scores
        for block in decoded_blocks(model, sentences, precision="fp32")
        for scores in np.split(block.emissions, np.cumsum(block.lengths)[:-1])
    ]


def find_entities(model: EntityModel, sentences: Iterable[Words], **options: Any) -> Iterator[list[WordSpan]]:
    for block in decoded_blocks(model, sentences, precision="fp32", **options):
        yield from block.by_sentence()


def test_a_stream_gives_what_each_sentence_gives_alone(model: EntityModel, sentences: list[list[str]]) -> None:
    together = predict(model, iter(sentences))
    assert [len(each) for each in together] == [len(words) for words in sentences]
    for words, scores in zip(sentences, together, strict=True):
        (alone,) = predict(model, [words])
        np.testing.assert_allclose(scores, alone, rtol=1e-4, atol=1e-5)


def test_blocks_change_no_entity(model: EntityModel, sentences: list[list[str]]) -> None:
    at_once = list(find_entities(model, sentences))
    in_blocks = list(find_entities(model, sentences, block_words=20, batch_tokens=64))
    assert [[span[:3] for span in each] for each in at_once] == [[span[:3] for span in each] for each in in_blocks]
    assert any(at_once)
    for one, other in zip(sum(at_once, []), sum(in_blocks, []), strict=True):  # noqa: RUF017
        assert one.confidence == pytest.approx(other.confidence, abs=1e-4)
        assert 0 < one.confidence <= 1


def test_a_word_is_scored_in_the_window_in_which_it_is_most_central(model: EntityModel) -> None:
    words = ["patient", "of", "gout", "the"] * 12  # one subword each
    (scores,) = predict(model, [words])
    splitter = WordSplitter(model.tokenizer)
    ids = splitter([words]).ids
    starts = [*range(0, 48 - 14, 8), 48 - 14]
    for place in range(48):
        start = max(starts, key=lambda start: (min(place - start, start + 13 - place), -start))
        window = torch.from_numpy(np.concatenate([[2], ids[start : start + 14], [3]]))[None]
        assert window[0, 0] == model.tokenizer.cls_token_id
        with torch.inference_mode():
            logits = model.network.network(window).logits[0, 1 + place - start]
        np.testing.assert_allclose(scores[place], logits.numpy(), rtol=1e-4, atol=1e-5)


def test_only_a_block_ahead_is_read(model: EntityModel) -> None:
    read = 0

    def endless() -> Iterator[list[str]]:
        nonlocal read
        while True:
            read += 1
            yield ["the", "patient"] * 10

    found = find_entities(model, endless(), block_words=100)
    for _ in range(20):
        next(found)
    assert read <= 20 + 3 * 5


def test_a_network_in_training_is_in_training_afterwards(model: EntityModel) -> None:
    model.network.train()
    predict(model, [["gout"]])
    assert model.network.training
