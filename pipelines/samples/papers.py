"""Made-up abstracts of biomedical papers: plain, with every entity marked, and with questions about them.

Which words are an entity, and of which type, follows from the sentence alone: a name may be met in training and again
in a test, or be coined for one abstract. Names are coordinated, introduced with their abbreviation and afterwards
written by it, and occur beside what looks like them: cell lines, trials, scores, authors, and words that are a name
elsewhere. The names and numbers that answer a question occur elsewhere in its context, and some questions are about a
sentence that the context lacks.
"""

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from bertrelay.stage import Metrics, StageContext
from domain.biomedical.documents import FormatName, write_documents
from domain.biomedical.documents.document import Document, Entity, Passage, Span
from domain.biomedical.documents.tokens import word_spans
from pipelines.samples.settings import EntitySettings, PaperSettings, QuestionSettings
from pipelines.samples.templates import capitalised, fill, load

PAPERS = "papers.jsonl.gz"
LEFT_OUT = 0.2
"""Of the sections of a plain abstract, those that are left out."""

TYPES = ("Disease", "Chemical", "Gene")
FORMATS: dict[str, tuple[FormatName, ...]] = {
    "train": ("jsonl", "conll"),
    "dev": ("jsonl", "conll"),
    "test": ("jsonl", "conll", "pubtator"),
}
SUFFIXES: dict[FormatName, str] = {"conll": "tsv"}
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
    _write_documents(context.output, parts)
    lookup = lookup_metrics(parts["train"], parts["test"])
    return {
        **{f"documents/{part}": len(documents) for part, documents in parts.items()},
        **{f"lookup/{name}": value for name, value in lookup.items()},
    }


def run_questions(settings: QuestionSettings, context: StageContext) -> Metrics:
    """The stage `samples.questions`: writes questions about abstracts; how many each part has."""
    counts = write_questions(context.output, settings) if context.process_group.is_main else {}
    return {f"questions/{name.split('.')[1]}": count for name, count in counts.items()}


