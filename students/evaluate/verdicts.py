"""The verdict on a student, from the metrics that its training or its evaluation recorded."""

import re
from collections.abc import Collection, Iterable, Mapping
from statistics import fmean
from typing import NamedTuple

from bertrelay.errors import plural
from bertrelay.evaluation.verdict import Gain, Verdict, counted, gain, judge, listed
from bertrelay.stage import Metrics
from students.evaluate.diagnosis import Failure, diagnose
from students.parallel.settings import ENGLISH

MEAN = "mean"
"""In place of a language: the mean over all but English."""
FEW = 100
"""Sentences of a language; with fewer its metrics are rough."""
MEAN_VECTOR = "the mean vector of the teacher"
LOOKUP = "word-for-word lookup"
CHANCE = "chance at finding translations"
SEARCH = "chance at search"

# A student and its teacher are said to have one vector space where both hold, in every language:
NEAR_COSINE = 0.7
"""Least mean cosine to the teacher's vectors. Its square, 0.49, is the fraction of a vector's squared length that lies
in the teacher's direction: below it, more than half of the vector is something else."""
NEAR_RECALL = 0.95
"""Least ratio of recall@10 in the teacher's index to that of English: whoever searches a teacher's index with the
student then loses at most one hit in twenty by asking in another language."""


class Nearness(NamedTuple):
    """Nearness of a student to its teacher.

    is_one_space: by the rule of NEAR_COSINE and NEAR_RECALL; None where that needs a recall that was not measured.
    text: the metrics in words.
    """

    is_one_space: bool | None
    text: str


def of_student(metrics: Metrics) -> Verdict | None:
    """Compares with the teacher's mean vector, chance and word-for-word lookup, by language, and names failures.

    Metrics on dev data count where there are none on test data; None where there are neither, and no failure.
    """
    scores, failures = _scores(metrics), of_failures(metrics)
    distances = _by_language(scores, r"mse_relative/(.+)")
    accuracies = _by_language(scores, rf"translation_accuracy/(?:{ENGLISH}-([^/]+)|([^/]+)-{ENGLISH})")
    if not distances and not accuracies:
        return judge("", [], failures=failures) if failures else None
    # a student that finds translations is in doubt here, not useless
    far = [language for language, (distance,) in distances.items() if distance >= 1 and language in accuracies]
    nearer = {language: 1 - distance for language, (distance,) in distances.items() if language not in far}
    gains = _in_languages({language: Gain(MEAN_VECTOR, value, needed=True) for language, value in nearer.items()})
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
    if far:
        doubts.append(f"in squared distance no nearer to the teacher than {MEAN_VECTOR} in {listed(far)}")
    facts = _facts(distances, accuracies, of_nearness(scores), is_dev=scores is not metrics)
    return judge(facts, gains, doubts, failures)


def of_failures(metrics: Metrics) -> list[Failure]:
    """The usual failures that the metrics of a training or an evaluation show, with what to try."""
    return diagnose({**metrics, **_scores(metrics)})


def worst_of(results: Iterable[Metrics]) -> Metrics:
    """The metrics that `of_nearness` needs, of several results of one model: the values farthest from the teacher.

    Of a training they are those on its untrained held-out sentences: a student may be near in its trained domains only.
    """
    worst: dict[str, float] = {}
    for metrics in results:
        for name, value in metrics.items():
            test = name.replace("dev/nearness/", "nearness/").replace("/untrained/", "/")
            is_untrained = not name.startswith("dev/") or "/untrained/" in name
            if value is not None and is_untrained and test.startswith(("nearness/", "recall_at_10_ratio/")):
                farther = max if test.startswith(("nearness/unrelated/", "nearness/error/")) else min
                worst[test] = farther(value, worst.get(test, value))
    return dict(worst)


def of_nearness(metrics: Metrics, languages: Collection[str] = ()) -> Nearness | None:
    """Judges `nearness/…` and `recall_at_10_ratio/…`, of all languages or of `languages`; None without such metrics."""
    cosines, unrelated, recalls = (
        {
            language: value
            for language, [value] in _by_language(metrics, pattern).items()
            if language != MEAN and (not languages or language in languages)
        }
        for pattern in ("nearness/cosine/([^/]+)", "nearness/unrelated/([^/]+)", "recall_at_10_ratio/([^/]+)")
    )
    if not cosines:
        return None
    words = f"mean cosine to the teacher's vectors {_range(cosines)}"
    if unrelated:
        words += f", of unrelated sentences {fmean(unrelated.values()):.3f}"
    if recalls:
        words += f"; recall@10 in the teacher's index {_range(recalls)} of what English finds"
    is_near = min(cosines.values()) >= NEAR_COSINE and min(recalls.values(), default=1.0) >= NEAR_RECALL
    unsearched = cosines.keys() - recalls.keys() - {ENGLISH}
    return Nearness(None if is_near and unsearched else is_near, words)


def _range(values: Mapping[str, float]) -> str:
    """`0.441 (ko) to 0.547 (en)`, the lowest and the highest of several languages."""
    low, high = (choose(values, key=lambda language: values[language]) for choose in (min, max))
    ends = [f"{values[language]:.3f} ({language})" for language in dict.fromkeys([low, high])]
    return " to ".join(ends)


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


def _facts(
    distances: Mapping[str, list[float]],
    accuracies: Mapping[str, list[float]],
    nearness: Nearness | None,
    *,
    is_dev: bool,
) -> str:
    """The metrics, from the lowest to the highest language, and if they are those of one vector space."""
    means = {
        "translation accuracy": [fmean(values) for values in accuracies.values()],
        "squared distance to the teacher (1 is its mean vector's)": [fmean(values) for values in distances.values()],
    }
    ranges = [
        f"{name} {min(values):.3f}" + (f" to {max(values):.3f}" if len(values) > 1 else "")
        for name, values in means.items()
        if values
    ]
    if nearness:
        claims = {
            True: "on these sentences one vector space with the teacher: ",
            False: "not the teacher's vector space: ",
            None: "",
        }
        ranges.append(f"{claims[nearness.is_one_space]}{nearness.text}")
    text = "; ".join(ranges) + (" on dev data" if is_dev else "")
    return text[:1].upper() + text[1:]
