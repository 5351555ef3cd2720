"""Search by words against bm25s, and fused with search by vectors."""

import numpy as np
import pytest

from bertrelay.errors import RequestError
from students import build_index, open_index, search
from students.searching.lexical import WordCounts, WordIndex, fuse, matching_words, word_spans

TEXTS = [
    "the red bird sings",
    "a green tree and a red red bird",
    "blue water",
    "the old stones of the old town",
    "bird bird bird",
]
RECORDED = {
    "red bird": [0.689983, 0.6532718, 0.0, 0.0, 0.4186381],
    "the old town": [0.4270579, 0.0, 0.0, 1.7828262, 0.0],
    "water stones": [0.0, 0.0, 0.8276384, 0.530639, 0.0],
    "missing": [0.0] * 5,
}
"""Of bm25s 0.3.16, method lucene, k1 = 1.2, b = 0.75."""


def test_scores_are_those_of_bm25s(tmp_path):
    built, counts = WordIndex.build(TEXTS), WordCounts.of(TEXTS)
    counts.write(tmp_path / "words.npz")
    parts = [WordCounts.of(TEXTS[:2]), WordCounts.of(["bird town", *TEXTS[2:]])]
    live = np.array([True, True, False, True, True, True])
    for index in (built, WordIndex([WordCounts.open(tmp_path / "words.npz")])):
        for query, scores in RECORDED.items():
            np.testing.assert_allclose(index.scores(query.upper()), scores, atol=1e-6)
    for query, scores in RECORDED.items():
        np.testing.assert_allclose(WordIndex(parts, live).scores(query)[live], scores, atol=1e-6)
    scores, rows = built.neighbours(["red bird", "missing"], 4)
    assert rows.tolist() == [[0, 1, 4, -1], [-1] * 4] and np.isneginf(scores[1]).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Der Hund, die Katze-2!", ["der", "hund", "die", "katze", "2"]),
        ("STRASSE Straße ＡＢＣ", ["strasse", "strasse", "abc"]),
        ("東京都 a", ["東京", "京都", "a"]),
        ("水 강아지가", ["水", "강아", "아지", "지가"]),
        ("snake_case", ["snake", "case"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("", []),
    ],
)
def test_words_of_scripts_with_and_without_spaces(text, words):
    assert [word for word, _, _ in word_spans(text)] == words


def test_matching_words_are_as_written_and_pairs_that_overlap_are_one():
    assert matching_words("the dogs of Tokyo 東京都", "Dogs in 東京都心, dogs") == ["Dogs", "東京都", "dogs"]


def test_fusion_by_hand():
    scores, rows = fuse(np.array([[4, 7, 2]]), np.array([[7, -1, -1]]), 4)
    assert rows.tolist() == [[7, 4, 2, -1]]
    np.testing.assert_allclose(scores[0, :3], [1 / 62 + 1 / 61, 1 / 61, 1 / 63], rtol=1e-6)
    assert fuse(np.array([[4, 7]]), np.array([[7, 4]]), 1, 0.1)[1].tolist() == [[4]]
    assert fuse(np.array([[4, 7]]), np.array([[7, 4]]), 1, 0.9)[1].tolist() == [[7]]


def test_an_index_gets_its_words_later_and_finds_by_them(tiny_encoder, tmp_path):
    (tmp_path / "corpus.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    encoder = tiny_encoder("bert", TEXTS)
    build_index(encoder, tmp_path / "corpus.txt", tmp_path / "index")
    with pytest.raises(RequestError, match="expected dense, found an index without words"):
        open_index(encoder, tmp_path / "index").search(["red bird"], mode="lexical")
    vectors = (tmp_path / "index/000000.vectors.npy").stat()
    [hits] = search(encoder, tmp_path / "corpus.txt", ["red bird"], 2, mode="lexical", index=tmp_path / "index")
    assert (tmp_path / "index/000000.vectors.npy").stat().st_mtime_ns == vectors.st_mtime_ns  # not encoded again
    assert [(hit.line, hit.words) for hit in hits] == [(1, ["red", "bird"]), (2, ["red", "bird"])]
    assert hits[0].score == pytest.approx(RECORDED["red bird"][0], abs=1e-6)
    index = open_index(encoder, tmp_path / "index", verify=True)
    [dense] = index.search(["red bird"], 5)
    assert dense[0].score is None and "words" not in dense[0].document
    assert hits[0].similarity == pytest.approx({hit.line: hit.similarity for hit in dense}[1], abs=1e-5)
    [hybrid] = index.search(["red bird"], 5, mode="hybrid")
    ranks = {hit.line: rank for rank, hit in enumerate(dense, 1)}
    expected = {line: 1 / (60 + rank) for line, rank in ranks.items()}
    for rank, line in enumerate((1, 2, 5), 1):
        expected[line] += 1 / (60 + rank)
    assert {hit.line: pytest.approx(hit.score, rel=1e-5) for hit in hybrid} == expected
    assert [hit.line for hit in hybrid] == sorted(expected, key=lambda line: -expected[line])
    (tmp_path / "index/000000.words.npz").write_bytes(b"other")
    with pytest.raises(RequestError, match=r"damaged one: 000000\.words\.npz"):
        open_index(encoder, tmp_path / "index")
