"""The reports of training and of evaluating a tagger: F1 by type, confusions, and marked sentences."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from markupsafe import Markup

from bertrelay.evaluation.verdict import listed
from bertrelay.report import Block, Headline, Html, Measure, Section, StageReport, Table, Text, dots
from bertrelay.stage import Metrics
from domain.biomedical.documents.document import Document, Entity
from domain.biomedical.documents.html import VERDICTS, hues_of, legend, marked_entities, style
from domain.biomedical.ner.metrics import compared

MOST_ROWS = 12
"""Rows of a table of confusions."""
SENTENCE = Markup('<div class="marks">{}</div>')
TITLE = "Entities, right and wrong"
WRONG = "Sentences with an error, spread over the test data: the gold entities, below them the predicted."
RIGHT = "Sentences in which every entity was found."


def training_report(base: str, types: Sequence[str], sentences: int) -> StageReport:
    """The report of a training. base: in words. types: of entities. sentences: number of annotated ones."""
    summary = (
        f"A tagger, started from {base}, learned to mark {listed(types)} in text, from {sentences:,} annotated "
        "sentences."
    )
    return StageReport(summary=[summary])


def evaluation_report(
    metrics: Metrics,
    confusions: Mapping[str, Sequence[Mapping[str, Any]]],
    examples: Mapping[str, Sequence[Mapping[str, Any]]],
    identities: Mapping[str, str] = {},
) -> StageReport:
    """The report of an evaluation. confusions, examples: as `confusions.json` and `examples.json` have them.

    identities: of the data of each corpus by its name; of all data under an empty one.
    """
    prefix = "f1/"
    types = [name.removeprefix(prefix) for name in metrics if name.startswith(prefix)]
    types = [name for name in types if not name.endswith(("_low", "_high"))]
    data = f"{metrics['gold_entities']:,.0f} gold entities in {metrics['sentences']:,.0f} test sentences"
    chart = dots(metrics, {name: [(f"f1/{name}", "")] for name in types}, "F1, by type of entity")
    f1 = [
        Headline(
            title=f"F1 of entities of {corpus}" if corpus else "F1 of entities",
            measure=Measure.of(metrics, name := f"{corpus}/f1".removeprefix("/")),
            metrics=[name],
            data=corpus or data,
            beside=[] if corpus else Measure.measured(metrics, {"published_f1": "published"}),
            identity=identity,
            model="model",
            chart=None if corpus else chart,
        )
        for corpus, identity in (identities or {"": ""}).items()
    ]
    calibration = Headline(
        title="Calibration error of the confidences",
        measure=Measure.of(metrics, "ece"),
        metrics=["ece"],
        data=f"{metrics['predicted_entities']:,.0f} predicted entities",
        beside=Measure.measured(metrics, {"ece_uncalibrated": "before the calibration"}),
        better="lower",
        model="model",
    )
    blocks: list[Block] = []
    captions = {"types": "Confusions of types", "mentions": "Most frequent confusions of mentions"}
    for name, caption in captions.items():
        rows: list[list[str | Measure]] = [
            [VERDICTS[row["kind"]][1], row["gold"] or "–", row["predicted"] or "–", f"{row['count']}"]
            for row in confusions[name][:MOST_ROWS]
        ]
        if rows:
            columns = ["Kind", "Gold", "Predicted", "Times"]
            blocks.append(Table(columns=columns, rows=rows, caption=caption, texts=3, quotes=name == "mentions"))
    blocks += _marked_sentences(examples)
    sections = [Section(title=TITLE, blocks=blocks)] if blocks else []
    measured = [headline for headline in (*f1, calibration) if headline.measure.value is not None]
    return StageReport(headlines=measured, sections=sections)


def _marked_sentences(examples: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Block]:
    """The gold and the predicted entities of sentences with an error, and sentences without one."""
    pairs = {
        name: [[_document(row["tokens"], row[reading]) for reading in ("gold", "predicted")] for row in examples[name]]
        for name in ("wrong", "right")
    }
    documents = [document for rows in pairs.values() for pair in rows for document in pair]
    hues = hues_of(entity.type for document in documents for entity in document.entities)
    wrong = [(gold.text, *compared(gold, predicted)) for gold, predicted in pairs["wrong"]]
    parts: list[Markup] = []
    if wrong:
        spurious = [entity for _, _, predicted in wrong for entity in predicted if entity.verdict == "spurious"]
        parts.append(legend([*(entity for _, gold, _ in wrong for entity in gold), *spurious], hues))
    for text, *readings in wrong:
        parts.append(SENTENCE.format(Markup().join(marked_entities(text, reading, hues) for reading in readings)))
    right = [
        SENTENCE.format(marked_entities(predicted.text, compared(gold, predicted)[1], hues))
        for gold, predicted in pairs["right"]
    ]
    blocks: list[Block] = []
    for about, marked in ((WRONG, parts), (RIGHT, right)):
        if marked:
            blocks += [Text(text=about), Html(html=Markup("\n").join(marked), style=style())]
    return blocks


def _document(tokens: Sequence[str], spans: Sequence[Sequence[Any]]) -> Document:
    """A sentence as a text of its tokens, with a space between two, and the entities of `spans` in it."""
    starts = list(accumulate((len(token) + 1 for token in tokens), initial=0))
    entities = (Entity(starts[start], starts[end] - 1, kind, *confidence) for start, end, kind, *confidence in spans)
    return Document("", " ".join(tokens), tuple(entities))
