"""Flat metric names to tables that can be read: by family, with a row for each language, set or name."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from bertrelay.stage import Metrics
from teachers.evaluation.settings import MAIN

SIMILARITY = "Semantic textual similarity"
CLASSIFICATION = "Classification of sentences"
FACETS = "Argument facets"
SECTIONS = "Sections of Wikipedia"
ABLATION = "Ablation"
ANSWERS = "Answers"
OF_PATIENTS = "What becomes of patients"
TERM_VECTORS = "Medical terms"
ABOUT = {
    "Translation accuracy": "The share of sentences whose nearest neighbour in the other language is their own "
    "translation. Word-for-word lookup has only a dictionary learnt from the training pairs to find it by.",
    SIMILARITY: "Spearman's rank correlation of the vectors' similarity with the gold scores. A year's figure is the "
    "mean of its subsets, and under “all” that of its pairs taken together. The published means take each year's pairs "
    "together, and so stand beside “mean / all”.",
    CLASSIFICATION: "Logistic regression on frozen vectors, on sentences that it has not seen.",
    FACETS: "Correlation of the vectors' similarity, or of a cross-encoder's score, with how far two arguments make "
    "the same point. Published figures are Spearman's.",
    SECTIONS: "How often a sentence of the same section is nearer than one of another section.",
    ABLATION: "Spearman's rank correlation of cosine with the gold scores, one way of training at a time.",
    "Distance to the teacher": "Mean squared error of the student's vectors; relative to the spread of the teacher's, "
    "0 is the teacher and 1 what its mean vector scores.",
    "Masked words and next sentences": "On held-out documents, with the same masks and pairs before the training and "
    "after it; losses in nats. The log-likelihood, minus the sum of the losses, chooses the best weights.",
    "Entities": "Strict: an entity counts when its borders and its type are right. Lenient is seqeval's default "
    "reading of tags, for comparison with figures that were computed so.",
    ANSWERS: "Exact match and F1 as SQuAD's script has them: the best over the right answers, then the mean over "
    "questions. Strict and lenient accuracy and MRR as BioASQ's evaluator has them.",
    OF_PATIENTS: "Per admission, on the test split as it is; intervals resample subjects. RP80 is the recall at the "
    "threshold that had a precision of 0.8 on the validation split, beside the optimistic one that is chosen on the "
    "test split itself. Model and baselines are recalibrated by a logistic regression on the validation split. "
    "Observed/expected is the number of positives divided by the sum of the probabilities; slope and intercept are "
    "those of a logistic regression on the log-odds, the intercept with the slope held at 1. Ideal are 1, 1 and 0. "
    "Calibration error: ten bins of equal size; chance alone keeps that of perfect probabilities above 0, and the "
    "interval makes up for it. Differences between model and baseline use the same resamples of subjects. Permuted "
    "labels: TF-IDF is fitted again to labels of train that were permuted over subjects, and shows what it scores when "
    "labels have nothing to do with texts; whether texts give the outcome away, it cannot show. Of several labels, the "
    "macro AUROC is the mean of each against the rest, the "
    "micro AUROC that of all pairs of admission and label together. For comparison, Huang, "
    "Altosaar & Ranganath (2019) report for readmission on MIMIC-III an AUROC of 0.714 from discharge summaries and of "
    "0.674 and 0.672 from early notes, an AUPRC of 0.701 and an RP80 of 0.242. Theirs cannot be set against these: "
    "their test set was balanced to as many readmitted as not, which AUPRC and RP80 rise with; it was split by "
    "admission, so that patients stood on both sides; labels and cohort followed other rules; and RP80 was the "
    "optimistic one.",
    TERM_VECTORS: "How the cosines of terms agree with what people say of how alike they are, and how many of a term's "
    "nearest neighbours are of its group. For comparison, Huang, Altosaar & Ranganath (2019) report a Pearson "
    "correlation of 0.670 with physicians' ratings of other terms.",
    "Dev data": "What the best weights were chosen by.",
    "Other figures": "",
}
TRANSLATION = {"translation_accuracy": "Vectors", "lookup_accuracy": "Word-for-word lookup"}
PRETRAINING = ("mlm_", "nsp_", "log_likelihood")
DISTANCE = {"mse": "squared error", "mse_relative": "relative"}
ENTITIES = {"f1": "F1", "precision": "precision", "recall": "recall"}
ENTITIES |= {f"{name}_lenient": f"{told}, lenient" for name, told in ENTITIES.items()}
OUTCOMES = {
    "gold_entities": "gold",
    "predicted_entities": "predicted",
    "right": "right",
    "wrong_span": "wrong border",
    "wrong_type": "wrong type",
    "wrong_both": "wrong border and type",
    "missed": "missed: nothing predicted there",
    "spurious": "spurious: nothing gold there",
    "ece": "calibration error of the confidences",
    "ece_uncalibrated": "before the calibration",
}
ANSWER_MEASURES = {
    "exact_match": "exact match",
    "f1": "F1",
    "strict_accuracy": "strict accuracy",
    "lenient_accuracy": "lenient accuracy",
    "mrr": "MRR",
}
ASKED = {
    "": "all questions",
    "has_answer": "with an answer in the text",
    "no_answer": "without one",
    "with_unanswered": "those without any candidate counted as wrong",
    "first_sentence": "the text's first sentence as answer",
    "first_sentence/has_answer": "the same, with an answer in the text",
    "first_sentence/no_answer": "the same, without one",
}
ASKED_FOR = "What there was to answer, and how far off the probabilities are"
ASKED_COUNTS = {
    "questions": "questions",
    "scored": "questions with right answers, or said to have none, which are scored",
    "texts": "different texts",
    "longest_text_pieces": "word pieces of the longest text",
    "beyond_max_answer_tokens": "questions whose right answers are all longer than the model may give",
    "answered": "questions answered",
    "unanswered": "questions without any candidate",
    "ece": "calibration error of the probabilities",
    "ece_uncalibrated": "before the calibration",
}
RETURNS = {
    "auroc": "AUROC",
    "best_auroc": "AUROC of the true risk",
    "auprc": "AUPRC",
    "rp80": "RP80",
    "rp80_precision": "precision at its threshold",
    "rp80_optimistic": "RP80, optimistic",
    "alarms": "alarms",
    "alarm_recall": "recall of the alarms",
    "alarm_precision": "precision of the alarms",
    "auroc_difference": "AUROC, model minus this",
    "auprc_difference": "AUPRC, model minus this",
    "auroc_permuted": "AUROC with permuted labels, mean",
    "auroc_permuted_sd": "their standard deviation",
    "auroc_permuted_highest": "the highest of them",
    "permutations": "permutations",
    "permutation_p": "permutation test, p",
    "brier": "Brier score",
    "brier_uncalibrated": "Brier score before the recalibration",
    "calibration_error": "calibration error",
    "calibration_error_uncalibrated": "calibration error before it",
    "observed_expected": "observed/expected",
    "observed_expected_uncalibrated": "observed/expected before it",
    "calibration_slope": "calibration slope",
    "calibration_slope_uncalibrated": "calibration slope before it",
    "calibration_intercept": "calibration intercept",
    "calibration_intercept_uncalibrated": "calibration intercept before it",
    "prevalence": "prevalence",
    "auroc_macro": "AUROC, macro",
    "auroc_micro": "AUROC, micro",
    "accuracy": "accuracy",
    "labels": "labels",
    "labels_left_out": "labels without an AUROC, left out of the mean",
}
READERS = {"": "model", "note_length": "note length alone", "tfidf": "TF-IDF, logistic regression"}
TERMS = {
    "pearson_cosine": "Pearson, cosine and ratings",
    "spearman_cosine": "Spearman, cosine and ratings",
    "rated_pairs": "rated pairs",
    "ratings_missing": "ratings of other terms",
    "ratings_repeated": "ratings of a pair that has one",
    "same_group": "neighbours of the same group",
    "same_group_by_chance": "by chance",
    "count": "terms",
    "dim": "dimensions",
    "layers": "layers summed",
    "perplexity": "perplexity of the picture",
    "rejected": "left out",
    "unknown": "terms that the vocabulary does not know",
    "unlabelled": "terms without a label on the picture",
}
PUBLISHED = "published_"
MEASURES = {
    f"{correlation}_{similarity}": f"{correlation.capitalize()}, {similarity}"
    for correlation in ("spearman", "pearson")
    for similarity in ("cosine", "dot", "euclidean", "manhattan", "score")  # the last of networks that read both
}
PAPER = {"senteval": (CLASSIFICATION, 2), "facets": (FACETS, 2), "sections": (SECTIONS, 1), "ablation": (ABLATION, 3)}
"""Families of the SBERT paper's protocols, and how many parts come after them in a name."""
ENDINGS = ("low", "high", "deviation")


