"""Tiny encoders of random weights, in folders as the published ones are: files, tokenizers, modules, prompts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, T5EncoderModel

from bertrelay.model.new import train_unigram, train_wordpiece

SIZES = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 32, "num_hidden_layers": 5}
POSITIONS = {"max_position_embeddings": 40}
GROUPED = {"num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 512}
PIECES = 500
ROLES = ("pad", "cls", "sep", "bos", "eos")

Special = dict[str, str]


def byte_level(texts: Sequence[str], special: Special, template: str) -> Tokenizer:
    """The BPE of GPT-2, Qwen and ModernBERT."""
    rules = Tokenizer(models.BPE())
    rules.normalizer = normalizers.NFC()
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _train(rules, texts, special, initial_alphabet=alphabet)
    return _with_template(rules, template, special)


def byte_fallback(texts: Sequence[str], special: Special, template: str) -> Tokenizer:
    """The BPE of Gemma and mmBERT: spaces are pieces, unknown characters are bytes."""
    fallback = [f"<0x{number:02X}>" for number in range(256)]
    rules = Tokenizer(models.BPE())
    rules.normalizer = normalizers.Replace(" ", "▁")
    rules.pre_tokenizer = pre_tokenizers.Split(Regex("▁"), "merged_with_next")  # of a word's own pieces
    _train(rules, texts, special, vocab_size=PIECES)
    trained = json.loads(rules.to_str())["model"]
    vocabulary = dict(trained["vocab"])
    vocabulary |= {piece: place for place, piece in enumerate(fallback, len(vocabulary))}
    merges = [tuple(pair) for pair in trained["merges"]]
    rules.model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    rules.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return _with_template(rules, template, special)


def _train(rules: Tokenizer, texts: Sequence[str], special: Special, **options: Any) -> None:
    names = list(dict.fromkeys(special.values()))
    trainer = trainers.BpeTrainer(special_tokens=names, **{"vocab_size": PIECES, **options})
    rules.train_from_iterator(texts, trainer)


def _with_template(rules: Tokenizer, template: str, special: Special) -> Tokenizer:
    numbers = [(token, rules.token_to_id(token)) for token in special.values() if token in template]
    rules.post_processor = processors.TemplateProcessing(single=template, special_tokens=numbers)
    return rules


QWEN = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
MODERN = {
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}
GEMMA = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>", "mask_token": "<mask>"}
MPNET = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "[UNK]", "mask_token": "<mask>"}
T5 = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def like_mpnet(texts: Sequence[str]) -> Tokenizer:
    """BERT's pieces between `<s>` and `</s>`, and padding of the number that MPNet counts positions from."""
    rules = train_wordpiece(texts, PIECES, 128).backend_tokenizer
    pieces = sorted(rules.get_vocab(), key=rules.get_vocab().__getitem__)
    named = [*MPNET.values(), *pieces[5:]]
    trained = models.WordPiece({piece: place for place, piece in enumerate(named)}, unk_token="[UNK]")
    rules = Tokenizer(trained)
    rules.normalizer, rules.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    rules.add_special_tokens([*MPNET.values()])
    return _with_template(rules, "<s> $A </s>", MPNET)


def like_t5(texts: Sequence[str]) -> Tokenizer:
    """Unigram pieces and `</s>` behind them."""
    rules = train_unigram(texts, PIECES, 128).backend_tokenizer
    return _with_template(rules, "$A </s>", T5)


@dataclass(frozen=True)
class Published:
    """A kind of published encoder.

    network: of its configuration; tokenizer: its rules, learnt from texts. special: what tokenizer_config.json says.
    dense: sizes of the projections.
    """

    model_type: str
    network: dict[str, Any]
    tokenizer: Callable[[Sequence[str]], Tokenizer]
    special: dict[str, Any]
    pooling: str = "mean_tokens"
    dense: tuple[tuple[int, int], ...] = ()
    normalize: bool = True
    prompts: dict[str, str] = field(default_factory=dict)


def _wordpiece(texts: Sequence[str]) -> Tokenizer:
    return train_wordpiece(texts, PIECES, 128, lowercase=False).backend_tokenizer


def _unigram(texts: Sequence[str]) -> Tokenizer:
    return train_unigram(texts, PIECES, 128).backend_tokenizer


def _ids(pad: int, cls: int, sep: int) -> dict[str, int]:
    return {f"{role}_token_id": number for role, number in zip(ROLES, (pad, cls, sep, cls, sep), strict=True)}


XLM_R = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
XLM_R |= {"bos_token": "<s>", "eos_token": "</s>"}
ROTARY = {"hidden_activation": "gelu", "local_attention": 8, "global_attn_every_n_layers": 3}
SLIDING = {
    "sliding_window": 6,
    "layer_types": [*["sliding_attention"] * 2, "full_attention", *["sliding_attention"] * 2],
}
INSTRUCTION = {"query": "Instruct: Find a translation\nQuery:", "document": ""}

