"""Cleaning by margin, against margins of all pairs in float64."""

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bertrelay.cache import Cache
from bertrelay.data.shards import ShardFiles
from bertrelay.device import ComputePrecision
from bertrelay.model.encoder import SentenceEncoder
from students.distill.settings import DistillSettings
from students.parallel import cleaning
from students.parallel.cleaning import block_margins, neighbourhoods
from students.parallel.corpus import build_corpus

TRUE, WRONG = 80, 15
WORDS = [f"word{number}" for number in range(60)]


@pytest.fixture(scope="module")
def model(tiny_encoder, tmp_path_factory):
    """Folder of a BERT in which a word has the vector of its translations, `x` and `y` before it."""
    vocabulary = ["[PAD]", "[UNK]", *(f"{prefix}{word}" for prefix in ("", "x", "y") for word in WORDS)]
    rules = Tokenizer(models.WordLevel({word: row for row, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, pad_token="[PAD]", unk_token="[UNK]")
    encoder = tiny_encoder("bert", tokenizer, layers=1, sizes={"hidden_size": 32})
    rows = encoder.backbone.get_input_embeddings().weight.data
    rows[2:] = rows[2 : 2 + len(WORDS)].repeat(3, 1)
    folder = tmp_path_factory.mktemp("model")
    encoder.save(folder)
    return folder


@pytest.fixture(scope="module")
def pairs():
    """English sentences and translations by language, the last fifteen of them another sentence's; one pair twice."""
    generator = np.random.default_rng(0)
    english = [" ".join(row) for row in generator.choice(WORDS, (TRUE + WRONG, 6))]
    by_language = {}
    for language in "xy":
        whole = [" ".join(f"{language}{word}" for word in sentence.split()) for sentence in english]
        translations = [*whole[:TRUE], *whole[TRUE + 1 :], whole[TRUE]]
        rows = list(zip(english, translations, strict=True))
        by_language[f"qa{language}"] = [*rows, rows[0]]
    return by_language


@pytest.fixture
def settings(pairs, model, tmp_path):
    """`settings(threshold=1.1)`: settings of a student of these pairs."""
    sources = []
    for language, rows in pairs.items():
        path = tmp_path / f"{language}.tsv"
        path.write_text("".join(f"{en}\t{other}\n" for en, other in [("en", "other"), *rows]), encoding="utf-8")
        sources.append({"path": str(path), "others": {language: "other"}})

    def make(**margin):
        filters = {"margin": {"model": str(model), **margin}} if margin else {}
        values = {"teacher": "./t", "base": "./b", "parallel": sources, "dev_sentences": 0, "filters": filters}
        return DistillSettings.model_validate({**values, "precision": "fp32"})

    return make


def test_pairs_below_the_threshold_are_dropped_and_counted_and_the_scores_reported(
    settings, pairs, model, margins, tmp_path
):
    def margins_of(rows):
        columns = [list(dict.fromkeys(column)) for column in zip(*rows, strict=True)]
        encoder = SentenceEncoder.load(model)
        scores = margins(*(encoder.encode(column, precision="fp32") for column in columns), 4)
        return {(english, other): scores[columns[0].index(english), columns[1].index(other)] for english, other in rows}

    expected = {language: margins_of(rows) for language, rows in pairs.items()}
    scores = [score for by_pair in expected.values() for score in by_pair.values()]
    threshold = float(np.mean(np.sort(scores)[[28, 29]]))  # between two
    corpus = build_corpus(tmp_path / "corpora/a", settings(threshold=threshold), ComputePrecision.FP32)
    margin = corpus.facts["margin"]
    assert (margin["threshold"], margin["k"], margin["model"]) == (threshold, 4, str(model))
    left = set(corpus.translations.read(0, len(corpus.translations)))
    for language, source in zip(pairs, corpus.facts["sources"], strict=True):
        rows, by_pair = dict.fromkeys(pairs[language]), expected[language]  # a repeated pair is a duplicate before
        below = sum(by_pair[row] < threshold for row in rows)
        facts = margin["languages"][language]
        assert (facts["pairs"], facts["below"], source["low margin"]) == (len(rows), below, below)
        deciles = np.quantile([by_pair[row] for row in rows], np.arange(11) / 10)
        np.testing.assert_allclose(facts["deciles"], deciles, atol=2e-4)
        assert {other for (_, other), score in by_pair.items() if score >= threshold} == {
            text for text in left if text.startswith(language[-1])
        }
    assert "margin" not in build_corpus(tmp_path / "corpora/b", settings(), ComputePrecision.FP32).facts


@pytest.mark.promise("Cleaning of parallel text resumes", about="resume")
def test_a_killed_cleaning_resumes_and_another_threshold_encodes_nothing(settings, tmp_path, monkeypatch, kill_at):
    monkeypatch.setattr(cleaning, "NEIGHBOURHOOD", 30)
    whole = build_corpus(
        tmp_path / "whole/corpora/a", settings(threshold=1.1), ComputePrecision.FP32, Cache(tmp_path / "whole")
    ).facts
    folder = tmp_path / "corpora/a"
    kill_at(
        ShardFiles,
        "write",
        5,
        lambda: build_corpus(folder, settings(threshold=1.1), ComputePrecision.FP32, Cache(tmp_path)),
    )
    assert not folder.exists()
    assert build_corpus(folder, settings(threshold=1.1), ComputePrecision.FP32, Cache(tmp_path)).facts == whole
    monkeypatch.setattr(SentenceEncoder, "tokenize", None)
    other = build_corpus(tmp_path / "corpora/b", settings(threshold=0.9), ComputePrecision.FP32, Cache(tmp_path)).facts[
        "margin"
    ]
    for language, facts in other["languages"].items():
        assert facts["deciles"] == whole["margin"]["languages"][language]["deciles"]
        assert facts["below"] < whole["margin"]["languages"][language]["below"]
    [scores] = (tmp_path / "margins").glob("*/margins.npy")
    assert [path.name for path in scores.parent.iterdir()] == ["margins.npy"]


def test_a_neighbourhood_is_of_one_language_and_does_not_depend_on_the_order(monkeypatch):
    monkeypatch.setattr(cleaning, "NEIGHBOURHOOD", 10)
    digests = [bytes([number * 37 % 256] * 16) for number in range(60)]
    languages = np.array(["de"] * 35 + ["fr"] * 25)

    def blocks(order):
        column = pa.chunked_array([pa.array([digests[row] for row in order], pa.binary(16))])
        return [[int(order[row]) for row in block] for block in neighbourhoods(column, languages[order])]

    groups = blocks(np.arange(60))
    assert groups == blocks(np.random.default_rng(0).permutation(60))
    assert [len(group) for group in groups] == [9, 9, 9, 8, 9, 8, 8]
    assert sorted(row for group in groups for row in group) == list(range(60))
    assert all(len({languages[row] for row in group}) == 1 for group in groups)


def test_margins_are_those_of_all_with_all_and_repeated_sentences_count_once(margins):
    generator = np.random.default_rng(0)
    english, other = (generator.normal(size=(count, 8)).astype(np.float32) for count in (20, 25))
    vectors = [column / np.linalg.norm(column, axis=1, keepdims=True) for column in (english, other)]
    rows = [generator.integers(0, 20, 40), generator.integers(0, 25, 40)]
    used = [np.unique(column) for column in rows]
    of_used = margins(*(column[distinct] for column, distinct in zip(vectors, used, strict=True)), 3)
    expected = of_used[tuple(np.searchsorted(distinct, column) for distinct, column in zip(used, rows, strict=True))]
    np.testing.assert_allclose(block_margins(rows, vectors, 3), expected, rtol=1e-5, atol=1e-6)
