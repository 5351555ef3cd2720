"""A teacher whose vectors are given as files, found by text; what is missing or contradicts is an error."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertrelay.cache import Cache
from bertrelay.encode_files import encode_file
from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder, encoder_digest
from bertrelay.stage import StageContext
from students.distill.settings import DistillSettings
from students.distill.train import run
from students.evaluate.settings import EvaluateSettings
from students.evaluate.stage import run as evaluate
from students.settings import GivenVectors
from students.teacher import VectorTable

TEXTS = ["a dog", "two  cats", "Cafe\u0301", "a bird"]


@pytest.fixture(params=[".parquet", ".npy"])
def given(request, tmp_path):
    """`given(texts, vectors)`: the files of one kind, as a recipe names them."""

    def make(texts, vectors):
        path = tmp_path / f"v{request.param}"
        if request.param == ".parquet":
            pq.write_table(pa.table({"text": texts, "vector": [list(map(float, row)) for row in vectors]}), path)
            return GivenVectors(vectors=str(path))
        np.save(path, np.asarray(vectors, np.float32))
        (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return GivenVectors(vectors=str(path), texts=str(tmp_path / "texts.txt"))

    return make


def test_vectors_are_found_by_text_whatever_its_spaces_and_its_form(given, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    table = VectorTable.open(given(TEXTS, vectors), Cache(tmp_path / "cache"))
    assert table.dim == 3
    np.testing.assert_array_equal(table.encode(["Café", "a bird", "a dog", "two cats"]), vectors[[2, 3, 0, 1]])


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_vectors_of_other_floats_are_converted(tmp_path, kind):
    vectors = np.random.default_rng(0).normal(size=(4, 3)).astype(kind)
    np.save(tmp_path / "v.npy", vectors)
    (tmp_path / "t.txt").write_text("\n".join(TEXTS))
    source = GivenVectors(vectors=str(tmp_path / "v.npy"), texts=str(tmp_path / "t.txt"))
    for _ in range(2):  # the second from the cache
        table = VectorTable.open(source, Cache(tmp_path / "cache"))
        np.testing.assert_array_equal(table.encode(TEXTS), vectors.astype(np.float32))


def test_what_is_missing_or_contradicts_is_reported(given, tmp_path):
    table = VectorTable.open(given(TEXTS, np.eye(4)), Cache(tmp_path / "cache"))
    with pytest.raises(RequestError, match=r"2 of 3 sentences have no vector in .*v\."):
        table.encode(["a dog", "a wolf", "a fox"])
    listed = tmp_path / "listed.txt"
    with pytest.raises(RequestError, match=r"2 of 4 sentences .* They are in .*listed\.txt, a line each"):
        table.require([["a dog", "a wolf"], ["a fox", "a bird"]], listed)
    assert listed.read_text() == "a wolf\na fox\n"
    table.require([["a dog"], ["a bird"]], listed)
    assert not listed.exists()
    same = np.eye(4)[[0, 1, 2, 1]]
    VectorTable.open(given(["a dog", "a cat", "an owl", "a  cat"], same), Cache(tmp_path / "same"))
    with pytest.raises(RequestError, match=r"several for 1 of them, the first in rows 2 and 4"):
        VectorTable.open(given(["a dog", "a cat", "an owl", "a  cat"], np.eye(4)), Cache(tmp_path / "others"))


def test_numbers_that_are_not_finite_and_files_that_do_not_fit_are_refused(given, tmp_path):
    with pytest.raises(RequestError, match=r"expected finite numbers in .*row 2"):
        VectorTable.open(given(["a", "b"], [[1, 2], [np.nan, 1]]), Cache(tmp_path / "cache"))
    np.save(tmp_path / "w.npy", np.eye(3, dtype=np.float32))
    (tmp_path / "two.txt").write_text("a\nb\n")
    source = GivenVectors(vectors=str(tmp_path / "w.npy"), texts=str(tmp_path / "two.txt"))
    with pytest.raises(RequestError, match="found 2 lines and 3 vectors"):
        VectorTable.open(source, Cache(tmp_path / "cache"))
    pq.write_table(pa.table({"text": ["a", "b"], "vector": [[1.0], [1.0, 2.0]]}), tmp_path / "ragged.parquet")
    with pytest.raises(RequestError, match="expected a text and a vector of 2 numbers in every row"):
        VectorTable.open(GivenVectors(vectors=str(tmp_path / "ragged.parquet")), Cache(tmp_path / "cache"))
    for columns in ({"text": [1], "vector": [[1.0]]}, {"text": ["a"], "vector": [1.0]}):
        pq.write_table(pa.table(columns), tmp_path / "numbers.parquet")
        with pytest.raises(RequestError, match=r"expected text and lists of numbers in .*numbers\.parquet"):
            VectorTable.open(GivenVectors(vectors=str(tmp_path / "numbers.parquet")), Cache(tmp_path / "cache"))
    np.save(tmp_path / "none.npy", np.zeros((0, 4), np.float32))
    (tmp_path / "none.txt").write_text("")
    with pytest.raises(RequestError, match=r"none\.txt has no records"):
        VectorTable.open(
            GivenVectors(vectors=str(tmp_path / "none.npy"), texts=str(tmp_path / "none.txt")), Cache(tmp_path)
        )


def test_a_student_of_the_vectors_is_the_student_of_the_model_that_made_them(tiny_encoder, toy, tmp_path):
    """`bertrelay encode` writes the teacher's vectors; weights and evaluation are the same as with the teacher."""
    texts = [row[0] for row in toy.train + toy.test]
    own_teacher = tiny_encoder("bert", texts, normalize=True, spaces=["its teacher"])
    own_teacher.save(tmp_path / "teacher")
    (tmp_path / "english.txt").write_text("".join(f"{text}\n" for text in texts))
    encode_file(tmp_path / "teacher", tmp_path / "english.txt", tmp_path / "english.parquet", precision="fp32")
    size = {"layers": 1, "dim": 16, "heads": 2, "vocabulary": 200, "max_tokens": 24}
    settings = {"base": size, "parallel": [toy.source()], "dev_sentences": 30, "precision": "fp32", "batch_tokens": 300}
    results = []
    for teacher in (str(tmp_path / "teacher"), {"vectors": str(tmp_path / "english.parquet")}):
        context = StageContext(tmp_path / f"output{len(results)}", Cache(tmp_path / f"cache{len(results)}"))
        context.output.mkdir()
        metrics = run(DistillSettings.model_validate({"teacher": teacher, **settings}), context)
        scored = EvaluateSettings.model_validate(
            {
                "model": str(context.output / "model"),
                "teacher": teacher,
                "parallel": [toy.source("test")],
                "precision": "fp32",
            }
        )
        student = SentenceEncoder.load(context.output / "model")
        results.append((metrics["dev/explained_variance"], student, evaluate(scored, context)))
    (dev, student, scores), (other_dev, other_student, other_scores) = results
    assert other_dev == pytest.approx(dev, abs=1e-6) and other_scores == pytest.approx(scores, abs=1e-5)
    vectors, others = (encoder.encode(texts, precision="fp32") for encoder in (student, other_student))
    np.testing.assert_allclose(others, vectors, atol=1e-5)
    assert student.spaces == (encoder_digest(own_teacher), "its teacher") and not other_student.spaces
