"""The report of a stage, `report.json`."""

import pytest

from bertrelay.cache import Cache
from bertrelay.errors import RequestError
from bertrelay.report import (
    FILE,
    Headline,
    Html,
    Measure,
    Section,
    StageReport,
    Table,
    Text,
    counted,
    dots,
    identity,
    model_name,
    read_report,
    write_report,
)
from bertrelay.settings import ModelSource
from bertrelay.stage import StageContext

METRICS = {"a": 0.5, "a_low": 0.4, "a_high": 0.6, "b": 1.0, "b_low": 0.8, "b_high": 1.0, "c": None}
REPORT = StageReport(
    summary=["A model."],
    headlines=[Headline(title="F1", measure=Measure(value=0.5), metrics=["f1"], data="9 sentences")],
    sections=[
        Section(title="Quoted", blocks=[Html(html="<b>a name</b>")]),
        Section(title="Both", blocks=[Text(text="counts"), Table(columns=["a"], rows=[["a name"]], quotes=True)]),
    ],
)


@pytest.fixture
def context(tmp_path):
    return StageContext(tmp_path, Cache(tmp_path / "cache"))


def test_the_interval_of_a_mean_is_the_mean_of_the_intervals():
    mean = Measure.mean_of(METRICS, ["a", "b"], "both")
    assert (mean.value, mean.low, mean.high, mean.label) == (0.75, pytest.approx(0.6), 0.8, "both")
    assert Measure.mean_of(METRICS, ["a", "c"]).value is None
    assert Measure.mean_of(METRICS, []).value is None


def test_a_report_is_read_as_it_was_written(context):
    assert read_report(context.output) is None
    write_report(REPORT, context)
    assert read_report(context.output) == REPORT


def test_of_sensitive_data_nothing_that_quotes_it_is_written(tmp_path):
    context = StageContext(tmp_path, Cache(tmp_path / "cache"), sensitive=True)
    write_report(REPORT, context)
    assert "a name" not in (tmp_path / FILE).read_text()
    report = read_report(tmp_path)
    assert [section.title for section in report.sections] == ["Both"] and report.headlines == REPORT.headlines
    write_report(REPORT, context, with_text=True)
    assert read_report(tmp_path) == REPORT


def test_a_file_that_is_no_report_is_named_with_its_field(context):
    (context.output / FILE).write_text('{"headlines": [{"title": "F1"}]}')
    with pytest.raises(RequestError, match=r"report\.json: .* in headlines\.0\.measure: .* --force"):
        read_report(context.output)


def test_a_model_is_named_by_hub_id_folder_or_stage(tmp_path):
    for folder, name in (("runs/q/nli/74b500ffdfc1/model", "the model of the stage nli"), ("my-bert", "my-bert")):
        (tmp_path / folder).mkdir(parents=True)
        assert model_name(ModelSource.parse(str(tmp_path / folder))) == name
    assert model_name(ModelSource.parse("owner/name")) == "owner/name"
    assert model_name(None, "vectors of a file") == "vectors of a file"


def test_rows_without_a_measurement_are_left_out_of_a_dot_plot():
    plot = dots(METRICS, {"first": [("a", ""), ("c", "base")], "second": [("c", "")]}, "Both")
    assert {row: [measure.value for measure in measures] for row, measures in plot.rows.items()} == {"first": [0.5]}
    assert dots(METRICS, {"second": [("c", "")]}, "None") is None


def test_the_same_data_have_the_same_identity():
    assert identity("f1", [("a", 1)]) == identity("f1", [["a", 1]])
    assert len({identity("f1", ["a"]), identity("f1", ["b"]), identity("auroc", ["a"])}) == 3


def test_few_names_are_listed_and_many_counted():
    assert counted(["de"], "language", "languages") == "1 language (de)"
    assert counted(list("abcdefgh"), "language", "languages") == "8 languages"
