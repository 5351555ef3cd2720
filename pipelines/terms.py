"""What a stage left behind of medical terms, to what a report shows: their picture, and neighbours of some."""

import csv
from dataclasses import dataclass
from pathlib import Path

PICTURE, NEIGHBOURS = "tsne.svg", "neighbours.csv"
SHOWN = 12


@dataclass(frozen=True)
class TermsPicture:
    """An SVG element, and terms from the whole list with their neighbours as `name (0.93)`."""

    svg: str
    neighbours: list[tuple[str, list[str]]]


def terms_picture(folder: Path) -> TermsPicture | None:
    """What is to be shown of the stage in `folder`, if it drew terms."""
    picture, table = folder / PICTURE, folder / NEIGHBOURS
    if not (picture.is_file() and table.is_file()):
        return None
    found: dict[str, list[str]] = {}
    with table.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            found.setdefault(row["term"], []).append(f"{row['neighbour']} ({float(row['cosine']):.2f})")
    stride = -(-len(found) // SHOWN)
    return TermsPicture(picture.read_text(encoding="utf-8"), list(found.items())[::stride])
