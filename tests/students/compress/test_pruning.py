"""Networks without some of their layers, or of the neurons of their feed-forward layers."""

import numpy as np
import pytest
import torch

from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from students.compress.pruning import keep_layers, keep_neurons

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
                torch.nn.init.zeros_(weight)  # such a layer returns its input
    expected = vectors(encoder)
    keep_layers(encoder, 2, SENTENCES)
    assert [layers.index(layer) for layer in stack(encoder)] == [0, 2]
    np.testing.assert_allclose(vectors(encoder), expected, atol=1e-4)
    encoder.save(tmp_path / "model")
    loaded = SentenceEncoder.load(tmp_path / "model")
    assert loaded.backbone.config.num_hidden_layers == 2
    np.testing.assert_array_equal(vectors(loaded), vectors(encoder))


def test_shared_layers_and_more_layers_than_the_base_has_are_refused(tiny_encoder):
    with pytest.raises(RequestError, match="layers: a 'albert' network has no layers of their own"):
        keep_layers(tiny_encoder("albert", SENTENCES), 1, SENTENCES)
    with pytest.raises(RequestError, match="at most the 2 of the base, found 3"):
        keep_layers(tiny_encoder("bert", SENTENCES), 3, SENTENCES)


def feed_forward(layer):
    """The maps to the neurons and from them, by BERT's and DistilBERT's names."""
    return (layer.ffn.lin1, layer.ffn.lin2) if hasattr(layer, "ffn") else (layer.intermediate.dense, layer.output.dense)


@pytest.mark.parametrize("kind", STACKED)
def test_neurons_that_never_change_become_a_part_of_the_bias(tiny_encoder, tmp_path, kind):
    encoder = tiny_encoder(kind, SENTENCES)
    changing = [[0, 3, 4, 9], [1, 2, 11, 15]]
    weights = []
    for layer, neurons in zip(stack(encoder), changing, strict=True):
        up, down = feed_forward(layer)
        torch.nn.init.normal_(up.bias)  # constant activations are not zero
        with torch.no_grad():
            up.weight[[row for row in range(up.out_features) if row not in neurons]] = 0.0
        weights.append((up.weight[neurons].clone(), down.weight[:, neurons].clone()))
    expected = vectors(encoder)
    keep_neurons(encoder, 4, SENTENCES)
    for layer, (up, down) in zip(stack(encoder), weights, strict=True):
        assert torch.equal(feed_forward(layer)[0].weight, up)
        assert torch.equal(feed_forward(layer)[1].weight, down)
    np.testing.assert_allclose(vectors(encoder), expected, atol=1e-5)
    encoder.save(tmp_path / "model")
    np.testing.assert_array_equal(vectors(SentenceEncoder.load(tmp_path / "model")), vectors(encoder))


@pytest.mark.promise(
    "The neurons that stay are those without which a layer's output would change the most", about="exact"
)
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_neurons_that_stay_are_those_whose_loss_would_move_the_output_most(tiny_encoder, has_bias):
    """Computes by definition the mean square of the change with a neuron at its mean, or at 0."""
    encoder = tiny_encoder("bert", SENTENCES, layers=1)
    (layer,) = stack(encoder)
    up, down = feed_forward(layer)
    torch.nn.init.normal_(up.bias, std=3)  # so that some are large and nearly constant
    if not has_bias:
        down.bias = None
    activations = []
    with down.register_forward_pre_hook(lambda _, inputs: activations.append(inputs[0].detach()[0].clone())):
        encoder.encode(SENTENCES, precision="fp32", batch_size=1)
    values = torch.cat(activations)  # (tokens, neurons)
    lost = [
        ((values[:, [neuron]] - has_bias * values[:, neuron].mean()) @ down.weight[:, [neuron]].T).square().sum().item()
        for neuron in range(values.shape[1])
    ]
    most_needed = sorted(np.argsort(lost)[-5:].tolist())
    expected = up.weight[most_needed].clone()
    keep_neurons(encoder, 5, SENTENCES)
    assert torch.equal(feed_forward(layer)[0].weight, expected)


def test_more_neurons_than_there_are_and_shared_layers_are_refused(tiny_encoder):
    encoder = tiny_encoder("bert", SENTENCES)
    neurons = encoder.backbone.config.intermediate_size
    with pytest.raises(RequestError, match=f"at most the {neurons} of the base, found {neurons + 1}"):
        keep_neurons(encoder, neurons + 1, SENTENCES)
    with pytest.raises(RequestError, match="intermediate_size: a 'albert' network has no layers of their own"):
        keep_neurons(tiny_encoder("albert", SENTENCES), 1, SENTENCES)
    with pytest.raises(RequestError, match="intermediate_size: expected text"):
        keep_neurons(encoder, 1, [])
