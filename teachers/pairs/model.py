"""The cross-encoder: a BERT that reads both sentences of a pair at once; slower than vectors, and a good re-ranker.

On disk it is a plain transformers folder that `AutoModelForSequenceClassification` loads, and sentence-transformers'
`CrossEncoder`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.cache import Cache
from bertrelay.checks import check_count, iterate_pairs, list_texts
from bertrelay.data.tokens import pad_rows
from bertrelay.data.vectors import check_finite_rows
from bertrelay.device import ComputePrecision, as_device, resolve_precision
from bertrelay.errors import RequestError
from bertrelay.inference.batches import best_batch_tokens, fill_batch, inference_mode, pack_for, sorted_batches
from bertrelay.inference.kernels import use_cpu_kernels, use_packed
from bertrelay.model.files import read_model_file
from bertrelay.model.folder import ModelFolder
from bertrelay.model.graph import BackendChoice, GraphNetwork, check_backend
from bertrelay.model.heads import Head
from bertrelay.model.layout import MODEL_CONFIG
from bertrelay.model.network import has_types, position_limit, save_network
from bertrelay.model.tokenizer import pad_id_of, shortened, truncating, warn_of_special_tokens
from bertrelay.progress import Bar, progress

Pairs = Sequence[tuple[str, str]]

MAX_TOKENS = 256
TOKENIZED_PAIRS = 8_192  # tokenized at once

HEAD = Head(
    AutoModelForSequenceClassification,
    "classifier",
    "scorer",
    "cross-encoder",
    "scores pairs of sentences",
    "train it with teachers.cross-encoder",
    # On BERT's pooled first token, or on all token vectors, as RoBERTa's.
    layers=(frozenset({"dropout", "classifier"}), frozenset({"classifier"})),
    pooler="with head",
)


@dataclass(frozen=True)
class PairTokens:
    """Tokens of pairs: a row for each pair, or a row for each sentence.

    ids, types: of all rows, end to end, (all tokens,); no types where each sentence has a row.
    sizes: tokens of each row, (1, pairs), or (2, pairs) with all first sentences before all second ones.
    """

    ids: NDArray[np.int32]
    sizes: NDArray[np.int64]
    types: NDArray[np.int32] | None = None

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Padded tokens that a pair adds to a batch in which it is the longest, (pairs,)."""
        lengths: NDArray[np.int64] = len(self.sizes) * self.sizes.max(axis=0)
        return lengths

    def padded(self, pairs: NDArray[np.integer], pad_id: int, width: int | None = None) -> dict[str, Tensor]:
        """Returns the network's inputs for `pairs`, (rows, width) each; as wide as the longest row by default."""
        starts = (np.cumsum(self.sizes) - self.sizes.ravel()).reshape(self.sizes.shape)
        sizes = self.sizes[:, pairs].ravel()  # (rows,)
        rows = starts[:, pairs].ravel(), sizes, width or int(sizes.max())
        ids, mask = pad_rows(self.ids, *rows, pad_id)
        named = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
        if self.types is not None:
            named["token_type_ids"], _ = pad_rows(self.types, *rows, 0)
        return {name: torch.from_numpy(values) for name, values in named.items()}


class PairScorer(nn.Module):
    """A network from pairs of sentences to logits (pairs,), whose sigmoid is the score."""

    pad_id: int
    max_tokens: int

    @property
    def backbone(self) -> nn.Module:
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def tokenize(self, pairs: Pairs) -> PairTokens:
        """Tokenizes `pairs`, each cut to `max_tokens`."""
        raise NotImplementedError

    def save(self, folder: str | Path) -> None:
        """Writes the folder that `load` reads."""
        raise NotImplementedError

    def predict(
        self,
        inputs: Iterable[tuple[str, str]] | tuple[str, str],
        *,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Tensor], Tensor] | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        precision: str | None = None,
        batch_tokens: int | None = None,
    ) -> Any:
        """Scores the likeness of the sentences of each pair, from 0 to 1, float32 (pairs,); one of a single pair.

        activation_fn: from logits to scores, such as `torch.nn.Identity()`; the sigmoid by default.
        convert_to_numpy, convert_to_tensor: an array, a tensor on the network's device, or without both a list of
            tensors.
        batch_size, batch_tokens: the most pairs, and padded tokens, in a batch; the device decides by default.
        Raises RequestError for what is no list of pairs, WorkError for scores that are not finite.
        """
        check_count("batch_size", batch_size)
        is_sequence = isinstance(inputs, tuple | list) or getattr(inputs, "shape", None) == (2,)  # of NumPy
        if is_sequence and len(texts := tuple(inputs)) == 2 and all(isinstance(text, str) for text in texts):
            pairs, single = [cast(tuple[str, str], texts)], True
        else:
            pairs, single = list(iterate_pairs(cast(Iterable[tuple[str, str]], inputs), "predict")), False
        resolved, activation = resolve_precision(precision, self.device), activation_fn or torch.sigmoid
        with progress("scoring", len(pairs) if show_progress_bar else 0, "pairs") as bar:
            scores: Any = self._scores(pairs, activation, resolved, batch_size, batch_tokens, bar)  # (pairs,)
        if convert_to_tensor:
            scores = torch.as_tensor(scores, device=self.device)
        elif not convert_to_numpy:
            scores = list(torch.from_numpy(scores))
        return scores[0] if single else scores

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        *,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Tensor], Tensor] | None = None,
        precision: str | None = None,
        batch_tokens: int | None = None,
    ) -> list[dict[str, Any]]:
        """Ranks `documents` by their score with `query`, the highest first, as `corpus_id`, `score` and perhaps `text`.

        return_documents: add the text of each. Other keyword arguments as in `predict`.
        """
        check_count("top_k", top_k)
        documents = list_texts(documents, "rank")
        scores = self.predict(
            [(query, document) for document in documents],
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            activation_fn=activation_fn,
            precision=precision,
            batch_tokens=batch_tokens,
        ).tolist()
        order = sorted(range(len(scores)), key=lambda row: -scores[row])[:top_k]
        texts = {row: {"text": documents[row]} if return_documents else {} for row in order}
        return [{"corpus_id": row, "score": scores[row], **texts[row]} for row in order]

    def _scores(
        self,
        pairs: Pairs,
        activation: Callable[[Tensor], Tensor],
        precision: ComputePrecision,
        batch_size: int | None,
        batch_tokens: int | None,
        bar: Bar,
    ) -> NDArray[np.float32]:
        """Scores `pairs` in batches, longest first; in the order of `pairs`, (pairs,)."""
        scores = np.empty(len(pairs), np.float32)
        if not pairs:
            return scores
        tokens = self.tokenize(pairs)
        lengths = tokens.sizes.max(axis=0)  # (pairs,)
        size = best_batch_tokens(self.device, batch_tokens) // len(tokens.sizes)
        packed = pack_for(int(lengths.sum()), self.backbone, precision, size)
        with inference_mode(self, precision), use_packed(packed):
            for rows, width, height in sorted_batches(lengths, size, self.max_tokens, batch_size):
                inputs = tokens.padded(fill_batch(rows, height), self.pad_id, width)
                logits = self(**{name: tensor.to(self.device) for name, tensor in inputs.items()})  # (height,)
                scores[rows] = activation(logits[: len(rows)]).float().cpu().numpy()
                bar.advance(len(rows))
        check_finite_rows(scores[:, None], None, lambda row: f"pair {row + 1:,}", "a score")
        return scores


