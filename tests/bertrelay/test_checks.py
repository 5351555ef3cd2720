"""Arguments of public functions: a wrong one is named, and a right one is streamed."""

from itertools import count

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from bertrelay.checks import check_choice, check_count, check_dimensions, iterate_pairs, iterate_texts, list_texts
from bertrelay.errors import RequestError

TEXTS = ["a", "", "é"]


@pytest.mark.parametrize("kind", [list, tuple, iter, np.array, pd.Series, pa.array])
def test_texts_of_any_sequence_become_a_list(kind):
    assert list_texts(kind(TEXTS), "encode") == TEXTS


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("a dog", r"expected a list of texts, found one string; write \[text\]"),
        ({"text": TEXTS}, "found a dict, which would give its keys"),
        (pd.DataFrame({"text": TEXTS}), "found a DataFrame, which would give its keys or column names"),
        (pa.table({"text": TEXTS}), "found a Table, which"),
        (b"a dog", "found bytes"),
        (3, "found int"),
        (np.array("a"), "found ndarray"),
        (["a", None], "expected text, found NoneType at position 1"),
        (["a", "b\ud800"], "half of a surrogate pair at character 1 of the text at position 1"),
    ],
)
def test_anything_but_texts_is_refused_without_being_quoted(texts, message):
    with pytest.raises(RequestError, match=f"^encode: .*{message}") as refused:
        list_texts(texts, "encode")
    assert "dog" not in str(refused.value)


def test_texts_and_pairs_are_streamed_and_what_is_not_iterable_is_refused_at_once():
    assert next(iterate_texts((str(n) for n in count()), "x")) == "0"
    assert next(iterate_pairs(((str(n), "b") for n in count()), "x")) == ("0", "b")
    assert list(iterate_pairs(np.array([["a", "b"]]), "x")) == [("a", "b")]
    with pytest.raises(RequestError, match="found int"):
        iterate_texts(3, "x")


@pytest.mark.parametrize("pair", [("a",), ("a", "b", "c"), "ab", ("a", 1), 5])
def test_anything_but_two_texts_is_no_pair(pair):
    with pytest.raises(RequestError, match=r"^predict: expected .* at position 1$"):
        list(iterate_pairs([("a", "b"), pair], "predict"))


def test_choices_counts_and_dimensions_are_checked():
    check_choice("metric", "dot", ["cosine", "dot"])
    check_count("top_k", None)
    check_count("top_k", np.int64(1))
    check_dimensions([], 4)
    check_dimensions([2, 4], 4)
    with pytest.raises(RequestError, match=r"^metric: expected cosine or dot, found 'manhattan'$"):
        check_choice("metric", "manhattan", ["cosine", "dot"])
    with pytest.raises(RequestError, match=r"^metric: expected cosine or dot, found str$"):
        check_choice("metric", "a text of a patient", ["cosine", "dot"])
    for wrong in (0, -1, 1.5, "3"):
        with pytest.raises(RequestError, match=r"^top_k: expected 1 or more, found "):
            check_count("top_k", wrong)
    with pytest.raises(RequestError, match="expected at most the 4 of the model's vectors, found 8"):
        check_dimensions([2, 8], 4)
