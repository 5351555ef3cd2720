"""Loads the pretrained network under an encoder in float32; checked, and without running code of the folder.

A network is complete or refused: a weight that the files lack is never replaced by random numbers.
"""

import os
import re
from copy import deepcopy
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, cast

import torch
from pydantic import Field
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    MT5EncoderModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5EncoderModel,
    UMT5EncoderModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from bertrelay.errors import RequestError
from bertrelay.files import make_readable
from bertrelay.model.files import (
    WEIGHTS,
    Description,
    fail_with,
    has_weights,
    read_model_file,
    remove_graphs,
    silence_transformers,
)
from bertrelay.model.folder import CONFIG, ModelFolder
from bertrelay.model.tokenizer import save_tokenizer
from bertrelay.progress import log, spinner

NOT_OF_THE_MODEL = {
    *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
    *("experts_implementation", "_experts_implementation", "auto_map", "torchscript", "chunk_size_feed_forward"),
    *("output_attentions", "output_hidden_states", "return_dict"),
}
"""Ignored keys of a config.json: they choose a computation, such as a kernel from a hub."""
HEADS = re.compile(
    r"cls|head|decoder|pooler|qa_outputs|sop_classifier|(\w+_)?(lm_head|predictions|classifier)|vocab_\w+"
)
"""First parts of the names of weights of task heads, which are skipped."""
ENCODERS: dict[str, Any] = {"t5": T5EncoderModel, "mt5": MT5EncoderModel, "umt5": UMT5EncoderModel}
"""Classes of networks whose decoder sentence encoders do without."""
SPARE_WEIGHTS = 100_000_000
"""The most weights beyond the bytes of a network's files: those of new heads and poolers."""
SHOWN = 3
# oneDNN compiles a kernel for every new shape of a batch and keeps 1,024 of them, 200 MB after a million sentences.
# A few serve a batch, and a new one costs too little to be measured. It reads this once, at its first kernel.
KERNELS_KEPT = "16"


class _ShardIndex(Description):
    weight_map: dict[str, Annotated[str, Field(pattern=r"^[^/\\]+$")]]


def load_backbone(folder: ModelFolder) -> PreTrainedModel:
    """The BERT-like network of `folder` in float32, its pooler, which no sentence vector uses, frozen.

    Raises RequestError for an architecture that is not BERT-like, and for absent, damaged or unfitting weights.
    """
    return _without_pooler(folder, *load_network(folder))


def load_text_network(folder: ModelFolder) -> PreTrainedModel:
    """The network of `folder` in float32, of any kind that gives token vectors: BERT-like, causal, or T5's encoder."""
    config = load_config(folder)
    if not _gives_token_vectors(config):
        raise RequestError(
            "model: expected a network that gives vectors of tokens of text (BERT-like, causal such as Qwen3, or T5's "
            f"encoder), found {config.model_type!r} in {folder.path / CONFIG}"
        )
    network, missing = _load(folder, config, ENCODERS.get(config.model_type, AutoModel))
    if "attention_mask" not in signature(network.forward).parameters:
        raise RequestError(f"model: {config.model_type!r} networks have no padding, so they cannot encode sentences")
    if not _is_bert_like(config):
        network.config.use_cache = False  # nothing is generated
    return _without_pooler(folder, network, missing)


def _without_pooler(folder: ModelFolder, network: PreTrainedModel, missing: set[str]) -> PreTrainedModel:
    refuse_missing(folder.path, missing)
    freeze_pooler(network, blank=any("pooler" in key for key in missing))
    return network


def load_network(folder: ModelFolder, kind: Any = AutoModel) -> tuple[PreTrainedModel, set[str]]:
    """The BERT-like network of `folder` in float32, as the auto class `kind` builds it, and the weights the files lack.

    These are random; `refuse_missing` refuses them. Raises RequestError for weights in the files that the network
    lacks, except heads of other tasks. Only the folder is read, whatever its files name.
    """
    config = load_config(folder)
    if not _is_bert_like(config):
        raise RequestError(
            f"model: expected a BERT-like encoder (BERT, RoBERTa, ALBERT, XLM-R, DistilBERT, MPNet, …), "
            f"found {config.model_type!r} in {folder.path / CONFIG}"
        )
    return _load(folder, config, kind)


