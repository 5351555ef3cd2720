"""Made-up abstracts in which every disease, chemical and gene is marked.

What a word is, its sentence tells: a name may be met in training and again in a test, or be coined for this abstract
alone. Names are coordinated, told with their abbreviation and afterwards by it, and stand beside what looks like
them: cell lines, trials, scores, authors, and words that are a name elsewhere.
"""

import re
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from domain.biomedical.documents.document import Document, Entity, Passage
from domain.biomedical.documents.tokens import word_spans
from pipelines.samples.entity_names import COIN, Name, coin_surname, coin_symbol

WELL_KNOWN = 40
"""Names of each type that stand in abstracts of every part."""
COINED = 0.6
"""How many names of an abstract are its own."""
BY_ABBREVIATION = 0.7
ROLE = re.compile(r"\{(\w+)\}")

FILLERS = {
    "group": ("adults", "children", "older patients", "women", "outpatients", "siblings"),
    "design": ("randomised trial", "cohort study", "case-control study", "pilot study"),
    "animal": ("mice", "rats", "rabbits", "zebrafish"),
    "level": ("high", "low", "raised", "absent"),
}
"""What is no entity, and may be said in many ways."""
SIGNS = ("fever", "weight loss", "numbness", "itching", "fainting", "cough", "thirst", "hoarseness")
METALS = ("lead", "gold", "iron")
ILLNESSES = ("shock", "depression", "cold")
"""Words that are names where they stand for a role, and none where a template has them ("may lead to")."""

TITLES = (
    "{Chemical} in {disease}: a {design}.",
    "{Gene} and the course of {disease} in {group}.",
    "Is {chemical} better than {chemical2} in {group} with {disease}?",
    "A new mutation of {gene} in a family with {disease}.",
    "{Disease} after treatment with {chemical}: three cases.",
)
SENTENCES = (
    "{Disease} is a rare disorder that leads to {sign} and {sign2}.",
    "Little is known about {disease} in {group}.",
    "Patients with {disease} often suffer from {diseases}.",
    "Most {group} with {disease} also had {disease2}, and {percent} % had {sign}.",
    "{Diseases} were excluded by biopsy.",
    "The risk of {disease} rises with age (odds ratio {dose}).",
    "{Disease2} was the cause of death in {n} of the patients.",
    "We report two siblings with {disease} and {sign}.",
    "{Chemical} is given to {group} with {disease} at {dose} mg a day.",
    "The patients received {chemicals} for {weeks} weeks.",
    "After {weeks} weeks of {chemical}, {sign} was seen in {percent} % of {group}.",
    "Overdoses of {chemical} may cause {disease2}.",
    "Plasma levels of {chemicals} were {level} in {group}.",
    "{Chemical} and {chemical2} were dissolved in water before they were given to {animal}.",
    "Exposure to {chemical2} makes {animal} prone to {disease}.",
    "Resistance to {chemical} is common in {disease2}.",
    "{Chemical}-induced {disease} was seen in {n} {animal}.",
    "{Gene} is expressed in {cell} cells but not in {animal}.",
    "Mutations of {gene} were found in {n} families with {disease}.",
    "The promoter of {gene} is bound by {gene2}.",
    "Expression of {genes} was {level} in tumour cells.",
    "We cloned {gene} and mapped it to chromosome {weeks}.",
    "{Gene} phosphorylates {gene2} in {cell} cells.",
    "Knockout of {gene} protects {animal} from {disease2}.",
    "{Chemical} inhibits {gene} and its ligand {gene2}.",
    "{Gene} messenger RNA was {level} in {disease}, and {chemical} restored it.",
    "Carriers of the {gene} variant had {disease} earlier than others.",
    "The {acronym} trial compared {chemical} with {chemical2} in {n} {group}.",
    "Severity was rated by the {acronym} score after {weeks} weeks.",
    "{Surname} et al. found {sign} in {percent} % of {group} with {disease}.",
    "Blood was kept in {acronym} tubes at 4 °C, as {Surname} describes.",
    "{cell} cells were grown for {weeks} days and treated with {chemical}.",
    "Samples were sent to {Surname} and examined with the {acronym} kit.",
    "Written consent was given by all {n} {group}.",
    "{Metal} was measured in the blood of {n} {group} who work in the {acronym} plant.",
    "Poisoning with {metal} is frequent in {group} with {disease}.",
    "These changes may lead to {sign} in {percent} % of {group}.",
    "The {Surname} group has set a gold standard for the diagnosis of {disease}.",
    "The {n} {animal} were kept in a cold room and had an iron bar to gnaw at.",
    "A depression of the ST segment was seen in {n} {group}.",
    "{Illness} was more frequent in {group} on {chemical}.",
    "Of {n} {group}, {percent} % died of {illness}.",
    "In a cold climate {percent} % of {group} report {sign}.",
    "We conclude that {chemical} is safe in {group} with {disease}.",
    "{Genes} may be targets for the treatment of {disease}.",
    "Whether {gene} plays a part in {diseases} has to be seen.",
)


class Part(NamedTuple):
    """A piece of a sentence. type: of the entity that it is; None where it is none."""

    text: str
    type: str | None = None


