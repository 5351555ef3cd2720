"""Made-up abstracts of biomedical papers: their text alone, with every entity marked, and with questions about them.

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
from typing import Any, NamedTuple

from bertrelay.stage import Metrics, StageContext
from domain.biomedical.documents import WrittenName
from domain.biomedical.documents.document import Document, Entity, Passage, Span
from domain.biomedical.documents.tokens import word_spans
from domain.biomedical.documents.writing import write_documents
from pipelines.samples.grammar import Scope, capitalised, grammar, load, write_lines
from pipelines.samples.settings import EntitySettings, PaperSettings, QuestionSettings

PAPERS = "papers.jsonl.gz"
TYPES = ("Disease", "Chemical", "Gene")
PARTS = ("train", "dev", "test")
FORMATS: dict[WrittenName, str] = {"jsonl": "jsonl", "conll": "tsv", "pubtator": "pubtator"}
"""Of files with entities, and their endings; PubTator has the test part alone."""
WELL_KNOWN = 40
"""Names of each type that occur in abstracts of every part."""
COINED = 0.6
"""Of the names of an abstract, those that are its own."""
BY_ABBREVIATION = 0.7
ROLE = re.compile(r"\{(\w+)\}")

WHOLE = 0.35
"""Of contexts, those that are a whole abstract; the others are a few sentences of one."""
IMPOSSIBLE = 0.3
"""Of contexts, those with a question that they do not answer."""
MOST_QUESTIONS = 4
WITH_ABBREVIATION = re.compile(r"(.+) \(\w+\)")

Json = dict[str, Any]


def run_papers(settings: PaperSettings, context: StageContext) -> Metrics:
    """The stage `samples.papers`: writes plain abstracts; how many, as `documents/papers`."""
    counts = write_papers(context.output, settings.seed, settings.documents) if context.process_group.is_main else {}
    return {f"documents/{name.partition('.')[0]}": count for name, count in counts.items()}


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
    papers = [
        {"id": f"paper-{number}", "text": " ".join(sentence.text for sentence in abstracts.next().sentences)}
        for number in range(documents)
    ]
    write_lines(folder / PAPERS, map(json.dumps, papers))
    return {PAPERS: documents}


def _coined(random: Random, endings: Sequence[str] = ("",), syllables: int = 2) -> str:
    return "".join(random.choices(load("entities")["syllables"], k=syllables)) + random.choice(endings)


class Name(NamedTuple):
    """A name in full and, where it has one, its abbreviation. type: None for what is no entity."""

    full: str
    type: str | None = None
    short: str | None = None


def coin(random: Random, type_: str) -> Name:
    """A name of `type_` in one of the forms that the data has: `talorin`, `KVR3`, `familial renal corlomitis` (FRC)."""
    data = load("entities")
    draws = {"symbol": lambda: _symbol(random), "surname": lambda: _surname(random)}
    words = dict[str, Any]()
    if type_ == "Disease":
        words["word"] = _coined(random, data["lists"]["disease_ending"])
        words["organ"], words["organ2"] = random.sample(data["lists"]["organ"], 2)
    else:
        words["stem"] = _coined(random)
        same = "group" if type_ == "Chemical" else "enzyme"
        words[same] = random.choice(data["lists"][same])
    if type_ == "Chemical":
        words["number"], words["number2"] = sorted(random.sample(range(1, 9), 2))
    form = random.choice(data["forms"][type_])
    full = Scope(grammar("entities"), random, words, draws).fill(form.removesuffix(" ()"))
    return Name(full, type_, "".join(word[0] for word in full.split()).upper() if form.endswith(" ()") else None)


def _symbol(random: Random) -> str:
    """Capitals and perhaps a number, as genes, cell lines, trials and scores have them."""
    letters = "".join(random.choices("BDKPR", k=random.choice((2, 3, 3))))
    number: str = random.choice(["", *"123456789"])
    return letters + number


def _surname(random: Random) -> str:
    return _coined(random, load("entities")["lists"]["surname_ending"], syllables=1).capitalize()


class Sentence(NamedTuple):
    """A sentence, its entities, the template that it follows, and the text of each of the template's roles."""

    text: str
    entities: list[Entity]
    template: str
    roles: list[str]


class Abstract(NamedTuple):
    """What an abstract is about, by role, and its sentences, the title first."""

    cast: dict[str, Name]
    sentences: list[Sentence]


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
        entities = {f"{type_.lower()}{n}": self._name(type_) for type_ in TYPES for n in ("", "2")}
        signs = random.sample(data["signs"]["sign"], 2)
        words = {role: random.choice(options) for role, options in data["words"].items()} | {
            "sign": signs[0],
            "sign2": signs[1],
            "n": str(random.randint(12, 990)),
            "dose": str(random.choice((0.5, 2.5, 10, 80))),
            "weeks": str(random.randint(2, 52)),
            "percent": str(random.randint(20, 995) / 10),
            "surname": _surname(random),
            "acronym": _symbol(random),
            "cell": _symbol(random),
        }
        ambiguous = {
            "metal": Name(random.choice(data["ambiguous"]["metal"]), "Chemical"),
            "illness": Name(random.choice(data["ambiguous"]["illness"]), "Disease"),
        }
        return entities | {role: Name(word) for role, word in words.items()} | ambiguous

    def _name(self, type_: str) -> Name:
        return self._coin(type_) if self._random.random() < COINED else self._random.choice(self._well_known[type_])

    def _coin(self, type_: str) -> Name:
        """A name never coined before; its abbreviation may have been."""
        name = coin(self._random, type_)
        while name.full in self._coined:
            name = coin(self._random, type_)
        self._coined.add(name.full)
        return name


