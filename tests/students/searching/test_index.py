import json
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from filelock import FileLock
from indexes import BLOCK, FILES, build
from scipy.spatial.distance import cdist

from bertrelay import encode_files
from bertrelay.data.records import Rejects
from bertrelay.data.tables import Table
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import unit
from bertrelay.inputs import state_of
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.layout import Prompts
from students.compress.shrink import shrink
from students.searching import build as building
from students.searching import faiss as neighbours
from students.searching.index import Hit, open_index, run, search
from students.searching.settings import Hnsw, IndexSettings


def nearest_lines(encoder, corpus, query, k):
    """Compares the lines that are not blank, by hand, in float64."""
    lines = [(number, line) for number, line in enumerate(corpus.read_text().splitlines(), 1) if line.strip()]
    vectors = encoder.encode([query, *(line for _, line in lines)], precision="fp32").astype(np.float64)
    order = np.argsort(cdist(vectors[:1], vectors[1:], "cosine")[0], kind="stable")
    return [lines[row] for row in order[:k]]


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_an_index_finds_the_nearest_lines_and_never_a_blank_one(kind, encoder, corpus, capsys):
    index = build(encoder, corpus, kind=kind)
    for query in ("the cat sleeps", "ein Hund bellt dehors"):
        hits = index.search([query], 7, precision="fp32")[0]
        assert [(hit.line, hit.text) for hit in hits] == nearest_lines(encoder, corpus, query, 7)
    assert "left out 3 blank sentences" in capsys.readouterr().err
    assert (index.manifest.sentences, index.manifest.blank) == (61, 3)


def test_a_complete_index_is_opened_without_a_lock_and_encodes_nothing(encoder, corpus, encoded):
    folder = build(encoder, corpus).folder
    assert len(encoded) == 61
    encoded.clear()
    before = {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]}
    with FileLock(f"{folder}.lock"):
        build(encoder, corpus)
        with pytest.raises(RequestError, match="another process is writing"):
            build(encoder, corpus, kind="hnsw")
    corpus.unlink()
    for whole in (folder, copytree(folder, f"{folder} copy")):
        assert len(open_index(encoder, whole).search(["a dog"], 1)[0]) == 1
    assert encoded == ["a dog"] * 2
    assert {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]} == before
    assert {path.name for path in folder.iterdir()} == FILES


@pytest.mark.parametrize("kind", ["int8", "binary"])
def test_fewer_bits_find_the_same_when_all_are_compared_again(encoder, corpus, texts, kind, capsys):
    def similarities(index, **options):
        return [[hit.similarity for hit in hits] for hits in index.search(texts, 5, precision="fp32", **options)]

    expected = similarities(build(encoder, corpus))
    rounded = build(encoder, corpus, kind=kind)
    assert rounded.manifest.kind == kind and 0 < rounded.manifest.recall["recall_at_10"] <= 1
    assert f"what {kind} finds of the exact ten nearest" in capsys.readouterr().err
    for index in (rounded, build(encoder, corpus), open_index(encoder, rounded.folder)):  # the existing kind
        assert index.manifest.kind == kind
        np.testing.assert_allclose(similarities(index, ef_search=61), expected, atol=1e-6)
        assert similarities(index, exact=True) == expected


