from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError, WorkError
from students.index import SearchIndex, open_index
from students.index_build import build_index

MakeEncoder = Callable[..., SentenceEncoder]
SUBJECTS, VERBS = ["the dog", "two cats", "ein Hund", "le chat", "une souris"], ["runs", "bellt", "dort", "singt"]
LINES = [f"{subject} {verb}" for verb in VERBS for subject in SUBJECTS]


@pytest.fixture(scope="module")
def encoder(tiny_encoder: MakeEncoder) -> SentenceEncoder:
    return tiny_encoder("bert", LINES)


@pytest.fixture(scope="module")
def index(encoder: SentenceEncoder, tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    corpus = tmp_path_factory.mktemp("search") / "corpus.txt"
    corpus.write_text("\n".join(LINES), encoding="utf-8")
    return build_index(encoder, corpus, f"{corpus}.index", kind="hnsw", precision="fp32")


def test_every_query_of_many_has_its_own_hits_best_first(index: SearchIndex) -> None:
    found = index.search([*LINES, LINES[0]], 4, precision="fp32")
    assert [hits[0].text for hits in found] == [*LINES, LINES[0]]
    assert [hits[0].line for hits in found] == [*range(1, 21), 1]
    for hits in found:
        assert hits[0].similarity == pytest.approx(1, abs=1e-5)
        assert [hit.similarity for hit in hits] == sorted((hit.similarity for hit in hits), reverse=True)
    assert max(hit.similarity for hits in found for hit in hits) <= 1


def test_vectors_of_another_size_are_refused(index: SearchIndex) -> None:
    with pytest.raises(RequestError, match=r"expected query vectors of shape \(n, 16\), found \(2, 8\)"):
        index.neighbours(np.ones((2, 8), np.float32), 1)


@pytest.mark.parametrize(
    ("queries", "k", "told"),
    [
        (["a dog", " \n"], 1, r"found an empty one \(query 2\)"),
        ("a dog", 1, r"found one string; write \[text\]"),
        (["a dog", 3], 1, r"search: expected text, found int at position 1"),
        (["a dog"], 0, "k: expected 1 or more, found 0"),
    ],
)
def test_wrong_queries_are_refused(index: SearchIndex, queries: list[str], k: int, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        index.search(queries, k)


def test_candidates_of_a_graph_are_for_one_that_is_walked(index: SearchIndex, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(LINES), encoding="utf-8")
    without = build_index(index.encoder, tmp_path / "corpus.txt", tmp_path / "index", precision="fp32")
    with pytest.raises(RequestError, match=r"ef_search: expected search through a graph .*found exact search"):
        without.search(["a dog"], ef_search=5)
    with pytest.raises(RequestError, match="ef_search: expected search through a graph"):
        index.search(["a dog"], exact=True, ef_search=5)
    with pytest.raises(RequestError, match="ef_search: expected 1 or more, found 0"):
        index.search(["a dog"], ef_search=0)
    assert len(index.search(["a dog"], 3, ef_search=5)[0]) == 3


def test_where_the_graph_leads_to_fewer_there_are_fewer_hits(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> tuple[np.ndarray, np.ndarray]:
        return np.array([[0.5, -np.inf]], np.float32), np.array([[6, -1]])

    monkeypatch.setattr("students.index.approximate_neighbours", lost)
    assert index.search(["a dog"], 2) == [[(0.5, 7, LINES[6])]]


def test_a_query_prompt_stands_before_queries_alone(tiny_encoder: MakeEncoder, tmp_path: Path) -> None:
    from bertrelay.layout import Prompts

    encoder = tiny_encoder("bert", LINES, prompts=Prompts({"query": "le chat "}))
    (tmp_path / "corpus.txt").write_text("\n".join(LINES), encoding="utf-8")
    index = build_index(encoder, tmp_path / "corpus.txt", tmp_path / "index", precision="fp32")
    hit = index.search(["dort"], 1, prompt_name="query", precision="fp32")[0][0]
    assert hit.text == "le chat dort"
    assert hit.similarity == pytest.approx(1, abs=1e-5)


def test_a_query_whose_vector_is_not_finite_is_told(index: SearchIndex, tiny_encoder: MakeEncoder) -> None:
    broken = _with_norms(tiny_encoder("bert", LINES), float("nan"))
    with pytest.raises(WorkError, match="not finite for query 1"):
        SearchIndex(index.folder, index.facts, broken, index.vectors, index.sentences, None).search(["a dog"])


def _with_norms(encoder: SentenceEncoder, value: float) -> SentenceEncoder:
    """The last normalisation scaled by `value`, and so every vector."""
    norm = encoder.backbone.encoder.layer[-1].output.LayerNorm
    norm.weight.data.fill_(value)
    norm.bias.data.fill_(value)
    return encoder


def test_an_index_that_is_not_there_is_told_before_the_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="expected an index, found none"):
        open_index("/no/such/model", tmp_path)


def test_the_index_opens_by_the_name_of_its_model(index: SearchIndex, encoder: SentenceEncoder, tmp_path: Path) -> None:
    encoder.save(tmp_path / "model")
    found = open_index(tmp_path / "model", index.folder).search(["le chat dort"], 1)[0][0]
    assert (found.line, found.text) == (1 + LINES.index("le chat dort"), "le chat dort")
