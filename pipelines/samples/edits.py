"""Changes of a meaning whose logic is known: what follows from it, what contradicts it, what says more or other things.

Each function lists candidates; `pick` takes one that is sensible.
"""

from collections.abc import Iterable
from dataclasses import replace
from random import Random

from pipelines.samples.drawing import draw_phrase, draw_place, draw_time, with_second
from pipelines.samples.grammar import Clause, Meaning, is_sensible
from pipelines.samples.lexicon import ABOVE, ADJECTIVES, ANTONYMS, KINDS, LIVING, VERBS, Determiner, Tense

ROLES = ("subject", "object", "recipient")
OPPOSITES = ANTONYMS | {second: first for first, second in ANTONYMS.items() if (first, second) != ("new", "old")}


def pick(random: Random, candidates: Iterable[Meaning], unlike: Meaning) -> Meaning | None:
    """A sensible candidate other than `unlike`; None where there is none."""
    shuffled = list(candidates)
    random.shuffle(shuffled)
    return next((meaning for meaning in shuffled if meaning != unlike and is_sensible(meaning)), None)


def shortened(meaning: Meaning) -> list[Meaning]:
    """What follows by leaving something out. Under "not" only the subject may lose a detail: who it is stays known."""
    main = meaning.main
    clauses = [Meaning(clause) for clause in meaning.clauses if meaning.second is not None]
    if main.negated:
        return [*clauses, *_without_adjectives(meaning, ROLES[:1])]
    return [
        *clauses,
        *_without_adjectives(meaning, ROLES),
        _changed(meaning, replace(main, place=None)),
        _changed(meaning, replace(main, time=None)),
    ]


def _changed(meaning: Meaning, main: Clause) -> Meaning:
    return replace(meaning, main=main)


def _without_adjectives(meaning: Meaning, roles: Iterable[str]) -> list[Meaning]:
    return _each_phrase(meaning, roles, adjective=None)


def _each_phrase(meaning: Meaning, roles: Iterable[str], **changes: object) -> list[Meaning]:
    """One candidate for each role of the main clause that is filled, with the changes made in its phrase."""
    main = meaning.main
    filled = [(role, getattr(main, role)) for role in roles if getattr(main, role) is not None]
    return [_changed(meaning, replace(main, **{role: replace(phrase, **changes)})) for role, phrase in filled]


def generalised(meaning: Meaning) -> list[Meaning]:
    """What follows by naming a kind instead of one of it: a dog is an animal."""
    main = meaning.main
    return [
        changed
        for role in (ROLES[:1] if main.negated else ROLES)
        if (phrase := getattr(main, role)) is not None and KINDS[phrase.noun] in ABOVE
        for changed in _each_phrase(meaning, [role], noun=ABOVE[KINDS[phrase.noun]])
    ]


def negated(meaning: Meaning) -> list[Meaning]:
    """The main clause denied, or asserted where it was denied, alone."""
    main = meaning.main
    return [Meaning(replace(main, negated=not main.negated))]


def swapped(meaning: Meaning) -> list[Meaning]:
    """Who does it and to whom, exchanged; or to whom and what."""
    main = meaning.main
    other = main.recipient or main.object
    if other is None or KINDS[other.noun] not in LIVING:
        return []
    role = "recipient" if main.recipient else "object"
    return [_changed(meaning, replace(main, subject=other, **{role: main.subject}))]


def adjective_moved(meaning: Meaning) -> list[Meaning]:
    """The same adjective, said of another."""
    main = meaning.main
    if main.object is None or main.subject.adjective == main.object.adjective:
        return []
    subject = replace(main.subject, adjective=main.object.adjective)
    return [_changed(meaning, replace(main, subject=subject, object=replace(main.object, adjective=main.subject.adjective)))]


def opposed(meaning: Meaning) -> list[Meaning]:
    """The opposite adjective, state or verb."""
    main = meaning.main
    candidates = [
        changed
        for role in ROLES
        if (phrase := getattr(main, role)) is not None and phrase.adjective in OPPOSITES
        for changed in _each_phrase(meaning, [role], adjective=OPPOSITES[phrase.adjective])
    ]
    if main.state in OPPOSITES:
        candidates.append(_changed(meaning, replace(main, state=OPPOSITES[main.state])))
    if main.verb in OPPOSITES:
        candidates.append(_changed(meaning, replace(main, verb=OPPOSITES[main.verb])))
    return candidates


def extended(meaning: Meaning, random: Random) -> list[Meaning]:
    """A detail more, which the meaning leaves open."""
    main = meaning.main
    candidates = [
        changed
        for role in ROLES
        if (phrase := getattr(main, role)) is not None and phrase.adjective is None and ADJECTIVES[KINDS[phrase.noun]]
        for changed in _each_phrase(meaning, [role], adjective=random.choice(ADJECTIVES[KINDS[phrase.noun]]))
    ]
    if main.place is None:
        candidates.append(_changed(meaning, replace(main, place=draw_place(random, None, 1.0))))
    if main.time is None:
        candidates.append(_changed(meaning, replace(main, time=draw_time(random, main.tense, 1.0))))
    return candidates if meaning.second is not None else [*candidates, with_second(main, random)]


def other_verb(meaning: Meaning, random: Random) -> list[Meaning]:
    """Something else happens among the same."""
    main = meaning.main
    verbs = [verb for verb in VERBS if verb not in (main.verb, "be", OPPOSITES.get(main.verb))]
    return [_changed(meaning, replace(main, verb=verb)) for verb in random.sample(verbs, len(verbs))]


def other_noun(meaning: Meaning, random: Random) -> list[Meaning]:
    """Another takes a role."""
    main, frame = meaning.main, VERBS[meaning.main.verb]
    allowed = {"subject": frame.subjects, "object": frame.objects, "recipient": frame.recipients}
    return [
        changed
        for role in ROLES
        if getattr(main, role) is not None
        for changed in _each_phrase(meaning, [role], noun=draw_phrase(random, allowed[role], 0.0).noun)
    ]


def other_circumstance(meaning: Meaning, random: Random) -> list[Meaning]:
    """Another time, place, tense or number, or another second clause."""
    main = meaning.main
    tense: Tense = random.choice([tense for tense in VERBS[main.verb].tenses if tense != main.tense] or [main.tense])
    determiner: Determiner = random.choice(("the", "this", "my", "two", "three"))
    candidates = _each_phrase(meaning, ROLES, determiner=determiner, several=False)
    candidates.append(_changed(meaning, replace(main, tense=tense)))
    candidates.append(_changed(meaning, replace(main, tense=tense, time=draw_time(random, tense, 1.0))))
    if main.place is not None:
        candidates.append(_changed(meaning, replace(main, place=draw_place(random, main.place.relation, 1.0))))
    if main.time is not None:
        candidates.append(_changed(meaning, replace(main, time=draw_time(random, main.tense, 1.0))))
    return candidates if meaning.second is None else [*candidates, with_second(main, random)]


def minimal_pairs(meaning: Meaning) -> list[Meaning]:
    """The same words in other roles, or one small word more or less: what looking up words cannot tell apart."""
    main = meaning.main
    tenses: tuple[Tense, ...] = ("past", "present", "habit", "future")
    return [
        *swapped(meaning) * 2,
        *adjective_moved(meaning),
        _changed(meaning, replace(main, negated=not main.negated)),
        *(_changed(meaning, replace(main, tense=tense)) for tense in tenses if tense != main.tense),
    ]
