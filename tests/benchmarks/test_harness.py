import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import transformers

from benchmarks import harness
from benchmarks.harness import Claim, Contender, Spread, at_least, in_turns, main
from benchmarks.machine import machine, memory_of


def test_a_contender_prepares_once_and_then_works_on_request(tmp_path, monkeypatch):
    (tmp_path / "echo.py").write_text(
        "def prepare(threads, word):\n"
        "    print('noise of a library')\n"
        "    return lambda batch_size, times=1: {'words': [word] * times, 'seconds': 1 / batch_size}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    contender = Contender("echo:prepare", 1, word="hello")
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


def test_a_script_parses_measures_and_saves_all_and_one_claim_that_does_not_hold_fails_it(tmp_path, capsys):
    def measure(options):
        assert options.scratch.is_dir() and options.rounds == 2 and options.seeds == [4, 5] and not options.quick
        found = Spread(2.0, 1.0, 3.0)
        return [at_least(2.0, "as fast", found), at_least(2.1, "as fast", found)], {"seconds": [1.0]}

    given = ["--json", str(tmp_path / "found.json"), "--seeds", "4", "5"]
    with pytest.raises(SystemExit) as ended:
        main(measure, "Doc.", arguments=given, rounds=2, seeds=[1], quick=False)
    assert ended.value.code == 1
    saved = harness.json.loads((tmp_path / "found.json").read_text())
    assert [claim["holds"] for claim in saved["claims"]] == [True, False]
    assert saved["seconds"] == [1.0] and saved["machine"] == machine() and saved["options"]["rounds"] == 2
    assert "at least 2.1 × as fast: 2.00 (1.00–3.00), no" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(lambda _: ([Claim("so", "it is", True)], {}), "Doc.", arguments=[])
    assert ended.value.code == 0


def test_missing_data_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(lambda _: ([], {}), "Doc.", "sts/none.csv", arguments=["--data", str(tmp_path)])
    assert f"expected sts/none.csv below {tmp_path}" in capsys.readouterr().err


SCRIPTS = {path.stem for path in Path(harness.__file__).parent.glob("*.py") if "main(" in path.read_text()}


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", sorted(SCRIPTS - {"harness"}))
def test_every_script_lists_its_options(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert ended.value.code == 0
    assert f"python -m benchmarks.{name}" in capsys.readouterr().out


def test_the_machine_names_the_versions():
    libraries = {"Python": sys.version.split()[0], "transformers": transformers.__version__, "numpy": np.__version__}
    assert machine().startswith("machine: ")
    assert all(f"{name} {version}" in machine() for name, version in libraries.items())


def fill() -> Callable[[], int]:
    def work() -> int:
        taken = b"x" * 100_000_000
        harness.time.sleep(0.3)
        return len(taken)

    return work


def test_private_memory_sees_what_work_takes():
    found = memory_of(fill)
    assert found.result == 100_000_000 and 90 < found.beyond < 250