@dataclass(frozen=True)
class Figure:
    """A figure, and what is known of its precision: a 95 % interval, or the deviation over seeds."""

    value: float | None
    low: float | None = None
    high: float | None = None
    deviation: float | None = None

    def __str__(self) -> str:
        if self.deviation is None:
            return shown(int(self.value or 0) if self._is_count else self.value)
        return f"{shown(self.value, 4)} ± {shown(self.deviation, 4)}"

    @property
    def _is_count(self) -> bool:
        """Whether it is a whole number beyond 1 and without an interval, as no score is."""
        return self.value is not None and self.low is None and abs(self.value) > 1 and self.value % 1 == 0

    @property
    def interval(self) -> str:
        """`0.91 – 0.93`, or nothing; the deviation over seeds says more than one seed's interval."""
        if self.low is None or self.high is None or self.deviation is not None:
            return ""
        return f"{shown(self.low)} – {shown(self.high)}"


MISSING = Figure(None)
Column = tuple[str, str]
"""The group of a column and the column itself; either may be empty."""


@dataclass
class ScoreTable:
    """Figures by row and column. What was not measured is in none of them."""

    family: str
    caption: str
    columns: list[Column] = field(default_factory=list)
    rows: dict[str, dict[Column, Figure]] = field(default_factory=dict)

    def put(self, row: str, column: Column, figure: Figure) -> None:
        """Sets a figure, behind the columns of its own group."""
        if column not in self.columns:
            order = list(dict.fromkeys(group for group, _ in [*self.columns, column]))
            self.columns = sorted([*self.columns, column], key=lambda each: order.index(each[0]))
        self.rows.setdefault(row, {})[column] = figure

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The groups of columns, and how many columns each has."""
        names = [group for group, _ in self.columns]
        return [(name, names.count(name)) for name in dict.fromkeys(names)]

    def cells(self, row: str) -> list[Figure]:
        """The row's figures, one for each column."""
        return [self.rows[row].get(column, MISSING) for column in self.columns]


