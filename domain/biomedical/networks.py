"""What every network with a head of its own on a BERT shares: how it begins, what it may be, how it is saved."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.backbone import (
    load_backbone,
    load_network,
    load_tokenizer,
    model_folder,
    position_limit,
    refuse_missing,
    save_backbone,
    save_tokenizer,
)
from bertrelay.errors import RequestError
from bertrelay.layout import read_layout
from domain.pretraining.vocabulary import check_vocabulary


def load_base(source: str | Path, cache_dir: Path | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The BERT of `source`, a sentence encoder's among them, and its tokenizer; the two fit."""
    folder = model_folder(source, cache_dir=cache_dir)
    layout = read_layout(folder)
    folder = folder / layout.transformer_folder
    backbone, tokenizer = load_backbone(folder), load_tokenizer(folder, layout.lower_case)
    check_vocabulary(tokenizer, backbone.config.vocab_size)
    return backbone, tokenizer


def load_with_head(
    folder: Path, kind: Any, head: str, does: str, stage: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The network of `folder` as the auto class `kind` builds it, and its tokenizer.

    head: how the names of the head's weights begin. does, stage: what such a model does, and the stage that trains it.
    Raises RequestError for a folder that holds none, or one that is damaged.
    """
    network, missing = load_network(folder, kind)
    if any(name.startswith(head) for name in missing):
        raise RequestError(f"model: expected one that {does}, found none in {folder}; train it with {stage}")
    refuse_missing(folder, missing)
    tokenizer = load_tokenizer(folder)
    check_vocabulary(tokenizer, network.config.vocab_size)
    return network, tokenizer


def put_under_head(backbone: PreTrainedModel, kind: Any, heads: Sequence[set[str]], what: str) -> PreTrainedModel:
    """`backbone` in a new network of the auto class `kind`. Its pooler, which no piece's score uses, goes.

    heads: the names of what may stand on the BERT there, one set for each way. what: a word for such a network.
    """
    config = backbone.config
    try:
        network = kind.from_config(config)
    except ValueError as error:
        raise RequestError(f"base: transformers has no {what} for {config.model_type!r}") from error
    refuse_other_heads(network, heads, what)
    if getattr(backbone, "pooler", None) is not None:
        setattr(backbone, "pooler", None)  # noqa: B010 (to mypy a module's attribute is no None)
    setattr(network, network.base_model_prefix, backbone)
    return cast(PreTrainedModel, network)


def refuse_other_heads(network: PreTrainedModel, heads: Sequence[set[str]], what: str) -> None:
    """Raises RequestError where something other than dropout and a linear map stands on the BERT."""
    found = {name for name, _ in network.named_children()} - {network.base_model_prefix}
    if found not in heads:
        raise RequestError(
            f"model: expected a {what} that is dropout and a linear map on a BERT, found "
            f"{network.config.model_type!r}, which has {', '.join(sorted(found))} there"
        )


def window_size(network: PreTrainedModel, asked: int | None, usual: int) -> int:
    """The tokens of a window, `usual` where none are asked for and there are positions for them.

    Raises RequestError where the network has too few positions.
    """
    positions = position_limit(network)
    if asked is not None and positions is not None and asked > positions:
        raise RequestError(f"max_tokens: the base has {positions} positions, and {asked} are asked for; lower it")
    return asked or min(usual, positions or usual)


def has_types(network: PreTrainedModel) -> bool:
    """Whether the network tells first from second text."""
    return getattr(network.config, "type_vocab_size", 0) > 1


def save_network(network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes a plain folder of transformers."""
    folder.mkdir(parents=True, exist_ok=True)
    save_backbone(network, folder)
    save_tokenizer(tokenizer, folder, position_limit(network) or tokenizer.model_max_length, has_types(network))