def write_papers(folder: Path, seed: int = 7, documents: int = 1_500) -> dict[str, int]:
    """Writes documents of an `id` and a `text`, a function of `seed` and their number alone; how many, by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    random = Random(seed)
    lines = [json.dumps({"id": f"paper-{number}", "text": _paper(random)}) + "\n" for number in range(documents)]
    # Without the time in its header, the same lines compress to the same bytes.
    (folder / PAPERS).write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    return {PAPERS: documents}


def _paper(random: Random) -> str:
    names = _subject_of_paper(random)
    sections = [section["sentences"] for section in load("papers")["sections"]]
    kept = [sentences for sentences in sections if random.random() >= LEFT_OUT]
    return " ".join(random.choice(sentences).format(**names) for sentences in kept or sections)


def _subject_of_paper(random: Random) -> dict[str, str | float]:
    """What one paper is about: the same names and numbers from its title to its conclusion."""
    data = load("papers")
    words = {kind: random.choice(options) for kind, options in data["words"].items()}
    words["organ"], symptoms = random.choice(list(data["symptoms"].items()))
    words |= {
        "outcome": random.choice(symptoms),
        "disease": _coined(random, data["disease_endings"]),
        "drug": _coined(random, data["drug_endings"]),
        "rival": random.choice(("placebo", _coined(random, data["drug_endings"]))),
        "gene": "".join(random.choices("BDGJKQWXZ", k=3)) + str(random.randint(1, 19)),
        "name": _coined(random, data["author_endings"]),
    }
    patients, percent = random.randint(40, 900), random.randint(8, 60)
    numbers = {
        "n": patients,
        "m": random.randint(5, patients // 3),
        "dose": random.choice((0.5, 2.5, 10, 25, 80)),
        "weeks": random.choice((4, 8, 12, 24, 52)),
        "percent": percent,
        "other": random.randint(1, percent),
        "low": percent - random.randint(2, 7),
        "high": percent + random.randint(2, 7),
        "p": random.randint(1, 9),
    }
    return words | {word.capitalize(): capitalised(text) for word, text in words.items()} | numbers


def _coined(random: Random, endings: Sequence[str] = ("",), syllables: int = 2) -> str:
    return "".join(random.choices(load("papers")["syllables"], k=syllables)) + random.choice(endings)


class Name(NamedTuple):
    """A name in full and, where it has one, its abbreviation. type: None for what is no entity."""

    full: str
    type: str | None = None
    short: str | None = None


def coin(random: Random, type_: str) -> Name:
    """A name of `type_` in one of the forms that the data has: `talorin`, `KVR3`, `familial renal corlomitis` (FRC)."""
    data, endings = load("entities"), load("papers")
    options = data["fillings"] | {"drug_ending": endings["drug_endings"]}
    given: dict[str, object] = {"symbol": partial(coin_symbol, random), "surname": partial(coin_surname, random)}
    if type_ == "Disease":
        given["word"] = _coined(random, endings["disease_endings"])
        given["organ"], given["organ2"] = random.sample(options["organ"], 2)
    elif type_ == "Chemical":
        given |= {"stem": _coined(random), "group": random.choice(options["group"])}
        given["number"], given["number2"] = sorted(random.sample(range(1, 9), 2))
    else:
        given |= {"stem": _coined(random), "enzyme": random.choice(options["enzyme"])}
    form = random.choice(data["forms"][type_])
    full = fill(form.removesuffix(" ()"), random, given, options)
    return Name(full, type_, "".join(word[0] for word in full.split()).upper() if form.endswith(" ()") else None)


def coin_symbol(random: Random) -> str:
    """Capitals and perhaps a number, as genes, cell lines, trials and scores have them."""
    letters = "".join(random.choices("BDKPR", k=random.choice((2, 3, 3))))
    number: str = random.choice(["", *"123456789"])
    return letters + number


def coin_surname(random: Random) -> str:
    return _coined(random, load("entities")["fillings"]["surname_ending"], syllables=1).capitalize()


class Part(NamedTuple):
    """A part of a sentence. type: of the entity that it is; None where it is none."""

    text: str
    type: str | None = None


class Sentence(NamedTuple):
    """A template, and what is written for each of its segments: text and roles, by turns, as ROLE splits it."""

    template: str
    segments: list[list[Part]]

    @property
    def parts(self) -> list[Part]:
        return [part for segment in self.segments for part in segment]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


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

    def document(self, identifier: str) -> Document:
        """The next abstract, its title first, in words and sentences."""
        return _as_document(identifier, [sentence.parts for sentence in self.next().sentences])

    def next(self) -> Abstract:
        """The next abstract, with the roles of its words."""
        abstract = self._draw()
        while not self._written.isdisjoint(texts := {sentence.text for sentence in abstract.sentences}):
            abstract = self._draw()
        self._written |= texts
        return abstract

    def _draw(self) -> Abstract:
        data, cast = load("entities"), self._cast()
        writer = _Writer(cast, self._random)
        body = self._random.sample(tuple(data["sentences"]), self._random.randint(5, 9))
        title = self._random.choice(data["abstracts"]["titles"])
        return Abstract(cast, [writer.sentence(template) for template in (title, *body)])

    def _cast(self) -> dict[str, Name]:
        """What an abstract is about, by role."""
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
            "surname": coin_surname(random),
            "acronym": coin_symbol(random),
            "cell": coin_symbol(random),
        }
        return {
            **entities,
            **{role: Name(word) for role, word in words.items()},
            "metal": Name(random.choice(data["ambiguous"]["metal"]), "Chemical"),
            "illness": Name(random.choice(data["ambiguous"]["illness"]), "Disease"),
        }

    def _name(self, type_: str) -> Name:
        return self._coin(type_) if self._random.random() < COINED else self._random.choice(self._well_known[type_])

    def _coin(self, type_: str) -> Name:
        """A name never coined before; its abbreviation may have been."""
        name = coin(self._random, type_)
        while name.full in self._coined:
            name = coin(self._random, type_)
        self._coined.add(name.full)
        return name


class _Writer:
    """The sentences of one abstract: a name is introduced with its abbreviation, and mostly replaced by it later."""

    def __init__(self, cast: dict[str, Name], random: Random) -> None:
        self._cast = cast
        self._random = random
        self._introduced: set[str] = set()

    def sentence(self, template: str) -> Sentence:
        segments = enumerate(ROLE.split(template))
        return Sentence(template, [self._role(text) if n % 2 else [Part(text)] for n, text in segments])

    def _role(self, role: str) -> list[Part]:
        first, *others = self._named(role.lower())
        return [first._replace(text=capitalised(first.text)) if role[0].isupper() else first, *others]

    def _named(self, role: str) -> Iterator[Part]:
        if role not in self._cast:  # two of a kind
            kind = role.removesuffix("s")
            yield from self._named(kind)
            yield Part(self._random.choice((" and ", " or ", " as well as ")))
            yield from self._named(f"{kind}2")
            return
        full, type_, short = self._cast[role]
        if short is None:
            yield Part(full, type_)
        elif full not in self._introduced:
            self._introduced.add(full)
            yield from (Part(full, type_), Part(" ("), Part(short, type_), Part(")"))
        else:
            yield Part(short if self._random.random() < BY_ABBREVIATION else full, type_)


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


def write_entities(folder: Path, settings: EntitySettings) -> dict[str, int]:
    """Writes `entities.train.jsonl` and its like, a function of `settings` alone; documents by file name."""
    return _write_documents(folder, draw_documents(settings))


def draw_documents(settings: EntitySettings) -> dict[str, list[Document]]:
    """The documents of train, dev and test: they share no sentence, and half of a test's names are in no other part."""
    abstracts = Abstracts(settings.seed)
    sizes = {part: getattr(settings, part) for part in FORMATS}
    return {part: [abstracts.document(f"{part}-{number}") for number in range(size)] for part, size in sizes.items()}


def _write_documents(folder: Path, parts: dict[str, list[Document]]) -> dict[str, int]:
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    for part, documents in parts.items():
        # Words that can be found again in the text would be most of a JSONL file.
        plain = [replace(document, sentences=()) for document in documents]
        for name in FORMATS[part]:
            file = f"entities.{part}.{SUFFIXES.get(name, name)}"
            write_documents(folder / file, documents if name == "conll" else plain, name)
            counts[file] = len(documents)
    return counts


