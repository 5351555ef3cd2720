"""Networks of every family, in folders as they are published: the vectors that sentence-transformers gives."""

import json
import shutil

import numpy as np
import published_networks
import pytest
import torch
from published_networks import KINDS
from transformers import (
    Gemma3ForCausalLM,
    GPT2Config,
    Qwen3ForCausalLM,
    T5ForConditionalGeneration,
)

from bertrelay.errors import RequestError
from bertrelay.inference.kernels import attention
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.folder import ModelFolder
from bertrelay.model.network import load_backbone

peer = pytest.importorskip("sentence_transformers")

ABSOLUTE = ("mbert",)  # its positions count padding on the left


@pytest.fixture(scope="module")
def published(sentences, tmp_path_factory):
    """`published(kind)`: the folder of an encoder, made once."""
    folder = tmp_path_factory.mktemp("published")
    return lambda kind: published_networks.publish(kind, folder / kind, sentences)


@pytest.fixture(scope="module", params=KINDS)
def pair(request, published):
    """An encoder here, and in sentence-transformers."""
    folder = published(request.param)
    return request.param, SentenceEncoder.load(folder, "cpu"), peer.SentenceTransformer(str(folder), device="cpu")


def assert_near(computed, expected, tolerance=1e-5):
    assert np.asarray(expected).std() > 0.05  # the vectors differ from one another
    np.testing.assert_allclose(computed, expected, atol=tolerance)


@pytest.mark.promise(
    "BERT-like, causal and T5-encoder networks have the vectors of sentence-transformers, for one sentence and "
    "in any batch",
    about="elsewhere",
)
def test_vectors_are_those_of_sentence_transformers_alone_and_in_any_batch(pair, sentences):
    _, ours, theirs = pair
    expected = theirs.encode(sentences, batch_size=1)
    assert_near([ours.encode(sentence, precision="fp32") for sentence in sentences], expected)
    for options in ({}, {"batch_size": 3}, {"batch_tokens": 50}):
        assert_near(ours.encode(sentences, precision="fp32", **options), expected)
    for side in ("left", "right") if pair[0] not in ABSOLUTE else ("right",):
        theirs.tokenizer.padding_side = side
        assert_near(theirs.encode(sentences, batch_size=3), expected)


def test_padding_on_either_side_changes_no_vector(pair, sentences):
    kind, ours, _ = pair
    rows = ours.tokenize(sentences)
    expected = ours.encode(sentences, precision="fp32")
    for left in (False, True) if kind not in ABSOLUTE else (False,):
        ids = torch.full((len(rows), 40), ours.pad_id)
        mask = torch.zeros_like(ids)
        for row, row_ids in enumerate(rows):
            columns = slice(40 - len(row_ids), 40) if left else slice(0, len(row_ids))
            ids[row, columns], mask[row, columns] = torch.tensor(row_ids), 1
        with torch.inference_mode():
            assert_near(ours(ids, mask), expected)


def test_bf16_is_near(pair, sentences):
    _, ours, _ = pair
    computed = ours.encode(sentences, precision="bf16")
    cosines = torch.cosine_similarity(*map(torch.from_numpy, (computed, ours.encode(sentences, precision="fp32"))))
    assert cosines.min() > 0.99


def test_tokens_lengths_and_prompts_are_the_published_ones(pair, sentences):
    kind, ours, theirs = pair
    assert ours.max_seq_length == theirs.max_seq_length == 36
    for ids, text in zip(ours.tokenize(sentences), sentences, strict=True):
        assert ids == theirs.tokenizer(text, truncation=True, max_length=36).input_ids
    for name in KINDS[kind].prompts:
        expected = theirs.encode(sentences, prompt_name=name)
        assert_near(ours.encode(sentences, prompt_name=name, precision="fp32"), expected)


def test_saved_again_it_gives_the_same_in_both(pair, sentences, tmp_path):
    _, ours, theirs = pair
    expected = theirs.encode(sentences)
    ours.save(tmp_path)
    assert_near(SentenceEncoder.load(tmp_path).encode(sentences, precision="fp32"), expected)
    assert_near(peer.SentenceTransformer(str(tmp_path), device="cpu").encode(sentences), expected)


def test_gradients_reach_every_weight_that_a_vector_depends_on(pair, sentences):
    _, ours, _ = pair
    rows = ours.tokenize(sentences[:1])
    ours.zero_grad()
    ours(torch.tensor(rows), torch.ones(1, len(rows[0]), dtype=torch.long)).square().sum().backward()
    lacking = {name for name, weight in ours.named_parameters() if weight.requires_grad and weight.grad is None}
    assert not lacking
    ours.zero_grad()


