"""Sections of the report from a stage's files: tables, charts and marked text, by subject."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from bertrelay.files import read_json
from domain.clinical.settings import CONFUSION, CURVES, FLOW, NOTES_ABOUT, SLICES, in_words
from pipelines.report.charts import Curve, draw, training_curves
from pipelines.report.metrics import read_declarations
from pipelines.report.tables import Listing, MetricValue, shown

if TYPE_CHECKING:
    from domain.biomedical.documents.document import Document

Part = Markup | Listing | list[Curve]
"""Of a page: text, a table, or charts beside one another."""

SHOWN = 12
CURVE_ROWS = 20
LEARNING_CURVE = "learning_curve.json"
"""File of `students.distill`, which is not loaded here, as it loads torch."""
ABOUT = Markup('<p class="soft">{}</p>')
DRAWING = Markup('<div class="matrix">{}</div>')
SENTENCE = Markup('<div class="marks">{}</div>')
ANSWER = Markup(
    '<div class="answered">\n<p dir="auto"><b>{}</b></p>\n<p class="soft" dir="auto">{}, {}; right: {}</p>\n{}\n</div>'
)
ANSWER_SLICES = {"answer_words": "By the length of the right answer", "position": "By its place in the text"}
SLICE_METRICS = ("exact_match", "f1")

ORDER = ("model", "note_length", "tfidf", "model, calibrated")
"""Line colours by model, the same in every chart; a baseline is drawn once."""
CALIBRATED = ", calibrated"
CALIBRATIONS = ("model", *(f"{name}{CALIBRATED}" for name in ORDER[:3]))
MEANS = {"mean_calibrated": "mean calibrated probability", "mean_probability": "mean probability"}
"""The first of tasks that are calibrated, the second of labels."""
CALIBRATION_METRICS = [
    f"{name}{when}"
    for name in ("observed_expected", "calibration_slope", "calibration_intercept", "calibration_error")
    for when in ("_uncalibrated", "")
]
GROUPS = (
    "Groups of patients of the test split, or what is known of all of them. Left out is what is true of fewer than "
    "ten, or untrue of fewer than ten."
)
GREY = "The grey line is what chance gives, and on the calibration what a perfect one would."
CALIBRATION = "Calibration of these groups, before the recalibration and after it. Ideal are 1, 1, 0 and 0."
CONFUSIONS = (
    "What was taken for what, on the test split: a row is the outcome, a column the prediction. Rows with a small "
    "count, or that would reveal one, are left out."
)


def _labels(family: str, group: str) -> Mapping[str, str]:
    """What metrics of a family are called."""
    return read_declarations(f"domain:{family}")[0].labels[group]


def similarity(folder: Path, with_text: bool = True) -> Iterator[Part]:
    """The heat map of the similarity matrix that the stage wrote."""
    from bertrelay.plots import as_svg, heatmap

    if with_text and (found := read_json(folder / "similarity.json")):
        title = found.get("title", "Cosine similarity")
        yield DRAWING.format(Markup(as_svg(heatmap(found["matrix"], found["rows"], found["labels"], title))))


def terms(folder: Path, with_text: bool = True) -> Iterator[Part]:
    """The picture of terms, and terms from the whole list with their neighbours."""
    picture, table = folder / "tsne.svg", folder / "neighbours.csv"
    if not (with_text and picture.is_file() and table.is_file()):
        return
    yield DRAWING.format(Markup(picture.read_text(encoding="utf-8")))
    found: dict[str, list[str]] = {}
    with table.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            found.setdefault(row["term"], []).append(f"{row['neighbour']} ({float(row['cosine']):.2f})")
    listed = [[term, ", ".join(neighbours)] for term, neighbours in found.items()]
    caption = "Terms from the whole list, and what is nearest to each; in brackets the cosine."
    yield Listing(caption, ["Term", "Nearest"], listed[:: -(-len(listed) // SHOWN)], texts=2)


def training(folder: Path, with_text: bool = True) -> Iterator[Part]:  # noqa: ARG001
    """The curves of the stage's training."""
    if curves := training_curves(folder / "metrics.jsonl"):
        yield curves


