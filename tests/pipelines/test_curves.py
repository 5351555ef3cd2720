import json
import re
import warnings
from xml.etree import ElementTree

import pytest

from pipelines.report.charts import training_curves

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def log(tmp_path):
    def write(*lines):
        path = tmp_path / "metrics.jsonl"
        path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
        return path

    return write


def texts(svg):
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def points_of_the_first_line(svg):
    strokes = [
        path.get("d") for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if "#3b7dc4" in path.get("style", "")
    ]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", strokes[0])]


def test_the_loss_comes_first_then_the_rate_then_dev_scores_and_nothing_else(log):
    path = log(
        {"step": 1, "epoch": 0, "sts/de/spearman_cosine": 0.4, "sts/de/spearman_cosine_low": 0.3, "dev/accuracy": 0.5},
        {"step": 2, "lr": 0.1, "loss/mlm": 2.0, "loss/nsp": None, "grad_norm": 1, "tokens_per_second": 9},
        {"step": 3, "lr": 0.1, "loss/mlm": 1.0, "loss/nsp": 0.5, "padding_share": 0.5, "seconds": 3.0},
        '{"step": 4, "lo',  # cut short by a kill
    )
    curves = training_curves(path)
    assert [curve.title for curve in curves] == ["Loss", "Learning rate", "Dev: sts", "Dev scores"]
    assert {"mlm", "nsp"} <= set(texts(curves[0].svg))
    assert training_curves(log()) == training_curves(path.with_name("none.jsonl")) == []


def test_a_line_goes_through_its_points_and_of_a_long_log_through_few_that_end_at_the_last_step(log):
    [curve] = training_curves(log(*({"step": step, "loss": loss} for step, loss in [(0, 1.0), (10, 3.0), (30, 2.0)])))
    (x0, y0), (x1, y1), (x2, y2) = points_of_the_first_line(curve.svg)
    assert (x2 - x0) / (x1 - x0) == pytest.approx(3, rel=1e-3)
    assert (y2 - y0) / (y1 - y0) == pytest.approx(1 / 2, rel=1e-3)
    [long] = training_curves(log(*({"step": step, "loss": 1 / (1 + step)} for step in range(20_001))))
    assert len(long.svg) < 40_000
    [short] = training_curves(log({"step": 0, "loss": 1.0}, {"step": 20_000, "loss": 0.0}))
    ends = [points_of_the_first_line(each.svg)[-1][0] for each in (long, short)]
    assert ends[0] == pytest.approx(ends[1], abs=1)


def test_a_picture_takes_the_ink_and_the_fonts_of_the_page(log):
    with warnings.catch_warnings(action="error"):
        [curve] = training_curves(log({"step": 1, "dev/a$b$<c>": 1.0}, {"step": 2, "dev/a$b$<c>": 0.5}))
    assert "a$b$<c>" in texts(curve.svg)
    assert "currentColor" in curve.svg
    assert not re.search(r"#0{6}|#010203|<style|@font-face|<image|<g id=", curve.svg)