def test_kinds_stand_beside_each_other_and_the_last_one_is_the_default(encoder, corpus, texts, monkeypatch):
    graph = build(encoder, corpus, kind="hnsw")
    with pytest.raises(RequestError, match=r"kind: expected int8 in .*, found exact, hnsw; give the corpus too"):
        open_index(encoder, graph.folder, kind="int8")
    with pytest.raises(RequestError, match="kind: expected auto, exact, hnsw, int8 or binary, found 'flat'"):
        open_index(encoder, graph.folder, kind="flat")
    before = state_of(graph.folder / "000000.hnsw-32-100.faiss")
    exact = build(encoder, corpus, kind="exact")
    assert (exact.manifest.kind, exact.manifest.recall, exact.segments) == ("exact", {}, [])
    assert build(encoder, corpus).manifest.kind == "hnsw"  # nothing was built since
    codes = build(encoder, corpus, kind="int8")
    assert (codes.manifest.kind, codes.manifest.hnsw) == ("int8", {})
    monkeypatch.setattr(building, "build_structure", None)
    again = build(encoder, corpus, kind="hnsw")
    assert (again.manifest.kind, again.manifest.hnsw) == ("hnsw", Hnsw().model_dump())
    assert state_of(graph.folder / "000000.hnsw-32-100.faiss") == before
    int8 = ["IndexScalarQuantizer"]
    for kind, classes in (("exact", []), ("hnsw", ["IndexHNSWFlat"]), ("int8", int8), ("auto", int8)):
        index = open_index(encoder, graph.folder, kind=kind)
        assert index.manifest.kind == (kind if kind != "auto" else "int8")  # which was built last
        assert [type(segment.structure).__name__ for segment in index.segments] == classes
        assert [hits[0].text for hits in index.search(texts, 1)] == texts


@pytest.mark.parametrize("kind", ["hnsw", "int8", "binary"])
def test_equal_vectors_are_searched_once_and_give_all_their_lines(kind, encoder, texts, tmp_path, capsys):
    lines = [line for text in texts[:30] for line in (text, texts[40], texts[41].upper(), text)][:-1]
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    index = build(encoder, tmp_path / "corpus.txt", kind=kind)
    vectors = np.unique(encoder.encode(lines, precision="fp32"), axis=0)
    assert index.segments[0].structure.ntotal == len(vectors) < len(lines)
    assert f"119 sentences have {len(vectors)} distinct vectors" in capsys.readouterr().err
    for opened in (index, open_index(encoder, index.folder)):
        nearness, rows = opened.neighbours(opened.vectors, 50)
        assert all(len(set(neighbours)) == 50 for neighbours in rows.tolist()) and rows.min() >= 0
        cosines = np.einsum("nd,nkd->nk", opened.vectors, opened.vectors[rows])
        np.testing.assert_allclose(nearness, cosines, atol=1e-6)
        exact = neighbours.exact_neighbours(opened.vectors, opened.vectors, 50)[0]
        np.testing.assert_allclose(nearness, exact, atol=1e-6)
        hits = opened.search([texts[40]], 31, precision="fp32")[0]
        assert [hit.line for hit in hits[:30]] == list(range(2, 119, 4))


@pytest.fixture
def questions(tmp_path):
    """Five records: one over two lines, one blank, one without a text, and a blank line between them."""
    rows = ["text,answer,note", '"the dog\nruns",outside,1', '"",nothing,2', "two cats,asleep,3", "", "ein Hund,laut,"]
    (tmp_path / "questions.csv").write_text("\n".join([*rows, "le chat"]) + "\n")
    return tmp_path / "questions.csv"


def test_a_hit_has_the_number_of_its_record_and_its_columns(encoder, questions, encoded, tmp_path):
    def hits_of(index):
        hits = {hit.text: hit for hit in index.search(["dog"], 9, precision="fp32")[0]}
        return {text: (hit.line, hit.record, hit.columns) for text, hit in hits.items()}

    def opened(**options):
        return build(encoder, questions, rejects=Rejects(tmp_path / "r.jsonl", 0.5), **options)

    numbers = {"the dog\nruns": (2, 1), "two cats": (5, 3), "ein Hund": (7, 4)}
    assert hits_of(opened()) == {text: (line, record, {}) for text, (line, record) in numbers.items()}
    encoded.clear()
    answers = {"the dog\nruns": "outside", "two cats": "asleep", "ein Hund": "laut"}
    index = opened(show=["answer"])
    assert hits_of(index) == {text: (*numbers[text], {"answer": answer}) for text, answer in answers.items()}
    both = opened(show=["note", 1])
    assert hits_of(both)["two cats"] == (5, 3, {"note": "3", "1": "asleep"})
    assert hits_of(open_index(encoder, index.folder, show=["answer"])) == hits_of(index)
    assert encoded == ["dog"] * 4, "what is added encodes nothing"
    assert open_index(encoder, index.folder).manifest.columns == ["answer", "note", 1]
    with pytest.raises(RequestError, match=r"show: expected line in .*, found answer, note, 1; give the corpus too"):
        open_index(encoder, index.folder, show=["line"])