def score_tables(stages: Mapping[str, Metrics]) -> list[ScoreTable]:
    """The metrics of `stages` (name to metrics) as tables, families in their order."""
    tables: dict[tuple[str, str], ScoreTable] = {}
    for stage, metrics in stages.items():
        for name, figure in figures(metrics).items():
            place = _place_of_answers if "exact_match" in metrics else _place
            family, caption, row, column = place(stage, name)
            table = tables.setdefault((family, caption), ScoreTable(family, caption))
            table.put(row, column, figure)
    for table in tables.values():
        if table.family == "Translation accuracy":
            _add_means(table)
    order = list(ABOUT)
    return sorted(tables.values(), key=lambda table: order.index(table.family))


def figures(metrics: Metrics) -> dict[str, Figure]:
    """Each figure with its `_low`, `_high` and `_deviation`."""
    return {
        name: Figure(value, *(metrics.get(f"{name}_{ending}") for ending in ENDINGS))
        for name, value in metrics.items()
        if not any(base in metrics for base in _bases(name))
    }


def _bases(name: str) -> Iterator[str]:
    """What `name` may be an addition to: `f1` for `f1_low`, and for `f1_low_deviation`."""
    base, _, ending = name.rpartition("_")
    if ending in ENDINGS:
        yield base
        yield from _bases(base)


