"""Sample sentences: meanings, and pairs and triplets whose logic is known because each is an edited meaning."""

from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from random import Random
from typing import Any

from scripts.sample_sentences.meanings import (
    Features,
    clauses_of,
    draw_meaning,
    draw_phrase,
    draw_place,
    draw_tense,
    draw_time,
    is_sensible,
    kinds,
    meaning_of,
    nouns_of,
    roles_of,
    similarity,
    suits,
    with_second,
    world,
)

LABELS = ("entailment", "neutral", "contradiction")

TWINS = 0.7  # of drawn meanings, those followed by one of the same words in other roles, alike for any dictionary
UNRELATED = 0.1
MARGIN = 0.5  # by how much an anchor is more similar to its positive than to its negative, in points of the score
EDITS = (0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5)  # how many lie between the two of a pair: each of these equally often

Item = tuple[Features | str | float, ...]


class Meanings:
    """New meanings without end, each only once and none that is held out."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._seen: set[Features] = set()
        self._held_out: set[Features] = set()
        self._meanings = self._draw()

    def new(self) -> Features:
        """A meaning not drawn before."""
        return next(self._meanings)

    def hold_out(self, items: Iterable[Item]) -> None:
        """Keeps the meanings of `items` from all that is drawn from now on."""
        self._held_out |= {part for item in items for part in item if isinstance(part, Features)}

    def allows(self, *meanings: Features) -> bool:
        return self._held_out.isdisjoint(meanings)

    def _draw(self) -> Iterator[Features]:
        while True:
            meaning = draw_meaning(self.random)
            twins = permuted(meaning, self.random) if self.random.random() < TWINS else []
            for drawn in (meaning, pick(self.random, twins, unlike=meaning)):
                if drawn is not None and drawn not in self._seen and self.allows(drawn):
                    self._seen.add(drawn)
                    yield drawn


def singles(source: Meanings) -> Iterator[tuple[Features]]:
    """New meanings, for parallel sentences."""
    while True:
        yield (source.new(),)


def labelled(source: Meanings) -> Iterator[tuple[Features, Features, str]]:
    """Premises and hypotheses; the labels follow one another, so each has a third."""
    for label in cycle(LABELS):
        hypothesis = None
        while hypothesis is None or not source.allows(hypothesis):
            premise = source.new()
            hypothesis = HYPOTHESES[label](premise, source.random)
        yield premise, hypothesis, label


def _neutral(premise: Features, random: Random) -> Features | None:
    """What the premise leaves open: a detail more, or something else that the same do, perhaps with a detail less."""
    shorter = _entailed(premise, random) if random.random() < 0.3 else None
    known = shorter or premise
    edited = extended(known, random) if random.random() < 0.6 else other_verb(known, random)
    hypothesis = pick(random, edited, unlike=premise)
    return None if hypothesis in shortened(premise) else hypothesis


def _entailed(premise: Features, random: Random) -> Features | None:
    """One or two edits away from the premise, each of which follows."""
    first = pick(random, shortened(premise) + generalised(premise), unlike=premise)
    if first is None or random.random() < 0.5:
        return first
    return pick(random, shortened(first) + generalised(first), unlike=first) or first


def _contradicting(premise: Features, random: Random) -> Features | None:
    """The opposite, an exchange of roles, or a denial; what is denied already can only be asserted."""
    edit = negated if premise["main"]["negated"] else random.choice((negated, swapped, opposed))
    return pick(random, edit(premise) or negated(premise), unlike=premise)


HYPOTHESES: dict[str, Callable[[Features, Random], Features | None]] = dict(
    zip(LABELS, (_entailed, _neutral, _contradicting), strict=True)
)


def scored(source: Meanings) -> Iterator[tuple[Features, Features, float]]:
    """Pairs from nought to five edits apart, and some unrelated ones, with their similarity."""
    random = source.random
    while True:
        first = source.new()
        second = draw_meaning(random) if random.random() < UNRELATED else _edited(first, random.choice(EDITS), random)
        if source.allows(second):
            yield first, second, similarity(first, second)


def triplets(source: Meanings) -> Iterator[tuple[Features, Features, Features]]:
    """Anchors, each with something similar and something less similar."""
    while True:
        anchor = source.new()
        gentle = shortened(anchor) + generalised(anchor) + extended(anchor, source.random)
        positive, negative = pick(source.random, gentle, unlike=anchor), _edited(anchor, 2, source.random)
        if positive is None or not source.allows(positive, negative):
            continue
        if similarity(anchor, positive) >= similarity(anchor, negative) + MARGIN:
            yield anchor, positive, negative


def _edited(meaning: Features, edits: int, random: Random) -> Features:
    for _ in range(edits):
        edited = None
        while edited is None:
            if random.random() < 0.5:
                candidates = random.choice((shortened, generalised, negated, swapped, opposed))(meaning)
            else:
                edit = random.choice((permuted, extended, other_verb, other_noun, other_circumstance))
                candidates = edit(meaning, random)
            edited = pick(random, candidates, unlike=meaning)
        meaning = edited
    return meaning


def pick(random: Random, candidates: Iterable[Features], unlike: Features) -> Features | None:
    """A sensible candidate other than `unlike`; None where there is none."""
    shuffled = list(candidates)
    random.shuffle(shuffled)
    return next((meaning for meaning in shuffled if meaning != unlike and is_sensible(meaning)), None)


def _in_main(meaning: Features, **changes: Any) -> Features:
    return meaning.but(main=meaning["main"].but(**changes))


def _in_role(meaning: Features, role: str, **changes: Any) -> Features:
    return _placed(meaning, "main", role, meaning["main"][role].but(**changes))


def _named(meaning: Features, role: str, noun: str) -> Features:
    return _in_role(meaning, role, noun=noun, kind=kinds()[noun])


def shortened(meaning: Features) -> list[Features]:
    """What follows by leaving something out. Under "not" only the subject may lose a detail: who it is stays known."""
    clauses = [meaning_of(clause) for clause in clauses_of(meaning) if meaning["second"]]
    plainer = [_in_role(meaning, role, adjective="") for role in _known_roles(meaning)]
    bare = [] if meaning["main"]["negated"] else [_in_main(meaning, place=""), _in_main(meaning, time="")]
    return clauses + plainer + bare


def generalised(meaning: Features) -> list[Features]:
    """What follows by naming a kind instead of one of it: a dog is an animal."""
    hypernyms = {role: world("hypernyms").get(meaning["main"][role]["kind"]) for role in _known_roles(meaning)}
    return [_named(meaning, role, hypernym) for role, hypernym in hypernyms.items() if hypernym]


def _known_roles(meaning: Features) -> list[str]:
    """The roles that may lose a detail while the main clause still follows."""
    return ["subject"] if meaning["main"]["negated"] else list(roles_of(meaning["main"]))


def negated(meaning: Features) -> list[Features]:
    """The main clause denied, or asserted where it was denied, alone."""
    return [meaning_of(meaning["main"].but(negated=not meaning["main"]["negated"]))]


def swapped(meaning: Features) -> list[Features]:
    """Who does it, and to whom, exchanged."""
    roles = roles_of(meaning["main"])
    other = "recipient" if "recipient" in roles else "object"
    if other not in roles or roles[other]["kind"] not in world("groups")["living"]:
        return []
    return [_in_main(meaning, **{"subject": roles[other], other: roles["subject"]})]


def opposed(meaning: Features) -> list[Features]:
    """The opposite adjective, state or verb."""
    main, opposites = meaning["main"], _opposites()
    adjectives = {role: phrase["adjective"] for role, phrase in roles_of(main).items()}
    return [_in_role(meaning, role, adjective=opposites[a]) for role, a in adjectives.items() if a in opposites] + [
        _in_main(meaning, **{name: opposites[main[name]]}) for name in ("state", "verb") if main[name] in opposites
    ]


def _opposites() -> dict[str, str]:
    antonyms: dict[str, str] = world("antonyms")
    return antonyms | {second: first for first, second in antonyms.items() if first != "new"}  # old: young


def permuted(meaning: Features, random: Random) -> list[Features]:
    """The same words in other roles: two phrases exchanged, or their adjectives, or all but their adjectives."""
    places = [(name, role) for name in ("main", "second") if meaning[name] for role in roles_of(meaning[name])]
    if len(places) < 2:
        return []
    first, second = (places[index] for index in sorted(random.sample(range(len(places)), 2)))
    one, other = (meaning[name][role] for name, role in (first, second))
    exchanges = (
        (other, one),
        (one.but(adjective=other["adjective"]), other.but(adjective=one["adjective"])),
        (other.but(adjective=one["adjective"]), one.but(adjective=other["adjective"])),
    )
    return [_placed(_placed(meaning, *first, phrase), *second, beside) for phrase, beside in exchanges]


def _placed(meaning: Features, clause: str, role: str, phrase: Features) -> Features:
    return meaning.but(**{clause: meaning[clause].but(**{role: phrase})})


def extended(meaning: Features, random: Random) -> list[Features]:
    """A detail more, which the meaning leaves open. Under "not", a place or a time would say less instead."""
    main = meaning["main"]
    bare = {role: phrase["kind"] for role, phrase in roles_of(main).items() if not phrase["adjective"]}
    found = [_in_role(meaning, role, adjective=random.choice(world("adjectives")[kind])) for role, kind in bare.items()]
    if not main["place"] and not main["negated"]:
        found.append(_in_main(meaning, place=draw_place(random, None, 1.0)))
    if not main["time"] and not main["negated"]:
        found.append(_in_main(meaning, time=draw_time(random, main["tense"], 1.0)))
    return found if meaning["second"] else [*found, with_second(main, random)]


def other_verb(meaning: Features, random: Random) -> list[Features]:
    """Something else happens among the same."""
    main = meaning["main"]
    excluded = (main["verb"], "be", _opposites().get(main["verb"]))
    fitting = [verb for verb in world("verbs") if verb not in excluded and suits(verb, main)]
    return [_in_main(meaning, verb=verb) for verb in random.sample(fitting, min(len(fitting), 3))]


def other_noun(meaning: Features, random: Random) -> list[Features]:
    """Another takes a role."""
    allowed = nouns_of(meaning["main"]["verb"])
    drawn = {role: draw_phrase(random, allowed[role], 0.0)["noun"] for role in roles_of(meaning["main"])}
    return [_named(meaning, role, noun) for role, noun in drawn.items()]


def other_circumstance(meaning: Features, random: Random) -> list[Features]:
    """Another time, place, tense or number, or another second clause."""
    main = meaning["main"]
    tense = draw_tense(random, main["verb"])
    determiners = {role: random.choice(world("determiners")) for role in roles_of(main)}
    found = [_in_role(meaning, role, determiner=each, several=False) for role, each in determiners.items()]
    found.append(_in_main(meaning, tense=tense))
    found.append(_in_main(meaning, tense=tense, time=draw_time(random, tense, 1.0)))
    if main["place"]:
        found.append(_in_main(meaning, place=draw_place(random, main["place"]["relation"], 1.0)))
    if main["time"]:
        found.append(_in_main(meaning, time=draw_time(random, main["tense"], 1.0)))
    return [*found, with_second(main, random)] if meaning["second"] else found
