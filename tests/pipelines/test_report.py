"""The page of a run."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from html.parser import HTMLParser

import pytest

from bertrelay.errors import RequestError
from bertrelay.fingerprint import Digests
from pipelines.report.page import day, duration, write_report
from pipelines.run_store import ATTEMPT, begin, finish, latest_name, link_latest

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


@pytest.fixture
def run_folder(tmp_path):
    """A run of two stages as the runner leaves it, with metrics.json by hand."""
    folder = tmp_path / "runs" / "small & quick"
    finished(folder, "teacher", {"dev/accuracy": 0.75}, log=[{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}])
    evaluated = {"translation_accuracy/en-ko": 0.9375}
    finished(folder, "evaluation", evaluated, similarity=SENTENCES, parts={"uses": "students.evaluate"})
    summarise(folder, teacher={"dev/accuracy": 0.75}, evaluation={"translation_accuracy/en-ko": 0.9375})
    return folder


def finished(run_folder, name, metrics, seed=None, log=(), similarity=None, parts=()):
    fingerprint = f"{name:x<10}{seed or 0:02d}"
    folder = run_folder / name / fingerprint
    parts = {"uses": "teachers.train", "learning_rate": 3e-5, **dict(parts)}
    partial = begin(folder, parts)
    if log:
        (partial / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    if similarity:
        (partial / "similarity.json").write_text(json.dumps(similarity))
    attempt = json.loads((partial / ATTEMPT).read_text())
    (partial / ATTEMPT).write_text(json.dumps({**attempt, "seconds_before": 75}))
    finish(folder, parts, metrics, Digests())
    link_latest(folder, latest_name(seed))


def summarise(run_folder, **metrics):
    (run_folder / "metrics.json").write_text(json.dumps(metrics))


def page_of(run_folder):
    return Page(write_report(run_folder).read_text(encoding="utf-8"))


def test_the_page_has_scores_curves_similarity_stages_and_settings(run_folder):
    page = page_of(run_folder)
    texts = ("small & quick", "0.938", "강아지 & Hund", "0.88", "Loss", "1 min 15 s", "teacherxxx00", "3e-05", "torch")
    assert all(each in page.text for each in texts)
    assert page.tags.count("svg") == 2


def test_the_page_needs_no_network_and_no_scripts(run_folder):
    text = write_report(run_folder).read_text(encoding="utf-8")
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "form"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "srcset", "action")]
    assert all(value.startswith("#") for name, value in page.attributes if name.endswith("href"))
    assert not re.search(r"url\((?!#)|@import", text)


def test_text_from_outside_never_becomes_markup(run_folder):
    mischief = "<script>alert(1)<img>"
    figures = {f"{mischief}/en-de": 0.5, f"translation_accuracy/{mischief}/en-de": 0.5}
    finished(run_folder, "teacher", {}, seed=5, parts={mischief: mischief}, log=[{"step": 1, f"dev/{mischief}": 1.0}])
    link_latest(run_folder / "teacher" / "teacherxxx05", "latest")
    summarise(run_folder, teacher=figures)
    page = page_of(run_folder)
    assert not {"script", "img"} & set(page.tags)
    assert page.text.count(mischief) >= 5


def test_every_seed_is_listed_beside_mean_and_deviation_while_the_stage_is_repeated(run_folder):
    for seed in (1, 2, 10):
        finished(run_folder, "teacher", {}, seed)
    assert "seed 1" not in page_of(run_folder).text
    summarise(run_folder, teacher={"sts/stsb/spearman_cosine": 0.8125, "sts/stsb/spearman_cosine_deviation": 0.0125})
    page = page_of(run_folder)
    assert "0.8125 ± 0.0125" in page.text
    places = [page.text.index(f"teacher, seed {seed}") for seed in (1, 2, 10)]
    assert places == sorted(places)


def test_what_was_not_measured_is_a_dash(run_folder):
    summarise(run_folder, evaluation={"translation_accuracy/en-ko": None, "translation_accuracy/ko-en": 0.5})
    assert "ko – 0.500" in page_of(run_folder).text


def test_a_run_without_a_finished_stage_is_refused(tmp_path):
    with pytest.raises(RequestError, match="found none"):
        write_report(tmp_path)


def test_writing_again_replaces_the_page_and_leaves_nothing_beside(run_folder):
    write_report(run_folder)
    (run_folder / "report.html").write_text("old")
    write_report(run_folder)
    assert (run_folder / "report.html").read_text() != "old"
    assert sorted(path.name for path in run_folder.iterdir() if path.is_file()) == ["metrics.json", "report.html"]


def test_durations_and_days_are_written_for_people():
    seconds = {0: "0.0 s", 9.94: "9.9 s", 9.96: "10 s", 59.6: "1 min 0 s", 185: "3 min 5 s", 7800: "2 h 10 min"}
    assert {each: duration(each) for each in seconds} == seconds
    moment = datetime(2025, 3, 1, 0, 30, tzinfo=timezone(timedelta(hours=2)))
    assert day(moment.astimezone(UTC)) == "28 February 2025, 22:30 UTC"
