"""A sentence encoder as it is served: texts to vectors through its engine, and the vectors of earlier texts."""

import asyncio
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bertrelay.data.tokens import pad_rows
from bertrelay.data.vectors import Vectors
from bertrelay.device import resolve_precision, to_device
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import unit
from bertrelay.inference.batches import best_batch_tokens, computed_precision, fill_batch, inference_mode, pack_for
from bertrelay.inference.encode import TokenBlock, check_finite, compute_block
from bertrelay.inference.kernels import use_packed
from bertrelay.model.encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, SentenceEncoder, encoder_digest
from bertrelay.model.layout import QUERY
from bertrelay.model.tokenizer import CHARACTERS_A_TOKEN, plain_rules
from bertrelay.privacy import is_sensitive
from pipelines.serve.engine import Engine, fixed_shape, like_lengths, one_shape
from pipelines.serve.requests import Refusal, Usage, list_of
from pipelines.serve.settings import ServeSettings

CHARACTERS_AT_ONCE = 4_000
"""Characters that are tokenized in the thread that answers requests; more would keep others waiting."""
ALL_TOKENS = -1
"""Group of the engine's inputs without pooling; those with pooling are grouped by their prompt's tokens."""
MOST_NUMBERS = 1 << 22
"""Most numbers in the answer with the vectors of all tokens, which takes some 20 bytes of memory for each."""
INPUT_TYPES = {"search_query": QUERY_PROMPTS, "search_document": DOCUMENT_PROMPTS}
INPUT_TYPES |= dict.fromkeys(QUERY_PROMPTS, QUERY_PROMPTS) | dict.fromkeys(DOCUMENT_PROMPTS, DOCUMENT_PROMPTS)
NO_INPUT_TYPES = ("classification", "clustering")

Result = TypeVar("Result")


class Encoded(NamedTuple):
    """An input of the engine: the ids of a text, and how many of the first belong to a prompt.

    prompt_tokens: None for the vectors of all tokens, without pooling.
    """

    ids: list[int]
    prompt_tokens: int | None


async def in_thread(characters: int, work: Callable[[], Result]) -> Result:
    """The result of `work` on so many characters, in another thread where it takes long."""
    return work() if characters <= CHARACTERS_AT_ONCE else await asyncio.to_thread(work)


def _digest(before: str, text: str) -> bytes:
    """The key of a text after a prompt; lone surrogates are texts too."""
    return hashlib.sha256(f"{len(before)} {before}{text}".encode("utf-8", "surrogatepass")).digest()


class VectorCache:
    """The vectors of texts computed last, as many as fit into `limit` bytes, by digests: it holds no text."""

    def __init__(self, limit: int) -> None:
        self.limit, self.size, self.hits = limit, 0, 0
        self._vectors: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> NDArray[np.float32] | None:
        with self._lock:
            vector = self._vectors.get(key)
            if vector is not None:
                self._vectors.move_to_end(key)
                self.hits += 1
            return vector

    def put(self, key: bytes, vector: NDArray[np.float32]) -> None:
        overhead = 256  # bytes of key, entry and array
        if vector.nbytes + overhead > self.limit:
            return
        with self._lock:
            if key not in self._vectors:
                self.size += vector.nbytes + overhead
            self._vectors[key] = vector
            while self.size > self.limit:
                _, oldest = self._vectors.popitem(last=False)
                self.size -= oldest.nbytes + overhead


