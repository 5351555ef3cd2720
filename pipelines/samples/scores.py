"""How alike two meanings are: the score that the STS samples carry."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from pipelines.samples.grammar import Clause, Meaning, Phrase
from pipelines.samples.lexicon import ABOVE, KINDS

SECOND_CLAUSE = 0.5
KINSHIP = 0.5


class Part(NamedTuple):
    """One part of a meaning: what fills it and how much it weighs."""

    filler: Any
    weight: float


def similarity(first: Meaning, second: Meaning) -> float:
    """From 0 (nothing shared) to 5 (the same meaning): 5 · shared weight / weight of all parts of either.

    A part is shared where the same role is filled alike; a dog and an animal share half. Verb 3, negation 2, tense 1
    (both only under the same verb); subject, object, recipient 2 each, their adjective 1 and number ½ (only on the
    same noun); place 1½, time 1, link ½; in the second clause half of all that. The same words in other roles
    share nothing.
    """
    left, right = dict(_parts(first)), dict(_parts(second))
    every = {**left, **right}
    total = sum(part.weight for part in every.values())
    common = left.keys() & right.keys()
    shared = sum(left[name].weight * _agreement(left[name].filler, right[name].filler) for name in sorted(common))
    return round(5 * shared / total, 2)


def _parts(meaning: Meaning) -> Iterator[tuple[str, Part]]:
    yield from _clause_parts("main", meaning.main, 1.0)
    if meaning.second is not None:
        yield "link", Part(meaning.link, 0.5)
        yield from _clause_parts("second", meaning.second, SECOND_CLAUSE)


def _clause_parts(name: str, clause: Clause, scale: float) -> Iterator[tuple[str, Part]]:
    verb = (clause.verb, clause.state)
    yield f"{name} verb", Part(verb, 3 * scale)
    yield f"{name} negation", Part((verb, clause.negated), 2 * scale)
    yield f"{name} tense", Part((verb, clause.tense), scale)
    for role in ("subject", "object", "recipient"):
        phrase: Phrase | None = getattr(clause, role)
        if phrase is not None:
            yield f"{name} {role}", Part(phrase.noun, 2 * scale)
            yield f"{name} {role} number", Part((phrase.noun, phrase.determiner, phrase.several), 0.5 * scale)
            if phrase.adjective is not None:
                yield f"{name} {role} adjective", Part((phrase.noun, phrase.adjective), scale)
    if clause.place is not None:
        yield f"{name} place", Part(clause.place, 1.5 * scale)
    if clause.time is not None:
        yield f"{name} time", Part(clause.time, scale)


def _agreement(first: Any, second: Any) -> float:
    if first == second:
        return 1.0
    related = isinstance(first, str) and isinstance(second, str) and (_is_a(first, second) or _is_a(second, first))
    return KINSHIP if related else 0.0


def _is_a(noun: str, kind: str) -> bool:
    return noun in KINDS and ABOVE.get(KINDS[noun]) == kind
