"""The command `bertrelay search`."""

import csv
import json
import subprocess
import sys
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
    assert out == f"{corpus}.index: 5 sentences, 16 dimensions, exact; blank and left out: 1\n"
    assert "left out 1 blank sentences" in err
    assert "5 sentences: exact search" in err
    corpus.unlink()
    out, err = call(model, "--index", f"{corpus}.index", "--query", "the dog runs", "-k", "2")
    lines = out.splitlines()
    assert lines[0] == "the dog runs"
    assert lines[1].split() == ["1", "1.0000", "line", "1", "the", "dog", "runs"]
    assert (len(lines), err) == (3, "")


def test_an_approximate_index_tells_its_recall(model, corpus):
    out, err = call(model, corpus, "--kind", "hnsw")
    assert "hnsw, recall@10 1.0000;" in out
    assert "recall@10 1.0000 (95 % from 1.0000 to 1.0000): what the graph finds of the exact ten nearest" in err


def test_json_is_one_document_and_nothing_else(model, corpus):
    out, _ = call(model, corpus, "--kind", "hnsw", "--query", "the dog runs", "--query", "Hund", "-k", "99", "--json")
    document = json.loads(out)
    assert document["index"]["sentences"] == 5
    assert document["index"]["kind"] == "hnsw"
    assert document["index"]["recall_at_10"] == 1
    first, second = document["queries"]
    assert (first["query"], second["query"]) == ("the dog runs", "Hund")
    assert first["hits"][0] | {"similarity": 1} == {"rank": 1, "similarity": 1, "line": 1, "text": "the dog runs"}
    assert sorted(hit["line"] for hit in second["hits"]) == [1, 2, 4, 5, 6]
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


def test_queries_of_the_command_line_have_no_line(model, corpus, tmp_path):
    for suffix, separator in ((".csv", ","), (".tsv", "\t")):
        call(model, corpus, "--query", "the dog runs", "-k", "1", "--output", tmp_path / f"a{suffix}")
        assert (tmp_path / f"a{suffix}").read_text().splitlines()[1].split(separator)[:2] == ["", "the dog runs"]


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


def test_a_column_of_a_table_is_searched(model, tmp_path):
    (tmp_path / "t.csv").write_text("id,said\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(LINES) if text))
    out, _ = call(model, tmp_path / "t.csv", "--column", "said", "--query", "le chat dort", "-k", "1", "--json")
    assert json.loads(out)["queries"][0]["hits"][0]["line"] == 4


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


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "expected CORPUS, .* or --index DIR"),
        (["--index", "x", "--rebuild"], "--rebuild: expected CORPUS"),
        (["corpus.txt", "--query", " \t"], "--query: expected a text to look for, found an empty one"),
        (["corpus.txt", "--output", "a.jsonl"], "--output: expected --query or --queries"),
        (["corpus.txt", "--query", "x", "--output", "a.jsonl", "--json"], "give one of the two"),
        (["corpus.txt", "--query", "x", "--output", "a.txt"], r"ends in \.jsonl or \.csv or \.tsv, found a\.txt"),
        (["corpus.txt", "--queries", "q.csv", "--output", "q.csv"], r"--output: q\.csv is the input itself"),
        (["q.csv", "--query", "x", "--output", "q.csv"], r"--output: q\.csv is the input itself"),
        (["corpus.txt", "--kind", "exact", "--ef-search", "5"], "--ef-search is for the graph .*give one of the two"),
        (["--index", "x", "--column", "said", "--query", "y"], "--column: expected CORPUS, .*found --index alone"),
        (["--index", "x", "--format", "csv", "--no-header"], "--format, --no-header: expected CORPUS"),
        (["--index", "x", "--prompt", "query"], "--prompt: expected CORPUS.*--query-prompt is for queries"),
        (["--index", "x", "--processes", "2"], "--processes: expected CORPUS"),
        (["corpus.txt", "--query", "x", "--output", "none/a.csv"], "there is no folder none"),
        (["none.txt"], "there is no file"),
        (["corpus.txt", "--queries", "none.txt"], "there is no file"),
        (["corpus.txt", "--format", "csv", "--column", "said"], "has no column 'said'"),
        (["--index", "x", "--query", "y"], "x: expected an index, found none"),
    ],
)
def test_a_wrong_request_is_answered_before_the_model_is_loaded(options, told, corpus, monkeypatch):
    from bertrelay.encoder import SentenceEncoder

    monkeypatch.chdir(corpus.parent)
    monkeypatch.setattr(SentenceEncoder, "load", None)
    (corpus.parent / "model").mkdir()
    (corpus.parent / "q.csv").write_text("text\nle chat\n")
    with pytest.raises(RequestError, match=told):
        call("model", *options)
    assert sorted(path.name for path in corpus.parent.iterdir()) == ["corpus.txt", "model", "q.csv"]
    assert (corpus.parent / "q.csv").read_text() == "text\nle chat\n"


def test_a_file_of_blank_queries_is_refused(model, corpus, tmp_path):
    (tmp_path / "queries.txt").write_text("\n \n")
    with pytest.raises(RequestError, match="expected texts to look for, found 2 blank ones and no other"):
        call(model, corpus, "--queries", tmp_path / "queries.txt", "--output", tmp_path / "a.csv")
    assert not list(tmp_path.glob("a.csv*"))


def test_help_loads_neither_torch_nor_faiss():
    script = (
        "import sys\nfrom pipelines.cli import main\n"
        "try:\n    main(['search', '--help'])\n"
        "finally:\n    print('loaded', sorted({'torch', 'faiss', 'pyarrow'} & sys.modules.keys()))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "Usage: bertrelay search" in answer.stdout
    assert answer.stdout.splitlines()[-1] == "loaded []"


def test_two_processes_build_what_one_builds_and_one_of_them_answers(model, corpus, start, tmp_path):
    process = start("search", model, corpus, "--processes", "2", "--precision", "fp32", "--query", "Hund")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.splitlines()[0] == "Hund"
    assert len(out.splitlines()) == 6
    call(model, corpus, "--index", tmp_path / "one", "--precision", "fp32")
    both, one = Path(f"{corpus}.index"), tmp_path / "one"
    assert (both / "vectors.npy").read_bytes() == (one / "vectors.npy").read_bytes()
