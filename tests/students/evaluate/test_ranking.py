"""Metrics of retrieval: values recorded from trec_eval, every form of test set, and the stage."""

import json
from pathlib import Path

import numpy as np
import pytest

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from bertrelay.report import read_report
from students import evaluate_retrieval
from students.evaluate.judgements import RetrievalData, Text, read_retrieval
from students.evaluate.ranking import grades_at, rank, ranked_rows, ranking_values
from students.evaluate.settings import EvaluateSettings, RetrievalTest
from students.evaluate.stage import run

RECORDED = Path(__file__).with_name("trec_eval.json")
"""Of pytrec_eval-terrier 0.5 by query, of the run of `random_data`; the reciprocal rank of its first ten."""
QUERIES = {"q1": "one red bird", "q2": "zwei rote Vögel", "q3": "a green tree", "q4": "nothing"}
DOCUMENTS = {"a": "red birds", "b": "green trees", "c": "blue water", "d": "old stones"}
GRADES = {"q1": {"a": 2, "c": 1}, "q2": {"a": 1}, "q3": {"b": 1, "d": 0}, "q4": {"d": 0}}
LANGUAGES = {"q1": "en", "q2": "de", "q3": "en", "q4": "en"}


def random_data(queries=24, documents=60):
    """Ids, scores with many ties (queries, documents), and grades."""
    generator = np.random.default_rng(7)
    ids = [f"d{number}" for number in generator.permutation(documents)]
    scores = generator.integers(0, 12, (queries, documents)) / 8
    is_relevant = generator.random((queries, documents)) < 0.15
    return ids, scores, np.where(is_relevant, generator.integers(1, 4, (queries, documents)), 0)


@pytest.mark.promise("Metrics of retrieval are those of trec_eval, with ties", about="exact")
def test_metrics_of_runs_with_ties_are_those_that_trec_eval_has():
    ids, scores, grades = random_data()
    data = RetrievalData.of(
        {str(row): Text(str(row)) for row in range(len(scores))},
        {name: name for name in ids},
        {str(row): dict(zip(ids, column.tolist(), strict=True)) for row, column in enumerate(grades)},
    )
    columns = [ids.index(name) for name in data.documents]
    for depth in (len(ids), 25):
        ranked = np.array([ranked_rows(row[columns], depth) for row in scores])
        values = ranking_values(grades_at(ranked, data), data.grades, [5, 20])
        recorded = json.loads(RECORDED.read_text())
        if depth < len(ids):
            del recorded["map"]  # of a shorter run
        for name, column in recorded.items():
            np.testing.assert_allclose(values[name], column, rtol=0, atol=1e-9)


def test_metrics_of_one_query_by_hand():
    values = ranking_values(np.array([[0, 3, 0, 1]]), [{1: 3, 3: 1, 5: 2}], [2, 4])
    ideal = 3 + 2 / np.log2(3) + 1 / np.log2(4)
    assert values["ndcg_at_10"] == pytest.approx((3 / np.log2(3) + 1 / np.log2(5)) / ideal)
    assert values["mrr_at_10"] == 1 / 2
    assert values["map"] == pytest.approx((1 / 2 + 2 / 4) / 3)
    assert (values["recall_at_2"], values["recall_at_4"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))


def test_ties_are_in_the_order_of_documents_or_with_the_relevant_last():
    scores = np.array([0.5, 0.5, 0.5, 0.1])
    assert ranked_rows(scores, 2).tolist() == [0, 1]
    assert ranked_rows(scores, 4, np.array([1, 0, 0, 0])).tolist() == [1, 2, 0, 3]
    same = np.ones((4, 2), np.float32)
    data = RetrievalData(["x"] * 2, list("abcd"), [{0: 1}, {3: 1}], [""] * 2)
    assert grades_at(rank(data, same[:2], same, 4, relevant_last=True), data).tolist() == [[0, 0, 0, 1]] * 2


