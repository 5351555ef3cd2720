import pytest
import torch
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    T5EncoderModel,
)

from bertrelay.inference import kernels
from bertrelay.inference.kernels import use_cpu_kernels
from bertrelay.model.dropout import set_dropout

SIZES = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 32, "num_hidden_layers": 2}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 4}
TOKENS = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IDS = torch.arange(3, 23).reshape(2, 10)
# Sizes, and by hand from the papers' layers how often a forward pass of two layers drops something out.
FAMILIES = {
    "bert": (SIZES, 1 + 2 * 3),  # embeddings; in a layer the attention, its output, and the feed-forward's
    "roberta": (SIZES, 1 + 2 * 3),
    "xlm-roberta": (SIZES, 1 + 2 * 3),
    "electra": (SIZES, 1 + 2 * 3),
    "mpnet": (SIZES, 1 + 2 * 3),
    "albert": ({**SIZES, "embedding_size": 8}, 1 + 2 * 2),  # in transformers none after the feed-forward layer
    "distilbert": ({"dim": 16, "n_heads": 4, "hidden_dim": 32, "n_layers": 2}, 1 + 2 * 2),  # no attention's output
    "deberta-v2": ({**SIZES, "relative_attention": True, "pos_att_type": ["p2c"]}, 1 + 2 * 4),  # relative positions too
    "modernbert": ({**SIZES, "cls_token_id": 1, "sep_token_id": 2}, 1 + 2 * 3),
    "nomic_bert": (SIZES, 1 + 2 * 3),
    "t5": ({"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4}, 2 + 2 * 4),  # inside feed-forwards
    "qwen3": (GROUPED, 2),  # the attention's only
    "gemma3_text": (GROUPED, 2),
    "gpt2": ({"n_embd": 16, "n_layer": 2, "n_head": 4}, 1 + 2 * 3),
}


def built(kind, **more):
    config = CONFIG_MAPPING[kind](**TOKENS, **FAMILIES[kind][0], **more)
    torch.manual_seed(0)
    network = T5EncoderModel(config) if kind == "t5" else AutoModel.from_config(config)
    return network.eval()


def vectors(network, **more):
    with torch.no_grad():
        return network(input_ids=IDS, attention_mask=torch.ones_like(IDS), **more).last_hidden_state


@pytest.fixture
def drops(monkeypatch):
    """The probabilities of all dropouts computed, wherever they are set."""
    seen, functional = [], torch.nn.functional
    plain, fused, ours = functional.dropout, functional.scaled_dot_product_attention, kernels.apply_dropout

    def dropout(values, p=0.5, training=True, inplace=False):
        seen.append(p if training else 0.0)
        return plain(values, p, training, inplace)

    def attention(*inputs, dropout_p=0.0, **options):
        seen.append(dropout_p)
        return fused(*inputs, dropout_p=dropout_p, **options)

    def on_cpu(values, p):
        if p not in (0, 1):  # else it calls torch's
            seen.append(p)
        return ours(values, p)

    monkeypatch.setattr(functional, "dropout", dropout)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)
    monkeypatch.setattr(kernels, "apply_dropout", on_cpu)
    return seen


@pytest.mark.parametrize("with_kernels", [False, True])
@pytest.mark.parametrize("kind", FAMILIES)
def test_every_dropout_of_a_forward_pass_is_the_one_set(kind, with_kernels, drops):
    network = built(kind)
    if with_kernels:
        use_cpu_kernels(network)
    set_dropout(network, 0.375)
    vectors(network.train())
    assert [p for p in drops if p] == [0.375] * FAMILIES[kind][1]


@pytest.mark.parametrize("kind", FAMILIES)
def test_only_dropout_in_training_mode_changes_vectors_and_none_is_left_at_zero(kind):
    network = built(kind)
    expected = vectors(network)
    set_dropout(network, 0.5)
    assert torch.equal(vectors(network), expected)
    network.train()
    assert not torch.allclose(vectors(network), vectors(network), atol=1e-3)
    set_dropout(network, 0.0)
    torch.testing.assert_close(vectors(network), expected)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_network_built_of_the_configuration_has_the_same_dropout(kind, drops, tmp_path):
    network = built(kind)
    set_dropout(network, 0.25)
    network.save_pretrained(tmp_path)
    load = T5EncoderModel if kind == "t5" else AutoModel
    vectors(load.from_pretrained(tmp_path).train())
    assert [p for p in drops if p] == [0.25] * FAMILIES[kind][1]


@pytest.mark.parametrize("kind", ["modernbert", "qwen3"])
def test_a_dropout_that_the_configuration_has_as_the_whole_number_0_is_set_too(kind, drops):
    network = built(kind, attention_dropout=0)
    set_dropout(network, 0.25)
    vectors(network.train())
    assert [p for p in drops if p] == [0.25] * FAMILIES[kind][1]


# Where an attention has the number that it passes to its kernel.
ATTENTION_DROPOUT = {
    "BertSelfAttention": lambda module: module.dropout.p,
    "ModernBertAttention": lambda module: module.attention_dropout,
}
# By hand, how many dropout modules a forward pass calls: embeddings, two in each of two layers, and before the head.
HEADS = [
    ("bert", AutoModelForTokenClassification, 1 + 2 * 2 + 1),
    ("bert", AutoModelForQuestionAnswering, 1 + 2 * 2),  # in transformers none before the head
    ("modernbert", AutoModelForTokenClassification, 1 + 2 * 2 + 1),
    ("modernbert", AutoModelForQuestionAnswering, 1 + 2 * 2 + 1),
]


@pytest.mark.parametrize(("kind", "auto_class", "dropouts"), HEADS)
def test_every_module_of_a_forward_pass_with_a_head_has_the_dropout_that_is_set(kind, auto_class, dropouts):
    torch.manual_seed(0)
    network = auto_class.from_config(CONFIG_MAPPING[kind](**TOKENS, **FAMILIES[kind][0])).train()
    set_dropout(network, 0.3)  # before the hooks, as it adds modules
    called = []
    for module in network.modules():
        module.register_forward_pre_hook(lambda module, _: called.append(module))

    def outputs():
        called.clear()
        with torch.no_grad():
            return torch.cat([values.flatten() for values in network(input_ids=IDS).to_tuple()])

    assert not torch.allclose(outputs(), outputs(), atol=1e-3)
    assert [module.p for module in called if isinstance(module, nn.Dropout)] == [0.3] * dropouts
    names = [(module, type(module).__name__) for module in called]
    attention = [ATTENTION_DROPOUT[name](module) for module, name in names if name in ATTENTION_DROPOUT]
    assert attention == [0.3] * 2
    set_dropout(network, 0.0)
    assert torch.equal(outputs(), outputs())
