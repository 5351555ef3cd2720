"""Meanings: what a sentence expresses, before any language; how they are drawn, compared, and which are sensible."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from random import Random
from typing import Any, Literal, NamedTuple

from pipelines.samples.templates import Rules, load

Tense = Literal["past", "present", "habit", "future", "background"]
"""Of an action, `present` is "is reading", `habit` "reads every day", `background` "was reading"."""
Determiner = Literal["the", "this", "my", "two", "three", "many"]
Relation = Literal["at", "near", "to", "from"]
Link = Literal["because", "while", "and", "but"]

LANGUAGES = ("en", "de", "fr", "es", "ko")
LONGEST = 7
"""Content words of a meaning; in English that makes about 14 words."""
SECOND_CLAUSE, KINSHIP = 0.5, 0.5


@dataclass(frozen=True)
class Phrase:
    """A noun with what belongs to it: "the old dogs", "two books", "my friend"."""

    noun: str
    determiner: Determiner = "the"
    adjective: str | None = None
    several: bool = False

    @property
    def plural(self) -> bool:
        return self.several or self.determiner in ("two", "three", "many")


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
        """The phrases by role, without the roles that nobody has."""
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


class Verb(NamedTuple):
    """The nouns that may have each role, the direction of a movement, and the tenses."""

    subject: tuple[str, ...]
    object: tuple[str, ...]
    recipient: tuple[str, ...]
    direction: Relation | None
    tenses: tuple[Tense, ...]

    def suits(self, clause: Clause) -> bool:
        """Whether the verb may have the tense of `clause`, and exactly its roles."""
        roles = {"subject": clause.subject, "object": clause.object, "recipient": clause.recipient}
        allowed = self._asdict()
        return clause.tense in self.tenses and all(
            not allowed[role] if phrase is None else phrase.noun in allowed[role] for role, phrase in roles.items()
        )


def world(name: str) -> Any:
    """A table or list of `data/world.toml`."""
    return load("world")[name]


@cache
def kinds() -> dict[str, str]:
    """Each noun's kind."""
    return {noun: kind for kind, nouns in world("nouns").items() for noun in nouns}


@cache
def verbs() -> dict[str, Verb]:
    return {name: _verb(**row) for name, row in world("verbs").items()}


def _verb(
    subjects: list[str],
    objects: Sequence[str] = (),
    recipients: Sequence[str] = (),
    direction: Relation | None = None,
    tenses: Sequence[Tense] = (),
) -> Verb:
    return Verb(_nouns(subjects), _nouns(objects), _nouns(recipients), direction, tuple(tenses or world("tenses")))


def _nouns(allowed: Sequence[str]) -> tuple[str, ...]:
    """The nouns that are allowed by name, by kind or by a group of kinds."""
    names = {name for each in allowed for name in world("groups").get(each, [each])}
    return tuple(noun for noun, kind in kinds().items() if noun in names or kind in names)


def is_living(noun: str) -> bool:
    return kinds()[noun] in world("groups")["living"]


@cache
def rules(name: str) -> Rules:
    """Of a language, or `world`."""
    return Rules(name)


def render(meaning: Meaning, language: str) -> str:
    """`meaning` as a sentence."""
    return rules(language).sentence(features(meaning))


def translations(meaning: Meaning) -> tuple[str, ...]:
    """The meaning's sentence in each language, in the order of `LANGUAGES`."""
    return tuple(render(meaning, language) for language in LANGUAGES)


def features(meaning: Meaning) -> dict[str, Any]:
    """What rules can ask of a meaning; `data/en.toml` lists it."""
    link = meaning.link or ""
    second = "" if meaning.second is None else _of_clause(meaning.second, "second", link)
    return {"link": link, "main": _of_clause(meaning.main, "main", link), "second": second}


