"""Baselines: on notes with words to count, and on notes without any."""

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from synthetic_patients import stays, write_stays

from domain.clinical.baselines import PENALTIES, baselines
from domain.clinical.outcomes import read_labelled_notes


def names_of(folder, table):
    write_stays(folder, table)
    notes = read_labelled_notes(folder / "notes", folder / "cohort")
    fitted = list(baselines(notes))
    assert all(np.isfinite(baseline.validation).all() and np.isfinite(baseline.test).all() for baseline in fitted)
    return [baseline.name for baseline in fitted]


def test_where_no_word_is_in_two_notes_there_is_no_baseline_of_words_and_it_is_reported(tmp_path, capsys):
    table = stays(40)
    assert names_of(tmp_path, table) == ["note_length", "tfidf"]
    assert "no word" not in capsys.readouterr().err
    assert names_of(tmp_path, table.assign(text=[f"word{n}" * (1 + n % 3) for n in range(40)])) == ["note_length"]
    assert "no word is in 2 notes of train: there is no TF-IDF baseline" in capsys.readouterr().err


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    folder = write_stays(tmp_path_factory.mktemp("stays"), stays(400))
    return read_labelled_notes(folder / "notes", folder / "cohort")


def test_permuted_labels_give_the_aurocs_of_a_pipeline_fitted_anew(notes):
    *_, tfidf = baselines(notes, permutations=20, seed=3)
    texts = {split: list(notes.texts(notes.is_in(split))) for split in ("train", "test")}
    outcomes, generator = notes.labels[notes.is_in("test"), 0], np.random.default_rng(3)
    candidates = []
    for _ in range(20):
        labels = notes.permuted_labels("train", generator)[:, 0]
        words = TfidfVectorizer(min_df=2, sublinear_tf=True, dtype=np.float32)
        fitted = [
            make_pipeline(words, LogisticRegression(C=c, max_iter=1_000)).fit(texts["train"], labels) for c in PENALTIES
        ]
        scores = [classifier.decision_function(texts["test"]) for classifier in fitted]
        candidates.append([roc_auc_score(outcomes, score) for score in scores])
    gaps = np.abs(np.array(candidates) - tfidf.permuted[:, None]).max(0)  # (penalties,)
    assert gaps.min() < 0.01 < np.sort(gaps)[1]  # of one penalty, but for near ties in float32


def test_labels_are_permuted_over_subjects_and_those_of_test_stay(notes):
    train, subjects = notes.is_in("train"), notes.table["subject_id"].to_numpy()
    shuffled = notes.with_shuffled_labels(1)
    for split in ("train", "validation"):
        before, after = (labelled.labels[notes.is_in(split)] for labelled in (notes, shuffled))
        assert before.sum() == after.sum() and (before != after).any()
    assert (shuffled.labels[notes.is_in("test")] == notes.labels[notes.is_in("test")]).all()
    _, numbers = np.unique(subjects[train], return_inverse=True)
    pairs = [
        np.bincount(np.bincount(numbers, labelled.labels[train, 0]).astype(int)).tolist()
        for labelled in (notes, shuffled)
    ]
    assert pairs[0] == pairs[1]  # as many subjects, of two stays each, with none, one and two returns
    generator = np.random.default_rng(0)
    means = np.mean([notes.permuted_labels("train", generator)[:, 0] for _ in range(500)], axis=0)
    assert means == pytest.approx(np.full(train.sum(), notes.labels[train].mean()), abs=0.1)  # nobody keeps their own
