import pytest

from benchmarks.ner import f1
from benchmarks.tagging import AUTO, DEFAULT, MOST_MB, SLACK_MB, Compared, Seen, claims, long_documents
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.examples import Example

SECONDS = {DEFAULT: [4.0], AUTO: [1.0]}
SAME = Compared(10, 0, 0, 0.0)


def seen(words: int, text: float, ready: float, peak: float) -> Seen:
    return Seen(words, 1, text, ready, peak, 0, 1.0)


@pytest.mark.parametrize(("growth", "holds"), [(0.0, True), (SLACK_MB, True), (SLACK_MB + 1, False)])
def test_memory_may_grow_by_the_slack_and_not_by_the_text_again(growth: float, holds: bool) -> None:
    short, long = seen(100_000, 1.0, 500.0, 600.0), seen(1_000_000, 100.0, 600.0, 700.0 + growth)
    speed, memory, most, same = claims(SECONDS, [short, long], SAME)
    assert (speed.holds, memory.holds, most.holds, same.holds) == (True, holds, True, True)
    assert f"at most {SLACK_MB} MB" in memory.text


def test_what_both_take_has_a_limit_too() -> None:
    for beyond, holds in ((MOST_MB, True), (MOST_MB + 1, False)):
        level = [seen(1_000_000, 10.0, 500.0, 500.0 + beyond)] * 2
        assert claims(SECONDS, level, SAME)[2].holds == holds


def test_documents_are_texts_until_there_are_words_enough() -> None:
    texts = ["one two three", "four", "five six"]
    assert long_documents(texts, 4, 2) == ["one two three\n\nfour", "five six\n\none two three"]


def test_where_nothing_was_found_nothing_is_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    level = [seen(1, 1.0, 1.0, 1.0)] * 2
    assert len(claims(SECONDS, level, Compared(0, 0, 0, 0.0))) == 3
    assert "nothing found, no claim" in capsys.readouterr().out
    assert not claims(SECONDS, level, Compared(999, 1, 1, 0.0))[3].holds


def test_an_f1_of_nothing_is_no_zero() -> None:
    model = type("Model", (), {"labels": LabelSet.of_types(["Disease"])})
    with pytest.raises(SystemExit, match="there are none"):
        f1([Example(("no",), ("O",), "1")], [("O",)], model)  # type: ignore[arg-type]
