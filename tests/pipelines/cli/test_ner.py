"""`bertrelay ner tag` and `data check`. What all commands on files promise is in test_file_commands."""

import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from bertrelay.errors import RequestError, WorkError
from domain.biomedical import EntityTagger, tag_file
from domain.biomedical.documents.document import Document, Entity
from domain.biomedical.documents.formats import read_documents, write_documents
from pipelines.cli.app import app

TEXTS = [
    "The mice had fever of BRCA1. The 𝒢out <b>p53</b> & gout in rats.",
    "gout (fever) of p53, in the rats",
    "BRCA1 & p53 < gout > fever of the mice in rats.",
]


@pytest.fixture
def texts(write_lines):
    return write_lines("texts.jsonl", [json.dumps({"id": f"d{n}", "text": text}) for n, text in enumerate(TEXTS)])


@pytest.fixture(scope="module")
def expected(tagger):
    """Spans and types of each text's entities, tagged in Python."""
    documents = EntityTagger.load(tagger)(TEXTS, precision="fp32")
    assert sum(len(document.entities) for document in documents) > 5
    return [spans(document) for document in documents]


def spans(document):
    return [(entity.start, entity.end, entity.type) for entity in document.entities]


def spans_of(rows):
    return [[(each["start"], each["end"], each["type"]) for each in row["entities"]] for row in rows]


def test_jsonl_has_text_offsets_and_confidence_of_every_entity(call, tagger, texts, expected, tmp_path):
    out = call("ner", "tag", tagger, texts, tmp_path / "found.jsonl", "--precision", "fp32")
    rows = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert [(row["id"], row["text"]) for row in rows] == [(f"d{n}", text) for n, text in enumerate(TEXTS)]
    assert spans_of(rows) == expected
    for row in rows:
        assert all(row["text"][each["start"] : each["end"]] == each["text"] for each in row["entities"])
        assert all(0 < each["confidence"] <= 1 for each in row["entities"])
    count = sum(map(len, expected))
    assert out.startswith(f"{tmp_path / 'found.jsonl'}: 3 documents, ")
    assert sum(int(number) for number in re.findall(r"(\d+) (?:Disease|Gene)", out)) == count
    assert {path.name for path in tmp_path.iterdir()} == {"texts.jsonl", "found.jsonl"}


def test_entities_of_one_type_and_from_a_confidence_on_are_given_alone(call, tagger, texts, tmp_path):
    def tagged(name, *options):
        call("ner", "tag", tagger, texts, tmp_path / name, "--precision", "fp32", *options)
        rows = map(json.loads, (tmp_path / name).read_text().splitlines())
        return [(row["id"], one["start"], one["type"], one["confidence"]) for row in rows for one in row["entities"]]

    everything = tagged("all.jsonl")
    least = sum(sorted({confidence for *_, confidence in everything})[:2]) / 2  # between the lowest two
    kind = next(kind for _, _, kind, confidence in everything if confidence > least)
    some = [one for one in everything if one[2] == kind and one[3] >= least]
    assert tagged("some.jsonl", "--type", kind, "--min-confidence", least) == some
    assert 0 < len(some) < len(everything)
    assert tagged("none.jsonl", "--min-confidence", "1") == []
    with pytest.raises(RequestError, match=r"types: expected types that the model finds \(Disease, Gene\), found Drug"):
        tag_file(tagger, texts, tmp_path / "b.jsonl", types=["Drug"])


