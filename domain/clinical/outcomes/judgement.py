"""What is settled on the validation admissions, and what the test admissions say of it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bertrelay.files import write_json
from bertrelay.progress import progress, say
from bertrelay.stage import Metrics
from domain.clinical.cohorts.characteristics import CHARACTERISTICS
from domain.clinical.cohorts.splits import SPLITS
from domain.clinical.outcomes.aggregation import aggregate, choose_c
from domain.clinical.outcomes.baselines import baselines
from domain.clinical.outcomes.classifier import save_model
from domain.clinical.outcomes.evaluation import (
    Judged,
    best_figures,
    best_temperature,
    calibrated,
    curves,
    figures,
    while_reading,
)
from domain.clinical.outcomes.measures import Floats, auroc_of, threshold_at_precision
from domain.clinical.outcomes.readmission_settings import ReadmissionModelSettings, ReadmissionSettings
from domain.clinical.outcomes.readmission_task import ReadmissionTask, Split
from domain.clinical.outcomes.slices import groups_of, slices
from domain.clinical.parquet import write_parquet

SCORES, CURVES, SLICES, FLOW = "scores.parquet", "curves.json", "slices.json", "flow.csv"
OURS = "model"


class Judgement:
    """The chunks of validation and test, read once, and all that follows from them."""

    def __init__(
        self, task: ReadmissionTask, settings: ReadmissionSettings, output: Path, risks: Floats | None = None
    ) -> None:
        """risks: the true ones, of all stays of `task.notes`, where they are known."""
        self.task, self.settings, self.output, self.risks = task, settings, output, risks
        self.notes = task.notes
        self.validation, self.test = task.of_split("validation"), task.of_split("test")
        with progress("reading chunks", len(self.validation.chunks) + len(self.test.chunks), "chunks") as bar:
            of_validation, self.of_test = (task.probabilities(each, bar) for each in (self.validation, self.test))
        self.how = self._settled(of_validation)
        self.before = self._aggregated(self.validation, of_validation)  # (validation admissions,)
        self.found = self._aggregated(self.test, self.of_test)  # (test admissions,)

    def _settled(self, of_chunks: Floats) -> ReadmissionModelSettings:
        """c, temperature and threshold, all from validation."""
        split, how = self.validation, self.task.readmission_model.settings
        if self.settings.c == "chosen":
            score = partial(auroc_of, outcomes=split.labels)
            how = how.model_copy(update={"c": choose_c(of_chunks, split.admissions, split.count, score)})
        found = aggregate(of_chunks, split.admissions, split.count, how.aggregation, how.c)
        settled = {
            "temperature": best_temperature(found, split.labels),
            "threshold": threshold_at_precision(found, split.labels),
        }
        return how.model_copy(update=settled)

    def _aggregated(self, split: Split, of_chunks: Floats) -> Floats:
        return aggregate(of_chunks, split.admissions, split.count, self.how.aggregation, self.how.c)

    def of_all(self) -> Metrics:
        """Writes everything; the figures."""
        save_model(replace(self.task.readmission_model, settings=self.how), self.output / "model")
        scores = [self._scores("validation", self.validation, self.before), self._scores("test", self.test, self.found)]
        write_parquet(self.output / SCORES, pd.concat(scores))
        ours = self._judged(self.found, calibrated(self.found, self.how.temperature))
        others, metrics = self._baselines()
        self._write_curves({OURS: ours, **others})
        self._write_slices(ours)
        self.notes.flow.write(self.output / FLOW)
        return figures(ours, self.how.threshold) | metrics | self._best(ours) | self._counts()

    def _judged(self, probability: Floats, calibrated_one: Floats | None = None) -> Judged:
        return Judged(self._column("subject_id").to_numpy(), self.test.labels, probability, calibrated_one)

    def _column(self, name: str) -> "pd.Series[Any]":
        """Of the test admissions."""
        return self.notes.table.loc[self.notes.is_in("test"), name]

    def _scores(self, name: str, split: Split, found: Floats) -> pd.DataFrame:
        columns = {
            "hadm_id": self.notes.table.loc[self.notes.is_in(name), "hadm_id"].to_numpy(),
            "probability": found,
            "calibrated": calibrated(found, self.how.temperature),
            "n_chunks": np.bincount(split.admissions, minlength=split.count).astype(np.int32),
            "readmitted": split.labels,
            "split": name,
        }
        return pd.DataFrame(columns)

    def _baselines(self) -> tuple[dict[str, Judged], Metrics]:
        """What the baselines tell of the test admissions, and their figures, as `auroc/tfidf`."""
        judged, metrics = dict[str, Judged](), Metrics()
        validation, test = self.notes.is_in("validation"), self.notes.is_in("test")
        is_test = test[validation | test]
        for name, probability in baselines(self.notes, validation | test):
            threshold = threshold_at_precision(probability[~is_test], self.validation.labels)
            judged[name] = self._judged(probability[is_test])
            metrics |= of_baseline(name, figures(judged[name], threshold))
        return judged, metrics

    def _write_curves(self, judged: Mapping[str, Judged]) -> None:
        reading = while_reading(self.of_test, self.test.admissions, self.test.labels, self.how)
        found = curves(judged) | {"while_reading": reading, "prevalence": float(self.test.labels.mean())}
        write_json(self.output / CURVES, found, compact=True)

    def _write_slices(self, ours: Judged) -> None:
        file = Path(self.settings.cohort) / CHARACTERISTICS
        if not file.is_file():
            say(f"there is no {CHARACTERISTICS} in the cohort: no figures by groups of patients")
            return
        known_of = pd.read_parquet(file).drop_duplicates("hadm_id").set_index("hadm_id")
        groups = groups_of(known_of.reindex(self._column("hadm_id")), self._column("characters").tolist())
        write_json(self.output / SLICES, {"slices": slices(groups, ours.probability, ours.readmitted, ours.subjects)})

    def _best(self, ours: Judged) -> Metrics:
        """The AUROC of the true risk, where it is known."""
        return {} if self.risks is None else best_figures(ours, self.risks[self.notes.is_in("test")])

    def _counts(self) -> Metrics:
        tokens, how = self.task.tokens, self.how
        splits = {f"admissions/{name}": float(self.notes.is_in(name).sum()) for name in SPLITS}
        chunks = {"chunks": float(len(tokens)), "lost_chunks": float(tokens.lost_chunks)}
        return {**splits, **chunks, "c": how.c, "temperature": how.temperature, "threshold": how.threshold}


def of_baseline(name: str, found: Metrics) -> Metrics:
    """The figures under the name of a baseline: `auroc_low` becomes `auroc/tfidf_low`."""
    named: Metrics = {}
    for figure, value in found.items():
        base, _, ending = figure.rpartition("_")
        is_border = ending in ("low", "high")
        named[f"{base}/{name}_{ending}" if is_border else f"{figure}/{name}"] = value
    return {figure: value for figure, value in named.items() if not figure.startswith("prevalence")}
