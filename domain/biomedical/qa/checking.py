"""Checks questions before training on them: what is sound, what is doubtful, and what will not do.

Each file is read as a stream; of a question or a context only a hash is kept, by which equal ones are found.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from domain.biomedical.documents.document import numbered, reasons, shown_id
from domain.biomedical.qa.question_files import once, question_format_of, question_items
from domain.biomedical.qa.questions import ALIGNMENTS, DUPLICATE, NOWHERE, Question
from domain.biomedical.qa.settings import QuestionFormat
from domain.findings import MAX_LEAKED, MAX_UNUSABLE, Finding, Severity, Split, by_share, duplicates, spreads, worst

if TYPE_CHECKING:
    from domain.biomedical.qa.subwords import PairSplitter

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


class ModelTraining(NamedTuple):
    """How a training reads questions that is given no `max_tokens` and no `stride`."""

    splitter: "PairSplitter"
    max_tokens: int
    stride: int

    @classmethod
    def of(cls, model: str) -> "ModelTraining":
        """Of a model folder or hub id; only its tokenizer and configuration are read."""
        from bertrelay.heads import read_tokenizer
        from domain.biomedical.qa.model import MAX_TOKENS, default_stride
        from domain.biomedical.qa.subwords import PairSplitter

        tokenizer, positions = read_tokenizer(model)
        size = min(MAX_TOKENS, positions or MAX_TOKENS)
        return cls(PairSplitter(tokenizer), size, default_stride(size))


class QuestionSurvey:
    """What one pass over a file has counted; each context is counted and measured once.

    counts: `questions`, `impossible`, `unlabelled`, `repeated`. notes: of answers. left_out: by reason.
    words, subwords: the lengths of each part. unfit: how many questions a training would leave out, by reason.
    first: the first question of which a part has more words than `MANY_WORDS`, by part, and that is unfit, by reason.
    keys: hashes of what was asked of which context, of contexts, articles and pools.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts, self.notes, self.left_out, self.unfit = (Counter[str]() for _ in range(4))
        self.unusable: list[Unusable] = []
        self.words, self.subwords = ({part: array("Q") for part in PARTS} for _ in range(2))
        self.first: dict[str, str] = {}
        self.keys = defaultdict[str, set[int]](set)

    @property
    def records(self) -> int:
        return self.counts["questions"] + len(self.unusable)

    def add(self, question: Question) -> bool:
        """Counts a question; returns whether its context is new."""
        context, asked = hash(question.context), hash((question.question, question.context))
        is_new = context not in self.keys["contexts"]
        texts: list[tuple[Part, str]] = [("question", question.question)]
        texts += [("answer", answer.text) for answer in question.answers]
        texts += [("context", question.context)] if is_new else []
        for part, text in texts:
            length = len(text.split())
            self.words[part].append(length)
            if length > MANY_WORDS.get(part, length):
                self.note_first(part, question)
        self.counts["questions"] += 1
        self.counts["impossible"] += question.impossible
        self.counts["unlabelled"] += not question.is_known
        self.counts["repeated"] += asked in self.keys["asked"]
        self.notes.update(question.notes)
        named = {"asked": asked, "contexts": context, "articles": hash(question.document)}
        for name, key in (named | ({"pools": hash(question.pool)} if question.pool else {})).items():
            self.keys[name].add(key)
        return is_new

    def note_first(self, what: str, question: Question) -> None:
        self.first.setdefault(what, f"question {shown_id(question.id)} in {self.name}")

    def measure(self, questions: Sequence[Question], has_new_context: Sequence[bool], training: ModelTraining) -> None:
        """Counts the subwords of questions, and those that a training would leave out."""
        from domain.biomedical.qa.subwords import gold_spans, training_faults

        subwords = training.splitter(questions)
        golds = gold_spans(questions, subwords)
        self.subwords["question"].extend(subwords.questions.lengths.tolist())
        self.subwords["answer"].extend(end - first for spans in golds for first, end in spans)
        lengths = subwords.contexts.lengths[subwords.context_of].tolist()
        self.subwords["context"].extend(compress(lengths, has_new_context))
        faults = training_faults(questions, subwords, training.max_tokens, training.stride)
        for question, reason in zip(questions, faults, strict=True):
            if reason is not None:
                self.unfit[reason] += 1
                self.note_first(reason, question)


