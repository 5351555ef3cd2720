"""Meanings: what a sentence says, as a tree that no language has touched yet, and which of them are sensible."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pipelines.samples.lexicon import (
    ADJECTIVES,
    DAILY,
    INDOORS,
    KINDS,
    LIVING,
    NEVER_NEGATED,
    NO_ANIMALS,
    OWNED,
    STATES,
    TIMES,
    UNCOUNTED,
    UNLIKELY,
    USED_UP,
    VERBS,
    Determiner,
    Link,
    Relation,
    Tense,
    fits,
)

COUNTED = ("two", "three", "many")
LONGEST = 7
"""Content words of a meaning; in English that makes about 14 words."""


@dataclass(frozen=True)
class Phrase:
    """A noun with what belongs to it: "the old dogs", "two books", "my friend"."""

    noun: str
    determiner: Determiner = "the"
    adjective: str | None = None
    several: bool = False

    @property
    def plural(self) -> bool:
        return self.several or self.determiner in COUNTED


@dataclass(frozen=True)
class Place:
    """Where, where to or where from."""

    relation: Relation
    noun: str


@dataclass(frozen=True)
class Clause:
    """Who does what, to what and to whom, where and when. With the verb `be`, `state` says how the subject is."""

    subject: Phrase
    verb: str
    tense: Tense
    negated: bool = False
    object: Phrase | None = None
    recipient: Phrase | None = None
    state: str | None = None
    place: Place | None = None
    time: str | None = None

    @cached_property
    def roles(self) -> dict[str, Phrase]:
        """The phrases by the role they have, those roles left out that nobody has."""
        roles = {"subject": self.subject, "object": self.object, "recipient": self.recipient}
        return {role: phrase for role, phrase in roles.items() if phrase is not None}

    def with_roles(self, roles: dict[str, Phrase]) -> "Clause":
        """The same clause with other phrases in some of its roles."""
        changes: dict[str, Any] = dict(roles)
        return replace(self, **changes)


@dataclass(frozen=True)
class Meaning:
    """One clause, or two that a link joins."""

    main: Clause
    link: Link | None = None
    second: Clause | None = None

    @property
    def clauses(self) -> list[Clause]:
        return [self.main] if self.second is None else [self.main, self.second]


def is_sensible(meaning: Meaning) -> bool:
    """Whether a person might say this, in every one of the languages."""
    nouns = [phrase.noun for clause in meaning.clauses for phrase in clause.roles.values()]
    return (
        len(set(nouns)) == len(nouns)
        and sum(_content_words(clause) for clause in meaning.clauses) <= LONGEST
        and all(_sensible_clause(clause) for clause in meaning.clauses)
        and _sensible_link(meaning)
    )


def _content_words(clause: Clause) -> int:
    phrases = clause.roles.values()
    return 1 + len(phrases) + sum(bool(part) for part in (clause.place, clause.time, *(p.adjective for p in phrases)))


def _sensible_link(meaning: Meaning) -> bool:
    main, second = meaning.main, meaning.second
    if second is None:
        return main.tense != "background"
    if second.time is not None or main.tense == "background":
        return False
    if meaning.link == "while":
        awake = main.verb != "be" and (main.tense, second.tense) in {("past", "background"), ("present", "present")}
        return awake and second.verb != "be" and not main.negated and not second.negated
    if meaning.link == "because":
        reason: tuple[Tense, ...] = ("past",) if main.tense == "past" else ("past", "present")
        return second.tense in reason and (second.tense == "past" or second.verb == "be")
    return second.tense == main.tense != "habit" and (meaning.link == "but") == (main.negated != second.negated)


def _sensible_clause(clause: Clause) -> bool:
    verb = VERBS[clause.verb]
    return (
        all(_sensible_phrase(phrase) for phrase in clause.roles.values())
        and fits_or_absent(clause.subject, verb.subjects)
        and (clause.subject.noun, clause.verb) not in UNLIKELY
        and fits_or_absent(clause.object, verb.objects)
        and fits_or_absent(clause.recipient, verb.recipients)
        and _sensible_object(clause)
        and _sensible_state(clause)
        and _sensible_place(clause)
        and _sensible_time(clause)
        and not (clause.negated and _counts(clause))
    )


def _sensible_phrase(phrase: Phrase) -> bool:
    kind = KINDS[phrase.noun]
    living = kind in LIVING
    if phrase.several and (phrase.determiner != "the" or not living or phrase.noun == "person"):
        return False
    if phrase.determiner == "my" and living and phrase.noun not in OWNED:
        return False
    if phrase.noun == "friend" and phrase.determiner in ("the", "this"):  # a friend is somebody's
        return False
    if phrase.noun in UNCOUNTED and phrase.plural:
        return False
    if phrase.adjective is None:
        return True
    described = phrase.adjective in ADJECTIVES[kind] and (phrase.noun, phrase.adjective) not in UNLIKELY
    return described and phrase.determiner != "many"


def fits_or_absent(phrase: Phrase | None, allowed: frozenset[str]) -> bool:
    """Whether the role is filled with what is allowed in it, or empty where nothing is."""
    return not allowed if phrase is None else fits(phrase.noun, allowed)


def _sensible_object(clause: Clause) -> bool:
    if clause.object is None:
        return True
    noun, determiner = clause.object.noun, clause.object.determiner
    reading_animal = KINDS[clause.subject.noun] == "animal" and KINDS[noun] in ("text", "vehicle")
    once = clause.verb in USED_UP and noun not in DAILY and determiner not in COUNTED
    writing_mine = clause.verb == "write" and determiner == "my"
    return not reading_animal and not writing_mine and not (once and clause.tense == "habit")


def _sensible_state(clause: Clause) -> bool:
    if clause.verb != "be":
        return clause.state is None
    idle_animal = clause.state == "busy" and KINDS[clause.subject.noun] == "animal"
    return clause.state is not None and not idle_animal and clause.subject.adjective not in STATES


def _sensible_place(clause: Clause) -> bool:
    verb, place = VERBS[clause.verb], clause.place
    if place is None:
        return verb.direction is None
    if KINDS[clause.subject.noun] == "animal" and place.noun in NO_ANIMALS:
        return False
    if verb.direction is not None:
        return place.relation == verb.direction
    crowded = clause.recipient is not None and clause.negated
    return place.relation in verb.places and not crowded and not (verb.inside and place.noun not in INDOORS)


def _sensible_time(clause: Clause) -> bool:
    verb = VERBS[clause.verb]
    if clause.tense not in verb.tenses:
        return False
    if clause.time is None:
        return verb.stative or clause.tense != "habit"
    timeless = verb.stative and clause.tense == "habit"
    return clause.tense in TIMES[clause.time] and not timeless and not (clause.negated and clause.time in NEVER_NEGATED)


def _counts(clause: Clause) -> bool:
    """Whether a number stands in the clause: "not two books" means several things."""
    return any(phrase.determiner in COUNTED for phrase in clause.roles.values())
