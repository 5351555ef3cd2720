"""Checks questions before training on them: what is sound, what is doubtful, and what will not do.

Each file is read as a stream; of a question or a context only a hash is kept, by which equal ones are found.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from domain.biomedical.documents.document import numbered, reasons, shown_id
from domain.biomedical.qa.question_files import QuestionFormat, once, question_format_of, question_items
from domain.biomedical.qa.questions import ALIGNMENTS, DUPLICATE, NOWHERE, Question
from domain.findings import MAX_LEAKED, MAX_UNUSABLE, Finding, Severity, Split, by_share, duplicates, spreads, worst

if TYPE_CHECKING:
    from domain.biomedical.qa.subwords import Flags, PairSplitter
    from domain.biomedical.windows import Integers

Part = Literal["question", "answer", "context"]
PARTS: dict[Part, str] = {"question": "a question", "answer": "an answer", "context": "a context"}

MAX_NOT_FOUND = 0.5  # of the answers, in the snippets that should have them
MANY_WORDS: dict[Part, int] = {"question": 64, "answer": 30}
ADVICE: dict[Part, str] = {
    "question": "a question is never cut, and takes its space from the context",
    "answer": "found whole only with a larger `max_answer_tokens`",
}
SUFFIXES = (".json", ".jsonl", ".ndjson")
AT_ONCE = 1000


def _lengths() -> "dict[Part, array[int]]":
    return {part: array("Q") for part in PARTS}


@dataclass
class QuestionSurvey:
    """What one pass over a file has counted; each context is counted and measured once.

    unfit: how many questions a training would leave out, by reason; first_unfit: the first of these.
    first_long: the first question of which a part has more words than `MANY_WORDS`.
    """

    name: str
    questions: int = 0
    impossible: int = 0
    unlabelled: int = 0
    repeated: int = 0
    notes: Counter[str] = field(default_factory=Counter)
    unusable: list[Unusable] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    words: "dict[Part, array[int]]" = field(default_factory=_lengths)
    subwords: "dict[Part, array[int]]" = field(default_factory=_lengths)
    unfit: Counter[str] = field(default_factory=Counter)
    first_unfit: dict[str, str] = field(default_factory=dict)
    first_long: dict[Part, str] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    contexts: set[int] = field(default_factory=set)
    articles: set[int] = field(default_factory=set)
    pools: set[int] = field(default_factory=set)

    def of(self, reason: str) -> list[Unusable]:
        """What is unusable for this reason."""
        return [row for row in self.unusable if row.reason == reason]

    def place(self, question: Question) -> str:
        return f"question {shown_id(question.id)} in {self.name}"

    def add(self, question: Question) -> bool:
        """Counts a question; returns whether its context is new."""
        context, asked = hash(question.context), hash((question.question, question.context))
        is_new = context not in self.contexts
        texts: list[tuple[Part, str]] = [("question", question.question)]
        texts += [("answer", answer.text) for answer in question.answers]
        texts += [("context", question.context)] if is_new else []
        for part, text in texts:
            length = len(text.split())
            self.words[part].append(length)
            if part in MANY_WORDS and length > MANY_WORDS[part]:
                self.first_long.setdefault(part, self.place(question))
        self.questions += 1
        self.impossible += question.impossible
        self.unlabelled += not question.answers and not question.impossible
        self.repeated += asked in self.asked
        self.notes.update(question.notes)
        self.asked.add(asked)
        self.contexts.add(context)
        self.articles.add(hash(question.document))
        self.pools |= {hash(question.pool)} if question.pool else set()
        return is_new

    def measure(
        self, questions: Sequence[Question], has_new_context: Sequence[bool], subwords: "SubwordCounts"
    ) -> None:
        """Counts the subwords of questions, and those that a training would leave out."""
        lengths = subwords(questions)
        self.subwords["question"].extend(lengths.questions.tolist())
        self.subwords["answer"].extend(lengths.answers.tolist())
        self.subwords["context"].extend(compress(lengths.contexts.tolist(), has_new_context))
        for reason, has_fault in lengths.faults.items():
            for question in compress(questions, has_fault):
                self.unfit[reason] += 1
                self.first_unfit.setdefault(reason, self.place(question))


Surveys = Mapping[Split, QuestionSurvey]


class SubwordLengths(NamedTuple):
    """Subwords of questions, (questions,), of their answers, (answers,), and of their contexts, (questions,).

    faults: which questions cannot be trained on, by reason, (questions,).
    """

    questions: "Integers"
    answers: "Integers"
    contexts: "Integers"
    faults: "Mapping[str, Flags]"


@dataclass(frozen=True)
class SubwordCounts:
    """Tokenizes questions as a training does that is given no `max_tokens` and no `stride`."""

    splitter: "PairSplitter"
    max_tokens: int
    stride: int

    @classmethod
    def of(cls, model: str) -> "SubwordCounts":
        """Of a model folder or hub id; only its tokenizer and configuration are read."""
        from bertrelay.backbone import model_folder, read_network_config
        from bertrelay.layout import read_layout
        from bertrelay.tokenizer import load_tokenizer
        from domain.biomedical.qa.model import MAX_TOKENS, default_stride
        from domain.biomedical.qa.subwords import PairSplitter

        folder = model_folder(model)
        layout = read_layout(folder)
        transformer = folder / layout.transformer_folder
        config = read_network_config(transformer)
        size = min(MAX_TOKENS, (config and config.max_position_embeddings) or MAX_TOKENS)
        return cls(PairSplitter(load_tokenizer(transformer, layout.lower_case)), size, default_stride(size))

    def __call__(self, questions: Sequence[Question]) -> SubwordLengths:
        from domain.biomedical.qa.subwords import Golds, training_faults

        subwords = self.splitter([each.question for each in questions], [each.context for each in questions])
        golds = Golds.of(questions, subwords)
        faults = training_faults(questions, subwords, golds, self.max_tokens, self.stride)
        contexts = subwords.contexts.lengths[subwords.context_of]
        return SubwordLengths(subwords.questions.lengths, golds.ends - golds.firsts, contexts, faults)


def are_questions(files: Mapping[Split, Path]) -> bool:
    """Whether files hold questions, by their first keys. Raises RequestError where some do and others do not."""
    json_files = {path: "".join(path.suffixes[-2:]).removesuffix(".gz").endswith(SUFFIXES) for path in files.values()}
    found = {path: json_files[path] and path.is_file() and question_format_of(path) for path in files.values()}
    if any(found.values()) and not all(found.values()):
        names = ", ".join(str(path) for path, name in found.items() if name)
        raise RequestError(f"{names}: expected files of one kind, found questions here alone. Check them separately.")
    return all(found.values())


def check_questions(
    files: Mapping[Split, Path], format_name: QuestionFormat | None = None, model: str | None = None
) -> list[Finding]:
    """Checks the files of one to three splits.

    model: a folder or a hub id; measures lengths in the subwords of its tokenizer as well, against the windows of a
        training that is given neither `max_tokens` nor `stride`.
    Raises RequestError for a file that cannot be read at all, or without a question.
    """
    subwords = SubwordCounts.of(model) if model is not None else None
    surveys = {split: survey(path, format_name, subwords) for split, path in files.items()}
    findings = [_records(surveys), _ids(surveys), _offsets(surveys), *_aligned(surveys), _answers(surveys)]
    repeated = {split: found.repeated for split, found in surveys.items()}
    asked = {split: found.questions for split, found in surveys.items()}
    findings += [duplicates(repeated, asked, "questions asked of their context again"), *_leaks(surveys)]
    findings += [_words(surveys, part) for part in PARTS]
    return [*findings, *(_subwords(surveys, part, subwords) for part in PARTS)] if subwords is not None else findings


def survey(
    path: Path, format_name: QuestionFormat | None = None, subwords: SubwordCounts | None = None
) -> QuestionSurvey:
    """One pass over a file of any format."""
    found = QuestionSurvey(str(path))
    items = _questions(path, format_name, found)
    while questions := list(islice(items, AT_ONCE)):
        has_new_context = [found.add(question) for question in questions]
        if subwords is not None:
            found.measure(questions, has_new_context, subwords)
    if not found.questions and not found.unusable:
        raise RequestError(f"{path}: expected questions that can be asked of a text, found none. Is it the right file?")
    return found


def _questions(path: Path, format_name: QuestionFormat | None, found: QuestionSurvey) -> Iterator[Question]:
    for item in numbered(once(question_items(path, format_name))):
        if isinstance(item, Question):
            yield item
        elif isinstance(item, Unusable):
            found.unusable.append(item)
        else:
            found.left_out[item.reason] += 1


# Findings


def _records(surveys: Surveys) -> Finding:
    """What cannot be used, except for ids and offsets."""
    rows = [row for found in surveys.values() for row in found.unusable if row.reason not in (DUPLICATE, NOWHERE)]
    whole = _whole(surveys)
    summary = f"{len(rows):,} of {whole:,} questions cannot be used: {reasons(rows)}" if rows else f"{whole:,} read"
    left_out = sum((found.left_out for found in surveys.values()), Counter[str]())
    summary += "".join(f"; left out: {count:,} × {reason}" for reason, count in left_out.most_common())
    return Finding("records", by_share(len(rows), whole, MAX_UNUSABLE), summary, {"unusable": len(rows)})


def _ids(surveys: Surveys) -> Finding:
    rows = [row for found in surveys.values() for row in found.of(DUPLICATE)]
    summary = f"{len(rows):,} questions: {reasons(rows)}" if rows else "every question has an id of its own"
    return Finding("ids", "fail" if rows else "good", summary, {"repeated": len(rows)})


def _offsets(surveys: Surveys) -> Finding:
    """Answers that are not at their offsets, or nowhere."""
    notes = _notes(surveys)
    rows = [row for found in surveys.values() for row in found.of(NOWHERE)]
    lost = len(rows) + notes["nowhere"]
    summary = [f"{len(rows):,} questions cannot be used: {reasons(rows)}"] if rows else []
    if notes["corrected"]:
        summary.append(f"{notes['corrected']:,} answers are a few characters off their offsets; reading corrects them")
    if notes["nowhere"]:
        summary.append(f"{notes['nowhere']:,} further answers are not in their context: scored by, not trained on")
    severity: Severity = by_share(lost, _whole(surveys), MAX_UNUSABLE) if lost else "warn" if summary else "good"
    good = "every answer is at its offset" if notes["in place"] else "no answer came with an offset"
    return Finding("offsets", severity, "; ".join(summary) or good, {"mended": notes["corrected"], "nowhere": lost})


def _aligned(surveys: Surveys) -> Iterator[Finding]:
    """How the answers of BioASQ's questions were found in the snippets; nothing in other files."""
    notes = _notes(surveys)
    counts: dict[str, float] = {how: notes[how] for how in ALIGNMENTS}
    if any(counts.values()):
        missing, whole = counts[ALIGNMENTS[-1]], sum(counts.values())
        summary = "answers in snippets: " + ", ".join(f"{count:,} {how}" for how, count in counts.items())
        yield Finding("alignment", "warn" if missing > MAX_NOT_FOUND * whole else "good", summary, counts)


