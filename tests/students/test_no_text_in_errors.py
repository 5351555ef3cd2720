"""No error quotes a sentence that was passed where a file is expected."""

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

# Calls, and values that are no file, number or name.
CALLS: dict[str, tuple[Callable[[Any, Path], object], tuple[Any, ...]]] = {
    "search": (lambda value, _: search("no model", value, ["a dog"]), AS_FILES),
    "search in a folder": (lambda value, path: search("no model", value, ["a dog"], index=path / "index"), AS_FILES),
    "build_index": (lambda value, path: build_index("no model", value, path / "index"), AS_FILES),
    "mine_files": (lambda value, path: mine_files("no model", value, value, path / "mined.tsv"), AS_FILES),
    "encode_file": (lambda value, path: encode_file("no model", value, path / "vectors.npy"), AS_FILES),
    "model": (lambda value, _: SentenceEncoder.load(value), ([SENTENCE],)),
    "device": (lambda value, _: SentenceEncoder.load("model", value), (SENTENCE,)),
    "metric": (lambda value, _: pairwise(VECTORS, VECTORS, value), (SENTENCE,)),
    "method": (lambda value, _: mine(VECTORS, VECTORS, method=value), (SENTENCE,)),
    "k": (lambda value, _: mine(VECTORS, VECTORS, value), (SENTENCE, [SENTENCE])),
    "threshold": (lambda value, _: mine(VECTORS, VECTORS, threshold=value), (SENTENCE,)),
    "vectors": (lambda value, _: mine(value, value), ([SENTENCE],)),
    "vectors of pairs": (lambda value, _: pairwise(value, value), ([SENTENCE],)),
    "prompt": (lambda value, _: Prompts({"query": "q"}).text(value), (SENTENCE, [SENTENCE])),
}


@pytest.mark.parametrize("call", CALLS)
def test_sentences_for_another_value_are_refused_without_a_word_of_them(call, tmp_path):
    work, wrong = CALLS[call]
    for value in wrong:
        with pytest.raises(RequestError, match=r"expected .* found ") as refused:
            work(value, tmp_path)
        assert "Marker" not in str(refused.value)
