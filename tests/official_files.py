"""The sample files of the SBERT paper's data sets, shortened for tests."""

from pathlib import Path
from random import Random

from pipelines.samples.sentence_files import write_sbert_paper

ROWS = 20


def write_official_files(folder: Path) -> None:
    """Writes the first line of each file and `ROWS` others, the same of files as long; glove.txt whole."""
    for name, count in write_sbert_paper(folder).items():
        path = folder / name
        if path.name != "glove.txt":
            lines = path.read_text("utf-8").splitlines(keepends=True)
            rows = [0, *sorted(Random(count).sample(range(1, count), ROWS))]
            path.write_text("".join(lines[row] for row in rows), "utf-8")
