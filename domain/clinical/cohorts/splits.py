"""Which split a subject is in: a function of the subject and a key alone, so that nobody moves when others come."""

from typing import TYPE_CHECKING

from domain.places import place

if TYPE_CHECKING:
    import pandas as pd

SPLITS = ("train", "validation", "test")


def split_of(subject: str, key: str, validation_share: float, test_share: float) -> str:
    """`train`, `validation` or `test`."""
    where = place(subject, key)
    if where < test_share:
        return "test"
    return "validation" if where < test_share + validation_share else "train"


def balanced(cohort: "pd.DataFrame", key: str) -> "pd.DataFrame":
    """The cohort with as many stays of one label as of the other in train: those that the keyed hash places first."""
    places = cohort["hadm_id"].map(lambda hadm_id: place(hadm_id, key))
    train = cohort["split"] == "train"
    fewest = int(cohort.loc[train, "readmitted"].value_counts().reindex([True, False], fill_value=0).min())
    rank = places.groupby([cohort["split"], cohort["readmitted"]]).rank(method="first")
    return cohort[~train | (rank <= fewest)]
