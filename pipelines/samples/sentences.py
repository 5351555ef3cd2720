"""Sample sentences: parallel text, and pairs and triplets whose logic is known because each is an edited meaning.

Tests are drawn first, development parts next, and training avoids the sentences of both, in every language.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bertrelay.stage import Metrics, StageContext
from pipelines.samples.meanings import (
    LANGUAGES,
    Clause,
    Meaning,
    Phrase,
    draw_meaning,
    draw_phrase,
    draw_place,
    draw_tense,
    draw_time,
    is_living,
    is_sensible,
    kinds,
    render,
    similarity,
    verbs,
    with_second,
    world,
)
from pipelines.samples.settings import SampleSettings
from pipelines.samples.templates import write_lines

PAIR = ("sentence1", "sentence2")
COLUMNS = {
    "nli": ("premise", "hypothesis", "label"),
    "sts": (*PAIR, "score"),
    "triplets": ("anchor", "positive", "negative"),
    "parallel": LANGUAGES,
}
MULTILINGUAL = (*(f"{sentence}_{language}" for sentence in PAIR for language in LANGUAGES), "score")
LABELS = ("entailment", "neutral", "contradiction")

TWINS = 0.7
"""Of drawn meanings, those followed by a twin: the same words in other roles, which no dictionary can distinguish."""
UNRELATED = 0.1
MARGIN = 0.5
"""By how much an anchor is more similar to its positive than to its negative, in points of the score."""
EDITS = (0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5)
"""How many edits lie between the two of a pair: each of these equally often."""

PLAIN_FILES = {"english.txt": "en", "german.txt": "de", "korean.txt": "ko"}
PLAIN_SENTENCES, QUERIES = 200, 20

Items = Sequence[tuple[Meaning | str | float, ...]]


def run(settings: SampleSettings, context: StageContext) -> Metrics:
    """The stage `samples.write`: writes the sample files; the rows of each part, as `sentences/nli.train`."""
    counts = write_samples(context.output, settings) if context.process_group.is_main else {}
    return {f"sentences/{name.removesuffix('.gz').removesuffix('.tsv')}": n for name, n in counts.items()}


def write_samples(folder: Path, settings: SampleSettings) -> dict[str, int]:
    """Writes all sample files into `folder`, a function of `settings` alone; rows by file name."""
    source = Meanings(settings.seed)
    tests = source.hold_out(draw_single(source, settings.parallel_test))
    scored = source.hold_out(draw_scored(source, settings.sts // 6))
    files: dict[str, Items] = {
        "parallel.test.tsv": tests,
        "sts.test.tsv": scored,
        "nli.dev.tsv": source.hold_out(draw_labelled(source, settings.nli // 12)),
        "sts.dev.tsv": source.hold_out(draw_scored(source, settings.sts // 12)),
        "triplets.dev.tsv": source.hold_out(draw_triplets(source, settings.triplets // 10)),
        "nli.train.tsv": draw_labelled(source, settings.nli),
        "sts.train.tsv": draw_scored(source, settings.sts),
        "triplets.train.tsv": draw_triplets(source, settings.triplets),
        "parallel.train.tsv.gz": draw_single(source, settings.parallel_train),
        "sts.multilingual.test.tsv": scored,
    }
    for file, items in files.items():
        kind = file.partition(".")[0]
        is_multilingual = "multilingual" in file
        languages = LANGUAGES if kind == "parallel" or is_multilingual else LANGUAGES[:1]
        rows = [MULTILINGUAL if is_multilingual else COLUMNS[kind], *(_row(item, languages) for item in items)]
        write_lines(folder / file, map("\t".join, rows))
    return {file: len(items) for file, items in files.items()}


def _row(item: tuple[Meaning | str | float, ...], languages: Sequence[str]) -> list[str]:
    parts = ([render(part, each) for each in languages] if isinstance(part, Meaning) else [str(part)] for part in item)
    return [cell for cells in parts for cell in cells]


def write_plain_files(folder: Path, seed: int, sentences: int = PLAIN_SENTENCES) -> dict[str, int]:
    """Writes sentences line by line in three languages, queries, and the lines that are translations; rows by name."""
    meanings = [meaning for (meaning,) in draw_single(Meanings(seed), sentences)]
    lines = {name: [render(meaning, language) for meaning in meanings] for name, language in PLAIN_FILES.items()}
    lines["questions.txt"] = lines["english.txt"][:QUERIES]
    pairs = [f"{number}\t{number}" for number in range(1, sentences + 1)]
    for name, listed in (lines | {"pairs.tsv": ["source_line\ttarget_line", *pairs]}).items():
        write_lines(folder / name, listed)
    return {name: len(listed) for name, listed in lines.items()} | {"pairs.tsv": sentences}


class Meanings:
    """New meanings without end, each only once and none that is held out."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._seen: set[Meaning] = set()
        self._held_out: set[Meaning] = set()
        self._meanings = self._draw()

    def new(self) -> Meaning:
        """A meaning not drawn before."""
        return next(self._meanings)

    def hold_out(self, items: Items) -> Items:
        """Keeps the meanings of `items` from all that is drawn from now on; returns `items`."""
        self._held_out |= {part for item in items for part in item if isinstance(part, Meaning)}
        return items

    def allows(self, *meanings: Meaning) -> bool:
        return self._held_out.isdisjoint(meanings)

    def _draw(self) -> Iterator[Meaning]:
        while True:
            meaning = draw_meaning(self.random)
            twins = permuted(meaning, self.random) if self.random.random() < TWINS else []
            for drawn in (meaning, pick(self.random, twins, unlike=meaning)):
                if drawn is not None and drawn not in self._seen and self.allows(drawn):
                    self._seen.add(drawn)
                    yield drawn


