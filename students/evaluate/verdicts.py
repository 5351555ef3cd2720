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
    """Against the teacher's mean vector, chance and word-for-word lookup, by language; of a training on dev data."""
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
        ways = (f"{ENGLISH}-{language}", f"{language}-{ENGLISH}")
        if size := counted(scores, f"sentences/{language}"):
            sizes[language] = size
            by_chance[language] = _least(
                gain(scores, f"translation_accuracy/{way}", CHANCE, 1 / size, needed=True) for way in ways
            )
        by_lookup[language] = _least(
            gain(scores, f"translation_accuracy/{way}", LOOKUP, scores.get(f"lookup_accuracy/{way}")) for way in ways
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
    found: dict[str, list[float]] = {}
    for name, value in metrics.items():
        match = re.fullmatch(pattern, name)
        if match and value is not None and not name.endswith(("_low", "_high")):
            found.setdefault(next(filter(None, match.groups())), []).append(value)
    return found


def _least(gains: Iterable[Gain]) -> Gain:
    """The smaller gain of the two directions."""
    every = list(gains)
    return min((each for each in every if each.value is not None), key=lambda each: each.value or 0.0, default=every[0])


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
    known = {language: each for language, each in gains.items() if each.value is not None}
    findings = {language: each.finding for language, each in known.items()}
    wrong = {finding for finding in findings.values() if finding[0] != "good"}
    if not wrong:
        return list(known.values())[:1]
    of_findings = ([name for name in known if findings[name] == finding] for finding in sorted(wrong))
    return [known[names[0]]._replace(than=f"{known[names[0]].than} in {listed(names)}") for names in of_findings]


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