def lookup_metrics(train: Sequence[Document], test: Sequence[Document]) -> dict[str, float]:
    """Strict precision, recall and F1 on `test` of marking every name that `train` has, the longest first.

    What a model has to be better than, to have learned more than names. Case does not count; a name of several types
    is taken for the most frequent one.
    """
    names = names_of(train)
    gold = found = right = 0
    for document in test:
        marked = set(find_names(names, document))
        expected = {(entity.start, entity.end, entity.type) for entity in document.entities}
        gold, found, right = gold + len(expected), found + len(marked), right + len(marked & expected)
    precision, recall = right / max(found, 1), right / max(gold, 1)
    return {"precision": precision, "recall": recall, "f1": 2 * right / max(gold + found, 1)}


def names_of(documents: Sequence[Document]) -> dict[tuple[str, ...], str]:
    """Each name, in lower-case words, and its type."""
    types: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for document in documents:
        words = [span for sentence in document.sentences for span in sentence]
        for entity in document.entities:
            inside = [span for span in words if entity.start <= span[0] and span[1] <= entity.end]
            types[_lowered(document, inside)][entity.type] += 1
    return {name: counts.most_common(1)[0][0] for name, counts in types.items()}


def find_names(names: dict[tuple[str, ...], str], document: Document) -> Iterator[tuple[int, int, str]]:
    """The spans of `document` that are one of `names`, and their types."""
    longest = max(map(len, names), default=0)
    for sentence in document.sentences:
        place = 0
        while place < len(sentence):
            lengths = range(min(longest, len(sentence) - place), 0, -1)
            tried = ((length, _lowered(document, sentence[place : place + length])) for length in lengths)
            length, name = next(((length, name) for length, name in tried if name in names), (1, ()))
            if name:
                yield sentence[place][0], sentence[place + length - 1][1], names[name]
            place += length


def _lowered(document: Document, spans: Sequence[Span]) -> tuple[str, ...]:
    return tuple(document.text[start:end].lower() for start, end in spans)


def write_questions(folder: Path, settings: QuestionSettings) -> dict[str, int]:
    """Writes `questions.train.json` and its like in SQuAD 2.0's format, from `settings` alone; questions by file."""
    folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    for part, articles in draw_articles(settings).items():
        file = f"questions.{part}.json"
        lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in articles)
        (folder / file).write_text(f'{{"version": "v2.0", "data": [\n{lines}\n]}}\n', encoding="utf-8")
        counts[file] = sum(len(paragraph["qas"]) for each in articles for paragraph in each["paragraphs"])
    return counts


def draw_articles(settings: QuestionSettings) -> dict[str, list[Json]]:
    """The articles of each part; of equal sizes and seed their abstracts are those of `samples.entities`."""
    abstracts, random = Abstracts(settings.seed), Random(f"questions-{settings.seed}")
    sizes = {part: getattr(settings, part) for part in FORMATS}
    return {
        part: [article(f"{part}-{number}", abstracts.next(), random) for number in range(size)]
        for part, size in sizes.items()
    }


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
    if not questions or random.random() < IMPOSSIBLE:
        questions.append(_impossible(sentences, abstract.cast, random))
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
            yield {"question": _worded(question, cast), "answers": golds, "is_impossible": False}
        start += len(sentence.text) + 1


def _impossible(sentences: Sequence[Sentence], cast: dict[str, Name], random: Random) -> Json:
    """A question about a sentence that is not among `sentences`."""
    present = {sentence.template for sentence in sentences}
    absent = [questions for template, questions in questions_of().items() if template not in present]
    question, *_ = random.choice(random.choice(absent))
    return {"question": _worded(question, cast), "answers": [], "is_impossible": True}


def _worded(question: str, cast: dict[str, Name]) -> str:
    return question.format(**{role: name.full for role, name in cast.items()})


def answer_spans(sentence: Sentence, part: str) -> Iterator[tuple[int, str]]:
    """Where a part of its template is in a sentence, and its text; without a final abbreviation as well.

    Roles of `part` are in lower case.
    """
    first = sentence.template.lower().index(part.lower())
    start, end = (_place(sentence, offset) for offset in (first, first + len(part)))
    text = sentence.text[start:end]
    if short := WITH_ABBREVIATION.fullmatch(text):
        yield start, short[1]
    yield start, text


def _place(sentence: Sentence, offset: int) -> int:
    """The offset in the sentence that corresponds to one in its template; a role has only a start and an end."""
    in_template = in_text = 0
    for number, (name, parts) in enumerate(zip(ROLE.split(sentence.template), sentence.segments, strict=True)):
        width, length = len(name) + 2 * (number % 2), sum(len(part.text) for part in parts)  # a role has braces
        if offset <= in_template + width:
            return in_text + (length if offset == in_template + width else offset - in_template)
        in_template, in_text = in_template + width, in_text + length
    raise ValueError(f"expected an offset in a template of {in_template} characters, found {offset}")
