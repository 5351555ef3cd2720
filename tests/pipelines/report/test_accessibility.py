"""Accessibility of a report by axe-core in a browser; skipped without `AXE`, the path of its `axe.min.js`."""

import os
from pathlib import Path

import pytest

from bertrelay.report import Dots, Headline, Measure, Section, StageReport, Table
from scripts.check_accessibility import SERIOUS, browser, faults

AXE = Path(os.environ.get("AXE", ""))
pytestmark = pytest.mark.skipif(not AXE.is_file() or browser() is None, reason="needs a browser and axe-core")


def serious(path, **options):
    return [fault["id"] for fault in faults(path, AXE, **options) if fault["impact"] in SERIOUS]


def test_a_report_has_no_serious_fault_and_a_page_with_one_is_found_out(empty_run):
    chart = Dots(title="F1", rows={"ko": [Measure(value=0.5, low=0.4, high=0.6), Measure(value=0.25, label="base")]})
    headline = Headline(title="F1", measure=Measure(value=0.5), metrics=["f1"], data="9 rows", chart=chart)
    table = Table(columns=["", "n"], rows=[["ko", "9"]], caption="Counts")
    section = Section(title="Counts", blocks=[table])
    report = StageReport(summary=["A model."], headlines=[headline], sections=[section])
    empty_run.add("test", {"f1": 0.5}, report=report, metrics=[{"step": 1, "loss": 2.0}])
    text = empty_run.write()
    page = empty_run.folder / "report.html"
    assert serious(page) == serious(page, width=390, is_dark=True) == []
    page.write_text(text.replace("</main>", '<img src="data:,"></main>'), encoding="utf-8")
    assert serious(page) == ["image-alt"]
