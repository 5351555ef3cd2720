"""The network of relations: a BERT reads a document with marked entities once, and all its pairs are scored.

The vector of a concept is the log-sum-exp of the vectors before its mentions; that of a pair adds an attention of the
pair over the document, and their product by blocks is scored (after Zhou et al. 2021, "Document-level relation
extraction with adaptive thresholding and localized context pooling"; the attention is learned, not the BERT's own).

Its folder is one of transformers, with `relations.json` and `relations.safetensors`, the layers on the BERT.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, cast

import torch
from pydantic import Field
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AddedToken, PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.cache import Cache
from bertrelay.errors import RequestError
from bertrelay.files import write_json, write_tensors
from bertrelay.inference.kernels import use_cpu_kernels
from bertrelay.model.dropout import set_dropout
from bertrelay.model.files import Description, explain_unreadable, read_model_file
from bertrelay.model.folder import ModelFolder
from bertrelay.model.heads import FullPrecision, window_tokens
from bertrelay.model.network import load_backbone, save_network
from bertrelay.model.tokenizer import load_tokenizer
from domain.biomedical.calibration import Temperature
from domain.biomedical.relations.data import DISTANCES, DocumentMarker, Scheme, marks_of
from domain.biomedical.relations.settings import Level, RelationSettings, Within

DESCRIPTION, HEAD_WEIGHTS = "relations.json", "relations.safetensors"
MAX_TOKENS = 512
BLOCK = 32
"""Dimensions of a block of the bilinear product."""
DROPOUT = 0.1


class PairHead(nn.Module):
    """Vectors of a document's subwords and nodes to the scores of pairs.

    dim: of the vectors. types: number of types of relations.
    """

    def __init__(self, dim: int, types: int, dropout: float) -> None:
        super().__init__()
        self.block = BLOCK if dim % BLOCK == 0 else 1
        self.query = nn.Linear(2 * dim, dim)
        self.key = nn.Linear(dim, dim)
        self.distance = nn.Embedding(DISTANCES, dim)
        self.first = nn.Linear(2 * dim, dim)
        self.second = nn.Linear(2 * dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.scores = FullPrecision(dim * self.block, types + 2)  # no relation, the types, a new finding

    def forward(
        self,
        subwords: Tensor,
        token_mask: Tensor,
        nodes: Tensor,
        documents: Tensor,
        pairs: Tensor,
        distances: Tensor,
    ) -> Tensor:
        """Scores of pairs, (pairs, types + 2), float32.

        subwords: (documents, longest, dim). token_mask: false for padding, (documents, longest). nodes: (nodes, dim).
        documents: of each pair, in order, (pairs,). pairs: (pairs, 2). distances: classes, (pairs,).
        """
        first, second = nodes[pairs[:, 0]], nodes[pairs[:, 1]]
        context = self._context(subwords, token_mask, torch.cat([first, second], 1), documents)
        near = self.distance(distances)
        first = torch.tanh(self.first(torch.cat([first, context], 1)) + near)
        second = torch.tanh(self.second(torch.cat([second, context], 1)) + near)
        blocks = (vectors.unflatten(1, (-1, self.block)) for vectors in (first, second))
        product = torch.einsum("pbi,pbj->pbij", *blocks).flatten(1)  # (pairs, dim · block)
        return cast(Tensor, self.scores(self.dropout(product)))

    def _context(self, subwords: Tensor, token_mask: Tensor, ends: Tensor, documents: Tensor) -> Tensor:
        """The document's subwords as the pair attends to them, (pairs, dim)."""
        counts = torch.bincount(documents, minlength=len(subwords))
        row = torch.arange(len(documents), device=documents.device) - (counts.cumsum(0) - counts)[documents]
        queries = ends.new_zeros(len(subwords), int(counts.max()), subwords.shape[2])
        queries = queries.to(subwords.dtype).index_put((documents, row), self.query(ends).to(subwords.dtype))
        mask = token_mask[:, None].expand(-1, queries.shape[1], -1)
        attended = nn.functional.scaled_dot_product_attention(
            queries, self.key(subwords).to(queries.dtype), subwords, mask
        )
        return attended[documents, row]


class RelationNetwork(nn.Module):
    """A BERT under a `PairHead`."""

    def __init__(self, network: PreTrainedModel, head: PairHead) -> None:
        super().__init__()
        self.network, self.head = network, head
        use_cpu_kernels(network)

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def backbone(self) -> Any:
        """The BERT under the head."""
        return self.network

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        tokens: Tensor,
        token_mask: Tensor,
        node_documents: Tensor,
        node_tokens: Tensor,
        node_mask: Tensor,
        pairs: Tensor,
        distances: Tensor,
    ) -> Tensor:
        """Scores of the pairs of a batch of documents, (pairs, types + 2): no relation, each type, a new finding.

        input_ids, attention_mask: of windows, (windows, tokens).
        tokens, token_mask: places of a document's subwords in the flattened windows, padded, (documents, longest).
        node_documents: the document of each node, (nodes,). node_tokens, node_mask: the subwords before its mentions,
        padded, (nodes, mentions). pairs: numbers of nodes, (pairs, 2). distances: classes, (pairs,).
        """
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        subwords = hidden.flatten(0, 1)[tokens]  # (documents, longest, dim)
        mentions = subwords[node_documents[:, None], node_tokens].float()  # (nodes, mentions, dim)
        nodes = mentions.masked_fill(~node_mask[..., None], -torch.inf).logsumexp(1)
        documents = node_documents[pairs[:, 0]]
        return cast(Tensor, self.head(subwords, token_mask, nodes, documents, pairs, distances))


