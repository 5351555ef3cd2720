"""Runs side by side, and `bertrelay report`."""

import shutil

import pytest
from typer.testing import CliRunner

from bertrelay.errors import RequestError
from bertrelay.report import Dots, Headline, Measure, StageReport
from pipelines.cli.app import app
from pipelines.report.compare import write_comparison


@pytest.fixture
def runs(empty_run):
    """Two runs of one recipe, with other metrics."""
    folders = []
    for value in (0.8125, 0.6875):
        metrics = {"translation_accuracy/ko-en": value}
        measure, chart = Measure(value=value), Dots(title="Accuracy", rows={"ko": [Measure(value=value)]})
        headline = Headline(title="Accuracy", measure=measure, metrics=list(metrics), data="9 sentences", chart=chart)
        report = StageReport(summary=[f"A student of {value}."], headlines=[headline])
        empty_run.metrics.clear()
        empty_run.stages.clear()
        empty_run.add("test", metrics, kind="students.evaluate", report=report)
        empty_run.write()
        folders.append(empty_run.folder.with_name(f"run-{value}"))
        shutil.move(empty_run.folder, folders[-1])
        empty_run.folder.mkdir()
    return folders


def test_metrics_of_two_runs_stand_in_one_table_and_one_chart(runs, page, tmp_path):
    write_comparison(runs, tmp_path / "both.html")
    text = (tmp_path / "both.html").read_text(encoding="utf-8")
    read = page(text)
    assert "run-0.8125 run-0.6875 Accuracy, test 0.812 0.688" in read.text
    assert "A student of 0.8125." in read.text and "A student of 0.6875." in read.text
    assert "run-0.8125 · Vectors run-0.6875 · Vectors into English into English ko 0.812 0.688" in read.text
    [chart] = [value for name, value in read.attributes if name == "aria-label" and value.startswith("Accuracy.")]
    assert chart == "Accuracy. ko: run-0.8125 0.812, run-0.6875 0.688."


def test_one_run_the_same_run_twice_and_an_output_that_exists_are_refused(runs, tmp_path):
    output = tmp_path / "both.html"
    with pytest.raises(RequestError, match="expected the folders of at least two runs, found 1"):
        write_comparison(runs[:1], output)
    with pytest.raises(RequestError, match="expected different runs"):
        write_comparison([runs[0]] * 2, output)
    output.touch()
    with pytest.raises(RequestError, match="--overwrite"):
        write_comparison(runs, output)
    write_comparison(runs, output, overwrite=True)
    assert output.stat().st_size > 1000


def test_the_command_writes_the_report_again_and_a_comparison(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (runs[0] / "report.html").unlink()
    done = CliRunner().invoke(app, ["report", str(runs[0])])
    assert done.exit_code == 0 and done.output == f"report  {runs[0] / 'report.html'}\n"
    assert "0.812" in (runs[0] / "report.html").read_text(encoding="utf-8")
    done = CliRunner().invoke(app, ["report", *map(str, runs), "--compare", "--json"])
    assert done.exit_code == 0 and (tmp_path / "comparison.html").is_file()


def test_a_page_is_read_by_those_alone_who_may_read_its_runs(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for run, mode in zip(runs, (0o600, 0o644), strict=True):
        (run / "run.json").chmod(mode)
    assert CliRunner().invoke(app, ["report", *map(str, runs)]).exit_code == 0
    assert [(run / "report.html").stat().st_mode & 0o777 for run in runs] == [0o600, 0o644]
    assert CliRunner().invoke(app, ["report", *map(str, runs), "--compare"]).exit_code == 0
    assert (tmp_path / "comparison.html").stat().st_mode & 0o777 == 0o600
