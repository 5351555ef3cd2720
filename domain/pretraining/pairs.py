"""The items of an epoch: a table with the tokens of the corpus that each item reads.

The table is a function of seed and epoch, so that every process has the same one. It holds positions and no text, 33
bytes an item. Documents are walked one by one; what is drawn, found or cut for all their sentences is drawn at once.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain

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

    starts: the first token of each segment in the corpus, (items, 2).
    tokens: of each segment; 0 for a missing second one, (items, 2).
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
    """Documents of a corpus that are chosen, and their positions in it.

    name: title of the documents in messages.
    starts: the first token of each sentence of the corpus, and its end, (sentences + 1,).
    documents: their numbers in the corpus, (chosen,).
    first, end: their sentences, (chosen,) each.
    """

    def __init__(self, corpus: Corpus, chosen: Booleans, name: str = "documents") -> None:
        self.name, self.starts = name, corpus.sentence_starts
        self.documents = np.flatnonzero(chosen)
        self.first, self.end = corpus.document_starts[:-1][chosen], corpus.document_starts[1:][chosen]
        self.groups = corpus.groups[chosen]

    def blocks(self) -> Iterator[tuple[Integers, Integers]]:
        """Yields runs of documents of about `BLOCK` sentences: their numbers, from 0, and all their sentences."""
        block = np.cumsum(self.end - self.first) // BLOCK
        for documents in np.split(np.arange(len(block)), np.flatnonzero(np.diff(block)) + 1):
            sizes = (self.end - self.first)[documents]
            yield documents, np.repeat(self.first[documents], sizes) + within(sizes)


def within(sizes: Integers) -> Integers:
    """0, 1, 2, … within each of some runs: sizes 2 and 3 give 0, 1, 0, 1, 2."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def concatenate(parts: Sequence[Items]) -> Items:
    """The items of some parts, one part after the other."""
    return Items(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Items)))


def pack(text: Text, max_tokens: int) -> Items:
    """Sentences of one document up to `max_tokens`, special tokens included; a longer sentence is cut up.

    With room for 10 tokens, sentences of 4, 25 and 3 tokens give items of 4, 10, 10 and 5 + 3 tokens.
    """
    return concatenate([_packed(text, *block, max_tokens - SPECIALS_OF_ONE) for block in text.blocks()])


