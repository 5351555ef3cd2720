"""Baselines for an outcome model: the length of the note, and TF-IDF."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertrelay.progress import log, progress
from domain.clinical.metrics import Floats, auroc_of
from domain.clinical.outcomes import LabelledNotes

PENALTIES = (0.1, 1.0, 10.0)
"""Inverse strengths; the one with the highest validation AUROC is taken, label by label."""
FEWEST_NOTES = 2
MOST_WORDS = 100_000
ITERATIONS = 1_000


@dataclass(frozen=True)
class Baseline:
    """A baseline and its probabilities, (stays, labels).

    classifiers: of each label. permuted: its AUROC on test when it is fitted to permuted labels of train,
        (permutations,).
    """

    name: str
    validation: Floats
    test: Floats
    classifiers: Sequence[Any] = ()
    permuted: Floats = field(default_factory=lambda: np.zeros(0))


def baselines(notes: LabelledNotes, permutations: int = 0, seed: int = 0) -> Iterator[Baseline]:
    """Yields each baseline, fitted on train, for each label by itself.

    Where exactly one label is true, probabilities are divided by their sum. There is no `tfidf` where no two notes of
    train have a word in common, which is logged. `permutations` are of `tfidf`, of a binary task.
    """
    splits = [notes.is_in(name) for name in ("train", "validation", "test")]
    lengths = np.log1p(notes.table["characters"].to_numpy(np.float64))[:, None]  # (stays, 1)
    by_length = make_pipeline(StandardScaler(), LogisticRegression())
    yield _fitted("note_length", notes, [by_length], [lengths[split] for split in splits])
    words = TfidfVectorizer(min_df=FEWEST_NOTES, max_features=MOST_WORDS, sublinear_tf=True, dtype=np.float32)
    try:
        words.fit(notes.texts(splits[0]))
    except ValueError:
        log(f"no word is in {FEWEST_NOTES} notes of train: there is no TF-IDF baseline")
        return
    features = [words.transform(notes.texts(split)) for split in splits]
    candidates = [LogisticRegression(C=c, max_iter=ITERATIONS) for c in PENALTIES]
    tfidf = _fitted("tfidf", notes, candidates, features)
    yield replace(tfidf, permuted=_permuted_aurocs(notes, tfidf.classifiers[0], features, permutations, seed))


def _fitted(name: str, notes: LabelledNotes, candidates: Sequence[Any], features: Sequence[Any]) -> Baseline:
    """The best of `candidates` for each label, by validation AUROC.

    features: of train, validation and test, each (stays, features).
    """
    train, validation, test = features
    classifiers = []
    with progress("fitting baselines", len(notes.names), "labels") as bar:
        for label in range(len(notes.names)):
            outcomes, held_out = (notes.labels[notes.is_in(split), label] for split in ("train", "validation"))
            if outcomes.all() or not outcomes.any():
                fitted = [DummyClassifier(strategy="prior").fit(train, outcomes)]
            else:
                fitted = [clone(candidate).fit(train, outcomes) for candidate in candidates]
            scores = [auroc_of(_probability(candidate, validation), held_out) or 0.0 for candidate in fitted]
            classifiers.append(fitted[int(np.argmax(scores))])
            bar.advance()
    splits = [
        np.stack([_probability(classifier, split) for classifier in classifiers], axis=1)
        for split in (validation, test)
    ]
    if notes.outcome.kind == "multi-class":
        splits = [probabilities / probabilities.sum(1, keepdims=True) for probabilities in splits]
    return Baseline(name, splits[0], splits[1], classifiers)


def _probability(classifier: Any, features: Any) -> Floats:
    """The probability that a label is true, (stays,)."""
    probability: Floats = classifier.predict_proba(features) @ classifier.classes_.astype(np.float64)
    return probability


def _permuted_aurocs(
    notes: LabelledNotes, fitted: Any, features: Sequence[Any], permutations: int, seed: int
) -> Floats:
    """The AUROC on test of the same classifier, fitted to labels of train permuted over subjects, (permutations,)."""
    train, *_, test = features
    outcomes, generator = notes.labels[notes.is_in("test"), 0], np.random.default_rng(seed)
    aurocs = np.full(permutations, np.nan)
    with progress("fitting permuted labels", permutations, "permutations") as bar:
        for number in range(permutations):
            labels = notes.permuted_labels("train", generator)[:, 0]
            scores = clone(fitted).fit(train, labels).decision_function(test)
            aurocs[number] = roc_auc_score(outcomes, scores)
            bar.advance()
    return aurocs
