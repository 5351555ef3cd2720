"""The command `bertrelay search`."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bertrelay.errors import RequestError, WorkError
from pipelines.cli.app import app

LINES = ["the dog runs", "ein Hund bellt", "", "le chat dort", "two cats sleep here", "eine Maus\tsingt laut"]


@pytest.fixture(scope="session")
def encoder(tiny_encoder):
    return tiny_encoder("bert", LINES)


@pytest.fixture(scope="session")
def model(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    encoder.save(folder)
    return str(folder)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def queries(tmp_path):
    path = tmp_path / "queries.txt"
    path.write_text("le chat dort\n\nthe dog runs\n", encoding="utf-8")
    return path


def call(*arguments):
    """Standard output and standard error of a command; its error is raised."""
    result = CliRunner().invoke(app, ["search", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_a_first_call_builds_and_tells_the_index_and_a_later_one_needs_no_corpus(model, corpus):
    out, err = call(model, corpus)
    assert out == f"{corpus}.index: {corpus}, {model}, 5 sentences, 1 blank, 16 dim, bf16, exact\n"
    assert "left out 1 blank sentences" in err
    assert "5 sentences: exact search" in err
    corpus.unlink()
    out, err = call(model, "--index", f"{corpus}.index", "--query", "the dog runs", "-k", "2")
    lines = out.splitlines()
    assert lines[0] == "the dog runs"
    assert lines[1].split() == ["1", "1.0000", "line", "1", "the", "dog", "runs"]
    assert (len(lines), err) == (3, "")


def test_json_is_one_document_and_nothing_else(model, tmp_path):
    table = tmp_path / "corpus.csv"
    table.write_text("id,said\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(LINES)))
    queries = ["--query", "the dog runs", "--query", "Hund", "-k", "99"]
    out, err = call(model, table, "--column", "said", "--kind", "hnsw", *queries, "--json")
    assert "recall@10 1.0000 (95 % from 1.0000 to 1.0000): what the graph finds of the exact ten nearest" in err
    document = json.loads(out)
    assert document["index"]["sentences"] == 5
    assert document["index"]["kind"] == "hnsw"
    assert document["index"]["recall_at_10"] == 1
    first, second = document["queries"]
    assert (first["query"], second["query"]) == ("the dog runs", "Hund")
    assert first["hits"][0] | {"similarity": 1} == {"rank": 1, "similarity": 1, "line": 2, "text": "the dog runs"}
    assert sorted(hit["line"] for hit in second["hits"]) == [2, 3, 5, 6, 7]
    similarities = [hit["similarity"] for hit in second["hits"]]
    assert similarities == sorted(similarities, reverse=True)


def test_the_sentences_of_a_file_are_answered_with_their_lines(model, corpus, queries, tmp_path):
    output = tmp_path / "answers.jsonl"
    out, err = call(model, corpus, "--queries", queries, "-k", "1", "--output", output)
    assert out == f"answers in {output}\n"
    assert "queries.txt: 1 blank query has no answer" in err
    answers = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [(answer["line"], answer["query"], answer["hits"][0]["line"]) for answer in answers] == [
        (1, "le chat dort", 4),
        (3, "the dog runs", 1),
    ]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_tables_have_a_row_for_every_hit(model, corpus, queries, tmp_path, suffix):
    output = tmp_path / f"answers{suffix}"
    call(model, corpus, "--queries", queries, "-k", "5", "--output", output)
    with output.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="," if suffix == ".csv" else "\t"))
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "5"] * 2
    assert [row["query_line"] for row in rows] == ["1"] * 5 + ["3"] * 5
    mouse = {row["text"] for row in rows if row["line"] == "6"}
    assert mouse == {LINES[5] if suffix == ".csv" else "eine Maus singt laut"}
    assert [path.name for path in tmp_path.glob("answers*")] == [output.name]


def test_many_queries_are_answered_in_blocks(model, corpus, tmp_path, monkeypatch):
    from pipelines.cli import search

    monkeypatch.setattr(search, "QUERIES_AT_ONCE", 2)
    (tmp_path / "queries.csv").write_text("id,text\n" + "".join(f"{n},{LINES[n % 2]}\n" for n in range(5)))
    out, _ = call(model, corpus, "--queries", tmp_path / "queries.csv", "-k", "1")
    assert [line.split()[3] for line in out.splitlines()[1::2]] == ["1", "2", "1", "2", "1"]


def test_a_query_without_a_finite_vector_is_told_by_its_line(model, corpus, tmp_path, monkeypatch):
    from bertrelay.encoder import SentenceEncoder
    from pipelines.cli import search

    call(model, corpus)
    encode = SentenceEncoder.encode

    def broken(self, sentences, **given):
        vectors = encode(self, sentences, **given)
        vectors[[place for place, text in enumerate(sentences) if "broken" in text]] = float("nan")
        return vectors

    monkeypatch.setattr(SentenceEncoder, "encode", broken)
    monkeypatch.setattr(search, "QUERIES_AT_ONCE", 2)
    (tmp_path / "queries.txt").write_text("Hund\n\nMaus\nHund\nbroken\n")
    with pytest.raises(WorkError, match=r"not finite for line 5 of .*queries\.txt\. Check"):
        call(model, corpus, "--queries", tmp_path / "queries.txt")
    with pytest.raises(WorkError, match=r"not finite for --query 2\. Check"):
        call(model, corpus, "--query", "Hund", "--query", "broken")


def test_a_precision_that_is_not_the_index_s_is_told_once(model, corpus, queries, monkeypatch):
    from pipelines.cli import search

    call(model, corpus, "--precision", "fp32")
    monkeypatch.setattr(search, "QUERIES_AT_ONCE", 1)
    out, err = call(model, corpus, "--queries", queries, "--precision", "bf16", "--json")
    assert err.count("encoded in fp32 and stay so; bf16 is for the queries alone") == 1
    assert json.loads(out)["index"]["precision"] == "fp32"


def test_exact_search_may_be_asked_of_an_index_with_a_graph_but_not_the_other_way_round(model, corpus):
    call(model, corpus)
    with pytest.raises(RequestError, match=r"kind: expected a graph \(hnsw\) .* give the corpus too"):
        call(model, "--index", f"{corpus}.index", "--query", "Hund", "--kind", "hnsw")
    with pytest.raises(RequestError, match=r"ef_search: expected search through a graph .*found exact search"):
        call(model, corpus, "--query", "Hund", "--ef-search", "5")
    call(model, corpus, "--kind", "hnsw")
    for options in (["--kind", "exact"], ["--ef-search", "1"]):
        assert len(call(model, corpus, "--query", "Hund", "-k", "3", *options)[0].splitlines()) == 4


def test_another_model_is_refused_and_names_the_first(model, corpus, tiny_encoder, tmp_path):
    call(model, corpus)
    tiny_encoder("bert", LINES, seed=1).save(tmp_path / "other")
    with pytest.raises(RequestError, match=f"built with \\({model}, .* whose vectors cannot be compared"):
        call(tmp_path / "other", "--index", f"{corpus}.index", "--query", "Hund")


def test_a_file_of_blank_queries_is_refused(model, corpus, tmp_path):
    (tmp_path / "queries.txt").write_text("\n \n")
    with pytest.raises(RequestError, match="x: expected an index, found none"):
        call(model, "--index", "x", "--query", "y")
    with pytest.raises(RequestError, match="expected texts to look for, found 2 blank ones and no other"):
        call(model, corpus, "--queries", tmp_path / "queries.txt", "--output", tmp_path / "a.csv")
    assert not list(tmp_path.glob("a.csv*"))


def test_two_processes_build_what_one_builds_and_one_of_them_answers(model, corpus, start, tmp_path):
    process = start("search", model, corpus, "--processes", "2", "--precision", "fp32", "--query", "Hund")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.splitlines()[0] == "Hund"
    assert len(out.splitlines()) == 6
    call(model, corpus, "--index", tmp_path / "one", "--precision", "fp32")
    both, one = Path(f"{corpus}.index"), tmp_path / "one"
    assert (both / "vectors.npy").read_bytes() == (one / "vectors.npy").read_bytes()
