"""Streams in blocks, made by another thread one ahead."""

from collections.abc import Iterator

import pytest

from domain.biomedical.windows import blocks, one_ahead


def test_blocks_are_closed_as_soon_as_they_are_full() -> None:
    texts = ["four", "six si", "", "", "twelve twelv", "a"]
    assert list(blocks(texts, len, 10)) == [["four", "six si"], ["", "", "twelve twelv"], ["a"]]
    assert list(blocks([], len, 10)) == []


def test_what_is_made_ahead_comes_in_order_and_no_more_than_one_ahead() -> None:
    made: list[int] = []

    def making() -> Iterator[int]:
        for number in range(1, 50):
            made.append(number)
            yield number

    for number in one_ahead(making()):
        assert made[:number] == list(range(1, number + 1))
        assert len(made) <= number + 1
    assert len(made) == 49


def test_an_error_in_the_making_is_the_callers() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("no second")

    ahead = one_ahead(failing())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="no second"):
        next(ahead)