def _load(folder: ModelFolder, config: PreTrainedConfig, kind: Any) -> tuple[PreTrainedModel, set[str]]:
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS_KEPT)
    path = folder.path
    _check_weights_suffice(path, kind, config)
    with spinner(f"loading {path}"), fail_with(lambda error: _why_unreadable(path, error)):
        network, report = kind.from_pretrained(
            path,
            config=config,
            dtype=torch.float32,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    _check_left_over(path, network, report["unexpected_keys"])
    return cast(PreTrainedModel, network), set(report["missing_keys"])


def load_config(folder: ModelFolder) -> PreTrainedConfig:
    """The configuration of the network of `folder`. Raises RequestError for what no network can be built from."""
    path, written, checked = folder.path / CONFIG, folder.config, folder.network_config
    if written is None or checked is None:
        raise RequestError(f"model: {folder.fault() or f'expected {path}, found none; copy the folder again'}")
    kind = checked.model_type
    if kind not in CONFIG_MAPPING:
        raise RequestError(f"model: {path} has the unknown architecture {kind!r}")
    if written.get("quantization_config"):
        raise RequestError(f"model: expected weights that are not quantized, found quantization_config in {path}")
    if (folder.path / "adapter_config.json").exists():
        raise RequestError(
            f"model: expected a whole network, found an adapter in {folder.path}; merge it into its network"
        )
    stated = {key: deepcopy(value) for key, value in written.items() if key not in NOT_OF_THE_MODEL}
    with fail_with(partial(_why_no_network, path)):
        config: PreTrainedConfig = CONFIG_MAPPING[kind].from_dict(stated)
    return config


def _is_bert_like(config: PreTrainedConfig) -> bool:
    is_masked = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and hasattr(config, "vocab_size")
    return is_masked and not config.is_encoder_decoder and not getattr(config, "is_decoder", False)


def _gives_token_vectors(config: PreTrainedConfig) -> bool:
    """True for text networks that are BERT-like, causal, or have an encoder that works without the decoder."""
    if config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES or config.model_type in ENCODERS:
        return config.model_type in ENCODERS or _is_bert_like(config)
    reads_text = hasattr(config, "vocab_size") and hasattr(config, "hidden_size") and not config.is_encoder_decoder
    return config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and reads_text


def _why_no_network(path: Path, error: Exception) -> str:
    why = "".join(character for character in " ".join(str(error).split()) if character.isprintable())[:200]
    return f"no network can be built from {path} ({type(error).__name__}: {why})"


def _check_weights_suffice(folder: Path, kind: Any, config: PreTrainedConfig) -> None:
    """Raises RequestError for sizes that do not fit the bytes of the weights, before memory is allocated."""
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        read_model_file(folder / name, _ShardIndex)
    with fail_with(partial(_why_no_network, folder / "config.json")), torch.device("meta"):
        expected = sum(weight.numel() for weight in getattr(kind, "from_config", kind)(deepcopy(config)).parameters())
    available = sum(path.stat().st_size for pattern in WEIGHTS for path in folder.glob(pattern))
    if available and expected > available + SPARE_WEIGHTS:
        raise RequestError(
            f"model: {folder / 'config.json'} asks for {expected:,} weights, and the files have {available:,} bytes; "
            "one of its sizes is wrong"
        )


def _check_left_over(folder: Path, network: PreTrainedModel, left_over: set[str]) -> None:
    """Raises RequestError for superfluous weights of the network's modules; warns of those of unknown modules.

    Heads of other tasks are skipped, and positions, which are counted and not trained.
    """
    prefix = f"{network.base_model_prefix}."
    modules = {name for name, _ in (*network.named_children(), *network.base_model.named_children())}
    superfluous, unknown = [], []
    for name in sorted(left_over):
        inner = name.removeprefix(prefix)
        first = inner.partition(".")[0]
        if "pooler" in inner or inner.endswith(("position_ids", "token_type_ids")):
            continue
        if first in modules or name.startswith(prefix):
            superfluous.append(name)
        elif not HEADS.fullmatch(first):
            unknown.append(name)
    if superfluous:
        raise RequestError(
            f"model: the weights in {folder} hold {len(superfluous)} that its config.json has no place for "
            f"({_few(superfluous)}); they "
            "would be lost. One of the two is wrong, the number of layers perhaps; copy the folder again"
        )
    if unknown:
        log(
            f"model: warning: {len(unknown)} weights in {folder} belong to no known module ({_few(unknown)}); they are "
            "ignored"
        )


def _few(names: list[str]) -> str:
    return f"{', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''}"


def _why_unreadable(folder: Path, error: Exception) -> str:
    if not has_weights(folder):
        exported = any((folder / name).is_dir() for name in ("onnx", "openvino"))
        hint = "; it has a graph alone: give the model that was exported" if exported else ""
        return f"expected weights (model.safetensors or pytorch_model.bin), found none in {folder}{hint}"
    if isinstance(error, RuntimeError):
        return f"the weights in {folder} do not have the shapes of its config.json; one of the two is wrong"
    return f"the weights in {folder} cannot be read ({type(error).__name__}); they are damaged: copy the folder again"


def refuse_missing(folder: Path, missing: set[str]) -> None:
    """Raises RequestError for weights that the files lack, except a pooler's."""
    lacking = sorted(key for key in missing if "pooler" not in key)
    if lacking:
        raise RequestError(
            f"model: the weights in {folder} lack {len(lacking)} that its config.json asks for ({_few(lacking)}); the "
            "file is incomplete or belongs to another architecture"
        )


def freeze_pooler(backbone: nn.Module, blank: bool = False) -> None:
    """Freezes the pooler, if any, so that every trained parameter has a gradient; `blank` zeroes it.

    It stays in the network because other readers of the folder warn when it is missing.
    """
    for weight in (getattr(backbone, "pooler", None) or nn.Module()).parameters():
        weight.requires_grad_(False)
        if blank:
            weight.data.zero_()


def save_backbone(backbone: PreTrainedModel, folder: Path) -> None:
    """Writes config.json and model.safetensors."""
    with silence_transformers():
        backbone.save_pretrained(folder)
    for weights in folder.glob("*.safetensors"):
        make_readable(weights)


def save_network(
    network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path, max_tokens: int | None = None
) -> None:
    """Writes a plain folder of transformers, and removes graphs of an earlier network.

    max_tokens: the longest input; the positions of the network when None.
    """
    inner: Any = getattr(network, "base_model", network)
    if not isinstance(inner, PreTrainedModel):
        inner.save_pretrained(folder)  # a graph, which refuses
    folder.mkdir(parents=True, exist_ok=True)
    remove_graphs(folder)
    save_backbone(network, folder)
    limit = max_tokens or position_limit(network) or tokenizer.model_max_length
    save_tokenizer(tokenizer, folder, limit, has_types(network))


def has_types(network: PreTrainedModel) -> bool:
    return getattr(network.config, "type_vocab_size", 0) > 1


def position_limit(backbone: nn.Module) -> int | None:
    """The number of tokens of the position table, without its unused rows; None without a table."""
    table = position_table(backbone)
    if table is None:
        limit: int | None = getattr(getattr(backbone, "base_model", backbone), "position_limit", None)  # of a graph
        return limit
    return table.num_embeddings - unused_positions(backbone)


def longest_input(backbone: PreTrainedModel) -> int | None:
    """The most tokens that the network reads, by its position table or else its config."""
    declared = getattr(backbone.config, "max_position_embeddings", None)
    return position_limit(backbone) or (declared if declared and declared > 0 else None)


def unused_positions(backbone: nn.Module) -> int:
    """The number of rows of the position table that no token uses: RoBERTa counts from its padding id + 1."""
    table = position_table(backbone)
    return 0 if table is None or table.padding_idx is None else table.padding_idx + 1


def position_table(backbone: nn.Module) -> nn.Embedding | None:
    for name, module in backbone.named_modules():
        if name.endswith(("position_embeddings", "wpe")) and isinstance(module, nn.Embedding):
            return module
    return None


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of one module's folder, from model.safetensors or else pytorch_model.bin."""
    safe, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    with fail_with(lambda error: _why_unreadable(folder, error)):
        if safe.is_file():
            return load_file(safe)
        return cast(dict[str, Tensor], torch.load(pickled, map_location="cpu", weights_only=True))
