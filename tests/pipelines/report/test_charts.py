"""Charts of a report, and the curves of a training."""

import json
import re
from xml.etree import ElementTree

import pytest

from bertrelay.report import Dots, Lines, Matrix, Measure
from pipelines.report.charts import draw, training_curves


@pytest.fixture
def log(tmp_path):
    def write(*lines):
        path = tmp_path / "metrics.jsonl"
        path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
        return path

    return write


def drawn_curves(log):
    return [draw(curve, log.parent) for curve in training_curves(log)]


SVG = "{http://www.w3.org/2000/svg}"


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
    curves = drawn_curves(path)
    assert [curve.title for curve in curves] == ["Loss", "Learning rate", "Dev: sts", "Dev scores"]
    assert {"mlm", "nsp"} <= set(texts(curves[0].svg))
    assert training_curves(log()) == training_curves(path.with_name("none.jsonl")) == []


def test_dev_scores_have_a_chart_a_measure_without_counts_and_a_mean_stands_for_its_languages(log):
    names = ["score", "sentences/de", "mse/de", "mse/ko", "nearness/cosine/de", "nearness/cosine/mean"]
    names += ["nearness/cosine/untrained/de", "nearness/cosine/untrained/mean", "nearness/error/de"]
    curves = drawn_curves(log(*({"step": step} | {f"dev/{name}": step / 9 for name in names} for step in (1, 2))))
    assert [curve.title for curve in curves] == ["Dev scores", "Dev: mse", "Dev: nearness"]
    drawn = {curve.title: {text for text in texts(curve.svg) if re.search("[a-z]", text)} for curve in curves}
    assert drawn["Dev: mse"] == {"step", "mse", "de", "ko"}
    means = {"cosine/mean", "cosine/untrained/mean"}
    assert drawn["Dev: nearness"] == {"step", "nearness", "error/de", *means}


def test_a_line_goes_through_its_points_and_of_a_long_log_through_few_that_end_at_the_last_step(log):
    [curve] = drawn_curves(log(*({"step": step, "loss": loss} for step, loss in [(0, 1.0), (10, 3.0), (30, 2.0)])))
    (x0, y0), (x1, y1), (x2, y2) = points_of_the_first_line(curve.svg)
    assert (x2 - x0) / (x1 - x0) == pytest.approx(3, rel=1e-3)
    assert (y2 - y0) / (y1 - y0) == pytest.approx(1 / 2, rel=1e-3)
    [long] = drawn_curves(log(*({"step": step, "loss": 1 / (1 + step)} for step in range(20_001))))
    assert len(long.svg) < 40_000
    [short] = drawn_curves(log({"step": 0, "loss": 1.0}, {"step": 20_000, "loss": 0.0}))
    ends = [points_of_the_first_line(curve.svg)[-1][0] for curve in (long, short)]
    assert ends[0] == pytest.approx(ends[1], abs=1)


def alternative(drawing):
    element = ElementTree.fromstring(drawing.svg)
    assert element.get("role") == "img"
    return element.get("aria-label")


def test_each_chart_has_an_alternative_in_words(tmp_path):
    lines = Lines(title="Loss & more", lines={"mlm": [(1, 2.0), (9, 0.5)]}, across="step", up="loss")
    assert alternative(draw(lines, tmp_path)) == "Loss & more: loss by step. mlm: 2.000 at 1, 0.500 at 9."
    measures = [Measure(value=0.5, low=0.25, high=0.75), Measure(value=0.125, label="base")]
    dots = draw(Dots(title="Accuracy", rows={"ko": measures}), tmp_path)
    assert alternative(dots) == "Accuracy. ko: this model 0.500 (0.250 to 0.750), base 0.125."
    assert {"ko", "this model", "base"} <= set(texts(dots.svg))
    matrix = Matrix(title="Cosine", rows=["<a>"], columns=["b", "c"], values=[[1.0, None]])
    assert alternative(draw(matrix, tmp_path)) == "Cosine: 1 × 2 cells."


def test_a_histogram_stands_below_its_chart(tmp_path):
    points = [(0.1, 0.2, 0.1, 0.3), (0.9, 0.8)]
    chart = {"title": "Calibration", "lines": {"model": points}, "across": "probability", "up": "fraction"}
    bars = draw(Lines(**chart, reference=(0, 1), bars=[(0.25, 30), (0.75, 10)]), tmp_path)
    assert texts(bars.svg).count("count") == 1 and "probability" in texts(bars.svg)
    assert "count" not in texts(draw(Lines(**chart), tmp_path).svg)
