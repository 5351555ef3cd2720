"""A poly-encoder by hand, and its training."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save
from scipy.stats import spearmanr
from toy_language import ANIMALS, write_scored

from bertrelay.errors import RequestError
from bertrelay.model.pooling import Projection
from teachers.pairs.rerank import load_scorer
from teachers.sbert_paper.poly_encoder import POLY_ENCODER, PolyEncoder, run
from teachers.sbert_paper.settings import PolyEncoderSettings

SENTENCES = [f"the {animal} {verb} near the old station" for animal in ANIMALS for verb in ("runs", "sleeps")]
PAIRS = [(SENTENCES[n % 12], SENTENCES[(5 * n + 3) % 12][: 12 + n]) for n in range(17)]


@pytest.fixture
def sentence_encoder(tiny_encoder):
    return tiny_encoder("bert", SENTENCES)


def softmax(values):
    powers = np.exp(values - values.max())
    return powers / powers.sum()


def poly_by_hand(model, first, second):
    """The equations of the paper, code by code, for one pair without padding."""
    tokens = []
    for ids in model.encoder.tokenize([first, second]):
        with torch.inference_mode():
            hidden = model.encoder.backbone(input_ids=torch.tensor([ids])).last_hidden_state[0]
        tokens.append(hidden.numpy().astype(np.float64))  # (tokens, dim)
    contexts = []
    for code in model.codes.detach().numpy():
        weights = softmax(np.array([code @ token for token in tokens[0]]))
        contexts.append(sum(weight * token for weight, token in zip(weights, tokens[0], strict=True)))
    candidate = tokens[1].mean(axis=0)
    weights = softmax(np.array([candidate @ context for context in contexts]))
    mixed = sum(weight * context for weight, context in zip(weights, contexts, strict=True))
    return float(1 / (1 + np.exp(-(model.scale.item() * (mixed @ candidate) + model.shift.item()))))


def test_scores_are_those_by_hand_and_the_same_after_saving(sentence_encoder, tmp_path):
    model = PolyEncoder(sentence_encoder, codes=5, seed=3).eval()
    model.shift.data.fill_(-0.5)
    scores = model.predict(PAIRS, precision="fp32", batch_tokens=80)
    np.testing.assert_allclose(scores, [poly_by_hand(model, *pair) for pair in PAIRS], rtol=1e-4)
    model.save(tmp_path / "model")
    loaded = PolyEncoder.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.predict(PAIRS, precision="fp32", batch_tokens=80), scores, rtol=1e-6)


def test_weights_that_are_missing_or_of_another_shape_are_refused(sentence_encoder, tmp_path):
    PolyEncoder(sentence_encoder, codes=5).save(tmp_path)
    file, message = tmp_path / POLY_ENCODER, r"codes of a poly-encoder in .*poly\.safetensors, found none"
    whole, weights = file.read_bytes(), load_file(file)
    contents = [{**weights, "other": torch.zeros(1)}]
    for name in weights:
        contents += [
            {key: tensor for key, tensor in weights.items() if key != name},
            {**weights, name: torch.zeros(2, 3)},
        ]
    for content in [*map(save, contents), whole[:50]]:
        file.write_bytes(content)
        with pytest.raises(RequestError, match=message):
            PolyEncoder.load(tmp_path)
    file.unlink()
    with pytest.raises(RequestError, match=r"expected a poly-encoder with poly\.safetensors in"):
        PolyEncoder.load(tmp_path)


def test_a_base_with_a_projection_is_refused(sentence_encoder):
    sentence_encoder.projection = Projection(16, 8)
    with pytest.raises(RequestError, match="expected an encoder of one pooling and no projection"):
        PolyEncoder(sentence_encoder, codes=2)


def test_it_learns_and_its_metric_is_scipys_on_the_scores_of_the_loaded_folder(context, tmp_path, tiny_encoder):
    tiny_encoder("bert", SENTENCES, layers=1, seed=1).save(tmp_path / "base")
    rows = {
        part: write_scored(tmp_path / f"{part}.tsv", count, seed=count)
        for part, count in (("train", 240), ("test", 80))
    }
    tables = {part: {"path": str(tmp_path / f"{part}.tsv")} for part in rows}
    training = {"epochs": 20, "learning_rate": 3e-3, "batch_items": 16, "precision": "fp32", "codes": 4}
    settings = {"base": str(tmp_path / "base"), "train": [tables["train"]], "test": {"toy": tables["test"]}, **training}
    metric = run(PolyEncoderSettings.model_validate(settings), context)["sts/toy/spearman_score"]
    scores = load_scorer(context.output / "model").predict([row[:2] for row in rows["test"]], precision="fp32")
    assert metric > 0.6
    assert metric == pytest.approx(spearmanr(scores, [row[2] for row in rows["test"]]).statistic)
