"""`bertrelay terms`, the report's part of it, and the hospital's own terms."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from markupsafe import Markup

from bertrelay.errors import RequestError
from pipelines.report.findings import terms
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


def test_it_writes_the_folder_and_tells_what_is_known(call, model, listed, rated, tmp_path):
    told = call("terms", model, listed, tmp_path / "out", "--ratings", rated, "-k", 2)
    assert told.splitlines()[0] == f"7 terms of 8 dimensions in {tmp_path / 'out'}"
    assert "Pearson, cosine and ratings: " in told
    assert "neighbours of the same group: " in told
    assert (tmp_path / "out" / "tsne.svg").is_file()


def test_json_is_one_document_with_the_figures(call, model, write_lines, tmp_path):
    lines = write_lines("t.txt", TERMS)
    told = json.loads(
        call("terms", model, lines, tmp_path / "out", "--json", "--layers", "last", "--vectors", "parquet")
    )
    assert told["metrics"] == json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert told["metrics"]["terms/layers"] == 1
    assert (tmp_path / "out" / "vectors.parquet").is_file()


def test_columns_may_have_other_names(call, model, write_lines, tmp_path):
    table = write_lines("t.tsv", ["kind\tname", *(f"k{place % 2}\t{term}" for place, term in enumerate(TERMS))])
    call("terms", model, table, tmp_path / "out", "--column", "name", "--group", "kind")
    assert ">k0 (4)<" in (tmp_path / "out" / "tsne.svg").read_text()


@pytest.mark.parametrize(
    ("rows", "options", "told"),
    [
        ([], [], "has no records"),
        (["term"], [], "has no records"),
        (["word", "dog"], [], "has no column 'term'. A header was expected"),
        (["term", "dog"], ["--group", "kind"], "has no column 'kind'"),
        (["term", "dog"], [], "two terms at least"),
        (["term", "dog", "hund"], ["--ratings", "t.csv"], "has no column 'term1'"),
        (["term", "dog", "hund"], ["--ratings", "none.csv"], "there is no file"),
    ],
)
def test_what_cannot_be_is_told(call, model, write_lines, tmp_path, monkeypatch, rows, options, told):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=told):
        call("terms", model, write_lines("t.csv", rows), tmp_path / "out", *options)
    assert not (tmp_path / "out" / "metrics.json").exists()


def test_a_wrong_file_leaves_no_folder_and_a_file_is_no_folder(call, model, write_lines, tmp_path):
    with pytest.raises(RequestError, match="no column"):
        call("terms", model, write_lines("t.csv", ["word", "dog"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    good = write_lines("g.csv", ["term", *TERMS])
    with pytest.raises(RequestError, match="expected a folder to write into, found the file"):
        call("terms", model, good, good)
    own = write_lines("terms.csv", ["term", *TERMS])
    with pytest.raises(RequestError, match="is an input and would be written over"):
        call("terms", model, own, own.parent)
    assert own.read_text().startswith("term\na dog\n")
    (folder := tmp_path / "own").mkdir()
    pq.write_table(pa.table({"term": TERMS}), own := folder / "vectors.parquet")
    with pytest.raises(RequestError, match="is an input and would be written over"):
        call("terms", model, own, folder)
    assert pq.read_table(own)["term"].to_pylist() == TERMS and list(folder.iterdir()) == [own]
    with pytest.raises(RequestError, match="expected a model folder"):
        call("terms", "./nothing", good, tmp_path / "out")


def test_the_report_shows_the_picture_some_neighbours_and_the_figures(call, model, listed, tmp_path):
    folder = tmp_path / "folder"
    call("terms", model, listed, folder, "-k", 1)
    drawing, listing = terms(folder)
    assert [term for term, _ in listing.rows] == TERMS
    assert all(neighbours.split(" (")[0] in TERMS and "," not in neighbours for _, neighbours in listing.rows)
    assert list(terms(tmp_path)) == []
    metrics = json.loads((folder / "metrics.json").read_text())
    assert [table.family.title for table in score_tables({"t": metrics}, {"t": "domain.terms"})] == ["Medical terms"]
    assert Markup((folder / "tsne.svg").read_text()) in drawing


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
