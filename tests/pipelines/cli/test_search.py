"""`bertrelay search`, `mine` and `mine-negatives`; what is found, the tests of students hold."""

import csv
import json
import re
from pathlib import Path

import pytest
from forked import finish

from bertrelay.errors import RequestError, WorkError
from bertrelay.model.encoder import SentenceEncoder
from pipelines.cli import search

LINES = ["a dog barks", "ein hund bellt", "", "개가 짖는다", "dog . dog", "bellt\tbarks"]


@pytest.fixture
def corpus(write_lines):
    return write_lines("corpus.txt", LINES)


@pytest.fixture
def queries(write_lines):
    return write_lines("queries.txt", ["개가 짖는다", "", "a dog barks"])


def test_a_first_call_builds_and_describes_the_index_and_a_later_one_needs_no_corpus(call, model, corpus, capsys):
    out = call("search", model, corpus, "--precision", "fp32")
    assert out == f"{corpus}.index: {corpus}, {model}, 5 sentences, 1 blank, 8 dim, computed in fp32, exact\n"
    err = capsys.readouterr().err
    assert "left out 1 blank sentences" in err
    assert "5 sentences: exact search" in err
    corpus.unlink()
    lines = call("search", model, "--index", f"{corpus}.index", "--query", "a dog barks", "-k", "2").splitlines()
    assert lines[0] == "a dog barks"
    assert lines[1].split() == ["1", "1.0000", "line", "1", "a", "dog", "barks"]
    assert len(lines) == 3


def test_json_is_one_document_and_nothing_else(call, model, write_lines, capsys):
    table = write_lines("corpus.csv", ["id,said", *(f'{n},"{text}"' for n, text in enumerate(LINES))])
    queries = ["--query", "a dog barks", "--query", "hund", "-k", "99"]
    document = json.loads(call("search", model, table, "--column", "said", "--kind", "hnsw", *queries, "--json"))[
        "result"
    ]
    assert "recall@10 1.0000 (95 % from 1.0000 to 1.0000): what hnsw finds" in capsys.readouterr().err
    assert document["index"]["sentences"] == 5
    assert document["index"]["kind"] == "hnsw"
    assert document["index"]["recall_at_10"] == 1
    first, second = document["queries"]
    assert (first["query"], second["query"]) == ("a dog barks", "hund")
    assert first["hits"][0] | {"similarity": 1} == {
        "rank": 1,
        "similarity": 1,
        "line": 2,
        "text": "a dog barks",
        "record": 1,
    }
    assert sorted(hit["line"] for hit in second["hits"]) == [2, 3, 5, 6, 7]
    similarities = [hit["similarity"] for hit in second["hits"]]
    assert similarities == sorted(similarities, reverse=True)


def test_words_rank_hits_and_stand_below_them(call, model, corpus):
    words = ["search", model, corpus, "--query", "dog", "-k", "2"]
    lines = call(*words, "--mode", "lexical").splitlines()
    assert [" ".join(line.split()[2:]) for line in lines[1::2]] == ["line 5 dog . dog", "line 1 a dog barks"]
    assert lines[2].strip() == lines[4].strip() == "words: dog"
    [hybrid] = json.loads(call(*words, "--mode", "hybrid", "--lexical-weight", "1", "--json"))["result"]["queries"]
    assert [(hit["line"], hit["words"]) for hit in hybrid["hits"]] == [(5, ["dog"]), (1, ["dog"])]
    with pytest.raises(RequestError, match="expected --mode hybrid"):
        call(*words, "--lexical-weight", "1")


def test_answers_are_written_with_the_lines_of_their_queries(call, model, corpus, queries, tmp_path, capsys):
    output = tmp_path / "answers.jsonl"
    assert (
        call("search", model, corpus, "--queries", queries, "-k", "1", "--output", output) == f"answers in {output}\n"
    )
    assert "queries.txt: 1 blank query has no answer" in capsys.readouterr().err
    answers = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    found = [(answer["line"], answer["query"], answer["hits"][0]["line"]) for answer in answers]
    assert found == [(1, "개가 짖는다", 4), (3, "a dog barks", 1)]
    for suffix, delimiter, text in ((".csv", ",", LINES[5]), (".tsv", "\t", "bellt barks")):
        output = tmp_path / f"answers{suffix}"
        call("search", model, corpus, "--query", "hund", "--queries", queries, "-k", "5", "--output", output)
        with output.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter=delimiter))
        assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "5"] * 3
        assert [row["query_line"] for row in rows] == [""] * 5 + ["1"] * 5 + ["3"] * 5
        assert {row["text"] for row in rows if row["line"] == "6"} == {text}
    with pytest.raises(RequestError, match="expected texts to look for, found 2 blank ones and no other"):
        queries.write_text("\n \n")
        call("search", model, corpus, "--queries", queries, "--output", tmp_path / "a.csv")
    assert not list(tmp_path.glob("a.csv*"))


