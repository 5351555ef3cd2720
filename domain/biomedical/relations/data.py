"""Pairs of a document's concepts or mentions that may be related, and the document's subwords with marked entities."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from bertrelay.data.tokens import pad_rows
from bertrelay.errors import RequestError
from bertrelay.model.tokenizer import before_sentences, plain_rules
from domain.biomedical.documents.document import Document
from domain.biomedical.relations.settings import Level, Within
from domain.text.sentences import sentence_spans
from domain.text.windows import Integers, Windows, cut_windows, ranges

NONE = ""
"""The type of a pair without a relation."""
SPECIALS = 2  # [CLS] before a window, [SEP] after it
DISTANCES = 10
"""Classes of the distance between two nodes' nearest mentions: below 2, 4, 8, … subwords."""


class Node(NamedTuple):
    """A concept or a mention that may be related.

    target: identifier of a concept, or number of an entity. mentions: numbers of entities.
    """

    target: str | int
    type: str
    mentions: tuple[int, ...]


class Gold(NamedTuple):
    """The relation of a pair; novel is None where the corpus does not say."""

    type: str = NONE
    novel: bool | None = None


@dataclass(frozen=True)
class Pairs:
    """Pairs of a document's nodes that may be related.

    pairs: positions in `nodes`, (first, second). gold: the relation of each. missed: relations of the document that no
    pair stands for, of entities in two sentences for example; a score counts them as missed.
    """

    document: Document
    nodes: tuple[Node, ...]
    pairs: tuple[tuple[int, int], ...]
    gold: tuple[Gold, ...]
    missed: tuple[Gold, ...] = ()


@dataclass(frozen=True)
class Scheme:
    """The pairs that are read from a document, as the training data have them.

    types: of relations, in order. type_pairs: of entities that may be related; sorted unless `directed`.
    """

    types: tuple[str, ...]
    type_pairs: frozenset[tuple[str, str]]
    level: Level = "concept"
    within: Within = "document"
    directed: bool = False

    @classmethod
    def of(
        cls, documents: Iterable[Document], types: Collection[str], level: Level, within: Within, directed: bool
    ) -> "Scheme":
        """The scheme of annotated documents; types: of relations that count, all when empty.

        Raises RequestError for documents without a relation of these types at this level.
        """
        names, pairs = set[str](), set[tuple[str, str]]()
        for document in documents:
            nodes = nodes_of(document, level)
            kinds = {node.target: node.type for node in nodes}
            for relation in document.relations:
                targets = [argument.target for argument in relation.arguments]
                if (not types or relation.type in types) and len(targets) == 2 and all(one in kinds for one in targets):
                    names.add(relation.type)
                    pairs.add(ordered((kinds[targets[0]], kinds[targets[1]]), directed))
        if not names:
            other = "mention" if level == "concept" else "concept"
            raise RequestError(
                f"train: expected relations between {level}s of its entities, found none. Check the files and `types`; "
                f'if relations there are between {other}s, set level = "{other}".'
            )
        return cls(tuple(sorted(names)), frozenset(pairs), level, within, directed)

    def pairs_of(self, document: Document) -> Pairs:
        """The pairs of a document, in the order of their first mentions."""
        nodes = nodes_of(document, self.level)
        choose = (lambda count: product(range(count), repeat=2)) if self.directed else _unordered
        allowed: list[tuple[int, int]] = []
        sentence = _sentence_numbers(document) if self.within == "sentence" else None
        for first, second in choose(len(nodes)):
            if first == second:
                continue
            if not self.directed and nodes[first].type > nodes[second].type:
                first, second = second, first
            if (nodes[first].type, nodes[second].type) in self.type_pairs and (
                sentence is None or _share_sentence(nodes[first], nodes[second], sentence)
            ):
                allowed.append((first, second))
        gold, missed = self._gold(document, nodes, allowed)
        return Pairs(document, tuple(nodes), tuple(allowed), tuple(gold), tuple(missed))

    def check_relations(self, pairs: Iterable[Pairs], key: str) -> None:
        """Raises RequestError if no pair has a relation, so that nothing could be measured; key: of the files."""
        if not any(gold.type != NONE for one in pairs for gold in one.gold):
            raise RequestError(
                f"{key}: expected relations of the types {', '.join(self.types)} between {self.level}s, found none. "
                "Check the files."
            )

    def _gold(
        self, document: Document, nodes: Sequence[Node], pairs: Sequence[tuple[int, int]]
    ) -> tuple[list[Gold], list[Gold]]:
        relations = dict[tuple[str | int, ...], Gold]()
        for relation in document.relations:
            targets = tuple(argument.target for argument in relation.arguments)
            if relation.type in self.types and len(targets) == 2:
                relations.setdefault(self._key(targets), Gold(relation.type, relation.novel))
        keys = [self._key((nodes[first].target, nodes[second].target)) for first, second in pairs]
        missed = relations.keys() - set(keys)
        return [relations.get(key, Gold()) for key in keys], [relations[key] for key in relations if key in missed]

    def _key(self, targets: tuple[str | int, ...]) -> tuple[str | int, ...]:
        return targets if self.directed else tuple(sorted(targets, key=str))


