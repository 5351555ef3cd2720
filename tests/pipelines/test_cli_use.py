"""The commands that use a model: `encode` and `similarity`."""

import csv
import json
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.spatial.distance import cdist
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from typer.testing import CliRunner

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from pipelines.cli.app import app

WORDS = ["[PAD]", "[UNK]", "a", "dog", "barks", "ein", "hund", "bellt", "개가", "짖는다", "."]
ENGLISH = ["a dog barks", "a dog .", "dog dog"]
OTHERS = ["ein hund bellt .", "개가 짖는다"]


@pytest.fixture(scope="session")
def encoder():
    rules = Tokenizer(models.WordLevel({word: row for row, word in enumerate(WORDS)}, unk_token="[UNK]"))
    rules.normalizer = normalizers.Lowercase()
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, pad_token="[PAD]", unk_token="[UNK]")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    network = BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=16, initializer_range=0.5, **sizes))
    return SentenceEncoder(network, tokenizer).eval()


@pytest.fixture(scope="session")
def model(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    encoder.save(folder)
    return str(folder)


@pytest.fixture
def english(tmp_path):
    path = tmp_path / "english.txt"
    path.write_text("\n".join(ENGLISH) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def others(tmp_path):
    path = tmp_path / "others.txt"
    path.write_text("\n".join(OTHERS) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def vectors(encoder):
    def of(sentences):
        with torch.inference_mode():
            alone = [torch.tensor([ids]) for ids in encoder.tokenize(sentences)]
            return torch.cat([encoder(ids, torch.ones_like(ids)) for ids in alone]).numpy()

    return of


def call(*arguments):
    """Standard output of a command; its error is raised."""
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def cosine(first, second):
    return 1 - cdist(first.astype(float), second.astype(float), "cosine")


def test_encode_writes_the_vector_of_line_i_in_row_i_and_says_so(model, english, vectors, tmp_path):
    out = call("encode", model, english, tmp_path / "v.npy", "--precision", "fp32", "--batch-tokens", "4")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors(ENGLISH), atol=1e-6)
    assert out == f"3 vectors of 8 dimensions in {tmp_path / 'v.npy'}\n"


@pytest.mark.parametrize(("column", "header"), [("german", "id\tgerman"), ("1", "id\tgerman"), ("1", None)])
def test_encode_finds_a_column_by_name_and_by_position(model, vectors, tmp_path, column, header):
    lines = ([header] if header else []) + [f"{number}\t{sentence}" for number, sentence in enumerate(OTHERS)]
    (tmp_path / "table.tsv").write_text("\n".join(lines), encoding="utf-8")
    options = [] if header else ["--no-header"]
    target = tmp_path / "v.parquet"
    call("encode", model, tmp_path / "table.tsv", target, "--column", column, "--precision", "fp32", *options)
    rows = pq.read_table(target).to_pydict()
    assert rows["text"] == OTHERS
    np.testing.assert_allclose(rows["vector"], vectors(OTHERS), atol=1e-6)


def test_encode_reads_a_file_as_what_it_is_said_to_be(model, vectors, tmp_path):
    (tmp_path / "data.txt").write_text('{"text": "a dog"}\n', encoding="utf-8")
    call("encode", model, tmp_path / "data.txt", tmp_path / "v.npy", "--format", "jsonl", "--precision", "fp32")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors(["a dog"]), atol=1e-6)


def test_encode_refuses_an_output_of_no_known_kind(model, english, tmp_path):
    with pytest.raises(RequestError, match=r"\.npy or \.parquet"):
        call("encode", model, english, tmp_path / "v.txt")


def test_two_sentences_have_one_figure(model, vectors):
    out = call("similarity", model, "a dog", "ein hund", "--precision", "fp32")
    expected = cosine(vectors(["a dog"]), vectors(["ein hund"])).item()
    assert out.split("\t")[1:] == ["a dog", "ein hund\n"]
    assert float(out.split("\t")[0]) == pytest.approx(expected, abs=6e-5)


def test_files_are_compared_line_by_line_and_json_stands_alone(model, others, vectors, tmp_path):
    (tmp_path / "two.txt").write_text("\n".join(ENGLISH[:2]), encoding="utf-8")
    out = call("similarity", model, tmp_path / "two.txt", others, "--files", "--json", "--precision", "fp32")
    pairs = json.loads(out)["pairs"]
    assert [(pair["a"], pair["b"]) for pair in pairs] == list(zip(ENGLISH[:2], OTHERS, strict=True))
    expected = np.diag(cosine(vectors(ENGLISH[:2]), vectors(OTHERS)))
    np.testing.assert_allclose([pair["similarity"] for pair in pairs], expected, atol=1e-5)


def test_a_matrix_has_every_line_with_every_line(model, english, others, vectors, tmp_path):
    table, picture = tmp_path / "m.csv", tmp_path / "m.svg"
    flags = ["--matrix", "--metric", "euclidean", "--precision", "fp32", "--csv", table, "--picture", picture, "--json"]
    document = json.loads(call("similarity", model, english, others, *flags))
    assert (document["rows"], document["columns"], document["metric"]) == (ENGLISH, OTHERS, "euclidean")
    np.testing.assert_allclose(document["matrix"], -cdist(vectors(ENGLISH), vectors(OTHERS)), atol=1e-5)
    with table.open(encoding="utf-8", newline="") as file:
        first, *rows = csv.reader(file)
    assert first == ["", *OTHERS]
    assert [row[0] for row in rows] == ENGLISH
    np.testing.assert_allclose([[float(value) for value in row[1:]] for row in rows], document["matrix"])
    assert set(OTHERS) <= {text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")}


def test_one_file_is_compared_with_itself_and_named_once(model, english):
    lines = call("similarity", model, english, "--matrix").splitlines()
    assert len(lines) == 1 + len(ENGLISH)
    assert [line.split()[row] for row, line in enumerate(lines[1:])] == ["1.0000"] * 3


def test_files_of_unequal_length_are_refused_with_both_counts(model, english, others):
    with pytest.raises(RequestError, match=r"3 lines in .*english.txt and 2 in .*others.txt"):
        call("similarity", model, english, others, "--files")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["a dog"], "found A alone"),
        (["a dog", "ein hund", "--picture", "p.svg"], "add --matrix"),
        (["a.txt", "--matrix", "--picture", "p.png"], r"\.svg, found p\.png"),
        (["no-such-file.txt", "--matrix"], "there is no file"),
    ],
)
def test_a_wrong_request_is_answered_before_the_model_is_loaded(arguments, told):
    with pytest.raises(RequestError, match=told):
        call("similarity", "/no/such/model", *arguments)


def test_a_picture_that_cannot_be_written_is_a_wrong_request(model, english, tmp_path):
    with pytest.raises(RequestError, match="cannot be written: No such file or directory"):
        call("similarity", model, english, "--matrix", "--picture", tmp_path / "none" / "p.svg")
