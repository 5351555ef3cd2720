"""Items for masked words alone: as many sentences of a document as a sequence takes, the same in every epoch."""

import numpy as np

from domain.pretraining.items import SPECIALS_OF_ONE, Integers, Items, Text, joined, visited, within


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
