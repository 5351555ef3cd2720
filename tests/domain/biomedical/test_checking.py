import json
from pathlib import Path

import pytest
from real_files import NER, with_ner

from bertrelay.errors import RequestError
from domain.biomedical.documents.document import Document, Entity
from domain.biomedical.documents.writing import write_documents
from domain.biomedical.ner.checking import check
from domain.findings import overall, splits_of


def conll(path, *sentences):
    """A file of sentences such as `Aspirin/S helps`."""
    words = ((word.partition("/") for word in sentence.split()) for sentence in sentences)
    blocks = ("\n".join(f"{word}\t{tag or 'O'}" for word, _, tag in sentence) for sentence in words)
    path.write_text("\n\n".join(blocks) + "\n")
    return path


def checked(name, format_name=None, **files):
    """The finding of this name, and all of them."""
    findings = check(files, format_name)
    return next(each for each in findings if each.check == name), findings


def test_good_data_is_good(tmp_path):
    train = conll(tmp_path / "train.tsv", *(f"word{number} aspirin/B-C" for number in range(60)))
    types, findings = checked("types", train=train, test=conll(tmp_path / "test.tsv", "other aspirin/B-C"))
    assert {each.check: each.severity for each in findings if each.severity != "good"} == {}
    assert overall(findings) == "good"
    assert "C 60" in types.summary
    write_documents(tmp_path / "a.jsonl", [Document("1", "")])
    with pytest.raises(RequestError, match="expected sentences, found none"):
        check({"train": tmp_path / "a.jsonl"})


def test_illegal_tags_and_stray_spaces_are_listed_with_file_and_line(tmp_path):
    path = conll(tmp_path / "a.tsv", "a b/I-X c/I-X", "d", "e/B-X f/I-Y")
    path.write_text(path.read_text() + "\na\tB-X \nb\tI-X \n\nc\t O\n\nd\tB- X\n\ne\tB-X Y\n")
    tags, findings = checked("tags", train=path)
    assert (tags.severity, dict(tags.counts)) == ("fail", {"illegal": 2, "stray_spaces": 3})
    assert f"{path}, line 2; {path}, line 8" in tags.summary
    places = "; ".join(f"{path}, line {line}" for line in (10, 13, 15))
    assert f"3 sentences have a tag with a stray space, and cannot be used: {places}" in tags.summary
    assert (findings[0].check, findings[0].severity, findings[0].counts["unusable"]) == ("records", "fail", 3)


def test_shared_sentences_and_repeated_ones_are_counted(tmp_path):
    train = conll(tmp_path / "a", "a b/B-X", "a b/B-X", "c", *(f"t{number}" for number in range(300)))
    dev = conll(tmp_path / "b", "c", "a b", *(f"d{number}" for number in range(300)))
    assert checked("duplicates", "conll", train=train, dev=dev)[0].counts == {"train": 1, "dev": 0}
    leak, _ = checked("leaks train/dev", "conll", train=train, dev=dev)
    assert (leak.severity, leak.counts["sentences"]) == ("warn", 2)
    leak, _ = checked("leaks train/test", "conll", train=train, test=conll(tmp_path / "c", "c", "d"))
    assert leak.severity == "fail"
    write_documents(tmp_path / "a.jsonl", [Document("1", "One text."), Document("2", "Two.")])
    write_documents(tmp_path / "b.jsonl", [Document("9", "One text.")])
    leak, _ = checked("leaks train/test", train=tmp_path / "a.jsonl", test=tmp_path / "b.jsonl")
    assert (leak.severity, leak.counts) == ("fail", {"sentences": 1, "documents": 1})


def test_types_that_cannot_be_learnt_fail_and_rare_ones_warn(tmp_path):
    train = conll(tmp_path / "train", *(f"w{number} a/B-X" for number in range(60)), "b/B-Rare", "c/B-Unscored")
    test = conll(tmp_path / "test", "a/B-X b/B-Rare d/B-New")
    types, _ = checked("types", "conll", train=train, test=test)
    rare, _ = checked("rare types", "conll", train=train, test=test)
    assert (types.severity, rare.severity) == ("fail", "warn")
    assert "test has New, which train lacks" in types.summary
    assert "Unscored, which test lacks" in types.summary
    assert "Rare 1, Unscored 1" in rare.summary
    assert checked("types", "conll", train=conll(tmp_path / "none", "a b"))[0].severity == "fail"


