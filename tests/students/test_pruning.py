"""Networks that lose layers, or neurons of their feed-forward layers."""

from functools import partial

import numpy as np
import pytest
import torch

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import pairwise
from students.pruning import RIDGE, _Stack, _Sums, prune

SENTENCES = ["a dog runs", "cats run", "the dogs and a cat sleep near the old station", "sleep"]
STACKED = ["bert", "roberta", "xlm-roberta", "distilbert", "mpnet"]


def vectors(encoder, sentences=SENTENCES):
    return encoder.eval().encode(sentences, precision="fp32")


def stack(encoder):
    return next(list(part) for part in encoder.backbone.modules() if isinstance(part, torch.nn.ModuleList))


@pytest.mark.parametrize("kind", STACKED)
def test_layers_that_move_the_vectors_least_are_left_out(tiny_encoder, tmp_path, kind):
    encoder = tiny_encoder(kind, SENTENCES, layers=5)
    layers = stack(encoder)
    for index in (1, 3, 4):
        for name, weight in layers[index].named_parameters():
            if "norm" not in name.lower() and "relative" not in name:
                torch.nn.init.zeros_(weight)  # such a layer gives what it gets
    expected = vectors(encoder)
    prune(encoder, SENTENCES, layers=2)
    assert [layers.index(layer) for layer in stack(encoder)] == [0, 2]
    np.testing.assert_allclose(vectors(encoder), expected, atol=1e-4)
    encoder.save(tmp_path / "model")
    again = SentenceEncoder.load(tmp_path / "model")
    assert again.backbone.config.num_hidden_layers == 2
    np.testing.assert_array_equal(vectors(again), vectors(encoder))


def test_layers_that_are_shared_or_not_there_are_not_dropped(tiny_encoder):
    with pytest.raises(RequestError, match="layers: a 'albert' network has no layers of their own"):
        prune(tiny_encoder("albert", SENTENCES), SENTENCES, layers=1)
    with pytest.raises(RequestError, match="at most the 2 of the base, found 3"):
        prune(tiny_encoder("bert", SENTENCES), SENTENCES, layers=3)


def test_a_shortened_network_computes_what_its_layers_do_in_a_row(tiny_encoder):
    encoder = tiny_encoder("bert", SENTENCES, layers=4)
    ids = torch.tensor(encoder.tokenize(SENTENCES[:1]))
    layers = stack(encoder)
    prune(encoder, SENTENCES, layers=2)
    kept = [layer for layer in layers if layer in stack(encoder)]
    assert len(kept) == 2
    hidden = encoder.backbone.embeddings(ids)
    for layer in kept:
        output = layer(hidden)
        hidden = output[0] if isinstance(output, tuple) else output
    torch.testing.assert_close(encoder.backbone(ids).last_hidden_state, hidden)


@pytest.mark.parametrize("kind", STACKED)
def test_what_is_kept_comes_nearer_to_the_whole_network_by_the_fit(tiny_encoder, kind):
    sizes = {"hidden_dim": 32} if kind == "distilbert" else None
    words = [word for sentence in SENTENCES for word in sentence.split()]
    texts = [f"{first} {second}" for first in words for second in words]
    encoder, plain = (tiny_encoder(kind, SENTENCES, layers=4, sizes=sizes) for _ in range(2))
    whole, layers = vectors(encoder, texts), stack(encoder)
    prune(encoder, texts, layers=2)
    kept = [layers.index(layer) for layer in stack(encoder)]
    _Stack.of(plain, "layers").keep(kept)
    fitted, unfitted = (1 - pairwise(whole, vectors(each, texts)).mean() for each in (encoder, plain))
    assert fitted < 0.7 * unfitted


# Neurons


def feed_forward(layer):
    """The maps to the neurons and from them, by BERT's and DistilBERT's names."""
    return (layer.ffn.lin1, layer.ffn.lin2) if hasattr(layer, "ffn") else (layer.intermediate.dense, layer.output.dense)