def _place(stage: str, name: str) -> tuple[str, str, str, Column]:
    """Where a figure stands: family, caption of the table, row, column."""
    family, *middle = name.split("/")
    if family in TRANSLATION and middle and (language := _other_language(middle[-1])):
        direction = "from English" if middle[-1].startswith("en-") else "into English"
        caption = " · ".join([stage, *middle[:-1]])
        return "Translation accuracy", caption, language, (TRANSLATION[family], direction)
    if family == "sts" and len(middle) > 1:
        shown_as = MEASURES.get(middle[-1], middle[-1])
        return SIMILARITY, "" if middle[-1] in MAIN else shown_as, " / ".join(middle[:-1]), (stage, shown_as)
    if family in PAPER and len(middle) == PAPER[family][1]:
        return _place_of_paper(stage, PAPER[family][0], middle)
    if family in DISTANCE and middle:
        return "Distance to the teacher", "", " / ".join(middle), (stage, DISTANCE[family])
    told, when = (middle[0], "before") if family == "before" and middle else (family, "after")
    if told.startswith(PRETRAINING):
        return "Masked words and next sentences", "", told, (stage, when)
    published = family.startswith(PUBLISHED)
    if measure := ENTITIES.get(family.removeprefix(PUBLISHED)):
        column = (stage, f"{measure}, published" if published else measure)
        return "Entities", "", "/".join(middle) or "all types", column
    if family in RETURNS:
        reader = "/".join(middle)
        return OF_PATIENTS, "", RETURNS[family], (stage, READERS.get(reader, reader))
    if family == "terms" and middle and middle[0] in TERMS:
        return TERM_VECTORS, "", TERMS[middle[0]], (stage, "")
    if family in OUTCOMES:
        return "Entities", "What became of them", OUTCOMES[family], (stage, "")
    return ("Dev data" if family == "dev" else "Other figures"), "", name.removeprefix("dev/"), (stage, "")


def _place_of_answers(stage: str, name: str) -> tuple[str, str, str, Column]:
    """Where a figure of answers to questions stands."""
    asked, _, measure = name.rpartition("/")
    if told := ANSWER_MEASURES.get(measure.removeprefix(PUBLISHED)):
        column = (stage, f"{told}, published" if measure.startswith(PUBLISHED) else told)
        return ANSWERS, "", ASKED.get(asked, asked), column
    return ANSWERS, ASKED_FOR, ASKED_COUNTS.get(name, name), (stage, "")


def _place_of_paper(stage: str, family: str, middle: list[str]) -> tuple[str, str, str, Column]:
    """Where a figure of the SBERT paper's protocols stands."""
    if family == ABLATION:
        return family, middle[0], middle[1], (stage, middle[2])
    if family == SECTIONS:
        return family, "", middle[0].replace("_", ", "), (stage, "")
    return family, "", middle[0], (stage, MEASURES.get(middle[1], middle[1]))


def _other_language(pair: str) -> str | None:
    """`de` of `en-de` and `de-en`; None where English is no side of it."""
    return pair.removeprefix("en-") if pair.startswith("en-") else pair.removesuffix("-en") if "-en" in pair else None


def _add_means(table: ScoreTable) -> None:
    if len(table.rows) < 2:
        return
    rows = list(table.rows.values())
    for column in table.columns:
        values = [row[column].value for row in rows if column in row]
        known = [value for value in values if value is not None]
        if len(known) == len(rows):
            table.put("mean", column, Figure(sum(known) / len(known)))


def shown(value: float | None, decimals: int = 3) -> str:
    """A figure for people, with `decimals` or so many digits where it is tiny; a dash for what was not measured."""
    if value is None:
        return "–"
    if isinstance(value, int) or abs(value) >= 1000:
        text = f"{value:,.0f}"
    elif 0 < abs(value) < 10**-decimals:
        text = f"{value:.{decimals}g}"
    else:
        text = f"{value:.{1 if abs(value) >= 100 else decimals}f}"
    return text.replace("-", "−")