def test_a_causal_network_sees_what_is_before_and_a_bidirectional_one_all(published, sentences):
    longer = [f"{sentences[1]} {sentences[0]}"]
    for kind, changes in (("qwen3-embedding", False), ("embeddinggemma", True)):
        encoder = SentenceEncoder.load(published(kind))
        short, long = (torch.tensor(encoder.tokenize([text])) for text in (sentences[1], longer[0]))
        shared = int((short[0] == long[0, : short.shape[1]]).int().cumprod(0).sum())
        states = [encoder.backbone(ids, torch.ones_like(ids)).last_hidden_state[0, :shared] for ids in (short, long)]
        assert shared > 5
        assert torch.allclose(*states, atol=1e-5) != changes


WHOLE = {
    "qwen3-embedding": (Qwen3ForCausalLM, "model"),
    "embeddinggemma": (Gemma3ForCausalLM, "model"),
    "sentence-t5": (T5ForConditionalGeneration, "encoder"),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_decoders_and_heads_of_the_whole_published_network_are_left_aside(kind, published, sentences, tmp_path, capsys):
    """A checkpoint that generates text, with the modules of an encoder beside it."""
    folder, (whole_class, name) = published(kind), WHOLE[kind]
    encoder = SentenceEncoder.load(folder)
    whole = whole_class(encoder.backbone.config)
    part = encoder.backbone.encoder if name == "encoder" else encoder.backbone
    whole.get_submodule(name).load_state_dict(part.state_dict())
    shutil.copytree(folder, tmp_path / "whole")
    (tmp_path / "whole/model.safetensors").unlink()
    whole.save_pretrained(tmp_path / "whole")
    capsys.readouterr()
    loaded = SentenceEncoder.load(tmp_path / "whole")
    assert capsys.readouterr().err == ""
    assert type(loaded.backbone) is type(encoder.backbone)
    computed, expected = (model.encode(sentences, precision="fp32") for model in (loaded, encoder))
    np.testing.assert_array_equal(computed, expected)


def with_changes(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_network_without_a_position_table_reads_as_far_as_its_config_says(sentences, tmp_path):
    folder = published_networks.publish("qwen3-embedding", tmp_path, sentences)
    (folder / "sentence_bert_config.json").unlink()
    with_changes(folder / "tokenizer_config.json", model_max_length=131_072)
    encoder = SentenceEncoder.load(folder)
    assert encoder.max_seq_length == peer.SentenceTransformer(str(folder), device="cpu").max_seq_length == 512
    encoder.max_seq_length = 1_000  # as with rotary positions it may
    assert encoder.max_seq_length == 1_000
    assert encoder.backbone.config.use_cache is False


def test_no_code_of_a_folder_runs(sentences, tmp_path):
    folder = published_networks.publish("qwen3-embedding", tmp_path / "model", sentences)
    (folder / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    classes = {"AutoModel": "modeling.Model", "AutoConfig": "modeling.Config", "AutoTokenizer": ["modeling.T", None]}
    for name in ("config.json", "tokenizer_config.json"):
        with_changes(folder / name, auto_map=classes)
    SentenceEncoder.load(folder)
    assert not (tmp_path / "ran").exists()
    with_changes(folder / "config.json", model_type="unheard-of")
    with pytest.raises(RequestError, match="unknown architecture 'unheard-of'"):
        SentenceEncoder.load(folder)
    assert not (tmp_path / "ran").exists()


def test_a_head_is_put_on_bert_like_networks_alone(published, tmp_path):
    with pytest.raises(RequestError, match=r"expected a BERT-like encoder .*found 'qwen3'"):
        load_backbone(ModelFolder(published("qwen3-embedding")))
    GPT2Config().save_pretrained(tmp_path)
    with pytest.raises(RequestError, match=r"expected a BERT-like encoder .*found 'gpt2'"):
        load_backbone(ModelFolder(tmp_path))


def test_heads_that_share_keys_and_relative_positions_are_computed_as_torch_does():
    torch.manual_seed(4)
    module = torch.nn.Module()
    module.num_key_value_groups = 2
    query, (key, value) = torch.randn(2, 4, 7, 8), torch.randn(2, 2, 2, 7, 8)
    computed, _ = attention(module, query, key, value, None, is_causal=False)
    repeated = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    expected = torch.nn.functional.scaled_dot_product_attention(query, *repeated)
    assert torch.allclose(computed, expected.transpose(1, 2), atol=1e-6)
    bias = torch.randn(1, 4, 7, 7)
    computed, _ = attention(torch.nn.Module(), query, *repeated, None, is_causal=False, position_bias=bias)
    expected = torch.nn.functional.scaled_dot_product_attention(query, *repeated, attn_mask=bias)
    assert torch.allclose(computed, expected.transpose(1, 2), atol=1e-6)


def test_a_token_that_sees_nothing_gives_numbers_all_the_same():
    states, visible = torch.randn(3, 1, 2, 20, 8), torch.ones(1, 1, 20, 20, dtype=torch.bool)
    visible[..., 18:, :] = False  # padding beyond a sliding window
    with torch.inference_mode():
        computed, _ = attention(torch.nn.Module(), *states, visible)
    assert computed.isfinite().all()