def test_a_query_without_a_finite_vector_is_named_by_its_line(call, model, corpus, write_lines, monkeypatch):
    call("search", model, corpus)
    encode = SentenceEncoder.encode

    def broken(self, sentences, **given):
        vectors = encode(self, sentences, **given)
        vectors[[place for place, text in enumerate(sentences) if "broken" in text]] = float("nan")
        return vectors

    monkeypatch.setattr(SentenceEncoder, "encode", broken)
    monkeypatch.setattr(search, "QUERIES_AT_ONCE", 2)
    queries = write_lines("queries.txt", ["hund", "", "dog", "hund", "broken"])
    with pytest.raises(WorkError, match=r"not finite for line 5 of .*queries\.txt\. Check"):
        call("search", model, corpus, "--queries", queries)
    with pytest.raises(WorkError, match=r"not finite for --query 2\. Check"):
        call("search", model, corpus, "--query", "hund", "--query", "broken")


def test_a_precision_that_is_not_the_index_s_is_reported_once(call, model, corpus, queries, monkeypatch, capsys):
    call("search", model, corpus, "--precision", "fp32")
    monkeypatch.setattr(search, "QUERIES_AT_ONCE", 1)
    out = call("search", model, corpus, "--queries", queries, "--precision", "bf16", "--json")
    assert capsys.readouterr().err.count("encoded in fp32 and stay so; bf16 is for the queries only") == 1
    assert json.loads(out)["result"]["index"]["precision"] == "fp32"


def test_two_processes_build_what_one_builds_and_one_of_them_answers(call, model, corpus, start_forked, tmp_path):
    words = ["--processes", "2", "--precision", "fp32", "--query", "hund"]
    process, printed = start_forked("search", model, corpus, *words)
    codes, (out, err) = finish([process]), printed()
    assert codes == [0], err
    assert out.splitlines()[0] == "hund"
    assert len(out.splitlines()) == 6
    call("search", model, corpus, "--index", tmp_path / "one", "--precision", "fp32")
    both, one = Path(f"{corpus}.index"), tmp_path / "one"
    assert (both / "000000.vectors.npy").read_bytes() == (one / "000000.vectors.npy").read_bytes()


SENTENCES = ["a dog barks", "ein hund", "개가 짖는다", "bellt"]


def test_a_threshold_is_chosen_by_gold_and_work_is_kept_when_asked(call, model, write_lines, tmp_path):
    sides = write_lines("s.txt", SENTENCES[:2]), write_lines("t.txt", [SENTENCES[1], "", *SENTENCES[::2]])
    gold, output = write_lines("gold.tsv", ["1\t3", "2\t1"]), tmp_path / "m.tsv"
    out = call("mine", model, *sides, output, "--gold", gold, "-k", 2, "--keep", "--precision", "fp32")
    head, *rows = [line.split("\t") for line in output.read_text(encoding="utf-8").splitlines()]
    assert head == ["score", "source_line", "target_line", "source", "target"]
    assert {tuple(row[1:]) for row in rows} == {("1", "3", *SENTENCES[:1] * 2), ("2", "1", *SENTENCES[1:2] * 2)}
    assert out.startswith(f"{output}: 2 pairs, f1 1.0000, precision 1.0000, recall 1.0000, threshold ")
    assert float(rows[-1][0]) >= float(re.search(r"threshold ([\d.]+)", out)[1])
    assert (tmp_path / "m.tsv.work").is_dir()
    document = json.loads(call("mine", model, *sides, output, "--overwrite", "--json"))["result"]
    assert document["pairs"] == 2
    assert (document["threshold"], document["f1"]) == (None, None)
    assert not (tmp_path / "m.tsv.work").exists()


def test_columns_of_the_corpus_stand_beside_each_hit(call, model, write_lines, tmp_path):
    corpus = write_lines("faq.tsv", ["question\tanswer", "a dog barks\tLet it in.", "개가 짖는다\tNo."])
    given = [model, corpus, "--column", "question", "--query", "a dog barks", "-k", 1, "--show", "answer"]
    assert call("search", *given).splitlines()[1:] == ["   1  1.0000  line 2  a dog barks", "      answer: Let it in."]
    hit = json.loads(call("search", *given, "--json"))["result"]["queries"][0]["hits"][0]
    assert (hit["line"], hit["record"], hit["columns"]) == (2, 1, {"answer": "Let it in."})
    call("search", *given, "--output", tmp_path / "found.csv")
    assert (tmp_path / "found.csv").read_text().splitlines()[0] == (
        "query_line,query,rank,similarity,line,text,record,answer"
    )
    assert (tmp_path / "found.csv").read_text().splitlines()[1].endswith(",2,a dog barks,1,Let it in.")


