"""SentEval (Conneau & Kiela 2018): logistic regression on frozen vectors.

The score is the accuracy on sentences outside the training: in ten folds where a set has no test part, else on its
official split. The regularisation is the same everywhere and nothing is selected on dev data, so the dev part of SST
is not read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertrelay.errors import RequestError
from bertrelay.evaluation.encode import Encode
from bertrelay.evaluation.statistics import Floats, share, with_interval
from bertrelay.progress import log
from bertrelay.stage import Metrics
from teachers.sbert_paper.official import OfficialFiles, read_fields, read_lines
from teachers.sbert_paper.settings import SETS

FOLDED = {
    "MR": {"positive": "rt-polarity.pos", "negative": "rt-polarity.neg"},
    "CR": {"positive": "custrev.pos", "negative": "custrev.neg"},
    "SUBJ": {"objective": "subj.objective", "subjective": "subj.subjective"},
    "MPQA": {"positive": "mpqa.pos", "negative": "mpqa.neg"},
}
"""Files of the sets without a test part, by class: a sentence in each line."""

SPLIT = {
    "SST": ("sentiment-train", "sentiment-test"),
    "TREC": ("train_5500.label", "TREC_10.label"),
    "MRPC": ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt"),
}
"""Files of the other sets: training and test."""

CLASSES = {
    "SST": ("0", "1"),
    "TREC": ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
    "MRPC": ("0", "1"),
}
"""Classes in the files of `SPLIT`."""

WITHIN = {"SST": "binary"}  # folders: SentEval has SST with five classes under the same names
PARAPHRASES = ("#1 String", "#2 String", "Quality")
"""The columns of MRPC that are used: two sentences and the class."""
PARAPHRASE = "1"
MOST_STEPS = 1_000


@dataclass(frozen=True)
class Labelled:
    """Sentences, or first and second sentences of pairs, and the class of each, (items,)."""

    sentences: list[list[str]]
    labels: NDArray[np.str_]


@dataclass(frozen=True)
class TransferSet:
    """Training and test data; without a test part, each fold is tested by training on the others."""

    train: Labelled
    test: Labelled | None = None


def read_sets(files: OfficialFiles, names: Sequence[str], folds: int) -> dict[str, TransferSet | None]:
    """Reads each of the sets `names`; None for one without any of its files.

    Raises RequestError for an incomplete set, a line of another form, and a class with fewer sentences than folds.
    """
    sets = dict[str, TransferSet | None].fromkeys(names)
    for name in names:
        file_names = FOLDED[name].values() if name in FOLDED else SPLIT[name]
        if paths := files.all_or_none(name, *file_names, within=WITHIN.get(name, "")):
            parts = [_by_class(name, paths)] if name in FOLDED else [_part(name, path) for path in paths]
            sets[name] = TransferSet(*parts)
            _check_classes(name, *parts, folds=folds)
    return sets


def _by_class(name: str, paths: Sequence[Path]) -> Labelled:
    """Reads a file for each class, with a sentence in each line that is not blank."""
    sentences, labels = [], []
    for label, path in zip(FOLDED[name], paths, strict=True):
        lines = read_lines(path)
        of_class = [line for line in lines if line.strip()]
        if len(of_class) < len(lines):
            log(f"{path}: left out {len(lines) - len(of_class):,} blank lines of {len(lines):,}")
        if not of_class:
            raise RequestError(f"{path}: expected a sentence in each line, found blank lines only. Copy it again.")
        sentences += of_class
        labels += [label] * len(of_class)
    return Labelled([sentences], np.array(labels))


def _part(name: str, path: Path) -> Labelled:
    """Reads a file with the class of each item. Raises RequestError for other classes, as of a set of the same name."""
    items: list[tuple[str, ...]]
    first_line = 1
    if name == "SST":
        rows = read_fields(path, "\t", 2, "a sentence and its class with a tab between them")
        items = [(sentence, label.strip()) for sentence, label, *_ in rows]
    elif name == "TREC":  # `NUM:date When did …`: the class is the word before the colon
        rows = read_fields(path, " ", 2, "a class and a question with a space between them")
        items = [(" ".join(words), label.partition(":")[0]) for label, *words in rows]
    else:
        items, first_line = _paraphrases(path), 2
    *sentences, labels = zip(*items, strict=True)
    others = [row for row, label in enumerate(labels) if label not in CLASSES[name]]
    if others:
        raise RequestError(
            f"{path}, line {others[0] + first_line:,}: expected the classes of {name}, {', '.join(CLASSES[name])}, "
            f"found others in {len(others):,} of its lines. Is it another file of the same name?"
        )
    return Labelled([list(column) for column in sentences], np.array(labels))


def _paraphrases(path: Path) -> list[tuple[str, ...]]:
    """Reads two sentences and the class of each row, from columns that the header names in any order."""
    head, *rows = read_fields(path, "\t", 5, "a class, two ids and two sentences with tabs between them")
    if not set(PARAPHRASES) <= set(head):
        raise RequestError(
            f"{path}, line 1: expected the header, Quality, #1 String, #2 String among its columns, found another line"
        )
    if not rows:
        raise RequestError(f"{path}: expected pairs after the header, found none. Copy the file again.")
    columns = [head.index(name) for name in PARAPHRASES]
    return [tuple(row[column] for column in columns) for row in rows]


def _check_classes(name: str, train: Labelled, test: Labelled | None = None, *, folds: int) -> None:
    classes, counts = np.unique(train.labels, return_counts=True)
    if len(classes) < 2:
        raise RequestError(f"{name}: expected two classes or more to learn, found {len(classes)}. Check the files.")
    if test is None and counts.min() < folds:
        raise RequestError(
            f"{name}: expected at least {folds} sentences of each class, so that each of {folds} folds has one, found "
            f"{counts.min()} in one of them. Check the files, or ask for fewer folds."
        )
    untrained = sorted(set(test.labels) - set(classes)) if test else []
    if untrained:
        raise RequestError(
            f"{name}: expected the classes of its test part in its training part too, found no {', '.join(untrained)} "
            "there. Do both files belong together?"
        )


def transfer_metrics(sets: Mapping[str, TransferSet], encode: Encode, folds: int = 10, seed: int = 0) -> Metrics:
    """Computes `senteval/<set>/accuracy` with its interval, F1 of MRPC too, and the mean accuracy of all seven."""
    metrics: Metrics = {}
    for name, transfer_set in sets.items():
        predictions, labels = _predict(transfer_set, encode, folds, seed)
        metrics |= with_interval(f"senteval/{name}/accuracy", share, predictions == labels)
        if name == "MRPC":
            metrics |= with_interval(f"senteval/{name}/f1", f1, predictions == PARAPHRASE, labels == PARAPHRASE)
    if set(SETS["senteval"]) <= sets.keys():
        accuracies = [metrics[f"senteval/{name}/accuracy"] for name in SETS["senteval"]]
        metrics["senteval/mean/accuracy"] = float(np.mean(np.array(accuracies, np.float64)))
    return metrics


def _predict(
    transfer_set: TransferSet, encode: Encode, folds: int, seed: int
) -> tuple[NDArray[np.str_], NDArray[np.str_]]:
    """Returns the predicted and the actual class of every tested item, (items,) each."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    model, labels = LogisticRegression(max_iter=MOST_STEPS), transfer_set.train.labels
    if transfer_set.test is not None:
        train, test = _features([transfer_set.train, transfer_set.test], encode)
        return model.fit(train, labels).predict(test), transfer_set.test.labels
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return cross_val_predict(model, *_features([transfer_set.train], encode), labels, cv=split), labels


def _features(parts: Sequence[Labelled], encode: Encode) -> list[NDArray[np.float32]]:
    """Encodes the sentences of each part, (items, dim); pairs as |u − v| and u∗v side by side, (items, 2 · dim).

    All are encoded in one call, as TF-IDF depends on the sentences.
    """
    columns = [column for part in parts for column in part.sentences]
    vectors = np.split(
        encode([sentence for column in columns for sentence in column]), np.cumsum([len(column) for column in columns])
    )
    if len(parts[0].sentences) == 1:
        return vectors[: len(parts)]
    pairs = zip(vectors[:-1:2], vectors[1::2], strict=True)  # (items, dim) each
    return [np.concatenate([np.abs(u - v), u * v], axis=1) for u, v in pairs]


def f1(predicted: Floats, actual: Floats) -> float | None:
    """Computes 2 · both / (predicted + actual) of zeros and ones; None without a one."""
    total = float(np.sum(predicted) + np.sum(actual))
    return float(2 * np.sum(predicted * actual) / total) if total else None
