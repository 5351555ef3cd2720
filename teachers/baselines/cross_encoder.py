"""The cross-encoder: a BERT that reads both sentences of a pair at once. Slower than vectors, and a good re-ranker.

On disk it is a plain transformers folder that `AutoModelForSequenceClassification` loads.
"""

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.backbone import (
    load_backbone,
    load_network,
    load_tokenizer,
    model_folder,
    pad_id_of,
    position_limit,
    read_network_config,
    refuse_missing,
    save_backbone,
    save_tokenizer,
    warn_of_special_tokens,
)
from bertrelay.cpu_kernels import use_cpu_kernels
from bertrelay.data.texts import each_pair
from bertrelay.errors import RequestError
from bertrelay.hardware import as_device
from bertrelay.layout import read_layout
from teachers.baselines.pair_scores import Pairs, score_pairs
from teachers.baselines.pair_tokens import PairTokens, pair_rules, tokenize_pairs

MAX_TOKENS = 256
HEADS = ({"dropout", "classifier"}, {"classifier"})
"""What may stand on the network: on BERT's pooled first token, or, as in RoBERTa, on all token vectors."""


class CrossEncoder(nn.Module):
    """Pairs of sentences to how alike they are.

    network: one of transformers' for sequence classification, with one figure.
    max_tokens: the longest pair, special tokens included; 256 at most when left out.
    """

    def __init__(
        self, network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, max_tokens: int | None = None
    ) -> None:
        super().__init__()
        self.network, self.tokenizer = network, tokenizer
        positions = position_limit(network) or MAX_TOKENS
        self.max_tokens = min(max_tokens or MAX_TOKENS, positions, tokenizer.model_max_length)
        self.has_types = getattr(network.config, "type_vocab_size", 0) > 1
        self.pad_id = pad_id_of(network, tokenizer)
        self._rules = pair_rules(tokenizer, self.max_tokens)
        use_cpu_kernels(network)

    @classmethod
    def load(
        cls, source: str | Path, cache_dir: Path | None = None, device: str | torch.device | None = None
    ) -> "CrossEncoder":
        """The cross-encoder of a folder that was saved here, or of any other with one figure.

        device: as of `SentenceEncoder.load`.
        Raises RequestError for a folder that holds none, or one that is damaged.
        """
        device = as_device(device)
        folder = model_folder(source, cache_dir=cache_dir)
        network, missing = load_network(folder, AutoModelForSequenceClassification)
        if network.config.num_labels != 1 or any(name.startswith("classifier") for name in missing):
            raise RequestError(
                f"model: expected a cross-encoder with one score, found none in {folder}; "
                "train it with teachers.cross-encoder"
            )
        refuse_missing(folder, missing)
        if not isinstance(getattr(network.config, "both_orders", False), bool):
            raise RequestError(f"model: expected both_orders to be true or false in {folder / 'config.json'}")
        _check_head(network)
        tokenizer = load_tokenizer(folder)
        warn_of_special_tokens(tokenizer, pairs=True)
        return cls(network, tokenizer, tokenizer.model_max_length).eval().to(device)

    def save(self, folder: str | Path) -> None:
        """Writes the folder that `load` and transformers read."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_backbone(self.network, folder)
        save_tokenizer(self.tokenizer, folder, self.max_tokens, self.has_types)

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def backbone(self) -> nn.Module:
        return self.network.base_model

    @property
    def both_orders(self) -> bool:
        """Whether a score is the mean of those of (a, b) and (b, a)."""
        return bool(getattr(self.network.config, "both_orders", False))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Each (pairs, tokens) to logits (pairs,), float32; only the network computes in bf16 under autocast."""
        network: Any = self.network
        types = {"token_type_ids": token_type_ids} if self.has_types else {}
        outputs = network.base_model(input_ids=input_ids, attention_mask=attention_mask, **types)
        with torch.autocast(input_ids.device.type, enabled=False):
            if hasattr(network, "dropout"):
                logits = network.classifier(network.dropout(outputs.pooler_output.float()))  # (pairs, 1)
            else:
                logits = network.classifier(outputs.last_hidden_state.float())  # (pairs, 1)
        return cast(Tensor, logits.squeeze(-1))

    def tokenize(self, pairs: Pairs) -> PairTokens:
        """The tokens of `pairs`, each cut to `max_tokens`."""
        return tokenize_pairs(self._rules, pairs)

    def score(self, pairs: Pairs, *, precision: str = "auto", batch_tokens: int | None = None) -> NDArray[np.float32]:
        """How alike the sentences of each pair are, from 0 to 1, float32 (pairs,)."""
        pairs = list(each_pair(pairs, "score"))
        scores = score_pairs(self, pairs, precision, batch_tokens)
        if not self.both_orders:
            return scores
        turned = score_pairs(self, [(second, first) for first, second in pairs], precision, batch_tokens)
        return (scores + turned) / np.float32(2)


def holds_cross_encoder(folder: Path) -> bool:
    """Whether a folder's network, which no sentence encoder is made of, has one score for a pair."""
    config = read_network_config(folder)
    if config is None or len(config.id2label or ()) != 1:
        return False
    return any(kind.endswith("ForSequenceClassification") for kind in config.architectures or ())


def start_cross_encoder(
    base: str | Path,
    max_tokens: int | None = None,
    seed: int = 0,
    cache_dir: Path | None = None,
    *,
    both_orders: bool = False,
) -> CrossEncoder:
    """A cross-encoder before its first step: the BERT of `base`, a sentence encoder's among them, and a new head."""
    folder = model_folder(base, cache_dir=cache_dir)
    layout = read_layout(folder)
    folder = folder / layout.transformer_folder
    backbone, tokenizer = load_backbone(folder), load_tokenizer(folder, layout.lower_case)
    backbone.config.num_labels, backbone.config.both_orders = 1, both_orders
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            network: Any = AutoModelForSequenceClassification.from_config(backbone.config)
        except ValueError as error:
            kind = backbone.config.model_type
            raise RequestError(f"base: transformers has no network for pairs of sentences for {kind!r}") from error
    _check_head(network)
    _give_pooler(backbone, getattr(network.base_model, "pooler", None))
    setattr(network, network.base_model_prefix, backbone)
    return CrossEncoder(network, tokenizer, max_tokens)


def _give_pooler(backbone: PreTrainedModel, new: nn.Module | None) -> None:
    """Has `backbone` use its own pooler where it was trained, else `new`; none where the head needs none."""
    own: Any = getattr(backbone, "pooler", None)
    if new is not None and own is not None and any(weight.any() for weight in own.parameters()):
        own.requires_grad_(True)  # sentence encoders freeze it
    elif new is not None or own is not None:
        setattr(backbone, "pooler", new)  # noqa: B010 (to mypy a module's attribute is no None)


def _check_head(network: PreTrainedModel) -> None:
    heads = {name for name, _ in network.named_children()} - {network.base_model_prefix}
    if heads not in HEADS:
        raise RequestError(
            f"model: expected a BERT or RoBERTa with a classifier on it, found {network.config.model_type!r}, "
            f"which has {', '.join(sorted(heads))} there"
        )
