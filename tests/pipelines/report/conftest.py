"""Runs as the runner leaves them, and their pages."""

import json
from html.parser import HTMLParser

import pytest

from bertrelay.fingerprint import Digests
from bertrelay.report import FILE
from pipelines.report.page import write_report
from pipelines.report.results import read_results
from pipelines.run.store import ATTEMPT, METRICS, RUN, begin, finish, latest_name, link_latest


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
        self.folder, self.metrics, self.stages, self.withheld = folder, {}, [], []

    def add(self, name, values, seed=None, kind="teachers.train", parts=(), report=None, **files):
        """Finishes a stage; returns its folder. files: name to content of a `.json`, or to the lines of a `.jsonl`.

        report: what the stage writes for a report.
        """
        self.stages.append({"name": name, "seed": seed})
        self.metrics.setdefault(name, values)
        result = self.folder / name / f"{name:x<10}{seed or 0:02d}"
        parts = {"uses": kind, "learning_rate": 3e-5, **dict(parts)}
        partial = begin(result, parts)
        for file, content in files.items():
            lines = "\n".join(map(json.dumps, content)) if isinstance(content, list) else json.dumps(content)
            (partial / (f"{file}.jsonl" if isinstance(content, list) else f"{file}.json")).write_text(lines)
        if report is not None:
            (partial / FILE).write_text(report.model_dump_json(), encoding="utf-8")
        attempt = json.loads((partial / ATTEMPT).read_text())
        (partial / ATTEMPT).write_text(json.dumps({**attempt, "seconds_before": 75}))
        finish(result, parts, values, Digests())
        link_latest(result, latest_name(seed))
        return result

    def write(self):
        facts = {"recipe": "small & quick", "stages": self.stages, "withheld": self.withheld}
        for file, content in ((RUN, facts), (METRICS, self.metrics)):
            (self.folder / file).write_text(json.dumps(content), encoding="utf-8")
        write_report(self.folder)
        return (self.folder / "report.html").read_text(encoding="utf-8")

    def results(self):
        self.write()
        return read_results(self.folder)


@pytest.fixture
def empty_run(tmp_path):
    folder = tmp_path / "runs" / "small"
    folder.mkdir(parents=True)
    return Run(folder)


@pytest.fixture
def page():
    return Page
