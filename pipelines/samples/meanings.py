"""Meanings: what a sentence expresses, before any language; how they are drawn, compared, and which are sensible."""

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from random import Random
from typing import Any, Literal, NamedTuple

from pipelines.samples.templates import Rules, Scope, load

Tense = Literal["past", "present", "habit", "future", "background"]
"""Of an action, `present` is "is reading", `habit` "reads every day", `background` "was reading"."""
Determiner = Literal["the", "this", "my", "two", "three", "many"]
Relation = Literal["at", "near", "to", "from"]
Link = Literal["because", "while", "and", "but"]

LANGUAGES = ("en", "de", "fr", "es", "ko")
LONGEST = 7
"""Content words of a meaning; in English that makes about 14 words."""
SECOND_CLAUSE, KINSHIP = 0.5, 0.5
ROLES = ("subject", "object", "recipient")
OF_PHRASES = ("verb", "tense", "negated", "state", "time")
"""The features of a clause that its phrases have as well."""


class Phrase(NamedTuple):
    """A noun with what belongs to it: "the old dogs", "two books", "my friend"."""

    noun: str
    determiner: Determiner = "the"
    adjective: str | None = None
    several: bool = False


class Place(NamedTuple):
    """Where, where to or where from."""

    relation: Relation
    noun: str


class Clause(NamedTuple):
    """Who does what, to what and to whom, where and when. With the verb `be`, `state` is how the subject is."""

    subject: Phrase
    verb: str
    tense: Tense
    negated: bool = False
    object: Phrase | None = None
    recipient: Phrase | None = None
    state: str | None = None
    place: Place | None = None
    time: str | None = None

    @property
    def roles(self) -> dict[str, Phrase]:
        """The phrases by role, without the roles that nobody has."""
        return {role: phrase for role in ROLES if (phrase := getattr(self, role)) is not None}

    def but(self, **changes: Any) -> "Clause":
        return self._replace(**changes)


class Meaning(NamedTuple):
    """One clause, or two that a link joins."""

    main: Clause
    link: Link | None = None
    second: Clause | None = None

    @property
    def clauses(self) -> list[Clause]:
        return [self.main] if self.second is None else [self.main, self.second]


