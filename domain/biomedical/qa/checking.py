"""A look at questions before training on them: what is good, what is doubtful, and what will not do.

Each file is read as a stream; of a question or a context only a number remains, by which equal ones are known.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from domain.biomedical.documents.checking import (
    AT_ONCE,
    MOST_LEAKED,
    MOST_UNUSABLE,
    VERDICTS,
    Finding,
    Split,
    Verdict,
    by_share,
    spread,
)
from domain.biomedical.documents.document import numbered, told_id
from domain.biomedical.qa.question_files import (
    QuestionFormat,
    once,
    place_of,
    question_format_of,
    question_items,
)
from domain.biomedical.qa.questions import ALIGNMENTS, DUPLICATE, NOWHERE, Question

if TYPE_CHECKING:
    from domain.biomedical.qa.measuring import Measure

Part = Literal["question", "answer", "context"]
PARTS: tuple[Part, ...] = ("question", "answer", "context")

MOST_NOT_FOUND = 0.5  # of the answers, in the snippets that should have them
LONG: dict[Part, int] = {"question": 64, "answer": 30}  # words
TOO_LONG: dict[Part, str] = {
    "question": "a question is never cut, and takes its room from the context",
    "answer": "given whole only with a larger `max_answer_tokens`",
}
SUFFIXES = (".json", ".jsonl", ".ndjson")


def _lengths() -> "dict[Part, array[int]]":
    return {part: array("Q") for part in PARTS}


@dataclass
class Survey:
    """What is known of a file after one walk through it; contexts are counted and measured once each.

    unfit: how many questions a training would leave out, by reason; first_unfit: which is the first of these.
    first_long: the first question of which a part has more words than `LONG`.
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
    pieces: "dict[Part, array[int]]" = field(default_factory=_lengths)
    unfit: Counter[str] = field(default_factory=Counter)
    first_unfit: dict[str, str] = field(default_factory=dict)
    first_long: dict[Part, str] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    contexts: set[int] = field(default_factory=set)
    articles: set[int] = field(default_factory=set)
    pools: set[int] = field(default_factory=set)

    def of(self, reason: str) -> list[Unusable]:
        """What cannot be used for this reason."""
        return [row for row in self.unusable if row.reason == reason]


Surveys = Mapping[Split, Survey]


def are_questions(files: Mapping[Split, Path]) -> bool:
    """Whether files hold questions, by their first keys. Raises RequestError where some do and others do not."""
    json_files = {path: "".join(path.suffixes[-2:]).removesuffix(".gz").endswith(SUFFIXES) for path in files.values()}
    found = {path: json_files[path] and path.is_file() and question_format_of(path) for path in files.values()}
    if any(found.values()) and not all(found.values()):
        names = ", ".join(str(path) for path, name in found.items() if name)
        raise RequestError(f"{names}: expected files of one kind, found questions here alone. Check them apart.")
    return all(found.values())


def check_questions(
    files: Mapping[Split, Path], format_name: QuestionFormat | None = None, model: str | None = None
) -> list[Finding]:
    """Looks at the files of one to three splits and tells what it finds, check by check.

    model: a folder or a hub id; measures lengths in the word pieces of its tokenizer as well, against the windows of a
        training that is given neither `max_tokens` nor `stride`.
    Raises RequestError for a file that cannot be read at all, or without a question.
    """
    measure = _measure_of(model) if model is not None else None
    surveys = {split: survey(path, format_name, measure) for split, path in files.items()}
    findings = [_records(surveys), _ids(surveys), _offsets(surveys), *_aligned(surveys), _answers(surveys)]
    findings += [_duplicates(surveys), *_leaks(surveys), *(_words(surveys, part) for part in PARTS)]
    return [*findings, *(_pieces(surveys, part, measure) for part in PARTS)] if measure is not None else findings


def _measure_of(model: str) -> "Measure":
    from domain.biomedical.qa.measuring import measure_of  # which needs torch, as nothing else here does

    return measure_of(model)


# Walking through a file


def survey(path: Path, format_name: QuestionFormat | None = None, measure: "Measure | None" = None) -> Survey:
    """Walks through a file of any format."""
    found = Survey(str(path))
    walked = _questions(path, format_name, found)
    while questions := list(islice(walked, AT_ONCE)):
        has_new_context = [_count(question, found) for question in questions]
        if measure is not None:
            _measure(questions, has_new_context, measure, found)
    if not found.questions and not found.unusable:
        raise RequestError(f"{path}: expected questions that can be asked of a text, found none. Is it the right file?")
    return found


def _questions(path: Path, format_name: QuestionFormat | None, found: Survey) -> Iterator[Question]:
    for item in numbered(once(question_items(path, format_name))):
        if isinstance(item, Question):
            yield item
        elif isinstance(item, Unusable):
            found.unusable.append(item)
        else:
            found.left_out[item.reason] += 1


