"""A teacher whose vectors are given as files, found by text; what is missing or contradicts is an error."""

import shlex
import subprocess
import sys
from pathlib import Path

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
from students.settings import CONVERT_NPY, GivenVectors
from students.teacher import VectorTable

DOCS = Path(__file__).parents[2] / "docs" / "multilingual.md"
TEXTS = ["a dog", "two  cats", "Cafe\u0301", "a bird"]


@pytest.fixture
def write_vectors(tmp_path):
    """`write_vectors(texts, vectors)`: a Parquet file, as a recipe names it."""

    def write(texts, vectors):
        path = tmp_path / "v.parquet"
        numbers = pa.array([list(map(float, row)) for row in vectors], pa.list_(pa.float64()))
        pq.write_table(pa.table({"text": pa.array(texts, pa.string()), "vector": numbers}), path)
        return GivenVectors(vectors=str(path))

    return write


def test_vectors_are_found_by_text_whatever_its_spaces_and_its_form(write_vectors, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    table = VectorTable.open(write_vectors(TEXTS, vectors), Cache(tmp_path / "cache"))
    assert table.dim == 3
    np.testing.assert_array_equal(table.encode(["Café", "a bird", "a dog", "two cats"]), vectors[[2, 3, 0, 1]])


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_the_documented_line_converts_npy_and_the_text_of_each_row(tmp_path, kind):
    vectors = np.random.default_rng(0).normal(size=(4, 3)).astype(kind)
    np.save(tmp_path / "vectors.npy", vectors)
    (tmp_path / "texts.txt").write_text("a dog\ntwo\u2028cats\nCafé\n a bird\n", encoding="utf-8")
    assert CONVERT_NPY in DOCS.read_text(encoding="utf-8")
    python, *arguments = shlex.split(CONVERT_NPY)
    assert python == "python"
    subprocess.run([sys.executable, *arguments], cwd=tmp_path, check=True)
    source = GivenVectors(vectors=str(tmp_path / "vectors.parquet"))
    for _ in range(2):  # the second from the cache
        table = VectorTable.open(source, Cache(tmp_path / "cache"))
        np.testing.assert_array_equal(table.encode([TEXTS[0], "two\u2028cats", *TEXTS[2:]]), vectors.astype(np.float32))


def test_what_is_missing_or_contradicts_is_reported(write_vectors, tmp_path):
    table = VectorTable.open(write_vectors(TEXTS, np.eye(4)), Cache(tmp_path / "cache"))
    with pytest.raises(RequestError, match=r"2 of 3 sentences have no vector in .*v\."):
        table.encode(["a dog", "a wolf", "a fox"])
    listed = tmp_path / "listed.txt"
    with pytest.raises(RequestError, match=r"2 of 4 sentences .* They are in .*listed\.txt, a line each"):
        table.require([["a dog", "a wolf"], ["a fox", "a bird"]], listed)
    assert listed.read_text() == "a wolf\na fox\n"
    table.require([["a dog"], ["a bird"]], listed)
    assert not listed.exists()
    same = np.eye(4)[[0, 1, 2, 1]]
    VectorTable.open(write_vectors(["a dog", "a cat", "an owl", "a  cat"], same), Cache(tmp_path / "same"))
    with pytest.raises(RequestError, match=r"several for 1 of them, the first in rows 2 and 4"):
        VectorTable.open(write_vectors(["a dog", "a cat", "an owl", "a  cat"], np.eye(4)), Cache(tmp_path / "others"))


def test_numbers_that_are_not_finite_and_files_that_do_not_fit_are_refused(write_vectors, tmp_path):
    with pytest.raises(RequestError, match=r"expected finite numbers in .*row 2"):
        VectorTable.open(write_vectors(["a", "b"], [[1, 2], [np.nan, 1]]), Cache(tmp_path / "cache"))
    pq.write_table(pa.table({"text": ["a", "b"], "vector": [[1.0], [1.0, 2.0]]}), tmp_path / "ragged.parquet")
    with pytest.raises(RequestError, match="expected a text and a vector of 2 numbers in every row"):
        VectorTable.open(GivenVectors(vectors=str(tmp_path / "ragged.parquet")), Cache(tmp_path / "cache"))
    for columns in ({"text": [1], "vector": [[1.0]]}, {"text": ["a"], "vector": [1.0]}):
        pq.write_table(pa.table(columns), tmp_path / "numbers.parquet")
        with pytest.raises(RequestError, match=r"expected text and lists of numbers in .*numbers\.parquet"):
            VectorTable.open(GivenVectors(vectors=str(tmp_path / "numbers.parquet")), Cache(tmp_path / "cache"))
    with pytest.raises(RequestError, match=r"expected texts and vectors in .*v\.parquet, found no rows"):
        VectorTable.open(write_vectors([], []), Cache(tmp_path / "cache"))


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