class Verb(NamedTuple):
    """The nouns that may have each of its roles, the direction of a movement, and the tenses."""

    nouns: dict[str, tuple[str, ...]]
    direction: Relation | None
    tenses: list[Tense]

    def suits(self, clause: Clause) -> bool:
        """Whether the verb may have the tense of `clause`, and exactly its roles."""
        roles = clause.roles
        return (
            clause.tense in self.tenses
            and roles.keys() == self.nouns.keys()
            and all(phrase.noun in self.nouns[role] for role, phrase in roles.items())
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
    return {
        name: Verb(
            {role: _nouns(row[role]) for role in ROLES if role in row},
            row.get("direction"),
            row.get("tenses", world("tenses")),
        )
        for name, row in world("verbs").items()
    }


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


def features(meaning: Meaning) -> dict[str, Any]:
    """What rules can ask of a meaning; `data/en.toml` lists it."""
    link = meaning.link or ""
    second = "" if meaning.second is None else _of_clause(meaning.second, "second", link)
    return {"link": link, "main": _of_clause(meaning.main, "main", link), "second": second}


@lru_cache(10_000)
def _of_clause(clause: Clause, name: str, link: str) -> dict[str, Any]:
    own = {key: value or "" for key, value in clause._asdict().items()} | {"clause": name, "link": link}
    shared = {key: own[key] for key in ("clause", "link", *OF_PHRASES)}
    phrases = {role: {**shared, "role": role, **_of_phrase(phrase)} for role, phrase in clause.roles.items()}
    if clause.place is not None:
        at = {"role": "place", "relation": clause.place.relation}
        phrases["place"] = {**shared, **at, **_of_phrase(Phrase(clause.place.noun))}
    return own | phrases


@cache
def _of_phrase(phrase: Phrase) -> dict[str, Any]:
    plural = phrase.several or phrase.determiner in ("two", "three", "many")
    return {key: value or "" for key, value in phrase._asdict().items()} | {
        "kind": kinds()[phrase.noun],
        "living": is_living(phrase.noun),
        "number": "plural" if plural else "singular",
    }


def is_sensible(meaning: Meaning) -> bool:
    """Whether a person might say this, in every one of the languages."""
    nouns = [phrase.noun for clause in meaning.clauses for phrase in clause.roles.values()]
    return (
        len(set(nouns)) == len(nouns)
        and sum(map(_content_words, meaning.clauses)) <= LONGEST
        and all(map(_is_sensible_clause, meaning.clauses))
        and not _nonsense("sentence", features(meaning))
    )


def _content_words(clause: Clause) -> int:
    phrases = clause.roles.values()
    return 1 + len(phrases) + sum(bool(part) for part in (clause.place, clause.time, *(p.adjective for p in phrases)))


@lru_cache(10_000)
def _is_sensible_clause(clause: Clause) -> bool:
    return (
        verbs()[clause.verb].suits(clause)
        and (clause.time is None or clause.tense in world("times")[clause.time])
        and all(map(_is_sensible_phrase, clause.roles.values()))
        and not _nonsense("clause", _of_clause(clause, "main", ""))
    )


@cache
def _is_sensible_phrase(phrase: Phrase) -> bool:
    described = phrase.adjective in (None, *world("adjectives")[kinds()[phrase.noun]])
    return described and not _nonsense("phrase", _of_phrase(phrase))


def _nonsense(of: str, found: dict[str, Any]) -> str:
    """Why nobody would say it; nothing where it is sensible."""
    why: str = Scope(rules("world"), found)[f"{of}_nonsense"]
    return why


def draw_meaning(random: Random) -> Meaning:
    """A sensible meaning; three in ten have two clauses."""
    has_second = random.random() < 0.3
    while True:
        main = draw_clause(random, random.choice(tuple(verbs())), details=0.1 if has_second else 0.45)
        meaning = with_second(main, random) if has_second else Meaning(main)
        if is_sensible(meaning):
            return meaning


def with_second(main: Clause, random: Random) -> Meaning:
    """`main` and a drawn second clause whose tense and negation follow it; not always a sensible pair."""
    link: Link = random.choice(world("links"))
    reason_is_state = link == "because" and random.random() < 0.6
    verb = "be" if reason_is_state else random.choice(tuple(verbs()))
    second = draw_clause(random, verb, details=0.1).but(time=None)
    if link == "while":
        return Meaning(main, link, second.but(tense="background" if main.tense == "past" else "present"))
    if link == "because":
        present = second.verb == "be" and main.tense != "past"
        return Meaning(main, link, second.but(tense="present" if present else "past"))
    return Meaning(main, link, second.but(tense=main.tense, negated=main.negated != (link == "but")))


def draw_clause(random: Random, name: str, details: float) -> Clause:
    """A clause with the verb `name`, each detail there with probability `details`; not always a sensible one."""
    nouns, tense = verbs()[name].nouns, draw_tense(random, name)
    return Clause(
        subject=draw_phrase(random, nouns["subject"], details),
        verb=name,
        tense=tense,
        negated=random.random() < 0.2,
        object=draw_phrase(random, nouns["object"], details) if "object" in nouns else None,
        recipient=draw_phrase(random, nouns["recipient"], details / 2) if "recipient" in nouns else None,
        state=random.choice(world("states")) if name == "be" else None,
        place=draw_place(random, verbs()[name].direction, details),
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
    if meaning.second is not None:
        yield "link", (meaning.link, 0.5)
    for name, scale, clause in zip(("main", "second"), (1.0, SECOND_CLAUSE), meaning.clauses, strict=False):
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
    hypernyms = [world("hypernyms").get(kinds().get(noun)) for noun in (first, second)]
    return KINSHIP if hypernyms[0] == second or hypernyms[1] == first else 0.0
