"""The command `mine`, and the stage of that kind in a recipe."""

import json
import re

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from bertrelay.encoder import SentenceEncoder

WORDS = {"a": "ein", "dog": "hund", "barks": "bellt", "sleeps": "schläft", "cat": "kater", "here": "hier"}
ENGLISH = ["a dog barks", "a cat sleeps here", "a dog sleeps", "here"]
GERMAN = ["ein hund schläft", "", "ein kater schläft hier", "kater bellt hier"]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny BERT in which a word and its translation have one vector."""
    vocabulary = ["[PAD]", "[UNK]", *WORDS, *WORDS.values()]
    rules = Tokenizer(models.WordLevel({word: row for row, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, pad_token="[PAD]", unk_token="[UNK]")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    network = BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=8, **sizes))
    with torch.no_grad():
        rows = network.embeddings.word_embeddings.weight.normal_()
        rows[2 + len(WORDS) :] = rows[2 : 2 + len(WORDS)]
    folder = tmp_path_factory.mktemp("model")
    SentenceEncoder(network, tokenizer).save(folder)
    return folder


@pytest.fixture
def sides(tmp_path):
    """English and German sentences, of which line 2 is line 3 and line 3 is line 1."""
    for name, lines in (("en.txt", ENGLISH), ("de.txt", GERMAN)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "gold.tsv").write_text("2\t3\n3\t1\n")
    return tmp_path / "en.txt", tmp_path / "de.txt"


def test_a_threshold_is_chosen_by_gold_and_the_figures_are_told(call, model, sides, tmp_path):
    out = call(
        "mine", model, *sides, tmp_path / "m.tsv", "--gold", tmp_path / "gold.tsv", "-k", 2, "--precision", "fp32"
    )
    head, *rows = [line.split("\t") for line in (tmp_path / "m.tsv").read_text(encoding="utf-8").splitlines()]
    assert head == ["score", "source_line", "target_line", "source", "target"]
    assert {tuple(row[1:]) for row in rows} == {
        ("2", "3", ENGLISH[1], GERMAN[2]),
        ("3", "1", ENGLISH[2], GERMAN[0]),
    }
    assert out.startswith(f"{tmp_path / 'm.tsv'}: 2 pairs, f1 1.0000, precision 1.0000, recall 1.0000, threshold 1.")
    assert float(rows[-1][0]) >= float(re.search(r"threshold ([\d.]+)", out)[1])


def test_columns_of_one_table_are_two_sides(call, model, tmp_path):
    (tmp_path / "t.csv").write_text(
        "1,a dog barks,ein hund schläft\n2,a dog sleeps,kater bellt hier\n", encoding="utf-8"
    )
    sides, columns = [tmp_path / "t.csv"] * 2, ["--source-column", "1", "--target-column", "2", "--no-header"]
    call("mine", model, *sides, tmp_path / "m.csv", "--threshold", "1", *columns)
    rows = (tmp_path / "m.csv").read_text(encoding="utf-8").splitlines()
    assert rows[1].endswith(",2,1,a dog sleeps,ein hund schläft")


def test_kept_vectors_and_neighbours_stand_beside_the_output(call, model, sides, tmp_path):
    call("mine", model, *sides, tmp_path / "m.tsv", "--keep", "--method", "exact")
    assert {"source.npy", "target.npy", "forward.partial"} <= {
        path.name for path in (tmp_path / "m.tsv.work").iterdir()
    }
    document = json.loads(call("mine", model, *sides, tmp_path / "m.tsv", "--overwrite", "--json"))
    assert (document["output"], document["pairs"]) == (str(tmp_path / "m.tsv"), 3)
    assert (document["threshold"], document["f1"]) == (None, None)
    assert not (tmp_path / "m.tsv.work").exists()