class ServedEncoder:
    """An encoder of a server, which many requests share."""

    kind = "encoder"

    def __init__(self, name: str, encoder: SentenceEncoder, settings: ServeSettings) -> None:
        self.name, self.encoder, self.settings = name, encoder, settings
        self.precision = resolve_precision(settings.precision, encoder.device)
        self.cache = VectorCache(0 if is_sensitive() else settings.cache_mb << 20)
        self.digest = encoder_digest(encoder)
        self._rules = plain_rules(encoder.tokenizer)
        budget = best_batch_tokens(encoder.device, settings.batch_tokens)
        # As for a long input: packed weights serve every batch, so that a text has the same vector in any of them.
        self._packed = pack_for(budget + 1, encoder.backbone, self.precision, budget)
        choose = one_shape if settings.invariant else like_lengths
        self.engine = Engine(self._compute, budget, encoder.max_tokens, settings.queue_tokens, choose)
        self.example = Encoded(encoder.tokenize(["an example"])[0], 0)
        queries = encoder.query_encoder
        self.queries = None if queries is None else ServedEncoder(f"{name}:{QUERY}", queries, settings)

    @property
    def dimensions(self) -> list[int]:
        """Sizes of vectors that a request may name: those that the model and the settings record, and the whole."""
        trained = {*self.settings.dimensions, *self.encoder.matryoshka_dimensions}
        return sorted({size for size in trained if size <= self.encoder.dim} | {self.encoder.dim})

    @property
    def bytes(self) -> int:
        """Memory of the weights; 0 for a graph, which keeps them to itself."""
        return sum(weights.nbytes for weights in self.encoder.parameters())

    @property
    def description(self) -> dict[str, Any]:
        """Facts about the encoder, for lists and the page; of a pair about that of documents, and that of queries."""
        encoder = self.encoder
        facts = {
            "dim": encoder.dim,
            "max_tokens": encoder.max_tokens,
            "prompts": dict(encoder.prompts.texts),
            "default_prompt": encoder.prompts.default,
            "similarity": encoder.similarity_fn_name,
            "pooling": list(encoder.pooling.modes),
            "normalized": encoder.normalize,
            "dimensions": self.dimensions,
            "precision": computed_precision(encoder.backbone, self.precision),
            "digest": self.digest,
        }
        return facts if self.queries is None else {**facts, "queries": self.queries.description}

    def _compute(self, inputs: Sequence[Encoded]) -> list[NDArray[np.float32]]:
        """The vectors of inputs with the same number of prompt tokens, (dim,) each; without pooling (tokens, dim)."""
        block = TokenBlock.of_rows([encoded.ids for encoded in inputs])
        prompt_tokens, encoder = inputs[0].prompt_tokens, self.encoder
        with inference_mode(encoder, self.precision), use_packed(self._packed):
            if prompt_tokens is None:
                return self._compute_tokens(block)
            if self.settings.invariant:
                vectors = encoder(*self._padded(block), prompt_tokens)[: len(inputs)].cpu().numpy()
            else:
                vectors = compute_block(encoder, block, self.engine.batch_tokens, prompt_tokens=prompt_tokens)
        check_finite(encoder, vectors, lambda row: f"text {row + 1:,} of a batch")
        return list(vectors)

    def _compute_tokens(self, block: TokenBlock) -> list[NDArray[np.float32]]:
        """The vectors of the tokens of each text, (tokens, token dim)."""
        ids, mask = self._padded(block)
        output = self.encoder.backbone(input_ids=ids, attention_mask=mask).last_hidden_state.float().cpu().numpy()
        vectors = [rows[:length] for rows, length in zip(output, block.lengths, strict=False)]
        check_finite(self.encoder, np.concatenate(vectors), lambda row: f"token {row + 1:,} of a batch")
        return vectors

    def _padded(self, block: TokenBlock) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and mask of a batch: in the fixed shape of its texts if that is set, else as wide as the longest."""
        width, height = int(block.lengths.max()), len(block.lengths)
        if self.settings.invariant:
            width, height = fixed_shape(width, self.engine.batch_tokens, self.engine.max_tokens)
        rows = fill_batch(np.arange(len(block.lengths)), height)
        arrays = pad_rows(block.ids, block.starts[rows], block.lengths[rows], width, self.encoder.pad_id)
        ids, mask = (torch.from_numpy(array.astype(np.int64)) for array in arrays)
        return to_device(ids, self.encoder.device), to_device(mask, self.encoder.device)

    def route(self, prompt_name: str | None = None, input_type: str | None = None) -> "tuple[ServedEncoder, str]":
        """The encoder of a request, of a pair one of two, and the text before each of its texts.

        Raises Refusal for an unknown name or type.
        """
        if prompt_name is None and input_type is not None and input_type not in NO_INPUT_TYPES:
            if input_type not in INPUT_TYPES:
                known_types = ", ".join([*INPUT_TYPES, *NO_INPUT_TYPES])
                raise Refusal(f"input_type: expected one of {known_types}; found another", param="input_type")
            texts = self.encoder.prompts.texts
            prompt_name = next(filter(texts.__contains__, INPUT_TYPES[input_type]), None)
        encoder = self.queries if self.queries and prompt_name in QUERY_PROMPTS else self
        try:
            return encoder, encoder.encoder.text_before(prompt_name)
        except RequestError:
            names = ", ".join(self.encoder.prompts.texts) or "none"
            raise Refusal(
                f"prompt_name: expected a prompt of the model ({names}), found another", param="prompt_name"
            ) from None

    async def embed(
        self,
        texts: str | Sequence[str],
        usage: Usage,
        *,
        prompt: str | None = None,
        truncate: bool | None = None,
        dimensions: int | None = None,
        normalize: bool = False,
        param: str = "input",
    ) -> Vectors:
        """The vectors of texts, float32 (texts, dim); equal texts are computed once.

        prompt: the text before each; the model's default when absent.
        truncate: cut texts beyond the longest input; else they are refused. As the settings have it when absent.
        dimensions: keep only the first ones, and scale to length 1.
        param: the field of the texts, for errors.
        Raises Refusal for more texts than the settings allow, an empty or too long one, and unknown dimensions.
        """
        self.check_dimensions(dimensions)
        listed, before = self._listed(texts, param), self.encoder.text_before() if prompt is None else prompt
        keys = [_digest(before, text) for text in listed]
        rows = {key: self.cache.get(key) for key in dict.fromkeys(keys)}
        new = [key for key, vector in rows.items() if vector is None]
        ids = await self._ids(listed, before, truncate, usage, param)
        if new:
            ids_of = dict(zip(keys, ids, strict=True))
            prompt_tokens = self.encoder.prompt_tokens(before)
            inputs = [Encoded(ids_of[key], prompt_tokens) for key in new]
            tokens = [len(encoded.ids) for encoded in inputs]
            for key, vector in zip(new, await usage.compute(self.engine, inputs, tokens, prompt_tokens), strict=True):
                rows[key] = vector
                self.cache.put(key, np.array(vector))  # a copy, which does not hold the whole batch
        vectors: Vectors = np.array([rows[key] for key in keys], np.float32)
        if dimensions is not None and dimensions != self.encoder.dim:
            return unit(vectors[:, :dimensions])
        return unit(vectors) if normalize else vectors

    async def token_vectors(
        self,
        texts: str | Sequence[str],
        usage: Usage,
        *,
        prompt: str | None = None,
        truncate: bool | None = None,
        param: str = "inputs",
    ) -> list[Vectors]:
        """The vectors of the tokens of each text, before the pooling, float32 (tokens, token dim); as `embed`.

        Raises Refusal for an answer of more than MOST_NUMBERS numbers, too.
        """
        listed, before = self._listed(texts, param), self.encoder.text_before() if prompt is None else prompt
        ids = await self._ids(listed, before, truncate, usage, param)
        tokens = [len(row) for row in ids]
        numbers = sum(tokens) * self.encoder.backbone.config.hidden_size
        if numbers > MOST_NUMBERS:
            raise Refusal(
                f"{param}: expected at most {MOST_NUMBERS:,} numbers in an answer, found {numbers:,}; send several "
                "requests",
                "over_limit",
                param=param,
            )
        return await usage.compute(self.engine, [Encoded(row, None) for row in ids], tokens, ALL_TOKENS)

    def _listed(self, texts: str | Sequence[str], param: str) -> list[str]:
        """The texts of a request. Raises Refusal for more than the settings allow, and for an empty one."""
        listed = list_of(texts, self.settings.max_texts, param)
        if any(not text for text in listed):
            raise Refusal(f"{param}: expected texts, found an empty one", "empty", param=param)
        return listed

    async def _ids(
        self, texts: Sequence[str], before: str, truncate: bool | None, usage: Usage, param: str
    ) -> list[list[int]]:
        """The ids of texts after a prompt, which `usage` counts. Raises Refusal for a text that is too long."""
        is_cut = self.settings.truncate if truncate is None else truncate
        ids = await in_thread(sum(map(len, texts)), lambda: self._tokenize(texts, before, is_cut, usage, param))
        usage.tokens += sum(map(len, ids))
        return ids

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raises Refusal for dimensions that the encoder was not trained to be cut to."""
        if dimensions is not None and dimensions not in self.dimensions:
            raise Refusal(
                f"dimensions: expected {', '.join(map(str, self.dimensions))}, found {dimensions}: the model's folder "
                "records no training for it, and --dimensions does not name it",
                param="dimensions",
            )

    def texts_of_ids(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The texts of token ids in place of texts. Raises Refusal as `decode`, and unless the settings accept any."""
        if not self.settings.accept_token_ids:
            raise Refusal(
                "input: expected texts, found token ids, which are of another vocabulary than the model's. LangChain "
                "sends texts with check_embedding_ctx_length=False; --accept-token-ids takes ids of the model's own "
                "vocabulary",
                param="input",
            )
        return self.decode(rows, "input")

    def decode(self, rows: Sequence[Sequence[int]], param: str, skip_special_tokens: bool = True) -> list[str]:
        """The texts of rows of token ids. Raises Refusal for unknown ids."""
        tokenizer = self.encoder.tokenizer
        if any(not 0 <= token < len(tokenizer) for row in rows for token in row):
            raise Refusal(f"{param}: expected ids below {len(tokenizer):,}, found another", param=param)
        return [str(tokenizer.decode(list(row), skip_special_tokens=skip_special_tokens)) for row in rows]

    def _tokenize(self, texts: Sequence[str], before: str, truncate: bool, usage: Usage, param: str) -> list[list[int]]:
        """The ids of texts; `usage` counts those that were cut. Raises Refusal unless `truncate`."""
        prompted = [before + text for text in texts]
        ids = self.encoder.tokenize(prompted)
        longest = self.encoder.max_tokens
        for position, (text, row) in enumerate(zip(prompted, ids, strict=True)):
            if len(row) < longest or not self.is_too_long(text):
                continue
            if not truncate:
                raise Refusal(
                    f"{param}: expected at most {longest:,} tokens, the model's longest input, found more in text "
                    f"{position}; cut it, or set truncate to true",
                    "over_limit",
                    param=param,
                    code="context_length_exceeded",
                )
            usage.cut += 1
        return ids

    def is_too_long(self, text: str) -> bool:
        """True for a text of more tokens than the longest input."""
        longest = self.encoder.max_tokens
        return len(text) > longest * CHARACTERS_A_TOKEN or len(self._rules.encode(text).ids) > longest

    def tokens(self, text: str, add_special_tokens: bool = True) -> list[dict[str, Any]]:
        """The tokens of a text, with their characters; special tokens have none."""
        encoding = self._rules.encode(text, add_special_tokens=add_special_tokens)
        special = encoding.special_tokens_mask
        return [
            {"id": token, "text": text[start:end] if not is_special else name, "special": bool(is_special)}
            | {"start": None if is_special else start, "stop": None if is_special else end}
            for token, name, (start, end), is_special in zip(
                encoding.ids, encoding.tokens, encoding.offsets, special, strict=True
            )
        ]
