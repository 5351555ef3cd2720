"""The report of a student's training."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertrelay.report import Measure, Section, StageReport, Table, counted

CURVE_ROWS = 20


def training_report(
    teacher: str, base: str, facts: Mapping[str, Any], curve: Sequence[Mapping[str, float]] = ()
) -> StageReport:
    """The report of a student's training.

    teacher, base: in words. facts: the content of `corpus.json`. curve: the rows of `learning_curve.json`.
    """
    languages, pairs = list(facts["train"]), sum(facts["train"].values())
    summary = [
        f"A student, started from {base}, learned to give sentences in {counted(languages, 'language', 'languages')} "
        "the vectors of their English, for search and comparison across languages.",
        f"Its teacher is {teacher}; it was trained on {pairs:,} pairs of translations.",
    ]
    if english := facts.get("english_without_translations"):
        summary[1] = f"{summary[1][:-1]} and {english:,} English sentences without a translation."
    sections = [Section(title="Learning curve", blocks=[_curve_table(curve)])] if curve else []
    return StageReport(summary=summary, sections=sections)


def _curve_table(curve: Sequence[Mapping[str, float]]) -> Table:
    """The nearness of a student to its teacher by the sentences seen, in at most CURVE_ROWS rows, the last included."""
    names = [name for name in curve[-1] if name not in ("step", "sentences")]
    rows: list[list[str | Measure]] = [
        [f"{row['step']:,}", f"{row['sentences']:,}", *(Measure(value=row.get(name)) for name in names)]
        for row in curve[::-1][:: -(-len(curve) // CURVE_ROWS)][::-1]
    ]
    caption = "Nearness to the teacher on held-out sentences, by the sentences seen"
    return Table(columns=["Step", "Sentences", *names], rows=rows, caption=caption, texts=0)
