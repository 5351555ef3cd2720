"""Sentences given where a file is expected stand in no error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertrelay import SentenceEncoder, encode_file
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import pairwise
from bertrelay.model.layout import Prompts
from students import build_index, mine, mine_files, search

SENTENCE = "The patient Mr Marker barks."

VECTORS = np.eye(2, dtype=np.float32)
AS_FILES = (SENTENCE, [SENTENCE], (SENTENCE, SENTENCE), {SENTENCE: 1})

# What is called, and with what in a place of a file, or of another value.
CALLS: dict[str, tuple[Callable[[Any, Path], object], tuple[Any, ...]]] = {
    "search": (lambda given, _: search("no model", given, ["a dog"]), AS_FILES),
    "search in a folder": (lambda given, here: search("no model", given, ["a dog"], index=here / "index"), AS_FILES),
    "build_index": (lambda given, here: build_index("no model", given, here / "index"), AS_FILES),
    "mine_files": (lambda given, here: mine_files("no model", given, given, here / "mined.tsv"), AS_FILES),
    "encode_file": (lambda given, here: encode_file("no model", given, here / "vectors.npy"), AS_FILES),
    "model": (lambda given, _: SentenceEncoder.load(given), ([SENTENCE],)),
    "device": (lambda given, _: SentenceEncoder.load("model", given), (SENTENCE,)),
    "metric": (lambda given, _: pairwise(VECTORS, VECTORS, given), (SENTENCE,)),
    "method": (lambda given, _: mine(VECTORS, VECTORS, method=given), (SENTENCE,)),
    "k": (lambda given, _: mine(VECTORS, VECTORS, given), (SENTENCE, [SENTENCE])),
    "threshold": (lambda given, _: mine(VECTORS, VECTORS, threshold=given), (SENTENCE,)),
    "vectors": (lambda given, _: mine(given, given), ([SENTENCE],)),
    "vectors of pairs": (lambda given, _: pairwise(given, given), ([SENTENCE],)),
    "prompt": (lambda given, _: Prompts({"query": "q"}).text(given), (SENTENCE, [SENTENCE])),
}


@pytest.mark.parametrize("call", CALLS)
def test_sentences_for_another_value_are_refused_without_a_word_of_them(call, tmp_path):
    work, wrong = CALLS[call]
    for given in wrong:
        with pytest.raises(RequestError, match=r"expected .* found ") as refused:
            work(given, tmp_path)
        assert "Marker" not in str(refused.value)
