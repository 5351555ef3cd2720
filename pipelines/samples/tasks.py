"""The sample data sets: pairs with a label or a score, triplets, and parallel sentences.

Whatever is drawn first may be held out: what comes later then avoids each of its sentences, in every language.
"""

from collections.abc import Callable, Iterator
from random import Random

from pipelines.samples import edits, english, french, german, korean, spanish
from pipelines.samples.drawing import draw_meaning
from pipelines.samples.grammar import Meaning
from pipelines.samples.scores import similarity

LANGUAGES: dict[str, Callable[[Meaning], str]] = {
    "en": english.render,
    "de": german.render,
    "fr": french.render,
    "es": spanish.render,
    "ko": korean.render,
}
LABELS = ("entailment", "neutral", "contradiction")
TWINS = 0.7
"""How many drawn meanings are followed by a twin: the same words in other roles, which no dictionary tells apart."""
UNRELATED = 0.1
MARGIN = 0.5
"""By how much an anchor is more like its positive than its negative, in points of the score."""

BY_LOGIC = (edits.shortened, edits.generalised, edits.negated, edits.swapped, edits.opposed)
BY_LOT = (edits.permuted, edits.extended, edits.other_verb, edits.other_noun, edits.other_circumstance)
STEPS = (0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5)
"""How many changes lie between the two of a pair: each of these equally often."""

Row = tuple[str, ...]


def translations(meaning: Meaning) -> Row:
    """The meaning's sentence in each language, in the order of `LANGUAGES`."""
    return tuple(render(meaning) for render in LANGUAGES.values())


class Source:
    """New meanings without end, none of them given twice or held out.

    English sentences stand for meanings here: the grammar never says two meanings alike.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._given: set[str] = set()
        self._held_out: set[str] = set()
        self._meanings = self._draw()

    def new(self) -> Meaning:
        """A meaning not given before."""
        return next(self._meanings)

    def hold_out(self, meaning: Meaning) -> None:
        """Keeps `meaning` from all that is drawn from now on."""
        self._held_out.add(english.render(meaning))

    def allows(self, meaning: Meaning) -> bool:
        return english.render(meaning) not in self._held_out

    def _draw(self) -> Iterator[Meaning]:
        while True:
            meaning = draw_meaning(self.random)
            twins = edits.permuted(meaning, self.random) if self.random.random() < TWINS else []
            for drawn in (meaning, edits.pick(self.random, twins, unlike=meaning)):
                if drawn is not None and self._is_new(drawn):
                    yield drawn

    def _is_new(self, meaning: Meaning) -> bool:
        sentence = english.render(meaning)
        new = sentence not in self._given and sentence not in self._held_out
        self._given.add(sentence)
        return new


def draw_single(source: Source, count: int) -> list[tuple[Meaning]]:
    """`count` new meanings, for parallel sentences."""
    return [(source.new(),) for _ in range(count)]


def draw_labelled(source: Source, count: int) -> list[tuple[Meaning, Meaning, str]]:
    """`count` premises and hypotheses; the labels follow one another, so each has a third."""
    drawn: list[tuple[Meaning, Meaning, str]] = []
    while len(drawn) < count:
        premise, label = source.new(), LABELS[len(drawn) % len(LABELS)]
        hypothesis = _hypothesis(premise, label, source.random)
        if hypothesis is not None and source.allows(hypothesis):
            drawn.append((premise, hypothesis, label))
    return drawn


def _hypothesis(premise: Meaning, label: str, random: Random) -> Meaning | None:
    if label == "entailment":
        return _entailed(premise, random)
    if label == "contradiction":
        return _contradicting(premise, random)
    return _undecided(premise, random)


def _undecided(premise: Meaning, random: Random) -> Meaning | None:
    """What the premise leaves open: a detail more, or something else that the same do, perhaps with a detail less."""
    shorter = _entailed(premise, random) if random.random() < 0.3 else None
    known = shorter or premise
    changed = edits.extended(known, random) if random.random() < 0.6 else edits.other_verb(known, random)
    hypothesis = edits.pick(random, changed, unlike=premise)
    return None if hypothesis in edits.shortened(premise) else hypothesis


def _entailed(premise: Meaning, random: Random) -> Meaning | None:
    """One or two steps away from the premise, each of which follows."""
    first = edits.pick(random, edits.shortened(premise) + edits.generalised(premise), unlike=premise)
    if first is None or random.random() < 0.5:
        return first
    return edits.pick(random, edits.shortened(first) + edits.generalised(first), unlike=first) or first


def _contradicting(premise: Meaning, random: Random) -> Meaning | None:
    """The opposite, an exchange of roles, or a denial; what is denied already can only be asserted."""
    change = edits.negated if premise.main.negated else random.choice((edits.negated, edits.swapped, edits.opposed))
    return edits.pick(random, change(premise) or edits.negated(premise), unlike=premise)


def draw_scored(source: Source, count: int) -> list[tuple[Meaning, Meaning, float]]:
    """`count` pairs from nought to five changes apart, and some unrelated ones, with their similarity."""
    drawn: list[tuple[Meaning, Meaning, float]] = []
    while len(drawn) < count:
        first = source.new()
        second = _second(first, source.random)
        if source.allows(second):
            drawn.append((first, second, similarity(first, second)))
    return drawn


def _second(first: Meaning, random: Random) -> Meaning:
    return draw_meaning(random) if random.random() < UNRELATED else _changed(first, random.choice(STEPS), random)


def _changed(meaning: Meaning, steps: int, random: Random) -> Meaning:
    changed = meaning
    for _ in range(steps):
        changed = _changed_once(changed, random)
    return changed


def _changed_once(meaning: Meaning, random: Random) -> Meaning:
    changed = None
    while changed is None:
        changed = edits.pick(random, _any_change(meaning, random), unlike=meaning)
    return changed


def _any_change(meaning: Meaning, random: Random) -> list[Meaning]:
    if random.random() < 0.5:
        return random.choice(BY_LOGIC)(meaning)
    return random.choice(BY_LOT)(meaning, random)


def draw_triplets(source: Source, count: int) -> list[tuple[Meaning, Meaning, Meaning]]:
    """`count` anchors, each with something close to it and something less close."""
    drawn: list[tuple[Meaning, Meaning, Meaning]] = []
    while len(drawn) < count:
        anchor = source.new()
        positive, negative = _near(anchor, source.random), _changed(anchor, 2, source.random)
        if positive is None or not (source.allows(positive) and source.allows(negative)):
            continue
        if similarity(anchor, positive) >= similarity(anchor, negative) + MARGIN:
            drawn.append((anchor, positive, negative))
    return drawn


def _near(meaning: Meaning, random: Random) -> Meaning | None:
    gentle = edits.shortened(meaning) + edits.generalised(meaning) + edits.extended(meaning, random)
    return edits.pick(random, gentle, unlike=meaning)