class _RelationDescription(Description):
    """`relations.json`: fields of `RelationModel` and its `Scheme`."""

    types: list[str]
    entity_types: list[str]
    type_pairs: list[Annotated[list[str], Field(min_length=2, max_length=2)]]
    level: Level
    within: Within
    directed: bool
    max_tokens: Annotated[int, Field(ge=16)]
    overlap: Annotated[int, Field(ge=0)]
    threshold: Annotated[float, Field(ge=0, le=1)]
    temperature: Temperature
    novelty: bool


@dataclass(frozen=True)
class RelationModel:
    """A network that finds relations, with its tokenizer, the pairs it reads, and its calibration.

    entity_types: with tokens of their own. max_tokens, overlap: of the windows of long documents, in subwords.
    threshold: least probability of a relation. temperature: divides scores. novelty: true if new findings are marked.
    """

    network: RelationNetwork
    tokenizer: PreTrainedTokenizerFast
    scheme: Scheme
    entity_types: tuple[str, ...]
    max_tokens: int
    overlap: int
    threshold: float = 0.5
    temperature: float = 1.0
    novelty: bool = False

    @cached_property
    def marker(self) -> DocumentMarker:
        return DocumentMarker(self.tokenizer, self.entity_types, self.max_tokens, self.overlap)


def start_model(
    settings: RelationSettings, scheme: Scheme, *, novelty: bool, cache: Cache | None = None
) -> RelationModel:
    """A model before its first step: the BERT of `settings.base`, tokens for types of entities, and a new head.

    The embedding of a type's token starts as the mean of those of the type's name.
    Raises RequestError for a base with too few positions for the windows.
    """
    folder = ModelFolder.find(settings.base, cache=cache)
    backbone = load_backbone(folder.transformer)
    tokenizer = load_tokenizer(folder.transformer.path, folder.layout.lower_case)
    entity_types = tuple(sorted({kind for pair in scheme.type_pairs for kind in pair}))
    _add_marks(backbone, tokenizer, entity_types)
    size = window_tokens(backbone, settings.max_tokens, MAX_TOKENS)
    overlap = size // 4 if settings.overlap is None else settings.overlap
    if overlap > size // 2:
        raise RequestError(f"overlap: expected at most half of max_tokens, which is {size}, found {overlap}; lower it")
    if settings.dropout is not None:
        set_dropout(backbone, settings.dropout)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        head = PairHead(
            backbone.config.hidden_size, len(scheme.types), DROPOUT if settings.dropout is None else settings.dropout
        )
    return RelationModel(
        RelationNetwork(backbone, head), tokenizer, scheme, entity_types, size, overlap, novelty=novelty
    )


def _add_marks(backbone: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, types: tuple[str, ...]) -> None:
    names = {mark: tokenizer(mark.strip("</>"), add_special_tokens=False)["input_ids"] for mark in marks_of(types)}
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in names])
    backbone.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    table = cast(Tensor, backbone.get_input_embeddings().weight.data)
    for mark, subwords in names.items():
        table[tokenizer.convert_tokens_to_ids(mark)] = table[subwords].mean(0)


def save_model(model: RelationModel, folder: Path) -> None:
    """Writes the folder that `load_model` reads."""
    save_network(model.network.network, model.tokenizer, folder)
    write_tensors(folder / HEAD_WEIGHTS, model.network.head.state_dict())
    scheme = model.scheme
    values: dict[str, object] = {name: getattr(scheme, name) for name in ("types", "level", "within", "directed")}
    values |= {"type_pairs": sorted(scheme.type_pairs)}
    names = ("entity_types", "max_tokens", "overlap", "threshold", "temperature", "novelty")
    write_json(folder / DESCRIPTION, {**values, **{name: getattr(model, name) for name in names}})


def load_model(source: str | Path, cache: Cache | None = None) -> RelationModel:
    """The model of a folder that `save_model` wrote. Raises RequestError for another or a damaged one."""
    folder = ModelFolder.find(source, cache=cache)
    described = read_model_file(folder.path / DESCRIPTION, _RelationDescription)
    if described is None:
        raise RequestError(
            f"model: expected one that finds relations, found no {DESCRIPTION} in {folder.path}; train it with "
            "domain.relations"
        )
    backbone, tokenizer = load_backbone(folder), load_tokenizer(folder.path)
    pairs = frozenset((first, second) for first, second in described.type_pairs)
    scheme = Scheme(tuple(described.types), pairs, described.level, described.within, described.directed)
    head = PairHead(backbone.config.hidden_size, len(scheme.types), DROPOUT)
    with explain_unreadable(folder.path / HEAD_WEIGHTS, f"the layers of {len(scheme.types)} types of relations"):
        head.load_state_dict(load_file(folder.path / HEAD_WEIGHTS))
    return RelationModel(
        RelationNetwork(backbone, head).eval(),
        tokenizer,
        scheme,
        tuple(described.entity_types),
        described.max_tokens,
        described.overlap,
        described.threshold,
        described.temperature,
        described.novelty,
    )
