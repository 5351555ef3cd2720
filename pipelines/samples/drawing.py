"""Drawing meanings: a function of the generator handed in, and of nothing else."""

from dataclasses import replace
from functools import cache
from random import Random

from pipelines.samples.grammar import Clause, Meaning, Phrase, Place, is_sensible
from pipelines.samples.lexicon import (
    ADJECTIVES,
    KINDS,
    LIVING,
    STATES,
    TIMES,
    VERBS,
    Determiner,
    Link,
    Relation,
    Tense,
    fits,
)

DETERMINERS: tuple[Determiner, ...] = (*("the",) * 8, "this", "this", "my", "my", "two", "three", "many")
PLACES = tuple(noun for noun, kind in KINDS.items() if kind == "place")
AROUND: tuple[Relation, ...] = ("at", "at", "near")
LINKS: tuple[Link, ...] = ("because", *("while",) * 4, "and", "but")


def draw_meaning(random: Random) -> Meaning:
    """A sensible meaning; three in ten have two clauses."""
    draw = _draw_pair if random.random() < 0.3 else _draw_single
    meaning = draw(random)
    while not is_sensible(meaning):
        meaning = draw(random)
    return meaning


def _draw_single(random: Random) -> Meaning:
    return Meaning(draw_clause(random, random.choice(tuple(VERBS)), details=0.45))


def _draw_pair(random: Random) -> Meaning:
    return with_second(draw_clause(random, random.choice(tuple(VERBS)), details=0.1), random)


def with_second(main: Clause, random: Random) -> Meaning:
    """`main` and a drawn second clause whose tense and negation follow it; not always a sensible pair."""
    link = random.choice(LINKS)
    reason_is_state = link == "because" and random.random() < 0.6
    verb = "be" if reason_is_state else random.choice(tuple(VERBS))
    second = replace(draw_clause(random, verb, details=0.1), time=None)
    if link == "while":
        return Meaning(main, link, replace(second, tense="background" if main.tense == "past" else "present"))
    if link == "because":
        present = second.verb == "be" and main.tense != "past"
        return Meaning(main, link, replace(second, tense="present" if present else "past"))
    negated = main.negated if link == "and" else not main.negated
    return Meaning(main, link, replace(second, tense=main.tense, negated=negated))


def draw_clause(random: Random, verb: str, details: float) -> Clause:
    """A clause with `verb`, each of its details there with probability `details`; not always a sensible one."""
    frame = VERBS[verb]
    tense = random.choice([tense for tense in frame.tenses if tense != "background"])
    return Clause(
        subject=draw_phrase(random, frame.subjects, details),
        verb=verb,
        tense=tense,
        negated=random.random() < 0.2,
        object=draw_phrase(random, frame.objects, details) if frame.objects else None,
        recipient=draw_phrase(random, frame.recipients, details / 2) if frame.recipients else None,
        state=random.choice(STATES) if verb == "be" else None,
        place=draw_place(random, frame.direction, details),
        time=draw_time(random, tense, 1.0 if tense == "habit" and not frame.stative else details),
    )


def draw_phrase(random: Random, allowed: frozenset[str], details: float) -> Phrase:
    """A noun of an allowed kind, often with a determiner of its own or an adjective."""
    noun = random.choice(_nouns(allowed))
    determiner = random.choice(DETERMINERS)
    adjectives = ADJECTIVES[KINDS[noun]]
    return Phrase(
        noun,
        determiner,
        adjective=random.choice(adjectives) if random.random() < details else None,
        several=determiner == "the" and KINDS[noun] in LIVING and random.random() < 0.25,
    )


@cache
def _nouns(allowed: frozenset[str]) -> tuple[str, ...]:
    return tuple(noun for noun in KINDS if fits(noun, allowed))


def draw_place(random: Random, direction: Relation | None, details: float) -> Place | None:
    """A place that the verb asks for, or with probability `details` one where it happens."""
    if direction is None and random.random() >= details:
        return None
    relation = random.choice(AROUND) if direction is None else direction
    return Place(relation, random.choice(PLACES))


def draw_time(random: Random, tense: Tense, share: float) -> str | None:
    """With probability `share`, a time that goes with `tense`."""
    return random.choice(_times(tense)) if random.random() < share else None


@cache
def _times(tense: Tense) -> tuple[str, ...]:
    return tuple(time for time, tenses in TIMES.items() if tense in tenses)
