"""The sentence encoder: a network, a pooling, optional projections and an optional normalisation.

Methods, keywords and the folder on disk are those of sentence-transformers.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.cache import Cache
from bertrelay.checks import check_choice, check_count
from bertrelay.device import as_device
from bertrelay.errors import RequestError, describe
from bertrelay.evaluation.similarity import matrix, pairwise
from bertrelay.files import explain_write_errors, write_tensors
from bertrelay.fingerprint import fingerprint, note_folder
from bertrelay.inference.encode import encode
from bertrelay.inference.kernels import use_cpu_kernels
from bertrelay.model.files import GRAPHS, Backend
from bertrelay.model.folder import ModelFolder
from bertrelay.model.graph import UNLIMITED, BackendChoice, GraphNetwork, check_backend, fastest, load_graph
from bertrelay.model.layout import DOCUMENT, QUERY, Layout, Prompts, in_folder_order, write_layout
from bertrelay.model.network import freeze_pooler, load_text_network, longest_input, position_limit, save_network
from bertrelay.model.pooling import Pooling, Projection, load_projection, projection_of, projections_of
from bertrelay.model.static import StaticNetwork, load_static, save_static
from bertrelay.model.tokenizer import load_tokenizer, pad_id_of, shortened, truncating
from bertrelay.progress import log
from bertrelay.settings import Metric

UNUSED_CONFIG = {"transformers_version", "_name_or_path", "dtype", "architectures"}
"""Keys of a network's config that its vectors do not depend on."""
DEFAULT_MAX_TOKENS = 512  # of a model that knows no limit
TOKENIZED_CHARACTERS = 1 << 20  # tokenized at once: thousands of usual sentences
WORDS = ["dog", "river", "letter", "blue", "seven", "doctor", "music", "city", "run", "bread", "winter", "paper", "law"]
TIMED = [f"{n} {' '.join(WORDS[n * step % 13] for step in range(1, 3 * (n % 8 + 1)))}" for n in range(1, 129)]
"""Sentences of different words and lengths, on which backends are timed."""
QUERY_PROMPTS, DOCUMENT_PROMPTS = (QUERY,), (DOCUMENT, "passage", "corpus")  # the first that a model has

PAIR_FOUND = "expected one encoder, found a pair of two, for queries and for documents"
TAKE_ONE = (
    "Name one of the two models of which it was made; in Python SentenceEncoder.load(PAIR).query_encoder.save(FOLDER) "
    "takes out the one for queries"
)


class EncoderParts(TypedDict, total=False):
    """The arguments that make a `SentenceEncoder`, but for its device."""

    backbone: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    pooling: Pooling | Sequence[str]
    projection: Projection | nn.Sequential | None
    normalize: bool
    max_tokens: int | None
    prompts: Prompts | Mapping[str, str] | None
    similarity_fn_name: str | Enum | None
    truncate_dim: int | None
    spaces: Sequence[str]
    matryoshka_dimensions: Sequence[int]
    query_encoder: "SentenceEncoder | None"


class EncodeArguments(TypedDict, total=False):
    """The keyword arguments of `SentenceEncoder.encode`."""

    prompt_name: str | None
    prompt: str | None
    batch_size: int | None
    show_progress_bar: bool | None
    precision: str | None
    convert_to_numpy: bool
    convert_to_tensor: bool
    device: str | torch.device | None
    normalize_embeddings: bool
    truncate_dim: int | None
    batch_tokens: int | None


