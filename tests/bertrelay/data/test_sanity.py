"""Sanity checks of training data; the columns of each task are tested with that task."""

import pytest

from bertrelay.data.sanity import check_labels, count_leaked
from bertrelay.errors import RequestError


def test_distinct_items_in_two_splits_are_counted_and_many_are_warned_of(capsys):
    train = [(name,) for name in "abcab"]
    assert count_leaked(train, [("x",), ("y",), ("x",)], "dev", "pairs") == 0
    assert capsys.readouterr().err == ""
    assert count_leaked(train, [("a",), *(f"{n}" for n in range(99)), ("a",)], "dev", "pairs") == 1
    assert capsys.readouterr().err == "dev: of 100 distinct pairs, 1 in train too\n"
    assert count_leaked(train, [("a",), ("b",), *(f"{n}" for n in range(98))], "dev_sts x", "pairs") == 2
    assert "dev_sts x: of 100 distinct pairs, 2 in train too; so many that scores" in capsys.readouterr().err


def test_few_labels_of_few_records_are_labels():
    check_labels("a", 19, 19, 0.0)
    check_labels("a", 40, 200, 0.2)
    with pytest.raises(RequestError):
        check_labels("a", 41, 200, 0.2)
