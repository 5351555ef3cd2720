"""Tags as numbers, their best legal sequence (Viterbi), and probabilities of entities (forward–backward)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.biomedical.documents.tags import OPENING, OUTSIDE, Scheme, follows, is_tag, join_tag, split_tag
from domain.biomedical.documents.tags import labels as all_tags
from domain.text.windows import Flags, Floats, Integers


class Chain(NamedTuple):
    """Scores of the tags that begin a sentence, (tags,), follow one another, (from, to), and end it, (tags,).

    −inf where illegal.
    """

    start: Floats
    follow: Floats
    end: Floats


@dataclass(frozen=True)
class LabelSet:
    """Tags in the order of their numbers in a network: `O`, `B-Disease`, `I-Disease` and so on.

    A type may lack a tag, which is then never predicted, and there may be several `O`.
    Raises ValueError unless they are `O` and tags of the scheme, with at least one legal entity of each type.
    """

    tags: tuple[str, ...]
    scheme: Scheme = "IOB2"

    def __post_init__(self) -> None:
        inside = [tag for tag in self.tags if tag != OUTSIDE]
        is_valid = OUTSIDE in self.tags and len({*inside}) == len(inside) > 0
        is_valid &= all(is_tag(tag, self.scheme) for tag in inside) and all(map(self._has_entity, self.types))
        if not is_valid:
            expected = ", ".join(all_tags(["Type"], self.scheme))
            raise ValueError(f"expected the tags {expected} for each type, found {', '.join(self.tags)}")

    def _has_entity(self, kind: str) -> bool:
        """True if the tags of a type can represent an entity."""
        prefixes = {prefix for prefix in "BES" if join_tag(prefix, kind) in self.tags}
        return "B" in prefixes if self.scheme == "IOB2" else "S" in prefixes or prefixes == {"B", "E"}

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
        """The index of each tag's type in `types`, −1 for O, (tags,)."""
        return np.array([-1 if tag == OUTSIDE else self.types.index(split_tag(tag)[1]) for tag in self.tags])

    @cached_property
    def begins(self) -> Flags:
        """Flags of the tags that begin an entity, (tags,)."""
        return np.array([split_tag(tag)[0] in OPENING for tag in self.tags])

    @cached_property
    def continues(self) -> Flags:
        """Flags of the tags that continue an entity, (tags,)."""
        return ~self.begins & (self.type_numbers >= 0)

    @cached_property
    def legal_chain(self) -> Chain:
        """0 where legal and −inf elsewhere, so that only the emissions decide; O stands for a sentence's borders.

        In IOB2 with one type, O and B may begin a sentence, and only I may not follow O.
        """
        legal = np.array([[follows(tag, before, self.scheme) for tag in self.tags] for before in self.tags])
        follow, outside = np.where(legal, 0.0, -np.inf), self.number[OUTSIDE]
        return Chain(follow[outside], follow, follow[:, outside])


def viterbi(emissions: NDArray[np.floating], lengths: NDArray[np.integer], chain: Chain) -> Integers:
    """The best legal tag sequence of each sentence, (words,), for emissions (words, tags) and `lengths` in words.

    Two words with the emissions O 1, B 0, I 3 and O 0, B 1, I 3 get B I (3 in all) and not I I (6), because no
    sentence begins with I.
    Of equally good sequences the one with the lower tag numbers at its end is chosen; O is the lowest.
    """
    scores = np.array(emissions, dtype=np.float64)  # of the best sequence that ends with each tag
    best_before = np.zeros(scores.shape, np.int16)
    steps = list(_steps(lengths))
    for words, before in steps:
        if before is None:
            scores[words] += chain.start
        else:
            paths = scores[before][:, :, None] + chain.follow  # (sentences, from, to)
            best_before[words] = paths.argmax(axis=1)
            scores[words] += paths.max(axis=1)
    tags, lasts = np.zeros(len(scores), np.int64), _lasts(lengths)
    tags[lasts] = (scores[lasts] + chain.end).argmax(axis=1)
    for words, before in reversed(steps):
        if before is not None:
            tags[before] = best_before[words, tags[words]]
    return tags