def test_missing_columns_are_refused_before_anything_is_encoded(encoder, questions, corpus, encoded):
    with pytest.raises(RequestError, match="answr"):
        build(encoder, questions, show=["answr"])
    with pytest.raises(RequestError, match=r"show: expected a table with columns, found plain lines in .*corpus\.txt"):
        build(encoder, corpus, show=["answer"])
    assert encoded == []


def test_values_keep_their_types_and_columns_survive_a_kill(encoder, tmp_path, kill_at):
    lines = [{"text": "a dog", "n": 3, "of": {"a": [1]}}, {"text": "two cats", "n": None, "of": True}]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    build(encoder, tmp_path / "c.jsonl", show=["n"])
    kill_at(building, "write_columns", 1, lambda: build(encoder, tmp_path / "c.jsonl", show=["of"]))
    assert open_index(encoder, tmp_path / "c.jsonl.index").manifest.columns == ["n"]
    hits = build(encoder, tmp_path / "c.jsonl", show=["n", "of"]).search(["a dog", "two cats"], 1)
    assert [hit.columns for (hit,) in hits] == [{"n": 3, "of": {"a": [1]}}, {"n": None, "of": True}]


def test_a_student_searches_the_index_of_its_teacher_only(encoder, tiny_encoder, texts, corpus, tmp_path):
    folder = build(encoder, corpus).folder
    student = tiny_encoder("xlm-roberta", texts, seed=1)
    student.spaces = (encode_files.encoder_digest(encoder),)
    student.save(tmp_path / "student")
    hits_of_queries = open_index(tmp_path / "student", folder).search(texts[:5], top_k=3, precision="fp32")
    vectors, queries = (
        model.encode(sentences, precision="fp32") for model, sentences in ((encoder, texts), (student, texts[:5]))
    )
    nearest = np.argsort(cdist(queries, vectors, "cosine"), axis=1)[:, :3]
    assert [[hit.text for hit in hits] for hits in hits_of_queries] == [
        [texts[row] for row in rows] for rows in nearest
    ]
    for parts in ({"normalize": True}, {"pooling": ["cls"]}):  # another model, made of its parts
        with pytest.raises(RequestError, match="found another one"):
            open_index(SentenceEncoder.load(tmp_path / "student").with_parts(**parts), folder)


def test_a_trimmed_student_searches_what_the_whole_one_does_and_a_shortened_one_nothing(
    encoder, tiny_encoder, texts, corpus, tmp_path
):
    student = tiny_encoder("xlm-roberta", texts, seed=1)
    student.spaces = (encode_files.encoder_digest(encoder),)
    folders = [build(model, corpus, folder=tmp_path / name).folder for model, name in ((encoder, "t"), (student, "s"))]
    shrink(student, texts[:30]).encoder.save(tmp_path / "trimmed")
    for folder in folders:
        trimmed, whole = (
            open_index(model, folder).search(texts[:5], top_k=3) for model in (tmp_path / "trimmed", student)
        )
        assert [[hit.text for hit in hits] for hits in trimmed] == [[hit.text for hit in hits] for hits in whole]
    for moved in ({"dimensions": 8}, {"layers": 1, "trim": False}):
        shrunk = shrink(student, texts, **moved).encoder
        for folder in folders:
            with pytest.raises(RequestError, match="found another one"):
                open_index(shrunk, folder)