ROWS = ["a dog barks\tein hund bellt", "a dog\tein hund", "barks\tbellt", "개가 짖는다\ta dog barks ."]


def test_columns_are_named_and_the_counts_are_printed(call, model, write_lines, tmp_path):
    pairs, corpus = write_lines("p.tsv", ["one\ttwo", *ROWS]), write_lines("more.txt", ["개가", "", "짖는다"])
    columns, output = ["--column", "one", "--column", "two"], tmp_path / "n.tsv"
    given = ["--corpus", corpus, "--num-negatives", 2, "--precision", "fp32", "--scores", "--keep"]
    out = call("mine-negatives", model, pairs, output, *columns, *given)
    head, *rows = [line.split("\t") for line in output.read_text(encoding="utf-8").splitlines()]
    assert head == ["anchor", "positive", "negative", "positive_score", "negative_score"]
    assert [row[:2] for row in rows] == [row.split("\t") for row in ROWS for _ in range(2)]
    assert out.startswith(f"{output}: 4 pairs, 4 anchors, 6 candidates, 8 rows, ")
    assert (tmp_path / "n.tsv.work").is_dir()
    assert "candidates left out as positives of their anchor" in out
    document = json.loads(call("mine-negatives", model, pairs, output, *columns, *given[2:6], "--overwrite", "--json"))[
        "result"
    ]
    assert (document["rows"], document["anchors_with_fewer"]) == (8, 0)
    before = output.read_text(encoding="utf-8")
    with pytest.raises(RequestError, match=r"n\.tsv: expected negatives, found none for 4 anchors .* by max_score"):
        call("mine-negatives", model, pairs, output, *columns, "--max-score", "-1", "--overwrite")
    assert output.read_text(encoding="utf-8") == before


def test_an_index_is_built_added_to_deleted_from_and_compacted(call, model, write_lines, tmp_path):
    def lines(rows):
        return [json.dumps({"id": name, "text": text, "language": language}) for name, text, language in rows]

    first = write_lines("first.jsonl", lines([(1, "a dog barks", "en"), (2, "ein hund bellt", "de")]))
    index, adding = tmp_path / "grown", ["index", "add", model, tmp_path / "grown"]
    keeping = ["--id", "id", "--show", "language", "--lexical", "--precision", "fp32"]
    assert call(*adding, first, *keeping) == f"{index}: 2 added, 2 sentences\n"
    more = write_lines("more.jsonl", lines([(2, "der hund bellt", "de"), (3, "개가 짖는다", "ko")]))
    with pytest.raises(RequestError, match="line 1: expected new ids, found 1"):
        call(*adding, more)
    with pytest.raises(RequestError, match=r"--show, --lexical: without effect, because .* has its own"):
        call(*adding, more, "--show", "language", "--lexical")
    with pytest.raises(RequestError, match="--replace: expected an index"):
        call("index", "add", model, tmp_path / "none", more, "--replace")
    assert call(*adding, more, "--replace") == f"{index}: 2 added, 1 replaced, 3 sentences\n"
    asking = ["search", model, "--index", index, "--query", "hund", "--mode", "hybrid"]
    [answer] = json.loads(call(*asking, "--where", "language in ('de', 'ko')", "--json"))["result"]["queries"]
    assert [(hit["id"], Path(hit["source"]).name) for hit in answer["hits"]] == [
        ("2", "more.jsonl"),
        ("3", "more.jsonl"),
    ]
    call(*asking, "--where", "id = '1'", "--output", tmp_path / "answers.csv")
    with (tmp_path / "answers.csv").open(encoding="utf-8", newline="") as file:
        assert [(row["id"], row["text"]) for row in csv.DictReader(file)] == [("1", "a dog barks")]
    assert call(*asking, "--where", "id = '1'").splitlines()[2:4] == ["      id: 1", f"      source: {first}"]
    with pytest.raises(RequestError, match="where: expected a number, or a text in quotes"):
        call(*asking, "--where", "language = de")
    ids = write_lines("ids.txt", ["3", "4"])
    assert call("index", "delete", index, "--ids", ids) == f"{index}: 1 deleted, 1 missing, 2 sentences\n"
    with pytest.raises(RequestError, match="found neither or both"):
        call("index", "delete", index, "--ids", ids, "--where", "id = '1'")
    result = json.loads(call("index", "compact", index, "--kind", "int8", "--json"))["result"]
    assert result == {"removed": 1, "segments": 1, "sentences": 2}