@lru_cache(10_000)
def _of_clause(clause: Clause, name: str, link: str) -> dict[str, Any]:
    own = {"clause": name, "link": link, "verb": clause.verb, "tense": clause.tense, "negated": _flag(clause.negated)}
    own |= {"state": clause.state or "", "time": clause.time or ""}
    phrases: dict[str, Any] = {"object": "", "recipient": "", "place": ""}
    phrases |= {role: {**own, "role": role, **_of_phrase(phrase)} for role, phrase in clause.roles.items()}
    if clause.place is not None:
        at = {"role": "place", "relation": clause.place.relation}
        phrases["place"] = {**own, **at, **_of_phrase(Phrase(clause.place.noun))}
    return {**own, **phrases}


@cache
def _of_phrase(phrase: Phrase) -> dict[str, str]:
    return {
        "noun": phrase.noun,
        "kind": kinds()[phrase.noun],
        "living": _flag(is_living(phrase.noun)),
        "determiner": phrase.determiner,
        "adjective": phrase.adjective or "",
        "several": _flag(phrase.several),
        "number": "plural" if phrase.plural else "singular",
    }


def _flag(condition: bool) -> str:
    return "yes" if condition else ""


def is_sensible(meaning: Meaning) -> bool:
    """Whether a person might say this, in every one of the languages."""
    nouns = [phrase.noun for clause in meaning.clauses for phrase in clause.roles.values()]
    return (
        len(set(nouns)) == len(nouns)
        and sum(_content_words(clause) for clause in meaning.clauses) <= LONGEST
        and all(_is_sensible_clause(clause) for clause in meaning.clauses)
        and not rules("world").value("sentence_nonsense", features(meaning))
    )


def _content_words(clause: Clause) -> int:
    phrases = clause.roles.values()
    return 1 + len(phrases) + sum(bool(part) for part in (clause.place, clause.time, *(p.adjective for p in phrases)))


@lru_cache(10_000)
def _is_sensible_clause(clause: Clause) -> bool:
    return (
        verbs()[clause.verb].suits(clause)
        and (clause.time is None or clause.tense in world("times")[clause.time])
        and all(_is_sensible_phrase(phrase) for phrase in clause.roles.values())
        and not rules("world").value("clause_nonsense", _of_clause(clause, "main", ""))
    )


@cache
def _is_sensible_phrase(phrase: Phrase) -> bool:
    described = phrase.adjective in (None, *world("adjectives")[kinds()[phrase.noun]])
    return described and not rules("world").value("phrase_nonsense", _of_phrase(phrase))


def draw_meaning(random: Random) -> Meaning:
    """A sensible meaning; three in ten have two clauses."""
    draw = _draw_pair if random.random() < 0.3 else _draw_single
    meaning = draw(random)
    while not is_sensible(meaning):
        meaning = draw(random)
    return meaning


def _draw_single(random: Random) -> Meaning:
    return Meaning(draw_clause(random, random.choice(tuple(verbs())), details=0.45))


def _draw_pair(random: Random) -> Meaning:
    return with_second(draw_clause(random, random.choice(tuple(verbs())), details=0.1), random)


def with_second(main: Clause, random: Random) -> Meaning:
    """`main` and a drawn second clause whose tense and negation follow it; not always a sensible pair."""
    link: Link = random.choice(world("links"))
    reason_is_state = link == "because" and random.random() < 0.6
    verb = "be" if reason_is_state else random.choice(tuple(verbs()))
    second = replace(draw_clause(random, verb, details=0.1), time=None)
    if link == "while":
        return Meaning(main, link, replace(second, tense="background" if main.tense == "past" else "present"))
    if link == "because":
        present = second.verb == "be" and main.tense != "past"
        return Meaning(main, link, replace(second, tense="present" if present else "past"))
    negated = main.negated if link == "and" else not main.negated
    return Meaning(main, link, replace(second, tense=main.tense, negated=negated))


