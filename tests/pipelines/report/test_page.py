"""The page of a run."""

import re

import pytest

from bertrelay.errors import RequestError
from bertrelay.report import Headline, Html, Matrix, Measure, Picture, Section, StageReport, Table, Text
from pipelines.report.page import write_report

MATRIX = Matrix(title="Similarity", rows=["A <b>dog</b>."], columns=["강아지 & Hund"], values=[[0.875]])
SIMILAR = StageReport(sections=[Section(title="Similarity", blocks=[MATRIX])])


@pytest.fixture
def run(empty_run):
    """A run of two stages."""
    losses = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    empty_run.add("teacher", {"dev/accuracy": 0.75}, metrics=losses)
    evaluated = {"translation_accuracy/en-ko": 0.9375}
    empty_run.add("evaluation", evaluated, kind="students.evaluate", report=SIMILAR)
    return empty_run


def test_the_page_has_scores_curves_similarity_stages_and_settings_and_needs_no_network_and_no_scripts(run, page):
    text = run.write()
    read = page(text)
    texts = ("small & quick", "0.938", "강아지 & Hund", "0.88", "Loss", "1 min 15 s", "teacherxxx00", "3e-05", "torch")
    assert all(words in read.text for words in texts)
    assert read.tags.count("svg") == 2
    assert not {"script", "link", "img", "iframe", "object", "embed", "form"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on") or name in ("src", "srcset", "action")]
    assert all(value.startswith("#") for name, value in read.attributes if name.endswith("href"))
    assert not re.search(r"url\((?!#)|@import", text)


def test_every_link_of_the_contents_has_a_target_in_a_folded_part_and_every_picture_an_alternative(run, page):
    text = run.write()
    attributes = page(text).attributes
    links = [value[1:] for name, value in attributes if name == "href"]
    assert set(links) <= {value for name, value in attributes if name == "id"} and len(links) >= 4
    assert all(text.index(f'id="{link}"') > text.index("<details") for link in links)
    pictures = re.findall(r"<svg [^>]*>", text)
    assert pictures and all('role="img" aria-label="' in svg for svg in pictures)


def test_text_from_outside_never_becomes_markup(run, page):
    mischief = "<script>alert(1)<img>"
    metrics = {f"{mischief}/en-de": 0.5, f"translation_accuracy/{mischief}/en-de": 0.5}
    headline = Headline(title=mischief, measure=Measure(value=0.5, label=mischief), metrics=["f1"], data=mischief)
    blocks = [Text(text=mischief), Table(columns=[mischief], rows=[[mischief]], caption=mischief)]
    report = StageReport(summary=[mischief], headlines=[headline], sections=[Section(title=mischief, blocks=blocks)])
    run.add("other", metrics, parts={mischief: mischief}, report=report, metrics=[{"step": 1, f"dev/{mischief}": 1.0}])
    read = page(run.write())
    assert not {"script", "img"} & set(read.tags)
    assert read.text.count(mischief) >= 10


def test_a_verdict_stands_before_the_tables_without_the_metrics_that_stand_beside_it(run, page):
    metrics = {"auroc": 0.425, "auroc_low": 0.38, "auroc_high": 0.47, "prevalence": 0.3, "admissions/test": 1000}
    headline = Headline(title="AUROC", measure=Measure.of(metrics, "auroc"), metrics=["auroc"], data="1,000 admissions")
    run.add("readmission", metrics, kind="domain.readmission", report=StageReport(headlines=[headline]))
    text = run.write()
    assert text.index('<p class="verdict fail">Worse than chance.</p>') < text.index("<h2>")
    first_screen = page(text[: text.index("<nav")]).text
    assert first_screen.count("0.425") == 1 and "0.380 – 0.470" in first_screen


def test_a_row_of_a_table_that_is_all_on_the_first_screen_is_not_repeated(run, page):
    metrics = {"auroc": 0.8125, "auroc/tfidf": 0.7625, "brier": 0.1375}
    beside = [Measure.of(metrics, "auroc/tfidf", "TF-IDF")]
    fields = {"measure": Measure.of(metrics, "auroc"), "metrics": ["auroc"], "data": "admissions", "beside": beside}
    report = StageReport(headlines=[Headline(title="AUROC", **fields)])
    run.add("outcome", metrics, kind="domain.outcome-evaluate", report=report)
    text = page(run.write()).text
    assert [text.count(value) for value in ("0.812", "0.762", "0.138")] == [1, 1, 1]


def test_a_mean_on_the_first_screen_is_not_repeated_in_the_row_of_means(empty_run, page):
    accuracies = {"de": (0.9, 0.81), "ko": (0.6, 0.41)}
    metrics = {f"translation_accuracy/{language}-en": into for language, (into, _) in accuracies.items()}
    metrics |= {f"translation_accuracy/en-{language}": out for language, (_, out) in accuracies.items()}
    names = [f"translation_accuracy/{language}-en" for language in accuracies]
    mean = Measure.mean_of(metrics, names)
    headline = Headline(title="Accuracy", measure=mean, metrics=names, data="sentences")
    empty_run.add("test", metrics, kind="students.evaluate", report=StageReport(headlines=[headline]))
    text = empty_run.write()
    assert page(text).text.count("0.750") == 1
    [row] = re.findall(r'<tr class="mean">(.*?)</tr>', text, re.DOTALL)
    assert page(row).text == "mean 0.610"


def test_seeds_stand_beside_mean_and_deviation_and_a_missing_metric_is_a_dash(run, page):
    for seed in (1, 2, 10):
        metrics = {"sts/stsb/spearman_cosine": 0.8125, "sts/stsb/spearman_cosine_deviation": 0.0125}
        run.add("repeated", metrics, seed)
    run.metrics["evaluation"] = {"translation_accuracy/en-ko": None, "translation_accuracy/ko-en": 0.5}
    text = page(run.write()).text
    assert "0.8125 ± 0.0125" in text
    assert all(f"repeated (seed {seed})" in text for seed in (1, 2, 10))
    assert "ko – 0.500" in text


def test_the_report_of_any_hospital_names_no_other_one(run, page):
    run.add("mortality", {"auroc": 0.8, "rp80": 0.2}, kind="domain.outcome")
    text = page(run.write()).text
    assert "RP80 is the recall" in text
    assert "MIMIC" not in text and "intensive care" not in text


def test_no_metric_of_a_stage_stands_in_two_tables(run, page):
    metrics = {"translation_accuracy/en-de": 0.8765, "translation_accuracy/de-en": 0.8654, "recall_at_10/de": 0.7531}
    run.add("test", metrics | {"sts/STSb-de/spearman_cosine": 0.6543}, kind="students.evaluate")
    text = page(run.write()).text
    assert [text.count(value) for value in ("0.876", "0.865", "0.753", "0.654")] == [1, 1, 1, 1]


def test_stages_share_a_part_by_its_title_and_only_blocks_that_quote_no_text_are_shown_of_sensitive_data(run, page):
    blocks = [Text(text="counts"), Html(html="<b>a name</b>", style=".marked {}")]
    for name in ("first", "second"):
        run.add(name, {}, report=StageReport(sections=[Section(title="Entities", about="Both.", blocks=blocks)]))
    text = run.write()
    assert page(text).text.count("a name") == 2
    assert text.count("<h2>Entities</h2>") == text.count(".marked {}") == text.count("Both.") == 1
    run.withheld = ["first"]
    read = page(run.write())
    assert read.text.count("a name") == 1 and read.text.count("counts") == 2
    assert "Text is left out of what is sensitive: first." in read.text


def test_a_picture_of_a_stage_is_shown_with_its_alternative(run):
    picture = Picture(file="map.svg", alt="A map of 9 terms.")
    result = run.add("terms", {}, report=StageReport(sections=[Section(title="Terms", blocks=[picture])]))
    (result / "map.svg").write_text('<?xml version="1.0"?><svg viewBox="0 0 1 1"><path/></svg>')
    assert '<svg role="img" aria-label="A map of 9 terms." viewBox' in run.write()


def test_any_other_folder_is_refused(tmp_path):
    with pytest.raises(RequestError, match=r"expected the folder of a run, with run\.json and metrics.json in it"):
        write_report(tmp_path)
