"""The bytes that each stage of sample data writes: a change of them raises the stage's version in the registry."""

import gzip
import hashlib
from pathlib import Path

import pytest

from bertrelay.cache import Cache
from bertrelay.stage import StageContext
from pipelines.registry import REGISTRY

STAGES = {stage.kind: stage for stage in REGISTRY if stage.kind.startswith("samples.")}
SIZES = {"parallel_train": 100, "parallel_test": 20, "nli": 120, "sts": 120, "triplets": 100}
PARTS = {"train": 30, "dev": 5, "test": 10}
CASES = [
    ("samples.write", SIZES, "4eaa42fbfc20b6e6"),
    ("samples.papers", {"documents": 60}, "b7466a580d89c679"),
    ("samples.hospital", {"subjects": 30}, "008286483f7803f1"),
    ("samples.hospital", {"subjects": 30, "version": "IV", "words": 100}, "0fa67a359eb74745"),
    ("samples.entities", PARTS, "1300ddb2957bfa28"),
    ("samples.questions", PARTS, "7a331ff8ccfe4ae8"),
    ("samples.sbert-paper", {"sts": 20, "train": 20, "classes": 10}, "5d9a8af919b8c6d0"),
]


def digest(kind: str, folder: Path, **settings: object) -> str:
    """Of the names and the uncompressed content of all files that the stage writes."""
    folder.mkdir()
    stage = STAGES[kind]
    stage.load_run()(stage.load_settings().model_validate(settings), StageContext(folder, Cache(folder)))
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        found.update(path.relative_to(folder).as_posix().encode() + b"\0")
        found.update(gzip.decompress(content) if path.suffix == ".gz" else content)
    return found.hexdigest()[:16]


@pytest.mark.parametrize(("kind", "settings", "expected"), CASES)
def test_a_seed_writes_the_same_bytes_everywhere_and_another_seed_others(kind, settings, expected, tmp_path):
    assert digest(kind, tmp_path / "one", **settings) == expected
    assert digest(kind, tmp_path / "other", **settings, seed=8) != expected


def test_every_stage_of_sample_data_is_here():
    assert {kind for kind, *_ in CASES} == STAGES.keys()
