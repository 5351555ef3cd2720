"""What became of each stay, as the labels of an outcome."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bertrelay.errors import RequestError
from bertrelay.progress import log
from domain.clinical.cohorts.characteristics import CHARACTERISTICS
from domain.clinical.outcomes.diagnosis_groups import commonest, groups_of_stay, indicators
from domain.clinical.outcomes.outcome import DIAGNOSES, LENGTH_OF_STAY, Outcome

if TYPE_CHECKING:
    import pandas as pd

SHORT_DAYS, LONG_DAYS = 3, 7
Labels = tuple[tuple[str, ...], NDArray[np.bool_]]
"""The names of labels, and whether each is true of each stay, (stays, labels)."""


def labels_of(outcome: Outcome, stays: "pd.DataFrame", cohort: Path, groups: int) -> Labels:
    """The labels of `stays`, a row each; of diagnoses the `groups` commonest of train, from the folder `cohort`."""
    if outcome is LENGTH_OF_STAY:
        return outcome.labels, by_length(stays["length_of_stay_days"].to_numpy(np.float64))
    if outcome is DIAGNOSES:
        return _diagnoses(stays, cohort, groups)
    return outcome.labels, stays[list(outcome.labels)].to_numpy(np.bool_)


def by_length(days: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Under 3 days, 3 to 7, over 7: (stays, 3)."""
    return np.stack([days < SHORT_DAYS, (days >= SHORT_DAYS) & (days <= LONG_DAYS), days > LONG_DAYS], axis=1)


def _diagnoses(stays: "pd.DataFrame", cohort: Path, groups: int) -> Labels:
    import pandas as pd

    file = cohort / CHARACTERISTICS
    if not file.is_file():
        raise RequestError(f"cohort: expected the folder that domain.cohort wrote, found no {file.name} in {cohort}")
    codes = pd.read_parquet(file, columns=["hadm_id", "diagnoses"]).set_index("hadm_id")["diagnoses"]
    if codes.isna().all():
        raise RequestError(
            f"cohort: expected diagnoses in {file}, found none. Put the table DIAGNOSES_ICD beside the others and make "
            "the cohort again."
        )
    of_stays = [groups_of_stay(each) for each in codes.reindex(stays["hadm_id"])]
    uncoded = sum(not each for each in of_stays)
    if uncoded:
        log(f"diagnoses: {uncoded:,} of {len(of_stays):,} stays have no code of ICD-9 or ICD-10, and so no diagnosis")
    is_train = (stays["split"] == "train").tolist()
    names = commonest((each for each, wanted in zip(of_stays, is_train, strict=True) if wanted), groups)
    if not names:
        raise RequestError(
            f"cohort: expected groups of ICD-9 or ICD-10 in {file}, found none that ten stays of train have."
        )
    return names, indicators(of_stays, names)
