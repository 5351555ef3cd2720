"""No document is kept without annotations that its file has: they are read, or the document is rejected whole."""

import json

import pytest

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from domain.biomedical.documents import format_of, read_documents
from domain.biomedical.documents.document import TEXT_ONLY, Entity

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
