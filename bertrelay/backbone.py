"""The pretrained network under an encoder, and its tokenizer: loaded in float32, checked, and running no code.

What is loaded is whole or refused: a weight that the files do not hold is never filled with random numbers.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
import transformers
from huggingface_hub import snapshot_download
from pydantic import Field
from safetensors.torch import load_file
from tokenizers import Tokenizer, normalizers
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoTokenizer,
    BertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from bertrelay.encoder_settings import NewEncoder
from bertrelay.errors import RequestError, Stopped, shown
from bertrelay.files import make_readable, write_json
from bertrelay.model_files import Count, Description, Size, checked, read_model_file
from bertrelay.progress import log
from bertrelay.settings import ModelSource, no_model_folder

OTHER_FRAMEWORKS = ["onnx/*", "openvino/*", "coreml/*", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.gguf"]
NORMALIZER_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
NOT_OF_THE_MODEL = (
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_internal",
    "experts_implementation",
    "_experts_implementation",
    "auto_map",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "torchscript",
    "chunk_size_feed_forward",
)
"""Keys of a config.json that say how to compute and not what: a kernel of a hub among them. They are left out."""
HEADS = (
    "cls",
    "lm_head",
    "predictions",
    "sop_classifier",
    "vocab_transform",
    "vocab_layer_norm",
    "vocab_projector",
    "generator_predictions",
    "generator_lm_head",
    "discriminator_predictions",
    "lm_predictions",
    "mask_predictions",
    "head",
    "decoder",
    "classifier",
    "pre_classifier",
    "qa_outputs",
    "pooler",
)
"""How the names of weights begin that stand on a network for a task of its own, and are left aside for another."""
SOME_TEXT = "a 1 . 的 가"  # of which any vocabulary knows something
RULES = ("normalizer", "pre_tokenizer", "post_processor", "model")
SPARE_WEIGHTS = 100_000_000
"""So many more than its files have bytes a network may have: heads and poolers that begin anew."""
SHOWN = 3

Share = Annotated[float, Field(ge=0, le=1)]
Epsilon = Annotated[float, Field(gt=0, lt=1)]


class NetworkConfig(Description):
    """What is checked of a `config.json` before a network is built of it; transformers checks the rest."""

    model_type: str
    architectures: list[str] | None = None
    vocab_size: Size | None = None
    type_vocab_size: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    pad_token_id: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    max_position_embeddings: Size | None = None
    hidden_size: Size | None = None
    embedding_size: Size | None = None
    intermediate_size: Size | None = None
    dim: Size | None = None
    hidden_dim: Size | None = None
    num_hidden_layers: Count | None = None
    num_attention_heads: Count | None = None
    num_hidden_groups: Count | None = None
    inner_group_num: Count | None = None
    n_layers: Count | None = None
    n_heads: Count | None = None
    num_labels: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    id2label: dict[str, str | int] | None = None
    layer_norm_eps: Epsilon | None = None
    norm_eps: Epsilon | None = None
    hidden_dropout_prob: Share | None = None
    attention_probs_dropout_prob: Share | None = None
    dropout: Share | None = None
    attention_dropout: Share | None = None


TokenText = Annotated[str, Field(min_length=1)]


class _AddedToken(Description):
    content: TokenText


class _SpecialTokens(Description):
    unk_token: TokenText | _AddedToken | None = None
    sep_token: TokenText | _AddedToken | None = None
    pad_token: TokenText | _AddedToken | None = None
    cls_token: TokenText | _AddedToken | None = None
    mask_token: TokenText | _AddedToken | None = None
    bos_token: TokenText | _AddedToken | None = None
    eos_token: TokenText | _AddedToken | None = None
    additional_special_tokens: list[TokenText | _AddedToken] | None = None


class _TokenizerConfig(_SpecialTokens):
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    model_max_length: Annotated[int | float, Field(ge=1)] | None = None
    padding_side: Literal["left", "right"] | None = None
    truncation_side: Literal["left", "right"] | None = None


class _ShardIndex(Description):
    weight_map: dict[str, Annotated[str, Field(pattern=r"^[^/\\]+$")]]


def model_folder(source: str | Path, revision: str | None = None, cache_dir: str | Path | None = None) -> Path:
    """The folder of `source`: a folder, `package:name/path`, or a hub id (`@revision` or not), which is downloaded."""
    if not isinstance(source, str | os.PathLike):
        raise RequestError(f"model: expected a folder or the name of a model, found {shown(source)}")
    try:
        located = ModelSource.parse(str(source))
    except ValueError as error:
        raise RequestError(f"model: {error}") from error
    if located.folder is None:
        return _download(located, revision, cache_dir)
    if not located.folder.is_dir():
        raise RequestError(f"model: {no_model_folder(located.folder)}")
    return located.folder


def _download(source: ModelSource, revision: str | None, cache_dir: str | Path | None) -> Path:
    def fetch(ignored: list[str]) -> Path:
        return Path(
            snapshot_download(
                str(source.hub_id),
                revision=revision or source.revision,
                cache_dir=cache_dir,
                ignore_patterns=[*OTHER_FRAMEWORKS, *ignored],
            )
        )

    try:
        folder = fetch(["pytorch_model*.bin"])
        return folder if any(folder.rglob("*.safetensors")) else fetch([])
    except (OSError, ValueError) as error:
        raise RequestError(
            f"model: {str(source)!r} is no folder here, and the hub did not give it ({type(error).__name__}); "
            "check the name and the network, or give a folder"
        ) from error


# oneDNN compiles a kernel for every new shape of a batch and keeps 1,024 of them, 200 MB after a million sentences.
# A few serve a batch, and a new one costs too little to be measured. It reads this once, at its first kernel.
KERNELS_KEPT = "16"


def load_backbone(folder: Path) -> PreTrainedModel:
    """The network of `folder`, in float32; its pooler, which no sentence vector uses, is kept and frozen.

    Raises RequestError for an architecture that is not BERT-like, and for absent, damaged or unfitting weights.
    """
    backbone, missing = load_network(folder)
    refuse_missing(folder, missing)
    freeze_pooler(backbone, blank=any("pooler" in key for key in missing))
    return backbone


def load_network(folder: Path, kind: Any = AutoModel) -> tuple[PreTrainedModel, set[str]]:
    """The network of `folder` in float32, as the auto class `kind` builds it, and which weights the files lack.

    Those stand there at random; `refuse_missing` is for those that may not. Weights of the files that the network has
    no place for are refused, but for heads of other tasks. Nothing but the folder is read, whatever its files name.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS_KEPT)
    config = _load_config(folder)
    _check_weights_suffice(folder, kind, config)
    try:
        with _quiet():
            network, report = kind.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except Stopped:
        raise
    except Exception as error:  # each format of weights fails in its own way; all of them mean this folder
        raise RequestError(f"model: {_why_unreadable(folder, error)}") from error
    _check_left_over(folder, network, report["unexpected_keys"])
    return cast(PreTrainedModel, network), set(report["missing_keys"])


