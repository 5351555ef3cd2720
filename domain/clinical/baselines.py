"""Baselines for an outcome model: the length of the note alone, and TF-IDF."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertrelay.progress import log, progress
from domain.clinical.labelled_notes import LabelledNotes
from domain.clinical.metrics import Flags, Floats, auroc_of

PENALTIES = (0.1, 1.0, 10.0)
"""Inverse strengths; the one with the highest validation AUROC is taken, label by label."""
FEWEST_NOTES = 2
MOST_WORDS = 100_000
ITERATIONS = 1_000


@dataclass(frozen=True)
class Baseline:
    """A baseline and its probabilities, (stays, labels).

    permuted: its AUROC on test when it is fitted to permuted labels of train, (permutations,).
    """

    name: str
    validation: Floats
    test: Floats
    permuted: Floats = field(default_factory=lambda: np.zeros(0))


def baselines(notes: LabelledNotes, permutations: int = 0, seed: int = 0) -> Iterator[Baseline]:
    """Each baseline, fitted on train, for each label by itself; where exactly one is true, P are divided by their sum.

    There is no `tfidf` where no two notes of train have a word in common, which is logged. `permutations` are of
    `tfidf`, of a binary task.
    """
    splits = [notes.is_in(name) for name in ("train", "validation", "test")]
    lengths = np.log1p(notes.table["characters"].to_numpy(np.float64))[:, None]  # (stays, 1)
    of_splits = [lengths[split] for split in splits]
    by_length = _fitted(notes, [make_pipeline(StandardScaler(), LogisticRegression())], of_splits)
    yield Baseline("note_length", *_held_out(notes, by_length, of_splits))
    words = TfidfVectorizer(min_df=FEWEST_NOTES, max_features=MOST_WORDS, sublinear_tf=True, dtype=np.float32)
    try:
        words.fit(notes.texts(splits[0]))
    except ValueError:
        log(f"no word is in {FEWEST_NOTES} notes of train: there is no TF-IDF baseline")
        return
    of_splits = [words.transform(notes.texts(split)) for split in splits]
    by_words = _fitted(notes, [LogisticRegression(C=c, max_iter=ITERATIONS) for c in PENALTIES], of_splits)
    is_binary = notes.outcome.kind == "binary"
    permuted = _permuted_aurocs(notes, by_words[0], of_splits, permutations if is_binary else 0, seed)
    yield Baseline("tfidf", *_held_out(notes, by_words, of_splits), permuted)


def _fitted(notes: LabelledNotes, classifiers: Sequence[Any], features: Sequence[Any]) -> list[Any]:
    """The best of `classifiers` for each label, by validation AUROC; the share of a label that is true of all or none.

    features: of train and validation, and more, each (stays, features).
    """
    found = []
    with progress("fitting baselines", len(notes.names), "labels") as bar:
        for label in range(len(notes.names)):
            outcomes = [notes.labels[notes.is_in(split), label] for split in ("train", "validation")]
            found.append(_best(classifiers, features, outcomes))
            bar.advance()
    return found


def _best(classifiers: Sequence[Any], features: Sequence[Any], outcomes: Sequence[Flags]) -> Any:
    train, validation, *_ = features
    train_outcomes, held_out = outcomes
    if train_outcomes.all() or not train_outcomes.any():  # of one class
        return float(train_outcomes.all())
    fitted = [clone(each).fit(train, train_outcomes) for each in classifiers]
    scores = [auroc_of(each.predict_proba(validation)[:, 1], held_out) or 0.0 for each in fitted]
    return fitted[int(np.argmax(scores))]


def _held_out(notes: LabelledNotes, fitted: Sequence[Any], features: Sequence[Any]) -> tuple[Floats, Floats]:
    _, validation, test = features
    return _probabilities(notes, fitted, validation), _probabilities(notes, fitted, test)


def _probabilities(notes: LabelledNotes, fitted: Sequence[Any], features: Any) -> Floats:
    """The probabilities of the classifiers of the labels, (stays, labels)."""
    of_labels = [
        np.full(features.shape[0], each) if isinstance(each, float) else each.predict_proba(features)[:, 1]
        for each in fitted
    ]
    found: Floats = np.stack(of_labels, axis=1)
    return found / found.sum(1, keepdims=True) if notes.outcome.kind == "multi-class" else found


def _permuted_aurocs(
    notes: LabelledNotes, fitted: Any, features: Sequence[Any], permutations: int, seed: int
) -> Floats:
    """The AUROC on test of the same classifier, fitted to labels of train permuted over subjects, (permutations,)."""
    train, *_, test = features
    outcomes, generator = notes.labels[notes.is_in("test"), 0], np.random.default_rng(seed)
    found = np.full(permutations, np.nan)
    with progress("fitting permuted labels", permutations, "permutations") as bar:
        for place in range(permutations):
            labels = notes.permuted_labels("train", generator)[:, 0]
            scores = clone(fitted).fit(train, labels).decision_function(test)
            found[place] = auroc_of(scores, outcomes)
            bar.advance()
    return found
