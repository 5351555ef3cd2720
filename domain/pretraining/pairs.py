"""The items of an epoch: a table with the tokens of the corpus that each item reads.

The table is a function of seed and epoch, so that every process has the same one. It holds positions and no text, 33
bytes an item.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bertrelay.errors import RequestError
from domain.pretraining.corpus import Corpus

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

BLOCK = 2**18
"""Sentences walked at once, which bounds the memory of the drawing."""
SHORTEST = 2
SPECIALS_OF_ONE, SPECIALS_OF_TWO = 2, 3  # [CLS] a [SEP], [CLS] a [SEP] b [SEP]


@dataclass(frozen=True)
class Items:
    """The items of an epoch, of one segment or two each.

    starts: where each segment begins, in tokens of the corpus, (items, 2).
    tokens: of each segment; 0 for a second one that is not there, (items, 2).
    is_random: the second segment does not follow the first: BERT's and transformers' label 1, (items,).
    documents: of the first segment, (items,).
    """

    starts: Integers
    tokens: NDArray[np.int32]
    is_random: Booleans
    documents: Integers

    def __len__(self) -> int:
        return len(self.documents)

    @cached_property
    def lengths(self) -> Integers:
        """Tokens of each item, special ones among them, (items,)."""
        specials = np.where(self.tokens[:, 1] > 0, SPECIALS_OF_TWO, SPECIALS_OF_ONE)
        lengths: Integers = self.tokens.sum(axis=1, dtype=np.int64) + specials
        return lengths


class Text:
    """Chosen documents of a corpus, and where they lie in it.

    name: what messages call them.
    starts: the place of each sentence in the tokens of the corpus, and of the end, (sentences + 1,).
    documents: their numbers in the corpus, (chosen,).
    first, end: their sentences, (chosen,) each.
    """

    def __init__(self, corpus: Corpus, chosen: Booleans, name: str = "documents") -> None:
        self.name, self.starts = name, corpus.sentence_starts
        self.documents = np.flatnonzero(chosen)
        self.first, self.end = corpus.document_starts[:-1][chosen], corpus.document_starts[1:][chosen]
        self.groups = corpus.groups[chosen]

    def blocks(self) -> Iterator[tuple[Integers, Integers]]:
        """Runs of documents of about `BLOCK` sentences: each sentence, and its document counted from 0."""
        block = np.cumsum(self.end - self.first) // BLOCK
        for documents in np.split(np.arange(len(block)), np.flatnonzero(np.diff(block)) + 1):
            sizes = (self.end - self.first)[documents]
            yield np.repeat(self.first[documents], sizes) + within(sizes), np.repeat(documents, sizes)


def within(sizes: Integers) -> Integers:
    """0, 1, 2, … within each of some runs of these sizes, end to end."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def visited(steps: Integers) -> Integers:
    """The places of a walk that begins at 0 and moves on by `steps[place]` from each."""
    onward = (np.arange(len(steps)) + steps).tolist()
    places, place = [], 0
    while place < len(onward):
        places.append(place)
        place = onward[place]
    return np.array(places, dtype=np.int64)


def joined(parts: Sequence[Items]) -> Items:
    """The items of some parts, one part after the other."""
    return Items(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Items)))


def pack(text: Text, max_tokens: int) -> Items:
    """Sentences of one document up to `max_tokens`, special tokens included; a longer sentence is cut up."""
    return joined([_packed(text, *block, max_tokens - SPECIALS_OF_ONE) for block in text.blocks()])