def read_network_config(folder: Path) -> NetworkConfig | None:
    """What `config.json` says, or None where there is none. Raises RequestError where it is not as expected."""
    return read_model_file(folder / "config.json", NetworkConfig)


def _load_config(folder: Path) -> PreTrainedConfig:
    path = folder / "config.json"
    written = read_model_file(path, dict[str, Any])
    if written is None:
        raise RequestError(f"model: expected a model folder with a config.json, found none in {folder}")
    kind = checked(NetworkConfig, written, path).model_type
    if kind not in CONFIG_MAPPING:
        raise RequestError(f"model: {path} names no architecture that is known here, but {kind!r}")
    if written.get("quantization_config"):
        raise RequestError(f"model: expected weights that are not quantized, found quantization_config in {path}")
    if (folder / "adapter_config.json").exists():
        raise RequestError(f"model: expected a whole network, found an adapter in {folder}; merge it into its network")
    kept = {key: value for key, value in written.items() if key not in NOT_OF_THE_MODEL}
    with _refusing_config(path):
        config: PreTrainedConfig = CONFIG_MAPPING[kind].from_dict(kept)
    is_bert_like = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and hasattr(config, "vocab_size")
    if not is_bert_like or config.is_encoder_decoder or getattr(config, "is_decoder", False):
        raise RequestError(
            f"model: expected a BERT-like encoder (BERT, RoBERTa, ALBERT, XLM-R, DistilBERT, MPNet, …), "
            f"found {config.model_type!r} in {path}"
        )
    return config


