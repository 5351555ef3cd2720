"""The gated cross-encoder against the bi-encoder that it begins as, and against transformers' layers one by one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import pairwise
from bertrelay.stage import StageContext
from teachers.baselines import load_scorer
from teachers.baselines.cross_encoder import CrossEncoder
from teachers.baselines.encoders import encoder_at
from teachers.baselines.gated_encoder import WEIGHTS, GatedCrossEncoder, start_gated
from teachers.baselines.pair_scores import near_cosine
from teachers.baselines.pair_train import PairTask, run
from teachers.baselines.settings import CrossEncoderSettings
from teachers.examples import Examples

ANIMALS = ["dog", "cat", "bird", "fish", "horse", "mouse"]
SENTENCES = [f"the {animal} runs near the old station" for animal in ANIMALS] + ["a bird", "fish", "the old mouse runs"]
PAIRS = [(SENTENCES[n % 9], SENTENCES[(4 * n + 3) % 9]) for n in range(13)]


@pytest.fixture(params=["bert", "roberta"])
def encoder(request: pytest.FixtureRequest, tiny_encoder: Callable[..., SentenceEncoder]) -> SentenceEncoder:
    return tiny_encoder(request.param, SENTENCES)


def drawn(encoder: SentenceEncoder, seed: int = 2) -> GatedCrossEncoder:
    """One whose gates are all different, from −4 to 1."""
    model = GatedCrossEncoder(encoder).eval()
    size = model.gates.shape
    model.gates.data = torch.rand(size, generator=torch.Generator().manual_seed(seed)) * 5 - 4
    return model


def told(cosines: Any) -> Any:
    return 1 / (1 + np.exp(3 - 6 * cosines))


def in_one_row(model: GatedCrossEncoder, first: str, second: str) -> Tensor:
    """Both sentences in one row, the second counting its positions anew, through transformers' own layers."""
    backbone: Any = model.backbone
    backbone.set_attn_implementation("eager")
    ids = model.encoder.tokenize([first, second])
    sizes = [len(each) for each in ids]
    begin = backbone.embeddings.position_embeddings.padding_idx
    places = [torch.arange(size) + (0 if begin is None else begin + 1) for size in sizes]
    sides = torch.tensor([0] * sizes[0] + [1] * sizes[1])
    gates = model.gates.view(model.shape)
    hidden = backbone.embeddings(input_ids=torch.tensor([ids[0] + ids[1]]), position_ids=torch.cat(places)[None])
    for layer, own in zip(backbone.encoder.layer, gates, strict=True):
        hidden = layer(hidden, (sides[:, None] != sides) * own[:, None, None])
    backbone.set_attn_implementation("bertrelay-gated")
    tokens: Tensor = hidden[0]  # (tokens, dim)
    vectors = [tokens[sides == side].mean(dim=0) for side in (0, 1)]
    return F.cosine_similarity(*vectors, dim=0)


def test_behind_closed_gates_a_score_is_told_of_the_bi_encoders_cosine(encoder: SentenceEncoder) -> None:
    cosines = pairwise(*(encoder.encode(list(side), precision="fp32") for side in zip(*PAIRS, strict=True)))
    model = GatedCrossEncoder(encoder)
    assert not np.allclose(model.score(PAIRS, precision="fp32"), told(cosines), atol=1e-4)
    model.gates.data.fill_(-1e4)
    np.testing.assert_allclose(model.score(PAIRS, precision="fp32"), told(cosines), atol=2e-6)


def test_scores_are_those_of_transformers_on_both_sentences_in_one_row(encoder: SentenceEncoder) -> None:
    model = drawn(encoder)
    by_hand = np.array([in_one_row(model, *pair).item() for pair in PAIRS])
    for batch_tokens in (40, 4_000):
        scores = model.score(PAIRS, precision="fp32", batch_tokens=batch_tokens)
        np.testing.assert_allclose(scores, told(by_hand), atol=2e-6)
    np.testing.assert_allclose(model.score(PAIRS, precision="bf16"), told(by_hand), atol=0.02)


def test_a_score_knows_no_order_and_is_the_same_after_saving(encoder: SentenceEncoder, tmp_path: Path) -> None:
    model = drawn(encoder)
    scores = model.score(PAIRS, precision="fp32")
    np.testing.assert_allclose(model.score([pair[::-1] for pair in PAIRS], precision="fp32"), scores, atol=1e-6)
    model.save(tmp_path)
    torch.testing.assert_close(start_gated(tmp_path).gates, model.gates, rtol=0, atol=0)
    loaded = load_scorer(tmp_path)
    assert isinstance(loaded, GatedCrossEncoder)
    np.testing.assert_allclose(loaded.score(PAIRS, precision="fp32"), scores, rtol=1e-6)


def test_a_score_is_near_the_cosine() -> None:
    cosines = torch.linspace(0, 1, 101)
    assert 0.06 < float((near_cosine(cosines) - cosines).abs().max()) < 0.07


