"""The bytes that each stage of sample data writes: a change of them raises the stage's version in the registry."""

import gzip
import hashlib
from pathlib import Path

import pytest

from bertrelay.cache import Cache
from bertrelay.stage import StageContext
from pipelines.registry import REGISTRY

STAGES = {stage.kind: stage for stage in REGISTRY if stage.kind.startswith("samples.")}
PARTS = {"train": 30, "dev": 5, "test": 10}
CASES = [
    ("samples.write", {}, "5bfee3425cbb8947"),
    ("samples.papers", {"documents": 60}, "b7466a580d89c679"),
    ("samples.hospital", {"subjects": 30}, "008286483f7803f1"),
    ("samples.hospital", {"subjects": 30, "version": "IV", "words": 100}, "0fa67a359eb74745"),
    ("samples.entities", PARTS, "1300ddb2957bfa28"),
    ("samples.questions", PARTS, "7a331ff8ccfe4ae8"),
    ("samples.bioasq", PARTS, "a8bc690417a530b5"),
    ("samples.sbert-paper", {}, "fdacba31b7433fdc"),
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
def test_the_same_bytes_everywhere_and_others_from_another_seed(kind, settings, expected, tmp_path):
    assert digest(kind, tmp_path / "one", **settings) == expected
    if "seed" in STAGES[kind].load_settings().model_fields:
        assert digest(kind, tmp_path / "other", **settings, seed=8) != expected


def test_every_stage_of_sample_data_is_here():
    assert {kind for kind, *_ in CASES} == STAGES.keys()