@contextmanager
def _refusing_config(path: Path) -> Iterator[None]:
    """Turns what transformers raises of a wrong config.json into an error that names the file."""
    try:
        with _quiet():
            yield
    except Stopped:
        raise
    except Exception as error:  # each key fails in its own way
        why = "".join(each for each in " ".join(str(error).split()) if each.isprintable())[:200]
        raise RequestError(f"model: no network can be built as {path} says ({type(error).__name__}: {why})") from error


def _check_weights_suffice(folder: Path, kind: Any, config: PreTrainedConfig) -> None:
    """Raises RequestError for sizes that no weights here can have, before there is memory for them."""
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        read_model_file(folder / name, _ShardIndex)
    with _refusing_config(folder / "config.json"), torch.device("meta"):
        asked = sum(weight.numel() for weight in kind.from_config(deepcopy(config)).parameters())
    there = sum(path.stat().st_size for pattern in ("*.safetensors", "*.bin") for path in folder.glob(pattern))
    if there and asked > there + SPARE_WEIGHTS:
        raise RequestError(
            f"model: {folder / 'config.json'} asks for {asked:,} weights, and the files have {there:,} bytes; one of "
            "its sizes is wrong"
        )


def _check_left_over(folder: Path, network: PreTrainedModel, left_over: set[str]) -> None:
    """Raises RequestError for weights of the network's own modules that it has no place for; reports unknown ones.

    Heads of other tasks are left aside, and positions that are counted and not learnt.
    """
    prefix = f"{network.base_model_prefix}."
    modules = {name for name, _ in (*network.named_children(), *network.base_model.named_children())}
    own, unknown = [], []
    for name in sorted(left_over):
        inner = name.removeprefix(prefix)
        first = inner.partition(".")[0]
        if "pooler" in inner or inner.endswith(("position_ids", "token_type_ids")):
            continue
        if first in modules or name.startswith(prefix):
            own.append(name)
        elif first not in HEADS:
            unknown.append(name)
    if own:
        raise RequestError(
            f"model: the weights in {folder} hold {len(own)} that its config.json has no place for ({_few(own)}); they "
            "would be lost. One of the two is wrong, the number of layers perhaps; copy the folder again"
        )
    if unknown:
        log(
            f"model: warning: {len(unknown)} weights in {folder} belong to nothing that is known here "
            f"({_few(unknown)}); they are left out"
        )


def _few(names: list[str]) -> str:
    return f"{', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''}"


def _why_unreadable(folder: Path, error: Exception) -> str:
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    if not weights:
        return f"expected weights (model.safetensors or pytorch_model.bin), found none in {folder}"
    if isinstance(error, RuntimeError):
        return f"the weights in {folder} do not have the shapes that its config.json says; one of the two is wrong"
    return f"the weights in {folder} cannot be read ({type(error).__name__}); they are damaged: copy the folder again"


def refuse_missing(folder: Path, missing: set[str]) -> None:
    """Raises RequestError for weights that the files lack, except a pooler's."""
    lacking = sorted(key for key in missing if "pooler" not in key)
    if lacking:
        raise RequestError(
            f"model: the weights in {folder} lack {len(lacking)} that its config.json asks for "
            f"({_few(lacking)}); "
            "the file is incomplete or belongs to another architecture"
        )


def freeze_pooler(backbone: nn.Module, blank: bool = False) -> None:
    """Freezes the pooler, if there is one, so that every parameter that learns has a gradient; `blank` zeroes it too.

    It stays in the network because other readers of the folder miss it aloud when it is gone.
    """
    pooler = getattr(backbone, "pooler", None)
    if pooler is None:
        return
    pooler.requires_grad_(False)
    if blank:
        for weight in pooler.parameters():
            weight.data.zero_()


def bert_config(size: NewEncoder, tokenizer: PreTrainedTokenizerFast) -> BertConfig:
    """A BERT of this size for the tokenizer's vocabulary."""
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.dim,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.feed_forward or 4 * size.dim,
        max_position_embeddings=size.max_tokens,
        hidden_dropout_prob=size.dropout,
        attention_probs_dropout_prob=size.dropout,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=_spread_of_weights(size.dim),
    )


def _spread_of_weights(dim: int) -> float:
    """The standard deviation of new weights: BERT's 0.02 at BERT's 768 dimensions, so that what a layer sums up stays
    as large in a narrow network, which otherwise takes far longer to learn where to look.
    """
    return float(0.02 * (768 / dim) ** 0.5)