def _answers(surveys: Surveys) -> Finding:
    """Questions without an answer: impossible ones, and unlabelled ones."""
    trained = surveys.get("train", next(iter(surveys.values())))
    summary = [
        f"{split}: {len(found.words['answer']):,} answers to {found.questions:,} questions, "
        f"{found.impossible:,} impossible, {found.unlabelled:,} without an answer"
        for split, found in surveys.items()
    ]
    severity: Severity = "warn" if any(found.unlabelled for found in surveys.values()) else "good"
    if not trained.words["answer"]:
        severity = "fail"
        summary.append("there is no answer to train on")
    counts = {f"{split}_without_answer": found.unlabelled for split, found in surveys.items()}
    return Finding("answers", severity, "; ".join(summary), counts)


def _leaks(surveys: Surveys) -> Iterator[Finding]:
    """Contexts, articles and questions that two splits share."""
    for first, second in combinations(surveys, 2):
        one, other = surveys[first], surveys[second]
        contexts, least = len(one.contexts & other.contexts), min(len(one.contexts), len(other.contexts))
        articles, pools = len(one.articles & other.articles), len(one.pools & other.pools)
        summary = f"contexts that {first} and {second} share: {contexts:,} of {least:,}"
        summary += f"; articles: {articles:,}; split by article, with domain.questions" if articles else ""
        summary += f"; questions with snippets in both: {pools:,}" if pools else ""
        severity: Severity = "fail" if pools else "warn" if articles else "good"
        severity = worst([severity, by_share(contexts, least, MAX_LEAKED)])
        yield Finding(f"leaks {first}/{second}", severity, summary, {"contexts": contexts, "articles": articles})


