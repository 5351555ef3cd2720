"""Tags as numbers, the best legal sequence of them (Viterbi), and how likely entities are (forward–backward)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.biomedical.documents.tags import OPENING, OUTSIDE, Scheme, follows, is_tag, join_tag, split_tag, types_of
from domain.biomedical.documents.tags import labels as all_tags
from domain.text.windows import Flags, Floats, Integers


class Chain(NamedTuple):
    """Scores of what may begin a sentence, (tags,), follow, (from, to), and end one, (tags,); −inf where illegal."""

    start: Floats
    follow: Floats
    end: Floats


@dataclass(frozen=True)
class LabelSet:
    """Tags in the order in which a network numbers them: `O`, `B-Disease`, `I-Disease` and so on.

    A type may lack a tag, which is then never predicted, and there may be several `O`.
    Raises ValueError unless they are `O` and tags of this scheme, with which an entity of each type can be whole.
    """

    tags: tuple[str, ...]
    scheme: Scheme = "IOB2"

    def __post_init__(self) -> None:
        own = [tag for tag in self.tags if tag != OUTSIDE]
        is_sound = OUTSIDE in self.tags and len({*own}) == len(own) > 0
        is_sound &= all(is_tag(tag, self.scheme) for tag in own) and all(map(self._may_be_whole, types_of(own)))
        if not is_sound:
            wanted = ", ".join(all_tags(["Type"], self.scheme))
            raise ValueError(f"expected the tags {wanted} for each type, found {', '.join(self.tags)}")

    def _may_be_whole(self, kind: str) -> bool:
        """Whether the tags of a type can be an entity."""
        has = {prefix for prefix in "BES" if join_tag(prefix, kind) in self.tags}
        return "B" in has if self.scheme == "IOB2" else "S" in has or has == {"B", "E"}

    @classmethod
    def of_types(cls, types: Iterable[str], scheme: Scheme = "IOB2") -> "LabelSet":
        return cls(tuple(all_tags(types, scheme)), scheme)

    def __len__(self) -> int:
        return len(self.tags)

    @cached_property
    def types(self) -> list[str]:
        """The types in the order of their first tags."""
        return list(dict.fromkeys(split_tag(tag)[1] for tag in self.tags if tag != OUTSIDE))

    @cached_property
    def number(self) -> dict[str, int]:
        return {tag: index for index, tag in enumerate(self.tags)}

    @cached_property
    def type_numbers(self) -> Integers:
        """Each tag's type as its place in `types`, −1 for O, (tags,)."""
        return np.array([-1 if tag == OUTSIDE else self.types.index(split_tag(tag)[1]) for tag in self.tags])

    @cached_property
    def begins(self) -> Flags:
        """Which tags an entity's first word has, (tags,)."""
        return np.array([split_tag(tag)[0] in OPENING for tag in self.tags])

    @cached_property
    def continues(self) -> Flags:
        """Which tags an entity's other words have, (tags,)."""
        return ~self.begins & (self.type_numbers >= 0)

    @cached_property
    def legal_chain(self) -> Chain:
        """0 for all that is legal, where O stands for a sentence's borders: with it the emissions alone decide."""
        legal = np.array([[follows(tag, before, self.scheme) for tag in self.tags] for before in self.tags])
        follow, outside = np.where(legal, 0.0, -np.inf), self.number[OUTSIDE]
        return Chain(follow[outside], follow, follow[:, outside])


def viterbi(emissions: NDArray[np.floating], lengths: NDArray[np.integer], chain: Chain) -> Integers:
    """The best legal tag sequence of each sentence, (words,), for emissions (words, tags).

    Of sequences that are equally good, the one with the lower tag numbers at its end; O is the lowest.
    """
    scores = np.array(emissions, dtype=np.float64)  # of the best sequence that ends with each tag
    best_before = np.zeros(scores.shape, np.int16)
    steps = list(_steps(lengths))
    for words, before in steps:
        if before is None:
            scores[words] += chain.start
        else:
            ways = scores[before][:, :, None] + chain.follow  # (sentences, from, to)
            best_before[words] = ways.argmax(axis=1)
            scores[words] += ways.max(axis=1)
    tags, lasts = np.zeros(len(scores), np.int64), _lasts(lengths)
    tags[lasts] = (scores[lasts] + chain.end).argmax(axis=1)
    for words, before in reversed(steps):
        if before is not None:
            tags[before] = best_before[words, tags[words]]
    return tags


