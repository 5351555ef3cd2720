"""The pretrained network under an encoder, and its tokenizer: loaded in float32, checked, and running no code.

What is loaded is whole or refused: a weight that the files do not hold is never filled with random numbers.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from tokenizers import Tokenizer, normalizers
from torch import Tensor, nn
from transformers import (
    AutoConfig,
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
from bertrelay.errors import RequestError, Stopped
from bertrelay.files import share, write_json
from bertrelay.settings import ModelSource, no_model_folder

OTHER_FRAMEWORKS = ["onnx/*", "openvino/*", "coreml/*", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.gguf"]
NORMALIZER_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def model_folder(source: str | Path, revision: str | None = None, cache_dir: str | Path | None = None) -> Path:
    """The folder of `source`: a folder, `package:name/path`, or a hub id (`@revision` or not), which is downloaded."""
    if not isinstance(source, str | os.PathLike):
        raise RequestError(f"model: expected a folder or the name of a model, found {source!r}")
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

    Those stand there at random; `refuse_missing` is for those that may not.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS_KEPT)
    config = _load_config(folder)
    try:
        with _quiet():
            network, report = kind.from_pretrained(
                folder, config=config, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
            )
    except Stopped:
        raise
    except Exception as error:  # each format of weights fails in its own way; all of them mean this folder
        raise RequestError(f"model: {_why_unreadable(folder, error)}") from error
    return cast(PreTrainedModel, network), set(report["missing_keys"])


def _load_config(folder: Path) -> PreTrainedConfig:
    if not (folder / "config.json").is_file():
        raise RequestError(f"model: expected a model folder with a config.json, found none in {folder}")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise RequestError(f"model: {folder / 'config.json'} names no architecture that is known here") from error
    is_bert_like = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and hasattr(config, "vocab_size")
    if not is_bert_like or config.is_encoder_decoder or getattr(config, "is_decoder", False):
        raise RequestError(
            f"model: expected a BERT-like encoder (BERT, RoBERTa, ALBERT, XLM-R, DistilBERT, MPNet, …), "
            f"found {config.model_type!r} in {folder / 'config.json'}"
        )
    return config


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
            f"({', '.join(lacking[:3])}{', …' if len(lacking) > 3 else ''}); "
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
        share(weights)


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
    settings = read_config(folder / "tokenizer_config.json") or {}
    try:
        with _quiet():
            tokenizer = _load_by_class(folder, settings)
            file = folder / "tokenizer.json"
            rules = Tokenizer.from_file(str(file)) if file.is_file() else tokenizer.backend_tokenizer
    except Stopped:
        raise
    except Exception as error:  # the tokenizers library raises plain Exception
        raise RequestError(
            f"model: expected a tokenizer in {folder} (tokenizer.json, vocab.txt, …), found none that can be read "
            f"({type(error).__name__})"
        ) from error
    _apply_settings(rules, settings)
    if lower_case:
        before = [rules.normalizer] if rules.normalizer else []
        rules.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])
    return as_fast(rules, tokenizer)


def _load_by_class(folder: Path, settings: dict[str, Any]) -> PreTrainedTokenizerBase:
    vocabulary = folder / "vocab.txt"
    casing = {}
    if vocabulary.is_file() and "do_lower_case" not in settings:
        casing["do_lower_case"] = not _is_cased(vocabulary)
    loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **casing)
    return cast(PreTrainedTokenizerBase, loaded)


def _is_cased(vocabulary: Path) -> bool:
    """Whether a word piece has a capital letter; [PAD] and the like do not count."""
    with vocabulary.open(encoding="utf-8") as lines:
        return any(line != line.lower() for line in lines if not line.startswith("["))


def _apply_settings(rules: Tokenizer, settings: dict[str, Any]) -> None:
    """What tokenizer_config.json says about BERT's normalizer counts, also against tokenizer.json."""
    if isinstance(rules.normalizer, normalizers.BertNormalizer):
        for key, name in NORMALIZER_SETTINGS.items():
            if key in settings:
                setattr(rules.normalizer, name, settings[key])


def as_fast(rules: Tokenizer, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerFast:
    """A tokenizer of these rules that in all else, special tokens among it, is like `tokenizer`."""
    build: Any = PreTrainedTokenizerFast  # its constructor has no types
    fast: PreTrainedTokenizerFast = build(
        tokenizer_object=rules,
        model_max_length=tokenizer.model_max_length,
        model_input_names=tokenizer.model_input_names,
        padding_side=tokenizer.padding_side,
        truncation_side=tokenizer.truncation_side,
        **{name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)},
    )
    return fast


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


def read_config(path: Path) -> Any:
    """What a model's JSON file holds; None when there is no such file. Raises RequestError when it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RequestError(f"model: expected JSON, found something else in {path}: {error}") from error


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
