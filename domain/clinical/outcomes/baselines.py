"""What a model has to beat: the length of the note alone, and words counted without their order."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertrelay.progress import progress, say
from domain.clinical.outcomes.labelled_notes import LabelledNotes
from domain.clinical.outcomes.measures import Flags, Floats, auroc_of

PENALTIES = (0.1, 1.0, 10.0)
"""Inverse strengths; the one with the highest validation AUROC is taken, label by label."""
FEWEST_NOTES = 2
MOST_WORDS = 100_000
ITERATIONS = 1_000


def baselines(notes: LabelledNotes, judged: Flags) -> Iterator[tuple[str, Floats]]:
    """The name of each baseline and its probabilities of the stays that are `judged`, (judged, labels).

    Fitted on train, for each label by itself; where exactly one is true, those of a stay are divided by their sum.
    There is no `tfidf` where no two notes of train have a word in common, which is told.
    """
    splits = notes.is_in("train"), notes.is_in("validation"), judged
    lengths = np.log1p(notes.table["characters"].to_numpy(np.float64))[:, None]  # (stays, 1)
    by_length = [make_pipeline(StandardScaler(), LogisticRegression())]
    yield "note_length", _of_labels(notes, by_length, *(lengths[split] for split in splits))
    words = TfidfVectorizer(min_df=FEWEST_NOTES, max_features=MOST_WORDS, sublinear_tf=True, dtype=np.float32)
    try:
        words.fit(notes.texts(splits[0]))
    except ValueError:
        say(f"no word stands in {FEWEST_NOTES} notes of train: there is no baseline of counted words")
        return
    by_words = [LogisticRegression(C=c, max_iter=ITERATIONS) for c in PENALTIES]
    yield "tfidf", _of_labels(notes, by_words, *(words.transform(notes.texts(split)) for split in splits))


def _of_labels(notes: LabelledNotes, classifiers: list[Any], train: Any, validation: Any, judged: Any) -> Floats:
    """What the best of `classifiers` tells of each label, (judged, labels); the features are (stays, features)."""
    found = np.empty((judged.shape[0], len(notes.names)))
    with progress("fitting baselines", len(notes.names), "labels") as bar:
        for label in range(len(notes.names)):
            outcomes = [notes.labels[notes.is_in(split), label] for split in ("train", "validation")]
            found[:, label] = _of_label(classifiers, (train, validation), outcomes)(judged)
            bar.advance()
    return found / found.sum(1, keepdims=True) if notes.outcome.kind == "multi-class" else found


def _of_label(classifiers: list[Any], features: tuple[Any, Any], outcomes: list[Flags]) -> Callable[[Any], Floats]:
    """A function that gives probabilities, by the classifier with the highest validation AUROC."""
    (train, validation), (learnt, held_out) = features, outcomes
    if learnt.all() or not learnt.any():  # nothing to tell apart
        return lambda judged: np.full(judged.shape[0], float(learnt.all()))
    fitted = [clone(each).fit(train, learnt) for each in classifiers]
    scores = [auroc_of(each.predict_proba(validation)[:, 1], held_out) or 0.0 for each in fitted]
    best = fitted[int(np.argmax(scores))]
    return lambda judged: best.predict_proba(judged)[:, 1]