class Sentence(NamedTuple):
    """A template, and what is said in the place of each of its pieces: text and roles, by turns, as ROLE splits it."""

    template: str
    pieces: list[list[Part]]

    @property
    def parts(self) -> list[Part]:
        return [part for piece in self.pieces for part in piece]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


class Abstract(NamedTuple):
    """Who and what an abstract is about, by role, and its sentences, the title first."""

    cast: dict[str, Name]
    sentences: list[Sentence]


class Abstracts:
    """Abstracts without end, a function of the seed: no sentence comes twice, nor a name coined for one abstract."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._coined: set[str] = set()
        self._said: set[str] = set()
        self._well_known = {type_: [self._coin(type_) for _ in range(WELL_KNOWN)] for type_ in COIN}

    def draw(self, identifier: str) -> Document:
        """An abstract, its title first, in words and sentences."""
        return _as_document(identifier, [sentence.parts for sentence in self.tell().sentences])

    def tell(self) -> Abstract:
        """The next abstract, with the roles that its words play."""
        abstract = self._told()
        while not self._said.isdisjoint(texts := {sentence.text for sentence in abstract.sentences}):
            abstract = self._told()
        self._said |= texts
        return abstract

    def _told(self) -> Abstract:
        cast = self._cast()
        telling = _Telling(cast, self._random)
        body = self._random.sample(SENTENCES, self._random.randint(5, 9))
        return Abstract(cast, [telling.sentence(template) for template in (self._random.choice(TITLES), *body)])

    def _cast(self) -> dict[str, Name]:
        """Who and what an abstract is about, by role."""
        random = self._random
        entities = {f"{type_.lower()}{n}": self._name(type_) for type_ in COIN for n in ("", "2")}
        signs = random.sample(SIGNS, 2)
        words = {role: random.choice(options) for role, options in FILLERS.items()} | {
            "sign": signs[0],
            "sign2": signs[1],
            "n": str(random.randint(12, 990)),
            "dose": str(random.choice((0.5, 2.5, 10, 80))),
            "weeks": str(random.randint(2, 52)),
            "percent": str(random.randint(20, 995) / 10),
            "surname": coin_surname(random),
            "acronym": coin_symbol(random),
            "cell": coin_symbol(random),
        }
        return {
            **entities,
            **{role: Name(word) for role, word in words.items()},
            "metal": Name(random.choice(METALS), "Chemical"),
            "illness": Name(random.choice(ILLNESSES), "Disease"),
        }

    def _name(self, type_: str) -> Name:
        return self._coin(type_) if self._random.random() < COINED else self._random.choice(self._well_known[type_])

    def _coin(self, type_: str) -> Name:
        """A name never given before; its abbreviation may have been."""
        name = COIN[type_](self._random)
        while name.full in self._coined:
            name = COIN[type_](self._random)
        self._coined.add(name.full)
        return name


class _Telling:
    """The sentences of one abstract: a name is introduced with its abbreviation, and mostly told by it afterwards."""

    def __init__(self, cast: dict[str, Name], random: Random) -> None:
        self._cast = cast
        self._random = random
        self._introduced: set[str] = set()

    def sentence(self, template: str) -> Sentence:
        pieces = ROLE.split(template)  # the text between roles, and the roles, by turns
        return Sentence(template, [self._role(piece) if n % 2 else [Part(piece)] for n, piece in enumerate(pieces)])

    def _role(self, role: str) -> list[Part]:
        first, *others = self._said(role.lower())
        return [_capitalised(first) if role[0].isupper() else first, *others]

    def _said(self, role: str) -> Iterator[Part]:
        if role in self._cast:
            yield from self._named(self._cast[role])
        else:  # several of a kind
            first, second = (self._cast[f"{role.removesuffix('s')}{n}"] for n in ("", "2"))
            yield from self._named(first)
            yield Part(self._random.choice((" and ", " or ", " as well as ")))
            yield from self._named(second)

    def _named(self, name: Name) -> Iterator[Part]:
        if name.short is None:
            yield Part(name.full, name.type)
        elif name.full not in self._introduced:
            self._introduced.add(name.full)
            yield from (Part(name.full, name.type), Part(" ("), Part(name.short, name.type), Part(")"))
        else:
            yield Part(name.short if self._random.random() < BY_ABBREVIATION else name.full, name.type)


def _capitalised(part: Part) -> Part:
    return part._replace(text=part.text[0].upper() + part.text[1:])


def _as_document(identifier: str, sentences: list[list[Part]]) -> Document:
    """The sentences with a space between them; the first one is the title."""
    text, entities, spans = "", [], []
    for sentence in sentences:
        text += " " if text else ""
        start = len(text)
        for part in sentence:
            if part.type is not None:
                entities.append(Entity(len(text), len(text) + len(part.text), part.type))
            text += part.text
        spans.append((start, len(text)))
    passages = (Passage(*spans[0], "title"), Passage(spans[1][0], len(text), "abstract"))
    words = tuple(tuple((start + a, start + b) for a, b in word_spans(text[start:end])) for start, end in spans)
    return Document(identifier, text, tuple(entities), passages, words)