def draw_single(source: Meanings, count: int) -> list[tuple[Meaning]]:
    """`count` new meanings, for parallel sentences."""
    return [(source.new(),) for _ in range(count)]


def draw_labelled(source: Meanings, count: int) -> list[tuple[Meaning, Meaning, str]]:
    """`count` premises and hypotheses; the labels follow one another, so each has a third."""
    drawn: list[tuple[Meaning, Meaning, str]] = []
    while len(drawn) < count:
        premise, label = source.new(), LABELS[len(drawn) % len(LABELS)]
        hypothesis = HYPOTHESES[label](premise, source.random)
        if hypothesis is not None and source.allows(hypothesis):
            drawn.append((premise, hypothesis, label))
    return drawn


def _neutral(premise: Meaning, random: Random) -> Meaning | None:
    """What the premise leaves open: a detail more, or something else that the same do, perhaps with a detail less."""
    shorter = _entailed(premise, random) if random.random() < 0.3 else None
    known = shorter or premise
    edited = extended(known, random) if random.random() < 0.6 else other_verb(known, random)
    hypothesis = pick(random, edited, unlike=premise)
    return None if hypothesis in shortened(premise) else hypothesis


def _entailed(premise: Meaning, random: Random) -> Meaning | None:
    """One or two edits away from the premise, each of which follows."""
    first = pick(random, shortened(premise) + generalised(premise), unlike=premise)
    if first is None or random.random() < 0.5:
        return first
    return pick(random, shortened(first) + generalised(first), unlike=first) or first


def _contradicting(premise: Meaning, random: Random) -> Meaning | None:
    """The opposite, an exchange of roles, or a denial; what is denied already can only be asserted."""
    edit = negated if premise.main.negated else random.choice((negated, swapped, opposed))
    return pick(random, edit(premise) or negated(premise), unlike=premise)


HYPOTHESES: dict[str, Callable[[Meaning, Random], Meaning | None]] = dict(
    zip(LABELS, (_entailed, _neutral, _contradicting), strict=True)
)