def _measure(questions: Sequence[Question], has_new_context: Sequence[bool], measure: "Measure", found: Survey) -> None:
    """Counts the pieces of questions, and those that a training would leave out."""
    lengths = measure(questions)
    found.pieces["question"].extend(lengths.questions.tolist())
    found.pieces["answer"].extend(lengths.answers.tolist())
    found.pieces["context"].extend(compress(lengths.contexts.tolist(), has_new_context))
    for reason, has_fault in lengths.faults.items():
        for question in compress(questions, has_fault):
            found.unfit[reason] += 1
            found.first_unfit.setdefault(reason, f"question {told_id(question.id)} in {found.name}")


def _count(question: Question, found: Survey) -> bool:
    """Counts a question; returns whether its context was not measured before."""
    context, asked = hash(question.context), hash((question.question, question.context))
    is_new = context not in found.contexts
    texts: list[tuple[Part, str]] = [("question", question.question)]
    texts += [("answer", answer.text) for answer in question.answers]
    texts += [("context", question.context)] if is_new else []
    for part, text in texts:
        length = len(text.split())
        found.words[part].append(length)
        if part in LONG and length > LONG[part]:
            found.first_long.setdefault(part, f"question {told_id(question.id)} in {found.name}")
    found.questions += 1
    found.impossible += question.impossible
    found.unlabelled += not question.answers and not question.impossible
    found.repeated += asked in found.asked
    found.notes.update(question.notes)
    found.asked.add(asked)
    found.contexts.add(context)
    found.articles.add(hash(question.document))
    found.pools |= {hash(question.pool)} if question.pool else set()
    return is_new


# Findings


def _records(surveys: Surveys) -> Finding:
    """What the readers cannot use, but for ids and offsets."""
    rows = [row for found in surveys.values() for row in found.unusable if row.reason not in (DUPLICATE, NOWHERE)]
    whole = _whole(surveys)
    words = f"{len(rows):,} of {whole:,} questions cannot be used: {_reasons(rows)}" if rows else f"{whole:,} read"
    left_out = sum((found.left_out for found in surveys.values()), Counter[str]())
    words += "".join(f"; read over: {count:,} × {reason}" for reason, count in left_out.most_common())
    return Finding("records", by_share(len(rows), whole, MOST_UNUSABLE), words, {"unusable": len(rows)})


def _ids(surveys: Surveys) -> Finding:
    rows = [row for found in surveys.values() for row in found.of(DUPLICATE)]
    words = f"{len(rows):,} questions: {_reasons(rows)}" if rows else "every question has an id of its own"
    return Finding("ids", "fail" if rows else "good", words, {"repeated": len(rows)})


def _offsets(surveys: Surveys) -> Finding:
    """Answers that stand beside their offsets, or nowhere."""
    notes = _notes(surveys)
    rows = [row for found in surveys.values() for row in found.of(NOWHERE)]
    lost = len(rows) + notes["nowhere"]
    words = [f"{len(rows):,} questions cannot be used: {_reasons(rows)}"] if rows else []
    if notes["mended"]:
        words.append(f"{notes['mended']:,} answers stand a few characters beside their offsets; reading mends them")
    if notes["nowhere"]:
        words.append(f"{notes['nowhere']:,} answers beside others stand nowhere: scored by, and not learnt")
    verdict: Verdict = by_share(lost, _whole(surveys), MOST_UNUSABLE) if lost else "warn" if words else "good"
    figures = {"mended": notes["mended"], "nowhere": lost}
    good = "every answer stands where its offset says" if notes["in place"] else "no answer came with an offset"
    return Finding("offsets", verdict, "; ".join(words) or good, figures)


def _aligned(surveys: Surveys) -> Iterator[Finding]:
    """How the answers of BioASQ's questions were found in the snippets; nothing in other files."""
    notes = _notes(surveys)
    counts: dict[str, float] = {how: notes[how] for how in ALIGNMENTS}
    if any(counts.values()):
        missing, whole = counts[ALIGNMENTS[-1]], sum(counts.values())
        words = "answers in snippets: " + ", ".join(f"{count:,} {how}" for how, count in counts.items())
        verdict: Verdict = "warn" if missing > MOST_NOT_FOUND * whole else "good"
        yield Finding("alignment", verdict, words, counts)


