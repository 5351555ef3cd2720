import pytest

from benchmarks import contenders
from benchmarks.contenders import Claim, Spread, at_least, in_turns, judge


def test_a_ratio_is_taken_round_by_round_and_its_middle_and_ends_are_told() -> None:
    spread = Spread.of_ratios([8.0, 2.0, 30.0], [2.0, 1.0, 10.0])
    assert spread == (3.0, 2.0, 4.0)
    assert str(spread) == "3.00 (2.00–4.00)"


def test_every_other_round_goes_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "SECONDS_OF_REST", 0)
    turns: list[tuple[str, int]] = []
    works = {name: lambda number, name=name: turns.append((name, number)) or {"round": number} for name in "ab"}
    assert in_turns(works, 2) == {name: [{"round": 0}, {"round": 1}] for name in "ab"}
    assert turns == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]


def test_one_claim_that_does_not_hold_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    met, missed = at_least(2.0, "as fast", Spread(2.0, 1.0, 3.0)), at_least(2.1, "as fast", Spread(2.0, 1.0, 3.0))
    assert judge([met])
    assert not judge([met, missed, Claim("so", "it is", True)])
    assert "at least 2.1 × as fast: 2.00 (1.00–3.00), no\n" in capsys.readouterr().out
