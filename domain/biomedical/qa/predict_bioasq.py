"""Answers to a BioASQ file, as its evaluator takes them, in shards that survive a kill.

Importing this loads neither torch nor transformers, so that an invalid request is reported at once.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertrelay.cache import Cache
from bertrelay.compute.engine import LOCAL, Engine
from bertrelay.compute.work import Compute, Work
from bertrelay.data.shards import SpanReader
from bertrelay.data.writing import json_line, write_lines
from bertrelay.device import ComputePrecision
from bertrelay.files import atomic_write, check_output
from bertrelay.inference.run_model import BLOCK_CHARACTERS, connect, open_run
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup
from bertrelay.progress import Bar, log
from bertrelay.settings import settings_of
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.qa.data import Question
from domain.biomedical.qa.predict_files import QuestionFile, scan
from domain.biomedical.qa.question_files import BioasqQuestion, bioasq_records
from domain.biomedical.qa.settings import BioasqOptions, BioasqSettings
from domain.reading import shown_id

if TYPE_CHECKING:
    from domain.biomedical.qa.bioasq import ExactAnswer


class AnsweredBioasq(NamedTuple):
    """Counts of `answer_bioasq`.

    questions: all of the file, each of which is written. factoid, list, yesno, summary: those of each type; a summary
        has no exact answer. unanswered: those without any entry, or of yes/no questions for want of a text or a head.
    rejected: snippets and questions that cannot be used, or asked.
    questions_per_second: the rate of this call, of questions with one snippet; None where all shards were there before.
    """

    questions: int
    factoid: int
    list: int
    yesno: int
    summary: int
    unanswered: int
    rejected: int
    questions_per_second: float | None


def check_bioasq(questions: str | Path, output: Path, *, overwrite: bool) -> dict[str, BioasqQuestion]:
    """The questions of a BioASQ file by id. Raises RequestError for a file or an output that cannot be used."""
    check_output(output, (".json",), questions, overwrite=overwrite)
    return bioasq_records(questions, BioasqQuestion)


def answer_bioasq(
    model: str | Path,
    questions: str | Path,
    output: str | Path,
    *,
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine | str = LOCAL,
    whole_words: bool | None = None,
    max_rejects: float = 0.01,
    precision: str = "auto",
    batch_tokens: int | None = None,
    overwrite: bool = False,
) -> AnsweredBioasq:
    """Writes the exact answers to a BioASQ file of phase B, in the form that is submitted and that its evaluator takes.

    Every question of the file is written. Its snippets are read one by one, and their spans are ranked together: five
    entries answer a factoid question; a list question has those that the model's margin keeps, 100 at most; yes or no
    is the mean of all snippets. Entries have at most 100 characters.

    output: a `.json` file.
    cache: folder for a model of the hub.
    process_group, engine: processes or the workers of a cluster that share the work; see `tag_file`.
    whole_words, max_rejects, precision, batch_tokens: see `BioasqOptions`. What is rejected is listed in
        `OUTPUT.rejects.jsonl`.
    overwrite: replace an existing file, which is an error otherwise.

    Killed and called again it resumes. Raises RequestError, before anything is computed, for an input or output that
    cannot be used, and WorkError when too many snippets are left out.
    """
    options, output = settings_of(BioasqOptions, locals()), Path(output)
    records = check_bioasq(questions, output, overwrite=overwrite)
    source = QuestionFile(Path(questions), "bioasq", types=("factoid", "list", "yesno"))
    with open_run(
        output,
        model,
        partial(scan, source, output.with_name(f"{output.name}.rejects.jsonl"), options.max_rejects),
        span_limit=BLOCK_CHARACTERS,
        precision=options.precision,
        cache=cache,
        process_group=process_group,
        engine=engine,
        decisive={"form": "bioasq", "whole_words": options.whole_words},
    ) as run:
        start = partial(_start, run.folder, options, run.precision)
        reader = SpanReader(source.questions, source.path)
        rate = run.fill(Work(reader.read, start, "answering", "questions")).rate
        unanswered = _assemble(run.folder, records, source, run.shards.rows(), output) if run.is_main else 0
    counts = Counter(record.type for record in records.values())
    factoid, lists, yesno, summary = (counts[kind] for kind in ("factoid", "list", "yesno", "summary"))
    return AnsweredBioasq(len(records), factoid, lists, yesno, summary, unanswered, run.scan.rejected, rate)


def _start(folder: Path, options: BioasqOptions, precision: ComputePrecision) -> Compute[list[Question], Iterator[str]]:
    """The function from blocks of questions with one snippet to the lines of their spans."""
    from domain.biomedical.qa.predict import QuestionAnswerer, answer_blocks

    model = QuestionAnswerer.load(folder, whole_words=options.whole_words).model

    def lines(blocks: Iterable[list[Question]], bar: Bar) -> Iterator[Iterator[str]]:
        for questions in blocks:
            answered = answer_blocks(model, questions, precision=precision, batch_tokens=options.batch_tokens)
            yield (json_line({"spans": spans}) for block in answered for _, spans in block)
            bar.advance(len(questions))

    return lines


def _assemble(
    folder: Path, records: dict[str, BioasqQuestion], source: QuestionFile, rows: Iterable[dict[str, Any]], output: Path
) -> int:
    """Writes all questions with their exact answers; returns how many have none."""
    from domain.biomedical.qa.bioasq import exact_answers
    from domain.biomedical.qa.model import load_model
    from domain.biomedical.qa.predict import log_too_long
    from domain.biomedical.qa.spans import Spans

    model, too_long = load_model(folder), list[Question]()

    def answered() -> Iterator[tuple[Question, Spans]]:
        for question, row in zip(source.questions(), rows, strict=True):
            if row["spans"] is None:
                too_long.append(question)
            else:
                yield question, Spans(*row["spans"])

    answers = exact_answers(answered(), model.list_margin)
    log_too_long(model, too_long)
    unanswered = [name for name, record in records.items() if record.type != "summary" and not answers.get(name)]
    if unanswered:
        log(f"{len(unanswered):,} questions have no answer, {shown_id(unanswered[0])!r} the first")
    with atomic_write(output) as building:
        write_lines(building, submission_text(records, answers))
    return len(unanswered)


def submission_text(records: dict[str, BioasqQuestion], answers: "dict[str, ExactAnswer]") -> Iterator[str]:
    """Yields the text of a submission: every question, with an exact answer unless it is a summary.

    A question without an answer has an empty list, and of those of yes or no "yes", as more of BioASQ's are: the
    evaluator fails at a question that is missing and at an answer of another form.
    """
    yield '{"questions": ['
    between = "\n"
    for name, record in records.items():
        value: dict[str, Any] = {"id": name, "type": record.type, "body": record.body}
        if record.type != "summary":
            value["exact_answer"] = answers.get(name) or ("yes" if record.type == "yesno" else [])
        yield between + json.dumps(value, ensure_ascii=False)
        between = ",\n"
    yield "\n]}\n"


def run(settings: BioasqSettings, context: StageContext) -> Metrics:
    """The stage `domain.qa-bioasq`: writes `answers.json`."""
    options = settings.model_dump(include=set(BioasqOptions.model_fields))
    with connect(context.engine, context.process_group) as executor:
        options |= {"precision": context.precision(settings.precision, executor)}
        answered = answer_bioasq(
            settings.model,
            settings.questions,
            context.output / "answers.json",
            cache=context.cache,
            process_group=context.process_group,
            engine=context.engine,
            overwrite=True,
            **options,
        )
    return dict(answered._asdict())
