from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertrelay.data.tables import Table
from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from students.index import Hit
from students.index_build import build_index, search

MakeEncoder = Callable[..., SentenceEncoder]
LINES = ["the dog runs", "two cats sleep", "ein Hund bellt", "le chat dort"]


@pytest.fixture(scope="module")
def encoder(tiny_encoder: MakeEncoder) -> SentenceEncoder:
    return tiny_encoder("bert", LINES * 5)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "c.txt").write_text("\n".join(LINES), encoding="utf-8")
    return tmp_path / "c.txt"


def test_the_first_call_builds_beside_the_corpus_and_others_find_the_same_there(
    encoder: SentenceEncoder, corpus: Path
) -> None:
    built = search(encoder, corpus, LINES[1:3], 2, precision="fp32")
    assert [[hit.line for hit in hits[:1]] for hits in built] == [[2], [3]]
    before = (corpus.with_name("c.txt.index") / "index.json").stat()
    assert search(encoder, Table(path=str(corpus)), LINES[1:3], 2, precision="fp32") == built
    assert search(encoder, None, LINES[1:3], 2, index=f"{corpus}.index", precision="fp32") == built
    assert (corpus.with_name("c.txt.index") / "index.json").stat() == before


def test_an_index_is_built_anew_and_its_graph_walked_as_told(encoder: SentenceEncoder, corpus: Path) -> None:
    def ask(**given: Any) -> list[list[Hit]]:
        return search(encoder, corpus, LINES[:1], 1, precision="fp32", **given)

    assert ask(kind="hnsw", ef_search=5)[0][0].line == 1
    corpus.write_text("\n".join(["ein Hund bellt", *LINES]), encoding="utf-8")
    with pytest.raises(RequestError, match="its content differs"):
        ask()
    assert ask(rebuild=True)[0][0].line == 2
    with pytest.raises(RequestError, match="ef_search: expected search through a graph"):
        ask(ef_search=5)
    with pytest.raises(RequestError, match="rebuild: expected a corpus"):
        search(encoder, None, LINES[:1], index=f"{corpus}.index", rebuild=True)


def test_without_a_corpus_and_an_index_there_is_nothing_to_search(encoder: SentenceEncoder) -> None:
    with pytest.raises(RequestError, match="expected the folder of an index"):
        search(encoder, None, ["a dog"])


def test_a_kind_that_there_is_not_is_refused_before_anything_is_built(encoder: SentenceEncoder, corpus: Path) -> None:
    for ask in (
        lambda kind: search(encoder, corpus, ["a dog"], kind=kind),
        lambda kind: build_index(encoder, corpus, f"{corpus}.index", kind=kind),
    ):
        with pytest.raises(RequestError, match="kind: expected auto, exact or hnsw, found 'hsnw'"):
            ask("hsnw")
    assert not Path(f"{corpus}.index").exists()


def test_a_graph_that_is_not_there_is_not_walked_in_silence(encoder: SentenceEncoder, corpus: Path) -> None:
    search(encoder, corpus, ["a dog"])
    with pytest.raises(RequestError, match=r"kind: expected a graph \(hnsw\) in .*c\.txt\.index, found none"):
        search(encoder, None, ["a dog"], index=f"{corpus}.index", kind="hnsw")