@pytest.mark.parametrize("kind", STACKED)
def test_neurons_that_never_change_become_a_part_of_the_bias(tiny_encoder, tmp_path, kind):
    encoder = tiny_encoder(kind, SENTENCES, sizes={"hidden_dim": 32} if kind == "distilbert" else None)
    changing = [[0, 3, 4, 9], [1, 2, 11, 15]]
    weights = []
    for layer, kept in zip(stack(encoder), changing, strict=True):
        up, down = feed_forward(layer)
        torch.nn.init.normal_(up.bias)  # what is constant is not zero
        with torch.no_grad():
            up.weight[[row for row in range(up.out_features) if row not in kept]] = 0.0
        weights.append((up.weight[kept].clone(), down.weight[:, kept].clone()))
    expected = vectors(encoder)
    prune(encoder, SENTENCES, neurons=4)
    for layer, (up, down) in zip(stack(encoder), weights, strict=True):
        assert torch.equal(feed_forward(layer)[0].weight, up)
        torch.testing.assert_close(feed_forward(layer)[1].weight, down, atol=1e-4, rtol=0)
    np.testing.assert_allclose(vectors(encoder), expected, atol=1e-5)
    encoder.save(tmp_path / "model")
    np.testing.assert_array_equal(vectors(SentenceEncoder.load(tmp_path / "model")), vectors(encoder))


def least_squares(values, targets, start, has_bias, kept):
    """Weights (dim, columns), the bias last, and the sum that they make least: numpy's, with the ridge as more rows."""
    ridge = np.sqrt(RIDGE * np.square(values).sum(axis=0).mean())
    tokens = np.concatenate([values[:, kept], np.ones((len(values), has_bias))], axis=1)
    held = np.concatenate([ridge * np.eye(len(kept)), np.zeros((len(kept), has_bias))], axis=1)
    design, goals = np.concatenate([tokens, held]), np.concatenate([targets, ridge * start.T[kept]])
    weights = np.linalg.lstsq(design, goals, rcond=None)[0]
    return weights.T, np.square(design @ weights - goals).sum()


@pytest.mark.parametrize("has_bias", [True, False])
def test_neurons_are_left_out_whose_loss_the_others_make_up_best(has_bias):
    torch.manual_seed(0)
    values, targets = torch.randn(60, 6) @ torch.randn(6, 6) + 1, torch.randn(60, 3)
    down = torch.nn.Linear(6, 3, bias=has_bias)
    sums = _Sums(down)
    for half in (slice(0, 25), slice(25, 60)):
        sums.add(values[half], targets[half])
    fit = partial(least_squares, values.numpy(), targets.numpy(), down.weight.detach().numpy(), int(has_bias))
    kept = list(range(6))
    for count in (5, 4, 3, 2):
        losses = {neuron: fit([other for other in kept if other != neuron])[1] for neuron in kept}
        kept.remove(min(losses, key=losses.get))
        columns, weights = sums.fitted(down, count)
        assert columns.tolist() == kept + [6] * has_bias
        np.testing.assert_allclose(weights, fit(kept)[0], atol=1e-4)
    columns, weights = sums.fitted(down, None)
    np.testing.assert_allclose(weights, fit(list(range(6)))[0], atol=1e-4)


def test_neurons_that_are_not_there_or_not_known_are_not_left_out(tiny_encoder):
    encoder = tiny_encoder("bert", SENTENCES)
    neurons = encoder.backbone.config.intermediate_size
    with pytest.raises(RequestError, match=f"at most the {neurons} of the base, found {neurons + 1}"):
        prune(encoder, SENTENCES, neurons=neurons + 1)
    with pytest.raises(RequestError, match="intermediate_size: a 'albert' network has no layers of their own"):
        prune(tiny_encoder("albert", SENTENCES), SENTENCES, neurons=1)
    with pytest.raises(RequestError, match="intermediate_size: expected text"):
        prune(encoder, [], neurons=1)
