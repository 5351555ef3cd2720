"""The validation and test admissions as a model reads them, and what the validation admissions settle."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bertrelay.progress import progress
from bertrelay.stage import Metrics
from domain.clinical.cohorts.splits import SPLITS
from domain.clinical.outcomes.aggregation import aggregate_labels, choose_c
from domain.clinical.outcomes.baselines import Baseline, baselines
from domain.clinical.outcomes.measures import Floats, alarm_threshold, auroc_of, mean_of_known
from domain.clinical.outcomes.outcome import probability_column
from domain.clinical.outcomes.outcome_settings import LearningSettings, OutcomeModelSettings
from domain.clinical.outcomes.outcome_task import OutcomeTask, Split
from domain.clinical.outcomes.recalibration import calibrated, fit_recalibration


@dataclass(frozen=True)
class HeldOut:
    """The validation and test admissions as the model reads them, their chunks read once.

    how: what the validation admissions settled.
    validation_probabilities, test_probabilities: P of the admissions of each, (admissions, labels).
    test_chunk_probabilities: those of the test admissions' chunks, (chunks, labels).
    """

    task: OutcomeTask
    how: OutcomeModelSettings
    validation: Split
    test: Split
    validation_probabilities: Floats
    test_probabilities: Floats
    test_chunk_probabilities: Floats

    def column(self, name: str) -> "pd.Series[Any]":
        """Of the test admissions."""
        notes = self.task.notes
        return notes.table.loc[notes.is_in("test"), name]

    @property
    def subjects(self) -> NDArray[Any]:
        """Whose each test admission is."""
        return self.column("subject_id").to_numpy()

    def scores(self, name: str) -> pd.DataFrame:
        """The probabilities of a split beside what came of its admissions."""
        notes, how = self.task.notes, self.how
        validation, test = (self.validation, self.validation_probabilities), (self.test, self.test_probabilities)
        split, found = test if name == "test" else validation
        columns: dict[str, Any] = {"hadm_id": notes.table.loc[notes.is_in(name), "hadm_id"].to_numpy()}
        if how.outcome.kind == "binary":
            columns |= {"probability": found[:, 0], "calibrated": calibrated(found[:, 0], how.slope, how.intercept)}
        else:
            columns |= {probability_column(label): found[:, place] for place, label in enumerate(how.labels)}
        columns["n_chunks"] = np.bincount(split.admissions, minlength=split.count).astype(np.int32)
        columns["unknown_share"] = notes.table.loc[notes.is_in(name), "unknown_share"].to_numpy()
        columns |= {label: split.labels[:, place] for place, label in enumerate(how.labels)}
        return pd.DataFrame(columns | {"split": name})

    def counts(self) -> Metrics:
        """How many admissions and chunks there are, and what was settled."""
        notes, tokens, how = self.task.notes, self.task.tokens, self.how
        splits = {f"admissions/{name}": int(notes.is_in(name).sum()) for name in SPLITS}
        settled: Metrics = {"c": how.c}
        if how.outcome.kind == "binary":
            settled |= {"recalibration_slope": how.slope, "recalibration_intercept": how.intercept}
            settled |= {"threshold": how.threshold}
            settled |= {"threshold_alarms": how.alarms, "threshold_alarms_right": how.alarms_right}
        return {**splits, "chunks": len(tokens), "lost_chunks": tokens.lost_chunks, **settled}

    def baselines(self, permutations: int = 0, seed: int = 0) -> Iterator[Baseline]:
        """Each baseline, with the null test of so many permutations where the labels are of one kind."""
        return baselines(self.task.notes, permutations, seed)


def read_held_out(task: OutcomeTask, settings: LearningSettings) -> HeldOut:
    """Reads the chunks of both splits once, and settles c, recalibration and threshold on validation."""
    validation, test = task.of_split("validation"), task.of_split("test")
    with progress("reading chunks", len(validation.chunks) + len(test.chunks), "chunks") as bar:
        of_validation, of_test = (task.probabilities(each, bar) for each in (validation, test))
    how = _settled(task.outcome_model.settings, settings, validation, of_validation)
    validation_probabilities = aggregate_labels(of_validation, validation.admissions, validation.count, how)
    test_probabilities = aggregate_labels(of_test, test.admissions, test.count, how)
    return HeldOut(task, how, validation, test, validation_probabilities, test_probabilities, of_test)


def _settled(
    how: OutcomeModelSettings, settings: LearningSettings, split: Split, of_chunks: Floats
) -> OutcomeModelSettings:
    """c, and of a task that is true or not recalibration and threshold, all from validation."""

    def found(c: float) -> Floats:
        return aggregate_labels(of_chunks, split.admissions, split.count, how.model_copy(update={"c": c}))

    if settings.c == "chosen":
        how = how.model_copy(update={"c": choose_c(lambda c: mean_of_known(auroc_of, found(c), split.labels))})
    if how.outcome.kind != "binary":
        return how
    probability, outcomes = found(how.c)[:, 0], split.labels[:, 0]
    found_alarms = alarm_threshold(probability, outcomes, settings.alarm_precision, settings.minimum_alarms)
    settled: dict[str, Any] = {"alarm_precision": settings.alarm_precision}
    if found_alarms is not None:
        settled |= {"threshold": found_alarms.threshold}
        settled |= {"alarms": found_alarms.alarms, "alarms_right": found_alarms.right}
    return how.model_copy(update=settled | fit_recalibration(probability, outcomes)._asdict())