Surveys = Mapping[Split, QuestionSurvey]


def are_questions(files: Mapping[Split, Path]) -> bool:
    """Whether files have questions, by their first keys. Raises RequestError where some do and others do not."""
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
    training = ModelTraining.of(model) if model is not None else None
    surveys = {split: survey(path, format_name, training) for split, path in files.items()}
    notes = _total(each.notes for each in surveys.values())
    findings = [_records(surveys), _ids(surveys), _offsets(surveys, notes), *_aligned(notes), _answers(surveys)]
    repeated, asked = (
        {split: found.counts[name] for split, found in surveys.items()} for name in ("repeated", "questions")
    )
    findings += [duplicates(repeated, asked, "questions asked of their context again"), *_leaks(surveys)]
    findings += [_words(surveys, part) for part in PARTS]
    return [*findings, *(_subwords(surveys, part, training.max_tokens) for part in PARTS)] if training else findings


def survey(
    path: Path, format_name: QuestionFormat | None = None, training: ModelTraining | None = None
) -> QuestionSurvey:
    """One pass over a file of any format."""
    found = QuestionSurvey(str(path))

    def questions() -> Iterator[Question]:
        for item in numbered(once(question_items(path, format_name))):
            if isinstance(item, Question):
                yield item
            elif isinstance(item, Unusable):
                found.unusable.append(item)
            else:
                found.left_out[item.reason] += 1

    items = questions()
    while block := list(islice(items, AT_ONCE)):
        has_new_context = [found.add(question) for question in block]
        if training is not None:
            found.measure(block, has_new_context, training)
    if not found.records:
        raise RequestError(f"{path}: expected questions that can be asked of a text, found none. Is it the right file?")
    return found


# Findings


def _total(counters: Iterator[Counter[str]]) -> Counter[str]:
    return sum(counters, Counter[str]())


def _unusable(surveys: Surveys, *of: str, but: Sequence[str] = ()) -> list[Unusable]:
    """What is unusable for the reasons `of`, or for any other than `but`."""
    rows = [row for found in surveys.values() for row in found.unusable]
    return [row for row in rows if row.reason not in but and (not of or row.reason in of)]


def _records(surveys: Surveys) -> Finding:
    """What cannot be used, except for ids and offsets."""
    rows, whole = _unusable(surveys, but=(DUPLICATE, NOWHERE)), sum(found.records for found in surveys.values())
    summary = f"{len(rows):,} of {whole:,} questions cannot be used: {reasons(rows)}" if rows else f"{whole:,} read"
    left_out = _total(found.left_out for found in surveys.values())
    summary += "".join(f"; left out: {count:,} × {reason}" for reason, count in left_out.most_common())
    return Finding("records", by_share(len(rows), whole, MAX_UNUSABLE), summary, {"unusable": len(rows)})


def _ids(surveys: Surveys) -> Finding:
    rows = _unusable(surveys, DUPLICATE)
    summary = f"{len(rows):,} questions: {reasons(rows)}" if rows else "every question has an id of its own"
    return Finding("ids", "fail" if rows else "good", summary, {"repeated": len(rows)})


def _offsets(surveys: Surveys, notes: Counter[str]) -> Finding:
    """Answers that are not at their offsets, or nowhere."""
    rows, whole = _unusable(surveys, NOWHERE), sum(found.records for found in surveys.values())
    lost = len(rows) + notes["nowhere"]
    summary = [f"{len(rows):,} questions cannot be used: {reasons(rows)}"] if rows else []
    if notes["corrected"]:
        summary.append(f"{notes['corrected']:,} answers are a few characters off their offsets; reading corrects them")
    if notes["nowhere"]:
        summary.append(f"{notes['nowhere']:,} further answers are not in their context: scored by, not trained on")
    severity: Severity = by_share(lost, whole, MAX_UNUSABLE) if lost else "warn" if summary else "good"
    good = "every answer is at its offset" if notes["in place"] else "no answer came with an offset"
    return Finding("offsets", severity, "; ".join(summary) or good, {"mended": notes["corrected"], "nowhere": lost})


