import numpy as np
import pandas as pd
import pytest
from hospital_tables import stay, write_hospital
from pydantic import ValidationError

from domain.clinical.cohort import balanced, run, split_of
from domain.clinical.settings import CohortSettings
from domain.draws import place


def cohort_of(folder, subjects, context, **settings):
    """Every subject has two stays, and every third one comes back in time."""
    stays = []
    for subject in subjects:
        later = 10 if subject % 3 == 0 else 90
        stays += [stay(subject, 10_000 + subject, 0, 4), stay(subject, 20_000 + subject, later, later + 2)]
    run(CohortSettings(mimic=str(write_hospital(folder, stays)), **settings), context)
    return pd.read_parquet(context.output / "cohort.parquet")


def test_subjects_that_are_added_move_nobody(tmp_path, context):
    before = cohort_of(tmp_path / "a", range(300), context).set_index("hadm_id")["split"]
    after = cohort_of(tmp_path / "b", range(-500, 900), context).set_index("hadm_id")["split"]
    assert set(before) == {"train", "validation", "test"}
    assert before.equals(after[before.index])


def test_all_stays_of_a_subject_are_in_one_split(tmp_path, context):
    cohort = cohort_of(tmp_path / "a", range(300), context)
    assert (cohort.groupby("subject_id")["split"].nunique() == 1).all()


def test_shares_are_those_asked_for():
    splits = [split_of(str(subject), "key", 0.2, 0.3) for subject in range(20_000)]
    for split, share in (("train", 0.5), ("validation", 0.2), ("test", 0.3)):
        deviation = np.sqrt(share * (1 - share) / 20_000)
        assert abs(splits.count(split) / 20_000 - share) < 4 * deviation


def test_a_larger_share_for_test_takes_from_others_and_gives_nothing_back():
    for subject in map(str, range(2_000)):
        if split_of(subject, "key", 0.1, 0.1) == "test":
            assert split_of(subject, "key", 0.1, 0.2) == "test"


def test_another_key_gives_another_split_and_the_same_key_the_same():
    places = [[place(str(subject), key) for subject in range(1_000)] for key in ("one", "two", "one")]
    assert places[0] == places[2]
    assert abs(np.corrcoef(places[0], places[1])[0, 1]) < 0.13  # four deviations


def test_balancing_touches_train_alone(tmp_path, context):
    natural = cohort_of(tmp_path / "a", range(300), context)
    evened = cohort_of(tmp_path / "b", range(300), context, balance_train=True)
    for split in ("validation", "test"):
        assert natural[natural["split"] == split].equals(
            evened[evened["split"] == split].set_axis(natural.index[natural["split"] == split])
        )
    train = evened[evened["split"] == "train"]
    positives = int(natural.loc[natural["split"] == "train", "readmitted"].sum())
    assert train["readmitted"].value_counts().to_dict() == {True: positives, False: positives}
    assert set(train["hadm_id"]) <= set(natural["hadm_id"])


def test_balancing_a_train_split_of_one_label_leaves_nothing_of_it():
    cohort = pd.DataFrame({"hadm_id": ["1", "2"], "split": ["train", "test"], "readmitted": [False, False]})
    assert list(balanced(cohort, "key")["hadm_id"]) == ["2"]


def test_shares_that_leave_nothing_to_train_on_are_refused(tmp_path):
    with pytest.raises(ValidationError, match="less than 1 together"):
        CohortSettings(mimic=str(tmp_path / "none"), validation_share=0.5, test_share=0.5)