def _packed(text: Text, sentence: Integers, document: Integers, longest: int) -> Items:
    """Every sentence, or piece of a long one, could begin an item; the walk from end to end picks those that do."""
    pieces = -(-(text.starts[sentence + 1] - text.starts[sentence]) // longest)  # of each sentence
    start = np.repeat(text.starts[sentence], pieces) + within(pieces) * longest
    document = np.repeat(document, pieces)
    last = text.starts[text.end[document]]
    limit = np.minimum(start + longest, last)
    ends_document = limit == last
    following = np.where(ends_document, np.searchsorted(start, last), np.searchsorted(start, limit, side="right") - 1)
    end = np.where(ends_document, last, start[np.minimum(following, len(start) - 1)])
    begins = visited(following - np.arange(len(start)))
    first = np.stack([start, end - start])[:, begins]
    starts, tokens = np.stack([first, np.zeros_like(first)]).transpose(1, 2, 0)  # (items, segments) each
    return Items(starts, tokens.astype(np.int32), np.zeros(len(begins), dtype=bool), text.documents[document[begins]])


def draw_pairs(text: Text, max_tokens: int, short_share: float, seed: int, epoch: int) -> Items:
    """Pairs of segments for masked words and next sentences, as in BERT's `create_pretraining_data`.

    A document is walked from its start. Sentences that fill a sequence are cut in two at a random place; a fair coin
    decides whether the second part stays, or gives way to text of another document of another group, and is then walked
    again. `short_share` of the sequences aim at a random shorter length. A pair that is too long loses tokens of its
    longer segment, from either end by chance.

    Unlike there, labels are fair coins everywhere and lengths hardly reveal them: a random segment is drawn from all
    sentences alike, to the size of the one it replaces; a last sentence left over follows the one before it once
    more, or is followed by a random one; and documents of one sentence are second segments only.

    Raises RequestError where no pair is to be had.
    """
    hint = "set objectives = ['mlm'] to train on masked words alone"
    if len(np.unique(text.groups)) < 2:
        raise RequestError(
            f"{text.name}: next-sentence pairs need two documents at least, of two groups where groups are known; "
            f"found {len(text.documents):,} of one group. Give more, or {hint}"
        )
    if (text.end - text.first).max() < 2:
        raise RequestError(
            f"{text.name}: next-sentence pairs need documents of two sentences at least, found "
            f"{len(text.documents):,} of one sentence each; check that a document has its whole text, or {hint}"
        )
    generator = np.random.default_rng((seed, epoch))
    others = _Others(text)
    return joined([_pairs(text, *block, others, max_tokens, short_share, generator) for block in text.blocks()])


def _pairs(
    text: Text,
    sentence: Integers,
    document: Integers,
    others: "_Others",
    max_tokens: int,
    short_share: float,
    generator: np.random.Generator,
) -> Items:
    """The pairs of a block: what would begin at each of its sentences is settled, then the walk picks what does."""
    last, longest = text.end[document], max_tokens - SPECIALS_OF_TWO
    short = generator.integers(SHORTEST, longest, len(sentence), endpoint=True)
    targets = np.where(generator.random(len(sentence)) < short_share, short, longest)
    reached = np.searchsorted(text.starts, text.starts[sentence] + targets)
    end = np.minimum(np.maximum(reached, sentence + 2), last)  # two sentences at least, where the document has them
    cut = sentence + 1 + _below(end - sentence - 1, generator)
    is_random = generator.random(len(sentence)) < 0.5
    begins = visited(np.where(is_random, cut, end) - sentence)
    begins = begins[(text.end - text.first)[document[begins]] > 1]
    is_alone = last - sentence == 1  # a last sentence left over
    follows = is_alone & ~is_random
    first = np.stack([sentence - follows, cut - follows])[:, begins]  # (start and end, items)
    second = np.stack([cut - is_alone, end])[:, begins]
    starts, tokens = _spans(text.starts, first, second)
    drawn = is_random[begins]
    free = targets[begins] - tokens[:, 0]
    second[:, drawn] = others.draw(document[begins][drawn], tokens[drawn, 1], free[drawn], generator)
    starts, tokens = _truncated(*_spans(text.starts, first, second), longest, generator)
    return Items(starts, tokens.astype(np.int32), drawn, text.documents[document[begins]])


def _spans(starts: Integers, first: Integers, second: Integers) -> tuple[Integers, Integers]:
    """Where two segments of sentences (start and end, items) begin, and their tokens, (items, segments) each."""
    begin, end = starts[np.stack([first, second])].transpose(1, 2, 0)
    return begin, end - begin


def _below(limits: Integers, generator: np.random.Generator) -> Integers:
    """A random whole number from 0 to each limit, the limit left out."""
    return (generator.random(len(limits)) * limits).astype(np.int64)


class _Others:
    """Draws text from all documents but those of a document's own group."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.order = np.argsort(text.groups, kind="stable")
        self.before = np.concatenate([[0], np.cumsum((text.end - text.first)[self.order])])  # sentences, in that order
        grouped = text.groups[self.order]
        own = [np.searchsorted(grouped, text.groups, side=side) for side in ("left", "right")]
        self.own_first, self.own_end = self.before[own[0]], self.before[own[1]]  # (documents,) each

    def draw(
        self, documents: Integers, replaced_tokens: Integers, free: Integers, generator: np.random.Generator
    ) -> Integers:
        """Sentences of another document for each, every sentence being as likely, (start and end, documents).

        As many as fill `free` tokens where the replaced ones do, else as many as come nearest to those in tokens.
        """
        own = self.own_end[documents] - self.own_first[documents]
        place = _below(self.before[-1] - own, generator)
        place += np.where(place >= self.own_first[documents], own, 0)
        nth = np.searchsorted(self.before, place, side="right") - 1
        first, last = self.text.first[self.order[nth]], self.text.end[self.order[nth]]
        starts, tokens = self.text.starts, np.minimum(replaced_tokens, free)
        latest = np.searchsorted(starts, starts[last] - tokens, side="right") - 1  # that has enough after it, if any
        start = np.clip(first + place - self.before[nth], first, np.maximum(first, latest))
        wanted = starts[start] + tokens
        end = np.minimum(np.searchsorted(starts, wanted), last)
        end -= (replaced_tokens < free) & (starts[end] - wanted > wanted - starts[end - 1])
        return np.stack([start, np.maximum(end, start + 1)])


def _truncated(
    starts: Integers, tokens: Integers, longest: int, generator: np.random.Generator
) -> tuple[Integers, Integers]:
    """Pairs of at most `longest` tokens: the longer segment is cut to the other's size, then both, the second first."""
    excess = np.maximum(tokens.sum(axis=1) - longest, 0)
    gap = tokens[:, 0] - tokens[:, 1]
    uneven = np.minimum(excess, np.abs(gap))
    rest = excess - uneven
    cuts = np.stack([rest // 2 + uneven * (gap > 0), (rest + 1) // 2 + uneven * (gap < 0)], axis=1)
    return starts + generator.binomial(cuts, 0.5), tokens - cuts