class SentenceEncoder(nn.Module):
    """Encodes sentences as vectors.

    backbone: the network, with its `tokenizer`; or, as in `load`, a folder or hub id of a whole encoder, with no other
        argument than `device`.
    pooling: names, which are sorted in the order of folders, or a `Pooling` with an order.
    projection: one, or several as `nn.Sequential`.
    max_tokens: the longest input, special tokens included, and at most what the position table holds.
    truncate_dim: number of first dimensions that a vector keeps.
    spaces: digests of other encoders whose indexes this one can search: for a student its teacher and the teacher's
        spaces; for a trimmed encoder the whole one.
    matryoshka_dimensions: numbers of first dimensions that training compared beside whole vectors.
    query_encoder: encodes what follows the prompt `query`, in the same vector space: this encoder then is that of
        documents, and both are a pair, a `Router` of sentence-transformers.
    """

    _prompts = Prompts()
    _similarity: Metric
    _truncate_dim: int | None = None
    _counted_prompt: tuple[str, int, int] = ("", 0, 0)
    _warned_cuts: frozenset[int] = frozenset()

    def __init__(
        self,
        backbone: PreTrainedModel | str | Path,
        tokenizer: PreTrainedTokenizerFast | None = None,
        *,
        device: str | torch.device | None = None,
        pooling: Pooling | Sequence[str] = ("mean",),
        projection: Projection | nn.Sequential | None = None,
        normalize: bool = False,
        max_tokens: int | None = None,
        prompts: Prompts | Mapping[str, str] | None = None,
        similarity_fn_name: str | Enum | None = None,
        truncate_dim: int | None = None,
        spaces: Sequence[str] = (),
        matryoshka_dimensions: Sequence[int] = (),
        query_encoder: "SentenceEncoder | None" = None,
    ) -> None:
        super().__init__()
        if isinstance(backbone, str | os.PathLike):
            parts: dict[str, object] = {"tokenizer": tokenizer, "projection": projection, "normalize": normalize}
            parts |= {"pooling": pooling != ("mean",), "max_tokens": max_tokens, "prompts": prompts}
            parts |= {"similarity_fn_name": similarity_fn_name, "truncate_dim": truncate_dim, "spaces": spaces}
            parts |= {"matryoshka_dimensions": matryoshka_dimensions, "query_encoder": query_encoder}
            if extra := [name for name, part in parts.items() if part]:
                raise RequestError(f"{', '.join(extra)}: the model in {backbone} has its own; set them after loading")
            device, read = as_device(device), read_parts(ModelFolder.find(backbone))
            SentenceEncoder.__init__(self, device=device, **cast(Any, read))  # once more, with the parts of the folder
            return
        if tokenizer is None:
            raise RequestError("model: expected a tokenizer with the network, found none")
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.pooling = pooling if isinstance(pooling, Pooling) else Pooling(in_folder_order(pooling))
        self.projection = projection
        self.normalize = normalize
        self.prompts = prompts
        self._prompts_were_set = False  # sentence-transformers adds empty ones to those of a folder
        self.truncate_dim = truncate_dim
        self.similarity_fn_name = similarity_fn_name
        self.spaces = tuple(spaces)
        self.matryoshka_dimensions = tuple(matryoshka_dimensions)
        self.query_encoder = query_encoder
        self.pad_id = pad_id_of(backbone, tokenizer)
        self.max_tokens = max_tokens or min(tokenizer.model_max_length, longest_input(backbone) or UNLIMITED)
        freeze_pooler(backbone)
        if isinstance(backbone, PreTrainedModel):
            use_cpu_kernels(backbone)
        # The mode of its network: a loaded one has no dropout, before, during and after encoding.
        self.train(backbone.training)
        self._check_sizes()
        if device is not None and not isinstance(backbone, GraphNetwork):  # a graph is computed on the CPU
            self.to(as_device(device))

    def _check_sizes(self) -> None:
        words, rows = len(self.tokenizer), self.backbone.config.vocab_size
        if words > rows:
            raise RequestError(
                f"model: the tokenizer has {words:,} tokens and the network vectors for {rows:,} of them only"
            )
        dim, module = self.pooled_dim, f"the pooling ({', '.join(self.pooling.modes)})"
        for projection in projections_of(self.projection):
            linear = projection.linear
            if linear.in_features != dim:
                raise RequestError(
                    f"model: the projection expects {linear.in_features} dimensions and {module} gives {dim}"
                )
            dim, module = linear.out_features, "the projection before it"
        queries = self.query_encoder
        if queries is not None and queries.dim != self.dim:
            raise RequestError(
                f"model: expected queries and documents of one vector space, found vectors of {queries.dim} dimensions "
                f"for queries and of {self.dim} for documents"
            )

    @classmethod
    def load(
        cls,
        source: str | Path | ModelFolder,
        device: str | torch.device | None = None,
        *,
        backend: BackendChoice = None,
        revision: str | None = None,
        cache: Cache | None = None,
        is_base: bool = False,
    ) -> "SentenceEncoder":
        """Opens a sentence-transformers folder, a plain transformers folder (mean pooling), or a hub id.

        device: by default this process's accelerator, or the CPU of a machine without one.
        backend: `torch`, or the folder's graph by ONNX Runtime (`onnx`) or `openvino`, on the CPU. By default torch
            where the folder has weights, else its graph. `auto` is the fastest in the folder, whatever its precision;
            it is measured and logged. Only local folders have graphs.
        is_base: accept the network of another kind of model, as the base of a training.
        Raises RequestError for a model that is missing, incomplete, or of another or an unknown kind.
        """
        torch_device = as_device(device)
        check_backend(backend, device)
        folder = ModelFolder.find(source, revision, cache)
        usable = folder.transformer.backends
        if backend != "auto" or len(usable) == 1:
            chosen = usable[0] if backend in (None, "auto") else cast(Backend, backend)
            return cls(device=torch_device, **cast(Any, read_parts(folder, chosen, is_base=is_base)))
        read = {name: read_parts(folder, name, is_base=is_base) for name in usable}
        encoders = {name: cls(device=torch_device, **cast(Any, parts)) for name, parts in read.items()}
        return encoders[
            fastest({name: partial(encoder.encode, TIMED) for name, encoder in encoders.items()}, folder.path)
        ]

    @classmethod
    def pair(cls, *, queries: "SentenceEncoder", documents: "SentenceEncoder") -> "SentenceEncoder":
        """An encoder for the search of the vectors of `documents` by those of a faster encoder of queries.

        It searches the indexes of `documents`, too. `encode_query` gives the vectors of `queries`, every other method
        those of `documents`; both are shared.
        Raises RequestError where their vectors differ in size.
        """
        for_queries, for_documents = queries._prompt_for(QUERY_PROMPTS), documents._prompt_for(DOCUMENT_PROMPTS)
        texts, default = {**documents.prompts.texts}, documents.prompts.default
        if default == QUERY:
            texts["default"], default = texts[QUERY], "default"
        texts |= {QUERY: for_queries, DOCUMENT: for_documents}
        return documents.with_parts(
            prompts=Prompts(texts, default),
            spaces=[encoder_digest(documents), *documents.spaces],
            matryoshka_dimensions=sorted({*queries.matryoshka_dimensions} & {*documents.matryoshka_dimensions}),
            query_encoder=queries.with_parts(prompts=Prompts({QUERY: for_queries}, QUERY)),
        )

    def save(self, folder: str | Path) -> None:
        """Writes a sentence-transformers folder, which versions 3 to 6 load; a pair is for 5 and 6."""
        folder, layout = Path(folder), self.layout
        with explain_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_layout(folder, layout)
            self._save_weights(folder, layout.modules)
            if self.query_encoder is not None and layout.query is not None:
                self.query_encoder._save_weights(folder, layout.query.modules)

    def _save_weights(self, folder: Path, modules: Sequence[tuple[str, str]]) -> None:
        """Writes weights and tokenizer into the folders of these modules, which exist."""
        if self.is_static:
            save_static(cast(StaticNetwork, self.backbone), self.tokenizer, folder / modules[0][1])
        else:
            save_network(self.backbone, self.tokenizer, folder / modules[0][1], self.max_tokens)
        folders = [folder / path for kind, path in modules if kind == "Dense"]
        for projection, path in zip(projections_of(self.projection), folders, strict=True):
            write_tensors(path / "model.safetensors", projection.state_dict(), {"format": "pt"})

    save_pretrained = save  # its name in sentence-transformers

    def with_parts(self, **parts: Unpack[EncoderParts]) -> "SentenceEncoder":
        """A new encoder of `parts` and, for the rest, of this one's, which both then share.

        `spaces`, `matryoshka_dimensions` and the encoder of queries are not copied.
        """
        names = ("backbone", "tokenizer", "pooling", "projection", "normalize", "max_tokens", "prompts")
        shared = {name: getattr(self, name) for name in (*names, "similarity_fn_name", "truncate_dim")}
        return SentenceEncoder(**(shared | cast(dict[str, Any], parts)))

    @property
    def layout(self) -> Layout:
        """The statements of a folder about this encoder, apart from weights, network and tokenizer."""
        return Layout(
            pooling=self.pooling.modes,
            include_prompt=self.pooling.include_prompt,
            token_dim=self.backbone.config.hidden_size,
            dense=tuple(projection.dense for projection in projections_of(self.projection)),
            normalize=self.normalize,
            max_tokens=None if self.is_static else self.max_tokens,
            prompts=self.prompts,
            static=self.is_static,
            similarity=self.similarity_fn_name,
            truncate_dim=self.truncate_dim,
            spaces=self.spaces,
            matryoshka_dimensions=self.matryoshka_dimensions,
            **self._routes,
        )

    @property
    def _routes(self) -> dict[str, Any]:
        """The statements of a pair's layout about its routes; nothing of a single encoder's."""
        queries = self.query_encoder
        return {} if queries is None else {"route": DOCUMENT, "query": replace(queries.layout, route=QUERY)}

    @property
    def is_static(self) -> bool:
        """True where the vector of a text is the mean of those of its tokens in a table."""
        return isinstance(self.backbone, StaticNetwork)

    @property
    def pooled_dim(self) -> int:
        """The number of dimensions between pooling and projections."""
        return int(self.backbone.config.hidden_size) * len(self.pooling.modes)

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        return min(self._whole_dim, self.truncate_dim or self._whole_dim)

    @property
    def _whole_dim(self) -> int:
        projections = projections_of(self.projection)
        return projections[-1].linear.out_features if projections else self.pooled_dim

    def get_embedding_dimension(self) -> int:
        return self.dim

    get_sentence_embedding_dimension = get_embedding_dimension  # its name in sentence-transformers up to 5

    @property
    def prompts(self) -> Prompts:
        """The texts before sentences. A dict of texts by name sets them too, and keeps the default name."""
        return self._prompts

    @prompts.setter
    def prompts(self, prompts: Prompts | Mapping[str, str] | None) -> None:
        checked = Prompts()  # a copy, which may be written to
        checked.update({} if prompts is None else prompts)
        default = prompts.default if isinstance(prompts, Prompts) else self._prompts.default
        default = default if isinstance(prompts, Prompts) or default in checked else None
        self._prompts = Prompts(checked.texts, default)
        self._prompts_were_set = not isinstance(prompts, Prompts)

    @property
    def default_prompt_name(self) -> str | None:
        return self.prompts.default

    @default_prompt_name.setter
    def default_prompt_name(self, name: str | None) -> None:
        if name is not None:
            self.prompts.text(name)  # raises for an unknown name
        self._prompts = Prompts(self.prompts.texts, name)

    @property
    def similarity_fn_name(self) -> Metric:
        """The similarity of vectors; set by a name, a `SimilarityFunction`, or None for cosine."""
        return self._similarity

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: str | Enum | None) -> None:
        name = "cosine" if name is None else name.value if isinstance(name, Enum) else name
        check_choice("similarity_fn_name", name, get_args(Metric))
        self._similarity = cast(Metric, name)

    @property
    def truncate_dim(self) -> int | None:
        """The number of first dimensions that a vector keeps; all when None."""
        return self._truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, dimensions: int | None) -> None:
        check_count("truncate_dim", dimensions)
        self._truncate_dim = dimensions

    @property
    def max_tokens(self) -> int:
        """The longest input in tokens; it can be set up to the size of the position table."""
        return self._max_tokens

    @max_tokens.setter
    def max_tokens(self, tokens: int | None) -> None:
        check_count("max_tokens (max_seq_length)", tokens)
        tokens = UNLIMITED if tokens is None else tokens
        limit = position_limit(self.backbone)
        if limit is None and tokens >= UNLIMITED:  # from a tokenizer without a limit
            limit = DEFAULT_MAX_TOKENS
        tokens = tokens if limit is None else min(tokens, limit)
        self._truncating_tokenizer = truncating(
            self.tokenizer, tokens
        )  # raises for too few, before anything is changed
        self._max_tokens = tokens

    max_seq_length = max_tokens

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next((weights.device for weights in self.parameters()), torch.device("cpu"))  # a graph may have none

    def forward(self, input_ids: Tensor, attention_mask: Tensor, prompt_tokens: int | None = None) -> Tensor:
        """(batch, tokens) ids and mask -> float32 (batch, dim). Only the network computes in bf16 under autocast.

        prompt_tokens: number of first tokens that belong to a prompt; those of the default prompt when None.
        """
        if prompt_tokens is None:
            prompt_tokens = self.prompt_tokens(self.prompts.text())
        tokens = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        with torch.autocast(input_ids.device.type, enabled=False):
            return self.sentence_vectors(tokens, attention_mask, prompt_tokens)

    def sentence_vectors(self, token_vectors: Tensor, attention_mask: Tensor, prompt_tokens: int = 0) -> Tensor:
        """Pools and projects: (batch, tokens, token dim) and (batch, tokens) -> float32 (batch, dim)."""
        vectors: Tensor = self.pooling(token_vectors, attention_mask, prompt_tokens)  # (batch, pooled_dim)
        if self.projection is not None:
            vectors = self.projection(vectors).float()  # (batch, dim)
        vectors = nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors
        return vectors if self.truncate_dim is None else vectors[:, : self.truncate_dim]

    def tokenize(self, sentences: Sequence[str]) -> list[list[int]]:
        """The ids of each sentence, with special tokens, cut to `max_tokens`; never an empty list."""
        ids: list[list[int]] = []
        for some in _slices(shortened(sentences, self.max_tokens, self.tokenizer.truncation_side)):
            ids += [encoding.ids or [self.pad_id] for encoding in self._truncating_tokenizer.encode_batch_fast(some)]
        return ids

    def prompt_tokens(self, prompt: str) -> int:
        """The number of first tokens, special ones included, that the pooling skips after `prompt`."""
        if not prompt or self.pooling.include_prompt:
            return 0
        if self._counted_prompt[:2] != (prompt, self.max_tokens):  # once, and not for every batch of a training
            ids = self.tokenize([prompt])[0]
            special = ids[-1] in self.tokenizer.all_special_ids
            self._counted_prompt = prompt, self.max_tokens, len(ids) - special
        return self._counted_prompt[2]

    def encode(
        self,
        sentences: str | Iterable[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        precision: str | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        batch_tokens: int | None = None,
    ) -> Any:
        """Vectors of `sentences`, float32 (n, dim), row i for sentence i; of one string its vector, (dim,).

        For `sentences`, prompts, precision and batches see `bertrelay.inference.encode.encode`.
        convert_to_numpy, convert_to_tensor: an array, or a tensor on the encoder's device; with neither a list of
            tensors, and for one string a tensor.
        device: a device other than the encoder's, on which a copy made for this call computes.
        normalize_embeddings: scale vectors to length 1.
        truncate_dim: keep only the first dimensions, before the scaling. Warns of a number that is not among
            `matryoshka_dimensions`.
        Of a pair the encoder of queries encodes after the prompt named `query`.
        Raises RequestError for anything but sentences, such as a mapping or a data frame.
        """
        check_count("truncate_dim", truncate_dim)
        encoder = self.for_prompt(prompt_name)
        encoder._warn_of_cut(truncate_dim or encoder.truncate_dim)
        vectors = encode(
            encoder if device is None else encoder._on(as_device(device)),
            sentences,
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            precision=precision,
            progress=bool(show_progress_bar),
        )
        if truncate_dim is not None:
            vectors = np.ascontiguousarray(vectors[..., :truncate_dim])
        if normalize_embeddings:
            vectors = nn.functional.normalize(torch.from_numpy(vectors), dim=-1).numpy()
        if convert_to_tensor:
            return torch.as_tensor(vectors, device=self.device)
        if convert_to_numpy:
            return vectors
        return torch.from_numpy(vectors) if isinstance(sentences, str) else list(torch.from_numpy(vectors))

    def _warn_of_cut(self, dimensions: int | None) -> None:
        """Warns once of vectors that are cut to a number of dimensions without a record of training for it."""
        trained = {*self.matryoshka_dimensions, *self._warned_cuts}
        if dimensions is None or dimensions >= self._whole_dim or dimensions in trained:
            return
        self._warned_cuts |= {dimensions}
        sizes = ", ".join(map(str, self.matryoshka_dimensions)) or "none"
        log(
            f"warning: vectors are cut to {dimensions} of {self._whole_dim} dimensions. The model records no training "
            f"for that (matryoshka_dimensions: {sizes}), so they may be much worse than whole vectors"
        )

    def _on(self, device: torch.device) -> "SentenceEncoder":
        """Gives this encoder if it is on `device`, else a copy there. Raises RequestError for a graph elsewhere."""
        if isinstance(self.backbone, GraphNetwork) and device.type != "cpu":
            raise RequestError("device: a graph computes on the CPU only; load the model with its weights")
        return self if device == self.device else deepcopy(self).eval().to(device)

    def encode_query(self, sentences: str | Iterable[str], **options: Unpack[EncodeArguments]) -> Any:
        """Encodes with the model's prompt for queries, or without one; `prompt` and `prompt_name` override it.

        A pair encodes with its encoder of queries.

        When `prompts` was set to a mapping without one, the default prompt is used, as in sentence-transformers 6.
        """
        return (self.query_encoder or self).encode(sentences, **self._with_prompt(QUERY_PROMPTS, options))

    def encode_document(self, sentences: str | Iterable[str], **options: Unpack[EncodeArguments]) -> Any:
        """Encodes with the model's prompt for documents; see `encode_query`."""
        return self.encode(sentences, **self._with_prompt(DOCUMENT_PROMPTS, options))

    @property
    def retrieval_prompts(self) -> tuple[str | None, str | None]:
        """The names of the prompts for queries and for documents of a model that has both and no default.

        A prompt without text has the name None; without both prompts, or with a default, both names are None. That of
        queries always has a name in a pair, as it chooses the encoder.
        """
        texts = self.prompts.texts
        names = [next(filter(texts.__contains__, roles), None) for roles in (QUERY_PROMPTS, DOCUMENT_PROMPTS)]
        if None in names or self.prompts.default is not None:
            names = [None, None]
        query, document = (name if name and texts[name] else None for name in names)
        return query if self.query_encoder is None else QUERY, document

    def for_prompt(self, prompt_name: str | None) -> "SentenceEncoder":
        """The encoder of texts after the prompt of this name: of a pair that of queries for theirs, else this one."""
        return self.query_encoder if self.query_encoder is not None and prompt_name in QUERY_PROMPTS else self

    def with_default_prompt(self, text: str | None) -> "SentenceEncoder":
        """An encoder with the default prompt `text` that shares all else; this one when `text` is None."""
        if text is None:
            return self
        name = next((name for name, prompt in self.prompts.texts.items() if prompt == text), text)
        prompted = copy(self)
        prompted.prompts = Prompts({**self.prompts.texts, name: text}, name)
        return prompted

    def text_before(self, prompt_name: str | None = None, prompt: str | None = None) -> str:
        """The text before each sentence: `prompt`, or the model's prompt of this name, or its default.

        Raises RequestError for an unknown name.
        """
        if prompt is not None and not isinstance(prompt, str):
            raise RequestError(f"prompt: expected text, found {describe(prompt)}")
        return self.prompts.text(prompt_name) if prompt is None else prompt

    def _with_prompt(self, names: Sequence[str], options: EncodeArguments) -> EncodeArguments:
        if options.get("prompt_name") is not None or options.get("prompt") is not None:
            return options
        return {**options, "prompt": self._prompt_for(names)}

    def _prompt_for(self, names: Sequence[str]) -> str:
        """The text of the first of these prompts that the model has; without one none, or the default of set ones."""
        text = next((self.prompts.texts[name] for name in names if name in self.prompts.texts), None)
        return self.prompts.text() if text is None and self._prompts_were_set else text or ""

    def similarity(self, embeddings1: ArrayLike | Tensor, embeddings2: ArrayLike | Tensor) -> Tensor:
        """Similarity (n, m) by `similarity_fn_name` of all `embeddings1` (n, dim) with all `embeddings2` (m, dim)."""
        return self._compared(matrix, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: ArrayLike | Tensor, embeddings2: ArrayLike | Tensor) -> Tensor:
        """Similarity (n,) of row i of `embeddings1` (n, dim) with row i of `embeddings2` (n, dim)."""
        return self._compared(pairwise, embeddings1, embeddings2)

    def _compared(self, similarity: Callable[..., NDArray[np.float32]], *embeddings: ArrayLike | Tensor) -> Tensor:
        return torch.from_numpy(similarity(*map(_rows, embeddings), self.similarity_fn_name))


def read_parts(folder: ModelFolder, backend: Backend | None = None, *, is_base: bool = False) -> EncoderParts:
    """The parts of the encoder of `folder`, its network computed by `backend`, by default the first that is usable.

    is_base: accept the network of another kind of model. Raises RequestError as `SentenceEncoder.load`.
    """
    if not is_base:
        folder.check_kind("encoder")
    layout = folder.layout
    parts = _read_single(folder, layout, backend)
    if layout.query is not None and is_base:
        raise RequestError(f"base: {PAIR_FOUND} in {folder.path}. {TAKE_ONE}")
    if layout.query is not None:
        parts["query_encoder"] = SentenceEncoder(**cast(Any, _read_single(folder, layout.query, backend)))
    return parts


def refuse_pair(encoder: SentenceEncoder) -> None:
    """Raises RequestError for a pair, of whose encoders a command can change only one."""
    if encoder.query_encoder is not None:
        raise RequestError(f"model: {PAIR_FOUND}. {TAKE_ONE}")


def _read_single(folder: ModelFolder, layout: Layout, backend: Backend | None) -> EncoderParts:
    """The parts of an encoder, or of one of a pair."""
    inner = ModelFolder(folder.path / layout.transformer_folder) if layout.transformer_folder else folder
    backend = backend or inner.backends[0]
    if layout.static:
        table, tokenizer = load_static(inner.path)
        network = cast(PreTrainedModel, table)  # of which it has all that an encoder uses
    elif backend in GRAPHS:
        tokenizer = load_tokenizer(inner.path, layout.lower_case)
        graph = load_graph(inner, backend, layout.max_tokens or tokenizer.model_max_length)
        network = cast(PreTrainedModel, graph)  # of which it has all that an encoder uses
    else:
        network = load_text_network(inner)
        tokenizer = load_tokenizer(inner.path, layout.lower_case)
    if layout.token_dim not in (None, network.config.hidden_size):
        raise RequestError(
            f"model: the pooling in {folder.path} expects token vectors of {layout.token_dim} dimensions "
            f"and the network gives {network.config.hidden_size}"
        )
    return {
        "backbone": network,
        "tokenizer": tokenizer,
        "pooling": Pooling(layout.pooling, layout.include_prompt),
        "projection": projection_of([load_projection(folder.path, dense) for dense in layout.dense]),
        "normalize": layout.normalize,
        "max_tokens": layout.max_tokens,
        "prompts": layout.prompts,
        "similarity_fn_name": layout.similarity,
        "truncate_dim": layout.truncate_dim,
        "spaces": layout.spaces,
        "matryoshka_dimensions": layout.matryoshka_dimensions,
    }


def open_encoder(model: SentenceEncoder | str | Path, cache: Cache | None = None) -> SentenceEncoder:
    """`model` itself, or the encoder of that folder or hub id, noted as an input of the run; `cache` has downloads."""
    if isinstance(model, SentenceEncoder):
        return model
    folder = ModelFolder.find(model, cache=cache)
    note_folder(folder.path)
    return SentenceEncoder.load(folder)


def _rows(embeddings: Any) -> NDArray[np.float32]:
    """Vectors (n, dim) of an array, a tensor, a list of either, or one vector (dim,)."""
    if isinstance(embeddings, list | tuple) and embeddings and isinstance(embeddings[0], Tensor):
        embeddings = torch.stack(list(embeddings))
    if isinstance(embeddings, Tensor):
        embeddings = embeddings.detach().float().cpu()
    return np.atleast_2d(np.asarray(embeddings, dtype=np.float32))


def _slices(sentences: Sequence[str]) -> Iterator[list[str]]:
    """Yields slices of `sentences`, so that the tokenizer, which holds whole texts, needs little memory."""
    first = characters = 0
    for end, sentence in enumerate(sentences, 1):
        characters += len(sentence)
        if characters >= TOKENIZED_CHARACTERS:
            yield list(sentences[first:end])
            first, characters = end, 0
    if first < len(sentences):
        yield list(sentences[first:])


def encoder_digest(encoder: SentenceEncoder) -> str:
    """The sha256 of all that determines an encoder's vectors: weights, tokenizer, pooling, later modules, prompts.

    Of a pair it is that of its encoder of documents, whose vectors an index has.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(encoder.state_dict().items()):
        if name.startswith("query_encoder."):
            continue
        digest.update(name.encode())
        digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)  # NumPy has no bfloat16
    digest.update(encoder.tokenizer.backend_tokenizer.to_str().encode())
    network = {name: value for name, value in encoder.backbone.config.to_dict().items() if name not in UNUSED_CONFIG}
    parts = {"weights": digest.hexdigest(), "network": network, "layout": encoder.layout.digested}
    return fingerprint({**parts, "truncate_dim": encoder.truncate_dim})
