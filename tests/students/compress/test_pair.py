"""A student for queries and its teacher for documents in one folder: the vectors of either, here and elsewhere."""

import json

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from bertrelay import SentenceEncoder, encode_file
from bertrelay.errors import RequestError
from bertrelay.model.encoder import encoder_digest
from bertrelay.model.layout import Prompts
from bertrelay.model.pooling import Projection
from pipelines.cli import main
from pipelines.serve.application import app
from pipelines.serve.models import open_models
from pipelines.serve.settings import ServeSettings
from students import build_index, export, open_index, shrink
from students.compress.export import run
from students.compress.settings import ExportSettings

TEXTS = ["a dog runs", "two birds sing in the old garden", "ein Hund", "sounds of the sea", "word " * 60]


@pytest.fixture(scope="module")
def teacher(tiny_encoder):
    return tiny_encoder("bert", TEXTS * 10, 1, prompts=Prompts({"passage": "two "}), normalize=True)


@pytest.fixture(scope="module")
def student(tiny_encoder, teacher):
    torch.manual_seed(1)
    parts = {"projection": Projection(32, 16), "pooling": ["cls", "mean"], "spaces": [encoder_digest(teacher)]}
    prompts = Prompts({"ask": "dog ", "query": "dog "}, "ask")
    return tiny_encoder("xlm-roberta", TEXTS * 10, 1, normalize=True, prompts=prompts, **parts)


@pytest.fixture(scope="module")
def folder(teacher, student, tmp_path_factory):
    path = tmp_path_factory.mktemp("pair") / "pair"
    export(student, path, pair=teacher)
    return path


@pytest.fixture(scope="module")
def expected(teacher, student):
    """Vectors of queries by the student, and of documents by the teacher, each after its own prompt."""
    return student.encode_query(TEXTS, precision="fp32"), teacher.encode_document(TEXTS, precision="fp32")


@pytest.mark.promise("A pair gives the student's queries and the teacher's documents elsewhere", about="elsewhere")
def test_sentence_transformers_encodes_queries_by_the_student_and_documents_by_the_teacher(folder, expected):
    peer = pytest.importorskip("sentence_transformers").SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(peer.encode_query(TEXTS), expected[0], atol=1e-5)
    np.testing.assert_allclose(peer.encode_document(TEXTS), expected[1], atol=1e-5)


def test_a_pair_of_sentence_transformers_loads_here_with_the_modules_that_follow_for_both(teacher, student, tmp_path):
    peer = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Normalize, Router

    for name, encoder in (("t", teacher), ("s", student.with_parts(prompts=None))):
        encoder.with_parts(normalize=False).save(tmp_path / name)
    routes = [list(peer.SentenceTransformer(str(tmp_path / name), device="cpu").children()) for name in "st"]
    theirs = peer.SentenceTransformer(modules=[Router.for_query_document(*routes), Normalize()], device="cpu")
    theirs.save_pretrained(str(tmp_path / "theirs"))
    ours = SentenceEncoder.load(tmp_path / "theirs")
    for name in ("encode", "encode_query", "encode_document"):
        vectors = getattr(ours, name)(TEXTS, precision="fp32")
        np.testing.assert_allclose(vectors, getattr(theirs, name)(TEXTS), atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_a_loaded_pair_encodes_and_saves_as_its_parts_do(folder, expected, teacher, tmp_path):
    (tmp_path / "again" / "1_Pooling").mkdir(parents=True)
    teacher.save(tmp_path / "again")
    SentenceEncoder.load(folder).save(tmp_path / "again")
    for pair in (SentenceEncoder(folder), SentenceEncoder.load(tmp_path / "again")):
        np.testing.assert_array_equal(pair.encode_query(TEXTS, precision="fp32"), expected[0])
        np.testing.assert_array_equal(pair.encode(TEXTS, prompt_name="query", precision="fp32"), expected[0])
        np.testing.assert_array_equal(pair.encode_document(TEXTS, precision="fp32"), expected[1])
        np.testing.assert_array_equal(pair.encode(TEXTS, precision="fp32"), teacher.encode(TEXTS, precision="fp32"))
    teacher.save(tmp_path / "again")  # and one encoder replaces a pair
    assert SentenceEncoder.load(tmp_path / "again").query_encoder is None
    assert not list((tmp_path / "again").glob("*query*")) + list((tmp_path / "again").glob("router*"))


def test_files_of_queries_and_of_documents_are_told_apart(folder, expected, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    for name, vectors in (("query", expected[0]), ("document", expected[1])):
        encode_file(folder, tmp_path / "texts.txt", tmp_path / f"{name}.npy", prompt_name=name, precision="fp32")
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), vectors, atol=1e-6)


