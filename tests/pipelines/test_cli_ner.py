"""`bertrelay ner tag`: every format in and out, several processes, killed and resumed."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from pydantic import ValidationError

from bertrelay.errors import RequestError, WorkError
from domain.biomedical import EntityTagger, tag_file
from domain.biomedical.documents import FORMATS, read_documents, write_documents
from domain.biomedical.documents.document import Document, Entity, Passage
from domain.biomedical.ner.settings import TagSettings
from domain.biomedical.ner.tagging import written

WORDS = ["gout", "fever", "mice", "had", "the", "of", "BRCA1", "p53", "in", "rats", "(", ")", ".", ",", "<", ">", "&"]
TEXTS = [
    "The mice had fever of BRCA1. The 𝒢out <b>p53</b> & gout in rats.",
    "gout (fever) of p53, in the rats",
    "BRCA1 & p53 < gout > fever of the mice in rats.",
]
READ_BACK = [name for name in written() if FORMATS[name].read]


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    """The folder of a random tagger."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForTokenClassification, BertConfig, PreTrainedTokenizerFast

    from domain.biomedical.ner.decoding import LabelSet
    from domain.biomedical.ner.model import EntityModel, TokenClassifier, save_model

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    rules = Tokenizer(models.WordLevel({piece: row for row, piece in enumerate(pieces)}, unk_token="[UNK]"))
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    labels = LabelSet.of_types(["Disease", "Gene"])
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(
        vocab_size=len(pieces),
        max_position_embeddings=64,
        id2label=dict(enumerate(labels.tags)),
        label2id=dict(labels.number),
        **sizes,
    )
    network = TokenClassifier(AutoModelForTokenClassification.from_config(config)).eval()
    torch.manual_seed(11)
    for weight in network.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.7)  # so that tags depend on words and on their neighbours
    folder = tmp_path_factory.mktemp("tagger")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, **named)
    save_model(EntityModel(network, tokenizer, labels, max_tokens=64, overlap=16), folder)
    return folder


@pytest.fixture
def texts(write_lines):
    return write_lines("texts.jsonl", [json.dumps({"id": f"d{n}", "text": text}) for n, text in enumerate(TEXTS)])


@pytest.fixture
def expected(tagger):
    """Spans and types of each text's entities, tagged in Python."""
    documents = EntityTagger.load(tagger).tag(TEXTS, precision="fp32")
    assert sum(len(document.entities) for document in documents) > 5
    return [spans(document) for document in documents]


def spans(document):
    return [(entity.start, entity.end, entity.type) for entity in document.entities]


def test_jsonl_has_text_offsets_and_confidence_of_every_entity(call, tagger, texts, expected, tmp_path):
    out = call("ner", "tag", tagger, texts, tmp_path / "found.jsonl", "--precision", "fp32")
    rows = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert [(row["id"], row["text"]) for row in rows] == [(f"d{n}", text) for n, text in enumerate(TEXTS)]
    found = [[(each["start"], each["end"], each["type"]) for each in row["entities"]] for row in rows]
    assert found == expected
    for row in rows:
        assert all(row["text"][each["start"] : each["end"]] == each["text"] for each in row["entities"])
        assert all(0 < each["confidence"] <= 1 for each in row["entities"])
    count = sum(map(len, expected))
    assert out.endswith(f" in 3 documents, in {tmp_path / 'found.jsonl'}\n")
    assert sum(int(number) for number in re.findall(r"(\d+) (?:Disease|Gene)", out)) == count
    assert {path.name for path in tmp_path.iterdir()} == {"texts.jsonl", "found.jsonl"}


@pytest.mark.parametrize("name", READ_BACK)
def test_every_format_is_written_so_that_it_can_be_read_back(call, tagger, texts, expected, tmp_path, name):
    output = tmp_path / "found"
    call("ner", "tag", tagger, texts, output, "--format", name, "--precision", "fp32")
    documents = list(read_documents(output, name))
    assert len(documents) == len(TEXTS)
    for document, text, entities in zip(documents, TEXTS, expected, strict=True):
        if name.startswith("conll"):  # which knows no white space
            mentions = ["".join(document.text[start:end].split()) for start, end, _ in spans(document)]
            assert mentions == ["".join(text[start:end].split()) for start, end, _ in entities]
        else:
            assert (document.text, spans(document)) == (text, entities)


