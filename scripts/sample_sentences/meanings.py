"""Meanings: what a sentence expresses, before any language; how they are drawn, compared, and which are sensible."""

from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any, TypeAlias

from scripts.sample_sentences.grammar import grammar, load

LANGUAGES = ("en", "de", "fr", "es", "ko")
LONGEST = 7
"""Content words of a meaning; in English that makes about 14 words."""
SECOND_CLAUSE, KINSHIP = 0.5, 0.5
ROLES = ("subject", "object", "recipient")
NO_CLAUSE = dict.fromkeys((*ROLES, "verb", "tense", "negated", "state", "place", "time"), "")


Feature: TypeAlias = "str | bool | Features"


class Features(dict[str, Any]):
    """Features by name: a text, True, or features of their own; empty where there is nothing. They are never changed.

    A phrase is "the old dogs" or "near the park", a clause who does what, to what and to whom, where and when (with the
    verb `be`, `state` is how the subject is), and a meaning is one clause, or two that a link joins.
    """

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.values()))

    def but(self, **changes: Feature) -> "Features":
        return Features(self, **changes)


def phrase_of(noun: str, determiner: str = "the", adjective: str = "", several: bool = False) -> Features:
    """A noun with what belongs to it."""
    return Features(
        noun=noun, kind=kinds()[noun], determiner=determiner, adjective=adjective, several=several, relation=""
    )


def place_of(relation: str, noun: str) -> Features:
    return phrase_of(noun).but(relation=relation)


def clause_of(subject: Features, verb: str, tense: str, **others: Feature) -> Features:
    """Of an action, the tense `present` is "is reading", `habit` "reads every day", `background` "was reading"."""
    return Features(NO_CLAUSE, subject=subject, verb=verb, tense=tense, **others)


def meaning_of(main: Features, link: str = "", second: Features | None = None) -> Features:
    return Features(main=main, link=link, second=second or "")


def clauses_of(meaning: Features) -> list[Features]:
    return [meaning["main"], meaning["second"]] if meaning["second"] else [meaning["main"]]


def roles_of(clause: Features) -> dict[str, Features]:
    """The phrases by role, without the roles that nobody has."""
    return {role: clause[role] for role in ROLES if clause[role]}


def world(name: str) -> Any:
    """A table or list of `data/world.toml`."""
    return load("world")[name]


@cache
def kinds() -> dict[str, str]:
    """Each noun's kind."""
    return {noun: kind for kind, nouns in world("nouns").items() for noun in nouns}


@cache
def nouns_of(verb: str) -> dict[str, tuple[str, ...]]:
    """The nouns that may have each role of a verb: allowed by name, by kind or by a group of kinds."""
    row, groups = world("verbs")[verb], world("groups")
    names = {role: {name for each in row[role] for name in groups.get(each, [each])} for role in ROLES if role in row}
    return {role: tuple(n for n, kind in kinds().items() if {n, kind} & allowed) for role, allowed in names.items()}


@cache
def tenses_of(verb: str) -> list[str]:
    return list(world("verbs")[verb].get("tenses", world("tenses")))


@cache
def times_of(tense: str) -> list[str]:
    return [time for time, tenses in world("times").items() if tense in tenses]


def render(meaning: Features, language: str) -> str:
    """`meaning` as a sentence."""
    return grammar("world", language).sentence(meaning)


def is_sensible(meaning: Features) -> bool:
    """Whether a person might say this, in every one of the languages."""
    clauses = clauses_of(meaning)
    phrases = [clause[role] for clause in clauses for role in ROLES if clause[role]]
    described = sum(bool(phrase["adjective"]) for phrase in phrases)
    circumstances = sum(bool(clause["place"]) + bool(clause["time"]) for clause in clauses)
    return (
        len({phrase["noun"] for phrase in phrases}) == len(phrases)
        and len(clauses) + len(phrases) + described + circumstances <= LONGEST
        and all(_is_sensible_phrase(**phrase) for phrase in phrases)
        and all(not clause["time"] or clause["time"] in times_of(clause["tense"]) for clause in clauses)
        and all(suits(clause["verb"], clause) for clause in clauses)
        and not any(grammar("world").fill("{clause_nonsense}", clause) for clause in clauses)
        and not grammar("world").fill("{sentence_nonsense}", meaning)
    )


def suits(verb: str, clause: Features) -> bool:
    """Whether the verb may have the tense of `clause`, and exactly its roles."""
    if clause["tense"] not in tenses_of(verb):
        return False
    nouns = nouns_of(verb)
    for role in ROLES:
        if (clause[role]["noun"] not in nouns.get(role, ())) if clause[role] else role in nouns:
            return False
    return True