def test_an_exported_tagger_finds_the_same(call, tagger, texts, expected, tmp_path):
    call("export", tagger, tmp_path / "exported")
    call("ner", "tag", tmp_path / "exported", texts, tmp_path / "found.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert spans_of(rows) == expected


@pytest.mark.parametrize("name", ["brat", "conll", "bioc"])
def test_formats_are_tagged_and_written_and_their_own_entities_are_replaced(
    call, tagger, texts, expected, tmp_path, name
):
    is_conll = name.startswith("conll")  # which knows no white space
    if not is_conll:
        texts, old = tmp_path / "in", (Entity(0, 3, "Old"),)
        write_documents(texts, [Document(f"d{n}", text, old) for n, text in enumerate(TEXTS)], name)
    options = ["--input-format", "jsonl" if is_conll else name, "--format", name, "--precision", "fp32"]
    call("ner", "tag", tagger, texts, tmp_path / "found", *options)
    documents = list(read_documents(tmp_path / "found", name))
    for document, text, entities in zip(documents, TEXTS, expected, strict=True):
        if is_conll:
            mentions = ["".join(document.text[start:end].split()) for start, end, _ in spans(document)]
            assert mentions == ["".join(text[start:end].split()) for start, end, _ in entities]
        else:
            assert (document.text, spans(document)) == (text, entities)


def test_what_cannot_be_read_or_written_is_counted_and_listed(call, tagger, tmp_path):
    rows = [json.dumps({"id": f"d{n}", "text": "gout"}) for n in range(8)]
    rows[2], rows[5] = '{"id": "d2"', json.dumps({"id": "d5", "text": "gout\0fever of p53"})
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    out = call("ner", "tag", tagger, tmp_path / "in.jsonl", tmp_path / "out.pubtator", "--max-rejects", "0.3")
    assert out.endswith(", 1 rejected, 1 refused\n")
    assert [json.loads(line)["line"] for line in (tmp_path / "out.pubtator.rejects.jsonl").open()] == [3]
    assert [json.loads(line)["file"] for line in (tmp_path / "out.pubtator.refused.jsonl").open()] == ["document d5"]
    assert len(list(read_documents(tmp_path / "out.pubtator"))) == 6
    with pytest.raises(WorkError, match=r"1 of 8 records cannot be used.*not JSON"):
        tag_file(tagger, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(RequestError, match=r"none\.jsonl holds no (documents|records)"):
        tag_file(tagger, tmp_path / "none.jsonl", tmp_path / "out.jsonl")


def test_what_the_format_cannot_hold_is_found_before_anything_is_computed(tagger, tmp_path, monkeypatch):
    monkeypatch.setattr(EntityTagger, "tag_documents", None)
    rows = [json.dumps({"id": f"d{n}", "text": text}) for n, text in enumerate(["gout", "gout\0fever of p53"])]
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    with pytest.raises(WorkError, match=r"1 of 2 records.*NUL in the text.*pubtator cannot hold it; JSONL.* can"):
        tag_file(tagger, tmp_path / "in.jsonl", tmp_path / "out.pubtator")
    config = json.loads((tagger / "config.json").read_text())
    names = {number: tag.replace("Disease", "Disease or Syndrome") for number, tag in config["id2label"].items()}
    of_other_types = shutil.copytree(tagger, tmp_path / "model")
    (of_other_types / "config.json").write_text(json.dumps({**config, "id2label": names, "label2id": {}}))
    with pytest.raises(RequestError, match="brat cannot hold entities of the model's type 'Disease or Syndrome'"):
        tag_file(of_other_types, tmp_path / "in.jsonl", tmp_path / "out", output_format="brat")
    assert not {"out", "out.pubtator"} & {path.name for path in tmp_path.iterdir()}


def test_passages_of_a_full_text_are_tagged_as_one_document(call, tagger, tmp_path):
    (tmp_path / "in.pubtator").write_text("".join(f"1|t|{text}\n1|a|\n\n" for text in TEXTS))
    with pytest.raises(WorkError, match=r"2 of 3 records cannot be used.*an id that another document has"):
        tag_file(tagger, tmp_path / "in.pubtator", tmp_path / "out.jsonl")
    options = ["--repeated-ids", "passages", "--precision", "fp32"]
    call("ner", "tag", tagger, tmp_path / "in.pubtator", tmp_path / "out.jsonl", *options)
    (document,) = read_documents(tmp_path / "out.jsonl")
    assert document.text == "\n".join(TEXTS) and document.entities


def test_entities_at_wrong_offsets_do_not_keep_a_text_from_being_tagged(call, tagger, expected, tmp_path):
    wrong = [{"start": 1, "end": 4, "type": "Disease", "text": "gout"}, {"start": 9, "end": 99, "type": "X "}]
    rows = [json.dumps({"id": f"d{n}", "text": text, "entities": wrong}) for n, text in enumerate(TEXTS)]
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    call("ner", "tag", tagger, tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--precision", "fp32")
    assert spans_of(map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())) == expected
    assert not (tmp_path / "out.jsonl.rejects.jsonl").exists()


def test_fields_of_jsonl_are_kept_on_request(call, tagger, tmp_path):
    rows = [{"id": f"d{n}", "text": text, "pmid": n, "mesh": ["a", None]} for n, text in enumerate(TEXTS)]
    del rows[1]["mesh"]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    call("ner", "tag", tagger, tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--keep", "pmid", "--keep", "mesh")
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["id"], row["pmid"], row["mesh"]) for row in found] == [
        ("d0", 0, ["a", None]), ("d1", 1, None), ("d2", 2, ["a", None]),
    ]  # fmt: skip
    assert all(row["entities"] for row in found)
    for output, keep, message in (
        ("b.pubtator", "pmid", "keep: only from JSONL to JSONL, found pubtator"),
        ("b.jsonl", "year", "found none named year"),
        ("b.jsonl", "text", "keep: text of each document is written as it is"),
    ):
        with pytest.raises(RequestError, match=message):
            tag_file(tagger, tmp_path / "in.jsonl", tmp_path / output, keep=[keep])


def test_raw_text_is_one_document_to_the_character_and_becomes_pubtator(call, tagger, tmp_path, capsys):
    text = "\ufeff" + "\n".join(TEXTS) + "\r\n"
    (tmp_path / "note.txt").write_bytes(text.encode())
    call("ner", "tag", tagger, tmp_path / "note.txt", tmp_path / "out.pubtator")
    assert "3 line breaks in 1 documents became spaces of the same length" in capsys.readouterr().err
    call("ner", "tag", tagger, tmp_path / "note.txt", tmp_path / "out.jsonl")
    (found,), (expected,) = read_documents(tmp_path / "out.pubtator"), read_documents(tmp_path / "out.jsonl")
    assert (expected.id, expected.text) == ("note", text)
    assert found.text == text.replace("\n", " ").replace("\r", " ")
    assert spans(found) == spans(expected) != []
    (tmp_path / "none.txt").write_text("")
    assert call("ner", "tag", tagger, tmp_path / "none.txt", tmp_path / "none.jsonl").endswith(": 1 document\n")


def test_standard_input_has_a_document_in_each_line_or_what_it_is_said_to_hold(call, tagger, texts, expected, tmp_path):
    output = (tmp_path / "found.jsonl", "--overwrite")
    for stdin, options in (("\n".join(TEXTS) + "\n", ()), (texts.read_text(), ("--input-format", "jsonl"))):
        call("ner", "tag", tagger, "-", *output, "--precision", "fp32", *options, stdin=stdin)
        assert spans_of(map(json.loads, (tmp_path / "found.jsonl").read_text().splitlines())) == expected
    for stdin in (texts.read_text(), "7|t|gout\n7|a|of mice\n"):
        with pytest.raises(RequestError, match="standard input: expected a document in each line, found"):
            call("ner", "tag", tagger, "-", *output, stdin=stdin)
    assert {path.name for path in tmp_path.iterdir()} == {"texts.jsonl", "found.jsonl"}


def test_good_data_ends_with_0_and_data_that_will_not_do_with_1(tmp_path, call, tiny_encoder):
    files = {name: tmp_path / f"{name}.tsv" for name in ("train", "devel", "test")}
    for (name, path), first in zip(files.items(), ("B-X", "B-X", "I-X"), strict=True):
        path.write_text("".join(f"{name}{number}\t{'B-X' if number else first}\n\n" for number in range(60)))
    lines = call("data", "check", files["train"], files["devel"]).splitlines()
    assert lines[0] == f"train  {files['train']}" and any(line.startswith("good  tags") for line in lines)
    tiny_encoder("bert", ["train devel 0 1 2"]).save(tmp_path / "model")
    options = [
        "--train",
        files["train"],
        "--test",
        files["test"],
        "--columns",
        "0",
        "-1",
        "--model",
        tmp_path / "model",
    ]
    result = CliRunner().invoke(app, ["data", "check", *map(str, options), "--json"])
    document = json.loads(result.stdout)["result"]
    assert (result.exit_code, document["severity"]) == (1, "fail")
    assert document["files"] == {"train": str(files["train"]), "test": str(files["test"])}
    found = {each["check"]: each for each in document["findings"]}
    place = {"kind": "a tag that is not allowed there", "file": str(files["test"]), "line": 1}
    assert found["tags"]["places"] == [place] and found["spans"]["places"] == []
    assert (found["tags"]["severity"], found["leaks train/test"]["severity"]) == ("fail", "good")
    assert "38 that the model reads at once" in found["tokens in a sentence"]["summary"]
    with pytest.raises(RequestError, match="not both"):
        call("data", "check", files["train"], "--test", files["test"])
