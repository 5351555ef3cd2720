"""A cross-encoder against transformers and sentence-transformers, and its training."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sentence_transformers import CrossEncoder as PeerCrossEncoder
from toy_language import ANIMALS, write_scored
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from teachers.data import Examples
from teachers.pairs.model import CrossEncoder, start_cross_encoder
from teachers.pairs.rerank import load_scorer
from teachers.pairs.settings import CrossEncoderSettings
from teachers.pairs.train import PairTask, run

SENTENCES = [f"the {animal} {verb} near the old station" for animal in ANIMALS for verb in ("runs", "sleeps")]
PAIRS = [(SENTENCES[n % 12], SENTENCES[(5 * n + 3) % 12][: 12 + n]) for n in range(17)]


@pytest.fixture(scope="module", params=["bert", "roberta"])
def base(request, tiny_encoder, tmp_path_factory):
    folder = Path(tmp_path_factory.mktemp("base"))
    tiny_encoder(request.param, SENTENCES).save(folder)
    return folder


def started(base):
    """A cross-encoder with a larger head: a new one is so near to zero that all scores are ½."""
    model = start_cross_encoder(base, max_tokens=16, seed=4)
    last = [module for module in model.network.classifier.modules() if isinstance(module, torch.nn.Linear)][-1]
    last.weight.data *= 20
    return model


def by_transformers(folder, pairs, max_tokens):
    """One pair at a time, so that nothing is padded."""
    network = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenized = [tokenizer(*pair, return_tensors="pt", truncation=True, max_length=max_tokens) for pair in pairs]
    with torch.inference_mode():
        return [float(torch.sigmoid(network(**inputs).logits)) for inputs in tokenized]


@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_are_those_of_transformers_and_the_same_after_saving(base, tmp_path, side):
    """side: where the tokenizer cuts what is too long."""
    model = started(base)
    model.save(tmp_path / "model")
    described = tmp_path / "model/tokenizer_config.json"
    described.write_text(json.dumps({**json.loads(described.read_text()), "truncation_side": side}))
    loaded = CrossEncoder.load(tmp_path / "model")
    assert loaded.max_tokens == 16 < max(start_cross_encoder(base).tokenize(PAIRS).lengths), "some pairs are cut"
    scores = loaded.predict(PAIRS, precision="fp32", batch_tokens=100)
    np.testing.assert_allclose(scores, by_transformers(tmp_path / "model", PAIRS, 16), atol=1e-5)
    if side == "right":
        np.testing.assert_allclose(model.predict(PAIRS, precision="fp32", batch_tokens=100), scores, rtol=1e-6)
    assert np.ptp(scores) > 1e-3
    assert loaded.predict([]).shape == (0,)


def test_the_loss_is_the_cross_entropy_of_the_score_and_all_that_learns_has_a_gradient(base):
    model = start_cross_encoder(base).eval()
    sentences = [text for pair in PAIRS for text in pair]
    examples = Examples(sentences, np.arange(2 * len(PAIRS)).reshape(-1, 2), [n / 17 for n in range(17)])
    task = PairTask(model, examples, None, ComputePrecision.FP32)
    batch = task.collate(np.arange(17), 0)
    loss = task.loss(model, batch)["cross_entropy"]
    scores, gold = model.predict(PAIRS, precision="fp32").astype(float), np.arange(17) / 17
    by_hand = -(gold * np.log(scores) + (1 - gold) * np.log(1 - scores)).sum()
    assert float(loss.detach()) == pytest.approx(by_hand, rel=1e-5)
    loss.backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_an_evaluation_by_two_processes_equals_that_of_one(base, context, tmp_path, evaluated_twice):
    write_scored(tmp_path / "train.tsv", 60, 1)
    write_scored(tmp_path / "dev.tsv", 41, 2)
    tables = {part: [{"path": str(tmp_path / f"{part}.tsv")}] for part in ("train", "dev")}
    evaluations = evaluated_twice("teachers.pairs.train")
    run(CrossEncoderSettings.model_validate({**tables, "base": str(base), "epochs": 1, "precision": "fp32"}), context)
    [(by_one, by_two)] = evaluations
    assert by_two == pytest.approx(by_one, abs=1e-5)


def test_it_learns_and_its_metrics_are_scipys_on_its_scores(context, tmp_path, tiny_encoder):
    tiny_encoder("bert", SENTENCES, layers=1, seed=1).save(tmp_path / "base")
    trained = set(write_scored(tmp_path / "train.tsv", 240, 1))
    write_scored(tmp_path / "dev.tsv", 60, 2)
    tested = write_scored(tmp_path / "test.tsv", 80, 3)
    settings = {part: [{"path": str(tmp_path / f"{part}.tsv")}] for part in ("train", "dev")}
    settings |= {"test": {"toy": {"path": str(tmp_path / "test.tsv")}}, "base": str(tmp_path / "base")}
    settings |= {"epochs": 20, "learning_rate": 3e-3, "batch_items": 16, "precision": "fp32"}
    settings["max_tokens"] = 24
    metrics = run(CrossEncoderSettings.model_validate(settings), context)
    model = load_scorer(context.output / "model")
    scores = model.predict([row[:2] for row in tested], precision="fp32")
    correlation = metrics["sts/toy/spearman_score"]
    assert correlation > 0.6
    assert correlation == pytest.approx(spearmanr(scores, [row[2] for row in tested]).statistic)
    assert metrics["train_items"] == len(trained)
    assert {"dev/spearman_score", "sts/toy/spearman_score_low", "best_step", "train_items"} <= metrics.keys()


def test_predict_and_rank_are_those_of_sentence_transformers(base, tmp_path):
    model = started(base)
    model.save(tmp_path)
    ours, peer = CrossEncoder.load(tmp_path, device="cpu"), PeerCrossEncoder(str(tmp_path), device="cpu")
    options = {"batch_size": 3, "show_progress_bar": False}
    expected = peer.predict(PAIRS, **options)
    scores = ours.predict(iter(PAIRS), precision="fp32", **options)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    for array in (np.array(PAIRS), np.array(PAIRS, dtype=object)):  # as of data frames
        np.testing.assert_array_equal(ours.predict(array, precision="fp32", **options), scores)
    as_tensor = ours.predict(PAIRS, precision="fp32", convert_to_tensor=True, **options)
    assert isinstance(as_tensor, torch.Tensor) and as_tensor.tolist() == scores.tolist()
    assert float(ours.predict(PAIRS[0], precision="fp32")) == pytest.approx(float(peer.predict(PAIRS[0])), abs=1e-5)
    pair = np.array(PAIRS[0])
    assert float(ours.predict(pair, precision=None)) == pytest.approx(float(peer.predict(pair)), abs=1e-2)
    listed = ours.predict(PAIRS, precision="fp32", convert_to_numpy=False, **options)
    assert isinstance(listed, list) and [float(score) for score in listed] == scores.tolist()
    logits = {"activation_fn": torch.nn.Identity(), **options}
    np.testing.assert_allclose(
        ours.predict(PAIRS, precision="fp32", **logits), peer.predict(PAIRS, **logits), atol=1e-4
    )
    query, documents = PAIRS[0][0], [second for _, second in PAIRS]
    for top_k, return_documents in [(None, False), (4, True)]:
        expected_ranks = peer.rank(query, documents, top_k=top_k, return_documents=return_documents)
        ranked = ours.rank(query, documents, top_k=top_k, return_documents=return_documents, precision="fp32")
        assert [{**hit, "score": 0} for hit in ranked] == [{**hit, "score": 0} for hit in expected_ranks]
        assert [hit["score"] for hit in ranked] == pytest.approx([hit["score"] for hit in expected_ranks], abs=1e-5)


def test_what_is_no_list_of_pairs_is_refused(base):
    model = start_cross_encoder(base, max_tokens=16)
    for pairs in ("xy", ["ab"], [("a",)], [("a", "b", "c")], [("a", 3)], None, {"a": "b"}, [("a", "\ud800")]):
        with pytest.raises(RequestError, match="predict: expected"):
            model.predict(pairs)


def test_folders_without_a_cross_encoder_or_with_another_head_are_refused(tmp_path, tiny_encoder):
    tiny_encoder("bert", SENTENCES).save(tmp_path)
    with pytest.raises(RequestError, match="expected one that scores pairs of sentences, found none in"):
        CrossEncoder.load(tmp_path)
    start_cross_encoder(tmp_path).save(tmp_path / "prompted")
    prompted = {"prompts": {"query": "a dog "}, "default_prompt_name": "query"}
    (tmp_path / "prompted/config_sentence_transformers.json").write_text(json.dumps(prompted))
    with pytest.raises(RequestError, match="expected a cross-encoder without a prompt"):
        CrossEncoder.load(tmp_path / "prompted")
    tiny_encoder("distilbert", SENTENCES, sizes={"dim": 16, "n_heads": 2, "hidden_dim": 32}).save(tmp_path / "other")
    with pytest.raises(RequestError, match=r"expected a cross-encoder with .* on a BERT, found 'distilbert'"):
        start_cross_encoder(tmp_path / "other")
