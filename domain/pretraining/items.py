"""What an epoch learns from: a table that says for every item which tokens of the corpus it reads.

The table is a function of seed and epoch, so that every process has the same one. It holds positions and no text, 33
bytes an item.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

BLOCK = 2**18
"""Sentences walked at once, which bounds the memory of the drawing."""
SPECIALS_OF_ONE, SPECIALS_OF_TWO = 2, 3  # [CLS] a [SEP], [CLS] a [SEP] b [SEP]


class Documents(Protocol):
    """What the table is drawn from; `domain.pretraining.corpus.Corpus` is one, and says what each holds."""

    lengths: NDArray[np.int32]
    document_starts: Integers
    groups: Integers


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

    def __init__(self, corpus: Documents, chosen: Booleans, name: str = "documents") -> None:
        self.name = name
        self.starts: Integers = np.zeros(len(corpus.lengths) + 1, dtype=np.int64)
        np.cumsum(corpus.lengths, out=self.starts[1:])
        self.documents = np.flatnonzero(chosen)
        self.first, self.end = corpus.document_starts[:-1][chosen], corpus.document_starts[1:][chosen]
        self.groups = corpus.groups[chosen]

    def __len__(self) -> int:
        return len(self.documents)

    def blocks(self) -> Iterator[tuple[Integers, Integers]]:
        """Runs of documents of about `BLOCK` sentences: each sentence, and its document counted from 0."""
        block = np.cumsum(self.end - self.first) // BLOCK
        for documents in np.split(np.arange(len(self)), np.flatnonzero(np.diff(block)) + 1):
            sizes = (self.end - self.first)[documents]
            yield np.repeat(self.first[documents], sizes) + within(sizes), np.repeat(documents, sizes)


def within(sizes: Integers) -> Integers:
    """0, 1, 2, … within each of some runs of these sizes, end to end."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def visited(steps: Integers) -> Integers:
    """The places that a walk comes by which begins at 0 and goes on by `steps[place]` from each."""
    onward = (np.arange(len(steps)) + steps).tolist()
    places, place = [], 0
    while place < len(onward):
        places.append(place)
        place = onward[place]
    return np.array(places, dtype=np.int64)


def joined(parts: Sequence[Items]) -> Items:
    """The items of some parts, one part after the other."""
    return Items(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Items)))
