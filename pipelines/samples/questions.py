"""Questions about made-up abstracts, with the places of their answers.

What is asked is what a sentence says: who binds a promoter, what an overdose causes, how many mice there were. The
same names and numbers stand elsewhere in the context, so that only the right sentence tells. Some questions are
about a sentence that the context lacks, and have no answer.
"""

import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from pipelines.samples.entities import ROLE, Abstract, Sentence
from pipelines.samples.entity_names import Name

Asked = tuple[str, str, *tuple[str, ...]]
"""A question, and the parts of the template that answer it: the shortest first, as different people would mark it."""

ASKED: dict[str, tuple[Asked, ...]] = {
    "{Disease} is a rare disorder that leads to {sign} and {sign2}.": (
        ("What does {disease} lead to?", "{sign} and {sign2}"),
        ("Which rare disorder leads to {sign}?", "{disease}"),
    ),
    "Patients with {disease} often suffer from {diseases}.": (
        ("What do patients with {disease} often suffer from?", "{diseases}"),
    ),
    "Most {group} with {disease} also had {disease2}, and {percent} % had {sign}.": (
        ("What else did most {group} with {disease} have?", "{disease2}"),
        ("What share of {group} with {disease} had {sign}?", "{percent} %"),
    ),
    "{Diseases} were excluded by biopsy.": (("What was excluded by biopsy?", "{diseases}"),),
    "The risk of {disease} rises with age (odds ratio {dose}).": (
        ("With what does the risk of {disease} rise?", "age"),
        ("What is the odds ratio of {disease}?", "{dose}"),
    ),
    "{Disease2} was the cause of death in {n} of the patients.": (
        ("Which disease was the cause of death?", "{disease2}"),
        ("In how many patients was {disease2} the cause of death?", "{n}", "{n} of the patients"),
    ),
    "{Chemical} is given to {group} with {disease} at {dose} mg a day.": (
        ("At which daily dose is {chemical} given?", "{dose} mg", "{dose} mg a day"),
    ),
    "The patients received {chemicals} for {weeks} weeks.": (
        ("What did the patients receive?", "{chemicals}"),
        ("For how long did the patients receive {chemical}?", "{weeks} weeks", "for {weeks} weeks"),
    ),
    "Overdoses of {chemical} may cause {disease2}.": (
        ("What may overdoses of {chemical} cause?", "{disease2}"),
        ("Overdoses of which drug may cause {disease2}?", "{chemical}"),
    ),
    "{Chemical} and {chemical2} were dissolved in water before they were given to {animal}.": (
        ("In what was {chemical} dissolved?", "water"),
    ),
    "Exposure to {chemical2} makes {animal} prone to {disease}.": (
        ("Exposure to what makes {animal} prone to {disease}?", "{chemical2}"),
        ("What are {animal} prone to after exposure to {chemical2}?", "{disease}"),
    ),
    "Resistance to {chemical} is common in {disease2}.": (
        ("In which disease is resistance to {chemical} common?", "{disease2}"),
        ("Resistance to which drug is common in {disease2}?", "{chemical}"),
    ),
    "{Chemical}-induced {disease} was seen in {n} {animal}.": (
        ("In how many {animal} was {disease} induced?", "{n}", "{n} {animal}"),
    ),
    "{Gene} is expressed in {cell} cells but not in {animal}.": (
        ("In which cells is {gene} expressed?", "{cell}", "{cell} cells"),
    ),
    "Mutations of {gene} were found in {n} families with {disease}.": (
        ("Mutations of which gene were found in families?", "{gene}"),
        ("In how many families were mutations of {gene} found?", "{n}", "{n} families"),
    ),
    "The promoter of {gene} is bound by {gene2}.": (
        ("What binds the promoter of {gene}?", "{gene2}"),
        ("Whose promoter is bound by {gene2}?", "{gene}"),
    ),
    "We cloned {gene} and mapped it to chromosome {weeks}.": (
        ("Which gene was cloned?", "{gene}"),
        ("To which chromosome was {gene} mapped?", "{weeks}", "chromosome {weeks}"),
    ),
    "{Gene} phosphorylates {gene2} in {cell} cells.": (
        ("What does {gene} phosphorylate?", "{gene2}"),
        ("What phosphorylates {gene2}?", "{gene}"),
    ),
    "Knockout of {gene} protects {animal} from {disease2}.": (
        ("From what does knockout of {gene} protect {animal}?", "{disease2}"),
        ("Knockout of which gene protects {animal}?", "{gene}"),
    ),
    "{Chemical} inhibits {gene} and its ligand {gene2}.": (
        ("What inhibits {gene}?", "{chemical}"),
        ("What is the ligand of {gene}?", "{gene2}"),
    ),
    "{Gene} messenger RNA was {level} in {disease}, and {chemical} restored it.": (
        ("What restored the messenger RNA of {gene}?", "{chemical}"),
    ),
    "Carriers of the {gene} variant had {disease} earlier than others.": (
        ("Carriers of which variant had {disease} earlier?", "{gene}", "the {gene} variant"),
    ),
    "The {acronym} trial compared {chemical} with {chemical2} in {n} {group}.": (
        ("Which trial compared {chemical} with {chemical2}?", "{acronym}", "the {acronym} trial"),
        ("With what was {chemical} compared?", "{chemical2}"),
    ),
    "Severity was rated by the {acronym} score after {weeks} weeks.": (
        ("By which score was severity rated?", "{acronym}", "the {acronym} score"),
        ("When was severity rated?", "after {weeks} weeks"),
    ),
    "Blood was kept in {acronym} tubes at 4 °C, as {Surname} describes.": (
        ("At which temperature was blood kept?", "4 °C", "at 4 °C"),
        ("In which tubes was blood kept?", "{acronym}", "{acronym} tubes"),
    ),
    "{Metal} was measured in the blood of {n} {group} who work in the {acronym} plant.": (
        ("Which metal was measured in the blood?", "{metal}"),
    ),
    "Of {n} {group}, {percent} % died of {illness}.": (("Of what did {percent} % of {group} die?", "{illness}"),),
    "We conclude that {chemical} is safe in {group} with {disease}.": (
        ("Which drug is safe in {group} with {disease}?", "{chemical}"),
        ("In whom is {chemical} safe?", "{group}", "{group} with {disease}"),
    ),
    "{Genes} may be targets for the treatment of {disease}.": (
        ("What may be targets for the treatment of {disease}?", "{genes}"),
    ),
}
WHOLE = 0.35
"""How many contexts are a whole abstract; the others are a few sentences of one."""
IMPOSSIBLE = 0.3
"""How many contexts are asked something that they do not say."""
MOST = 4
"""Questions about a context, those without an answer aside."""
WITH_ABBREVIATION = re.compile(r"(.+) \(\w+\)")

