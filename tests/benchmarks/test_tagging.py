import pytest

from benchmarks.ner import f1
from benchmarks.tagging import AUTO, DEFAULT, SLACK_MB, Compared, Seen, claims, long_documents
from domain.biomedical.entities.examples import Example
from domain.biomedical.entities.labels import LabelSet

SECONDS = {DEFAULT: [4.0], AUTO: [1.0]}
SAME = Compared(10, 0, 0, 0.0)


def seen(words: int, text: float, ready: float, peak: float) -> Seen:
    return Seen(words, 1, text, ready, peak, 0, 1.0)


@pytest.mark.parametrize(("growth", "holds"), [(0.0, True), (SLACK_MB, True), (SLACK_MB + 1, False)])
def test_memory_may_grow_by_the_slack_and_not_by_the_text_again(growth: float, holds: bool) -> None:
    short, long = seen(100_000, 1.0, 500.0, 600.0), seen(1_000_000, 100.0, 600.0, 700.0 + growth)
    speed, memory, same = claims(SECONDS, [short, long], SAME)
    assert (speed.holds, memory.holds, same.holds) == (True, holds, True)
    assert f"at most {SLACK_MB} MB" in memory.text


def test_the_short_documents_together_are_the_long_one() -> None:
    texts = ["one two three", "four", "five six"]
    short, (long,) = long_documents(texts, 4, documents=2), long_documents(texts, 8)
    assert short == ["one two three\n\nfour", "five six\n\none two three"] and long == "\n\n".join(short)


def test_where_nothing_was_found_nothing_is_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    level = [seen(1, 1.0, 1.0, 1.0)] * 2
    assert len(claims(SECONDS, level, Compared(0, 0, 0, 0.0))) == 2
    assert "nothing found, no claim" in capsys.readouterr().out
    assert not claims(SECONDS, level, Compared(999, 1, 1, 0.0))[2].holds


def test_an_f1_of_nothing_is_no_zero() -> None:
    model = type("Model", (), {"labels": LabelSet.of_types(["Disease"])})
    with pytest.raises(SystemExit, match="there are none"):
        f1([Example(("no",), ("O",), "1")], [("O",)], model)  # type: ignore[arg-type]
