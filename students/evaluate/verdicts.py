"""The verdict on a student, from the metrics that its training or its evaluation recorded."""

import re
from collections.abc import Iterable, Mapping
from statistics import fmean

from bertrelay.errors import plural
from bertrelay.evaluation.verdict import Gain, Verdict, counted, gain, judge, listed
from bertrelay.stage import Metrics
from students.parallel.settings import ENGLISH

FEW = 100
"""Sentences of a language; with fewer its metrics are rough."""
MEAN_VECTOR = "the mean vector of the teacher"
LOOKUP = "word-for-word lookup"
CHANCE = "chance at finding translations"
SEARCH = "chance at search"


def of_student(metrics: Metrics) -> Verdict | None:
    """Compares with the teacher's mean vector, chance and word-for-word lookup, by language.

    Metrics on dev data count where there are none on test data; None where there are neither.
    """
    scores = _scores(metrics)
    distances = _by_language(scores, r"mse_relative/(.+)")
    accuracies = _by_language(scores, rf"translation_accuracy/(?:{ENGLISH}-([^/]+)|([^/]+)-{ENGLISH})")
    if not distances and not accuracies:
        return None
    gains = _in_languages(
        {language: Gain(MEAN_VECTOR, 1 - distance, needed=True) for language, (distance,) in distances.items()}
    )
    by_chance, by_lookup, sizes = {}, {}, {}
    for language in accuracies:
        directions = (f"{ENGLISH}-{language}", f"{language}-{ENGLISH}")
        if size := counted(scores, f"sentences/{language}"):
            sizes[language] = size
            by_chance[language] = _least(
                gain(scores, f"translation_accuracy/{pair}", CHANCE, 1 / size, needed=True) for pair in directions
            )
        by_lookup[language] = _least(
            gain(scores, f"translation_accuracy/{pair}", LOOKUP, scores.get(f"lookup_accuracy/{pair}"))
            for pair in directions
        )
    gains += [*_in_languages(by_chance), *_in_languages(by_lookup), *_in_languages(_at_search(scores))]
    few = {language: size for language, size in sizes.items() if size < FEW}
    counts = [f"{size} {plural(size, 'pair', 'pairs')} in {name}" for name, size in few.items()]
    doubts = [f"too few to be sure: {listed(counts)}"] if few else []
    return judge(_facts(distances, accuracies, scores is not metrics), gains, doubts)


def _scores(metrics: Metrics) -> Metrics:
    """The test metrics; without any, those of dev data under the same names."""
    if any(name.startswith(("translation_accuracy/", "mse_relative/")) for name in metrics):
        return metrics
    return {name.removeprefix("dev/"): value for name, value in metrics.items() if name.startswith("dev/")}


def _by_language(metrics: Metrics, pattern: str) -> dict[str, list[float]]:
    """The metrics whose whole name matches, by the language that it names."""
    values: dict[str, list[float]] = {}
    for name, value in metrics.items():
        match = re.fullmatch(pattern, name)
        if match and value is not None and not name.endswith(("_low", "_high")):
            values.setdefault(next(filter(None, match.groups())), []).append(value)
    return values


def _least(gains: Iterable[Gain]) -> Gain:
    """The smaller gain of the two directions."""
    both = list(gains)
    return min((one for one in both if one.value is not None), key=lambda one: one.value or 0.0, default=both[0])


def _at_search(scores: Metrics) -> dict[str, Gain]:
    """The recall of each language over that of chance, k of all English sentences."""
    size, gains = counted(scores, f"queries/{ENGLISH}"), {}
    for name in scores if size else ():
        match = re.fullmatch(r"recall_at_(\d+)/([^/]+)", name)
        if match and size and not name.endswith(("_low", "_high")) and match[2] != ENGLISH and int(match[1]) < size:
            gains[match[2]] = gain(scores, name, SEARCH, int(match[1]) / size, needed=True)
    return gains


def _in_languages(gains: Mapping[str, Gain]) -> list[Gain]:
    """One gain where the model is better in all languages, else one for the languages of each finding."""
    measured = {language: one for language, one in gains.items() if one.value is not None}
    findings = {language: one.finding for language, one in measured.items()}
    wrong = {finding for finding in findings.values() if finding[0] != "good"}
    if not wrong:
        return list(measured.values())[:1]
    by_finding = ([language for language in measured if findings[language] == finding] for finding in sorted(wrong))
    return [measured[names[0]]._replace(than=f"{measured[names[0]].than} in {listed(names)}") for names in by_finding]


def _facts(distances: Mapping[str, list[float]], accuracies: Mapping[str, list[float]], is_dev: bool) -> str:
    """The metrics, from the lowest to the highest language."""
    means = {
        "translation accuracy": [fmean(values) for values in accuracies.values()],
        "squared distance to the teacher (1 is its mean vector's)": [fmean(values) for values in distances.values()],
    }
    ranges = [
        f"{name} {min(values):.3f}" + (f" to {max(values):.3f}" if len(values) > 1 else "")
        for name, values in means.items()
        if values
    ]
    text = "; ".join(ranges) + (" on dev data" if is_dev else "")
    return text[:1].upper() + text[1:]