def _answers(surveys: Surveys) -> Finding:
    """Questions without an answer: those that have none in the text, and those of which nobody says so."""
    learnt = surveys.get("train", next(iter(surveys.values())))
    words = [
        f"{split}: {len(found.words['answer']):,} answers to {found.questions:,} questions, "
        f"{found.impossible:,} impossible, {found.unlabelled:,} without an answer"
        for split, found in surveys.items()
    ]
    if not learnt.words["answer"]:
        words.append("there is no answer to learn")
    verdict: Verdict = "warn" if any(found.unlabelled for found in surveys.values()) else "good"
    figures = {f"{split}_without_answer": found.unlabelled for split, found in surveys.items()}
    return Finding("answers", verdict if learnt.words["answer"] else "fail", "; ".join(words), figures)


def _duplicates(surveys: Surveys) -> Finding:
    """The same question asked of the same context under another id."""
    counts: dict[str, float] = {split: found.repeated for split, found in surveys.items()}
    words = ", ".join(f"{split} {found.repeated:,} of {found.questions:,}" for split, found in surveys.items())
    verdict: Verdict = "warn" if any(counts.values()) else "good"
    return Finding("duplicates", verdict, f"questions that were asked of their context before: {words}", counts)


def _leaks(surveys: Surveys) -> Iterator[Finding]:
    """Contexts, articles and questions that two splits share."""
    for first, second in combinations(surveys, 2):
        one, other = surveys[first], surveys[second]
        contexts, least = len(one.contexts & other.contexts), min(len(one.contexts), len(other.contexts))
        articles, pools = len(one.articles & other.articles), len(one.pools & other.pools)
        words = f"contexts that {first} and {second} share: {contexts:,} of {least:,}"
        words += f"; articles: {articles:,}; split by article, with domain.questions" if articles else ""
        words += f"; questions with snippets in both: {pools:,}" if pools else ""
        verdict: Verdict = "fail" if pools else "warn" if articles else "good"
        if contexts:
            verdict = max(verdict, by_share(contexts, least, MOST_LEAKED), key=VERDICTS.index)
        yield Finding(f"leaks {first}/{second}", verdict, words, {"contexts": contexts, "articles": articles})


def _words(surveys: Surveys, part: Part) -> Finding:
    """Words in questions, answers or contexts."""
    lengths = [length for found in surveys.values() for length in found.words[part]]
    words = _spreads({split: found.words[part] for split, found in surveys.items()})
    long = sum(length > LONG[part] for length in lengths) if part in LONG else 0
    if long:
        first = next(found.first_long[part] for found in surveys.values() if part in found.first_long)
        words += f"; more than {LONG[part]:,} words: {long:,} ({TOO_LONG[part]}); the first is {first}"
    figures = {"longest": max(lengths, default=0), "long": long}
    return Finding(f"words in {_a(part)}", "warn" if long else "good", words, figures)


def _pieces(surveys: Surveys, part: Part, measure: "Measure") -> Finding:
    """Word pieces, and what a training in windows of the usual size and stride would leave out."""
    from domain.biomedical.qa.subwords import NO_PIECES, NOT_HELD, TOO_LONG

    reasons: dict[Part, list[str]] = {"question": [TOO_LONG], "answer": [NOT_HELD, NO_PIECES], "context": []}
    words = _spreads({split: found.pieces[part] for split, found in surveys.items()})
    unfit = 0
    for reason in reasons[part]:
        count = sum(found.unfit[reason] for found in surveys.values())
        if count:
            first = next(found.first_unfit[reason] for found in surveys.values() if reason in found.first_unfit)
            words += f"; {count:,} × {reason}; the first is {first}"
        unfit += count
    lengths = [length for found in surveys.values() for length in found.pieces[part]]
    long = sum(length > measure.max_tokens for length in lengths)
    if part == "context":
        words += f"; longer than {measure.max_tokens:,}: {long:,} (read in windows)" if long else ""
    figures = {"longest": max(lengths, default=0), "long": long, "unfit": unfit}
    return Finding(f"tokens in {_a(part)}", "warn" if unfit else "good", words, figures)


def _whole(surveys: Surveys) -> int:
    return sum(found.questions + len(found.unusable) for found in surveys.values())


def _notes(surveys: Surveys) -> Counter[str]:
    return sum((found.notes for found in surveys.values()), Counter[str]())


def _reasons(rows: Sequence[Unusable]) -> str:
    """How many there are of each reason, and the first of them."""
    counted = Counter(row.reason for row in rows).most_common()
    first = {row.reason: row for row in reversed(rows)}
    told = {reason: f"{place_of(row)} ({row.detail})" if row.detail else place_of(row) for reason, row in first.items()}
    return "; ".join(f"{count:,} × {reason}; the first is {told[reason]}" for reason, count in counted)


def _spreads(lengths: Mapping[Split, Sequence[int]]) -> str:
    return "; ".join(f"{split}: {spread(each)}" for split, each in lengths.items() if each) or "none"


def _a(part: Part) -> str:
    return f"an {part}" if part == "answer" else f"a {part}"