def start_positions(network: PreTrainedModel, size: NewEncoder) -> None:
    """Starts the position embeddings of a new network as `size` asks, with the spread of its other weights."""
    table = _position_table(network)
    if size.positions is None or table is None:
        return
    first, dim = unused_positions(network), table.embedding_dim
    places = torch.arange(table.num_embeddings - first)
    rates = 10_000.0 ** -(torch.arange(0, dim, 2) / dim)
    angles = places[:, None] * rates  # (positions, pairs of dimensions)
    sinusoids = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :dim]  # (positions, dim)
    with torch.no_grad():
        table.weight[first:] = sinusoids * (network.config.initializer_range * 2**0.5)


def save_backbone(backbone: PreTrainedModel, folder: Path) -> None:
    """Writes config.json and model.safetensors."""
    with _quiet():
        backbone.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):
        make_readable(weights)


def position_limit(backbone: nn.Module) -> int | None:
    """How many tokens the position table holds, its unused rows left out. None: no table."""
    table = _position_table(backbone)
    return None if table is None else table.num_embeddings - unused_positions(backbone)


def unused_positions(backbone: nn.Module) -> int:
    """How many rows of the position table no token has: RoBERTa's up to its padding id, from which it counts on."""
    table = _position_table(backbone)
    return 0 if table is None or table.padding_idx is None else table.padding_idx + 1


def _position_table(backbone: nn.Module) -> nn.Embedding | None:
    for name, module in backbone.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module
    return None


def load_tokenizer(folder: Path, lower_case: bool = False) -> PreTrainedTokenizerFast:
    """The tokenizer of `folder`: tokenizer.json as it stands when there is one, else built from the vocabulary.

    transformers 5 rebuilds a tokenizer from what its class should be, which can drop the file's own normalizer.
    lower_case: put a lower-casing before everything else, as `do_lower_case` of sentence-transformers asks.
    """
    settings = read_model_file(folder / "tokenizer_config.json", _TokenizerConfig) or _TokenizerConfig()
    read_model_file(folder / "special_tokens_map.json", _SpecialTokens)
    read_model_file(folder / "added_tokens.json", dict[str, int])
    try:
        with _quiet():
            tokenizer = _load_by_class(folder, settings)
            rules = _read_rules(folder / "tokenizer.json") or tokenizer.backend_tokenizer
            rules.no_padding()
            rules.no_truncation()
            _apply_settings(rules, settings)
            _check_encodes(rules, folder)
            if lower_case:
                before = [rules.normalizer] if rules.normalizer else []
                rules.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])
            fast = as_fast(rules, tokenizer)
    except (Stopped, RequestError):
        raise
    except Exception as error:  # the tokenizers library raises plain Exception
        raise RequestError(
            f"model: expected a tokenizer in {folder} (tokenizer.json, vocab.txt, …), found none that can be read "
            f"({type(error).__name__})"
        ) from error
    warn_of_special_tokens(fast)
    return fast


def warn_of_special_tokens(tokenizer: PreTrainedTokenizerFast, pairs: bool = False) -> None:
    """Says when a [CLS] or [SEP] that `tokenizer` has is put into no text, or into no pair of texts."""
    put_in = tokenizer.backend_tokenizer.encode("", "" if pairs else None).tokens
    lacking = [token for token in (tokenizer.cls_token, tokenizer.sep_token) if token and token not in put_in]
    if lacking:
        log(
            f"model: warning: the tokenizer puts no {' or '.join(map(str, lacking))} into a "
            f"{'pair of texts' if pairs else 'text'}; see that the model learnt it so, or copy the folder again"
        )


def _load_by_class(folder: Path, settings: _TokenizerConfig) -> PreTrainedTokenizerBase:
    vocabulary = folder / "vocab.txt"
    casing = {}
    if vocabulary.is_file() and settings.do_lower_case is None:
        casing["do_lower_case"] = not _is_cased(vocabulary)
    loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True, **casing)
    return cast(PreTrainedTokenizerBase, loaded)


def _read_rules(file: Path) -> Tokenizer | None:
    """The rules that a tokenizer.json says; None where there is none."""
    if not file.is_file():
        return None
    content = file.read_bytes()
    lacking = [name for name in RULES if f'"{name}"'.encode() not in content]  # the library writes them all, or null
    if lacking:
        raise RequestError(f"model: expected {', '.join(lacking)} in {file}, found none; copy the folder again")
    return Tokenizer.from_buffer(content)


