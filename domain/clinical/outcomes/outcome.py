"""What can be told of a stay from its notes, a description each: all else is the same for every one of them.

This room loads nothing heavy.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["binary", "multi-class", "multi-label"]
OutcomeName = Literal["readmission", "mortality", "length-of-stay", "diagnoses"]


@dataclass(frozen=True)
class Outcome:
    """A task.

    told: what its probabilities are of, for people.
    kind: which figures it is judged by. A binary one has a label that is true or not, and is judged by AUROC, AUPRC,
        recall at a precision and calibration; of a multi-class one exactly one label is true: macro AUROC, each label
        against the rest, and accuracy; of a multi-label one any: macro and micro AUROC.
    labels: their names; none where they are chosen on the train split.
    early_only: whether it is asked of early notes alone, and of all stays, those that end in death among them, since a
        discharge summary gives it away. Else it is asked of the stays of the cohort.
    """

    name: OutcomeName
    told: str
    kind: Kind
    labels: tuple[str, ...]
    early_only: bool = True


READMISSION = Outcome(
    "readmission",
    "that an unplanned admission begins within 30 days of discharge",
    "binary",
    ("readmitted",),
    early_only=False,
)
MORTALITY = Outcome("mortality", "that the patient dies in hospital", "binary", ("died_in_hospital",))
LENGTH_OF_STAY = Outcome(
    "length-of-stay", "of how long the stay lasts", "multi-class", ("under_3_days", "3_to_7_days", "over_7_days")
)
DIAGNOSES = Outcome("diagnoses", "of the diagnoses that the stay is coded with", "multi-label", ())

OUTCOMES: dict[str, Outcome] = {
    outcome.name: outcome for outcome in (READMISSION, MORTALITY, LENGTH_OF_STAY, DIAGNOSES)
}


def probability_column(label: str) -> str:
    """What a table of scores calls the probability of one of several labels."""
    return f"probability/{label}"


def in_words(label: str) -> str:
    """`died in hospital` for `died_in_hospital`."""
    return label.replace("_", " ")
