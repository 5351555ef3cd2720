"""A teacher that is a file of vectors, which are looked up by text."""

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
from students.settings import CONVERT_NPY, TeacherVectors
from students.teacher import VectorTable

DOCS = Path(__file__).parents[2] / "docs" / "multilingual.md"
TEXTS = ["a dog", "two  cats", "Cafe\u0301", "a bird"]


@pytest.fixture
def open_table(tmp_path):
    """`open_table(texts, vectors)`: the table of a Parquet file with these columns."""

    def make(texts, vectors):
        path = tmp_path / "v.parquet"
        pq.write_table(
            pa.table({"text": texts, "vector": vectors if isinstance(vectors, pa.Array) else list(vectors)}), path
        )
        return VectorTable.open(TeacherVectors(vectors=str(path)), Cache(tmp_path / "cache"))

    return make


def normal(rows, kind=np.float32):
    return np.random.default_rng(0).normal(size=(rows, 3)).astype(kind)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_vectors_are_looked_up_by_text_whatever_its_spaces_and_its_form(open_table, kind):
    vectors = normal(4, kind)
    for _ in range(2):  # the second time from the cache
        table = open_table(TEXTS, vectors)
        assert table.dim == 3
        encoded = table.encode(["Café", "a bird", "a dog", "two cats"])
        np.testing.assert_array_equal(encoded, vectors[[2, 3, 0, 1]].astype(np.float32))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_the_documented_line_converts_npy_and_the_text_of_each_row(tmp_path, kind):
    vectors = normal(4, kind)
    np.save(tmp_path / "vectors.npy", vectors)
    (tmp_path / "texts.txt").write_text("a dog\ntwo\u2028cats\nCafé\n a bird\n", encoding="utf-8")
    assert CONVERT_NPY in DOCS.read_text(encoding="utf-8")
    python, *arguments = shlex.split(CONVERT_NPY)
    assert python == "python"
    subprocess.run([sys.executable, *arguments], cwd=tmp_path, check=True)
    table = VectorTable.open(TeacherVectors(vectors=str(tmp_path / "vectors.parquet")), Cache(tmp_path / "cache"))
    np.testing.assert_array_equal(table.encode(["a dog", "two\u2028cats", *TEXTS[2:]]), vectors.astype(np.float32))


def test_missing_vectors_are_counted_and_listed(open_table, tmp_path):
    table = open_table(TEXTS, np.eye(4))
    with pytest.raises(RequestError, match=r"2 of 3 sentences have no vector in .*v\."):
        table.encode(["a dog", "a wolf", "a fox"])
    missing = tmp_path / "missing.txt"
    with pytest.raises(RequestError, match=r"2 of 4 sentences .* They are in .*missing\.txt, a line each"):
        table.require([["a dog", "a wolf"], ["a fox", "a bird"]], missing)
    assert missing.read_text() == "a wolf\na fox\n"
    table.require([["a dog"], ["a bird"]], missing)
    assert not missing.exists()


def test_two_vectors_of_one_text_are_refused_unless_they_are_equal(open_table):
    texts = ["a dog", "a cat", "an owl", "a  cat"]
    open_table(texts, np.eye(4)[[0, 1, 2, 1]])
    with pytest.raises(RequestError, match=r"several for 1 of them, the first in rows 2 and 4"):
        open_table(texts, np.eye(4))


def test_numbers_that_are_not_finite_are_refused(open_table):
    with pytest.raises(RequestError, match=r"expected finite numbers in .*row 2"):
        open_table(["a", "b"], [[1.0, 2.0], [np.nan, 1.0]])


@pytest.mark.parametrize(
    ("texts", "vectors", "message"),
    [
        (["a", "b"], [[1.0], [1.0, 2.0]], "expected a text and a vector of 2 numbers in every row"),
        ([1], [[1.0]], r"expected text and lists of numbers in .*v\.parquet"),
        (["a"], [1.0], r"expected text and lists of numbers in .*v\.parquet"),
        (pa.array([], pa.string()), pa.array([], pa.list_(pa.float32())), "found no rows"),
    ],
)
def test_columns_of_another_kind_are_refused(open_table, texts, vectors, message):
    with pytest.raises(RequestError, match=message):
        open_table(texts, vectors)


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
        untrained = {name for name in metrics if name.startswith("dev/nearness/cosine/untrained/")}
        assert bool(untrained) == isinstance(teacher, str), "the file has no vectors of the project's sentences"
    (dev, student, scores), (other_dev, other_student, other_scores) = results
    assert other_dev == pytest.approx(dev, abs=1e-6) and other_scores == pytest.approx(scores, abs=1e-5)
    vectors, others = (encoder.encode(texts, precision="fp32") for encoder in (student, other_student))
    np.testing.assert_allclose(others, vectors, atol=1e-5)
    assert student.spaces == (encoder_digest(own_teacher), "its teacher") and not other_student.spaces