def test_the_teachers_index_is_searched_by_queries_of_the_pair(folder, expected, teacher, tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS))
    build_index(teacher, tmp_path / "corpus.txt", tmp_path / "index", precision="fp32", prompt_name="passage")
    pair = SentenceEncoder.load(folder)
    built = build_index(pair, tmp_path / "corpus.txt", tmp_path / "own", precision="fp32")
    for index in (open_index(pair, tmp_path / "index"), built):
        hits = index.search(TEXTS, 5, precision="fp32")
        rows = [[hit.line - 1 for hit in of_query] for of_query in hits]
        assert rows == (-expected[0] @ expected[1].T).argsort(axis=1).tolist()


def test_a_server_answers_queries_with_the_student_and_documents_with_the_teacher(folder, expected):
    models = open_models({"pair": folder}, ServeSettings(precision="fp32"))
    client = TestClient(app(models, ServeSettings()), base_url="http://127.0.0.1")

    def vectors(**fields):
        answer = client.post("/v1/embeddings", json={"input": TEXTS, "truncate": True, **fields}).json()
        return [row["embedding"] for row in answer["data"]]

    for fields in ({"input_type": "search_query"}, {"prompt_name": "query"}, {"model": "pair:query"}):
        np.testing.assert_allclose(vectors(**fields), expected[0], atol=1e-6)
    np.testing.assert_allclose(vectors(input_type="document"), expected[1], atol=1e-6)
    assert set(models.engines) == {"pair", "pair:query"}
    models.close()


def test_the_command_writes_what_the_stage_measures(student, teacher, tmp_path, context, capsys):
    student.save(tmp_path / "student")
    teacher.save(tmp_path / "teacher")
    names = [str(tmp_path / name) for name in ("student", "out", "teacher")]
    with pytest.raises(SystemExit, match="0"):
        main(["export", names[0], names[1], "--pair", names[2]])
    assert "finds itself" in capsys.readouterr().out
    metrics = run(ExportSettings(model=names[0], pair=names[2]), context)
    written = json.loads((tmp_path / "out" / "export.json").read_text())
    assert written["query/cosine_mean"] == metrics["query/cosine_mean"]
    assert {"query/sentences_per_second", "document/sentences_per_second", "query/accuracy"} <= metrics.keys()
    for path in (tmp_path / "out", context.output / "model"):
        assert SentenceEncoder.load(path).query_encoder.dim == teacher.dim


def test_what_is_no_pair_or_no_single_encoder_is_refused(folder, student, teacher, tiny_encoder, tmp_path, capsys):
    other = tiny_encoder("bert", TEXTS * 10, 1, pooling=["cls", "mean"])
    with pytest.raises(RequestError, match="one vector space, found vectors of 32 dimensions for queries and of 16"):
        export(other, tmp_path / "x", pair=teacher)
    for wrong in (lambda: export(folder, tmp_path / "x"), lambda: shrink(folder, TEXTS)):
        with pytest.raises(RequestError, match=r"expected one encoder, found a pair of two.*query_encoder.save"):
            wrong()
    with pytest.raises(RequestError, match="base: expected one encoder, found a pair"):
        SentenceEncoder.load(folder, is_base=True)
    with pytest.raises(ValueError, match="opset: without effect, because pair is"):
        ExportSettings(model=str(folder), pair=str(folder), opset=20)
    capsys.readouterr()
    export(student.with_parts(), tmp_path / "unrecorded", pair=teacher)  # with_parts drops its record
    assert "does not record that it learned the vectors" in capsys.readouterr().err
    router = json.loads((folder / "router_config.json").read_text())
    (tmp_path / "unrecorded" / "router_config.json").write_text(
        json.dumps({**router, "structure": {"image": router["structure"]["query"]}})
    )
    with pytest.raises(RequestError, match=r"expected a Router with the routes document and query.*found image"):
        SentenceEncoder.load(tmp_path / "unrecorded")
