"""Synthetic abstracts of biomedical papers: their text alone, with every entity marked, and with questions about them.

Which words are an entity, and of which type, follows from the sentence alone: a name may be met in training and again
in a test, or be coined for one abstract. Names are coordinated, introduced with their abbreviation and afterwards
written by it, and occur beside what looks like them: cell lines, trials, scores, authors, and words that are a name
elsewhere. The names and numbers that answer a question occur elsewhere in its context, and some questions are about a
sentence that the context lacks.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from string import Formatter
from typing import Any, NamedTuple

from bertrelay.stage import Metrics, StageContext
from domain.biomedical.documents.document import Document, Entity, Passage, Span
from domain.biomedical.documents.formats import WrittenName, write_documents
from domain.text.words import word_spans
from pipelines.samples.grammar import Scope, capitalised, grammar, load, write_lines
from pipelines.samples.settings import BioasqSampleSettings, EntitySettings, PaperSettings, QuestionSettings

PAPERS = "papers.jsonl.gz"
TYPES = ("Disease", "Chemical", "Gene")
PARTS = ("train", "dev", "test")
SUFFIXES = {"conll": "tsv"}  # of files with entities; of other formats their names
WELL_KNOWN = 40  # names of each type that occur in abstracts of every part
COINED = 0.6  # of the names of an abstract, those that are its own
BY_ABBREVIATION = 0.7

WHOLE = 0.35  # of contexts, those that are a whole abstract; the others are a few sentences of one
IMPOSSIBLE = 0.3  # of contexts, those with a question that they do not answer
MOST_QUESTIONS = 4
YES = 0.6  # of yes/no questions, those to which yes is the answer
WITH_ABBREVIATION = re.compile(r"(.+) \(\w+\)")

Json = dict[str, Any]


def run_papers(settings: PaperSettings, context: StageContext) -> Metrics:
    """The stage `samples.papers`: writes plain abstracts; how many, as `documents/papers`."""
    if not context.process_group.is_main:
        return {}
    return {"documents/papers": write_papers(context.output, settings.seed, settings.documents)[PAPERS]}


def run_entities(settings: EntitySettings, context: StageContext) -> Metrics:
    """The stage `samples.entities`: writes marked abstracts; how many, and as `lookup/f1` how far a name list gets."""
    if not context.process_group.is_main:
        return {}
    parts = draw_documents(settings)
    write_entities(context.output, parts)
    lookup = lookup_metrics(parts["train"], parts["test"])
    counts: Metrics = {f"documents/{part}": len(documents) for part, documents in parts.items()}
    return counts | {f"lookup/{name}": value for name, value in lookup.items()}


def run_questions(settings: QuestionSettings, context: StageContext) -> Metrics:
    """The stage `samples.questions`: writes questions about abstracts; how many each part has."""
    counts = write_questions(context.output, settings) if context.process_group.is_main else {}
    return {f"questions/{name.split('.')[1]}": count for name, count in counts.items()}


def write_papers(folder: Path, seed: int = 7, documents: int = 1_500) -> dict[str, int]:
    """Writes documents of an `id` and a `text`, a function of `seed` and their number alone; how many, by file name."""
    abstracts = Abstracts(seed)
    papers = ({"id": f"paper-{number}", "text": abstracts.next().text} for number in range(documents))
    write_lines(folder / PAPERS, map(json.dumps, papers))
    return {PAPERS: documents}


class Name(NamedTuple):
    """A name in full and, where it has one, its abbreviation. type: None for what is no entity."""

    full: str
    type: str | None = None
    short: str | None = None


def _coined(random: Random, endings: Sequence[str] = ("",), syllables: int = 2) -> str:
    return "".join(random.choices(load("entities")["syllables"], k=syllables)) + random.choice(endings)


def _surname(random: Random) -> str:
    return _coined(random, load("entities")["lists"]["surname_ending"], syllables=1).capitalize()


def _symbol(random: Random) -> str:
    """Capitals and perhaps a number, as genes, cell lines, trials and scores have them."""
    letters = "".join(random.choices("BDKPR", k=random.choice((2, 3, 3))))
    number: str = random.choice(["", *"123456789"])
    return letters + number


def coin(random: Random, type_: str) -> Name:
    """A name of `type_` in one of the forms that the data has: `talorin`, `KVR3`, `familial renal corlomitis` (FRC)."""
    forms, lists = load("entities")["forms"], load("entities")["lists"]
    draws = {"symbol": lambda: _symbol(random), "surname": lambda: _surname(random)}
    words = dict[str, Any]()
    if type_ == "Disease":
        words["word"] = _coined(random, lists["disease_ending"])
        words["organ"], words["organ2"] = random.sample(lists["organ"], 2)
    else:
        words["stem"] = _coined(random)
        same = "group" if type_ == "Chemical" else "enzyme"
        words[same] = random.choice(lists[same])
    if type_ == "Chemical":
        words["number"], words["number2"] = sorted(random.sample(range(1, 9), 2))
    form = random.choice(forms[type_])
    full = Scope(grammar("entities"), random, words, draws).fill(form.removesuffix(" ()"))
    return Name(full, type_, "".join(word[0] for word in full.split()).upper() if form.endswith(" ()") else None)


class Sentence(NamedTuple):
    """A sentence, its entities, the template that it follows, and the text of each of the template's roles."""

    text: str
    entities: list[Entity]
    template: str
    roles: dict[str, str]