def draw_scored(source: Meanings, count: int) -> list[tuple[Meaning, Meaning, float]]:
    """`count` pairs from nought to five edits apart, and some unrelated ones, with their similarity."""
    drawn: list[tuple[Meaning, Meaning, float]] = []
    while len(drawn) < count:
        first, random = source.new(), source.random
        second = draw_meaning(random) if random.random() < UNRELATED else _edited(first, random.choice(EDITS), random)
        if source.allows(second):
            drawn.append((first, second, similarity(first, second)))
    return drawn


def draw_triplets(source: Meanings, count: int) -> list[tuple[Meaning, Meaning, Meaning]]:
    """`count` anchors, each with something similar and something less similar."""
    drawn: list[tuple[Meaning, Meaning, Meaning]] = []
    while len(drawn) < count:
        anchor = source.new()
        gentle = shortened(anchor) + generalised(anchor) + extended(anchor, source.random)
        positive, negative = pick(source.random, gentle, unlike=anchor), _edited(anchor, 2, source.random)
        if positive is None or not source.allows(positive, negative):
            continue
        if similarity(anchor, positive) >= similarity(anchor, negative) + MARGIN:
            drawn.append((anchor, positive, negative))
    return drawn


def _edited(meaning: Meaning, edits: int, random: Random) -> Meaning:
    for _ in range(edits):
        edited = None
        while edited is None:
            if random.random() < 0.5:
                candidates = random.choice((shortened, generalised, negated, swapped, opposed))(meaning)
            else:
                candidates = random.choice((permuted, extended, other_verb, other_noun, other_circumstance))(
                    meaning, random
                )
            edited = pick(random, candidates, unlike=meaning)
        meaning = edited
    return meaning


def pick(random: Random, candidates: Iterable[Meaning], unlike: Meaning) -> Meaning | None:
    """A sensible candidate other than `unlike`; None where there is none."""
    shuffled = list(candidates)
    random.shuffle(shuffled)
    return next((meaning for meaning in shuffled if meaning != unlike and is_sensible(meaning)), None)


def _in_main(meaning: Meaning, **changes: Any) -> Meaning:
    return meaning._replace(main=meaning.main.but(**changes))


def _in_role(meaning: Meaning, role: str, **changes: Any) -> Meaning:
    return _in_main(meaning, **{role: meaning.main.roles[role]._replace(**changes)})


def shortened(meaning: Meaning) -> list[Meaning]:
    """What follows by leaving something out. Under "not" only the subject may lose a detail: who it is stays known."""
    clauses = [Meaning(clause) for clause in meaning.clauses if meaning.second is not None]
    plainer = [_in_role(meaning, role, adjective=None) for role in _known_roles(meaning.main)]
    bare = [] if meaning.main.negated else [_in_main(meaning, place=None), _in_main(meaning, time=None)]
    return clauses + plainer + bare


def generalised(meaning: Meaning) -> list[Meaning]:
    """What follows by naming a kind instead of one of it: a dog is an animal."""
    roles = meaning.main.roles
    hypernyms = {role: world("hypernyms").get(kinds()[roles[role].noun]) for role in _known_roles(meaning.main)}
    return [_in_role(meaning, role, noun=hypernym) for role, hypernym in hypernyms.items() if hypernym is not None]


def _known_roles(clause: Clause) -> list[str]:
    """The roles that may lose a detail while the clause still follows."""
    return ["subject"] if clause.negated else list(clause.roles)


def negated(meaning: Meaning) -> list[Meaning]:
    """The main clause denied, or asserted where it was denied, alone."""
    return [Meaning(meaning.main.but(negated=not meaning.main.negated))]


def swapped(meaning: Meaning) -> list[Meaning]:
    """Who does it, and to whom, exchanged."""
    roles = meaning.main.roles
    other = "recipient" if "recipient" in roles else "object"
    if other not in roles or not is_living(roles[other].noun):
        return []
    return [_in_main(meaning, **{"subject": roles[other], other: roles["subject"]})]


