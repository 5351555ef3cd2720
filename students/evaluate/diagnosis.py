"""Diagnosis of a student: the usual failures, by the metrics that its training or evaluation recorded; free of torch.

Each is named in words, with what to try. The verdict has them, and the log.
"""

import re
from typing import NamedTuple

from bertrelay.errors import plural
from bertrelay.evaluation.verdict import Level, listed
from bertrelay.stage import Metrics

TEACHER = "teacher"
"""In place of a language: the teacher's English."""
MOST_ALIKE = 0.95
"""Mean cosine of two different sentences, above which vectors have collapsed; published encoders reach 0.85."""
LEAST_APART, LEAST_DIMENSIONS = 0.05, 0.2
"""Fractions of the teacher's 1 − this cosine, and of its effective dimensions, below which vectors have collapsed."""
MOST_REPEATED = 0.8
MOST_ONE_TEMPLATE = 0.5
LEAST_ENGLISH_FIT = 0.8
ACCURATE = 0.95
"""Translation accuracy that need not rise."""


class Failure(NamedTuple):
    """level: `fail` of a student that is useless. text: the failure and, in brackets, what to try."""

    level: Level
    text: str


def diagnose(metrics: Metrics) -> list[Failure]:
    """The failures that `metrics` show, of test or dev data, the worst first.

    They are those of `spread_metrics`, `gain_metrics`, `soundness_metrics` and `family/…`.
    """
    return [*_collapsed(metrics), *_misused(metrics), *_unsound(metrics), *_without_gain(metrics)]


def _collapsed(metrics: Metrics) -> list[Failure]:
    cosines, dimensions = (_by_language(metrics, f"spread/{measure}") for measure in ("cosine", "dimensions"))
    teacher_cosine, teacher_dimensions = cosines.pop(TEACHER, None), dimensions.pop(TEACHER, None)
    alike = {
        language: cosine
        for language, cosine in cosines.items()
        if 1 - cosine < (1 - MOST_ALIKE if teacher_cosine is None else LEAST_APART * (1 - teacher_cosine))
    }
    flat = {
        language: count
        for language, count in dimensions.items()
        if teacher_dimensions is not None and count < LEAST_DIMENSIONS * teacher_dimensions and language not in alike
    }
    failures = []
    if alike:
        beside = "" if teacher_cosine is None else f", of the teacher's {teacher_cosine:.3f}"
        failures.append(
            f"the vectors of {listed(list(alike))} have collapsed: the mean cosine of different sentences is "
            f"{max(alike.values()):.3f}{beside} (try a lower learning_rate, a weight for contrastive or ranking, and "
            "look at the loss for a jump)"
        )
    if flat:
        failures.append(
            f"the vectors of {listed(list(flat))} use {min(flat.values()):.1f} dimensions only, the teacher's "
            f"{teacher_dimensions:.1f} (try more and other text, a weight for ranking, and a lower learning_rate)"
        )
    return [Failure("fail", text) for text in failures]


def _misused(metrics: Metrics) -> list[Failure]:
    """Models that are used unlike their family, which the log describes."""
    remedies = {
        "teacher_prompt": "the teacher has not the prompt of its family (set teacher_prompt as the log says)",
        "teacher_pooling": "the teacher has not the pooling of its family (take its whole folder, with modules.json)",
        "base_pooling": "the base has not the pooling of its family (take its whole folder, with modules.json)",
    }
    return [Failure("warn", text) for name, text in remedies.items() if metrics.get(f"family/{name}")]


def _unsound(metrics: Metrics) -> list[Failure]:
    failures = []
    swapped = [name for name, fit in _by_language(metrics, "corpus/english_fit").items() if fit < LEAST_ENGLISH_FIT]
    if swapped:
        failures.append(
            f"English and {listed(swapped)} seem to be swapped: the teacher's tokenizer cuts the English into smaller "
            "subwords than its translations (exchange the columns or files of `parallel`)"
        )
    repeated = {name: part for name, part in _by_language(metrics, "corpus/repeated").items() if part > MOST_REPEATED}
    if repeated:
        failures.append(
            f"up to {max(repeated.values()):.0%} of the pairs in {listed(list(repeated))} only repeat others (add "
            "other text to `parallel`)"
        )
    template = metrics.get("corpus/template")
    if template is not None and template > MOST_ONE_TEMPLATE:
        failures.append(
            f"{template:.0%} of the English sentences are one template with other words in it (add other text to "
            "`parallel`, or without translations to `english`)"
        )
    return [Failure("warn", text) for text in failures]


def _without_gain(metrics: Metrics) -> list[Failure]:
    cosines, accuracies = (_by_language(metrics, f"gain/{measure}") for measure in ("cosine", "accuracy"))
    final = {
        language: sum(values) / len(values)
        for language in accuracies
        if (values := [v for way in (f"en-{language}", f"{language}-en") if (v := _accuracy(metrics, way)) is not None])
    }
    languages = [
        language
        for language, gain in accuracies.items()
        if gain <= 0 and cosines.get(language, 0.0) <= 0 and final.get(language, 0.0) < ACCURATE
    ]
    if not languages:
        return []
    it = plural(len(languages), "its", "their")
    return [
        Failure(
            "warn",
            f"{listed(languages)} did not gain from the training: neither the cosine to the teacher nor the "
            f"translation accuracy is higher than at the start (check {it} text in `parallel`, give more of it, or "
            "train longer)",
        )
    ]


def _accuracy(metrics: Metrics, direction: str) -> float | None:
    return metrics.get(f"translation_accuracy/{direction}")


def _by_language(metrics: Metrics, family: str) -> dict[str, float]:
    """The metrics `<family>/<language>` that have a value, by language."""
    pattern = re.compile(rf"{family}/([^/]+)")
    matches = ((pattern.fullmatch(name), value) for name, value in metrics.items())
    return {match[1]: value for match, value in matches if match and value is not None}


def gain_metrics(start: Metrics, end: Metrics) -> Metrics:
    """`gain/cosine/<language>` and `gain/accuracy/<language>` of a training, from the dev metrics before and after.

    The accuracy is the mean of both directions; languages are the trained ones.
    """
    gains: Metrics = {}
    for language in _by_language(end, "dev/mse_relative"):
        names = {
            "cosine": [f"dev/nearness/cosine/{language}"],
            "accuracy": [f"dev/translation_accuracy/{way}" for way in (f"en-{language}", f"{language}-en")],
        }
        for measure, keys in names.items():
            values = [(end.get(key), start.get(key)) for key in keys]
            differences = [after - before for after, before in values if after is not None and before is not None]
            if len(differences) == len(keys):
                gains[f"gain/{measure}/{language}"] = sum(differences) / len(differences)
    return gains