def draw_clause(random: Random, name: str, details: float) -> Clause:
    """A clause with the verb `name`, each detail there with probability `details`; not always a sensible one."""
    verb, tense = verbs()[name], draw_tense(random, name)
    return Clause(
        subject=draw_phrase(random, verb.subject, details),
        verb=name,
        tense=tense,
        negated=random.random() < 0.2,
        object=draw_phrase(random, verb.object, details) if verb.object else None,
        recipient=draw_phrase(random, verb.recipient, details / 2) if verb.recipient else None,
        state=random.choice(world("states")) if name == "be" else None,
        place=draw_place(random, verb.direction, details),
        time=draw_time(random, tense, 1.0 if tense == "habit" and name not in ("see", "love") else details),
    )


def draw_tense(random: Random, verb: str) -> Tense:
    return random.choice([tense for tense in verbs()[verb].tenses if tense != "background"])


def draw_phrase(random: Random, nouns: tuple[str, ...], details: float) -> Phrase:
    """One of `nouns`, often with a determiner of its own or an adjective."""
    noun = random.choice(nouns)
    determiner: Determiner = random.choice(world("determiners"))
    adjective = random.choice(world("adjectives")[kinds()[noun]]) if random.random() < details else None
    return Phrase(noun, determiner, adjective, determiner == "the" and is_living(noun) and random.random() < 0.25)


def draw_place(random: Random, direction: Relation | None, details: float) -> Place | None:
    """A place that the verb asks for, or with probability `details` one where it happens."""
    if direction is None and random.random() >= details:
        return None
    relation: Relation = random.choice(world("relations")) if direction is None else direction
    return Place(relation, random.choice(world("nouns")["place"]))


def draw_time(random: Random, tense: Tense, share: float) -> str | None:
    """With probability `share`, a time that goes with `tense`."""
    times = [time for time, tenses in world("times").items() if tense in tenses]
    return random.choice(times) if random.random() < share else None


def similarity(first: Meaning, second: Meaning) -> float:
    """From 0 (nothing shared) to 5 (the same meaning): 5 · shared weight / weight of all parts of either.

    A part is shared where the same role is filled alike; a dog and an animal share half. Verb 3, negation 2, tense 1
    (both only under the same verb); subject, object, recipient 2 each, their adjective 1 and number ½ (only on the
    same noun); place 1½, time 1, link ½; in the second clause half of all that. The same words in other roles
    share nothing.
    """
    left, right = dict(_parts(first)), dict(_parts(second))
    total = sum(weight for _, weight in {**left, **right}.values())
    common = sorted(left.keys() & right.keys())
    return round(5 * sum(left[part][1] * _agreement(left[part][0], right[part][0]) for part in common) / total, 2)


def _parts(meaning: Meaning) -> Iterator[tuple[str, tuple[Any, float]]]:
    """Each part of a meaning: what fills it and how much it weighs."""
    yield from _clause_parts("main", meaning.main, 1.0)
    if meaning.second is not None:
        yield "link", (meaning.link, 0.5)
        yield from _clause_parts("second", meaning.second, SECOND_CLAUSE)


def _clause_parts(name: str, clause: Clause, scale: float) -> Iterator[tuple[str, tuple[Any, float]]]:
    verb = (clause.verb, clause.state)
    yield f"{name} verb", (verb, 3 * scale)
    yield f"{name} negation", ((verb, clause.negated), 2 * scale)
    yield f"{name} tense", ((verb, clause.tense), scale)
    for role, phrase in clause.roles.items():
        yield f"{name} {role}", (phrase.noun, 2 * scale)
        yield f"{name} {role} number", ((phrase.noun, phrase.determiner, phrase.several), 0.5 * scale)
        if phrase.adjective is not None:
            yield f"{name} {role} adjective", ((phrase.noun, phrase.adjective), scale)
    if clause.place is not None:
        yield f"{name} place", (clause.place, 1.5 * scale)
    if clause.time is not None:
        yield f"{name} time", (clause.time, scale)


def _agreement(first: Any, second: Any) -> float:
    if first == second:
        return 1.0
    return KINSHIP if _is_a(first, second) or _is_a(second, first) else 0.0


def _is_a(noun: Any, hypernym: Any) -> bool:
    return noun in kinds() and world("hypernyms").get(kinds()[noun]) == hypernym