def _aligned(notes: Counter[str]) -> Iterator[Finding]:
    """How the answers of BioASQ's questions were found in the snippets; nothing in other files."""
    counts: dict[str, float] = {how: notes[how] for how in ALIGNMENTS}
    if any(counts.values()):
        missing, whole = counts[ALIGNMENTS[-1]], sum(counts.values())
        summary = "answers in snippets: " + ", ".join(f"{count:,} {how}" for how, count in counts.items())
        yield Finding("alignment", "warn" if missing > MAX_NOT_FOUND * whole else "good", summary, counts)


def _answers(surveys: Surveys) -> Finding:
    """Questions without an answer: impossible ones, and unlabelled ones."""
    trained = surveys.get("train", next(iter(surveys.values())))
    summary = [
        f"{split}: {len(found.words['answer']):,} answers to {found.counts['questions']:,} questions, "
        f"{found.counts['impossible']:,} impossible, {found.counts['unlabelled']:,} without an answer"
        for split, found in surveys.items()
    ]
    counts = {f"{split}_without_answer": found.counts["unlabelled"] for split, found in surveys.items()}
    severity: Severity = "warn" if any(counts.values()) else "good"
    if not trained.words["answer"]:
        severity = "fail"
        summary.append("there is no answer to train on")
    return Finding("answers", severity, "; ".join(summary), counts)


def _leaks(surveys: Surveys) -> Iterator[Finding]:
    """Contexts, articles and questions that two splits share."""
    for first, second in combinations(surveys, 2):
        one, other = surveys[first].keys, surveys[second].keys
        contexts, articles, pools = (len(one[name] & other[name]) for name in ("contexts", "articles", "pools"))
        least = min(len(one["contexts"]), len(other["contexts"]))
        summary = f"contexts that {first} and {second} share: {contexts:,} of {least:,}"
        summary += f"; articles: {articles:,}; split by article, with domain.questions" if articles else ""
        summary += f"; questions with snippets in both: {pools:,}" if pools else ""
        severity: Severity = "fail" if pools else "warn" if articles else "good"
        severity = worst([severity, by_share(contexts, least, MAX_LEAKED)])
        yield Finding(f"leaks {first}/{second}", severity, summary, {"contexts": contexts, "articles": articles})


def _first(surveys: Surveys, what: str) -> str:
    return next(found.first[what] for found in surveys.values() if what in found.first)


def _words(surveys: Surveys, part: Part) -> Finding:
    """Words in questions, answers or contexts."""
    lengths = [length for found in surveys.values() for length in found.words[part]]
    summary = spreads({split: found.words[part] for split, found in surveys.items()})
    long = sum(length > MANY_WORDS.get(part, length) for length in lengths)
    if long:
        summary += (
            f"; more than {MANY_WORDS[part]:,} words: {long:,} ({ADVICE[part]}); the first is {_first(surveys, part)}"
        )
    counts = {"longest": max(lengths, default=0), "long": long}
    return Finding(f"words in {PARTS[part]}", "warn" if long else "good", summary, counts)


def _subwords(surveys: Surveys, part: Part, max_tokens: int) -> Finding:
    """Subwords, and what a training in windows of the default size and stride would leave out."""
    from domain.biomedical.qa.subwords import NO_SUBWORDS, NOT_WHOLE, TOO_LONG

    faults: dict[Part, list[str]] = {"question": [TOO_LONG], "answer": [NOT_WHOLE, NO_SUBWORDS], "context": []}
    summary = spreads({split: found.subwords[part] for split, found in surveys.items()})
    unfit = _total(found.unfit for found in surveys.values())
    for reason in faults[part]:
        if unfit[reason]:
            summary += f"; {unfit[reason]:,} × {reason}; the first is {_first(surveys, reason)}"
    count = sum(unfit[reason] for reason in faults[part])
    lengths = [length for found in surveys.values() for length in found.subwords[part]]
    long = sum(length > max_tokens for length in lengths)
    if part == "context" and long:
        summary += f"; longer than {max_tokens:,}: {long:,} (read in windows)"
    counts = {"longest": max(lengths, default=0), "long": long, "unfit": count}
    return Finding(f"tokens in {PARTS[part]}", "warn" if count else "good", summary, counts)