@pytest.mark.parametrize("name", [name for name in READ_BACK if not name.startswith("conll")])
def test_every_format_is_tagged_and_its_own_entities_are_replaced(tagger, expected, tmp_path, name):
    old = Entity(0, 3, "Old")
    documents = [Document(f"d{n}", text, (old,), (Passage(0, len(text), "title"),)) for n, text in enumerate(TEXTS)]
    write_documents(tmp_path / "in", documents, name)
    tag_file(tagger, tmp_path / "in", tmp_path / "out.jsonl", source_format=name, precision="fp32")
    assert [spans(document) for document in read_documents(tmp_path / "out.jsonl")] == expected


def test_raw_text_is_one_document_to_the_character(call, tagger, tmp_path):
    text = "\ufeffgout\r\n\r\nof p53\tfever 𝒢 \r\n"
    (tmp_path / "note.txt").write_bytes(text.encode())
    call("ner", "tag", tagger, tmp_path / "note.txt", tmp_path / "found.jsonl")
    (document,) = read_documents(tmp_path / "found.jsonl")
    assert (document.id, document.text) == ("note", text)


def test_a_page_shows_markup_of_a_text_as_text(call, tagger, write_lines, tmp_path):
    source = write_lines(
        "evil.jsonl", [json.dumps({"id": "<i>", "text": "gout <script>alert(1)</script> & p53 fever"})]
    )
    call("ner", "tag", tagger, source, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<script>alert" not in page
    assert "<i>" not in page
    assert "&lt;" in page
    assert not re.search(r"(?:src|href)=[\"']?http", page)


def test_the_summary_is_one_json_document(call, tagger, texts, expected, tmp_path):
    told = json.loads(call("ner", "tag", tagger, texts, tmp_path / "a.jsonl", "--json", "--precision", "fp32"))
    assert sum(told.pop("entities").values()) == sum(map(len, expected))
    assert told.pop("words_per_second") > 0
    words = sum(len(text.split()) for text in TEXTS)
    assert told == {
        "output": str(tmp_path / "a.jsonl"), "documents": 3, "words": words, "rejected": 0, "refused": 0
    }  # fmt: skip


def test_what_cannot_be_read_or_written_is_counted_and_listed(call, tagger, tmp_path):
    rows = [json.dumps({"id": f"d{n}", "text": "gout"}) for n in range(8)]
    rows[2], rows[5] = '{"id": "d2"', json.dumps({"id": "d5", "text": "gout\0fever of p53"})
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    out = call("ner", "tag", tagger, tmp_path / "in.jsonl", tmp_path / "out.pubtator", "--max-rejects", "0.3")
    assert "left out: 1 unreadable, 1 that the format cannot hold, listed beside it\n" in out
    assert [json.loads(line)["line"] for line in (tmp_path / "out.pubtator.rejects.jsonl").open()] == [3]
    assert [json.loads(line)["file"] for line in (tmp_path / "out.pubtator.refused.jsonl").open()] == ["document d5"]
    assert len(list(read_documents(tmp_path / "out.pubtator"))) == 6
    with pytest.raises(WorkError, match=r"1 of 8 records cannot be used.*not JSON"):
        tag_file(tagger, tmp_path / "in.jsonl", tmp_path / "out.jsonl")


def test_an_empty_file_is_a_document_without_entities(call, tagger, tmp_path):
    (tmp_path / "none.txt").write_text("")
    out = call("ner", "tag", tagger, tmp_path / "none.txt", tmp_path / "out.jsonl")
    assert out.startswith("no entities in 1 documents")
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(RequestError, match=r"none\.jsonl holds no (documents|records)"):
        tag_file(tagger, tmp_path / "none.jsonl", tmp_path / "out.jsonl")


WRONG = [
    (["MODEL", "texts.jsonl", "out.xyz"], r"expected a suffix that implies the format"),
    (["MODEL", "texts.jsonl", "out.txt", "--format", "text"], r"output: text is only read"),
    (["MODEL", "texts.jsonl", "none/out.jsonl"], "there is no folder none"),
    (["MODEL", "none.jsonl", "out.jsonl"], r"there is no file or folder none\.jsonl"),
    (["MODEL", "texts.jsonl", "texts.jsonl"], "is the input itself"),
    (["MODEL", "texts.jsonl", ".", "--format", "brat"], "output: expected a new folder or an empty one for brat"),
    (["./none", "texts.jsonl", "out.jsonl"], "model: expected .*folder, found none at .*none"),
]


def test_a_wrong_request_ends_with_2_and_loads_no_torch(refused, tagger, texts, tmp_path):
    asked = [[tagger if word == "MODEL" else word for word in arguments] for arguments, _ in WRONG]
    for (code, words), (_, told) in zip(refused(["ner", "tag", *each] for each in asked), WRONG, strict=True):
        assert code == 2 and re.search(told, words), words
    assert {path.name for path in tmp_path.iterdir()} == {texts.name}


def test_a_model_that_tags_nothing_is_told(model, texts, tmp_path):
    with pytest.raises(RequestError, match="model: expected one that tags entities, found none in"):
        tag_file(model, texts, tmp_path / "out.jsonl")


def test_a_recipe_tags_documents(call, tagger, texts, expected, write_lines, tmp_path):
    stage = f'uses = "domain.ner-tag"\nmodel = "{tagger}"\ndocuments = "{texts}"\nprecision = "fp32"\noutput = "bioc"'
    recipe = write_lines("r.toml", ["[t]", stage])
    assert "documents 3" in call("run", recipe, "--runs", tmp_path / "runs")
    found = read_documents(tmp_path / "runs/r/t/latest/entities.json")
    assert [spans(document) for document in found] == expected
    assert "SKIP" in call("run", recipe, "--runs", tmp_path / "runs", "--set", "t.batch_tokens=64")


@pytest.mark.parametrize("name", ["text", "lines"])
def test_a_stage_writes_no_format_that_is_only_read(name):
    with pytest.raises(ValidationError, match="output"):
        TagSettings.model_validate({"model": "/m", "documents": "/d.txt", "output": name})


SMALL_BLOCKS = """
import domain.biomedical.ner.tagging as files
files.BLOCK_CHARACTERS = 10_000
from pipelines.cli import main
main()
"""


@pytest.fixture
def start(tagger, tmp_path):
    """Starts `bertrelay ner tag` as a user or a launcher does, with blocks of 10,000 characters; none lives on."""
    started = []

    def start_one(output, *options, **environment):
        command = [
            sys.executable,
            "-c",
            SMALL_BLOCKS,
            "ner",
            "tag",
            tagger,
            "many.jsonl",
            output,
            "--precision",
            "fp32",
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", **environment}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([*command, *options], cwd=tmp_path, env=environment, **pipes)
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def many(write_lines, monkeypatch):
    """The texts of many documents, which are tagged in blocks of 10,000 characters here too."""
    monkeypatch.setattr("domain.biomedical.ner.tagging.BLOCK_CHARACTERS", 10_000)
    texts = [f"{TEXTS[n % 3]} {TEXTS[n // 3 % 3]} in rats {n}." for n in range(3_000)]
    write_lines("many.jsonl", [json.dumps({"id": str(n), "text": text}) for n, text in enumerate(texts)])
    return texts


def wait_for_parts(process, folder, count):
    while len(list(folder.glob("0*.jsonl"))) < count:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def finished(process):
    out, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    return out, told


def test_killed_again_and_again_it_goes_on_to_the_same_bytes(start, call, tagger, many, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    parts = tmp_path / "out.jsonl.partial"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    workers = [start("out.jsonl", RANK=str(rank), **shared) for rank in range(2)]
    wait_for_parts(workers[0], parts, 3)
    for worker in workers:
        worker.kill()
        assert worker.wait() == -signal.SIGKILL
    done = len(list(parts.glob("0*.jsonl")))

    alone = start("out.jsonl")
    wait_for_parts(alone, parts, done + 2)
    alone.kill()
    assert alone.wait() == -signal.SIGKILL
    assert not (tmp_path / "out.jsonl").exists()

    out = call("ner", "tag", tagger, "many.jsonl", "out.jsonl", "--precision", "fp32")
    assert "tagging: resuming after" in capsys.readouterr().err
    assert "in 3,000 documents, in out.jsonl" in out
    call("ner", "tag", tagger, "many.jsonl", "whole.jsonl", "--precision", "fp32")
    assert "resuming after" not in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert [document.text for document in read_documents(tmp_path / "out.jsonl")] == many
    assert {path.name for path in tmp_path.iterdir()} == {"many.jsonl", "out.jsonl", "whole.jsonl"}


def test_processes_of_our_own_give_the_same_bytes(start, call, tagger, write_lines, tmp_path):
    write_lines("many.jsonl", [json.dumps({"text": text}) for text in TEXTS])
    summary, _ = finished(start("two.jsonl", "--processes", "2", "--json"))
    assert json.loads(summary)["documents"] == len(TEXTS)
    call("ner", "tag", tagger, tmp_path / "many.jsonl", tmp_path / "one.jsonl", "--precision", "fp32")
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()


def test_what_was_begun_for_another_input_is_begun_again(cut_short, tagger, many, write_lines, tmp_path, capsys):
    cut_short(tag_file, tagger, tmp_path / "many.jsonl", tmp_path / "out.jsonl")
    assert len(list((tmp_path / "out.jsonl.partial").glob("0*.jsonl"))) == 1
    write_lines("many.jsonl", [json.dumps({"text": text}) for text in many[:10]])
    tag_file(tagger, tmp_path / "many.jsonl", tmp_path / "out.jsonl")
    assert "is of another model or input: restarting" in capsys.readouterr().err
    assert [document.text for document in read_documents(tmp_path / "out.jsonl")] == many[:10]


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


def test_a_text_of_many_lines_becomes_pubtator(call, tagger, tmp_path, capsys):
    text = "\n".join(TEXTS) + "\r\n"
    (tmp_path / "note.txt").write_bytes(text.encode())
    call("ner", "tag", tagger, tmp_path / "note.txt", tmp_path / "out.pubtator")
    assert "3 line breaks in 1 documents became spaces of the same length" in capsys.readouterr().err
    call("ner", "tag", tagger, tmp_path / "note.txt", tmp_path / "out.jsonl")
    (found,), (expected,) = read_documents(tmp_path / "out.pubtator"), read_documents(tmp_path / "out.jsonl")
    assert found.text == text.replace("\n", " ").replace("\r", " ")
    assert spans(found) == spans(expected) != []


def test_more_refused_documents_than_allowed_leave_no_output(call, tagger, tmp_path):
    (document,) = EntityTagger.load(tagger).tag([TEXTS[0]])
    gap = next(each.start + document.text[each.start : each.end].index(" ") for each in document.entities
               if " " in document.text[each.start : each.end])  # fmt: skip
    text = f"{document.text[:gap]}\t{document.text[gap + 1 :]}"
    rows = [json.dumps({"id": f"d{n}", "text": text}) for n, text in enumerate(["gout", text])]
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    with pytest.raises(
        WorkError, match=r"1 of 2 .* document d1 \(.*pubtator cannot hold it; JSONL, for example, can\)"
    ):
        call("ner", "tag", tagger, tmp_path / "in.jsonl", tmp_path / "out.pubtator")
    assert not (tmp_path / "out.pubtator").exists()


def test_standard_input_has_a_document_in_each_line_or_what_it_is_said_to_hold(call, tagger, texts, expected, tmp_path):
    output = (tmp_path / "found.jsonl", "--overwrite")
    for stdin, options in [
        ("\n".join(TEXTS) + "\n", []),
        (texts.read_text(), ["--input-format", "jsonl"]),
    ]:
        call("ner", "tag", tagger, "-", *output, "--precision", "fp32", *options, stdin=stdin)
        rows = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
        assert [[(each["start"], each["end"], each["type"]) for each in row["entities"]] for row in rows] == expected
    for stdin in (texts.read_text(), "7|t|gout\n7|a|of mice\n"):
        with pytest.raises(RequestError, match="standard input: expected a document in each line, found"):
            call("ner", "tag", tagger, "-", *output, stdin=stdin)
    with pytest.raises(RequestError, match="nothing is written to standard output"):
        call("ner", "tag", tagger, texts, "-")
    assert {path.name for path in tmp_path.iterdir()} == {"texts.jsonl", "found.jsonl"}