def _check_encodes(rules: Tokenizer, folder: Path) -> None:
    """Raises RequestError for rules whose parts do not fit one another, or that have no place for the text."""
    try:  # the tokenizers library panics where a template names a token that is not there
        alone, first, second, none = (
            len(rules.encode(*texts).ids) for texts in ((SOME_TEXT, None), (SOME_TEXT, ""), ("", SOME_TEXT), ("", ""))
        )
        if alone <= len(rules.encode("").ids) or min(first, second) <= none:
            raise ValueError("text without a token")
    except BaseException as error:  # a panic is no Exception
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise RequestError(f"model: the parts of the tokenizer in {folder} do not fit one another") from error
        raise


def _is_cased(vocabulary: Path) -> bool:
    """Whether a word piece has a capital letter; [PAD] and the like do not count."""
    with vocabulary.open(encoding="utf-8") as lines:
        return any(line != line.lower() for line in lines if not line.startswith("["))


def _apply_settings(rules: Tokenizer, settings: _TokenizerConfig) -> None:
    """What tokenizer_config.json says about BERT's normalizer counts, also against tokenizer.json."""
    if isinstance(rules.normalizer, normalizers.BertNormalizer):
        for key, name in NORMALIZER_SETTINGS.items():
            value = getattr(settings, key)
            if value is not None or (key == "strip_accents" and key in settings.model_fields_set):
                setattr(rules.normalizer, name, value)


def as_fast(rules: Tokenizer, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerFast:
    """A tokenizer of these rules that in all else, special tokens among it, is like `tokenizer`."""
    build: Any = PreTrainedTokenizerFast  # its constructor has no types
    fast: PreTrainedTokenizerFast = build(
        tokenizer_object=rules,
        model_max_length=int(tokenizer.model_max_length),
        model_input_names=tokenizer.model_input_names,
        padding_side=tokenizer.padding_side,
        truncation_side=tokenizer.truncation_side,
        **{name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)},
    )
    return fast


def pad_id_of(network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> int:
    """What fills shorter rows: the tokenizer's padding token, else the network's, else 0; a mask leaves it out."""
    known = (tokenizer.pad_token_id, network.config.pad_token_id, 0)
    found, rows = int(next(value for value in known if value is not None)), network.config.vocab_size
    if found >= rows:
        raise RequestError(
            f"model: expected a padding token among the {rows:,} that the network has embeddings for, found number "
            f"{found:,}; correct pad_token in the tokenizer's files"
        )
    return found


def check_max_tokens(rules: Tokenizer, max_tokens: int, sentences: int = 1) -> None:
    """Raises RequestError unless an input of so many `sentences` has a token of each beside the special ones."""
    rules.no_truncation()
    least = len(rules.encode("", "" if sentences == 2 else None).ids) + sentences
    if max_tokens < least:
        raise RequestError(
            f"max_tokens: expected {least} or more, for the special tokens alone are {least - sentences}, found "
            f"{max_tokens}; raise it, or max_seq_length or model_max_length in the model's folder"
        )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path, max_tokens: int, has_types: bool) -> None:
    """Writes the tokenizer so that it gives the same ids here and in transformers 4 and 5.

    Written by hand: under any class name but PreTrainedTokenizerFast a version rebuilds or cannot load it, and the
    list of extra special tokens that transformers 5 writes breaks transformers 4.
    has_types: whether the network tells first from second text; others fail on token types that a tokenizer gives.
    """
    rules = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    rules.no_truncation()
    rules.no_padding()
    rules.save(str(folder / "tokenizer.json"))
    special = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    names = [name for name in tokenizer.model_input_names if has_types or name != "token_type_ids"]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_tokens,
        "model_input_names": names,
        "padding_side": tokenizer.padding_side,
        "truncation_side": tokenizer.truncation_side,
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", settings | special)
    write_json(folder / "special_tokens_map.json", special)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of one module's folder, from model.safetensors or else pytorch_model.bin."""
    safe, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    try:
        if safe.is_file():
            return load_file(safe)
        return cast(dict[str, Tensor], torch.load(pickled, map_location="cpu", weights_only=True))
    except FileNotFoundError as error:
        raise RequestError(
            f"model: expected weights ({safe.name} or {pickled.name}), found none in {folder}"
        ) from error
    except Stopped:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise RequestError(
            f"model: the weights in {folder} cannot be read ({type(error).__name__}); they are damaged"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers' progress bars and load reports off the terminal; what matters in them is raised here."""
    logging: Any = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
