"""`bertrelay rerank`: every table in and out, results of a search in a better order."""

import json

import numpy as np
import pandas as pd
import pytest

from bertrelay.errors import RequestError, WorkError

TEXTS = ["a dog barks", "ein hund bellt .", "개가 짖는다", "a dog", "barks .", "ein"]
PAIRS = [(TEXTS[n % 6], TEXTS[(5 * n + n // 6) % 6]) for n in range(17)]


@pytest.fixture(scope="module")
def expected(cross_encoder):
    from teachers import load_scorer

    found = load_scorer(cross_encoder).predict(PAIRS, precision="fp32").tolist()
    assert np.ptp(found) > 0.1
    return found


def write_table(path, pairs=PAIRS, columns=("sentence1", "sentence2")):
    frame = pd.DataFrame(pairs, columns=list(columns))
    if path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True, force_ascii=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


def rows_of(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    tab = "\t" if path.suffix == ".tsv" else ","
    frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, sep=tab)
    return frame.to_dict("records")


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_output_has_the_pairs_beside_the_scores_of_python(call, cross_encoder, expected, tmp_path, kind):
    table = write_table(tmp_path / ("pairs.jsonl" if kind == ".csv" else "pairs.tsv"), columns=("question", "answer"))
    given = [cross_encoder, table, "--column", "0", "--column", "answer", "--precision", "fp32"]
    assert call("rerank", *given[:2], tmp_path / f"out{kind}", *given[2:]).endswith(f"out{kind}: 17 pairs\n")
    rows = rows_of(tmp_path / f"out{kind}")
    first = 1 if table.suffix == ".jsonl" else 2
    assert [list(row.values())[:3] for row in rows] == [[line, *pair] for line, pair in enumerate(PAIRS, first)]
    np.testing.assert_allclose([row["score"] for row in rows], expected, atol=1e-6)
    assert {path.name for path in tmp_path.iterdir()} == {table.name, f"out{kind}"}


@pytest.mark.parametrize(("kind", "asked"), [(".jsonl", "file"), (".csv", "command line")])
def test_answers_of_a_search_are_put_into_the_order_of_the_scores(call, model, cross_encoder, tmp_path, kind, asked):
    from teachers import load_scorer

    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "queries.txt").write_text("a dog\n\nein hund\n")
    queries = {"file": ["--queries", tmp_path / "queries.txt"]}.get(asked, ["--query", "a dog", "--query", "ein hund"])
    answers = tmp_path / f"answers{kind}"
    call("search", model, tmp_path / "corpus.txt", *queries, "-k", "5", "--output", answers, "--precision", "fp32")
    call("rerank", cross_encoder, answers, tmp_path / "best.jsonl", "--precision", "fp32")
    call("rerank", cross_encoder, answers, tmp_path / "best.csv", "--top", "3", "--precision", "fp32")
    if kind == ".jsonl":
        before = {answer["query"]: answer["hits"] for answer in rows_of(answers)}
    else:
        found = pd.read_csv(answers).groupby("query", sort=False)
        before = {name: part.to_dict("records") for name, part in found}
    best = rows_of(tmp_path / "best.jsonl")
    lines = (1, 3) if asked == "file" else (None, None)
    assert [(answer["query"], answer.get("line")) for answer in best] == [
        *zip(("a dog", "ein hund"), lines, strict=True)
    ]
    for answer in best:
        found = before[answer["query"]]
        scores = load_scorer(cross_encoder).predict([(answer["query"], hit["text"]) for hit in found], precision="fp32")
        order = np.argsort(-scores, kind="stable")
        assert [hit["line"] for hit in answer["hits"]] == [found[place]["line"] for place in order]
        assert [hit["similarity"] for hit in answer["hits"]] == pytest.approx(
            [found[place]["similarity"] for place in order]
        )
    rows = rows_of(tmp_path / "best.csv")
    assert list(rows[0]) == ["query_line", "query", "rank", "score", "similarity", "line", "text"]
    assert [row["rank"] for row in rows] == [1, 2, 3, 1, 2, 3]
    assert [row["text"] for row in rows] == [hit["text"] for answer in best for hit in answer["hits"][:3]]
    assert pd.isna(rows[0]["query_line"]) == (asked == "command line")


def test_a_poly_encoder_ranks_too(randomize, call, model, tmp_path):
    from bertrelay.model.encoder import SentenceEncoder
    from teachers.sbert_paper.poly_encoder import PolyEncoder

    other = randomize(PolyEncoder(SentenceEncoder.load(model), codes=3), 5)
    other.save(tmp_path / "model")
    call("rerank", tmp_path / "model", write_table(tmp_path / "pairs.csv"), tmp_path / "out.csv", "--precision", "fp32")
    scores = [row["score"] for row in rows_of(tmp_path / "out.csv")]
    np.testing.assert_allclose(scores, other.predict(PAIRS, precision="fp32"), atol=2e-6)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"query": "secret", "hits": [{"line": 1}]}', "line 2: expected a query and its hits, each with its line and"),
        ('{"query": "secret", "hits": "none"}', "line 2: expected a query and its hits"),
        ("secret", "line 2: expected a query and its hits"),
        ('{"query": "secret", "hits": [{"line": 1, "text": 5}]}', "line 2: expected text, found int"),
    ],
)
def test_a_broken_answer_is_reported_with_its_line_and_without_its_text(
    cross_encoder, write_lines, tmp_path, line, message
):
    from teachers import rerank_file

    whole = json.dumps({"query": "a dog", "hits": [{"line": 1, "text": "barks", "similarity": 0.5}]})
    answers = write_lines("answers.jsonl", [whole, line])
    with pytest.raises(RequestError, match=message) as raised:
        rerank_file(cross_encoder, answers, tmp_path / "out.jsonl")
    assert "secret" not in str(raised.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.jsonl"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "top: "),
        ({"top": 3}, "top: expected the answers of a search"),
        ({"precision": "fp8"}, "precision: "),
    ],
)
def test_options_that_cannot_be_are_refused(cross_encoder, tmp_path, options, message):
    from teachers import rerank_file

    with pytest.raises(RequestError, match=message):
        rerank_file(cross_encoder, write_table(tmp_path / "pairs.csv"), tmp_path / "out.csv", **options)


def test_scores_that_are_no_numbers_are_an_error(cross_encoder, tmp_path):
    from teachers import CrossEncoder, rerank_file

    table = write_table(tmp_path / "pairs.csv")
    spoilt = CrossEncoder.load(cross_encoder)
    spoilt.network.classifier.bias.data.fill_(np.nan)
    spoilt.save(tmp_path / "spoilt")
    with pytest.raises(WorkError, match="a score that is not finite for pair 1"):
        rerank_file(tmp_path / "spoilt", table, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
