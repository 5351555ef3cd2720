import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForPreTraining

from domain.pretraining.network import Pretraining, losses

KINDS = ["bert", "roberta", "xlm-roberta", "camembert", "mpnet", "distilbert"]
SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}


def network_of(kind):
    """Random and in float64, without dropout, and with biases that are not zero."""
    torch.manual_seed(0)
    network = AutoModelForPreTraining.from_config(AutoConfig.for_model(kind, **SIZES)).double().eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    return network


def batch_of(rows=3, tokens=9, seed=0):
    """Inputs with padding, masked places in all rows but the last, and what transformers calls the labels."""
    generator = np.random.default_rng(seed)
    lengths = np.array([tokens, tokens - 2, tokens - 4])[:rows]
    mask = np.arange(tokens) < lengths[:, None]
    ids = np.where(mask, generator.integers(5, 50, (rows, tokens)), 1)
    masked = np.flatnonzero((generator.random((rows, tokens)) < 0.4) & mask & (np.arange(rows)[:, None] < rows - 1))
    masked_ids = generator.integers(5, 50, len(masked))
    labels = np.full(rows * tokens, -100)
    labels[masked] = masked_ids
    inputs = {
        "input_ids": ids,
        "attention_mask": mask.astype(np.int64),
        "token_type_ids": ((np.arange(tokens) > 3) & mask).astype(np.int64),
        "masked": masked,
        "masked_ids": masked_ids,
        "is_random": np.array([0, 1, 1])[:rows],
    }
    tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
    return tensors, torch.from_numpy(labels.reshape(rows, tokens))


def gradients(network):
    return {name: each.grad.clone() for name, each in network.named_parameters() if each.grad is not None}


def assert_same_gradients(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_are_those_of_transformers(kind):
    """Against transformers' own loss, whose head is computed at every place, in float64."""
    network = network_of(kind)
    inputs, labels = batch_of()
    objectives = ["mlm", "nsp"] if kind == "bert" else ["mlm"]
    loss = sum(each.mean() for each in losses(Pretraining(network, objectives)(inputs), inputs).values())
    loss.backward()
    ours = gradients(network)
    network.zero_grad()
    given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    if kind == "bert":
        given |= {"token_type_ids": inputs["token_type_ids"], "next_sentence_label": inputs["is_random"]}
    theirs = network(**given, labels=labels).loss
    theirs.backward()
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert_same_gradients(ours, gradients(network))


def test_micro_batches_with_their_own_denominators_add_up_to_the_batch():
    """Two losses, two counts: the sums of single rows over the counts of all are the loss of all."""
    network = network_of("bert")
    model = Pretraining(network, ["mlm", "nsp"])
    inputs, _ = batch_of()
    counts = {"mlm": len(inputs["masked"]), "nsp": 3}
    sum(each.sum() / counts[name] for name, each in losses(model(inputs), inputs).items()).backward()
    whole = gradients(network)
    network.zero_grad()
    for row in range(3):
        piece = one_row(inputs, row)
        sum(each.sum() / counts[name] for name, each in losses(model(piece), piece).items()).backward()
    assert_same_gradients(gradients(network), whole)


def one_row(inputs, row):
    tokens = inputs["input_ids"].shape[1]
    here = inputs["masked"] // tokens == row
    whole = {
        name: inputs[name][row : row + 1] for name in ("input_ids", "attention_mask", "token_type_ids", "is_random")
    }
    return {**whole, "masked": inputs["masked"][here] - row * tokens, "masked_ids": inputs["masked_ids"][here]}


def test_a_batch_without_a_masked_word_has_a_loss_of_nought_and_gradients_of_nought():
    network = network_of("bert")
    inputs = one_row(batch_of()[0], 2)
    loss = losses(Pretraining(network, ["mlm"])(inputs), inputs)["mlm"].sum()
    loss.backward()
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in gradients(network).values())
    assert "cls.predictions.transform.dense.weight" in gradients(network)  # processes wait for one another's