def _unordered(count: int) -> Iterator[tuple[int, int]]:
    return combinations(range(count), 2)


def ordered(pair: tuple[str, str], directed: bool) -> tuple[str, str]:
    """The pair as it is if `directed`, else in alphabetical order."""
    first, second = pair if directed else sorted(pair)
    return first, second


def nodes_of(document: Document, level: Level) -> list[Node]:
    """The concepts of a document with all their mentions, or its mentions, in the order of the first mention."""
    if level == "mention":
        return [Node(number, entity.type, (number,)) for number, entity in enumerate(document.entities)]
    mentions, types = dict[str, list[int]](), dict[str, str]()
    for number, entity in enumerate(document.entities):
        for identifier in entity.identifiers:
            mentions.setdefault(identifier, []).append(number)
            types.setdefault(identifier, entity.type)
    return [Node(identifier, types[identifier], tuple(numbers)) for identifier, numbers in mentions.items()]


def _sentence_numbers(document: Document) -> list[int]:
    ends = [end for _, end in sentence_spans(document.text)]
    numbers: list[int] = np.searchsorted(ends, [entity.start for entity in document.entities], side="right").tolist()
    return numbers


def _share_sentence(first: Node, second: Node, sentence: Sequence[int]) -> bool:
    return bool({sentence[one] for one in first.mentions} & {sentence[one] for one in second.mentions})


def marks_of(types: Iterable[str]) -> list[str]:
    """The tokens that open and close a mention of each type of entities."""
    return [mark.format(name) for name in sorted(types) for mark in ("<{}>", "</{}>")]


@dataclass(frozen=True)
class MarkedDocuments:
    """The subwords of documents, end to end, with a token before and after each mention, and their pairs.

    ids: (subwords,). lengths: of each document, (documents,).
    mentions: position in the document of the token before each mention, of each document.
    pairs: of each document.
    """

    ids: Integers
    lengths: Integers
    mentions: list[Integers]
    pairs: Sequence[Pairs]


