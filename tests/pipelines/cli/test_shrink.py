"""`bertrelay shrink` and `export`."""

import json

import numpy as np
import pytest

from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder

ENGLISH = ["the dog runs here", "no cat sleeps there", "two birds sing", "a fish waits outside again"]
GERMAN = ["der Hund rennt hier", "keine Katze schläft dort", "zwei Vögel singen", "ein Fisch wartet draußen"]


@pytest.fixture(scope="module")
def model(tiny_encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_encoder("bert", [*ENGLISH, *GERMAN] * 10, layers=3, normalize=True).save(folder)
    return folder


@pytest.fixture
def english(write_lines):
    return write_lines("english.txt", ENGLISH)


def tokens(folder, texts):
    encoder = SentenceEncoder.load(folder)
    return [encoder.tokenizer.tokenize(text) for text in texts]


def test_a_model_is_trimmed_to_several_files_and_what_it_was_and_is_stands_side_by_side(
    call, model, english, write_lines, tmp_path
):
    other = write_lines("more.csv", ["number,german", f"1,{GERMAN[0]}"])
    lines = call("shrink", model, english, tmp_path / "small").splitlines()
    assert tokens(tmp_path / "small", ENGLISH) == tokens(model, ENGLISH)
    assert tokens(tmp_path / "small", GERMAN) != tokens(model, GERMAN)
    vocabulary = next(line.split() for line in lines if line.startswith("vocabulary"))
    sizes = [len(SentenceEncoder.load(folder).tokenizer) for folder in (model, tmp_path / "small")]
    assert [int(size) for size in vocabulary[1:]] == sizes
    assert lines[0].split() == ["before", "after"]
    assert lines[-2:] == ["cosine to the vectors before: mean 1.00000, lowest 1.00000", f"model   {tmp_path / 'small'}"]
    call("shrink", model, other, tmp_path / "german", "--column", "german")
    assert tokens(tmp_path / "german", GERMAN[:1]) == tokens(model, GERMAN[:1])


def test_layers_dimensions_and_scores_are_reported_in_json_and_kept_with_the_model(call, model, english, write_lines):
    rows = [f"{text},{ENGLISH[number - 1]},{number}" for number, text in enumerate(ENGLISH)]
    sts = write_lines("test.en.csv", ["sentence1,sentence2,score", *rows])
    german = write_lines("test.de", GERMAN)
    table = write_lines("test.tsv", ["en\tfr", *map("\t".join, zip(ENGLISH, GERMAN, strict=True))])
    (english.parent / "small.partial").mkdir()
    (english.parent / "small.partial" / "mine.txt").write_text("mine")
    options = ["--layers", 2, "--dimensions", 3, "--no-trim", "--sts", sts]
    options += ["--parallel", f"de={english},{german}", "--parallel", f"fr={table}"]
    out = english.parent / "small"
    document = json.loads(call("shrink", model, english, out, *options, "--json"))
    report = document["result"]["metrics"]
    assert document["output"] == str(out)
    assert report == json.loads((out / "shrink.json").read_text())
    assert (report["layers/before"], report["layers/after"], report["dimensions/after"]) == (3, 2, 3)
    assert report["vocabulary/before"] == report["vocabulary/after"]
    assert {"sts/test/before/spearman_cosine", "sts/test/after/spearman_cosine"} <= report.keys()
    for side in ("before", "after"):  # the same sentences as two files and as columns of one
        assert report[f"translation_accuracy/{side}/en-de"] == report[f"translation_accuracy/{side}/en-fr"]
    assert SentenceEncoder.load(out).encode(ENGLISH).shape == (4, 3)
    assert (out.parent / "small.partial" / "mine.txt").read_text() == "mine"  # somebody else's


def test_files_of_a_language_are_named_and_what_is_reached_is_shown(call, model, english, write_lines, tmp_path):
    many = [f"{text} {number}" for number in range(20) for text in GERMAN]
    german, tricky = write_lines("german.txt", many), write_lines("de=other.txt", GERMAN[:1])
    small = tmp_path / "small"
    lines = call("shrink", model, f"de={german}", english, tricky, small, "--coverage", "0.9").splitlines()
    assert sum(line.startswith("de: ") and line.endswith("held-out text are cut as before") for line in lines) == 1
    assert tokens(small, [*many, *ENGLISH]) == tokens(model, [*many, *ENGLISH])
    report = json.loads((small / "shrink.json").read_text())
    assert report["coverage/de"] >= 0.9 and "coverage/en" not in report


def test_a_graph_is_a_folder_that_other_commands_read(call, model, english, tmp_path):
    lines = call("export", model, tmp_path / "graph", "--format", "onnx").splitlines()
    shown = {line.split("  ")[1].strip() or line.split()[0]: line.split() for line in lines if line.startswith("  ")}
    assert {"sentences/s", "mean cosine", "lowest cosine", "largest difference", "MB"} <= set(shown)
    kept = json.loads((tmp_path / "graph/export.json").read_text())
    assert kept["onnx/cosine_min"] == pytest.approx(1, abs=1e-6)
    call("encode", tmp_path / "graph", english, tmp_path / "vectors.npy")
    expected = SentenceEncoder.load(model).encode(ENGLISH, precision="fp32")
    assert np.abs(np.load(tmp_path / "vectors.npy") - expected).max() < 1e-5
    with pytest.raises(RequestError, match="expected a folder that does not exist yet"):
        call("export", model, tmp_path / "graph")