@pytest.mark.usefixtures("small_blocks")
def test_exact_search_of_segments_is_that_of_one_index_bit_for_bit(encoder, texts, tmp_path, monkeypatch):
    """Equal sentences share the last ranks in many blocks; FAISS and BLAS compare few queries and many in two ways."""
    corpus, queries = tmp_path / "corpus.txt", unit(np.random.default_rng(0).standard_normal((40, 16), np.float32))
    corpus.write_text("\n".join([*texts, *texts[:20] * 3]))
    monkeypatch.setattr(neighbours, "EXACT_BLOCK", BLOCK)
    one = build(encoder, corpus, folder=tmp_path / "one")
    monkeypatch.setattr(building, "SEGMENT_ROWS", 3 * BLOCK)
    index = build(encoder, corpus, folder=tmp_path / "segments")
    assert [segment.rows for segment in index.manifest.segments] == [24] * 5 + [1]
    queries = np.concatenate([queries, one.vectors[:20]])
    for part in (queries, queries[:3], queries[-3:]):
        for top_k in (1, 7, 200):
            for result, expected in zip(index.neighbours(part, top_k), one.neighbours(part, top_k), strict=True):
                np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(index.vectors[np.array([[120, 0], [23, 24]])], one.vectors[[[120, 0], [23, 24]]])


@pytest.mark.usefixtures("small_blocks", "small_segments")
@pytest.mark.parametrize("kind", ["hnsw", "int8", "binary"])
def test_approximate_search_of_segments_finds_what_exact_search_does(kind, encoder, corpus, texts):
    index = build(encoder, corpus, kind=kind)
    assert [segment.structure.ntotal for segment in index.segments] == [24, 24, 13]
    nearness, rows = index.neighbours(index.vectors[:61], 5, ef_search=61)
    expected, exact_rows = index.neighbours(index.vectors[:61], 5, exact=True)
    np.testing.assert_array_equal(rows, exact_rows)
    np.testing.assert_allclose(nearness, expected, atol=1e-6)
    assert index.manifest.recall["recall_at_10"] == pytest.approx(1, abs=0.1 if kind == "binary" else 1e-9)
    assert [hits[0].text for hits in index.search(texts, 1)] == texts


def test_the_stage_builds_an_index_and_lists_rejected_records(encoder, corpus, context, tmp_path):
    encoder.save(tmp_path / "model")
    with corpus.open("ab") as file:
        file.write(b"\xff\xfe\n")
    settings = IndexSettings.model_validate(
        {"model": str(tmp_path / "model"), "corpus": {"path": str(corpus)}, "kind": "hnsw", "max_rejects": 0.05}
    )
    metrics = run(settings, context)
    assert (metrics["sentences"], metrics["blank"], metrics["dim"]) == (61, 3, 16)
    assert metrics["recall_at_10"] == 1
    rejected = [json.loads(line) for line in (context.output / "rejects.jsonl").read_text().splitlines()]
    assert [(reject["line"], reject["reason"]) for reject in rejected] == [(65, "not valid UTF-8")]
    assert open_index(tmp_path / "model", context.output / "index").search(["the dog runs here"], 1)[0][0].line == 1


@pytest.fixture(scope="module")
def index(encoder, texts, tmp_path_factory):
    corpus = tmp_path_factory.mktemp("search") / "corpus.txt"
    corpus.write_text("\n".join(texts), encoding="utf-8")
    return build(encoder, corpus, kind="hnsw")


def test_each_of_many_queries_has_its_hits_best_first(index, texts):
    hits_of_queries = index.search([*texts, texts[0]], 4, precision="fp32")
    assert [hits[0].text for hits in hits_of_queries] == [*texts, texts[0]]
    assert [hits[0].line for hits in hits_of_queries] == [*range(1, 62), 1]
    for hits in hits_of_queries:
        assert hits[0].similarity == pytest.approx(1, abs=1e-5)
        assert [hit.similarity for hit in hits] == sorted((hit.similarity for hit in hits), reverse=True)
    assert max(hit.similarity for hits in hits_of_queries for hit in hits) <= 1
    assert index.search([]) == []


