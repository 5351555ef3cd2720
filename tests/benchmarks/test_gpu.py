"""The frame of the parts that need a GPU: what does not fit into the time is said to be left out, or is ended."""

from argparse import Namespace
from dataclasses import asdict

from benchmarks import gpu
from benchmarks.harness import Claim


def test_a_part_that_does_not_fit_into_the_time_is_not_begun_or_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "command", lambda part, *_: ["http.server", "0"] if part == "endless" else ["this"])
    monkeypatch.setattr(gpu, "LEAST_SECONDS", 0.1)
    options = Namespace(scratch=tmp_path)
    assert gpu.run_part("short", options, tmp_path, 60)["status"] == "exit 0"
    ended = gpu.run_part("endless", options, tmp_path, 0.5)
    assert ended["status"] == gpu.ENDED and 0.5 <= ended["seconds"] < 20
    assert gpu.run_part("late", options, tmp_path, 0.05) == {"status": gpu.NOT_BEGUN, "seconds": 0.0}


def test_claims_made_for_cpus_fail_nothing_and_a_part_without_claims_fails():
    claims = {"status": "exit 1", "claims": []}
    assert gpu.holds("ner", claims) and not gpu.holds("encode", claims)
    assert not gpu.holds("ner", {"status": "exit 1"}) and not gpu.holds("tests", {"status": gpu.ENDED})


def test_the_table_has_the_claims_of_every_part(capsys):
    claims = [asdict(Claim("as fast", "2.00", True)), asdict(Claim("as good", "0.1 worse", False))]
    gpu.print_table({"encode": {"status": "exit 1", "seconds": 7.0, "claims": claims}})
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line]
    assert lines == ["encode           7 s  exit 1", "as fast: 2.00, yes", "as good: 0.1 worse, no"]


def test_the_flagship_gets_the_recipes_changes_and_a_budget_within_the_time(tmp_path):
    options = Namespace(scratch=tmp_path, data=tmp_path, set=["vars.teacher=T"])
    words = gpu.command(gpu.FLAGSHIP, options, tmp_path, 300.0)
    assert words[:3] == ["pipelines", "run", "multilingual-files"]
    assert {"vars.minutes=3.00", "vars.teacher=T", f"vars.data={tmp_path}"} <= set(words)