def _sentence(template: str, cast: dict[str, Name], introduced: set[str], random: Random) -> Sentence:
    """A sentence of an abstract. introduced: the names whose abbreviation is known by now."""
    text, entities, roles = "", list[Entity](), list[str]()
    for number, piece in enumerate(ROLE.split(template)):
        start = len(text)
        if number % 2 == 0:
            text += piece
            continue
        for part, type_ in _written(piece.lower(), cast, introduced, random):
            if type_:
                entities.append(Entity(len(text), len(text) + len(part), type_))
            text += part
        if piece[0].isupper():
            text = text[:start] + capitalised(text[start:])
        roles.append(text[start:])
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
    text, entities, words = "", list[Entity](), list[tuple[Span, ...]]()
    for sentence in abstract.sentences:
        start = len(text) + 1 if text else 0
        entities += [Entity(start + each.start, start + each.end, each.type) for each in sentence.entities]
        words.append(tuple((start + a, start + b) for a, b in word_spans(sentence.text)))
        text = f"{text} {sentence.text}".lstrip()
    end = len(abstract.sentences[0].text)
    passages = (Passage(0, end, "title"), Passage(end + 1, len(text), "abstract"))
    return Document(identifier, text, tuple(entities), passages, tuple(words))


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
        for name, suffix in FORMATS.items():
            if name != "pubtator" or part == "test":
                file = f"entities.{part}.{suffix}"
                write_documents(folder / file, documents if name == "conll" else plain, name)
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
    gold = found = right = 0
    for document in test:
        hits = list(names.finditer(document.text.lower()))
        marked = {(*hit.span(), types[hit[0]].most_common(1)[0][0]) for hit in hits}
        expected = {(entity.start, entity.end, entity.type) for entity in document.entities}
        gold, found, right = gold + len(expected), found + len(marked), right + len(marked & expected)
    return {"precision": right / max(found, 1), "recall": right / max(gold, 1), "f1": 2 * right / max(gold + found, 1)}


def write_questions(folder: Path, settings: QuestionSettings) -> dict[str, int]:
    """Writes `questions.train.json` and its like in SQuAD 2.0's format, from `settings` alone; questions by file.

    Of equal sizes and seed, their abstracts are those of `write_entities`.
    """
    abstracts, random = Abstracts(settings.seed), Random(f"questions-{settings.seed}")
    counts: dict[str, int] = {}
    for part in PARTS:
        file, size = f"questions.{part}.json", getattr(settings, part)
        articles = [article(f"{part}-{number}", abstracts.next(), random) for number in range(size)]
        listed = ",\n".join(json.dumps(each, ensure_ascii=False) for each in articles)
        write_lines(folder / file, ['{"version": "v2.0", "data": [', listed, "]}"])
        counts[file] = sum(len(paragraph["qas"]) for each in articles for paragraph in each["paragraphs"])
    return counts


def article(identifier: str, abstract: Abstract, random: Random) -> Json:
    """An article of SQuAD's JSON: a context from `abstract`, and questions about it."""
    sentences = abstract.sentences
    if random.random() >= WHOLE:
        length = random.randint(2, 4)
        start = random.randint(0, len(sentences) - length)
        sentences = sentences[start : start + length]
    answered = list(_answered(sentences, abstract.cast, random))
    kept = random.sample(range(len(answered)), min(MOST_QUESTIONS, len(answered)))
    questions = [answered[place] for place in sorted(kept)]
    if not questions or random.random() < IMPOSSIBLE:  # one about a sentence that is not there
        present = {sentence.template for sentence in sentences}
        absent = [known for template, known in questions_of().items() if template not in present]
        questions.append(_question(random.choice(random.choice(absent))[0], abstract.cast, []))
    qas = [{"id": f"{identifier}-{number}", **each} for number, each in enumerate(questions, 1)]
    context = " ".join(sentence.text for sentence in sentences)
    return {"title": identifier, "paragraphs": [{"context": context, "qas": qas}]}


def questions_of() -> dict[str, list[list[str]]]:
    """The questions of each sentence that has some, and behind each the parts of the sentence that answer it."""
    return {template: questions for template, questions in load("entities")["sentences"].items() if questions}


def _answered(sentences: Sequence[Sentence], cast: dict[str, Name], random: Random) -> Iterator[Json]:
    """A question about each sentence that answers any."""
    start = 0
    for sentence in sentences:
        if sentence.template in questions_of():
            question, *parts = random.choice(questions_of()[sentence.template])
            answers = dict.fromkeys(
                (start + first, text) for part in parts for first, text in answer_spans(sentence, part)
            )
            golds = [{"text": text, "answer_start": first} for first, text in answers]
            yield _question(question, cast, golds)
        start += len(sentence.text) + 1


def _question(question: str, cast: dict[str, Name], golds: list[Json]) -> Json:
    worded = question.format(**{role: name.full for role, name in cast.items()})
    return {"question": worded, "answers": golds, "is_impossible": not golds}


def answer_spans(sentence: Sentence, part: str) -> Iterator[tuple[int, str]]:
    """Where a part of its template is in a sentence, and its text; without a final abbreviation as well.

    Roles of `part` are in lower case.
    """
    first, roles = sentence.template.lower().index(part.lower()), iter(sentence.roles)
    before, inside = sentence.template[:first], sentence.template[first : first + len(part)]
    start = len(ROLE.sub(lambda _: next(roles), before))
    text = ROLE.sub(lambda _: next(roles), inside)
    if short := WITH_ABBREVIATION.fullmatch(text):
        yield start, short[1]
    yield start, text
