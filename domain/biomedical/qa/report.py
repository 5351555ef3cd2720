"""The reports of training and of evaluating an answerer: metrics by slice, and questions with their answers marked."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from bertrelay.report import Block, Dots, Headline, Html, Measure, Section, StageReport, Table, Text
from bertrelay.stage import Metrics
from domain.biomedical.documents.html import Highlight, marked, percent, style

TITLE = "Answers, right and wrong"
SLICES = {"answer_words": "By the length of the right answer", "position": "By its position in the text"}
MEASURES = {"exact_match": "exact match", "f1": "F1"}
WRONG = "Questions answered wrongly, spread over the test data: ✗ is the answer given, the dashed frame the right one."
RIGHT = "Questions answered rightly."
ANSWER = Markup(
    '<div class="answered">\n<p dir="auto"><b>{}</b></p>\n<p class="soft" dir="auto">{}, {}; right: {}</p>\n{}\n</div>'
)


def training_report(base: str, questions: int) -> StageReport:
    """The report of a training. base: in words. questions: number of those trained on."""
    summary = (
        f"An answerer, started from {base}, learned to find the answer to a question in a text, from {questions:,} "
        "questions."
    )
    return StageReport(summary=[summary])


def evaluation_report(
    metrics: Metrics,
    slices: Mapping[str, Sequence[Mapping[str, Any]]],
    examples: Mapping[str, Sequence[Mapping[str, Any]]],
    identity: str = "",
) -> StageReport:
    """The report of an evaluation. slices, examples: as `slices.json` and `examples.json` have them."""
    beside = {"first_sentence/f1": "the text's first sentence", "published_f1": "published"}
    by_length = {row["name"]: [Measure.of(dict(row), "f1")] for row in slices["answer_words"]}
    f1 = Headline(
        title="F1 of answers",
        measure=Measure.of(metrics, "f1"),
        metrics=["f1"],
        data=f"{metrics['scored']:,.0f} test questions",
        beside=Measure.measured(metrics, beside),
        identity=identity,
        model="model",
        chart=Dots(title="F1, by the length of the right answer", rows=by_length) if by_length else None,
    )
    calibration = Headline(
        title="Calibration error of the probabilities",
        measure=Measure.of(metrics, "ece"),
        metrics=["ece"],
        data=f"{metrics['answered']:,.0f} answers",
        beside=[Measure.of(metrics, "ece_uncalibrated", "before the calibration")],
        better="lower",
        model="model",
    )
    blocks: list[Block] = []
    for name, caption in SLICES.items():
        if slices[name]:
            rows: list[list[str | Measure]] = [
                [row["name"], f"{row['questions']:,}", *(Measure.of(dict(row), measure) for measure in MEASURES)]
                for row in slices[name]
            ]
            blocks.append(Table(columns=["", "Questions", *MEASURES.values()], rows=rows, caption=caption))
    for name, about in (("wrong", WRONG), ("right", RIGHT)):
        if examples[name]:
            answers = (_answer(row, is_right=name == "right") for row in examples[name])
            blocks += [Text(text=about), Html(html=Markup("\n").join(answers), style=style())]
    sections = [Section(title=TITLE, blocks=blocks)] if blocks else []
    measured = [headline for headline in (f1, calibration) if headline.measure.value is not None]
    return StageReport(headlines=measured, sections=sections)


def _answer(row: Mapping[str, Any], *, is_right: bool) -> Markup:
    """A question, its answer and the right ones, and the passages with both marked."""
    golds = " / ".join(dict.fromkeys(gold for gold in row["golds"] if gold))
    return ANSWER.format(
        row["question"],
        f"answered: {row['answer']}" if row["answer"] else "no answer given",
        percent(row["probability"]),
        golds or "there is no answer in the text",
        Markup("\n").join(
            marked(passage["text"], _marks(passage["marks"], is_right=is_right)) for passage in row["passages"]
        ),
    )


def _marks(marks: Sequence[Mapping[str, Any]], *, is_right: bool) -> list[Highlight]:
    """The answer, and the right ones that are elsewhere or longer or shorter."""
    classes = ("right hue-2", "✓") if is_right else ("wrong hue-6", "✗")
    answers = [
        Highlight(mark["start"], mark["end"], *classes, "answered") for mark in marks if mark["kind"] == "answer"
    ]
    if is_right and answers:
        return answers
    # Gold answers that overlap are one answer in more and in fewer words.
    golds: list[tuple[int, int]] = []
    for start, end in sorted((mark["start"], mark["end"]) for mark in marks if mark["kind"] == "gold"):
        if golds and start < golds[-1][1]:
            start, end = golds[-1][0], max(end, golds.pop()[1])
        golds.append((start, end))
    return [*answers, *(Highlight(start, end, "gold hue-0", "gold", "right") for start, end in golds)]