@cache
def _is_sensible_phrase(**phrase: Any) -> bool:
    described = phrase["adjective"] in ("", *world("adjectives")[phrase["kind"]])
    return described and not grammar("world").fill("{phrase_nonsense}", phrase)


def draw_meaning(random: Random) -> Features:
    """A sensible meaning; three in ten have two clauses."""
    has_second = random.random() < 0.3
    while True:
        main = draw_clause(random, random.choice(tuple(world("verbs"))), details=0.1 if has_second else 0.45)
        meaning = with_second(main, random) if has_second else meaning_of(main)
        if is_sensible(meaning):
            return meaning


def with_second(main: Features, random: Random) -> Features:
    """`main` and a drawn second clause whose tense and negation follow it; not always a sensible pair."""
    link = random.choice(world("links"))
    reason_is_state = link == "because" and random.random() < 0.6
    verb = "be" if reason_is_state else random.choice(tuple(world("verbs")))
    second = draw_clause(random, verb, details=0.1).but(time="")
    if link == "while":
        return meaning_of(main, link, second.but(tense="background" if main["tense"] == "past" else "present"))
    if link == "because":
        present = second["verb"] == "be" and main["tense"] != "past"
        return meaning_of(main, link, second.but(tense="present" if present else "past"))
    return meaning_of(main, link, second.but(tense=main["tense"], negated=main["negated"] != (link == "but")))


def draw_clause(random: Random, verb: str, details: float) -> Features:
    """A clause with this verb, each detail there with probability `details`; not always a sensible one."""
    nouns, tense = nouns_of(verb), draw_tense(random, verb)
    return clause_of(
        draw_phrase(random, nouns["subject"], details),
        verb,
        tense,
        negated=random.random() < 0.2,
        object=draw_phrase(random, nouns["object"], details) if "object" in nouns else "",
        recipient=draw_phrase(random, nouns["recipient"], details / 2) if "recipient" in nouns else "",
        state=random.choice(world("states")) if verb == "be" else "",
        place=draw_place(random, world("verbs")[verb].get("direction"), details),
        time=draw_time(random, tense, 1.0 if tense == "habit" and verb not in ("see", "love") else details),
    )


def draw_tense(random: Random, verb: str) -> str:
    return random.choice([tense for tense in tenses_of(verb) if tense != "background"])


def draw_phrase(random: Random, nouns: tuple[str, ...], details: float) -> Features:
    """One of `nouns`, often with a determiner of its own or an adjective."""
    living = world("groups")["living"]
    noun, determiner = random.choice(nouns), random.choice(world("determiners"))
    adjective = random.choice(world("adjectives")[kinds()[noun]]) if random.random() < details else ""
    return phrase_of(
        noun, determiner, adjective, determiner == "the" and kinds()[noun] in living and random.random() < 0.25
    )


def draw_place(random: Random, direction: str | None, details: float) -> Features | str:
    """A place that the verb asks for, or with probability `details` one where it happens."""
    if direction is None and random.random() >= details:
        return ""
    return place_of(direction or random.choice(world("relations")), random.choice(world("nouns")["place"]))


def draw_time(random: Random, tense: str, share: float) -> str:
    """With probability `share`, a time that goes with `tense`."""
    return random.choice(times_of(tense)) if random.random() < share else ""


def similarity(first: Features, second: Features) -> float:
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


def _parts(meaning: Features) -> Iterator[tuple[str, tuple[Any, float]]]:
    """Each part of a meaning: what fills it and how much it weighs."""
    if meaning["second"]:
        yield "link", (meaning["link"], 0.5)
    for name, scale, clause in zip(("main", "second"), (1.0, SECOND_CLAUSE), clauses_of(meaning), strict=False):
        verb = (clause["verb"], clause["state"])
        yield f"{name} verb", (verb, 3 * scale)
        yield f"{name} negation", ((verb, clause["negated"]), 2 * scale)
        yield f"{name} tense", ((verb, clause["tense"]), scale)
        for role, phrase in roles_of(clause).items():
            yield f"{name} {role}", (phrase["noun"], 2 * scale)
            number = (phrase["noun"], phrase["determiner"], phrase["several"])
            yield f"{name} {role} number", (number, 0.5 * scale)
            if phrase["adjective"]:
                yield f"{name} {role} adjective", ((phrase["noun"], phrase["adjective"]), scale)
        if clause["place"]:
            yield f"{name} place", (clause["place"], 1.5 * scale)
        if clause["time"]:
            yield f"{name} time", (clause["time"], scale)


def _agreement(first: Any, second: Any) -> float:
    if first == second:
        return 1.0
    hypernyms = [world("hypernyms").get(kinds().get(noun)) for noun in (first, second)]
    return KINSHIP if hypernyms[0] == second or hypernyms[1] == first else 0.0
