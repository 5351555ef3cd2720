import sys

import numpy as np
import pytest
import torch
import transformers

from benchmarks import harness
from benchmarks.harness import Claim, Contender, Spread, at_least, finish, in_turns, judge, parser_of, start
from benchmarks.machine import machine, memory_samples


def test_a_contender_prepares_once_and_then_works_on_request(tmp_path, monkeypatch):
    (tmp_path / "echo.py").write_text(
        "def prepare(device, threads, word):\n"
        "    print('noise of a library')\n"
        "    return lambda batch_size, times=1: {'words': [word] * times, 'seconds': 1 / batch_size}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    contender = Contender("echo:prepare", "cpu", 1, word="hello")
    assert contender.ask(batch_size=1, times=2)["words"] == ["hello", "hello"]
    assert contender.fastest([1, 4, 2]) == 4
    with pytest.raises(SystemExit, match="unexpected"):
        contender.ask(unexpected=1)
    contender.end()


def test_ratios_are_taken_round_by_round():
    spread = Spread.of_ratios([8.0, 2.0, 30.0], [2.0, 1.0, 10.0])
    assert spread == (3.0, 2.0, 4.0)
    assert str(spread) == "3.00 (2.00–4.00)"


def test_every_other_round_runs_backwards(monkeypatch):
    monkeypatch.setattr(harness, "SECONDS_OF_REST", 0)
    turns: list[tuple[str, int]] = []
    works = {name: lambda number, name=name: turns.append((name, number)) or {"round": number} for name in "ab"}
    assert in_turns(works, 2) == {name: [{"round": 0}, {"round": 1}] for name in "ab"}
    assert turns == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]


def test_one_claim_that_does_not_hold_fails_the_run_and_all_is_saved(tmp_path):
    met, missed = at_least(2.0, "as fast", Spread(2.0, 1.0, 3.0)), at_least(2.1, "as fast", Spread(2.0, 1.0, 3.0))
    assert judge([met])
    assert not judge([met, missed, Claim("so", "it is", True)])
    options = parser_of("Doc.", "x", data=False).parse_args(["--json", str(tmp_path / "found.json")])
    with pytest.raises(SystemExit) as ended:
        finish(options, [met, missed], seconds=[1.0])
    assert ended.value.code == 1
    saved = harness.json.loads((tmp_path / "found.json").read_text())
    assert [claim["holds"] for claim in saved["claims"]] == [True, False]
    assert saved["seconds"] == [1.0] and saved["machine"] == machine()


def test_missing_data_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        start(parser_of("Doc.", "x"), "sts/none.csv", arguments=["--data", str(tmp_path)])
    assert f"expected sts/none.csv below {tmp_path}" in capsys.readouterr().err


def test_the_machine_names_the_versions():
    libraries = {"Python": sys.version.split()[0], "transformers": transformers.__version__, "numpy": np.__version__}
    assert machine().startswith("machine: ")
    assert all(f"{name} {version}" in machine() for name, version in libraries.items())


def test_private_memory_sees_what_a_tensor_takes():
    with memory_samples() as samples:
        held = torch.ones(25_000_000)  # 100 MB
        harness.time.sleep(0.3)
    assert 90 < max(samples) - samples[0] < 250, held.shape