class Abstract(NamedTuple):
    """The names of an abstract by role, and its sentences, the title first."""

    cast: dict[str, Name]
    sentences: list[Sentence]

    @property
    def text(self) -> str:
        return " ".join(sentence.text for sentence in self.sentences)


class Abstracts:
    """Abstracts without end, a function of the seed: no sentence comes twice, nor a name coined for one abstract."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._coined: set[str] = set()
        self._written: set[str] = set()
        self._well_known = {type_: [self._coin(type_) for _ in range(WELL_KNOWN)] for type_ in TYPES}

    def next(self) -> Abstract:
        """The next abstract."""
        data, random = load("entities"), self._random
        while True:
            cast = self._cast()
            body = random.sample(tuple(data["sentences"]), random.randint(5, 9))
            title, introduced = random.choice(data["abstracts"]["titles"]), set[str]()
            sentences = [_sentence(each, cast, introduced, random) for each in (title, *body)]
            texts = {sentence.text for sentence in sentences}
            if self._written.isdisjoint(texts):
                self._written |= texts
                return Abstract(cast, sentences)

    def _cast(self) -> dict[str, Name]:
        random, data = self._random, load("entities")
        known = self._well_known
        entities = {
            f"{type_.lower()}{n}": self._coin(type_) if random.random() < COINED else random.choice(known[type_])
            for type_ in TYPES
            for n in ("", "2")
        }
        signs = random.sample(data["signs"]["sign"], 2)
        words = {role: random.choice(options) for role, options in data["words"].items()}
        words |= {"sign": signs[0], "sign2": signs[1]}
        words |= {"n": str(random.randint(12, 990)), "dose": str(random.choice((0.5, 2.5, 10, 80)))}
        words |= {"weeks": str(random.randint(2, 52)), "percent": str(random.randint(20, 995) / 10)}
        words |= {"surname": _surname(random), "acronym": _symbol(random), "cell": _symbol(random)}
        entities["metal"] = Name(random.choice(data["ambiguous"]["metal"]), "Chemical")
        entities["illness"] = Name(random.choice(data["ambiguous"]["illness"]), "Disease")
        return entities | {role: Name(word) for role, word in words.items()}

    def _coin(self, type_: str) -> Name:
        """A name never coined before; its abbreviation may have been."""
        name = coin(self._random, type_)
        while name.full in self._coined:
            name = coin(self._random, type_)
        self._coined.add(name.full)
        return name


def _sentence(template: str, cast: dict[str, Name], introduced: set[str], random: Random) -> Sentence:
    """A sentence of an abstract. introduced: the names whose abbreviation is known by now."""
    text, entities, roles = "", list[Entity](), dict[str, str]()
    for between, role, _, _ in Formatter().parse(template):
        text += between
        start = len(text)
        for part, type_ in _written(role.lower(), cast, introduced, random) if role else ():
            if type_:
                entities.append(Entity(len(text), len(text) + len(part), type_))
            text += part
        if role:
            roles[role] = capitalised(text[start:]) if role[0].isupper() else text[start:]
            text = text[:start] + roles[role]
    return Sentence(text, entities, template, roles)


def _written(
    role: str, cast: dict[str, Name], introduced: set[str], random: Random
) -> Iterator[tuple[str, str | None]]:
    """The texts of a role, each with the type of entity that it is: a name comes with its abbreviation at first."""
    if role not in cast:  # two of a kind
        kind = role.removesuffix("s")
        yield from _written(kind, cast, introduced, random)
        yield random.choice((" and ", " or ", " as well as ")), None
        yield from _written(f"{kind}2", cast, introduced, random)
        return
    full, type_, short = cast[role]
    if short is None or full in introduced:
        yield short if short and random.random() < BY_ABBREVIATION else full, type_
        return
    introduced.add(full)
    yield from ((full, type_), (" (", None), (short, type_), (")", None))


def as_document(identifier: str, abstract: Abstract) -> Document:
    """The sentences of an abstract with a space between them, and their words; the first one is the title."""
    start, entities, words = 0, list[Entity](), list[tuple[Span, ...]]()
    for sentence in abstract.sentences:
        entities += [Entity(start + each.start, start + each.end, each.type) for each in sentence.entities]
        words.append(tuple((start + a, start + b) for a, b in word_spans(sentence.text)))
        start += len(sentence.text) + 1
    end = len(abstract.sentences[0].text)
    passages = (Passage(0, end, "title"), Passage(end + 1, start - 1, "abstract"))
    return Document(identifier, abstract.text, tuple(entities), passages, tuple(words))


def draw_documents(settings: EntitySettings) -> dict[str, list[Document]]:
    """The documents of train, dev and test: they share no sentence, and half of a test's names are in no other part."""
    abstracts = Abstracts(settings.seed)
    return {
        part: [as_document(f"{part}-{number}", abstracts.next()) for number in range(getattr(settings, part))]
        for part in PARTS
    }