def test_where_the_graph_leads_to_fewer_there_are_fewer_hits(index, texts, monkeypatch):
    def lost(*_):
        return np.array([[0.5, -np.inf]], np.float32), np.array([[6, -1]])

    monkeypatch.setattr("students.searching.faiss.approximate_neighbours", lost)
    assert index.search(["a dog"], 2) == [[Hit(0.5, 7, texts[6], 7, {})]]


def test_a_query_prompt_precedes_queries_only(tiny_encoder, texts, corpus):
    encoder = tiny_encoder("bert", texts, prompts=Prompts({"query": "le chat "}))
    hit = build(encoder, corpus).search(["sleeps dehors"], 1, prompt_name="query", precision="fp32")[0][0]
    assert hit.text == "le chat sleeps dehors"
    assert hit.similarity == pytest.approx(1, abs=1e-5)


def test_an_index_with_the_prompt_of_documents_is_searched_with_that_of_queries(tiny_encoder, texts, corpus):
    prompts = Prompts({"query": "le chat ", "document": "ein Hund bellt "})
    encoder = tiny_encoder("bert", texts, prompts=prompts)
    query, documents = encoder.encode_query(["sleeps"], precision="fp32"), encoder.encode_document(texts)
    expected = cdist(query, documents, "cosine")[0].argsort(kind="stable")[:5]
    index = build(encoder, corpus, kind="hnsw", hnsw={"links": 8})
    assert index.manifest.hnsw["links"] == 8
    for opened in (index, open_index(encoder, index.folder)):
        hits = opened.search(["sleeps"], np.int64(5), precision="fp32")[0]
        assert [hit.text for hit in hits] == [texts[row] for row in expected]


def test_the_first_call_builds_beside_the_corpus_and_others_find_the_same_there(encoder, texts, corpus):
    built = search(encoder, corpus, texts[1:3], 2, precision="fp32")
    assert [[hit.line for hit in hits[:1]] for hits in built] == [[2], [3]]
    before = state_of(Path(f"{corpus}.index", "index.json"))
    assert search(encoder, Table(path=str(corpus)), texts[1:3], 2, precision="fp32") == built
    assert search(encoder, None, texts[1:3], 2, index=f"{corpus}.index", precision="fp32") == built
    assert state_of(Path(f"{corpus}.index", "index.json")) == before


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"corpus": None}, "expected the folder of an index"),
        ({"corpus": None, "index": "corpus.txt.index", "rebuild": True}, "rebuild: expected a corpus"),
        ({"corpus": None, "index": "corpus.txt.index", "kind": "int8"}, r"kind: expected int8 in .*found exact, hnsw"),
        ({"kind": "hsnw"}, "kind: expected 'auto', 'exact', 'hnsw', 'int8' or 'binary'"),
        ({"batch_tokens": 0}, "batch_tokens: expected greater than or equal to 1"),
        ({"ef_search": 5, "kind": "exact"}, "ef_search: expected search of kind hnsw, int8 or binary"),
        ({"ef_search": 0}, "ef_search: expected 1 or more, found 0"),
        ({"queries": ["a dog", " \n"]}, r"found an empty one \(query 2\)"),
        ({"queries": "a dog"}, r"found one string; write \[text\]"),
        ({"top_k": 0}, "top_k: expected 1 or more, found 0"),
    ],
)
def test_searches_that_cannot_be_are_refused(arguments, error, encoder, index, monkeypatch):
    monkeypatch.chdir(index.folder.parent)
    with pytest.raises(RequestError, match=error):
        search(encoder, **{"corpus": "corpus.txt", "queries": ["a dog"], **arguments})
