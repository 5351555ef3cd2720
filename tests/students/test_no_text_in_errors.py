"""Sentences given where a file is expected stand in no error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertrelay import encode_file
from bertrelay.errors import RequestError
from students import build_index, mine_files, search

SENTENCE = "The patient Mr Marker barks."

CALLS: dict[str, Callable[[Any, Path], object]] = {
    "search": lambda given, _: search("no model", given, ["a dog"]),
    "search in a folder": lambda given, folder: search("no model", given, ["a dog"], index=folder / "index"),
    "build_index": lambda given, folder: build_index("no model", given, folder / "index"),
    "mine_files": lambda given, folder: mine_files("no model", given, given, folder / "mined.tsv"),
    "encode_file": lambda given, folder: encode_file("no model", given, folder / "vectors.npy"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("given", [SENTENCE, [SENTENCE], (SENTENCE, SENTENCE), {SENTENCE: 1}])
def test_sentences_for_a_file_are_refused_without_a_word_of_them(call: str, given: Any, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="expected a Table or the name of a file of sentences, found ") as refused:
        CALLS[call](given, tmp_path)
    assert "Marker" not in str(refused.value)
