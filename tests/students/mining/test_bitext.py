"""Bitext mining, in memory and in files, against brute force over the whole matrix and a tiny bilingual model."""

import csv
import json
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from bertrelay.data.records import Rejects
from bertrelay.data.shards import ShardFiles
from bertrelay.data.tables import Table
from bertrelay.errors import RequestError, WorkError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.settings import InputFile
from students.evaluate.bitext import mining_metrics
from students.mining import bitext, knn
from students.mining.bitext import mine, mine_files, run
from students.mining.settings import MineSettings, MiningTest

SHARED = 60


@pytest.fixture(scope="module")
def spoken():
    """Sentences and their translations into another language, word for word."""
    words = np.array([f"word{number}" for number in range(200)])
    drawn = np.random.default_rng(0).choice(words, (140, 7)).tolist()
    return [(" ".join(sentence), " ".join(f"x{word}" for word in sentence)) for sentence in drawn]


@pytest.fixture(scope="module")
def bilingual(spoken):
    """A tiny BERT in which a word and its translation have one vector."""
    pairs = sorted({words for pair in spoken for words in zip(*(text.split() for text in pair), strict=True)})
    vocabulary = ["[PAD]", "[UNK]", *(word for word, _ in pairs), *(word for _, word in pairs)]
    rules = Tokenizer(models.WordLevel({word: row for row, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, pad_token="[PAD]", unk_token="[UNK]")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    network = BertModel(
        BertConfig(vocab_size=len(vocabulary), max_position_embeddings=16, initializer_range=0.5, **sizes)
    )
    with torch.no_grad():
        rows = network.embeddings.word_embeddings.weight
        rows[2 + len(pairs) :] = rows[2 : 2 + len(pairs)]
    return SentenceEncoder(network, tokenizer).eval()


@pytest.fixture
def sides(spoken):
    """Sources and targets, 60 of which translate one another: source 40 + i and target i."""
    return [other for _, other in spoken[:100]], [sentence for sentence, _ in spoken[40:]]


@pytest.fixture
def write(tmp_path):
    def write_lines(name, lines):
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write_lines


@pytest.fixture
def files(sides, write):
    return write("source.txt", sides[0]), write("target.txt", sides[1])


@pytest.fixture
def gold(write):
    return write("gold.tsv", [f"{41 + i}\t{1 + i}" for i in range(SHARED)])


def rows_of(path):
    """Reads the rows of an output of any format, with numbers as numbers."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    rows = csv.DictReader(text.splitlines(), delimiter="\t" if path.suffix == ".tsv" else ",")
    numbers = {"score": float, "source_line": int, "target_line": int}
    return [{name: numbers.get(name, str)(value) for name, value in row.items()} for row in rows]


def test_vectors_may_be_tensors_in_bfloat16_or_with_a_gradient():
    rows = torch.eye(3)
    for tensor in (rows.bfloat16(), rows.clone().requires_grad_()):
        assert [(pair.source, pair.target) for pair in mine(tensor, rows)] == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("method", ["exact", "approximate"])
def test_the_best_pairs_are_those_of_brute_force_over_the_whole_matrix(method, margins):
    generator = np.random.default_rng(0)
    source = generator.normal(size=(120, 24)).astype(np.float32)
    target = generator.normal(size=(90, 24)).astype(np.float32)
    target[:50] = source[30:80] + generator.normal(scale=0.6, size=(50, 24))
    mined = mine(source, target, k=4, method=method)
    pairs = [(pair.source, pair.target) for pair in mined]
    taken = []  # of all margins, best first, one to one
    for cell in np.argsort(-margins(source, target, 4), axis=None, kind="stable").tolist():
        pair = divmod(cell, len(target))
        if all(pair[0] != row and pair[1] != column for row, column in taken):
            taken.append(pair)
    assert pairs[:50] == taken[:50]
    assert len({pair.source for pair in mined}) == len({pair.target for pair in mined}) == len(mined)
    assert sorted(pairs[:50]) != sorted((row + 30, row) for row in range(50)), "the noise should leave some mistakes"
    best = mined[20].score
    assert mine(source, target, k=4, threshold=best, method=method) == mined[:21]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "Exact"}, "method: expected 'auto', 'exact' or 'approximate'"),
        ({"k": 0}, "k: expected greater than or equal to 1"),
        ({"threshold": float("nan")}, "threshold: expected a finite number"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_encoded(files, tmp_path, wrong, message):
    with pytest.raises(RequestError, match=message):
        mine(np.ones((3, 4), np.float32), np.ones((3, 4), np.float32), **wrong)
    with pytest.raises(RequestError, match=message):
        mine_files("/no/such/model", *files, tmp_path / "m.tsv", **wrong)


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet"])
def test_files_give_the_true_pairs_best_first_with_their_lines_and_texts(bilingual, sides, files, gold, tmp_path, kind):
    output = tmp_path / f"mined.{kind}"
    mined = mine_files(bilingual, *files, output, gold=gold, precision="fp32")
    rows = rows_of(output)
    assert {(row["source_line"], row["target_line"]) for row in rows} == {(41 + i, 1 + i) for i in range(SHARED)}
    assert all(
        (row["source"], row["target"]) == (sides[0][row["source_line"] - 1], sides[1][row["target_line"] - 1])
        for row in rows
    )
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    assert (mined.precision, mined.recall, mined.f1) == (1, 1, 1)
    assert (mined.sources, mined.targets, mined.pairs) == (100, 100, SHARED)
    assert mined.threshold is not None and mined.threshold < rows[-1]["score"]
    assert {path.name for path in tmp_path.iterdir()} == {output.name, "gold.tsv", "source.txt", "target.txt"}


@pytest.mark.parametrize("header", ["Source\ttarget", "target\tsource"])
def test_gold_may_have_a_header_of_source_and_target(bilingual, files, gold, write, tmp_path, header):
    pairs = [line.split("\t") for line in gold.read_text().splitlines()]
    named = write("named.tsv", [header, *("\t".join(pair[:: 1 if header[0] == "S" else -1]) for pair in pairs)])
    first, second = (
        mine_files(bilingual, *files, tmp_path / "m.jsonl", gold=path, precision="fp32", overwrite=True)
        for path in (gold, named)
    )
    assert first == second and first.f1 > 0.9


def test_a_requested_threshold_is_used_and_scored_by_gold(bilingual, files, gold, tmp_path):
    everything = mine_files(bilingual, *files, tmp_path / "all.jsonl", precision="fp32")
    scores = [row["score"] for row in rows_of(tmp_path / "all.jsonl")]
    half = (scores[29] + scores[30]) / 2
    mined = mine_files(bilingual, *files, tmp_path / "half.jsonl", threshold=half, gold=gold, precision="fp32")
    assert (mined.threshold, mined.pairs, mined.precision, mined.recall) == (half, 30, 1, 0.5)
    none = mine_files(bilingual, *files, tmp_path / "none.parquet", threshold=9.0, precision="fp32")
    assert (none.pairs, none.threshold) == (0, 9.0)
    assert (everything.f1, everything.threshold) == (None, None)
    assert rows_of(tmp_path / "none.parquet") == [] and everything.pairs > 30


def test_a_threshold_that_no_pair_reaches_is_logged_with_the_best_score(bilingual, files, tmp_path, capsys):
    mine_files(bilingual, *files, tmp_path / "all.jsonl", precision="fp32")
    best = rows_of(tmp_path / "all.jsonl")[0]["score"]
    mined = mine_files(bilingual, *files, tmp_path / "none.jsonl", threshold=99, precision="fp32")
    assert (
        mined.pairs == 0
        and f"no pair reaches the threshold 99.0000; the best has {best:.4f}" in capsys.readouterr().err
    )


def test_blank_and_equal_sentences_are_counted_and_lines_stay_those_of_the_file(
    bilingual, sides, write, tmp_path, capsys
):
    source = write("s.txt", ["", "  \t", *sides[0], sides[0][50], f"  {sides[0][60]} "])
    target = write("t.txt", [*sides[1], ""])
    gold = write("gold.csv", ["target_line,source_line", f"11,{2 + 51}", f"21,{2 + 101 + 1}", f"21,{2 + 61}"])
    mined = mine_files(bilingual, source, target, tmp_path / "m.tsv", gold=gold, precision="fp32")
    logged = capsys.readouterr().err
    assert f"{source}: 100 sentences; left out: 2 blank, 2 equal to an earlier one" in logged
    assert f"{target}: 100 sentences; left out: 1 blank" in logged
    assert (mined.sources, mined.targets, mined.recall) == (100, 100, 1)
    lines = {(row["source_line"], row["target_line"]) for row in rows_of(tmp_path / "m.tsv")}
    assert {(53, 11), (63, 21)} <= lines, "an equal sentence is the one at its first line"


def test_a_text_with_tabs_and_line_breaks_stays_in_its_row(bilingual, sides, tmp_path):
    breaks = ["\t", "\n", "\r\n", "\x0b", "\x1c", "\x85", "\u2028", "\u2029"]
    for name, lines in zip(("s.jsonl", "t.jsonl"), sides, strict=True):
        texts = [line.replace(" ", breaks[row % len(breaks)], 2) for row, line in enumerate(lines)]
        (tmp_path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for output in ("m.tsv", "m.csv"):
        mined = mine_files(bilingual, tmp_path / "s.jsonl", tmp_path / "t.jsonl", tmp_path / output, precision="fp32")
        rows = rows_of(tmp_path / output)
        assert len(rows) == mined.pairs
        assert {row["source"] for row in rows} <= set(sides[0])


@pytest.mark.parametrize(
    ("lines", "column", "message"),
    [
        (["1\t2", "101\t3"], None, r"gold\.tsv, line 2: .*source\.txt, found 101, where there is none"),
        (["0\t2"], None, "found 0, where there is none. Lines count from 1"),
        (["source_line\ttarget_line", "1\tsecret words"], None, r"gold\.tsv, line 2: expected the numbers of two"),
        (["here\tthere", "1\t2"], None, "no column 'source_line'"),
        (["1"], None, "no column 1"),
        (["41\t1"], 0, r"id_column: expected a table .*, found plain lines in .*source\.txt"),
    ],
)
def test_a_wrong_gold_file_is_reported_before_anything_is_encoded_and_leaves_nothing(
    files, write, tmp_path, lines, column, message
):
    gold = write("gold.tsv", lines)
    with pytest.raises(RequestError, match=message) as caught:
        mine_files("/no/such/model", *files, tmp_path / "m.tsv", gold=gold, id_column=column)
    assert "secret" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gold.tsv", "source.txt", "target.txt"]


@pytest.mark.parametrize(
    ("source", "output", "message"),
    [
        (["", "  "], "m.tsv", "expected sentences, found 2 blank ones and no other"),
        (["a"], "m.txt", r"ends in \.tsv or \.csv or \.jsonl or \.parquet, found .*m\.txt"),
        (["a"], "s.tsv", "is the input itself; name another"),
        (["a"], "linked.tsv", r"linked\.tsv\.work: .* found a symbolic link"),
    ],
)
def test_wrong_files_are_reported_before_anything_is_encoded(files, write, tmp_path, source, output, message):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "linked.tsv.work").symlink_to(tmp_path / "elsewhere")
    table = Table(path=InputFile(write("s.tsv", source)), format="lines")
    with pytest.raises(RequestError, match=message):
        mine_files("/no/such/model", table, files[1], tmp_path / output)


def test_a_vector_that_is_not_finite_is_reported_with_its_line(bilingual, sides, write, tmp_path):
    spoilt = deepcopy(bilingual)
    row = spoilt.tokenize([sides[1][0]])[0][0]
    spoilt.backbone.embeddings.word_embeddings.weight.data[row] = float("nan")
    target = write("t.txt", ["", sides[1][0]])
    with pytest.raises(WorkError, match=r"gives a vector that is not finite for line 2 of .*t\.txt"):
        mine_files(spoilt, write("s.txt", ["no such words"]), target, tmp_path / "m.tsv", precision="fp32")


def test_a_record_that_cannot_be_used_stops_unless_rejects_count_it(bilingual, files, tmp_path):
    source = tmp_path / "s.txt"
    source.write_bytes(files[0].read_bytes() + b"\xff\xfe\n")
    with pytest.raises(RequestError, match="line 101: not valid UTF-8"):
        mine_files(bilingual, source, files[1], tmp_path / "m.tsv")
    rejects = Rejects(tmp_path / "rejects.jsonl", 0.1)
    mined = mine_files(bilingual, source, files[1], tmp_path / "m.tsv", rejects=rejects, precision="fp32")
    assert mined.sources == 100
    assert [json.loads(line)["line"] for line in (tmp_path / "rejects.jsonl").read_text().splitlines()] == [101]
    with pytest.raises(WorkError, match="1 of 201 records cannot be used"):
        mine_files(bilingual, source, files[1], tmp_path / "n.tsv", rejects=Rejects(None, 0.001))


def test_missing_faiss_is_reported_before_anything_is_encoded(files, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(RequestError, match=r"FAISS, which is not installed here: pip install 'bertrelay\[search\]'"):
        mine_files("/no/such/model", *files, tmp_path / "m.tsv")


@pytest.fixture
def bucc(write, spoken):
    """`bucc(part, first, last)`: files in BUCC's format, both corpora and gold, which lacks every third true pair."""

    def make(part, first, last):
        pairs = spoken[first:last]
        sources = [f"xx-{1000 + row}\t{other}" for row, (_, other) in enumerate(pairs)]
        targets = [f"en-{2000 + row}\t{english}" for row, (english, _) in reversed(list(enumerate(pairs)))]
        listed = [f"xx-{1000 + row}\ten-{2000 + row}" for row in range(len(pairs)) if row % 3]
        names = [f"xx-en.{part}.{suffix}" for suffix in ("xx", "en", "gold")]
        source, target, true = (write(*file) for file in zip(names, (sources, targets, listed), strict=True))
        texts = {"format": "tsv", "header": False, "columns": [1]}
        return {
            "source": {"path": str(source), **texts},
            "target": {"path": str(target), **texts},
            "gold": {"path": str(true)},
        }

    return make


def test_gold_may_name_sentences_by_identifiers(bilingual, bucc, tmp_path, context):
    bilingual.save(tmp_path / "model")
    settings = {"model": str(tmp_path / "model"), **bucc("training", 0, 60), "precision": "fp32", "output": "jsonl"}
    metrics = run(MineSettings.model_validate({**settings, "id_column": 0}), context)
    assert (metrics["pairs"], metrics["recall"], metrics["precision"]) == (60, 1, pytest.approx(40 / 60))
    assert metrics["f1"] == pytest.approx(2 * 40 / (60 + 40))
    lines = {(row["source_line"], row["target_line"]) for row in rows_of(context.output / "mined.jsonl")}
    assert lines == {(1 + row, 60 - row) for row in range(60)}
    assert (metrics["sources"], metrics["targets"], (context.output / "rejects.jsonl").read_text()) == (60, 60, "")


@pytest.mark.parametrize(
    ("column", "lines", "message"),
    [
        (0, ["xx-1001\ten-2001", "xx-1001\ten-9999"], r"line 2: expected the identifiers of two sentences, found one"),
        (0, ["source_id\ttarget_id", "xx-999\ten-2001"], r"line 2: .*that no sentence of .*training\.xx has"),
        (0, ["xx-1001"], "no column 1|too few fields"),
        (0, ["xx-1001\t1.23E+11"], r"wrong\.tsv, line 1: expected identifiers, found an id that is a rounded number"),
        (0, ["xx-1002\ten-2002"], r"training\.xx, line 31: expected each identifier once, found that of line 3 again"),
    ],
)
def test_a_wrong_identifier_is_reported_without_quoting_it(bucc, write, tmp_path, column, lines, message):
    files = bucc("training", 0, 30)
    with Path(files["source"]["path"]).open("a", encoding="utf-8") as source:
        source.write("xx-1002\tagain\n")
    gold, tables = write("wrong.tsv", lines), [Table.model_validate(files[side]) for side in ("source", "target")]
    with pytest.raises(RequestError, match=message) as error:
        mine_files("/no/such/model", *tables, tmp_path / "m.tsv", gold=gold, id_column=column)
    assert "9999" not in str(error.value) and "xx-999" not in str(error.value)


def test_the_threshold_of_a_training_part_is_applied_to_the_test_part(bilingual, bucc, tmp_path, context):
    parts = {"train": bucc("training", 0, 70), "test": bucc("test", 70, 140)}
    test = MiningTest.model_validate({**parts, "id_column": 0})
    metrics = mining_metrics("xx-en", test, bilingual, context, "fp32", 0.01)
    threshold = metrics["mining_threshold/xx-en"]
    for part, files in parts.items():
        tables = [Table.model_validate(files[side]) for side in ("source", "target")]
        mine_files(bilingual, *tables, tmp_path / f"{part}.jsonl", precision="fp32")
        scored = [(row["source_line"] - 1, row["score"]) for row in rows_of(tmp_path / f"{part}.jsonl")]
        true = [row % 3 > 0 for row, score in scored if score >= threshold]
        expected = {
            "precision": sum(true) / len(true),
            "recall": sum(true) / 46,
            "f1": 2 * sum(true) / (len(true) + 46),
        }
        for measure, value in expected.items():
            assert metrics[f"mining_{measure}/xx-en/{part}"] == pytest.approx(value), (part, measure)
        f1 = f"mining_f1/xx-en/{part}"
        assert metrics[f"{f1}_low"] < metrics[f1] < metrics[f"{f1}_high"]
    assert len(rows_of(context.output / "mined/xx-en.test.tsv")) == len(true)


@pytest.fixture
def work_done(monkeypatch):
    """Counts of the sentences that go through the network, with padding ones, and of the cosines computed."""
    seen = {"encoded": 0, "compared": 0}
    forward, neighbours = SentenceEncoder.forward, knn.exact_neighbours

    def spy_forward(self, ids, *inputs):
        seen["encoded"] += len(ids)
        return forward(self, ids, *inputs)

    def spy_neighbours(queries, corpus, top_k):
        seen["compared"] += len(queries) * len(corpus)
        return neighbours(queries, corpus, top_k)

    monkeypatch.setattr(SentenceEncoder, "forward", spy_forward)
    monkeypatch.setattr(knn, "exact_neighbours", spy_neighbours)
    return seen


def test_a_work_folder_serves_another_threshold_without_any_work_and_other_sentences_not(
    bilingual, files, sides, write, tmp_path, work_done
):
    work = tmp_path / "work"
    mine_files(bilingual, *files, tmp_path / "m.tsv", work=work, precision="fp32")
    assert work_done["encoded"] >= 200 and work_done["compared"] == 2 * 100 * 100
    before = dict(work_done)
    mine_files(bilingual, *files, tmp_path / "n.tsv", work=work, threshold=1.1, precision="fp32")
    assert work_done == before
    mine_files(bilingual, *files, tmp_path / "o.tsv", work=work, k=3, precision="fp32")
    assert work_done["encoded"] == before["encoded"] and work_done["compared"] == 2 * before["compared"]
    write("target.txt", sides[1][::-1])
    mine_files(bilingual, *files, tmp_path / "p.tsv", work=work, threshold=1.0, precision="fp32")
    lines = {(row["source_line"], row["target_line"]) for row in rows_of(tmp_path / "p.tsv")}
    assert {(41 + i, 100 - i) for i in range(SHARED)} <= lines


def test_killed_while_it_compares_it_resumes_without_encoding(
    bilingual, files, gold, tmp_path, monkeypatch, work_done, kill_at
):
    monkeypatch.setattr(knn, "QUERY_BLOCK", 20)
    monkeypatch.setattr("bertrelay.encode_files.SMALLEST_SHARD", 25)

    def mine_to(output):
        return mine_files(bilingual, *files, tmp_path / output, gold=gold, precision="fp32")

    kill_at(ShardFiles, "write", 8 + 3 + 1, lambda: mine_to("m.tsv"))  # the vectors are eight shards
    assert not (tmp_path / "m.tsv").exists()
    resumed = mine_to("m.tsv")
    assert work_done == {"encoded": 0, "compared": 140 * 100}
    assert resumed == mine_to("whole.tsv")
    assert (tmp_path / "m.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()
    assert not (tmp_path / "m.tsv.work").exists()


@pytest.mark.parametrize("harm", ["flipped", "cut"])
def test_damaged_neighbours_are_an_error_and_then_computed_again(bilingual, files, tmp_path, work_done, harm):
    work = tmp_path / "work"
    mine_files(bilingual, *files, tmp_path / "m.tsv", work=work, precision="fp32")
    shard = work / "forward.partial/000000.npz"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes({"flipped": bytes(content), "cut": bytes(content[: len(content) // 2])}[harm])
    before = work_done["compared"]
    with pytest.raises(WorkError, match=r"000000\.npz: expected neighbours, found a damaged file"):
        mine_files(bilingual, *files, tmp_path / "n.tsv", work=work, precision="fp32")
    mine_files(bilingual, *files, tmp_path / "n.tsv", work=work, precision="fp32")
    assert work_done["compared"] == 1.5 * before, "one direction is computed again"
    assert (tmp_path / "m.tsv").read_bytes() == (tmp_path / "n.tsv").read_bytes()


def test_an_invalid_request_removes_no_finished_work(bilingual, files, write, tmp_path, work_done, monkeypatch):
    def full(*_):
        raise WorkError("the disk is full")

    with monkeypatch.context() as patched, pytest.raises(WorkError):
        patched.setattr(bitext, "write_table", full)
        mine_files(bilingual, *files, tmp_path / "m.tsv", precision="fp32")
    before = dict(work_done)
    with pytest.raises(RequestError):
        mine_files(bilingual, *files, tmp_path / "m.tsv", gold=write("gold.tsv", ["7\t777"]), precision="fp32")
    mine_files(bilingual, *files, tmp_path / "m.tsv", precision="fp32")
    assert work_done == before