def test_its_encoder_alone_still_gives_its_vectors(encoder: SentenceEncoder) -> None:
    before = encoder.encode(SENTENCES, precision="fp32")
    GatedCrossEncoder(encoder)
    GatedCrossEncoder(encoder)  # as often as one likes
    np.testing.assert_array_equal(encoder.encode(SENTENCES, precision="fp32"), before)


def test_the_loss_is_the_squared_error_of_the_cosine_and_all_that_learns_has_its_gradient(
    encoder: SentenceEncoder,
) -> None:
    model = drawn(encoder)
    sentences, gold = [text for pair in PAIRS for text in pair], [n / 13 for n in range(13)]
    examples = Examples(sentences, np.arange(2 * len(PAIRS)).reshape(-1, 2), gold)
    settings = CrossEncoderSettings.model_validate({"base": "none", "train": [{"path": "none.tsv"}], "gated": True})
    task = PairTask(model, settings, examples, None)
    loss = task.loss(model, task.collate(np.arange(13), 0))["squared_error"]
    by_hand = torch.stack([(in_one_row(model, *pair) - score) ** 2 for pair, score in zip(PAIRS, gold, strict=True)])
    assert float(loss.detach()) == pytest.approx(float(by_hand.sum().detach()), rel=1e-5)
    learning = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    found, expected = (torch.autograd.grad(each, list(learning.values())) for each in (loss, by_hand.sum()))
    assert "gates" in learning
    for name, ours, theirs in zip(learning, found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()) + 1e-6, msg=name)


def test_it_learns_and_its_figures_are_scipys_on_its_scores(
    context: StageContext, tmp_path: Path, tiny_encoder: Callable[..., SentenceEncoder]
) -> None:
    tiny_encoder("bert", SENTENCES, layers=1, seed=1).save(tmp_path / "base")
    random, tested = np.random.default_rng(1), []
    for part, count in (("train", 400), ("dev", 50), ("test", 60)):
        rows: list[tuple[Any, ...]] = [("sentence1", "sentence2", "score")]
        for _ in range(count):
            a, b = random.integers(6, size=2)
            rows.append((f"the {ANIMALS[a]} runs", f"a {ANIMALS[b]}", int(2 * (a < 3) + 3 * (b < 3))))
        tested = rows[1:]
        (tmp_path / f"{part}.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    given: dict[str, Any] = {part: [{"path": str(tmp_path / f"{part}.tsv")}] for part in ("train", "dev")}
    given |= {"base": str(tmp_path / "base"), "test": {"toy": {"path": str(tmp_path / "test.tsv")}}, "gated": True}
    given |= {"batch_items": 16, "epochs": 6, "learning_rate": 3e-3, "precision": "fp32"}
    found = run(CrossEncoderSettings.model_validate(given), context)["sts/toy/spearman_score"]
    model = GatedCrossEncoder.load(context.output / "model")
    scores = model.score([row[:2] for row in tested], precision="fp32")
    assert found is not None and found > 0.6
    assert found == pytest.approx(spearmanr(scores, [row[2] for row in tested]).statistic)
    assert float((model.gates.detach() + 2).abs().max()) > 0.5, "the gates were to move"


def test_other_folders_and_other_uses_are_told(
    tiny_encoder: Callable[..., SentenceEncoder], encoder: SentenceEncoder, tmp_path: Path
) -> None:
    encoder.save(tmp_path)
    with pytest.raises(
        RequestError, match=r"expected a gated cross-encoder with gates\.safetensors in .*; train it with"
    ):
        GatedCrossEncoder.load(tmp_path)
    GatedCrossEncoder(encoder).save(tmp_path)
    with pytest.raises(RequestError, match=r"is a gated one; GatedCrossEncoder\.load loads it"):
        CrossEncoder.load(tmp_path)
    with pytest.raises(RequestError, match="a network that scores pairs of sentences"):
        encoder_at(tmp_path, "fp32")
    weights = load_file(tmp_path / WEIGHTS)
    save_file(weights | {"gates": torch.zeros(3)}, tmp_path / WEIGHTS)
    with pytest.raises(RequestError, match=r"gates\.safetensors, found gates missing or of another shape"):
        GatedCrossEncoder.load(tmp_path)
    with pytest.raises(RequestError, match=r"whose attention can be replaced, .*, for gated; found 'mpnet'"):
        GatedCrossEncoder(tiny_encoder("mpnet", SENTENCES))
    encoder.backbone.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(RequestError, match="whose attention can be replaced"):
        GatedCrossEncoder(encoder)


@pytest.mark.parametrize("idle", [{"max_tokens": 20}, {"both_orders": True}])
def test_settings_without_effect_are_told(idle: dict[str, Any]) -> None:
    given = {"base": "none", "train": [{"path": "none.tsv"}], "gated": True}
    with pytest.raises(ValueError, match=rf"{next(iter(idle))}: without effect, because with gated = true"):
        CrossEncoderSettings.model_validate(given | idle)