def write_entities(folder: Path, parts: dict[str, list[Document]]) -> dict[str, int]:
    """Writes what `draw_documents` gives to `entities.train.jsonl` and its like; documents by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    for part, documents in parts.items():
        # Words that can be found again in the text would be most of a JSONL file.
        plain = [replace(document, sentences=()) for document in documents]
        forms: dict[WrittenName, list[Document]] = {"jsonl": plain, "conll": documents}
        for form, listed in (forms | ({"pubtator": plain} if part == "test" else {})).items():
            file = f"entities.{part}.{SUFFIXES.get(form, form)}"
            write_documents(folder / file, listed, form, overwrite=True)
            counts[file] = len(documents)
    return counts


def lookup_metrics(train: Sequence[Document], test: Sequence[Document]) -> dict[str, float]:
    """Strict precision, recall and F1 on `test` of marking every name that `train` has, the longest first.

    What a model has to be better than, to have learned more than names. Case does not count; a name of several types
    is taken for the most frequent one.
    """
    types: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for document in train:
        for entity in document.entities:
            types[document.text[entity.start : entity.end].lower()][entity.type] += 1
    names = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(types, key=len, reverse=True)))})\b")
    hits = ((place, hit) for place, document in enumerate(test) for hit in names.finditer(document.text.lower()))
    marked = {(place, *hit.span(), types[hit[0]].most_common(1)[0][0]) for place, hit in hits}
    gold = {(place, e.start, e.end, e.type) for place, document in enumerate(test) for e in document.entities}
    right, counted = len(gold & marked), len(gold) + len(marked)
    return {
        "precision": right / max(len(marked), 1),
        "recall": right / max(len(gold), 1),
        "f1": 2 * right / max(counted, 1),
    }


def write_questions(folder: Path, settings: QuestionSettings) -> dict[str, int]:
    """Writes `questions.train.json` and its like in SQuAD 2.0's format, from `settings` alone; questions by file.

    Of equal sizes and seed, their abstracts are those of `write_entities`.
    """
    abstracts, random = Abstracts(settings.seed), Random(f"questions-{settings.seed}")
    counts: dict[str, int] = {}
    for part in PARTS:
        names = (f"{part}-{number}" for number in range(getattr(settings, part)))
        articles = [article(name, abstracts.next(), random) for name in names]
        listed = ",\n".join(json.dumps(each, ensure_ascii=False) for each in articles)
        write_lines(folder / f"questions.{part}.json", ['{"version": "v2.0", "data": [', listed, "]}"])
        counts[f"questions.{part}.json"] = sum(len(each["paragraphs"][0]["qas"]) for each in articles)
    return counts


def article(identifier: str, abstract: Abstract, random: Random) -> Json:
    """An article of SQuAD's JSON: a context from `abstract`, and questions about it."""
    sentences, cast = abstract.sentences, {role: name.full for role, name in abstract.cast.items()}
    if random.random() >= WHOLE:
        length = random.randint(2, 4)
        start = random.randint(0, len(sentences) - length)
        sentences = sentences[start : start + length]
    answered, start = [], 0
    for sentence in sentences:
        if sentence.template in questions_of():
            question, *parts = random.choice(questions_of()[sentence.template])
            spans = dict.fromkeys(span for part in parts for span in answer_spans(sentence, part))
            answers = [{"text": text, "answer_start": start + first} for first, text in spans]
            answered.append({"question": question.format(**cast), "answers": answers, "is_impossible": False})
        start += len(sentence.text) + 1
    kept = random.sample(range(len(answered)), min(MOST_QUESTIONS, len(answered)))
    questions = [answered[place] for place in sorted(kept)]
    if not questions or random.random() < IMPOSSIBLE:  # one about a sentence that is not there
        present = {sentence.template for sentence in sentences}
        absent = [known for template, known in questions_of().items() if template not in present]
        question = random.choice(random.choice(absent))[0]
        questions.append({"question": question.format(**cast), "answers": [], "is_impossible": True})
    qas = [{"id": f"{identifier}-{number}", **each} for number, each in enumerate(questions, 1)]
    context = " ".join(sentence.text for sentence in sentences)
    return {"title": identifier, "paragraphs": [{"context": context, "qas": qas}]}


