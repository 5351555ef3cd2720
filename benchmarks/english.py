"""Real English sentences to encode, drawn with a seed."""

import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertrelay.data.records import read
from bertrelay.data.tables import Table
from bertrelay.settings import InputFile

Sources = Mapping[str, dict[str, Any]]
"""Files below the folder of the data, and how their tables look."""

STSB: Sources = {
    f"sts/stsb/stsb-en-{part}.csv.gz": {"columns": [0, 1], "header": False} for part in ("train", "dev", "test")
}
SICK: Sources = {
    f"sts/sick/SICK_{part}.txt": {"columns": ["sentence_A", "sentence_B"], "format": "tsv"}
    for part in ("train", "trial", "test_annotated")
}
MULTI30K: Sources = {"parallel/multi30k/train.en.gz": {"columns": [0]}}


def draw(data: Path, sources: Sources, count: int, seed: int) -> list[str]:
    """`count` distinct sentences of the `sources` below `data`."""
    tables = [Table(path=InputFile(data / name), **shape) for name, shape in sources.items()]
    known = dict.fromkeys(value for table in tables for record in read(table, [0]) for value in record.values)
    known.pop("", None)
    if count > len(known):
        sys.exit(f"--sentences: expected at most the {len(known):,} that there are, found {count:,}")
    return random.Random(seed).sample(list(known), count)