class CrossEncoder(PairScorer):
    """A BERT that reads both sentences of a pair in one row.

    network: one of transformers' for sequence classification, with one label.
    max_tokens: the longest pair, special tokens included; 256 at most by default.
    """

    def __init__(
        self, network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, max_tokens: int | None = None
    ) -> None:
        super().__init__()
        self.network, self.tokenizer = network, tokenizer
        positions = position_limit(network) or MAX_TOKENS
        self.max_tokens = min(max_tokens or MAX_TOKENS, positions, tokenizer.model_max_length)
        self.has_types = has_types(network)
        self.pad_id = pad_id_of(network, tokenizer)
        self._rules = truncating(tokenizer, self.max_tokens, sentences=2)
        use_cpu_kernels(network)

    @classmethod
    def load(
        cls,
        source: str | Path,
        device: str | torch.device | None = None,
        cache: Cache | None = None,
        *,
        backend: BackendChoice = None,
    ) -> "CrossEncoder":
        """Loads a cross-encoder of a folder or hub id: one saved here, or any other with one label.

        device, backend: as in `SentenceEncoder.load`.
        Raises RequestError for a folder that holds none, or one that is damaged.
        """
        check_backend(backend, device)
        chosen = as_device(device)
        folder = ModelFolder.find(source, cache=cache)
        stated = read_model_file(folder.path / MODEL_CONFIG, dict[str, Any]) or {}
        if (stated.get("prompts") or {}).get(stated.get("default_prompt_name")):
            raise RequestError(
                "model: expected a cross-encoder without a prompt, found default_prompt_name in "
                f"{folder.path / MODEL_CONFIG}; sentence-transformers itself can use it"
            )
        network, tokenizer = HEAD.load(folder, backend)
        if network.config.num_labels != 1:
            raise RequestError(
                f"model: expected a cross-encoder with one score, found {network.config.num_labels} in {folder.path}"
            )
        warn_of_special_tokens(tokenizer, pairs=True)
        encoder = cls(network, tokenizer, tokenizer.model_max_length).eval()
        return encoder if isinstance(network.base_model, GraphNetwork) else encoder.to(chosen)

    def save(self, folder: str | Path) -> None:
        """Writes the folder that `load` and transformers read."""
        save_network(self.network, self.tokenizer, Path(folder), self.max_tokens)

    @property
    def backbone(self) -> nn.Module:
        return self.network.base_model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Maps inputs, (pairs, tokens) each, to logits (pairs,), float32; only the network computes in bf16."""
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
        """Tokenizes `pairs`, with special tokens; the longer sentence is cut first."""
        ids, types, lengths = [], [], []
        for start in range(0, len(pairs), TOKENIZED_PAIRS):
            columns = (list(column) for column in zip(*pairs[start : start + TOKENIZED_PAIRS], strict=True))
            cut = (shortened(column, self.max_tokens, self.tokenizer.truncation_side) for column in columns)
            for encoding in self._rules.encode_batch(list(zip(*cut, strict=True))):
                ids.append(np.array(encoding.ids, np.int32))
                types.append(np.array(encoding.type_ids, np.int32))
                lengths.append(len(encoding.ids))
        return PairTokens(np.concatenate(ids), np.array([lengths], np.int64), np.concatenate(types))


def start_cross_encoder(
    base: str | Path, max_tokens: int | None = None, seed: int = 0, cache: Cache | None = None
) -> CrossEncoder:
    """Makes a cross-encoder before its first step: the BERT of `base`, or of a sentence encoder, and a new head."""
    network, tokenizer = HEAD.start(base, {"num_labels": 1}, seed=seed, cache=cache)
    return CrossEncoder(network, tokenizer, max_tokens)