def _steps(lengths: NDArray[np.integer]) -> Iterator[tuple[Integers, Integers | None]]:
    """The first words of all sentences, then their second ones with the first ones before them, and so on."""
    lengths = np.asarray(lengths, dtype=np.int64)
    longest_first = np.argsort(-lengths, kind="stable")
    starts = (np.cumsum(lengths) - lengths)[longest_first]
    left = np.searchsorted(-lengths[longest_first], -np.arange(lengths.max(initial=0)), side="left")
    for step, sentences in enumerate(left):
        words = starts[:sentences] + step
        yield words, words - 1 if step else None


def _lasts(lengths: NDArray[np.integer]) -> Integers:
    """The last word of each sentence that has any."""
    found: Integers = np.cumsum(lengths)[np.asarray(lengths) > 0] - 1
    return found


class EntitySpans(NamedTuple):
    """Entities as words [start, end), counted over all sentences, and their types' numbers; all are (entities,)."""

    starts: Integers
    ends: Integers
    types: Integers


def spans_of(tags: NDArray[np.integer], labels: LabelSet) -> EntitySpans:
    """The entities of legal tags, (words,), in order."""
    starts = np.flatnonzero(labels.begins[tags])
    breaks = np.append(np.flatnonzero(~labels.continues[tags]), len(tags))
    ends = breaks[np.searchsorted(breaks, starts, side="right")]
    return EntitySpans(starts, ends, labels.type_numbers[tags[starts]])


LOWEST = -300.0
"""A word's score of a tag counts as no lower than this below its best one: then no step is zero in all tags."""


class Marginals(NamedTuple):
    """What forward–backward leaves, so that probabilities of spans can be read off.

    forward: P-like mass of all beginnings that end with each tag at each word, scaled to sum 1, (words, tags).
    backward: mass of all endings after it, scaled likewise so that forward · backward sums to 1 at every word.
    emitted: exp of the emissions, each word's divided by its scale, (words, tags).

    forward · backward is the probability of each tag at each word.
    """

    forward: Floats
    backward: Floats
    emitted: Floats


def marginals(emissions: NDArray[np.floating], lengths: NDArray[np.integer], chain: Chain) -> Marginals:
    """Forward–backward over legal sequences (Rabiner 1989, with his scaling), for emissions (words, tags)."""
    scores = emissions.astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True, initial=-np.inf)
    emitted = np.exp(np.maximum(scores, LOWEST))
    start, follow, end = (np.exp(each - each.max()) for each in chain)
    forward, backward = np.zeros_like(emitted), np.zeros_like(emitted)
    steps, lasts = list(_steps(lengths)), _lasts(lengths)
    for words, before in steps:
        reached = np.broadcast_to(start, (len(words), len(start))) if before is None else forward[before] @ follow
        mass = reached * emitted[words]
        scale = mass.sum(axis=1, keepdims=True)  # (sentences, 1)
        forward[words] = mass / scale
        emitted[words] /= scale
    backward[lasts] = end / (forward[lasts] * end).sum(axis=1, keepdims=True)
    for words, before in reversed(steps):
        if before is not None:
            backward[before] = (emitted[words] * backward[words]) @ follow.T
    return Marginals(forward, backward, emitted)


def span_probabilities(
    emissions: NDArray[np.floating],
    lengths: NDArray[np.integer],
    chain: Chain,
    tags: NDArray[np.integer],
    labels: LabelSet,
    temperature: float = 1.0,
) -> Floats:
    """P(exactly this entity is here), (entities,), of the entities of legal `tags`, (words,).

    It is summed over all legal sequences that have the entity, whatever else. temperature: what all scores are divided
    by first.
    """
    chain, spans = Chain(*(scores / temperature for scores in chain)), spans_of(tags, labels)
    found = marginals(emissions / temperature, lengths, chain)
    follow = np.exp(chain.follow - chain.follow.max())
    probabilities = np.array(found.forward[spans.starts, tags[spans.starts]], dtype=np.float64)
    step = np.zeros(len(tags))  # of the way along the tags, from each word's predecessor to it
    step[1:] = follow[tags[:-1], tags[1:]] * found.emitted[np.arange(1, len(tags)), tags[1:]]
    inside = spans.ends - spans.starts
    for further in range(1, int(inside.max(initial=1))):
        longer = inside > further
        probabilities[longer] *= step[spans.starts[longer] + further]
    # The mass of all endings in which the entities end where they do.
    lasts = spans.ends - 1
    leaving = np.array(found.backward[lasts, tags[lasts]], dtype=np.float64)
    is_followed = ~np.isin(spans.ends, np.cumsum(lengths))
    after = spans.ends[is_followed]
    ways = follow[tags[lasts[is_followed]]] * ~labels.continues  # (entities, tags)
    leaving[is_followed] = (ways * found.emitted[after] * found.backward[after]).sum(axis=1)
    return (probabilities * leaving).clip(max=1.0)