def learning_curve(folder: Path, with_text: bool = True) -> Iterator[Part]:  # noqa: ARG001
    """The nearness of a student to its teacher against the sentences that it has seen, in at most CURVE_ROWS rows."""
    if found := (read_json(folder / LEARNING_CURVE) or {}).get("rows"):
        names = [name for name in found[-1] if name not in ("step", "sentences")]
        rows: list[list[str | MetricValue]] = [
            [f"{row['step']:,}", f"{row['sentences']:,}", *(MetricValue(row.get(name)) for name in names)]
            for row in found[::-1][:: -(-len(found) // CURVE_ROWS)][::-1]
        ]
        yield Listing(
            "Nearness on held-out sentences, by the sentences seen", ["Step", "Sentences", *names], rows, texts=0
        )


def flow(folder: Path, with_text: bool = True) -> Iterator[Part]:  # noqa: ARG001
    """The stage's flow table (CONSORT), counts with their thousands apart."""
    file, about = folder / FLOW, read_json(folder / NOTES_ABOUT)
    if about is not None and "cut" in about:
        yield ABOUT.format(f"{about['cut'].capitalize()}; {about['cost']}.")
    if file.is_file():
        with file.open(encoding="utf-8", newline="") as lines:
            head, *rows = [
                [f"{int(cell):,}" if cell.isdecimal() else cell for cell in row] for row in csv.reader(lines)
            ]
        yield Listing("", [in_words(name) for name in head], rows)


def entities(folder: Path, with_text: bool = True) -> Iterator[Part]:
    """The commonest confusions of a stage that scored entities; with text their mentions, and marked sentences."""
    confusions, examples = read_json(folder / "confusions.json"), read_json(folder / "examples.json")
    if confusions is None or examples is None or "mentions" not in confusions:
        return
    captions = {"types": "What was taken for what"} | ({"mentions": "The commonest confusions"} if with_text else {})
    kinds = _labels("entities", "count")
    for name, caption in captions.items():
        rows = []
        for each in confusions[name][:SHOWN]:
            kind = kinds[each["kind"]].partition(":")[0]
            rows.append([kind, each["gold"] or "–", each["predicted"] or "–", f"{each['count']}"])
        if rows:
            yield Listing(caption, ["Kind", "Gold", "Predicted", "Times"], rows, texts=3)
    if with_text:
        yield from _marked_sentences(examples)


def _marked_sentences(examples: Mapping[str, Any]) -> Iterator[Markup]:
    from domain.biomedical.documents.html import hues_of, legend, marked_entities
    from domain.biomedical.ner.metrics import compared

    pairs = {
        name: [[_document(each["tokens"], each[reading]) for reading in ("gold", "predicted")] for each in listed]
        for name, listed in examples.items()
    }
    documents = [document for listed in pairs.values() for pair in listed for document in pair]
    hues = hues_of(entity.type for document in documents for entity in document.entities)
    wrong = [(gold.text, *compared(gold, found)) for gold, found in pairs["wrong"]]
    if wrong:
        yield ABOUT.format(
            "Sentences with an error, spread over the test data: the gold entities, below them the predicted."
        )
        yield legend(
            (each for _, gold, found in wrong for each in [*gold, *(e for e in found if e.verdict == "spurious")]), hues
        )
    for text, *both in wrong:
        yield SENTENCE.format(Markup("").join(marked_entities(text, each, hues) for each in both))
    if pairs["right"]:
        yield ABOUT.format("Sentences in which every entity was found.")
    for gold, found in pairs["right"]:
        yield SENTENCE.format(marked_entities(found.text, compared(gold, found)[1], hues))


def _document(tokens: Sequence[str], spans: Sequence[Sequence[Any]]) -> "Document":
    """A sentence as a text, its tokens with a space between them, and the entities at their places in it."""
    from domain.biomedical.documents.document import Document, Entity

    starts = list(accumulate((len(token) + 1 for token in tokens), initial=0))
    found = [Entity(starts[start], starts[end] - 1, kind, *confidence) for start, end, kind, *confidence in spans]
    return Document("", " ".join(tokens), tuple(found))


def answers(folder: Path, with_text: bool = True) -> Iterator[Part]:
    """Scores by slices of a stage that scored answers; with text, questions and where they were answered."""
    slices, examples = read_json(folder / "slices.json"), read_json(folder / "examples.json")
    if slices is None or examples is None or "answer_words" not in slices:
        return
    listed = {caption: slices[name] for name, caption in ANSWER_SLICES.items() if slices[name]}
    if listed:
        yield ABOUT.format("Questions with an answer in their text; the bars are 95 % bootstrap intervals.")
        yield [_slice_chart(caption, each) for caption, each in listed.items()]
    titles = ["", "Questions", *(_labels("answers", "measure")[name] for name in SLICE_METRICS)]
    for caption, slice_of in listed.items():
        scores = ([MetricValue.of(each, name) for name in SLICE_METRICS] for each in slice_of)
        rows = [[each["name"], f"{each['questions']:,}", *row] for each, row in zip(slice_of, scores, strict=True)]
        yield Listing(caption, titles, rows)
    wrong = (
        "Questions answered wrongly, spread over the test data: ✗ is what was answered, the dashed frame what is right."
    )
    for name, caption in (("wrong", wrong), ("right", "Questions answered rightly.")):
        if with_text and examples[name]:
            yield ABOUT.format(caption)
            yield from (_answer(each, is_right=name == "right") for each in examples[name])


def _slice_chart(caption: str, slices: Sequence[Mapping[str, Any]]) -> Curve:
    """A point with its interval for each slice and measure."""
    lines = {
        _labels("answers", "measure")[name]: [
            (place + shift, each[name], each.get(f"{name}_low", each[name]), each.get(f"{name}_high", each[name]))
            for place, each in enumerate(slices)
        ]
        for name, shift in zip(SLICE_METRICS, (-0.08, 0.08), strict=True)
    }
    ticks = [each["name"].removesuffix(" words").removesuffix(" word").removesuffix(" %") for each in slices]
    unit = "words" if "word" in slices[0]["name"] else "% of the text"
    return draw(caption, lines, unit, "", limits=(-0.03, 1.03), ticks=ticks)


def _answer(each: Mapping[str, Any], is_right: bool) -> Markup:
    from domain.biomedical.documents.html import marked, percent

    golds = " / ".join(dict.fromkeys(gold for gold in each["golds"] if gold))
    return ANSWER.format(
        each["question"],
        f"answered: {each['answer']}" if each["answer"] else "no answer given",
        percent(each["probability"]),
        golds or "there is no answer in the text",
        Markup("\n").join(marked(passage["text"], _marks(passage["marks"], is_right)) for passage in each["passages"]),
    )


def _marks(listed: Sequence[Mapping[str, Any]], is_right: bool) -> list[Any]:
    """The answer, and the right ones that are elsewhere or longer or shorter."""
    from domain.biomedical.documents.html import Highlight

    style = ("right hue-2", "✓") if is_right else ("wrong hue-6", "✗")
    marks = [Highlight(each["start"], each["end"], *style, "answered") for each in listed if each["kind"] == "answer"]
    if is_right and marks:
        return marks
    # Golds that overlap are the same answer in more and in fewer words: they are marked as one.
    golds: list[tuple[int, int]] = []
    for start, end in sorted((each["start"], each["end"]) for each in listed if each["kind"] == "gold"):
        if golds and start < golds[-1][1]:
            start, end = golds[-1][0], max(end, golds.pop()[1])
        golds.append((start, end))
    return [*marks, *(Highlight(start, end, "gold hue-0", "gold", "right") for start, end in golds)]


def outcomes(folder: Path, with_text: bool = True) -> Iterator[Part]:  # noqa: ARG001
    """Curves, alarms, confusions and groups of patients of a stage that predicted clinical outcomes."""
    curves, listed = read_json(folder / CURVES) or {}, read_json(folder / SLICES) or {}
    if "slices" not in listed and "precision_recall" not in curves:
        return
    if curves:
        yield ABOUT.format(GREY)
        yield list(_outcome_curves(curves))
    if "alarms" in curves:
        yield from (Markup("<p>{}</p>").format(_alarms(threshold)) for threshold in curves["alarms"])
    if confusion := read_json(folder / CONFUSION):
        labels = [in_words(label) for label in confusion["labels"]]
        rows = [[f"{count:,}" for count in row] if row else ["–"] * len(labels) for row in confusion["rows"]]
        yield Listing(CONFUSIONS, ["", *labels], [[label, *row] for label, row in zip(labels, rows, strict=True)])
    slices = listed.get("slices", [])
    known = [each["metrics"] for each in slices if each["metrics"]]
    mean = next((name for name in MEANS if any(name in each for each in known)), "mean_probability")
    if slices:
        yield _groups(GROUPS, slices, ["auroc", "auprc", "prevalence", mean])
    if any("calibration_error" in each for each in known):
        names = [name for name in CALIBRATION_METRICS if any(name in each for each in known)]
        yield _groups(CALIBRATION, [each for each in slices if each["metrics"]], names)


def _groups(caption: str, slices: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Listing:
    rows: list[list[str | MetricValue]] = []
    for each in slices:
        if each["suppressed"]:
            rows.append([each["characteristic"], f"{each['suppressed']} small groups, not shown"])
        else:
            figures = [MetricValue.of(each["metrics"], name) for name in names]
            rows.append([each["characteristic"], each["group"], f"{each['admissions']:,}", *figures])
    titles = {**_labels("outcomes", "measure"), **MEANS}
    return Listing(caption, ["", "Group", "Admissions", *(titles[name] for name in names)], rows, texts=2)


def _alarms(found: Mapping[str, Any]) -> str:
    """Sentences on an alarm threshold and the counts behind it; those of a model that was trained before by minimum."""
    required = f"a precision of {found['precision']:g} with 95 % confidence"
    subject, data = "Alarms", "the validation split"
    if found["minimum"] is None:
        subject, data = "Alarms by the threshold of the model", "the validation split of its training"
    else:
        required += f", on at least {found['minimum']:,} alarms"
        subject += " by the threshold chosen here" if found["column"] else ""
    if found["threshold"] is None:
        return f"{subject}: no threshold reaches {required}, on {data}."
    return (
        f"{subject}: from a probability of {shown(found['threshold'])} on. On {data} {found['right'] or 0:,} of "
        f"{found['alarms'] or 0:,} alarms were right. Required was {required}."
    )


def _outcome_curves(found: Mapping[str, Any]) -> Iterator[Curve]:
    outcome, prevalence = found.get("outcome", "readmitted"), found["prevalence"]
    named, slope = in_words(outcome), (0.0, 1.0)
    calibration = {name: found["calibration"][name] for name in CALIBRATIONS if name in found["calibration"]}
    # Mean probability and share, and the interval of the share where there is one.
    points = {name: [[*p[:2], *([] if None in p[3:] else p[3:])] for p in each] for name, each in calibration.items()}
    of_models = {"limits": (-0.02, 1.02), "reference": slope}
    yield _of_models("ROC", found["roc"], "false positive rate", "recall", **of_models)
    of_models["reference"] = (prevalence, prevalence)
    yield _of_models("Precision and recall", found["precision_recall"], "recall", "precision", **of_models)
    yield _of_models("Calibration", points, "probability", f"share {named}", reference=slope)
    reading = found["while_reading"]
    if not reading:
        return
    count, read = found.get("read_in_parts"), "share of the chunks read"
    of_whom = f"as more of the note is read{f' ({count:,} admissions of several chunks)' if count else ''}"
    lines = {
        name: [(each["share"], each[name]) for each in reading if each[name] is not None]
        for name in ("auroc", outcome, "others")
    }
    yield draw(f"AUROC {of_whom}", {"": lines["auroc"]}, read, "AUROC")
    yield draw(f"P {of_whom}", {named: lines[outcome], f"not {named}": lines["others"]}, read, "mean P")


def _of_models(title: str, lines: Mapping[str, Any], across: str, up: str, **layout: Any) -> Curve:
    """A chart with a line for each model, in the colour that it has everywhere."""
    named, looks = {}, []
    names = {**_labels("outcomes", "model"), "model": "model", "tfidf": "TF-IDF"}
    for place, (name, points) in enumerate(lines.items()):
        model = name if name in ORDER else name.removesuffix(CALIBRATED)
        looks.append(ORDER.index(model) if model in ORDER else place)
        named[name.replace(model, names.get(model, model), 1)] = points
    return draw(title, named, across, up, looks=looks, **layout)


SUBJECTS = (similarity, outcomes, terms, flow, entities, answers, learning_curve, training)
"""In the order of the page."""
