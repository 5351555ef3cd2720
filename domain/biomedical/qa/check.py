"""Checks questions before training on them; each check passes, warns or fails.

Each file is read as a stream; of a question or a context only a hash, a file and a line stay in memory.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, compress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bertrelay.blocks import blocks_of
from bertrelay.data.sanity import MAX_LEAKED, MAX_SWAPPED, MIN_RECORDS
from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from domain.biomedical.qa.data import ALIGNMENTS, DUPLICATE, NOWHERE, Question
from domain.biomedical.qa.question_files import QuestionPath, question_format_of, question_items
from domain.biomedical.qa.settings import MAX_TOKENS, QuestionFormat, default_overlap
from domain.checks import (
    MAX_UNUSABLE,
    Finding,
    Occurrences,
    Severity,
    Split,
    by_fraction,
    duplicates,
    row_places,
    summarize_lengths,
    worst,
)
from domain.reading import count_reasons, shown_id

if TYPE_CHECKING:
    from domain.biomedical.qa.subwords import PairSplitter

PARTS = ("a question", "an answer", "a context")
MANY_WORDS = {"a question": 64, "an answer": 30}
ADVICE = {
    "a question": "a question is never cut, and takes its space from the context",
    "an answer": "found whole only with a larger `max_answer_tokens`",
}
MAX_NOT_FOUND = 0.5  # of the answers, in the snippets that should have them
SUFFIXES = (".json", ".jsonl", ".ndjson")
AT_ONCE = 1000


class ModelTraining(NamedTuple):
    """The splitter and the windows of a training without `max_tokens` and `overlap`."""

    splitter: "PairSplitter"
    max_tokens: int
    overlap: int

    @classmethod
    def of(cls, model: str) -> "ModelTraining":
        """For a model folder or hub id; only its tokenizer and configuration are read."""
        from bertrelay.model.heads import read_tokenizer, window_size
        from domain.biomedical.qa.subwords import PairSplitter

        tokenizer, positions = read_tokenizer(model)
        size = window_size(positions, MAX_TOKENS)
        return cls(PairSplitter(tokenizer), size, default_overlap(size))


class Values(NamedTuple):
    """Values that splits may share: questions with their contexts, contexts, articles and pools of snippets."""

    questions: Occurrences
    contexts: Occurrences
    articles: Occurrences
    pools: Occurrences


@dataclass
class QuestionSurvey:
    """Counts of one pass over a file; each context is counted and measured once.

    counts: `questions`, `impossible`, `unlabelled`, `longer` (than their contexts); how answers were
        placed; questions that a training would leave out, by reason.
    left_out: what reading left out, by reason.
    lengths: of each part, by unit: `words in a question`.
    first: the first question that is unfit, by reason, or of which a part has more words than `MANY_WORDS`, by part.
    values: questions with their contexts, contexts, articles and pools of the files of all splits.
    """

    split: Split
    name: str
    values: "Values"
    counts: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    unusable: list[Rejected] = field(default_factory=list)
    lengths: defaultdict[str, "array[int]"] = field(default_factory=lambda: defaultdict(lambda: array("Q")))
    first: dict[str, str] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return self.counts["questions"] + len(self.unusable)

    def add(self, question: Question) -> bool:
        """Counts a question; returns true for a new context."""
        position = question.file, question.line
        self.values.questions.add(self.split, (question.question, question.context), *position)
        is_new = self.values.contexts.add(self.split, question.context, *position)
        self.values.articles.add(self.split, question.document, *position)
        if question.pool:
            self.values.pools.add(self.split, question.pool, *position)
        self.counts["longer"] += len(question.question) > len(question.context)
        texts = [("a question", question.question), *(("an answer", answer.text) for answer in question.answers)]
        for part, text in [*texts, *([("a context", question.context)] if is_new else [])]:
            length = len(text.split())
            self.lengths[f"words in {part}"].append(length)
            if length > MANY_WORDS.get(part, length):
                self.note_first(part, question)
        self.counts["questions"] += 1
        self.counts["impossible"] += question.impossible
        self.counts["unlabelled"] += not question.is_registered
        self.counts.update(question.notes)
        return is_new

    def note_first(self, what: str, question: Question) -> None:
        self.first.setdefault(what, f"question {shown_id(question.id)} in {self.name}")

    def measure(self, questions: Sequence[Question], has_new_context: Sequence[bool], training: ModelTraining) -> None:
        """Counts the subwords of questions, and those that a training would leave out."""
        from domain.biomedical.qa.subwords import gold_spans, training_faults

        subwords = training.splitter(questions)
        golds = gold_spans(questions, subwords)
        contexts = subwords.contexts.lengths[subwords.context_of].tolist()
        self.lengths["tokens in a question"].extend(subwords.questions.lengths.tolist())
        self.lengths["tokens in an answer"].extend(end - first for spans in golds for first, end in spans)
        self.lengths["tokens in a context"].extend(compress(contexts, has_new_context))
        faults = training_faults(questions, subwords, golds, training.max_tokens, training.overlap)
        for question, reason in zip(questions, faults, strict=True):
            if reason is not None:
                self.counts[reason] += 1
                self.note_first(reason, question)


Surveys = Mapping[Split, QuestionSurvey]


def are_questions(files: Mapping[Split, Path]) -> bool:
    """True for files of questions, by their first keys. Raises RequestError where only some have them."""
    with_questions = [
        str(path)
        for path in files.values()
        if path.name.lower().removesuffix(".gz").endswith(SUFFIXES) and path.is_file() and question_format_of(path)
    ]
    if 0 < len(with_questions) < len(files):
        names = ", ".join(with_questions)
        raise RequestError(f"{names}: expected files of one kind, found questions only here. Check them separately.")
    return bool(with_questions)


def check_questions(
    files: Mapping[Split, Path], format_name: QuestionFormat | None = None, model: str | None = None
) -> list[Finding]:
    """Checks the files of one to three splits.

    model: a folder or a hub id; measures lengths in the subwords of its tokenizer as well, against the windows of a
        training that is given neither `max_tokens` nor `overlap`.
    Raises RequestError for a file that cannot be read at all, or without a question.
    """
    training = ModelTraining.of(model) if model is not None else None
    values = Values(*map(Occurrences, ("a question", "a context", "an article", "a question with snippets")))
    surveys = {split: _survey(split, path, format_name, training, values) for split, path in files.items()}
    return [
        *_records(surveys),
        _answers(surveys),
        *_swapped(surveys),
        duplicates(values.questions, surveys, "questions asked of their context again"),
        *_leaks(surveys, values),
        *(_words(surveys, part) for part in PARTS),
        *(_tokens(surveys, part, training.max_tokens) for part in PARTS if training),
    ]


def _survey(
    split: Split, path: Path, format_name: QuestionFormat | None, training: ModelTraining | None, values: Values
) -> QuestionSurvey:
    survey = QuestionSurvey(split, str(path), values)

    def questions() -> Iterator[Question]:
        for item in question_items(QuestionPath(path, format_name)):
            if isinstance(item, Question):
                yield item
            elif item.is_fault:
                survey.unusable.append(item)
            else:
                survey.left_out[item.reason] += 1

    for block in blocks_of(questions(), AT_ONCE):
        has_new_context = [survey.add(question) for question in block]
        if training is not None:
            survey.measure(block, has_new_context, training)
    if not survey.records:
        raise RequestError(f"{path}: expected questions that can be asked of a text, found none. Is it the right file?")
    return survey


def _total(surveys: Surveys, *names: str) -> int:
    return sum(survey.counts[name] for survey in surveys.values() for name in names)


def _records(surveys: Surveys) -> Iterator[Finding]:
    """Rejected questions, repeated ids, answers that are not at their offsets, and the alignment of answers."""
    whole = sum(survey.records for survey in surveys.values())
    unusable = [row for survey in surveys.values() for row in survey.unusable]
    repeated, misplaced = ([row for row in unusable if row.reason == reason] for reason in (DUPLICATE, NOWHERE))
    others = [row for row in unusable if row.reason not in (DUPLICATE, NOWHERE)]
    left_out = sum((survey.left_out for survey in surveys.values()), Counter[str]())
    summary = (
        f"{len(others):,} of {whole:,} questions cannot be used: {count_reasons(others)}"
        if others
        else f"{whole:,} read"
    )
    summary += "".join(f"; left out: {count:,} × {reason}" for reason, count in left_out.most_common())
    severity = by_fraction(len(others), whole, MAX_UNUSABLE)
    yield Finding("records", severity, summary, {"unusable": len(others)}, places=row_places(others))

    ids = (
        f"{len(repeated):,} questions: {count_reasons(repeated)}" if repeated else "every question has an id of its own"
    )
    severity = "fail" if repeated else "good"
    yield Finding("ids", severity, ids, {"repeated": len(repeated)}, places=row_places(repeated))

    corrected, nowhere = _total(surveys, "corrected"), _total(surveys, "nowhere")
    offsets = [f"{len(misplaced):,} questions cannot be used: {count_reasons(misplaced)}"] if misplaced else []
    if corrected:
        offsets.append(f"{corrected:,} answers are a few characters off their offsets; reading corrects them")
    if nowhere:
        offsets.append(f"{nowhere:,} further answers are not in their context: scored by, not trained on")
    lost = len(misplaced) + nowhere
    severity = by_fraction(lost, whole, MAX_UNUSABLE) if lost else "warn" if offsets else "good"
    good = "every answer is at its offset" if _total(surveys, "in place") else "no answer came with an offset"
    numbers = {"corrected": corrected, "nowhere": lost}
    yield Finding("offsets", severity, "; ".join(offsets) or good, numbers, places=row_places(misplaced))

    counts: dict[str, float] = {alignment: _total(surveys, alignment) for alignment in ALIGNMENTS}  # of BioASQ only
    if answers := sum(counts.values()):
        summary = "answers in snippets: " + ", ".join(f"{count:,} {alignment}" for alignment, count in counts.items())
        yield Finding("alignment", "warn" if counts["not found"] > MAX_NOT_FOUND * answers else "good", summary, counts)


def _answers(surveys: Surveys) -> Finding:
    """Questions without an answer: impossible ones, and unlabelled ones."""
    trained = surveys.get("train", next(iter(surveys.values())))
    summary = [
        f"{split}: {len(survey.lengths['words in an answer']):,} answers to {survey.counts['questions']:,} questions, "
        f"{survey.counts['impossible']:,} impossible, {survey.counts['unlabelled']:,} without an answer"
        for split, survey in surveys.items()
    ]
    counts = {f"{split}_without_answer": survey.counts["unlabelled"] for split, survey in surveys.items()}
    severity: Severity = "warn" if any(counts.values()) else "good"
    if not trained.lengths["words in an answer"]:
        severity = "fail"
        summary.append("there is no answer to train on")
    return Finding("answers", severity, "; ".join(summary), counts)


def _swapped(surveys: Surveys) -> Iterator[Finding]:
    """Questions longer than their contexts, where there are any: with many the two are swapped."""
    longer, total = _total(surveys, "longer"), _total(surveys, "questions")
    if longer and total >= MIN_RECORDS:
        severity = by_fraction(longer, total, MAX_SWAPPED)
        summary = f"{longer:,} of {total:,} questions are longer than their contexts"
        summary += "; the two seem to be swapped" if severity == "fail" else ""
        yield Finding("swapped", severity, summary, {"longer": longer})


def _leaks(surveys: Surveys, values: Values) -> Iterator[Finding]:
    """Contexts, articles and questions that two splits share."""
    for first, second in combinations(surveys, 2):
        contexts, articles, pools = (
            shared.shared(first, second) for shared in (values.contexts, values.articles, values.pools)
        )
        fewest = min(values.contexts.distinct(first), values.contexts.distinct(second))
        summary = f"contexts that {first} and {second} share: {contexts.count:,} of {fewest:,}"
        summary += f"; articles: {articles.count:,}; split by article, with domain.questions" if articles.count else ""
        summary += f"; questions with snippets in both: {pools.count:,}" if pools.count else ""
        severity: Severity = "fail" if pools.count else "warn" if articles.count else "good"
        severity = worst([severity, by_fraction(contexts.count, fewest, MAX_LEAKED)])
        counts = {"contexts": contexts.count, "articles": articles.count}
        examples = [*contexts.places, *articles.places, *pools.places]
        yield Finding(f"leaks {first}/{second}", severity, summary, counts, examples)


def _words(surveys: Surveys, part: str) -> Finding:
    summary, counts = summarize_lengths(_lengths(surveys, f"words in {part}"), MANY_WORDS.get(part))
    if counts["long"]:
        many = f"more than {MANY_WORDS[part]:,} words: {counts['long']:,} ({ADVICE[part]})"
        summary += f"; {many}; the first is {_first(surveys, part)}"
    return Finding(f"words in {part}", "warn" if counts["long"] else "good", summary, counts)


def _tokens(surveys: Surveys, part: str, max_tokens: int) -> Finding:
    """Subwords, and what a training in windows of the default size and overlap would leave out."""
    from domain.biomedical.qa.subwords import NO_SUBWORDS, NOT_WHOLE, TOO_LONG

    faults = {"a question": [TOO_LONG], "an answer": [NOT_WHOLE, NO_SUBWORDS]}.get(part, [])
    summary, counts = summarize_lengths(_lengths(surveys, f"tokens in {part}"), max_tokens)
    for reason in faults:
        if unfit := _total(surveys, reason):
            summary += f"; {unfit:,} × {reason}; the first is {_first(surveys, reason)}"
    if part == "a context" and counts["long"]:
        summary += f"; longer than {max_tokens:,}: {counts['long']:,} (read in windows)"
    unfit = _total(surveys, *faults)
    return Finding(f"tokens in {part}", "warn" if unfit else "good", summary, {**counts, "unfit": unfit})


def _lengths(surveys: Surveys, check: str) -> dict[Split, Sequence[int]]:
    return {split: survey.lengths[check] for split, survey in surveys.items()}


def _first(surveys: Surveys, what: str) -> str:
    return next(survey.first[what] for survey in surveys.values() if what in survey.first)
