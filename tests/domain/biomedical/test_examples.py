"""Annotated files to sentences: every gold entity stands in a tag, or is told to be beyond tags."""

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from real_files import NER, with_ner

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from domain.biomedical.documents.document import Document, Entity
from domain.biomedical.ner.examples import Example, of_document, of_types, read_examples, types_in
from domain.biomedical.ner.settings import EntitySource

TEXT = "No sign of gout. Acute gouty arthritis was seen."


def source(path: Path, **more: object) -> EntitySource:
    return EntitySource.model_validate({"path": str(path), **more})


def entity(mention: str, kind: str = "Disease") -> Entity:
    start = TEXT.index(mention)
    return Entity(start, start + len(mention), kind)


def test_a_documents_entities_become_tags_of_its_words() -> None:
    document = Document("7", TEXT, (entity("gouty arthritis"), replace(entity("gout."), end=TEXT.index("."))))
    first, second = of_document(document)
    assert first == Example(("No", "sign", "of", "gout", "."), ("O", "O", "O", "B-Disease", "O"), "7")
    assert second.tags == ("O", "B-Disease", "I-Disease", "O", "O", "O")


def test_what_tags_cannot_say_is_told_beyond_them() -> None:
    nested, whole = entity("arthritis"), entity("gouty arthritis")
    inside_a_word = entity("gou", "Chemical")
    broken = replace(entity("Acute gouty"), fragments=((17, 22), (26, 28)))
    examples = list(of_document(Document("7", TEXT, (nested, whole, inside_a_word, broken))))
    assert examples[0].untaggable == ("Chemical",)
    assert examples[1].tags.count("B-Disease") == 1
    assert examples[1].untaggable == ("Disease", "Disease")
    assert types_in(examples) == ["Chemical", "Disease"]


def test_an_entity_over_two_sentences_joins_them() -> None:
    (example,) = of_document(Document("7", TEXT, (entity("gout. Acute"),)))
    assert example.tags[3:6] == ("B-Disease", "I-Disease", "I-Disease")
    assert len(example.tokens) == 11


def test_entities_are_as_many_as_the_document_has(tmp_path: Path) -> None:
    file = tmp_path / "notes.jsonl"
    file.write_text(
        '{"id": "1", "text": "\\ud83d\\ude00 gout and flu", "entities": ['
        '{"start": 2, "end": 6, "type": "Disease"}, {"start": 11, "end": 14, "type": "Disease"}]}\n'
        '{"id": "2", "text": "", "entities": []}\n{"id": "3", "text": "flu", "entities": '
        '[{"start": 0, "end": 2, "type": "Disease"}]}\n'
    )
    examples = read_examples([source(file)])
    begun = sum(tag.startswith("B-") for example in examples for tag in example.tags)
    assert begun + sum(len(example.untaggable) for example in examples) == 3
    assert [example.document for example in examples] == [f"{file} 1", f"{file} 3"]


def test_an_entity_without_a_word_is_counted_all_the_same() -> None:
    behind_the_last_word = Document("1", "gout \n ", (Entity(0, 4, "A"), Entity(5, 6, "B")))
    (example,) = of_document(behind_the_last_word)
    assert (example.tags, example.untaggable) == (("B-A",), ("B",))
    (example,) = of_document(Document("2", " \n ", (Entity(1, 2, "B"),)))
    assert (example.tokens, example.untaggable) == ((), ("B",))
    assert list(of_document(Document("3", " \n "))) == []
    behind_given_tokens = Document("4", "gout. flu", (Entity(6, 9, "B"),), sentences=(((0, 4), (4, 5)), ()))
    assert [each.untaggable for each in of_document(behind_given_tokens)] == [(), ("B",)]


