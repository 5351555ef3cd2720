"""What networks that score pairs of sentences share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (its usual name)
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.backbone import (
    check_max_tokens,
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
from bertrelay.cpu_kernels import use_cpu_kernels, using
from bertrelay.data.texts import each_pair
from bertrelay.errors import RequestError, WorkError
from bertrelay.hardware import as_device, resolve_precision
from bertrelay.inference import best_batch_tokens, computing, pack_for, padded, sorted_batches
from bertrelay.layout import read_layout

Pairs = Sequence[tuple[str, str]]


LOSS = "cross_entropy"


def cross_entropy(logits: Tensor, scores: Tensor) -> Tensor:
    """Σ −s·log σ(x) − (1 − s)·log(1 − σ(x)) of logits x and gold scores s from 0 to 1, both (pairs,)."""
    return F.binary_cross_entropy_with_logits(logits, scores, reduction="sum")


class PaddedPairs(Protocol):
    """Tokens of pairs.

    sides: rows of a batch that a pair takes.
    lengths: padded tokens that a pair brings to a batch in which it is the longest, (pairs,).
    """

    sides: ClassVar[int]

    @property
    def lengths(self) -> NDArray[np.int64]: ...

    def padded(self, rows: NDArray[np.integer], pad_id: int, width: int | None = None) -> dict[str, Tensor]:
        """What the network is called with for these pairs; as wide as the longest of them when not told."""
        ...


class PairScorer(Protocol):
    """A network from pairs of sentences to logits (pairs,), whose sigmoid is the score."""

    pad_id: int
    training: bool

    @property
    def device(self) -> torch.device: ...

    @property
    def backbone(self) -> nn.Module: ...

    @property
    def max_tokens(self) -> int: ...

    def tokenize(self, pairs: Pairs) -> PaddedPairs: ...

    def train(self, mode: bool = True) -> object: ...

    def __call__(self, **inputs: Tensor) -> Tensor: ...


def score_pairs(model: PairScorer, pairs: Pairs, precision: str, batch_tokens: int | None) -> NDArray[np.float32]:
    """The scores of `pairs` from 0 to 1, float32 (pairs,): longest first, in batches of `batch_tokens`.

    Raises RequestError for what is no list of pairs, WorkError for scores that are no numbers.
    """
    pairs = list(each_pair(pairs, "score"))
    if not pairs:
        return np.zeros(0, np.float32)
    precision, tokens = resolve_precision(precision, model.device), model.tokenize(pairs)
    size = best_batch_tokens(model.device, batch_tokens) // tokens.sides
    lengths, scores = tokens.lengths // tokens.sides, np.empty(len(pairs), np.float32)
    packed = pack_for(int(lengths.sum()), model.backbone, precision, size)
    with computing(model, precision), using(packed):
        for rows, width, height in sorted_batches(lengths, size, model.max_tokens):
            inputs = tokens.padded(np.pad(rows, (0, height - len(rows)), mode="edge"), model.pad_id, width)
            logits = model(**{name: each.to(model.device) for name, each in inputs.items()})  # (height,)
            scores[rows] = torch.sigmoid(logits[: len(rows)]).cpu().numpy()
    _check_finite(scores)
    return scores


def _check_finite(scores: NDArray[np.float32]) -> None:
    spoilt = np.flatnonzero(~np.isfinite(scores))
    if len(spoilt):
        raise WorkError(
            f"expected scores from 0 to 1, found {len(spoilt):,} of {len(scores):,} that are no numbers, the first for "
            f"pair {spoilt[0]:,} counted from 0. Check the model's weights, or ask for precision fp32."
        )


BLOCK = 8_192  # pairs tokenized at once


@dataclass(frozen=True)
class PairTokens:
    """The ids of pairs and their token types, end to end, (all tokens,); lengths and starts of pairs, (pairs,)."""

    ids: NDArray[np.int32]
    types: NDArray[np.int32]
    lengths: NDArray[np.int64]
    sides: ClassVar[int] = 1

    @property
    def starts(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths) - self.lengths

    def padded(self, rows: NDArray[np.integer], pad_id: int, width: int | None = None) -> dict[str, Tensor]:
        """What a network of transformers is called with, each (rows, width)."""
        starts, lengths = self.starts[rows], self.lengths[rows]
        width = width or int(lengths.max())
        ids, mask = padded(self.ids, starts, lengths, width, pad_id)
        types, _ = padded(self.types, starts, lengths, width, 0)
        named = {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": types}
        return {name: torch.from_numpy(values) for name, values in named.items()}


def pair_rules(tokenizer: PreTrainedTokenizerFast, max_tokens: int) -> Tokenizer:
    """A copy of the tokenizer's rules that cuts the longer of two sentences until the pair has `max_tokens`."""
    rules = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    rules.no_padding()
    check_max_tokens(rules, max_tokens, sentences=2)
    rules.enable_truncation(max_tokens, strategy="longest_first")
    return rules


def tokenize_pairs(rules: Tokenizer, pairs: Pairs) -> PairTokens:
    """The tokens of `pairs`, special ones among them."""
    ids, types, lengths = [], [], []
    for start in range(0, len(pairs), BLOCK):
        for encoding in rules.encode_batch(list(pairs[start : start + BLOCK])):
            ids.append(np.array(encoding.ids, np.int32))
            types.append(np.array(encoding.type_ids, np.int32))
            lengths.append(len(encoding.ids))
    return PairTokens(np.concatenate(ids), np.concatenate(types), np.array(lengths, np.int64))


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
