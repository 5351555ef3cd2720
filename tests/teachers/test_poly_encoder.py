"""The poly-encoder's attention against NumPy by hand, and its training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr

from bertrelay.encoder import Projection, SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.stage import StageContext
from teachers.baselines.poly_encoder import WEIGHTS, PolyEncoder
from teachers.cross_encoder_train import run_poly
from teachers.settings import PolyEncoderSettings

ANIMALS = ["dog", "cat", "bird", "fish", "horse", "mouse"]
SENTENCES = [f"the {animal} runs near the old station" for animal in ANIMALS] + ["a bird"]
PAIRS = [(SENTENCES[n % 7], SENTENCES[(3 * n + 2) % 7]) for n in range(11)]

Floats = NDArray[np.float64]


@pytest.fixture
def encoder(tiny_encoder: Callable[..., SentenceEncoder]) -> SentenceEncoder:
    return tiny_encoder("bert", SENTENCES)


def softmax(values: Floats) -> Floats:
    powers = np.exp(values - values.max())
    found: Floats = powers / powers.sum()
    return found


def by_hand(model: PolyEncoder, first: str, second: str) -> float:
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


def test_scores_are_those_by_hand_and_the_same_after_saving(encoder: SentenceEncoder, tmp_path: Path) -> None:
    model = PolyEncoder(encoder, codes=5, seed=3).eval()
    model.shift.data.fill_(-0.5)
    scores = model.predict(PAIRS, precision="fp32", batch_tokens=80)
    np.testing.assert_allclose(scores, [by_hand(model, *pair) for pair in PAIRS], rtol=1e-4)
    model.save(tmp_path / "model")
    loaded = PolyEncoder.load(tmp_path / "model")
    np.testing.assert_allclose(loaded.predict(PAIRS, precision="fp32", batch_tokens=80), scores, rtol=1e-6)


def test_it_learns_and_its_figures_are_scipys_on_its_scores(
    context: StageContext, tmp_path: Path, encoder: SentenceEncoder
) -> None:
    encoder.save(tmp_path / "base")
    drawn = np.random.default_rng(1)
    tested = []
    for part, count in (("train", 300), ("test", 60)):
        rows: list[tuple[Any, ...]] = [("sentence1", "sentence2", "score")]
        for _ in range(count):
            a, b = drawn.integers(6, size=2)
            rows.append((f"the {ANIMALS[a]} runs", f"a {ANIMALS[b]}", int(2 * (a < 3) + 3 * (b < 3))))
        tested = rows[1:]
        (tmp_path / f"{part}.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    given = {"base": str(tmp_path / "base"), "train": [{"path": str(tmp_path / "train.tsv")}], "codes": 4}
    given |= {"test": {"toy": {"path": str(tmp_path / "test.tsv")}}, "batch_items": 16, "epochs": 5}
    settings = PolyEncoderSettings.model_validate({**given, "learning_rate": 3e-3, "precision": "fp32"})
    found = run_poly(settings, context)["sts/toy/spearman_score"]
    scores = PolyEncoder.load(context.output / "model").predict([row[:2] for row in tested], precision="fp32")
    assert found is not None and found > 0.6
    assert found == pytest.approx(spearmanr(scores, [row[2] for row in tested]).statistic)


@pytest.mark.parametrize("name", ["codes", "scale", "shift"])
def test_a_weight_that_is_missing_or_of_another_shape_is_told(
    encoder: SentenceEncoder, tmp_path: Path, name: str
) -> None:
    PolyEncoder(encoder, codes=5).save(tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    save_file({key: each for key, each in weights.items() if key != name}, tmp_path / WEIGHTS)
    with pytest.raises(RequestError, match=rf"poly\.safetensors, found {name} missing or of another shape"):
        PolyEncoder.load(tmp_path)
    save_file(weights | {name: torch.zeros(2, 3)}, tmp_path / WEIGHTS)
    with pytest.raises(RequestError, match=rf"poly\.safetensors, found {name} missing or of another shape"):
        PolyEncoder.load(tmp_path)
    (tmp_path / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes()[:50])
    with pytest.raises(RequestError, match=r"poly\.safetensors, found what cannot be read"):
        PolyEncoder.load(tmp_path)


def test_a_base_that_codes_cannot_look_at_is_told(encoder: SentenceEncoder, tmp_path: Path) -> None:
    encoder.save(tmp_path)
    with pytest.raises(RequestError, match=r"expected a poly-encoder with poly\.safetensors in"):
        PolyEncoder.load(tmp_path)
    encoder.projection = Projection(16, 8)
    with pytest.raises(RequestError, match="expected an encoder of one pooling and no projection"):
        PolyEncoder(encoder, codes=2)