def run_bioasq(settings: BioasqSampleSettings, context: StageContext) -> Metrics:
    """The stage `samples.bioasq`: writes `bioasq.train.json` and its like; how many questions each part has."""
    if not context.process_group.is_main:
        return {}
    counts: Metrics = {}
    abstracts, random = Abstracts(settings.seed), Random(f"bioasq-{settings.seed}")
    for part in PARTS:
        drawn = (abstracts.next() for _ in range(getattr(settings, part)))
        questions = [
            {"id": f"{part}-{number}-{place}", **question}
            for number, abstract in enumerate(drawn)
            for place, question in enumerate(bioasq_questions(f"{part}-{number}", abstract, random), 1)
        ]
        listed = ",\n".join(json.dumps(question, ensure_ascii=False) for question in questions)
        write_lines(context.output / f"bioasq.{part}.json", ['{"questions": [', listed, "]}"])
        counts[f"questions/{part}"] = len(questions)
    return counts


def bioasq_questions(identifier: str, abstract: Abstract, random: Random) -> Iterator[Json]:
    """Yields questions about sentences of an abstract: factoid ones, lists of two, and yes/no ones.

    Their snippets are the sentence with the one before it, and with the one behind it.
    """
    sentences, cast, claims = abstract.sentences, abstract.cast, load("entities")["claims"]
    names = {role: name.full for role, name in cast.items()}
    for position, sentence in enumerate(sentences):
        around = sentences[max(0, position - 1) : position + 2]
        pairs = [pair for pair in (around[:2], around[-2:]) if sentence in pair]
        snippets = [{"text": " ".join(other.text for other in pair), "document": identifier} for pair in pairs]
        if sentence.template in questions_of():
            question, *parts = random.choice(questions_of()[sentence.template])
            listed = _listed_roles(parts[0], cast)
            wordings = dict.fromkeys(text for part in parts for _, text in answer_spans(sentence, part))
            synonyms = [list(filter(None, (cast[role].full, cast[role].short))) for role in listed]
            exact: Json = {"type": "list" if listed else "factoid", "exact_answer": synonyms or [list(wordings)]}
            yield {"body": question.format(**names), **exact, "snippets": snippets}
        if sentence.template in claims:
            answer = random.random() < YES
            body = claims[sentence.template][0 if answer else 1].format(**names)
            yield {"type": "yesno", "body": body, "exact_answer": "yes" if answer else "no", "snippets": snippets}


def _listed_roles(part: str, cast: dict[str, Name]) -> list[str]:
    """The roles of a part that is a list of two, `{diseases}` or `{sign} and {sign2}`; none of another part."""
    roles = [role for _, role, _, _ in Formatter().parse(part) if role]
    if len(roles) == 1 and roles[0] not in cast:
        kind = roles[0].removesuffix("s")
        return [kind, f"{kind}2"]
    return roles if len(roles) == 2 and " and ".join(f"{{{role}}}" for role in roles) == part else []


def questions_of() -> dict[str, list[list[str]]]:
    """The questions of each sentence that has some, and behind each the parts of the sentence that answer it."""
    return {template: questions for template, questions in load("entities")["sentences"].items() if questions}


def answer_spans(sentence: Sentence, part: str) -> Iterator[tuple[int, str]]:
    """Yields the position of a part of its template in a sentence, and its text; without a final abbreviation as well.

    Roles of `part` are in lower case.
    """
    first = sentence.template.lower().index(part.lower())
    start = len(sentence.template[:first].format(**sentence.roles))
    text = sentence.template[first : first + len(part)].format(**sentence.roles)
    if short := WITH_ABBREVIATION.fullmatch(text):
        yield start, short[1]
    yield start, text
