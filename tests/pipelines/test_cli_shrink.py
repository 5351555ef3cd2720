"""The command `bertrelay shrink`."""

import json

import pytest

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError

ENGLISH = ["the dog runs here", "no cat sleeps there", "two birds sing", "a fish waits outside again"]
GERMAN = ["der Hund rennt hier", "keine Katze schläft dort", "zwei Vögel singen", "ein Fisch wartet draußen"]


@pytest.fixture(scope="session")
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


def test_a_model_is_trimmed_to_several_files_and_what_it_was_and_is_stands_side_by_side(call, model, english, tmp_path):
    other = tmp_path / "more.txt"
    other.write_text("der Hund rennt hier\n", encoding="utf-8")
    out = tmp_path / "small"
    lines = call("shrink", model, english, other, out).splitlines()
    assert tokens(out, [*ENGLISH, GERMAN[0]]) == tokens(model, [*ENGLISH, GERMAN[0]])
    assert tokens(out, GERMAN[1:]) != tokens(model, GERMAN[1:])
    vocabulary = next(line.split() for line in lines if line.startswith("vocabulary"))
    assert [int(figure) for figure in vocabulary[1:]] == [
        len(SentenceEncoder.load(each).tokenizer) for each in (model, out)
    ]
    assert lines[0].split() == ["before", "after"]
    assert lines[-2:] == ["cosine to the vectors before: mean 1.00000, lowest 1.00000", f"model   {out}"]
    assert {path.name for path in tmp_path.iterdir()} == {english.name, "more.txt", "small"}


def test_layers_dimensions_and_scores_are_told_in_json_and_kept_with_the_model(call, model, english, tmp_path):
    rows = [f"{text},{ENGLISH[number - 1]},{number}" for number, text in enumerate(ENGLISH)]
    (tmp_path / "test.en.csv").write_text("\n".join(["sentence1,sentence2,score", *rows]), encoding="utf-8")
    out = tmp_path / "small"
    options = ["--layers", 2, "--dimensions", 3, "--no-trim", "--sts", tmp_path / "test.en.csv", "--json"]
    told = json.loads(call("shrink", model, english, out, *options))
    assert told.pop("output") == str(out)
    assert told == json.loads((out / "shrink.json").read_text())
    assert (told["layers/before"], told["layers/after"], told["dimensions/after"]) == (3, 2, 3)
    assert told["vocabulary/before"] == told["vocabulary/after"]
    assert {"sts/test/before/spearman_cosine", "sts/test/after/spearman_cosine"} <= told.keys()
    assert SentenceEncoder.load(out).encode(ENGLISH).shape == (4, 3)


def test_translation_accuracy_of_both_is_told_for_aligned_files_and_for_a_table(call, model, english, tmp_path):
    (tmp_path / "test.de").write_text("\n".join(GERMAN) + "\n", encoding="utf-8")
    rows = [f"{one}\t{other}" for one, other in zip(ENGLISH, GERMAN, strict=True)]
    (tmp_path / "test.tsv").write_text("\n".join(["en\tfr", *rows]) + "\n", encoding="utf-8")
    options = ["--parallel", f"de={english},{tmp_path / 'test.de'}", "--parallel", f"fr={tmp_path / 'test.tsv'}"]
    told = json.loads(call("shrink", model, english, tmp_path / "small", *options, "--layers", 2, "--json"))
    for side in ("before", "after"):
        assert told[f"translation_accuracy/{side}/en-de"] == told[f"translation_accuracy/{side}/en-fr"]
        assert 0 <= told[f"translation_accuracy/{side}/en-de"] <= 1


def test_columns_are_found_by_name_and_by_position_and_may_be_several(call, model, write_lines, tmp_path):
    german = write_lines("german.csv", ["number,german", *(f"1,{text}" for text in GERMAN)])
    (tmp_path / "named.partial").mkdir()
    (tmp_path / "named.partial" / "mine.txt").write_text("mine")
    call("shrink", model, german, tmp_path / "named", "--column", "german")
    call("shrink", model, german, tmp_path / "both", "--column", "0", "--column", "1")
    for name in ("named", "both"):
        assert tokens(tmp_path / name, GERMAN) == tokens(model, GERMAN)
    assert (tmp_path / "named.partial" / "mine.txt").read_text() == "mine"  # a folder of somebody else's


@pytest.mark.parametrize(
    ("options", "error"), [(["--layers", "9"], "at most the 3 of the base"), (["--dimensions", "16"], "fewer than")]
)
def test_what_a_model_has_not_is_refused_and_makes_no_folder(call, model, english, tmp_path, options, error):
    with pytest.raises(RequestError, match=error):
        call("shrink", model, english, tmp_path / "small", *options)
    assert not list(tmp_path.glob("small*"))
