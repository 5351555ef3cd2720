"""Checks of annotated files: the severity of each finding, and the places of faults."""

import json
from pathlib import Path

import pytest
from real_files import NER, with_ner

from bertrelay.errors import RequestError
from bertrelay.model.tokenizer import load_tokenizer
from bertrelay.privacy import sensitive_data
from domain.biomedical.documents.document import Document, Entity
from domain.biomedical.documents.formats import writer_of
from domain.biomedical.ner.check import check
from domain.checks import Place, overall, report, splits_of


def conll(*sentences):
    """A file of sentences such as `Aspirin/S helps`."""
    words = ((word.partition("/") for word in sentence.split()) for sentence in sentences)
    return "\n\n".join("\n".join(f"{word}\t{tag or 'O'}" for word, _, tag in sentence) for sentence in words) + "\n"


def written(*documents, name="jsonl"):
    return "".join(map(writer_of(name).rendered, documents))


def spans(*offsets):
    return tuple(Entity(*span, "X") for span in offsets)


def numbered(letter, count, more=""):
    return [f"{letter}{number}{more}" for number in range(count)]


def unknown_tags(count):
    """Sentences of one document, every 75th with an unknown tag."""
    return "-DOCSTART-\tO\n\n" + "\n".join(f"a{n}\t{'O' if n % 75 else 'Q-X'}\n" for n in range(300 - count, 300))


ILLEGAL = conll("a b/I-X c/I-X", "d", "e/B-X f/I-Y") + "\na\tB-X \nb\tI-X \n\nc\t O\n\nd\tB- X\n\ne\tB-X Y\n"
TWICE = conll("a b/B-X", "a b/B-X", "c", *numbered("t", 300))
ALIKE = conll("c", "a b", *numbered("d", 300))
TYPES = conll(*numbered("w", 60, " a/B-X"), "b/B-Rare", "c/B-Unscored"), conll("a/B-X b/B-Rare d/B-New")
BEYOND_TAGS = [
    *(Document(name, f"{name} drug", spans((0, 2))) for name in numbered("w", 7)),
    Document("nested", "ab cd", spans((0, 5), (3, 5))),
    Document("inside", "abcd", spans((0, 2))),
    Document("broken", "ab cd ef", (Entity(0, 8, "X", fragments=((0, 2), (6, 8))),)),
]
OVERLAPS = written(
    Document("1", "ab cd ef gh", spans((0, 5), (3, 5), (3, 8), (9, 11))),
    Document("2", "ab", spans((0, 2), (0, 2))),
    name="pubtator",
)
SOUND_AND_NOT = (
    '{"id": "1", "text": "ab", "entities": [{"start": 0, "end": 1, "type": "X", "text": "b"}]}\n'
    '{"id": "2", "text": "ab", "entities": [{"start": 0, "end": 1, "type": "X", "text": "a"}]}\n'
    '{"id": "2", "text": "cd"}\n{"id": "3"}\n'
)