def _steps(lengths: NDArray[np.integer]) -> Iterator[tuple[Integers, Integers | None]]:
    """Yields, for each position in a sentence, the words there in all sentences and the words before them.

    Lengths [2, 1] give ([0, 2], None) and then ([1], [0]).
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    longest_first = np.argsort(-lengths, kind="stable")
    starts = (np.cumsum(lengths) - lengths)[longest_first]
    counts = np.searchsorted(-lengths[longest_first], -np.arange(lengths.max(initial=0)), side="left")
    for step, sentences in enumerate(counts):
        words = starts[:sentences] + step
        yield words, words - 1 if step else None


def _lasts(lengths: NDArray[np.integer]) -> Integers:
    """The last word of each sentence that is not empty."""
    lasts: Integers = np.cumsum(lengths)[np.asarray(lengths) > 0] - 1
    return lasts


class EntitySpans(NamedTuple):
    """Entities as words [start, end), counted over all sentences, and the numbers of their types; all (entities,)."""

    starts: Integers
    ends: Integers
    types: Integers


def spans_of(tags: NDArray[np.integer], labels: LabelSet) -> EntitySpans:
    """The entities of legal tags, (words,), in order: O B I B gives starts [1, 3], ends [3, 4] and types [0, 0]."""
    starts = np.flatnonzero(labels.begins[tags])
    breaks = np.append(np.flatnonzero(~labels.continues[tags]), len(tags))
    ends = breaks[np.searchsorted(breaks, starts, side="right")]
    return EntitySpans(starts, ends, labels.type_numbers[tags[starts]])


LOWEST = -300.0
"""The lowest score of a tag beside the best one of its word, so that no word has only zeros after `exp`."""


class Marginals(NamedTuple):
    """Scaled variables of forward–backward (Rabiner 1989, section V.A), all (words, tags).

    forward: α̂, the mass of all beginnings that end with each tag at each word; sums to 1 at every word.
    backward: β̂, the mass of all endings after each tag at each word.
    emitted: exp of the emissions, divided by the scale of their word.

    forward · backward is the probability of each tag at each word.
    """

    forward: Floats
    backward: Floats
    emitted: Floats


def marginals(emissions: NDArray[np.floating], lengths: NDArray[np.integer], chain: Chain) -> Marginals:
    """Forward–backward over legal sequences, for emissions (words, tags) and `lengths` of sentences in words."""
    relative = emissions.astype(np.float64)
    relative -= relative.max(axis=1, keepdims=True, initial=-np.inf)
    emitted = np.exp(np.maximum(relative, LOWEST))
    start, follow, end = (np.exp(scores - scores.max()) for scores in chain)
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
    """P(exactly this entity is here) of the entities of legal `tags`, (words,), as (entities,).

    It is summed over all legal sequences that contain the entity. For an entity with the tags t of words s to e − 1

        P = α̂(s, t_s) · Π_{s < w < e} follow(t_{w−1}, t_w) · emitted(w, t_w) · exit(e)

    where exit(e) is the mass of all endings in which no word after the entity continues it.
    temperature: divides all scores first.
    """
    chain, spans = Chain(*(scores / temperature for scores in chain)), spans_of(tags, labels)
    forward, backward, emitted = marginals(emissions / temperature, lengths, chain)
    follow = np.exp(chain.follow - chain.follow.max())
    probabilities = np.array(forward[spans.starts, tags[spans.starts]], dtype=np.float64)
    inside_mass = np.zeros(len(tags))  # of the step from each word's predecessor to it, along `tags`
    inside_mass[1:] = follow[tags[:-1], tags[1:]] * emitted[np.arange(1, len(tags)), tags[1:]]
    span_lengths = spans.ends - spans.starts
    for further in range(1, int(span_lengths.max(initial=1))):
        is_longer = span_lengths > further
        probabilities[is_longer] *= inside_mass[spans.starts[is_longer] + further]
    lasts = spans.ends - 1
    exit_mass = np.array(backward[lasts, tags[lasts]], dtype=np.float64)  # at the end of a sentence
    is_followed = ~np.isin(spans.ends, np.cumsum(lengths))
    after = spans.ends[is_followed]
    leaving = follow[tags[lasts[is_followed]]] * ~labels.continues  # (entities, tags)
    exit_mass[is_followed] = (leaving * emitted[after] * backward[after]).sum(axis=1)
    return (probabilities * exit_mass).clip(max=1.0)
