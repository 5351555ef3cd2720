"""What a model has to beat: the length of the note alone, and words counted without their order."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from domain.clinical.outcomes.labelled_notes import LabelledNotes
from domain.clinical.outcomes.measures import auroc_of

PENALTIES = (0.1, 1.0, 10.0)
"""Inverse strengths; the one with the highest validation AUROC is taken."""
FEWEST_NOTES = 2
MOST_WORDS = 100_000
ITERATIONS = 1_000

Floats = NDArray[np.float64]


def baselines(notes: LabelledNotes, judged: NDArray[np.bool_]) -> Iterator[tuple[str, Floats]]:
    """The name of each baseline and its probabilities of the stays that are `judged`, (judged,); fitted on train."""
    train, labels = notes.is_in("train"), notes.readmitted
    lengths = np.log1p(notes.table["characters"].to_numpy(np.float64))[:, None]  # (stays, 1)
    by_length = make_pipeline(StandardScaler(), LogisticRegression()).fit(lengths[train], labels[train])
    yield "note_length", by_length.predict_proba(lengths[judged])[:, 1]
    yield "tfidf", _tfidf(notes)(judged)


def _tfidf(notes: LabelledNotes) -> Any:
    """A function that gives the probabilities of the stays asked for: logistic regression on TF-IDF of words."""
    words = TfidfVectorizer(min_df=FEWEST_NOTES, max_features=MOST_WORDS, sublinear_tf=True, dtype=np.float32)
    train, validation, labels = notes.is_in("train"), notes.is_in("validation"), notes.readmitted
    counts, held_out = words.fit_transform(notes.texts(train)), words.transform(notes.texts(validation))
    fitted = [LogisticRegression(C=c, max_iter=ITERATIONS).fit(counts, labels[train]) for c in PENALTIES]
    scores = [auroc_of(each.predict_proba(held_out)[:, 1], labels[validation]) or 0.0 for each in fitted]
    best = fitted[int(np.argmax(scores))]
    return lambda judged: best.predict_proba(words.transform(notes.texts(judged)))[:, 1]
