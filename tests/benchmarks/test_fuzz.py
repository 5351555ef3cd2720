"""A few cases of the fuzzer, on models and recipes that are made in memory."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.fuzz import BAD, TEXTS, Bench, is_alike, toml
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.pooling import Projection

TIMES = 20


@pytest.fixture
def bench(tiny_encoder: Callable[..., SentenceEncoder], tmp_path: Path) -> Bench:
    """With an encoder for a model, of a student's name."""
    encoder = tiny_encoder("bert", TEXTS * TIMES, projection=Projection(16, 8), pooling=["cls"])
    encoder.save(tmp_path / "student" / "latest" / "model")
    return Bench(tmp_path, tmp_path / "scratch")


@pytest.mark.promise("A changed model is a clear error or changes nothing", about="loading")
def test_a_changed_model_is_a_clear_error_or_changes_nothing(bench: Bench) -> None:
    found = [bench.judge(number, 0) for number in range(75) if number % 5]
    assert [each for each in found if each.kind in BAD] == []
    assert Counter(each.kind for each in found)["clear error"] > 20


def changed(folder: Path, _: Random) -> bool:
    config = folder / "2_Dense" / "config.json"
    config.write_text(config.read_text().replace("linear.Identity", "activation.Tanh"))
    return False


@pytest.mark.parametrize(("change", "kind"), [(changed, "loss"), (lambda *_: {}["x"], "unforeseen")])
def test_what_must_not_be_is_seen(bench: Bench, change: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.fuzz.change_folder", change)
    assert bench.judge(1, 0).kind == kind


def test_outputs_are_alike_but_for_the_last_digits_of_their_numbers() -> None:
    assert is_alike([0.470302957, "a1", 12], [0.470302964, "a1", 12])
    for other in ([0.4713, "a1", 12], [0.4703, "a1", 13], [0.4703, "b1", 12], [0.4703, "a1", None]):
        assert not is_alike([0.4703, "a1", 12], other)


def test_tables_are_written_as_toml_reads_them() -> None:
    import tomllib

    value = {"a": [1, {"b": 'x"\n\0'}], "c d": {"e": True, "f": 1e300}}
    assert tomllib.loads(f"value = {toml(value)}") == {"value": value}
