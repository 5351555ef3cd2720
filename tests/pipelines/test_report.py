"""The page of a run."""

import json
import re
from html.parser import HTMLParser

import pytest

from bertrelay.fingerprint import Digests
from bertrelay.settings import Settings
from pipelines.recipe.steps import Recipe, Step
from pipelines.recipe.text import RecipeText
from pipelines.registry import REGISTRY
from pipelines.report.page import write_report
from pipelines.run.store import ATTEMPT, begin, finish, latest_name, link_latest

SENTENCES = {"rows": ["A <b>dog</b>."], "labels": ["강아지 & Hund"], "matrix": [[0.875]]}


class Page(HTMLParser):
    """The tags of a page, every attribute, and the text outside style."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.inside = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.inside.append(tag)

    def handle_endtag(self, tag):
        self.inside = self.inside[: len(self.inside) - 1 - self.inside[::-1].index(tag)]

    def handle_data(self, data):
        if "style" not in self.inside:
            self.words.append(data.strip())

    @property
    def text(self):
        return " ".join(word for word in self.words if word)


class Run:
    """Finished stages as the runner leaves them, and their metrics by hand."""

    def __init__(self, folder):
        self.folder, self.metrics, self.steps = folder, {}, []

    def add(self, name, values, seed=None, kind="teachers.train", parts=(), **files):
        """Finishes a stage. files: name to content of a `.json`, or to the lines of a `.jsonl`."""
        stage = next(stage for stage in REGISTRY if stage.kind == kind)
        self.steps.append(Step(name, seed, stage, Settings(), ()))
        self.metrics.setdefault(name, values)
        result = self.folder / name / f"{name:x<10}{seed or 0:02d}"
        parts = {"learning_rate": 3e-5, **dict(parts)}
        partial = begin(result, parts)
        for file, content in files.items():
            lines = "\n".join(map(json.dumps, content)) if isinstance(content, list) else json.dumps(content)
            (partial / (f"{file}.jsonl" if isinstance(content, list) else f"{file}.json")).write_text(lines)
        attempt = json.loads((partial / ATTEMPT).read_text())
        (partial / ATTEMPT).write_text(json.dumps({**attempt, "seconds_before": 75}))
        finish(result, parts, values, Digests())
        link_latest(result, latest_name(seed))

    def write(self):
        text = RecipeText("", "", "", self.folder, None)
        write_report(Recipe("small & quick", text, (), tuple(self.steps)), self.folder, self.metrics)
        return (self.folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def run(tmp_path):
    """A run of two stages."""
    run = Run(tmp_path)
    losses = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    run.add("teacher", {"dev/accuracy": 0.75}, metrics=losses)
    evaluated = {"translation_accuracy/en-ko": 0.9375}
    run.add("evaluation", evaluated, kind="students.evaluate", similarity=SENTENCES)
    return run


def test_the_page_has_scores_curves_similarity_stages_and_settings_and_needs_no_network_and_no_scripts(run):
    text = run.write()
    page = Page(text)
    texts = ("small & quick", "0.938", "강아지 & Hund", "0.88", "Loss", "1 min 15 s", "teacherxxx00", "3e-05", "torch")
    assert all(each in page.text for each in texts)
    assert page.tags.count("svg") == 2
    assert not {"script", "link", "img", "iframe", "object", "embed", "form"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "srcset", "action")]
    assert all(value.startswith("#") for name, value in page.attributes if name.endswith("href"))
    assert not re.search(r"url\((?!#)|@import", text)


def test_text_from_outside_never_becomes_markup(run):
    mischief = "<script>alert(1)<img>"
    metrics = {f"{mischief}/en-de": 0.5, f"translation_accuracy/{mischief}/en-de": 0.5}
    run.add("other", metrics, parts={mischief: mischief}, metrics=[{"step": 1, f"dev/{mischief}": 1.0}])
    page = Page(run.write())
    assert not {"script", "img"} & set(page.tags)
    assert page.text.count(mischief) >= 5


def test_a_model_that_failed_is_said_to_before_any_table(run):
    metrics = {"auroc": 0.425, "auroc_low": 0.38, "auroc_high": 0.47, "prevalence": 0.3, "admissions/test": 1000}
    run.add("readmission", metrics, kind="domain.readmission")
    text = run.write()
    assert text.index('<p class="verdict fail"><b>readmission.</b> Worse than chance. AUROC') < text.index("<h2>")


def test_seeds_stand_beside_mean_and_deviation_and_what_was_not_measured_is_a_dash(run):
    for seed in (1, 2, 10):
        metrics = {"sts/stsb/spearman_cosine": 0.8125, "sts/stsb/spearman_cosine_deviation": 0.0125}
        run.add("repeated", metrics, seed)
    run.metrics["evaluation"] = {"translation_accuracy/en-ko": None, "translation_accuracy/ko-en": 0.5}
    page = Page(run.write())
    assert "0.8125 ± 0.0125" in page.text
    assert all(f"repeated (seed {seed})" in page.text for seed in (1, 2, 10))
    assert "ko – 0.500" in page.text


def test_the_report_of_any_hospital_says_nothing_of_another_one(run):
    run.add("cohort", {"admissions": 3}, kind="domain.cohort")
    folder = next((run.folder / "cohort").glob("cohort*"))
    (folder / "flow.csv").write_text("step,admissions,subjects\nrows,3,2\n")
    run.add("mortality", {"auroc": 0.8, "rp80": 0.2}, kind="domain.outcome")
    text = Page(run.write()).text
    assert "Who was left out" in text and "RP80 is the recall" in text
    assert "MIMIC" not in text and "intensive care" not in text
