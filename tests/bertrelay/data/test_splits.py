"""What two splits of a training share is counted."""

from bertrelay.data.splits import count_shared


def test_distinct_items_of_two_splits_are_counted_and_many_are_warned_of(capsys):
    train = [(name,) for name in "abcab"]
    assert count_shared(train, [("x",), ("y",), ("x",)], "dev", "pairs") == 0
    assert capsys.readouterr().err == ""
    assert count_shared(train, [("a",), *(f"{n}" for n in range(99)), ("a",)], "dev", "pairs") == 1
    assert capsys.readouterr().err == "dev: of 100 distinct pairs, 1 in train too\n"
    assert count_shared(train, [("a",), ("b",), *(f"{n}" for n in range(98))], "dev_sts x", "pairs") == 2
    assert "dev_sts x: of 100 distinct pairs, 2 in train too; so many that scores" in capsys.readouterr().err
