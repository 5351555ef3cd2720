"""Tagging of texts and documents as streams and in blocks; long sentences against a loop over their windows."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from synthetic_questions import start_tagger

from bertrelay.errors import RequestError
from domain.biomedical import EntityTagger
from domain.biomedical.documents.document import Document
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.predict import decoded_blocks
from domain.biomedical.ner.subwords import WordSplitter
from domain.text.sentences import sentence_spans
from domain.text.words import word_spans

TYPES = ["Disease", "Gene"]
CORNERS = ["", " \n\t ", "gout", "gout.", "The 𝒢out of 𝓫rca 🧬 and p53.\r\nfever\r\n\r\nin mice.", "𝒢"]
CORNERS += ["cafe\u0301 had gou\u0308t\u200b and\u00a0fever\u2028in rats.", "\x07 gout \x00 \x1b fever."]
CORNERS += ["p53\tfever\x0bmice\x0crats", "  gout of the BRCA1 ( p53 ) - 1 .  "]
LONG = " ".join(f"The rats {number} had fever of BRCA1 and gout." for number in range(30))
NEVER_ENDING = " ".join(["the rats had fever of BRCA1 and gout"] * 30)


@pytest.fixture(scope="module")
def model(tiny_bert):
    """A random tagger; windows of 32 subwords, so that long sentences need several."""
    random_model = start_tagger(tiny_bert, LabelSet.of_types(TYPES), max_tokens=32, overlap=8)
    torch.nn.init.normal_(random_model.network.network.classifier.weight, generator=torch.Generator().manual_seed(1))
    random_model.network.eval()
    return replace(random_model, temperature=2.0)


@pytest.fixture(scope="module")
def tag(model):
    return lambda texts, **options: list(EntityTagger(model).pipe(texts, precision="fp32", **options))


def spans_of(document):
    return [(entity.start, entity.end, entity.type) for entity in document.entities]


def test_a_text_a_list_and_an_iterator_have_the_same_entities(model):
    tagger, texts = EntityTagger(model), [LONG, "", "gout of BRCA1", NEVER_ENDING]
    documents = tagger(texts, precision="fp32")
    expected = [spans_of(document) for document in documents]
    for document in documents:
        assert [entity.text for entity in document.entities] == [document.text[s:e] for s, e, _ in spans_of(document)]
    assert spans_of(tagger(LONG, precision="fp32")) == expected[0]
    stream, read = tagger(iter(texts), precision="fp32"), []
    assert spans_of(next(stream)) == expected[0] and [spans_of(document) for document in stream] == expected[1:]
    pairs = tagger.pipe((read.append(text) or text for text in texts), batch_size=2, precision="fp32")
    assert spans_of(next(pairs)) == expected[0] and len(read) == 2
    assert [spans_of(document) for document in pairs] == expected[1:]
    with pytest.raises(RequestError, match="batch_size"):
        next(tagger.pipe(texts, batch_size=0))
    with pytest.raises(RequestError, match="expected a list of texts, found one string"):
        next(tagger.pipe("gout"))


def test_every_entity_is_whole_words_of_the_text(tag):
    documents = tag([*CORNERS, LONG])
    assert [document.text for document in documents] == [*CORNERS, LONG]
    assert [document.id for document in documents] == [str(number) for number in range(len(CORNERS) + 1)]
    assert sum(len(document.entities) for document in documents[:-1]) >= 10
    for document in documents:
        words = [
            (start + first, start + end)
            for start, stop in sentence_spans(document.text)
            for first, end in word_spans(document.text[start:stop])
        ]
        starts, ends = map(set, zip(*words, strict=True)) if words else (set(), set())
        for entity in document.entities:
            assert entity.start in starts and entity.end in ends
            assert document.text[entity.start : entity.end].strip() == document.text[entity.start : entity.end]
            assert entity.type in TYPES
            assert 0 < entity.confidence <= 1
        assert all(first.end <= second.start for first, second in pairwise(document.entities))


def test_a_document_has_the_entities_of_its_sentences_tagged_one_by_one(tag):
    (whole,) = tag([LONG])
    spans = sentence_spans(LONG)
    assert len(spans) > 10
    alone = tag([LONG[start:end] for start, end in spans])
    expected = [
        (start + entity.start, start + entity.end, entity.type, pytest.approx(entity.confidence, abs=1e-5))
        for (start, _), document in zip(spans, alone, strict=True)
        for entity in document.entities
    ]
    assert [(e.start, e.end, e.type, e.confidence) for e in whole.entities] == expected
    assert len(expected) > 20


def test_neither_batches_nor_blocks_nor_neighbours_change_entities(tag, model):
    texts = [*CORNERS, LONG, NEVER_ENDING]
    expected = tag(texts)
    for others in (tag(texts, batch_tokens=40), tag(texts[::-1])[::-1]):
        assert list(map(spans_of, others)) == list(map(spans_of, expected))
    documents = [Document("x", text) for text in texts]
    for words in (1, 50):
        tagged = EntityTagger(model).tag_documents(documents, precision="fp32", block_words=words)
        assert list(map(spans_of, tagged)) == list(map(spans_of, expected))


def test_documents_that_come_as_tokens_keep_them(model):
    text = "p53-fever of BRCA1"
    tokens = (((0, 9), (10, 12)), ((13, 18),))
    (document,) = EntityTagger(model).tag_documents([Document("x", text, sentences=tokens)], precision="fp32")
    assert document.sentences == tokens
    assert {entity.start for entity in document.entities} <= {0, 10, 13}


def test_a_word_is_scored_in_the_window_in_which_it_is_most_central(tiny_bert):
    model = start_tagger(tiny_bert, LabelSet.of_types(["Disease"]), max_tokens=16, overlap=6)
    model.network.train()
    words = ["patient", "of", "gout", "the"] * 12  # one subword each
    (block,) = decoded_blocks(model, [words], precision="fp32")
    assert model.network.training  # as before
    model.network.eval()
    splitter = WordSplitter(model.tokenizer)
    ids = splitter([words]).ids
    starts = [*range(0, 48 - 14, 8), 48 - 14]
    for word in range(48):
        start = max(starts, key=lambda start: (min(word - start, start + 13 - word), -start))
        window = torch.from_numpy(np.concatenate([[2], ids[start : start + 14], [3]]))[None]
        assert window[0, 0] == model.tokenizer.cls_token_id
        with torch.inference_mode():
            logits = model.network.network(window).logits[0, 1 + word - start]
        np.testing.assert_allclose(block.emissions[word], logits.numpy(), rtol=1e-4, atol=1e-5)
