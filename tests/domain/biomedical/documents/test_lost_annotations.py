"""No document loses annotations of its file: they are read, or the whole document is rejected."""

import json

import pytest

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from domain.biomedical.documents.document import TEXT_ONLY, Entity, Reading
from domain.biomedical.documents.formats import format_of, read_documents
from domain.biomedical.documents.soundness import IMPOSSIBLE
from domain.biomedical.ner.data import read_examples
from domain.biomedical.ner.settings import EntitySource

ASPIRIN = "1\t0\t7\tAspirin\tChemical\tD1\n"
TITLE = "1|t|Aspirin and gout.\n1|a|Bad.\n"


def read(path, name=None, **more):
    """The documents of a file or folder, and the reasons of those that are rejected."""
    with Rejects(None, limit=1) as rejects:
        return list(read_documents(path, name, rejects, **more)), dict(rejects.counts)


def test_annotations_of_pubtator_join_their_document_over_blank_lines(tmp_path):
    other = "2|t|Flu.\n2|a|Bad.\n"
    (tmp_path / "a.pubtator").write_text(f"{TITLE}\n{ASPIRIN}\n\n1\t12\t16\tgout\tDisease\tD2\n\n{other}")
    (first, second), rejected = read(tmp_path / "a.pubtator")
    assert first.entities == (Entity(0, 7, "Chemical", identifier="D1"), Entity(12, 16, "Disease", identifier="D2"))
    assert (second.id, second.entities, rejected) == ("2", (), {})


def test_a_document_of_pubtator_whose_annotations_stand_below_another_is_rejected_whole(tmp_path):
    other, third = "2|t|Flu.\n2|a|Bad.\n", "3|t|No.\n3|a|Yes.\n"
    (tmp_path / "a.pubtator").write_text(f"{TITLE}\n{other}\n{ASPIRIN}\n{third}")
    documents, rejected = read(tmp_path / "a.pubtator")
    assert [document.id for document in documents] == ["3"]
    assert rejected == {"annotations apart from their document": 1, "an annotation of another document": 1}


def test_a_text_of_a_brat_folder_without_its_annotations_is_rejected_and_bionlp_named(tmp_path):
    for name, files in {"a": ("txt", "ann"), "b": ("txt",), "c": ("txt", "a1", "a2")}.items():
        for kind in files:
            (tmp_path / f"{name}.{kind}").write_text("gout" if kind == "txt" else "T1\tDisease 0 4\tgout\n")
    documents, rejected = read(tmp_path)
    assert ([document.id for document in documents], rejected) == (["a"], {"a text without annotations": 2})
    assert [document.id for document in read(tmp_path, reading=TEXT_ONLY)[0]] == ["a", "b", "c"]
    assert format_of(tmp_path / "c.txt") == "brat"
    with pytest.raises(RequestError, match=r"found \.a1 and \.a2, of BioNLP: write their lines into one \.ann"):
        list(read_documents(tmp_path / "c.txt"))
    (tmp_path / "a.ann").unlink()
    (tmp_path / "b.txt").unlink()
    assert format_of(tmp_path) == "brat"  # and no folder of raw text
    with pytest.raises(RequestError, match="an empty one is enough"):
        list(read_documents(tmp_path))


def test_rejects_of_a_folder_are_counted_as_one_source(tmp_path):
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text("gout")
        (tmp_path / f"{number}.ann").write_text("T1\tDisease 0 4\tgout\n" if number > 4 else "T1\n")
    with Rejects(None, limit=1) as rejects:
        assert len(list(read_documents(tmp_path, rejects=rejects))) == 4
        assert rejects.summary() == f"5 × a line that is no annotation in {tmp_path}"


BAD = {
    "a.pubtator": f"{TITLE}1\t1\t8\tAspirin\tChemical\n1\tx\n",
    "a.jsonl": json.dumps({"id": "1", "text": "Aspirin and gout. Bad.", "entities": [{"start": 9, "stop": 3}]}),
    "a.json": json.dumps(
        {"id": "1", "passages": [{"offset": 0, "text": "Aspirin and gout. Bad.", "annotations": [{"id": 7}]}]}
    ),
    "a.tsv": "Aspirin\tI-X\nand\tQ\ngout\tB- X\n",
    "1.ann": "T1\tX 1 8\tAspirin\nnonsense\n",
}


@pytest.mark.parametrize("name", BAD)
def test_the_text_of_a_document_is_read_whatever_its_annotations_are(tmp_path, name):
    (tmp_path / "1.txt").write_text("Aspirin and gout. Bad.")
    (tmp_path / name).write_text(BAD[name])
    assert read(tmp_path / name)[0] == []
    (document,), rejected = read(tmp_path / name, reading=TEXT_ONLY)
    assert document.text.startswith("Aspirin and gout") and not document.entities and not rejected


