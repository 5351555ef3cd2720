"""A few cases of the fuzzer, on models and recipes that are made in memory."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.fuzz import BAD, TEXTS, Bench, is_alike, toml
from bertrelay.encoder import SentenceEncoder
from bertrelay.pooling import Projection

TIMES = 20


@pytest.fixture
def bench(tiny_encoder: Callable[..., SentenceEncoder], tmp_path: Path) -> Bench:
    """With an encoder for a model, of a student's name."""
    encoder = tiny_encoder("bert", TEXTS * TIMES, projection=Projection(16, 8), pooling=["cls"])
    encoder.save(tmp_path / "student" / "latest" / "model")
    return Bench(tmp_path, tmp_path / "scratch")


def test_a_changed_model_is_a_clear_error_or_changes_nothing(bench: Bench) -> None:
    found = [bench.judge(number, 0) for number in range(75) if number % 5]
    assert [each for each in found if each.kind in BAD] == []
    assert Counter(each.kind for each in found)["clear error"] > 20


def test_a_loss_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(folder: Path, _: Random) -> bool:
        (folder / "2_Dense" / "config.json").write_text(
            '{"in_features": 16, "out_features": 8, "bias": true, '
            '"activation_function": "torch.nn.modules.activation.Tanh"}'
        )
        return False

    monkeypatch.setattr("benchmarks.fuzz.change_folder", changed)
    assert bench.judge(1, 0).kind == "loss"


def test_an_unforeseen_error_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> bool:
        raise KeyError("x")

    monkeypatch.setattr("benchmarks.fuzz.change_folder", breaks)
    assert bench.judge(1, 0).kind == "unforeseen"


def test_outputs_are_alike_but_for_the_last_digits_of_their_numbers() -> None:
    one = "Score(probability=0.470302957, label='a1', place=12)"
    assert is_alike(one, one.replace("957", "964"))
    for change in (("0.4703", "0.4713"), ("12", "13"), ("'a1'", "'b1'"), ("=12", "=None")):
        assert not is_alike(one, one.replace(*change))


def test_tables_are_written_as_toml_reads_them() -> None:
    import tomllib

    value = {"a": [1, {"b": 'x"\n\0'}], "c d": {"e": True, "f": 1e300}}
    assert tomllib.loads(f"value = {toml(value)}") == {"value": value}