@pytest.mark.parametrize(
    ("name", "content", "finding", "severity", "counts", "shown"),
    [
        ("conll", {"train": ILLEGAL}, "tags", "fail", [2, 3], "{train}, line 2; {train}, line 8"),
        ("conll", {"train": ILLEGAL}, "tags", "fail", [2, 3], "{train}, line 10; {train}, line 13; {train}, line 15"),
        ("conll", {"train": ILLEGAL}, "records", "fail", [3], ""),
        ("conll", {"train": TWICE, "dev": conll("c", "c d")}, "duplicates", "warn", [1, 0], ""),
        ("conll", {"train": TWICE, "dev": ALIKE}, "leaks train/dev", "warn", [2, 0], ""),
        ("conll", {"train": TWICE, "test": conll("c", "d")}, "leaks train/test", "fail", [1, 0], ""),
        (
            "jsonl",
            {"dev": written(Document("1", "A text."), Document("2", "B.")), "test": written(Document("9", "A text."))},
            "leaks dev/test", "fail", [1, 1], "whole documents: 1",
        ),
        ("conll", {"train": TYPES[0], "test": TYPES[1]}, "types", "fail", [3], "test has New, which train lacks"),
        ("conll", {"train": TYPES[0], "test": TYPES[1]}, "types", "fail", [3], "Unscored, which test lacks"),
        ("conll", {"train": TYPES[0], "test": TYPES[1]}, "rare types", "warn", [2], "Rare 1, Unscored 1"),
        ("conll", {"train": conll("a b")}, "types", "fail", [0], "no entity to train on"),
        ("conll", {"train": TYPES[0], "dev": conll("a b")}, "types", "fail", [3], "dev has no entity"),
        ("jsonl", {"train": written(*BEYOND_TAGS)}, "spans", "fail", [0, 3, 0, 0], "3 of 11 entities"),
        ("pubtator", {"train": OVERLAPS}, "spans", "fail", [0, 2, 0, 1], "2 of 5 entities are beyond tags (2 × nested"),
        ("jsonl", {"train": SOUND_AND_NOT}, "spans", "fail", [1, 1, 0, 0], "{train}, line 1"),
        ("jsonl", {"train": SOUND_AND_NOT}, "records", "fail", [2], "1 × an id that another document has"),
        ("conll", {"train": unknown_tags(300)}, "records", "fail", [4], "4 of 300 records"),  # 1.3 % of the sentences
        ("conll", {"train": unknown_tags(139)}, "records", "warn", [1], ""),
        (
            "conll", {"train": unknown_tags(300), "test": conll(*numbered("v", 5000))},
            "records", "fail", [4], "4 of 5,300 records",  # a large split hides no bad one
        ),
        (
            "conll", {"train": conll("a flu-gout/B-X p53/I-X B-cell", "COX-2/B-X")},
            "raw text", "warn", [2], "2 of 3 tokens of entities are not single words of raw text (flu-gout the first)",
        ),
        ("conll", {"train": "word\tO\n" * 1500}, "words in a sentence", "warn", [1500], "are blank lines missing?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_counted_with_its_place(tmp_path, name, content, finding, severity, counts, shown):
    files = {split: tmp_path / split for split in content}
    for split, path in files.items():
        path.write_text(content[split])
    result = next(entry for entry in check(files, name) if entry.check == finding)
    assert (result.severity, list(result.counts.values())) == (severity, counts)
    assert shown.format(**files) in result.summary


def test_shared_and_repeated_sentences_and_documents_are_named_by_line(tmp_path):
    files = {split: tmp_path / split for split in ("train", "dev", "test")}
    files["train"].write_text(conll("a b/B-X", "c", "a b/B-X"))
    files["dev"].write_text(conll("d", "c"))
    files["test"].write_text(conll("c/B-X"))
    findings = {finding.check: finding for finding in check(files, "conll")}
    train, dev, test = map(str, files.values())
    assert findings["duplicates"].examples == {"a sentence": f"{train}, line 1 and {train}, line 6"}
    assert findings["leaks train/dev"].examples == {"a sentence": f"{train}, line 4 and {dev}, line 3"}
    assert findings["leaks dev/test"].examples == {"a sentence": f"{dev}, line 3 and {test}, line 1"}
    for split in ("train", "test"):
        files[split].write_text(written(Document(split, "One. Two.")))
    findings = {finding.check: finding for finding in check({"train": files["train"], "test": files["test"]}, "jsonl")}
    assert [example.as_json() for example in findings["leaks train/test"].places[-2:]] == [
        {"kind": "a document", "file": str(files[split]), "line": 1, "group": 1} for split in ("train", "test")
    ]


DOUBTFUL = [
    {"start": 0, "end": 5, "type": "X"},  # "Lung " with white space at its end
    {"start": 0, "end": 4, "type": "X", "text": "Lung"},  # and once more without
    {"start": 5, "end": 14, "type": "X"},
    {"start": 10, "end": 14, "type": "X"},
    {"start": 5, "end": 7, "type": "X"},
    {"start": 4, "end": 5, "type": "X"},
    {"start": 0, "end": 14, "type": "X", "fragments": [[0, 4], [10, 14]]},
]
WRONG = [
    {"start": 1, "end": 5, "type": "X", "text": "Lung"},
    {"start": 9, "end": 99, "type": "X"},
    {"start": 0, "end": 4, "type": "X"},
]


def test_every_kind_of_finding_has_file_line_document_span_and_text(tmp_path):
    rows = [{"id": name, "text": "Lung bald toes", "entities": DOUBTFUL} for name in ("a", "b")]
    rows.append({"id": "c", "text": "Lung bald toes", "entities": WRONG})
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + '\n{"id": "d"}\n')
    findings = {finding.check: finding for finding in check({"train": path})}
    of_a = [fault for fault in findings["spans"].places if fault.record == "a"]
    first = [(fault.kind, fault.start, fault.end, fault.text) for fault in of_a]
    assert first == [
        ("white space at the ends, which is trimmed", 0, 5, "Lung "),
        ("given twice, which counts once", 0, 4, "Lung"),
        ("discontinuous", 0, 14, "Lung bald toes"),
        ("of white space", 4, 5, " "),
        ("ends inside a word", 5, 7, "ba"),
        ("nested or overlaps", 10, 14, "toes"),
    ]
    assert {(fault.file, fault.line) for fault in findings["spans"].places if fault.record == "b"} == {(str(path), 2)}
    wrong = [fault[:6] for fault in findings["spans"].places if fault.record == "c"]
    assert wrong == [
        ("an entity whose text is not at its offsets", str(path), 3, "c", 1, 5),
        ("an entity with offsets that cannot be", str(path), 3, "c", 9, 99),
    ]
    assert findings["records"].places == [Place("JSON of another shape", str(path), 4)]
    assert list(findings["spans"].counts.values()) == [1, 8, 2, 2]
    (line,) = (line for line in report(list(findings.values())) if " ends inside a word: " in line)
    assert line.endswith(f' ends inside a word: {path}, line 1, a, 5 to 7 "ba"')
    with sensitive_data():
        faults = [fault for finding in check({"train": path}) for fault in finding.places]
    assert faults and not any(fault.text for fault in faults)
    assert {fault.record for fault in faults} == {"(withheld)", ""}


def test_mentions_in_the_place_of_types_are_found(tmp_path):
    (tmp_path / "a.tsv").write_text(conll(*(f"Drug/B-a{n} helps" for n in range(20))))
    types = next(finding for finding in check({"train": tmp_path / "a.tsv"}) if finding.check == "types")
    assert types.severity == "fail" and "20 types of 20 entities: mentions seem to stand in the" in types.summary


def test_good_data_is_good_and_a_file_without_a_sentence_is_refused(tmp_path):
    files = {"train": tmp_path / "train.tsv", "test": tmp_path / "test.tsv"}
    files["train"].write_text(conll(*numbered("word", 60, " aspirin/B-C")))
    files["test"].write_text(conll("other aspirin/B-C"))
    findings = check(files)
    assert {finding.check: finding.severity for finding in findings if finding.severity != "good"} == {}
    assert overall(findings) == "good"
    (tmp_path / "a.jsonl").write_text(written(Document("1", "")))
    with pytest.raises(RequestError, match="expected sentences, found none"):
        check({"train": tmp_path / "a.jsonl"})


def test_passages_of_a_full_text_are_one_document_where_that_is_said(tmp_path):
    (tmp_path / "a.pubtator").write_text("1|t|Gout.\n1|a|Bad.\n\n1|t|Gout again.\n1|a|Worse.\n1\t0\t4\tGout\tDisease\n")
    (tmp_path / "b.tsv").write_text(conll("gout/B-Disease"))
    files = {"train": tmp_path / "a.pubtator", "test": tmp_path / "b.tsv"}

    def records(**options):
        return next(finding for finding in check(files, **options) if finding.check == "records")

    assert records().severity == "fail" and "an id that another document has" in records().summary
    assert records(repeated_ids="passages").summary == "2 read"  # the document, and the sentence of the other format
    with pytest.raises(RequestError, match=r"b\.tsv: repeated_ids: only pubtator has ids that repeat"):
        check({"train": tmp_path / "b.tsv"}, repeated_ids="passages")


def test_lengths_are_measured_against_the_windows_of_a_training(tiny_bert, tmp_path, monkeypatch):
    (tmp_path / "train.tsv").write_text(conll("a/B-X"))
    for positions in (40, 512, None):
        read = (load_tokenizer(tiny_bert), positions)
        monkeypatch.setattr("bertrelay.model.heads.read_tokenizer", lambda _, read=read: read)
        findings = {finding.check: finding for finding in check({"train": tmp_path / "train.tsv"}, model="any")}
        assert f"longer than the {254 if positions != 40 else 38} that" in findings["tokens in a sentence"].summary


def test_files_become_splits_by_name_or_by_order():
    train, dev, test = Path("x/test.tsv"), Path("x/devel.tsv"), Path("x/train.tsv")
    assert splits_of([train, dev, test]) == {"test": train, "dev": dev, "train": test}
    assert splits_of([Path("a"), Path("b")]) == {"train": Path("a"), "dev": Path("b")}
    latest, ncbi = Path("latest_dev.tsv"), Path("NCBItestset.txt")
    assert splits_of([latest, ncbi]) == {"dev": latest, "test": ncbi} and splits_of([latest]) == {"dev": latest}
    assert splits_of([Path("train_test.tsv"), Path("b")]) == {"train": Path("train_test.tsv"), "dev": Path("b")}
    with pytest.raises(RequestError, match="one to three files"):
        splits_of([])


@with_ner
def test_the_leaks_of_ncbi_disease_are_the_known_ones():
    folder = NER / "ncbi-disease"
    findings = check({"train": folder / "train.tsv", "dev": folder / "devel.tsv", "test": folder / "test.tsv"})
    by_check = {finding.check: finding for finding in findings}
    assert by_check["leaks train/dev"].counts["sentences"] == 5
    assert by_check["leaks train/test"].counts["sentences"] == 1
    assert by_check["tags"].severity == "good"
    assert "Disease 960" in by_check["types"].summary