def test_a_line_of_pubtator_with_the_fields_of_an_entity_is_no_relation(tmp_path):
    relations = "1\tCID\tD1\tD2\n1\tAssociation\t24\t7157\tNovel\n"  # as BC5CDR and BioRED have them
    (tmp_path / "a.pubtator").write_text(TITLE + ASPIRIN + relations)
    assert len(read(tmp_path / "a.pubtator")[0][0].entities) == 1
    (tmp_path / "a.pubtator").write_text(f"{TITLE}1\tT1\t0\t7\tAspirin\tChemical\n")
    assert read(tmp_path / "a.pubtator") == ([], {IMPOSSIBLE: 1})


@pytest.mark.parametrize("name", ["a.pubtator", "1.ann"])
def test_a_negative_offset_is_dropped_as_any_other_wrong_one(tmp_path, name):
    (tmp_path / "1.txt").write_text("Aspirin and gout. Bad.")
    gout = {"a.pubtator": f"{TITLE}1\t12\t16\tgout\tDisease\n1\t-3\t7\tAspirin\tChemical\n"}
    gout["1.ann"] = "T1\tDisease 12 16\tgout\nT2\tChemical -3 7\tAspirin\n"
    (tmp_path / name).write_text(gout[name])
    assert read(tmp_path / name) == ([], {IMPOSSIBLE: 1})
    (document,), rejected = read(tmp_path / name, reading=Reading(misplaced="drop"))
    assert ([entity.text for entity in document.entities], rejected) == (["gout"], {})


SPANS = {
    "ents": [{"startOffset": 0, "endOffset": 7, "label": "Drug"}],
    "mentions": [{"begin": "0", "length": "7"}],
    "marks": [{"from": 0, "to": 7}],
    "found": [["Aspirin", 0, 7, "Drug"]],
    "scored": [[0, 7, "Drug", 0.9]],
    "links": [{"offsets": [0, 7], "cui": "C1"}],
    "ner_tags": ["B-Drug", "O", "B-Disease"],
}
NO_SPANS = {
    "mail": {"from": "a@x.org", "to": "b@x.org"},
    "stay": {"start": "2001-01-01", "end": "2001-01-02"},
    "keywords": ["B-cell", "E-cadherin"],
    "years": [2001, 2002],
}


@pytest.mark.parametrize("key", [*SPANS, *NO_SPANS])
def test_spans_under_another_key_reject_the_document(tmp_path, key):
    value = {"text": "Aspirin and gout", key: {**SPANS, **NO_SPANS}[key]}
    (tmp_path / "a.jsonl").write_text(json.dumps(value) + "\n")
    assert read(tmp_path / "a.jsonl")[1] == ({"entities of another shape": 1} if key in SPANS else {})


def test_an_empty_ann_beside_a_filled_a1_is_no_document_without_entities(tmp_path):
    for kind, text in {"txt": "gout", "ann": "", "a1": "T1\tDisease 0 4\tgout\n", "a2": ""}.items():
        (tmp_path / f"a.{kind}").write_text(text)
    with pytest.raises(RequestError, match=r"found \.a1, of BioNLP"):
        list(read_documents(tmp_path))
    (tmp_path / "a.a1").write_text("")
    assert len(list(read_documents(tmp_path))) == 1


def test_one_text_of_a_brat_folder_without_annotations_is_rejected_as_in_the_whole(tmp_path):
    for name in ("a.txt", "b.txt", "b.ann"):
        (tmp_path / name).write_text("")
    with pytest.raises(RequestError, match="an empty one is enough"):
        list(read_documents(tmp_path / "a.txt"))


def test_raw_text_is_trained_and_scored_on_only_where_it_is_named(tmp_path):
    (tmp_path / "a.tsv").write_text("gout\tB-X\n\n")
    (tmp_path / "b.txt").write_text("Aspirin and gout.")
    sources = [EntitySource(path=str(tmp_path / "a.tsv")), EntitySource(path=str(tmp_path / "b.txt"))]
    with pytest.raises(RequestError, match=r"b\.txt: expected annotated documents, found raw text"):
        read_examples(sources)
    sources[1] = sources[1].model_copy(update={"format": "text"})
    assert len(read_examples(sources)) == 2


@pytest.mark.parametrize("kind", [7, True, ["Disease"], {"a": 1}])
def test_only_text_is_a_type_of_bioc(tmp_path, kind):
    annotation = {"infons": {"type": kind}, "text": "gout", "locations": [{"offset": 0, "length": 4}]}
    passage = {"offset": 0, "text": "gout", "annotations": [annotation]}
    (tmp_path / "a.json").write_text(json.dumps({"documents": [{"id": "1", "passages": [passage]}]}))
    assert read(tmp_path / "a.json") == ([], {"an entity without a type": 1})
