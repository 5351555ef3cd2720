"""Counts of mentions, concepts and relations, as the evaluators of BioCreative V CDR and BioRED give them."""

import gzip
from dataclasses import replace
from functools import partial

import pytest
from real_files import RELATIONS, with_relations

from bertrelay.errors import RequestError
from domain.biomedical.documents.document import Argument, Document, Entity, Relation
from domain.biomedical.documents.formats import write_documents
from domain.biomedical.documents.score import Matches, match, relation_keys, score_files

SAMPLE = RELATIONS / "bc5cdr-sample"


def counts(metrics, name):
    return tuple(metrics[f"{name}/{field}"] for field in Matches._fields)


def concepts_of(name):
    """The (document, identifier) of the diseases of a PubTator file; independent of the reader."""
    rows = (line.split("\t") for line in gzip.decompress((SAMPLE / name).read_bytes()).decode().splitlines())
    diseases = [(row[0], row[5].strip()) for row in rows if len(row) > 5 and row[4] == "Disease"]
    return {(name, part.removeprefix("MESH:")) for name, parts in diseases for part in parts.split("|") if part != "-1"}


@with_relations
@pytest.mark.parametrize("kind", ["PubTator", "BioC.xml"])
def test_the_sample_of_the_cdr_evaluator_has_its_documented_counts(kind):
    gold = SAMPLE / f"CDR_sample.gold.{kind}.gz"
    entities = score_files(gold, SAMPLE / f"CDR_sample.test.DNER.{kind}.gz", types=["Disease"])
    assert counts(entities, "mentions") == (303, 105, 121)
    assert entities["mentions/f1"] == pytest.approx(0.7283653846153848, abs=1e-12)
    expected, actual = map(concepts_of, ("CDR_sample.gold.PubTator.gz", "CDR_sample.test.DNER.PubTator.gz"))
    right = len(expected & actual)
    assert counts(entities, "concepts") == (right, len(actual) - right, len(expected) - right)
    relations = score_files(gold, SAMPLE / f"CDR_sample.test.CID.{kind}.gz")
    assert counts(relations, "relations/type") == (90, 533, 33)
    assert relations["relations/type/f1"] == pytest.approx(0.24128686327077747, abs=1e-12)


@with_relations
def test_a_corpus_scores_one_against_itself_at_every_level():
    metrics = score_files(RELATIONS / "biored/Test.PubTator.gz", RELATIONS / "biored/Test.BioC.xml.gz")
    for level in ("pair", "type", "novelty", "all"):
        assert counts(metrics, f"relations/{level}") == (1163, 0, 0)


def between(kind, *targets, novel=None, roles=("", "")):
    return Relation(kind, tuple(map(Argument, targets, roles)), novel)


def test_the_levels_of_biored_are_unordered_pairs_with_type_and_novelty():
    gold = Document("1", "x", relations=(between("A", "D1", "D2", novel=True), between("B", "D3", "D4", novel=False)))
    predicted = [
        between("A", "D2", "D1", novel=False),
        between("A", "D1", "D2", novel=False),  # counts once
        between("C", "MESH:D3", "D4", novel=False),
        between("A", "D5", "D6", novel=True),
    ]
    levels = {
        level: match([gold], [replace(gold, relations=tuple(predicted))], partial(relation_keys, level=level))
        for level in ("pair", "type", "novelty", "all")
    }
    assert levels == {"pair": (2, 1, 0), "type": (1, 2, 1), "novelty": (1, 2, 1), "all": (0, 3, 2)}


def test_a_relation_of_three_concepts_counts_as_three_pairs():
    document = Document("1", "x", relations=(between("B", "D1", "D2", "D4", roles=("",) * 3), between("A", "D2", "D1")))
    assert relation_keys(document, "pair") == {(("D1",), ("D2",)), (("D1",), ("D4",)), (("D2",), ("D4",))}


def test_a_direction_counts_where_it_should():
    gold = Document("1", "x", relations=(between("A", "D1", "D2", roles=("subject", "object")),))
    swapped = replace(gold, relations=(between("A", "D1", "D2", roles=("object", "subject")),))
    assert match([gold], [swapped], relation_keys) == (1, 0, 0)
    assert match([gold], [swapped], partial(relation_keys, is_directed=True)) == (0, 1, 1)


def test_relations_of_mentions_are_counted_by_their_spans():
    entities = (Entity(0, 7, "Drug"), Entity(12, 16, "Drug"))
    gold = Document("1", "Aspirin and gout", entities, relations=(between("A", 0, 1),))
    other = replace(gold, entities=entities[::-1], relations=(between("A", 1, 0), between("A", 0, 0)))
    assert match([gold], [other], relation_keys) == (1, 1, 0)


def test_a_document_without_a_prediction_is_missed_and_a_foreign_one_refused(tmp_path):
    documents = [Document(name, "gout", (Entity(0, 4, "X", identifier="-1"),)) for name in "12"]
    write_documents(tmp_path / "gold.jsonl", documents)
    write_documents(tmp_path / "predicted.jsonl", documents[:1])
    metrics = score_files(tmp_path / "gold.jsonl", tmp_path / "predicted.jsonl")
    assert counts(metrics, "mentions") == (1, 0, 1)
    assert not any(name.startswith(("concepts", "relations")) for name in metrics)  # there are none
    with pytest.raises(RequestError, match="found 1 others"):
        score_files(tmp_path / "predicted.jsonl", tmp_path / "gold.jsonl")