KINDS: dict[str, Published] = {
    "qwen3-embedding": Published(
        "qwen3",
        SIZES | GROUPED,
        lambda texts: byte_level(texts, QWEN, "$A <|endoftext|>"),
        {**QWEN, "padding_side": "left"},
        "lasttoken",
        prompts=INSTRUCTION,
    ),
    "embeddinggemma": Published(
        "gemma3_text",
        SIZES | GROUPED | SLIDING | {"use_bidirectional_attention": True, "query_pre_attn_scalar": 4},
        lambda texts: byte_fallback(texts, GEMMA, "<bos> $A <eos>"),
        GEMMA,
        dense=((16, 48), (48, 16)),
        prompts={"query": "task: search result | query: ", "document": "title: none | text: "},
    ),
    "sentence-t5": Published(
        "t5",
        {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 3, "num_heads": 4, "relative_attention_max_distance": 12}
        | {"feed_forward_proj": "gated-gelu"},
        like_t5,
        T5,
        dense=((16, 12),),
    ),
    "modernbert": Published(
        "modernbert",
        SIZES | POSITIONS | ROTARY | _ids(pad=3, cls=1, sep=2),
        lambda texts: byte_level(texts, MODERN, "[CLS] $A [SEP]"),
        {**MODERN, "model_input_names": ["input_ids", "attention_mask"]},
        "cls_token",
    ),
    "mmbert": Published(
        "modernbert",
        SIZES | POSITIONS | ROTARY | _ids(pad=0, cls=2, sep=1),
        lambda texts: byte_fallback(texts, GEMMA, "<bos> $A <eos>"),
        {**GEMMA, "model_input_names": ["input_ids", "attention_mask"]},
    ),
    "mpnet": Published(
        "mpnet",
        SIZES | POSITIONS | {"pad_token_id": 1},
        like_mpnet,
        MPNET,
    ),
    "multilingual-e5": Published(
        "xlm-roberta",
        SIZES | POSITIONS | {"type_vocab_size": 1, "pad_token_id": 1},
        _unigram,
        XLM_R,
        prompts={"query": "query: ", "passage": "passage: "},
    ),
    "mbert": Published(
        "bert",
        SIZES | POSITIONS,
        _wordpiece,
        MODERN,
        "cls_token",
        normalize=False,
    ),
}


def publish(kind: str, folder: Path, texts: Sequence[str], seed: int = 0) -> Path:
    """Writes an encoder of `kind`, of random weights, whose vocabulary is learnt from `texts`; returns `folder`."""
    published = KINDS[kind]
    rules = published.tokenizer(texts)
    folder.mkdir(parents=True, exist_ok=True)
    rules.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {"model_max_length": 64, "tokenizer_class": "PreTrainedTokenizerFast", **published.special},
    )
    sizes = {"vocab_size": rules.get_vocab_size() + 3, **published.network}
    sizes.setdefault("pad_token_id", rules.token_to_id(published.special["pad_token"]))
    config = AutoConfig.for_model(published.model_type, **sizes)
    torch.manual_seed(seed)
    network = T5EncoderModel(config) if published.model_type == "t5" else AutoModel.from_config(config)
    for weight in network.parameters():
        if weight.dim() > 1:  # so small a network would say the same of all sentences
            torch.nn.init.normal_(weight, std=0.3)
    network.save_pretrained(folder)
    _write_modules(folder, published)
    return folder


def _write_modules(folder: Path, published: Published) -> None:
    kinds = ["Transformer", "Pooling", *("Dense" for _ in published.dense), *["Normalize"] * published.normalize]
    modules = [
        {
            "idx": place,
            "name": str(place),
            "path": f"{place}_{kind}" if place else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for place, kind in enumerate(kinds)
    ]
    _write(folder / "modules.json", modules)
    _write(
        folder / "1_Pooling/config.json", {"word_embedding_dimension": 16, f"pooling_mode_{published.pooling}": True}
    )
    _write(folder / "sentence_bert_config.json", {"max_seq_length": 36, "do_lower_case": False})
    for place, (given, to) in enumerate(published.dense, 2):
        sizes = {"in_features": given, "out_features": to, "bias": False}
        activation = {"activation_function": "torch.nn.modules.linear.Identity"}
        _write(folder / f"{place}_Dense/config.json", sizes | activation)
        save_file({"linear.weight": torch.randn(to, given)}, folder / f"{place}_Dense/model.safetensors")
    model = {"prompts": published.prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    _write(folder / "config_sentence_transformers.json", model)


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
