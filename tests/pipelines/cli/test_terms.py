"""`bertrelay terms`, the report's part of it, and the hospital's own terms."""

import json

import pytest

from bertrelay.errors import RequestError
from domain.terms import terms_report
from pipelines.report.tables import score_tables
from pipelines.samples.hospital import term_groups, term_ratings, write_terms

TERMS = ["a dog", "ein hund", "barks", "bellt", "dog barks", "hund bellt", "개가 짖는다"]


@pytest.fixture
def listed(write_lines):
    kinds = ["animal", "animal", "sound", "sound", "", "", ""]
    return write_lines("t.csv", ["term,group", *(f"{term},{kind}" for term, kind in zip(TERMS, kinds, strict=True))])


@pytest.fixture
def rated(write_lines):
    return write_lines(
        "r.csv", ["term1,term2,score", "a dog,ein hund,4", "barks,bellt,3", "a dog,barks,0", "bellt,cat,1"]
    )


def test_it_writes_the_folder_and_reports_the_metrics(call, model, listed, rated, tmp_path):
    shown = call("terms", model, listed, tmp_path / "out", "--ratings", rated, "-k", 2)
    assert shown.splitlines()[0] == f"7 terms of 8 dimensions in {tmp_path / 'out'}"
    assert "Pearson, cosine and ratings: " in shown
    assert "neighbours of the same group: " in shown
    options = ["--overwrite", "--json", "--layers", "last", "--vectors", "parquet"]
    document = json.loads(call("terms", model, listed, tmp_path / "out", *options))["result"]
    assert document["metrics"] == json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert document["metrics"]["terms/layers"] == 1
    assert {"tsne.svg", "vectors.parquet"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_a_file_or_the_folder_of_an_input_is_not_written_over(call, model, write_lines, tmp_path):
    own = write_lines("terms.csv", ["term", *TERMS])
    for folder, message in (
        (own, "expected a folder to write into, found the file"),
        (tmp_path, "is the input itself; name another"),
    ):
        with pytest.raises(RequestError, match=message):
            call("terms", model, own, folder)
    assert own.read_text().startswith("term\na dog\n")


def test_the_report_shows_the_picture_some_neighbours_and_the_figures(call, model, listed, tmp_path):
    folder = tmp_path / "folder"
    call("terms", model, listed, folder, "-k", 1)
    [section] = terms_report(folder).sections
    picture, table = section.blocks
    assert [term for term, _ in table.rows] == TERMS
    assert all(neighbours.split(" (")[0] in TERMS and "," not in neighbours for _, neighbours in table.rows)
    assert terms_report(tmp_path).sections == []
    metrics = json.loads((folder / "metrics.json").read_text())
    assert [table.family.title for table in score_tables({"t": metrics}, {"t": "domain.terms"})] == ["Medical terms"]
    assert (folder / picture.file).is_file() and "7 terms" in picture.alt


def test_the_hospitals_terms_are_distinct_and_rated_by_the_rule(tmp_path):
    group_of = {term: group for group, terms in term_groups().items() for term in terms}
    assert len(group_of) == sum(map(len, term_groups().values())) == 52
    rated = list(term_ratings())
    assert len({frozenset(pair[:2]) for pair in rated}) == len(rated)
    for first, second, score in rated:
        assert (group_of[first] == group_of[second]) == (score in (2, 4)), (first, second)
    assert {score for *_, score in rated} == {0, 2, 3, 4}
    assert write_terms(tmp_path) == {"terms.csv": 52, "ratings.csv": len(rated)}
    assert (tmp_path / "terms.csv").read_text().startswith("term,group\nmissed doses of medication,raises the risk\n")
