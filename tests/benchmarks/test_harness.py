import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import (
    Contender,
    Result,
    Spread,
    at_least,
    in_turns,
    latencies,
    machine,
    main,
    print_results,
)
from benchmarks.machine import memories


@pytest.fixture(autouse=True)
def restored_environment(monkeypatch):
    """Undoes what a script sets for all that it starts."""
    before = dict(os.environ)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    yield
    os.environ.clear()
    os.environ.update(before)


PREPARE = """
def prepare(word):
    print('noise of a library')
    return lambda batch_size, number: {'words': [word] * (number or 1), 'seconds': 1 / batch_size}
"""


def test_a_contender_prepares_once_and_works_with_its_fastest_batch_size(tmp_path):
    (tmp_path / "echo.py").write_text(PREPARE)
    os.environ["PYTHONPATH"] = str(tmp_path)
    contender = Contender("echo:prepare", [1, 4, 2], word="hello")
    assert contender(2) == {"words": ["hello", "hello"], "seconds": 0.25, "batch_size": 4}
    contender.end()
    with pytest.raises(SystemExit, match="unexpected keyword argument 'unknown'"):
        Contender("echo:prepare", [1], unknown=1)


def test_ratios_are_taken_round_by_round_and_shown_beside_each_contender(capsys):
    seconds = {"ours": [2.0, 1.0, 10.0], "peer": [8.0, 2.0, 30.0]}
    results = {name: Result(name, [{"seconds": value} for value in values]) for name, values in seconds.items()}
    assert results["ours"].speed_over(results["peer"]) == Spread(3.0, 2.0, 4.0)
    print_results(results, {"words": 40}, {"name": lambda result: result.name.upper()})
    peer = capsys.readouterr().out.splitlines()[2].split()
    assert peer == ["peer", "5.0", "(1.3–20.0)", "PEER", "3.00", "(2.00–4.00)"]


def test_latencies_are_the_median_and_the_95th_percentile_of_single_calls(monkeypatch):
    monkeypatch.setattr(harness, "timed", lambda function, query: (function(query), query / 1e3))
    queries = []
    milliseconds = latencies(queries.append, [*range(1, 100)])
    assert milliseconds == {"p50": 50.0, "p95": pytest.approx(95.0)} and queries == [*range(1, 100)]


def test_every_other_round_runs_backwards(monkeypatch):
    monkeypatch.setattr(harness, "SECONDS_OF_REST", 0)
    turns: list[tuple[str, int]] = []
    works = {name: lambda number, name=name: turns.append((name, number)) or {"round": number} for name in "ab"}
    assert [result.values("round") for result in in_turns(works, 2).values()] == [[0, 1], [0, 1]]
    assert turns == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]


def test_a_script_parses_measures_and_saves_all_and_one_claim_that_does_not_hold_fails_it(tmp_path, capsys):
    def measure(options):
        assert options.scratch.is_dir() and options.rounds == 2 and options.seeds == [4, 5] and not options.quick
        seconds = Spread(2.0, 1.0, 3.0)
        return [at_least(2.0, "as fast", seconds), at_least(2.1, "as fast", seconds)], {"seconds": seconds}

    arguments = ["--json", str(tmp_path / "measured.json"), "--seeds", "4", "5"]
    with pytest.raises(SystemExit) as ended:
        main(measure, "Doc.", arguments=arguments, rounds=2, seeds=[1], quick=False)
    assert ended.value.code == 1
    saved = harness.json.loads((tmp_path / "measured.json").read_text())
    assert [claim["holds"] for claim in saved["claims"]] == [True, False]
    assert saved["seconds"] == {"median": 2.0, "low": 1.0, "high": 3.0}
    assert saved["machine"] == machine() and saved["options"]["rounds"] == 2
    assert "at least 2.1 × as fast: 2.00 (1.00–3.00), no" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(["--data", "/none"], "expected sts/none.csv below /none"), (["--colour", "red"], "choose from 'green'")],
)
def test_missing_data_and_unknown_choices_are_named(arguments, error, capsys):
    with pytest.raises(SystemExit):
        main(lambda _: ([], {}), "Doc.", "sts/none.csv", arguments=arguments, colour=["green"])
    assert error in capsys.readouterr().err


def test_a_gpu_is_used_on_request_alone(monkeypatch):
    seen = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: os.environ.get("CUDA_VISIBLE_DEVICES") == "0")
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    for device, visible in (("cpu", "0"), ("cuda", "0"), ("cuda", "")):
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
        with pytest.raises(SystemExit) as ended:
            main(lambda _: (seen.append(machine()) or [], {}), "Doc.", arguments=["--device", device])
        assert ended.value.code == (0 if visible else "--device cuda: expected a GPU that torch can use, found none")
    assert ["a GPU" in line for line in seen] == [False, True]


SCRIPTS = {path.stem for path in Path(harness.__file__).parent.glob("*.py") if "__main__" in path.read_text()}


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", sorted(SCRIPTS - {"harness"}))
def test_every_script_lists_its_options(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert ended.value.code == 0
    assert f"python -m benchmarks.{name}" in capsys.readouterr().out


def fill() -> Callable[[], int]:
    return lambda: len([b"x" * 100_000_000, harness.time.sleep(0.3)])


def test_private_memory_sees_what_work_takes():
    (memory,) = memories(fill, {"100 MB": ()})
    assert memory.result == 2 and 90 < memory.beyond < 250