def opposed(meaning: Meaning) -> list[Meaning]:
    """The opposite adjective, state or verb."""
    main, opposites = meaning.main, _opposites()
    adjectives = {role: phrase.adjective for role, phrase in main.roles.items()}
    return [_in_role(meaning, role, adjective=opposites[a]) for role, a in adjectives.items() if a in opposites] + [
        _in_main(meaning, **{name: opposites[value]})
        for name, value in (("state", main.state), ("verb", main.verb))
        if value in opposites
    ]


def _opposites() -> dict[str, str]:
    antonyms: dict[str, str] = world("antonyms")
    return antonyms | {second: first for first, second in antonyms.items() if first != "new"}  # old: young


def permuted(meaning: Meaning, random: Random) -> list[Meaning]:
    """The same words in other roles: two phrases exchanged, or their adjectives, or all but their adjectives."""
    places = [(number, role) for number, clause in enumerate(meaning.clauses) for role in clause.roles]
    if len(places) < 2:
        return []
    first, second = (places[index] for index in sorted(random.sample(range(len(places)), 2)))
    one, other = (meaning.clauses[number].roles[role] for number, role in (first, second))
    exchanges = (
        (other, one),
        (one._replace(adjective=other.adjective), other._replace(adjective=one.adjective)),
        (other._replace(adjective=one.adjective), one._replace(adjective=other.adjective)),
    )
    return [_with_phrases(meaning, {first: left, second: right}) for left, right in exchanges]


def _with_phrases(meaning: Meaning, phrases: dict[tuple[int, str], Phrase]) -> Meaning:
    """`meaning` with other phrases, by the number of their clause and their role."""
    clauses = meaning.clauses
    for (number, role), phrase in phrases.items():
        clauses[number] = clauses[number].but(**{role: phrase})
    return Meaning(clauses[0], meaning.link, *clauses[1:])


def extended(meaning: Meaning, random: Random) -> list[Meaning]:
    """A detail more, which the meaning leaves open. Under "not", a place or a time would say less instead."""
    main = meaning.main
    bare = {role: kinds()[phrase.noun] for role, phrase in main.roles.items() if phrase.adjective is None}
    candidates = [
        _in_role(meaning, role, adjective=random.choice(world("adjectives")[kind])) for role, kind in bare.items()
    ]
    if main.place is None and not main.negated:
        candidates.append(_in_main(meaning, place=draw_place(random, None, 1.0)))
    if main.time is None and not main.negated:
        candidates.append(_in_main(meaning, time=draw_time(random, main.tense, 1.0)))
    return candidates if meaning.second is not None else [*candidates, with_second(main, random)]


def other_verb(meaning: Meaning, random: Random) -> list[Meaning]:
    """Something else happens among the same."""
    main = meaning.main
    excluded = (main.verb, "be", _opposites().get(main.verb))
    fitting = [name for name, verb in verbs().items() if name not in excluded and verb.suits(main)]
    return [_in_main(meaning, verb=verb) for verb in random.sample(fitting, min(len(fitting), 3))]


def other_noun(meaning: Meaning, random: Random) -> list[Meaning]:
    """Another takes a role."""
    allowed = verbs()[meaning.main.verb].nouns
    return [_in_role(meaning, role, noun=draw_phrase(random, allowed[role], 0.0).noun) for role in meaning.main.roles]


def other_circumstance(meaning: Meaning, random: Random) -> list[Meaning]:
    """Another time, place, tense or number, or another second clause."""
    main = meaning.main
    tense = draw_tense(random, main.verb)
    edited = [
        _in_role(meaning, role, determiner=random.choice(world("determiners")), several=False) for role in main.roles
    ]
    edited.append(_in_main(meaning, tense=tense))
    edited.append(_in_main(meaning, tense=tense, time=draw_time(random, tense, 1.0)))
    if main.place is not None:
        edited.append(_in_main(meaning, place=draw_place(random, main.place.relation, 1.0)))
    if main.time is not None:
        edited.append(_in_main(meaning, time=draw_time(random, main.tense, 1.0)))
    return edited if meaning.second is None else [*edited, with_second(main, random)]