Json = dict[str, Any]


def article(identifier: str, abstract: Abstract, random: Random) -> Json:
    """An article of SQuAD's JSON: a context from `abstract`, and questions about it."""
    sentences = _stretch(abstract.sentences, random)
    context = " ".join(sentence.text for sentence in sentences)
    asked = list(_answered(sentences, abstract.cast, random))
    chosen = [asked[place] for place in sorted(random.sample(range(len(asked)), min(MOST, len(asked))))]
    if not chosen or random.random() < IMPOSSIBLE:
        chosen.append(_impossible(sentences, abstract.cast, random))
    qas = [{"id": f"{identifier}-{number}", **each} for number, each in enumerate(chosen, 1)]
    return {"title": identifier, "paragraphs": [{"context": context, "qas": qas}]}


def _stretch(sentences: Sequence[Sentence], random: Random) -> Sequence[Sentence]:
    if random.random() < WHOLE:
        return sentences
    length = random.randint(2, 4)
    start = random.randint(0, len(sentences) - length)
    return sentences[start : start + length]


def _answered(sentences: Sequence[Sentence], cast: dict[str, Name], random: Random) -> Iterator[Json]:
    """A question about each sentence that says what can be asked."""
    start = 0
    for sentence in sentences:
        if sentence.template in ASKED:
            question, *parts = random.choice(ASKED[sentence.template])
            answers = [(start + first, text) for part in parts for first, text in marked(sentence, part)]
            told = [{"text": text, "answer_start": first} for first, text in dict.fromkeys(answers)]
            yield {"question": _worded(question, cast), "answers": told, "is_impossible": False}
        start += len(sentence.text) + 1


def _impossible(sentences: Sequence[Sentence], cast: dict[str, Name], random: Random) -> Json:
    """A question about a sentence that is not among `sentences`."""
    said = {sentence.template for sentence in sentences}
    question, *_ = random.choice(ASKED[random.choice([template for template in ASKED if template not in said])])
    return {"question": _worded(question, cast), "answers": [], "is_impossible": True}


def _worded(question: str, cast: dict[str, Name]) -> str:
    return question.format(**{role: name.full for role, name in cast.items()})


def marked(sentence: Sentence, part: str) -> Iterator[tuple[int, str]]:
    """Where a part of its template stands in a sentence, and its text; without the abbreviation as well, if it ends so.

    Roles of `part` are written small.
    """
    first = sentence.template.lower().index(part.lower())
    start, end = (_place(sentence, offset) for offset in (first, first + len(part)))
    text = sentence.text[start:end]
    if short := WITH_ABBREVIATION.fullmatch(text):
        yield start, short[1]
    yield start, text


def _place(sentence: Sentence, offset: int) -> int:
    """The character of the sentence that stands for one of its template; a role has only a start and an end."""
    passed = told = 0
    for number, (piece, parts) in enumerate(zip(ROLE.split(sentence.template), sentence.pieces, strict=True)):
        width, length = len(piece) + 2 * (number % 2), sum(len(part.text) for part in parts)  # a role has braces
        if offset <= passed + width:
            return told + (length if offset == passed + width else offset - passed)
        passed, told = passed + width, told + length
    raise ValueError(f"expected a place in a template of {passed} characters, found {offset}")