def write_beir(folder):
    (folder / "qrels").mkdir(parents=True)
    queries = [{"_id": key, "text": text, "language": LANGUAGES[key]} for key, text in QUERIES.items()]
    corpus = [{"_id": key, "title": text.split()[0], "text": text.split()[1]} for key, text in DOCUMENTS.items()]
    for name, records in (("queries", queries), ("corpus", corpus)):
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    rows = [f"{query}\t{key}\t{grade}" for query, grades in GRADES.items() for key, grade in grades.items()]
    (folder / "qrels/test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return {"folder": str(folder)}


def write_tables(folder, qrels):
    folder.mkdir()
    (folder / "queries.tsv").write_text("".join(f"{key}\t{text}\n" for key, text in QUERIES.items()), "utf-8")
    (folder / "corpus.csv").write_text("id,text\n" + "".join(f"{key},{text}\n" for key, text in DOCUMENTS.items()))
    (folder / qrels[0]).write_text(qrels[1])
    names = {"queries": "queries.tsv", "corpus": "corpus.csv", "qrels": qrels[0]}
    return {key: {"path": str(folder / name)} for key, name in names.items()}


def rows(form, header=""):
    return header + "".join(
        form.format(query=query, document=key, grade=grade)
        for query, grades in GRADES.items()
        for key, grade in grades.items()
    )


FORMS = {
    "trec": ("test.qrels", rows("{query} 0 {document} {grade}\n")),
    "tsv": ("qrels.tsv", rows("{query}\t{document}\t{grade}\n")),
    "csv": ("qrels.csv", rows("{query},{document},{grade}\n", "query-id,corpus-id,score\n")),
    "jsonl": ("qrels.jsonl", rows('{{"query-id": "{query}", "corpus-id": "{document}", "score": {grade}}}\n')),
}


@pytest.fixture
def read(context):
    def read_test(settings, limit=0.0):
        with Rejects(None, limit) as rejects:
            return read_retrieval(RetrievalTest.model_validate(settings), "mine", context, rejects)[0]

    return read_test


def test_all_forms_hold_the_same_data(read, tmp_path):
    beir = read(write_beir(tmp_path / "beir"))
    assert beir.queries == ["one red bird", "zwei rote Vögel", "a green tree"]
    assert beir.documents == ["old stones", "blue water", "green trees", "red birds"]
    assert (beir.grades, beir.languages) == ([{3: 2, 1: 1}, {3: 1}, {2: 1}], ["en", "de", "en"])
    assert beir.unanswered == 1
    for name, qrels in FORMS.items():
        data = read(write_tables(tmp_path / name, qrels) | {"language": "en"})
        assert data == beir._replace(languages=["en"] * 3), name


def test_lines_have_their_numbers_as_ids_and_pairs_without_grade_are_relevant(read, tmp_path):
    settings = write_tables(tmp_path / "lines", ("pairs.tsv", "query-id\tcorpus-id\n1\t2\n"))
    for name, texts in (("queries", ["red"]), ("corpus", ["blue", "red birds"])):
        (tmp_path / f"lines/{name}.txt").write_text("".join(f"{text}\n" for text in texts))
        settings[name] = {"path": str(tmp_path / f"lines/{name}.txt")}
    assert read(settings) == RetrievalData(["red"], ["red birds", "blue"], [{0: 1}], [""])


def test_judgements_of_nothing_are_rejected_with_their_reason(read, tmp_path):
    qrels = "q1 0 a 1\nq9 0 a 1\nq1 0 z 1\nq1 0 a 2\nq2 0 a high\nq2 a b c d\n"
    settings = write_tables(tmp_path / "bad", ("test.qrels", qrels))
    assert read(settings, 1.0).grades == [{3: 1}]
    with pytest.raises(WorkError, match="query that does not exist") as error:
        read(settings)
    assert "test.qrels, line 2" in str(error.value)
    (tmp_path / "bad/test.qrels").write_text("q1 0 a 0\n")
    with pytest.raises(RequestError, match="mine: retrieval: expected queries with a relevant document, found none"):
        read(settings)


def test_a_folder_of_neither_form_is_an_error(read, tmp_path):
    with pytest.raises(RequestError, match=r"expected queries\.jsonl, corpus\.jsonl and qrels/dev\.tsv"):
        read({"folder": str(tmp_path), "split": "dev"})
    for settings in ({}, {"folder": "/x", "queries": {"path": "/x"}}, {"queries": {"path": "/x"}}):
        with pytest.raises(ValueError, match="exactly one of the two forms"):
            RetrievalTest.model_validate(settings)


def test_the_stage_has_the_metrics_of_each_language_and_a_headline(tiny_encoder, context, tmp_path):
    encoder = tiny_encoder("bert", [*QUERIES.values(), *DOCUMENTS.values()])
    encoder.save(tmp_path / "model")
    settings = {"model": str(tmp_path / "model"), "precision": "fp32"}
    tests = {"birds": write_beir(tmp_path / "beir") | {"recall_at": [1, 4]}}
    metrics = run(EvaluateSettings.model_validate(settings | {"retrieval": tests}), context)
    expected = evaluate_retrieval(encoder, QUERIES, DOCUMENTS, GRADES, recall_at=[1, 4], precision="fp32")
    assert {name: metrics[f"retrieval/birds/{name}"] for name in expected} == expected
    assert metrics["retrieval/birds/recall_at_4"] == 1
    assert (metrics["retrieval/birds/queries"], metrics["retrieval/birds/unanswered"]) == (3, 1)
    assert (metrics["retrieval/birds/en/queries"], metrics["retrieval/birds/de/queries"]) == (2, 1)
    means = [metrics[f"retrieval/birds/{language}/map"] for language in ("en", "de")]
    assert metrics["retrieval/birds/map"] == pytest.approx((2 * means[0] + means[1]) / 3)
    [headline] = read_report(context.output).headlines
    assert (headline.title, list(headline.chart.rows)) == ("nDCG@10 on birds", ["en", "de"])


def test_words_and_both_are_sets_of_their_own_with_a_weight_chosen_on_dev(tiny_encoder, context, tmp_path):
    tiny_encoder("bert", [*QUERIES.values(), *DOCUMENTS.values()]).save(tmp_path / "model")
    test = write_beir(tmp_path / "beir") | {"modes": ["dense", "lexical", "hybrid"], "recall_at": [1]}
    (tmp_path / "dev.qrels").write_text("q1 0 a 1\nq3 0 b 1\n")
    settings = {"model": str(tmp_path / "model"), "precision": "fp32"}
    tests = {"birds": test | {"dev": {"path": str(tmp_path / "dev.qrels")}}}
    metrics = run(EvaluateSettings.model_validate(settings | {"retrieval": tests}), context)
    # "red" and "green" are in one document each; "zwei rote Vögel" has no word in any.
    assert metrics["retrieval/birds-lexical/recall_at_1"] == pytest.approx((1 / 2 + 0 + 1) / 3)
    weight = metrics["retrieval/birds-hybrid/lexical_weight"]
    assert weight in [step / 10 for step in range(11)]
    [headline] = read_report(context.output).headlines
    assert [measure.label for measure in headline.beside] == ["search by words", "search by both"]
    with pytest.raises(ValueError, match="dev: expected hybrid among `modes`"):
        RetrievalTest.model_validate({"folder": "/x", "dev": {"path": "/x"}})


def test_queries_and_documents_have_their_prompts(tiny_encoder, monkeypatch):
    encoder = tiny_encoder("bert", [*QUERIES.values(), *DOCUMENTS.values()])
    encoder.prompts = type(encoder.prompts)({"query": "one ", "document": "green "}, None)
    prompts = []
    encode = type(encoder).encode
    monkeypatch.setattr(
        type(encoder),
        "encode",
        lambda self, texts, **options: prompts.append(options["prompt_name"]) or encode(self, texts, **options),
    )
    evaluate_retrieval(encoder, QUERIES, DOCUMENTS, GRADES)
    assert prompts == ["query", "document"]


def test_judgements_in_memory_are_of_what_exists():
    with pytest.raises(RequestError, match="judgements of existing queries and documents"):
        evaluate_retrieval(None, QUERIES, DOCUMENTS, {"q1": {"z": 1}})