def _packed(text: Text, documents: Integers, sentences: Integers, longest: int) -> Items:
    """The packed items of a block of documents, which is walked document by document."""
    parts = -(-(text.starts[sentences + 1] - text.starts[sentences]) // longest)  # of each sentence
    part_starts = (np.repeat(text.starts[sentences], parts) + within(parts) * longest).tolist()
    rows = list[int]()  # start, end and document of each item
    ends = text.starts[text.end[documents]].tolist()
    for number, start, end in zip(documents.tolist(), text.starts[text.first[documents]].tolist(), ends, strict=True):
        while end - start > longest:
            next_start = part_starts[bisect_right(part_starts, start + longest) - 1]
            rows += start, next_start, number
            start = next_start
        rows += start, end, number
    first, last, document = np.array(rows, np.int64).reshape(-1, 3).T
    starts, tokens = np.zeros((2, len(first), 2), np.int64)
    starts[:, 0], tokens[:, 0] = first, last - first
    return Items(starts, tokens.astype(np.int32), np.zeros(len(first), dtype=bool), text.documents[document])


def draw_pairs(text: Text, max_tokens: int, short_share: float, seed: int, epoch: int) -> Items:
    """Pairs of segments for masked words and next sentences, as in BERT's `create_pretraining_data`.

    1. A document is walked from its start. Sentences are taken until they fill a sequence; `short_share` of the
       sequences aim at a random shorter length.
    2. The sentences are cut in two at a random place: first and second segment.
    3. A fair coin decides whether the second segment stays (`is_random` false), or is replaced by text of another
       document of another group and walked again.
    4. A pair that is too long loses tokens of its longer segment, from either end by chance.

    Sentences A B C D, of which three fill a sequence, cut after A, may give the pair (A, B C), and the walk goes to D;
    or (A, text of another document), and it goes to B.

    Unlike in BERT, labels are fair coins everywhere and lengths hardly reveal them: a random segment is drawn from all
    sentences with one probability, to the size of the one it replaces; a last sentence that is left over follows the
    one before once more, or is followed by a random one; and documents of one sentence are second segments only.

    Raises RequestError for documents without a pair.
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
    return concatenate([_pairs(text, *block, others, max_tokens, short_share, generator) for block in text.blocks()])


def _pairs(
    text: Text,
    documents: Integers,
    sentences: Integers,
    others: "_Others",
    max_tokens: int,
    short_share: float,
    generator: np.random.Generator,
) -> Items:
    """The pairs of a block of documents. All is drawn for each sentence at which a pair could begin, used or not."""
    longest, count = max_tokens - SPECIALS_OF_TWO, len(sentences)
    short = generator.integers(SHORTEST, longest, count, endpoint=True)
    targets = np.where(generator.random(count) < short_share, short, longest)
    cut_fractions, is_random = generator.random(count), generator.random(count) < 0.5
    reached = np.searchsorted(text.starts, text.starts[sentences] + targets)
    walk = _walk(text, documents, reached.tolist(), cut_fractions.tolist(), is_random.tolist())
    number, begins, *borders = np.fromiter(chain.from_iterable(walk), np.int64).reshape(-1, 6).T
    first, second = np.array(borders).reshape(2, 2, -1)  # (start and end, items) each
    starts, tokens = _spans(text.starts, first, second)
    drawn = is_random[begins]
    free = targets[begins] - tokens[:, 0]
    second[:, drawn] = others.draw(number[drawn], tokens[drawn, 1], free[drawn], generator)
    starts, tokens = _truncated(*_spans(text.starts, first, second), longest, generator)
    return Items(starts, tokens.astype(np.int32), drawn, text.documents[number])


def _walk(
    text: Text,
    documents: Integers,
    reached: Sequence[int],
    cut_fractions: Sequence[float],
    is_random: Sequence[bool],
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Yields for each pair its document, the place in the block at which it begins, and the borders of its segments.

    For each sentence of the block: the sentence at which a pair that begins there has its tokens, where between them it
    is cut, from 0 to 1, and whether its second segment is random. Borders are sentences: start and end of the first
    segment, then of the second one, which a random one replaces.
    """
    before = 0  # sentences of the block
    for number, start, last in zip(
        documents.tolist(), text.first[documents].tolist(), text.end[documents].tolist(), strict=True
    ):
        sentence = start
        while sentence < last and last - start > 1:  # documents of one sentence are second segments only
            index = before + sentence - start
            if sentence == last - 1:  # left over: it follows the one before it once more, or has a random one after it
                first = sentence if is_random[index] else sentence - 1
                yield number, index, first, first + 1, sentence, last
                break
            end = min(max(reached[index], sentence + 2), last)  # two sentences at least
            cut = sentence + 1 + int(cut_fractions[index] * (end - sentence - 1))
            yield number, index, sentence, cut, cut, end
            sentence = cut if is_random[index] else end  # what a random segment replaces is walked again
        before += last - start


def _spans(starts: Integers, first: Integers, second: Integers) -> tuple[Integers, Integers]:
    """First token and number of tokens of two segments of sentences (start and end, items), (items, segments) each."""
    begin, end = starts[np.stack([first, second])].transpose(1, 2, 0)
    return begin, end - begin


def _below(limits: Integers, generator: np.random.Generator) -> Integers:
    """A random whole number from 0 to each limit, without the limit."""
    return (generator.random(len(limits)) * limits).astype(np.int64)


class _Others:
    """Text of all documents except those of a document's own group."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.order = np.argsort(text.groups, kind="stable")
        self.before = np.concatenate([[0], np.cumsum((text.end - text.first)[self.order])])  # sentences, in that order
        grouped = text.groups[self.order]
        left, right = (np.searchsorted(grouped, text.groups, side=side) for side in ("left", "right"))
        self.group_first, self.group_end = self.before[left], self.before[right]  # (documents,) each

    def draw(
        self, documents: Integers, replaced_tokens: Integers, free: Integers, generator: np.random.Generator
    ) -> Integers:
        """Draws sentences of another document for each, all sentences with one probability, (start and end, documents).

        As many as fill `free` tokens where the replaced ones do, else as many as come nearest to those in tokens.
        """
        group_sizes = self.group_end[documents] - self.group_first[documents]
        drawn = _below(self.before[-1] - group_sizes, generator)  # sentences, in the order of `before`
        drawn += np.where(drawn >= self.group_first[documents], group_sizes, 0)
        nth = np.searchsorted(self.before, drawn, side="right") - 1
        first, last = self.text.first[self.order[nth]], self.text.end[self.order[nth]]
        starts, tokens = self.text.starts, np.minimum(replaced_tokens, free)
        latest = np.searchsorted(starts, starts[last] - tokens, side="right") - 1  # that has enough after it, if any
        start = np.clip(first + drawn - self.before[nth], first, np.maximum(first, latest))
        target = starts[start] + tokens
        end = np.minimum(np.searchsorted(starts, target), last)
        end -= (replaced_tokens < free) & (starts[end] - target > target - starts[end - 1])
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