def test_spans_that_tags_cannot_say_are_counted(tmp_path):
    good = [Document(str(number), f"w{number} drug", (Entity(0, 2, "X"),)) for number in range(3, 9)]
    odd = [
        Document("nested", "ab cd", (Entity(0, 5, "X"), Entity(3, 5, "X"))),
        Document("inside", "abcd", (Entity(0, 2, "X"),)),
        Document("broken", "ab cd ef", (Entity(0, 8, "X", fragments=((0, 2), (6, 8))),)),
    ]
    write_documents(tmp_path / "a.jsonl", [*good, *odd])
    spans, _ = checked("spans", train=tmp_path / "a.jsonl")
    assert (spans.severity, spans.counts) == ("fail", {"misaligned": 0, "unsaid": 3})
    assert "3 of 10 entities" in spans.summary


def test_nested_and_overlapping_spans_are_told_with_file_and_line(tmp_path):
    first = Document("1", "ab cd ef gh", tuple(Entity(*span, "X") for span in ((0, 5), (3, 5), (3, 8), (9, 11))))
    second = Document("2", "ab", (Entity(0, 2, "X"), Entity(0, 2, "Y")))
    path = tmp_path / "a.pubtator"
    write_documents(path, [first, second])
    told = checked("spans", train=path)[0].summary
    assert f"3 are nested or overlap: {path}, line 1, document 1 (3 to 8 and 0 to 5); " in told
    assert f"{path}, line 1, document 1 (3 to 5 in 3 to 8); {path}, line 8, document 2 (0 to 2 in 0 to 2)" in told


def test_misaligned_spans_and_broken_records_are_told_apart(tmp_path):
    entity = {"start": 0, "end": 1, "type": "X"}
    rows = [
        {"id": "1", "text": "ab", "entities": [{**entity, "text": "b"}]},
        {"id": "2", "text": "ab", "entities": [{**entity, "text": "a"}]},
        {"id": "2", "text": "cd"},
        {"id": "3"},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spans, findings = checked("spans", train=tmp_path / "a.jsonl")
    assert (spans.severity, spans.counts["misaligned"]) == ("fail", 1)
    assert "a.jsonl, line 1" in spans.summary
    assert (findings[0].severity, findings[0].counts["unusable"]) == ("fail", 2)
    assert "1 × an id that another document has" in findings[0].summary


def test_unusable_records_are_a_share_of_what_they_are_counted_in(tmp_path):
    """300 sentences, 4 of them unusable, are 1.3 %, in however many documents they stand; and so are documents."""
    broken = [f"a{number}\tO\n" if number % 75 else f"a{number}\tQ-X\n" for number in range(300)]
    (tmp_path / "a.tsv").write_text("-DOCSTART-\tO\n\n" + "\n".join(broken))
    records, _ = checked("records", train=tmp_path / "a.tsv")
    assert (records.severity, records.counts["unusable"]) == ("fail", 4)
    assert "4 of 300 records" in records.summary
    (tmp_path / "c.tsv").write_text("-DOCSTART-\tO\n\n" + "\n".join(broken[1:140]))
    records, _ = checked("records", train=tmp_path / "c.tsv")
    assert (records.severity, records.counts["unusable"]) == ("warn", 1)
    good = conll(tmp_path / "good.tsv", *(f"v{number}" for number in range(5000)))  # hides no bad split
    assert checked("records", train=tmp_path / "a.tsv", test=good)[0].severity == "fail"


def test_a_file_without_blank_lines_is_told(tmp_path):
    (tmp_path / "a.tsv").write_text("word\tO\n" * 1500)
    lengths, _ = checked("words in a sentence", train=tmp_path / "a.tsv")
    assert (lengths.severity, lengths.counts["longest"]) == ("warn", 1500)


def test_files_become_splits_by_name_or_by_order():
    train, dev, test = Path("x/test.tsv"), Path("x/devel.tsv"), Path("x/train.tsv")
    assert splits_of([train, dev, test]) == {"test": train, "dev": dev, "train": test}
    assert splits_of([Path("a"), Path("b")]) == {"train": Path("a"), "dev": Path("b")}
    assert splits_of([Path("train_test.tsv"), Path("b")]) == {"train": Path("train_test.tsv"), "dev": Path("b")}
    with pytest.raises(RequestError, match="one to three files"):
        splits_of([])


@with_ner
def test_the_leaks_of_ncbi_disease_are_the_known_ones():
    folder = NER / "ncbi-disease"
    findings = check({"train": folder / "train.tsv", "dev": folder / "devel.tsv", "test": folder / "test.tsv"})
    found = {each.check: each for each in findings}
    assert found["leaks train/dev"].counts["sentences"] == 5
    assert found["leaks train/test"].counts["sentences"] == 1
    assert found["tags"].severity == "good"
    assert "Disease 960" in found["types"].summary