def _words(surveys: Surveys, part: Part) -> Finding:
    """Words in questions, answers or contexts."""
    lengths = [length for found in surveys.values() for length in found.words[part]]
    summary = spreads({split: found.words[part] for split, found in surveys.items()})
    long = sum(length > MANY_WORDS[part] for length in lengths) if part in MANY_WORDS else 0
    if long:
        first = next(found.first_long[part] for found in surveys.values() if part in found.first_long)
        summary += f"; more than {MANY_WORDS[part]:,} words: {long:,} ({ADVICE[part]}); the first is {first}"
    counts = {"longest": max(lengths, default=0), "long": long}
    return Finding(f"words in {PARTS[part]}", "warn" if long else "good", summary, counts)


def _subwords(surveys: Surveys, part: Part, subwords: SubwordCounts) -> Finding:
    """Subwords, and what a training in windows of the default size and stride would leave out."""
    from domain.biomedical.qa.subwords import NO_SUBWORDS, NOT_HELD, TOO_LONG

    faults: dict[Part, list[str]] = {"question": [TOO_LONG], "answer": [NOT_HELD, NO_SUBWORDS], "context": []}
    summary = spreads({split: found.subwords[part] for split, found in surveys.items()})
    unfit = 0
    for reason in faults[part]:
        count = sum(found.unfit[reason] for found in surveys.values())
        if count:
            first = next(found.first_unfit[reason] for found in surveys.values() if reason in found.first_unfit)
            summary += f"; {count:,} × {reason}; the first is {first}"
        unfit += count
    lengths = [length for found in surveys.values() for length in found.subwords[part]]
    long = sum(length > subwords.max_tokens for length in lengths)
    if part == "context" and long:
        summary += f"; longer than {subwords.max_tokens:,}: {long:,} (read in windows)"
    counts = {"longest": max(lengths, default=0), "long": long, "unfit": unfit}
    return Finding(f"tokens in {PARTS[part]}", "warn" if unfit else "good", summary, counts)


def _whole(surveys: Surveys) -> int:
    return sum(found.questions + len(found.unusable) for found in surveys.values())


def _notes(surveys: Surveys) -> Counter[str]:
    return sum((found.notes for found in surveys.values()), Counter[str]())