def test_documents_of_one_id_in_two_files_are_two(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for file in files:
        file.write_text('{"id": "1", "text": "No flu. No gout."}\n')
    documents = [example.document for example in read_examples([source(file) for file in files])]
    assert documents[0] == documents[1] != documents[2] == documents[3]


def test_rejects_and_what_is_used_are_counted_in_one_unit(tmp_path: Path) -> None:
    lines, tagged = tmp_path / "a.jsonl", tmp_path / "b.tsv"
    lines.write_text('{"text": "One. Two. Three. Four."}\n{"id": 1}\n{"text": "Five. Six."}\n')
    with Rejects(None, limit=1.0) as rejects:
        assert len(read_examples([source(lines)], rejects)) == 6
        assert (rejects.counts.total(), rejects.records) == (1, 3)  # documents
    tagged.write_text("-DOCSTART-\tO\n\nflu\tI-D\n\ngout\tB-D\n\nno\tO\n")
    with Rejects(None, limit=1.0) as rejects:
        assert len(read_examples([source(tagged)], rejects)) == 2
        assert (rejects.counts.total(), rejects.records) == (1, 3)  # sentences


def test_iobes_files_are_read_as_iob2(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("acute\tB-D\ngout\tE-D\nflu\tS-D\n")
    assert read_examples([source(file)])[0].tags == ("B-D", "I-D", "B-D")


def test_columns_are_those_that_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("NN\tgout\tB-D\tx\nNN\tseen\tO\tx\n")
    example = read_examples([source(file, columns=[1, 2])])[0]
    assert (example.tokens, example.tags) == (("gout", "seen"), ("B-D", "O"))


def test_columns_of_a_file_without_any_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "flu"}\n')
    with pytest.raises(RequestError, match=r"a\.jsonl: columns: only conll and conll-iobes have them"):
        read_examples([source(file, columns=[1, 2])])
    with pytest.raises(ValidationError, match="columns: without effect, because pubtator has none"):
        source(file, columns=[1, 2], format="pubtator")


def test_illegal_tags_are_rejected_in_training_and_kept_in_scoring(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("flu\tI-D\n\ngout\tB-D\n")
    with Rejects(None, limit=1.0) as rejects:
        assert [each.tags for each in read_examples([source(file)], rejects)] == [("B-D",)]
    assert rejects.counts["an illegal tag sequence"] == 1
    assert [each.tags for each in read_examples([source(file)], only_legal=False)] == [("I-D",), ("B-D",)]
    with pytest.raises(RequestError, match=r"a\.tsv, line 1: an illegal tag sequence"):
        read_examples([source(file)])


def test_sentences_after_docstart_lines_share_their_document(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("-DOCSTART-\tO\n\na\tO\n\nb\tO\n\n-DOCSTART-\tO\n\nc\tO\n")
    documents = [example.document for example in read_examples([source(file)])]
    assert documents[0] == documents[1] != documents[2]
    file.write_text("a\tO\n\nb\tO\n")
    assert len({example.document for example in read_examples([source(file)])}) == 2


def test_other_types_become_no_entity() -> None:
    example = Example(("a", "b", "c"), ("B-X", "I-X", "B-Y"), "1", ("X", "Y"))
    assert of_types([example], ["Y"]) == [Example(("a", "b", "c"), ("O", "O", "B-Y"), "1", ("Y",))]
    assert of_types([example], []) == [example]


@with_ner
def test_the_real_files_keep_every_entity() -> None:
    for name, entities in (("ncbi-disease", 960), ("bc5cdr", 9809)):
        examples = read_examples([source(NER / name / "test.tsv")])
        assert sum(tag.startswith("B-") for example in examples for tag in example.tags) == entities


def test_where_nothing_can_be_used_the_first_fault_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"txt": "a"}\n')
    with pytest.raises(WorkError, match=r"another shape .*line 1 \(text: Field required\)"):
        read_examples([source(tmp_path / "a.jsonl")], Rejects(None))
    with pytest.raises(RequestError, match="found none that can be used"):
        read_examples([source(tmp_path / "a.jsonl")], Rejects(None, limit=1))