class DocumentMarker:
    """Splits documents into subwords with marked mentions, and frames batches of them for the network.

    types: of entities, which have tokens in the vocabulary.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, types: Iterable[str], max_tokens: int, overlap: int) -> None:
        self._rules = plain_rules(tokenizer)
        self._before = before_sentences(self._rules)
        self._marks: dict[str, int] = {
            mark: cast(int, tokenizer.convert_tokens_to_ids(mark)) for mark in marks_of(types)
        }
        self._frame = tokenizer.cls_token_id, tokenizer.sep_token_id
        self._pad: int = tokenizer.pad_token_id
        if None in (*self._frame, self._pad):
            raise RequestError("model: relations need a tokenizer with a cls, sep and pad token, and this one has none")
        self.max_tokens, self.overlap = max_tokens, overlap

    def __call__(self, pairs: Sequence[Pairs]) -> MarkedDocuments:
        encodings = self._rules.encode_batch([one.document.text for one in pairs], add_special_tokens=False)
        marked = [
            self._marked(one, np.array(e.ids, np.int64), e.offsets) for one, e in zip(pairs, encodings, strict=True)
        ]
        ids = np.concatenate([ids for ids, _ in marked]) if marked else np.zeros(0, np.int64)
        return MarkedDocuments(ids, np.array([len(ids) for ids, _ in marked]), [at for _, at in marked], pairs)

    def _marked(self, pairs: Pairs, ids: Integers, offsets: Sequence[tuple[int, int]]) -> tuple[Integers, Integers]:
        """Subwords with marks, and the position of the first mark of each entity, (entities,)."""
        starts, ends = (np.array([offset[side] for offset in offsets], np.int64) for side in (0, 1))
        entities = pairs.document.entities
        first = np.searchsorted(ends, [entity.start for entity in entities], side="right")  # the subword with its start
        behind = np.searchsorted(starts, [entity.end for entity in entities], side="left")  # that after its end
        marks = list[tuple[int, int, int, int]]()  # subword before which it is, 1 if it opens, its id, number of entity
        for number, entity in enumerate(entities):
            if (mark := self._marks.get(f"<{entity.type}>")) is not None:
                marks.append((int(first[number]), 1, mark, number))
                marks.append((int(behind[number]), 0, self._marks[f"</{entity.type}>"], number))
        marks.sort()  # of marks at one place those that close come first
        inserted = np.array([at for at, *_ in marks], np.int64)
        whole = np.insert(ids, inserted, [mark for _, _, mark, _ in marks])
        opened = np.zeros(len(entities), np.int64)
        for before, (at, opens, _, number) in enumerate(marks):
            if opens:
                opened[number] = at + before
        return whole, opened

    def windows(self, lengths: Integers) -> Windows:
        return cut_windows(lengths, self.max_tokens - SPECIALS, self.overlap)

    def batch(self, documents: MarkedDocuments, chosen: Integers) -> dict[str, Tensor]:
        """Inputs of the network for the documents `chosen`, see `RelationNetwork.forward`."""
        firsts = np.cumsum(documents.lengths) - documents.lengths
        lengths = documents.lengths[chosen]
        ids = np.concatenate([documents.ids[firsts[one] : firsts[one] + documents.lengths[one]] for one in chosen])
        windows = self.windows(lengths)
        width = int(windows.lengths.max()) + SPECIALS
        inner, _ = pad_rows(ids, windows.starts, windows.lengths, width - SPECIALS, self._pad)
        rows = np.full((len(inner), width), self._pad, np.int64)
        rows[:, 0] = self._frame[0]
        rows[:, 1:-1] = inner
        rows[np.arange(len(rows)), windows.lengths + 1] = self._frame[1]
        attention = np.arange(width) < (windows.lengths + SPECIALS)[:, None]
        # the place of each subword in the flattened windows: that of the window which owns it
        owned = windows.owned_ends - windows.owned_starts
        number = np.repeat(np.arange(len(owned)), owned)
        tokens = number * width + 1 + ranges(windows.owned_starts, owned) - windows.starts[number]
        begins = np.cumsum(lengths) - lengths
        tokens, token_mask = pad_rows(tokens, begins, lengths, int(lengths.max()), 0)
        inputs = {"input_ids": rows, "attention_mask": attention, "tokens": tokens, "token_mask": token_mask}
        inputs |= _pair_inputs([documents.pairs[one] for one in chosen], [documents.mentions[one] for one in chosen])
        return {name: torch.from_numpy(values) for name, values in inputs.items()}


def _pair_inputs(pairs: Sequence[Pairs], mentions: Sequence[Integers]) -> dict[str, NDArray[np.generic]]:
    """Nodes and pairs of a batch, padded; see `RelationNetwork.forward`."""
    nodes = [(row, mentions[row][list(node.mentions)]) for row, one in enumerate(pairs) for node in one.nodes]
    counts = np.array([len(tokens) for _, tokens in nodes])
    flat = np.concatenate([tokens for _, tokens in nodes])
    tokens, mask = pad_rows(flat, np.cumsum(counts) - counts, counts, int(counts.max()), 0)
    first_nodes = np.cumsum([0, *(len(one.nodes) for one in pairs)])
    ends = np.array([[first_nodes[row] + at for at in pair] for row, one in enumerate(pairs) for pair in one.pairs])
    distances = [_distance(nodes[first][1], nodes[second][1]) for first, second in ends.tolist()]
    return {
        "node_documents": np.array([row for row, _ in nodes]),
        "node_tokens": tokens,
        "node_mask": mask,
        "pairs": ends,
        "distances": np.array(distances),
    }


def _distance(first: Integers, second: Integers) -> int:
    """The class of the number of subwords between the nearest mentions of two nodes."""
    nearest = int(np.abs(first[:, None] - second).min())
    return min(nearest.bit_length(), DISTANCES - 1)
