"""The flow table of a cohort (CONSORT): how many admissions and subjects are left after every step."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from bertrelay.files import write_text

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("step", "admissions", "subjects")


@dataclass
class Flow:
    """Steps in their order, each with its counts; once stays are joined, an admission is such a stay."""

    steps: list[tuple[str, int, int]] = field(default_factory=list)

    def count(self, step: str, stays: "pd.DataFrame") -> "pd.DataFrame":
        """Notes what is left after `step`, and hands it on."""
        self.steps.append((step, len(stays), stays["subject_id"].nunique()))
        return stays

    def keep(self, step: str, stays: "pd.DataFrame", kept: "pd.Series[bool]") -> "pd.DataFrame":
        """Leaves out what is not `kept`, and notes what is left."""
        return self.count(step, stays[kept])

    def told(self) -> str:
        """`629 with ids, times and a hadm_id of their own; 575 not newborn; …`"""
        return "; ".join(f"{admissions:,} {step}" for step, admissions, _ in self.steps)

    def write(self, path: Path) -> None:
        """Writes the table as CSV."""
        text = StringIO()
        rows: Iterable[Iterable[object]] = [COLUMNS, *self.steps]
        csv.writer(text, lineterminator="\n").writerows(rows)
        write_text(path, text.getvalue())
