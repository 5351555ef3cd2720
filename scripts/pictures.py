"""Draws the README's pictures from the runs of the recipes quickstart, biomedical and clinic (`make pictures`).

python scripts/pictures.py runs docs/pictures
bertrelay serve runs/quickstart/student/latest/model english.txt
python scripts/pictures.py runs docs/pictures --page http://127.0.0.1:8080     # needs playwright and Chromium

Each picture has its own background, in light and in dark, so that it can be read on any page.
"""

import argparse
import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bertrelay.report import Lines, Matrix, StageReport, read_report

WIDTH, HEIGHT = 420, 330
STYLE = """\
:root { --page: #fdfdfc; --ink: #1c2126; --soft: #56616b; --line: #c9d0d5; --own: #1f5a94; --other: #b0602a;
  --Chemical: #cfe3f7; --Disease: #f8d5dd; --Gene: #d3ecd2; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14181b; --ink: #e4e8eb; --soft: #a5b0b9; --line: #3a444b; --own: #8fbfee; --other: #e3a477;
    --Chemical: #1f456b; --Disease: #6b2a3c; --Gene: #23532b; } }
text { font: 12px system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: var(--ink); }
.title { font-weight: 600; font-size: 13px; } .small, .soft { font-size: 11px; }
.soft { fill: var(--soft); } .end { text-anchor: end; }
.middle { text-anchor: middle; } .mono { font: 12px ui-monospace, "DejaVu Sans Mono", monospace; }
.page { fill: var(--page); stroke: var(--line); } .own { fill: var(--own); } .line { fill: none; stroke: var(--line); }
.bold { fill: none; stroke: var(--own); stroke-width: 2; } .dashed { stroke-dasharray: 5 3; }
.other { fill: none; stroke: var(--other); stroke-width: 2; stroke-dasharray: 2 3; } .dot { fill: var(--other); }
.thin { stroke: var(--own); }
"""
LANGUAGES = ("en", "de", "fr", "es", "ko")
CHARACTER, TEXT_LINE, CHARACTERS, TEXT_LINES = 7.2, 22.0, 54, 11
"""Width of a character and height of a line of the abstract, characters of its longest line, and most lines."""
QUESTION = "슬픈 여자들이 부엌에서 편지를 읽는다."
PAGE_SIZE = {"width": 840, "height": 640}