PUBLISHED_COLUMN = "published"
FIGURES = {
    (SIMILARITY, ""): {
        # Each year's pairs as one set, and one correlation: sentence-transformers, issue 1165.
        ("mean / all", "SBERT-NLI-base"): 0.7489,
        ("mean / all", "GloVe, averaged"): 0.6132,
        ("mean / all", "BERT, averaged"): 0.5481,
        ("mean / all", "BERT, [CLS]"): 0.2919,
        ("STSb", "SBERT, STSb"): 0.8467,
        ("STSb", "SBERT, NLI + STSb"): 0.8535,
    },
    (CLASSIFICATION, ""): {("mean", "SBERT-NLI-base"): 0.8741},
    (FACETS, ""): {  # Spearman
        ("ten-fold", "SBERT-AFS-base"): 0.7413,
        ("ten-fold", "BERT-AFS-base, cross-encoder"): 0.7484,
        ("cross-topic", "SBERT-AFS-base"): 0.5065,
        ("cross-topic", "BERT-AFS-base, cross-encoder"): 0.5723,
    },
    (SECTIONS, ""): {("accuracy", "SBERT-WikiSec-base"): 0.8042},
    (ABLATION, "pooling"): {("mean", "NLI"): 0.8078, ("max", "NLI"): 0.7907, ("cls", "NLI"): 0.7980},
    (ABLATION, "concatenation"): {
        ("u, v", "NLI"): 0.6604,
        ("|u-v|", "NLI"): 0.6978,
        ("u*v", "NLI"): 0.7054,
        ("|u-v|, u*v", "NLI"): 0.7837,
        ("u, v, u*v", "NLI"): 0.7744,
        ("u, v, |u-v|", "NLI"): 0.8078,
        ("u, v, |u-v|, u*v", "NLI"): 0.8044,
    },
}
"""(family, caption) of a table to (row, what it is of) to the figure."""


def with_published(tables: Iterable[ScoreTable]) -> list[ScoreTable]:
    """The tables, and in those that have the row of a published figure, that figure in a column of its own."""
    found = deepcopy(list(tables))
    for table in found:
        for (row, column), value in FIGURES.get((table.family, table.caption), {}).items():
            if row in table.rows:
                table.put(row, (PUBLISHED_COLUMN, column), Figure(value))
    return found


METRICS_SHOWN = 4
FAMILIES_SHOWN = (
    "Translation accuracy",
    SIMILARITY,
    CLASSIFICATION,
    FACETS,
    SECTIONS,
    ABLATION,
    "Masked words and next sentences",
)
NOT_MAIN = ("_low", "_high", "_deviation")
BEFORE = "before/"


def score_lines(stages: Mapping[str, Metrics], intervals: bool = False) -> Iterator[str]:
    """The tables of what the models are judged by; similarity by its main measure, the report has the others.

    intervals: whether 95 % intervals are shown; those of ablations always are.
    """
    known = [table for table in with_published(score_tables(stages)) if table.family in FAMILIES_SHOWN]
    tables = [table for table in known if table.family != SIMILARITY or not table.caption]
    for table in tables:
        yield from ("", " · ".join(filter(None, [table.family, table.caption])))
        head = [["", *column] for column in zip(*table.columns, strict=True)]
        wide = intervals or table.family == ABLATION
        yield from _in_columns(
            [*head, *([row, *(_cell(each, wide) for each in table.cells(row))] for row in table.rows)]
        )
    if tables:
        yield ""


def _cell(figure: Figure, interval: bool) -> str:
    return f"{figure} ({figure.interval})" if interval and figure.interval else str(figure)


def _in_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [_width(column) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        yield "  ".join([f"  {first:{widths[0]}}", *cells]).rstrip()


def main_metrics(metrics: Metrics) -> str:
    """The first few figures; intervals are left out, and what was measured before the training."""
    main = [name for name in metrics if not name.endswith(NOT_MAIN) and not name.startswith(BEFORE)]
    measured = [(name, value) for name in main if (value := metrics[name]) is not None]
    shown = [f"{name} {_figure(value)}" for name, value in measured[:METRICS_SHOWN]]
    more = len(measured) - len(shown)
    return "  ".join([*shown, f"and {more} more" if more > 0 else ""]).rstrip()


def _figure(value: float) -> str:
    """Counts as they are, all else to four digits."""
    return f"{value:,.0f}" if value == round(value, 0) or value >= 10_000 else f"{value:.4g}"


def _width(labels: Iterable[str]) -> int:
    return max((len(label) for label in labels), default=0)
