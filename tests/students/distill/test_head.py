"""The head with a hidden layer."""

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from bertrelay.device import ComputePrecision
from bertrelay.model.pooling import projections_of
from students.distill import head as module
from students.distill.head import HiddenHead, fit_hidden_head, fit_linear_head
from students.distill.targets import targets_of

rng = np.random.default_rng(0)


def test_two_projections_are_the_sum_of_a_linear_and_a_hidden_part():
    head = HiddenHead(rng.normal(size=(3, 2)), rng.normal(size=2), 5)
    nn.init.normal_(head.outer.weight)
    head.eval()
    mean, scale, x = rng.normal(size=3), np.array([0.5, 2.0, 4.0]), rng.normal(size=(4, 3))
    projections = head.as_projections(torch.from_numpy(mean), torch.from_numpy(scale))
    with torch.no_grad():
        expected = head(torch.from_numpy((x - mean) / scale).float())
        assert torch.allclose(projections(torch.from_numpy(x).float()), expected, atol=1e-5)
    assert [part.linear.out_features for part in projections_of(projections)] == [5 + 2 * 3, 2]


def test_a_hidden_layer_fits_what_no_linear_map_does_and_is_loaded_by_sentence_transformers(
    tiny_encoder, toy, tmp_path, monkeypatch
):
    """The teacher's dimensions are squares of the base's, which no linear map gives."""
    monkeypatch.setattr(module, "PASSES", 150)
    corpus = toy.corpus(tmp_path)
    student = tiny_encoder("xlm-roberta", corpus.texts(0, len(corpus)))
    english = student.encode(corpus.texts(0, len(corpus.english)), precision="fp32")
    squares = ((english - english.mean(axis=0)) / english.std(axis=0)) ** 2
    targets = targets_of(squares.astype(np.float32), corpus.weights_of(np.arange(len(english))), "teacher")

    def error(projection):
        vectors = student.with_parts(projection=projection).encode(corpus.texts(0, len(english)), precision="fp32")
        return ((vectors - squares) ** 2).sum(axis=1).mean() / targets.variance

    hidden = fit_hidden_head(student, corpus, targets, 64, ComputePrecision.FP32, seed=1)
    assert error(hidden) < 0.5 < 0.8 * error(fit_linear_head(student, corpus, targets, is_pretrained=False))
    again = fit_hidden_head(student, corpus, targets, 64, ComputePrecision.FP32, seed=1)
    assert all(map(torch.equal, hidden.state_dict().values(), again.state_dict().values()))
    whole = student.with_parts(projection=hidden, normalize=True)
    whole.save(tmp_path / "model")
    texts = corpus.texts(0, 8)
    peer = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(texts)
    np.testing.assert_allclose(peer, whole.encode(texts, precision="fp32"), atol=1e-6)
