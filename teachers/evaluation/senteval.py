"""SentEval (Conneau & Kiela 2018): logistic regression on frozen vectors, the accuracy on sentences it did not see.

Ten-fold where a set has no test part, else its official split. The regularisation is the same everywhere and nothing
is chosen on dev data, so the dev part of SST stays unused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertrelay.errors import RequestError
from bertrelay.evaluation.statistics import Floats, share, with_interval
from bertrelay.progress import log
from bertrelay.stage import Metrics
from teachers.evaluation.official import OfficialFiles, fields_of, read_lines
from teachers.evaluation.settings import CLASSES, FOLDED, SETS, SPLIT
from teachers.evaluation.sts import Encode

WITHIN = {"SST": "binary"}  # SentEval has SST with five classes under the same names
HEADER_LINES = {"MRPC": 1}
PARAPHRASES = ("Quality", "#1 String", "#2 String")
"""The columns of MRPC that are used: the class, and two sentences."""
PARAPHRASE = "1"
MOST_STEPS = 1_000


@dataclass(frozen=True)
class Labelled:
    """Sentences, or pairs of them, and the class of each, (items,)."""

    sides: list[list[str]]
    labels: NDArray[np.str_]


@dataclass(frozen=True)
class TransferSet:
    """Training and test data; without a test part, each fold is tested by training on the others."""

    train: Labelled
    test: Labelled | None = None


def read_sets(files: OfficialFiles, names: Sequence[str], folds: int) -> dict[str, TransferSet | None]:
    """Each of the sets `names`, None for one that is not there at all.

    Raises RequestError for a set in part, a line of another form, and a class with fewer sentences than folds.
    """
    read = {name: _folded(files, name) if name in FOLDED else _split(files, name) for name in names}
    for name, each in read.items():
        if each is not None:
            _check_classes(name, each, folds)
    return read


def _folded(files: OfficialFiles, name: str) -> TransferSet | None:
    paths = _all_or_none(files, name, list(FOLDED[name].values()))
    if paths is None:
        return None
    by_class = {label: _sentences(path) for label, path in zip(FOLDED[name], paths, strict=True)}
    labels = [label for label, sentences in by_class.items() for _ in sentences]
    return TransferSet(Labelled([[each for sentences in by_class.values() for each in sentences]], np.array(labels)))


def _sentences(path: Path) -> list[str]:
    """A sentence in each line that is not blank."""
    lines = read_lines(path)
    sentences = [line for line in lines if line.strip()]
    if blank := len(lines) - len(sentences):
        log(f"{path}: left out {blank:,} blank lines of {len(lines):,}")
    if not sentences:
        raise RequestError(f"{path}: expected a sentence in each line, found blank ones alone. Copy the file again.")
    return sentences


def _split(files: OfficialFiles, name: str) -> TransferSet | None:
    paths = _all_or_none(files, name, list(SPLIT[name]))
    if paths is None:
        return None
    read = {"SST": _sentiment, "TREC": _questions, "MRPC": _paraphrases}[name]
    return TransferSet(*(_of_known_classes(read(path), name, path) for path in paths))


def _of_known_classes(read: Labelled, name: str, path: Path) -> Labelled:
    """What was read; raises RequestError for other classes, which another set of the same name may have."""
    others = np.flatnonzero(~np.isin(read.labels, CLASSES[name]))
    if len(others):
        raise RequestError(
            f"{path}, line {others[0] + 1 + HEADER_LINES.get(name, 0):,}: expected the classes of {name}, "
            f"{', '.join(CLASSES[name])}, found others in {len(others):,} of its lines. "
            "Is it another file of the same name?"
        )
    return read


def _all_or_none(files: OfficialFiles, name: str, wanted: list[str]) -> list[Path] | None:
    found = {file: files.find(file, within=WITHIN.get(name, "")) for file in wanted}
    missing = [file for file, path in found.items() if path is None]
    if missing and len(missing) < len(found):
        raise RequestError(f"{name}: expected {' and '.join(wanted)}, found no {missing[0]} below {files.data}")
    return None if missing else [path for path in found.values() if path]


def _sentiment(path: Path) -> Labelled:
    rows = fields_of(path, read_lines(path), "\t", 2, "a sentence and its class with a tab between them")
    return Labelled([[row[0] for row in rows]], np.array([row[1].strip() for row in rows]))


def _questions(path: Path) -> Labelled:
    """`NUM:date When did …`: the class is the word before the colon."""
    rows = fields_of(path, read_lines(path), " ", 2, "a class and a question with a space between them")
    return Labelled([[" ".join(row[1:]) for row in rows]], np.array([row[0].partition(":")[0] for row in rows]))


def _paraphrases(path: Path) -> Labelled:
    """After a header: whether it is one, two ids, two sentences, in the order that the header has."""
    lines = read_lines(path)
    head, *rows = fields_of(path, lines, "\t", 5, "a class, two ids and two sentences with tabs between them")
    if not set(PARAPHRASES) <= set(head):
        raise RequestError(
            f"{path}, line 1: expected the header, {', '.join(PARAPHRASES)} among its columns, found another line"
        )
    if not rows:
        raise RequestError(f"{path}: expected pairs after the header, found none. Copy the file again.")
    label, *sides = (head.index(name) for name in PARAPHRASES)
    return Labelled([[row[side] for row in rows] for side in sides], np.array([row[label] for row in rows]))


def _check_classes(name: str, read: TransferSet, folds: int) -> None:
    classes, counts = np.unique(read.train.labels, return_counts=True)
    if len(classes) < 2:
        raise RequestError(f"{name}: expected two classes or more to learn, found {len(classes)}. Check the files.")
    if read.test is None and counts.min() < folds:
        raise RequestError(
            f"{name}: expected at least {folds} sentences of each class, so that each of {folds} folds has one, found "
            f"{counts.min()} in one of them. Check the files, or ask for fewer folds."
        )
    untrained = sorted(set(read.test.labels) - set(classes)) if read.test else []
    if untrained:
        raise RequestError(
            f"{name}: expected the classes of its test part in its training part too, found no {', '.join(untrained)} "
            "there. Do both files belong together?"
        )


def transfer_metrics(sets: Mapping[str, TransferSet], encode: Encode, folds: int = 10, seed: int = 0) -> Metrics:
    """`senteval/<set>/accuracy` with its interval, F1 of MRPC beside it, and the mean accuracy of all seven."""
    metrics: Metrics = {}
    for name, each in sets.items():
        guesses, labels = guesses_of(each, encode, folds, seed)
        metrics |= with_interval(f"senteval/{name}/accuracy", share, guesses == labels)
        if name == "MRPC":
            metrics |= with_interval(f"senteval/{name}/f1", f1, guesses == PARAPHRASE, labels == PARAPHRASE)
    if set(SETS["senteval"]) <= sets.keys():
        accuracies = [metrics[f"senteval/{name}/accuracy"] for name in SETS["senteval"]]
        metrics["senteval/mean/accuracy"] = float(np.mean(np.array(accuracies, np.float64)))
    return metrics


def guesses_of(each: TransferSet, encode: Encode, folds: int, seed: int) -> tuple[NDArray[np.str_], NDArray[np.str_]]:
    """What is guessed of every tested item, (items,), and what it is."""
    trained, *tested = features_of([each.train, *([each.test] if each.test else [])], encode)
    if each.test is not None:
        return _guess(trained, each.train.labels, tested[0]), each.test.labels
    from sklearn.model_selection import StratifiedKFold

    labels, guesses = each.train.labels, np.empty_like(each.train.labels)
    for others, fold in StratifiedKFold(folds, shuffle=True, random_state=seed).split(trained, labels):
        guesses[fold] = _guess(trained[others], labels[others], trained[fold])
    return guesses, labels


def features_of(parts: Sequence[Labelled], encode: Encode) -> list[NDArray[np.float32]]:
    """Of each part the vectors of its sentences, (items, dim); of pairs |u − v| and u∗v side by side, (items, 2 · dim).

    All are encoded at once, as TF-IDF is another one for other sentences.
    """
    sides = [side for part in parts for side in part.sides]
    vectors = encode([sentence for side in sides for sentence in side])
    split = iter(np.split(vectors, np.cumsum([len(side) for side in sides])[:-1]))
    return [_of_sides([next(split) for _ in part.sides]) for part in parts]


def _of_sides(vectors: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    if len(vectors) == 1:
        return vectors[0]
    u, v = vectors  # (items, dim)
    return np.concatenate([np.abs(u - v), u * v], axis=1)


def _guess(features: NDArray[np.float32], labels: NDArray[np.str_], tested: NDArray[np.float32]) -> NDArray[np.str_]:
    from sklearn.linear_model import LogisticRegression

    guesses: NDArray[np.str_] = LogisticRegression(max_iter=MOST_STEPS).fit(features, labels).predict(tested)
    return guesses


def f1(guessed: Floats, right: Floats) -> float | None:
    """2 · both / (guessed + right), of zeros and ones; None where there is neither."""
    total = float(np.sum(guessed) + np.sum(right))
    return float(2 * np.sum(guessed * right) / total) if total else None
