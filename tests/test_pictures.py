"""The pictures of the README: drawn from the files of a run, small, and with an alternative in words."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bertrelay.report import FILE, Headline, Lines, Matrix, Measure, Section, StageReport
from scripts import pictures

ROOT = Path(__file__).resolve().parents[1]
SVG = "{http://www.w3.org/2000/svg}"
LARGEST = 60_000


def parts(svg, tag, kind=""):
    return [part for part in ElementTree.fromstring(svg).iter(SVG + tag) if kind in part.get("class", "")]


def write_report(folder, **fields):
    (folder / FILE).write_text(StageReport(**fields).model_dump_json(), encoding="utf-8")


def test_each_cosine_is_a_cell_as_strong_as_it_is_high(tmp_path):
    rows = [f"{language}: A <b> & c." for language in pictures.LANGUAGES]
    values = [[1.0 if row == column else 0.25 - row for column in range(5)] for row in range(5)]
    matrix = Matrix(title="Cosines", rows=rows, columns=rows, values=values)
    write_report(tmp_path, sections=[Section(title="Similarity", blocks=[matrix])])
    cells = [float(cell.get("fill-opacity")) for cell in parts(pictures.similarity(tmp_path), "rect", "own")]
    assert cells == [max(value, 0) for row in values for value in row]


def test_every_entity_is_marked_where_it_stands(tmp_path):
    text = "The mice had gout of the left foot. " * 4 + "Aspirin changed BRCA1."
    entities = [
        {"start": match.start(), "end": match.end(), "type": kind, "confidence": 0.5}
        for word, kind in {"gout of the left": "Disease", "Aspirin": "Chemical", "BRCA1": "Gene"}.items()
        for match in re.finditer(word, text)
    ]
    entities = [{**entity, "text": text[entity["start"] : entity["end"]]} for entity in entities]
    (tmp_path / "entities.jsonl").write_text(json.dumps({"id": "1", "text": text, "entities": entities}) + "\n")
    svg = pictures.entities(tmp_path)
    marks = [mark for mark in parts(svg, "rect") if mark.get("fill", "").startswith("var(--")][3:]  # behind the legend
    lines = {float(line.get("y")): line.text for line in parts(svg, "text", "mono")[3:]}
    marked = []
    for mark in marks:
        start = round((float(mark.get("x")) - 16) / pictures.CHARACTER)
        end = start + round(float(mark.get("width")) / pictures.CHARACTER)
        marked.append(lines[float(mark.get("y")) + 13][start:end].strip())
    assert " ".join(marked).split() == " ".join(entity["text"] for entity in entities).split()


def test_the_calibration_curve_has_the_points_and_counts_of_the_report(tmp_path):
    lines = {"model, calibrated": [(0.1, 0.2, 0.1, 0.3), (0.9, 0.8)], "TF-IDF, calibrated": [(0.2, 0.1), (0.5, 0.6)]}
    chart = Lines(title="Calibration", lines=lines, across="probability", up="fraction", bars=[(0.25, 40), (0.75, 20)])
    headline = Headline(title="Ratio", measure=Measure(value=1.0), metrics=["x"], data="9 rows", chart=chart)
    write_report(tmp_path, headlines=[headline])
    svg = pictures.calibration(tmp_path)
    first, last = ((float(dot.get("cx")), float(dot.get("cy"))) for dot in parts(svg, "circle"))
    assert (last[0] - first[0]) / 0.8 == pytest.approx(348, abs=0.2)  # pixels of the axes
    assert (first[1] - last[1]) / 0.6 == pytest.approx(182, abs=0.2)
    tall, short = (float(bar.get("height")) for bar in parts(svg, "rect", "own"))
    assert tall == 2 * short
    assert "0.20 at 0.10; 0.80 at 0.90" in parts(svg, "desc")[0].text


def test_a_recipe_that_has_not_run_is_named(tmp_path):
    with pytest.raises(SystemExit, match="run the recipe first"):
        pictures.similarity(tmp_path / "quickstart")


@pytest.mark.parametrize("page", ["README.md", "README.ko.md"])
def test_pictures_of_the_readme_are_small_and_have_an_alternative(page):
    text = (ROOT / page).read_text("utf-8")
    shown = re.findall(r"!\[([^]]*)\]\(([^)]+)\)", text) + re.findall(r'<img ()src="([^"]+)"', text)
    shown += re.findall(r'()srcset="([^"]+)"', text)
    assert len(shown) == 5
    assert all(alternative or not file.endswith(".svg") for alternative, file in shown)
    assert [file for _, file in shown if (ROOT / file).stat().st_size > LARGEST] == []
    assert re.search(r'<img [^>]*alt="[^"]{20,}"', text)
    for file in (ROOT / "docs/pictures").glob("*.svg"):
        root = ElementTree.parse(file).getroot()
        assert all(root.findtext(SVG + tag) for tag in ("title", "desc")), file