def picture(title: str, alternative: str, parts: Sequence[str]) -> str:
    """An SVG file with a title and an alternative in words."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<title>{escape(title)}</title><desc>{escape(alternative)}</desc>\n<style>{STYLE}</style>\n"
        f'<rect class="page" x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6"/>\n'
        f"{text(16, 24, title, 'title')}\n" + "\n".join(parts) + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, kind: str = "", length: float | None = None) -> str:
    fitted = "" if length is None else f' textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}"{fitted} xml:space="preserve">{escape(words)}</text>'


def report_of(result: Path) -> StageReport:
    """The report of a stage. Raises SystemExit where the recipe has not run."""
    report = read_report(result)
    if report is None:
        raise SystemExit(f"{result}: expected the result of a stage, found none; run the recipe first (make pictures)")
    return report


def similarity(result: Path) -> str:
    """The cosines of sentences in five languages, those of one meaning side by side."""
    blocks = [block for section in report_of(result).sections for block in section.blocks]
    matrix = next(block for block in blocks if isinstance(block, Matrix))
    count, cell, left, top = len(matrix.rows), 13.0, 142.0, 52.0
    parts = [text(16, 41, "cosine of sentences in five languages: the stronger the colour, the nearer", "soft")]
    for row, sentence in enumerate(matrix.rows):
        language, _, words = sentence.partition(": ")
        y = top + row * cell
        parts.append(text(left - 5, y + 10, language, "soft end"))
        if language == LANGUAGES[0]:
            lines = textwrap.wrap(words, 18)
            parts += [text(16, y + 11 + 14 * number, line, "small") for number, line in enumerate(lines)]
        for column, value in enumerate(matrix.values[row]):
            opacity = max(0.0, min(1.0, value or 0.0))
            x = left + column * cell
            parts.append(f'<rect x="{x}" y="{y}" width="12" height="12" class="own" fill-opacity="{opacity:.2f}"/>')
    size, group = count * cell, len(LANGUAGES) * cell
    for place in range(count // len(LANGUAGES) + 1):
        parts.append(f'<path class="line" d="M{left - 1} {top - 1 + place * group}h{size}"/>')
        parts.append(f'<path class="line" d="M{left - 1 + place * group} {top - 1}v{size}"/>')
    return picture("One vector space for five languages", f"{matrix.title}: {count} × {count} cells.", parts)


def entities(result: Path) -> str:
    """The longest tagged abstract that has room, and in which every type of entity is marked."""
    documents = [json.loads(line) for line in (result / "entities.jsonl").read_text("utf-8").splitlines()]
    types = sorted({entity["type"] for document in documents for entity in document["entities"]})
    short = [one for one in documents if len(list(wrapped(one["text"]))) <= TEXT_LINES]
    complete = [one for one in short if {entity["type"] for entity in one["entities"]} == set(types)]
    document = max(complete, key=lambda one: len(one["text"]))
    parts, x = [], 16.0
    for kind in types:
        width = (len(kind) + 2) * CHARACTER
        parts.append(f'<rect x="{x}" y="36" width="{width:.1f}" height="18" rx="3" fill="var(--{kind})"/>')
        parts.append(text(x + CHARACTER, 49, kind, "mono", len(kind) * CHARACTER))
        x += width + 8
    confidences = [entity["confidence"] for entity in document["entities"]]
    parts.append(text(WIDTH - 16, 49, f"confidence {min(confidences):.2f} to {max(confidences):.2f}", "soft end"))
    y = 78.0
    for start, line in wrapped(document["text"]):
        for entity in document["entities"]:
            first, last = max(entity["start"] - start, 0), min(entity["end"] - start, len(line))
            if first < last:
                parts.append(
                    f'<rect x="{16 + first * CHARACTER:.1f}" y="{y - 13}" width="{(last - first) * CHARACTER:.1f}" '
                    f'height="18" rx="3" fill="var(--{entity["type"]})"/>'
                )
        parts.append(text(16, y, line, "mono", len(line) * CHARACTER))
        y += TEXT_LINE
    marked = ", ".join(f"{entity['text']} ({entity['type']})" for entity in document["entities"])
    return picture("Entities of a synthetic abstract", f"{document['text']} Marked are {marked}.", parts)


def wrapped(words: str) -> Iterator[tuple[int, str]]:
    """The lines of a text, each with the offset of its first character."""
    start = 0
    for line in textwrap.wrap(words, CHARACTERS, break_on_hyphens=False):
        start = words.index(line, start)
        yield start, line
        start += len(line)


def calibration(result: Path) -> str:
    """The fraction of readmissions by the predicted probability, with intervals, above the number of admissions."""
    charts = [headline.chart for headline in report_of(result).headlines]
    chart = next(one for one in charts if isinstance(one, Lines) and one.bars)
    own, baseline = (chart.lines[name] for name in ("model, calibrated", "TF-IDF, calibrated"))
    left, right, top, bottom = 52.0, WIDTH - 20.0, 50.0, 232.0

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x * (right - left), bottom - y * (bottom - top)

    def path(points: Sequence[tuple[float, ...]]) -> str:
        return "M" + "L".join("{:.1f} {:.1f}".format(*at(*point[:2])) for point in points)

    parts = [f'<path class="line" d="M{left} {top}V{bottom}H{right}"/>']
    parts.append(f'<path class="line dashed" d="{path([(0, 0), (1, 1)])}"/>')
    for tick in (0, 0.5, 1):
        x, y = at(tick, tick)
        parts += [text(left - 6, y + 4, f"{tick:g}", "soft end"), text(x, 306, f"{tick:g}", "soft middle")]
    parts.append(f'<path class="other" d="{path(baseline)}"/><path class="bold" d="{path(own)}"/>')
    for point in own:
        x, y = at(*point[:2])
        parts.append(f'<circle class="own" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
        if len(point) == 4:
            low, high = (at(0, bound)[1] for bound in point[2:])
            parts.append(f'<path class="thin" d="M{x:.1f} {low:.1f}V{high:.1f}"/>')
    highest = max(bar_count for _, bar_count in chart.bars)
    width = (right - left) / len(chart.bars) - 2
    for middle, bar_count in chart.bars:
        height = 42 * bar_count / highest
        x = at(middle, 0)[0] - width / 2
        parts.append(
            f'<rect class="own" x="{x:.1f}" y="{290 - height:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
        )
    parts += [
        text(left + 14, top + 14, "fraction readmitted, with 95 % intervals", "soft"),
        f'<path class="bold" d="M{left + 14} {top + 26}h18"/>' + text(left + 38, top + 30, "this model"),
        f'<path class="other" d="M{left + 14} {top + 44}h18"/>' + text(left + 38, top + 48, "TF-IDF"),
        text(right, 246, "admissions", "soft end"),
        text((left + right) / 2, 320, "P(readmission)", "middle"),
    ]
    stated = "; ".join(f"{point[1]:.2f} at {point[0]:.2f}" for point in own)
    return picture("Calibrated P(readmission)", f"{chart.up} by {chart.across}: {stated}.", parts)


def photograph(url: str, folder: Path) -> None:
    """Asks the server's page a question in Korean, and saves it in light and in dark."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            size: Any = PAGE_SIZE
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto(url)
            page.locator("[name=query]").fill(QUESTION)
            page.locator("[name=top_k]").fill("5")
            page.get_by_role("button", name="Search").click()
            page.locator(".hits li").first.wait_for()
            page.screenshot(path=folder / f"page-{scheme}.png")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument("folder", type=Path, help="where the pictures are written")
    parser.add_argument("--page", help="address of a server, whose page is saved; the others are left as they are")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.page:
        photograph(arguments.page, arguments.folder)
        return
    runs = arguments.runs
    drawn = {
        "similarity": similarity(runs / "quickstart/test/latest"),
        "entities": entities(runs / "biomedical/tagged/latest"),
        "calibration": calibration(runs / "clinic/readmission/latest"),
    }
    for name, svg in drawn.items():
        (arguments.folder / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
