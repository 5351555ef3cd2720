"""Changes of a meaning whose logic is known: what follows from it, what contradicts it, what says more or other things.

Each function lists candidates; `pick` takes one that is sensible.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

from pipelines.samples.drawing import DETERMINERS, draw_phrase, draw_place, draw_time, with_second
from pipelines.samples.grammar import Clause, Meaning, Phrase, fits_or_absent, is_sensible
from pipelines.samples.lexicon import ABOVE, ADJECTIVES, ANTONYMS, KINDS, LIVING, VERBS

OPPOSITES = ANTONYMS | {second: first for first, second in ANTONYMS.items() if first != "new"}


def pick(random: Random, candidates: Iterable[Meaning], unlike: Meaning) -> Meaning | None:
    """A sensible candidate other than `unlike`; None where there is none."""
    shuffled = list(candidates)
    random.shuffle(shuffled)
    return next((meaning for meaning in shuffled if meaning != unlike and is_sensible(meaning)), None)


def shortened(meaning: Meaning) -> list[Meaning]:
    """What follows by leaving something out. Under "not" only the subject may lose a detail: who it is stays known."""
    main = meaning.main
    clauses = [Meaning(clause) for clause in meaning.clauses if meaning.second is not None]
    plainer = [_in_role(meaning, role, adjective=None) for role in _known_roles(main)]
    if main.negated:
        return clauses + plainer
    return [*clauses, *plainer, _in_main(meaning, place=None), _in_main(meaning, time=None)]


def generalised(meaning: Meaning) -> list[Meaning]:
    """What follows by naming a kind instead of one of it: a dog is an animal."""
    roles = meaning.main.roles
    kinds = {role: ABOVE.get(KINDS[roles[role].noun]) for role in _known_roles(meaning.main)}
    return [_in_role(meaning, role, noun=kind) for role, kind in kinds.items() if kind is not None]


def _known_roles(clause: Clause) -> list[str]:
    """The roles about which less may be said and the clause still follows."""
    return ["subject"] if clause.negated else list(clause.roles)


def _in_main(meaning: Meaning, **changes: Any) -> Meaning:
    return replace(meaning, main=replace(meaning.main, **changes))


def _in_role(meaning: Meaning, role: str, **changes: Any) -> Meaning:
    main = meaning.main
    return replace(meaning, main=main.with_roles({role: replace(main.roles[role], **changes)}))


def negated(meaning: Meaning) -> list[Meaning]:
    """The main clause denied, or asserted where it was denied, alone."""
    return [Meaning(replace(meaning.main, negated=not meaning.main.negated))]


def swapped(meaning: Meaning) -> list[Meaning]:
    """Who does it, and to whom, exchanged."""
    roles = meaning.main.roles
    other = "recipient" if "recipient" in roles else "object"
    if other not in roles or KINDS[roles[other].noun] not in LIVING:
        return []
    exchanged = {"subject": roles[other], other: roles["subject"]}
    return [replace(meaning, main=meaning.main.with_roles(exchanged))]


def permuted(meaning: Meaning, random: Random) -> list[Meaning]:
    """The same words in other roles: two phrases exchanged, or their adjectives, or all but their adjectives."""
    phrases = [phrase for clause in meaning.clauses for phrase in clause.roles.values()]
    if len(phrases) < 2:
        return []
    first, second = sorted(random.sample(range(len(phrases)), 2))
    exchanges = _exchanges(phrases[first], phrases[second])
    return [_with_phrases(meaning, {first: one, second: other}) for one, other in exchanges]


def _exchanges(first: Phrase, second: Phrase) -> list[tuple[Phrase, Phrase]]:
    return [
        (second, first),
        (replace(first, adjective=second.adjective), replace(second, adjective=first.adjective)),
        (replace(second, adjective=first.adjective), replace(first, adjective=second.adjective)),
    ]


def _with_phrases(meaning: Meaning, changed: dict[int, Phrase]) -> Meaning:
    """`meaning` with some of its phrases, counted through both clauses, replaced."""
    main, split = meaning.main, len(meaning.main.roles)
    first = {role: changed[index] for index, role in enumerate(main.roles) if index in changed}
    if meaning.second is None:
        return replace(meaning, main=main.with_roles(first))
    roles = enumerate(meaning.second.roles, split)
    second = {role: changed[index] for index, role in roles if index in changed}
    return replace(meaning, main=main.with_roles(first), second=meaning.second.with_roles(second))


def opposed(meaning: Meaning) -> list[Meaning]:
    """The opposite adjective, state or verb."""
    main = meaning.main
    adjectives = {role: phrase.adjective for role, phrase in main.roles.items()}
    candidates = [_in_role(meaning, role, adjective=OPPOSITES[a]) for role, a in adjectives.items() if a in OPPOSITES]
    if main.state in OPPOSITES:
        candidates.append(_in_main(meaning, state=OPPOSITES[main.state]))
    if main.verb in OPPOSITES:
        candidates.append(_in_main(meaning, verb=OPPOSITES[main.verb]))
    return candidates


def extended(meaning: Meaning, random: Random) -> list[Meaning]:
    """A detail more, which the meaning leaves open. Under "not", a place or a time would say less instead."""
    main = meaning.main
    bare = {role: ADJECTIVES[KINDS[phrase.noun]] for role, phrase in main.roles.items() if phrase.adjective is None}
    candidates = [_in_role(meaning, role, adjective=random.choice(said)) for role, said in bare.items()]
    if main.place is None and not main.negated:
        candidates.append(_in_main(meaning, place=draw_place(random, None, 1.0)))
    if main.time is None and not main.negated:
        candidates.append(_in_main(meaning, time=draw_time(random, main.tense, 1.0)))
    return candidates if meaning.second is not None else [*candidates, with_second(main, random)]


def other_verb(meaning: Meaning, random: Random) -> list[Meaning]:
    """Something else happens among the same."""
    main = meaning.main
    verbs = [verb for verb in VERBS if verb not in (main.verb, "be", OPPOSITES.get(main.verb)) and _suits(verb, main)]
    return [_in_main(meaning, verb=verb) for verb in random.sample(verbs, min(len(verbs), 3))]


def _suits(verb: str, clause: Clause) -> bool:
    frame = VERBS[verb]
    return (
        clause.tense in frame.tenses
        and fits_or_absent(clause.subject, frame.subjects)
        and fits_or_absent(clause.object, frame.objects)
        and fits_or_absent(clause.recipient, frame.recipients)
    )


def other_noun(meaning: Meaning, random: Random) -> list[Meaning]:
    """Another takes a role."""
    frame = VERBS[meaning.main.verb]
    allowed = {"subject": frame.subjects, "object": frame.objects, "recipient": frame.recipients}
    return [_in_role(meaning, role, noun=draw_phrase(random, allowed[role], 0.0).noun) for role in meaning.main.roles]


def other_circumstance(meaning: Meaning, random: Random) -> list[Meaning]:
    """Another time, place, tense or number, or another second clause."""
    return list(_other_circumstances(meaning, random))


def _other_circumstances(meaning: Meaning, random: Random) -> Iterator[Meaning]:
    main = meaning.main
    tense = random.choice([tense for tense in VERBS[main.verb].tenses if tense != "background"])
    for role in main.roles:
        yield _in_role(meaning, role, determiner=random.choice(DETERMINERS), several=False)
    yield _in_main(meaning, tense=tense)
    yield _in_main(meaning, tense=tense, time=draw_time(random, tense, 1.0))
    if main.place is not None:
        yield _in_main(meaning, place=draw_place(random, main.place.relation, 1.0))
    if main.time is not None:
        yield _in_main(meaning, time=draw_time(random, main.tense, 1.0))
    if meaning.second is not None:
        yield with_second(main, random)
