import errno
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from device_waits import Waits
from torch import nn

from bertrelay import encode_files
from bertrelay.cache import Cache
from bertrelay.data.tables import Table
from bertrelay.data.vectors import open_vectors, quantized, vector_shape
from bertrelay.encode_files import encode_file, fill_vectors, forget_manifest
from bertrelay.encode_stage import EncodeSettings, run
from bertrelay.errors import RequestError, WorkError
from bertrelay.inference import encode as encoding
from bertrelay.inference import kernels as cpu_kernels
from bertrelay.memory import private_memory_mb
from bertrelay.model.encoder import SentenceEncoder, encoder_digest
from bertrelay.model.layout import Prompts
from bertrelay.stage import StageContext

BLOCK = 8


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(encoding, "BLOCK_SENTENCES", BLOCK)
    monkeypatch.setattr(encode_files, "BLOCK_SENTENCES", BLOCK)


class Texts:
    """Texts for `fill_vectors` to read; `starts` has the first row of each block that it read."""

    def __init__(self, texts):
        self.texts = texts
        self.starts: list[int] = []

    def __call__(self, first, end):
        self.starts.append(first)
        return self.texts[first:end]


@pytest.mark.usefixtures("small_blocks")
def test_a_finished_file_is_not_filled_again_unless_something_changed(make_encoder, many, tmp_path):
    def blocks_filled(encoder, key):
        texts = Texts(many)
        fill_vectors(encoder, texts, len(many), tmp_path / "v.npy", key, precision="fp32")
        return len(texts.starts)

    assert blocks_filled(make_encoder(), "key") == 8
    assert blocks_filled(make_encoder(), "key") == 0
    assert blocks_filled(make_encoder(), "other key") == 8
    assert blocks_filled(make_encoder(pooling=["cls", "mean"]), "other key") == 8
    assert open_vectors(tmp_path / "v.npy").shape == (61, 32)
    assert {path.name for path in tmp_path.iterdir()} >= {"v.npy", "v.npy.manifest.json"}
    forget_manifest(tmp_path / "v.npy")
    assert {path.name for path in tmp_path.iterdir()} == {"v.npy"}


@pytest.mark.usefixtures("small_blocks")
def test_of_two_runs_at_once_the_second_waits_and_computes_nothing(make_encoder, many, tmp_path):
    encoder, texts = make_encoder(), Texts(many)

    def run_once(_):
        return fill_vectors(encoder, texts, len(many), tmp_path / "v.npy", "key", precision="fp32")

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(run_once, range(2))) == [0, 61]
    assert len(texts.starts) == 8


@pytest.mark.promise("Vectors of fewer bits are those of float32, rounded", about="exact")
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("stored", ["int8", "binary"])
@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_vectors_in_fewer_bits_are_those_of_float32_rounded(make_encoder, many, tmp_path, stored, suffix):
    table, exact, output = lines_file(tmp_path, many), tmp_path / "exact.npy", tmp_path / f"out{suffix}"
    encode_file(make_encoder(), table, exact, precision="fp32")
    assert encode_file(make_encoder(), table, output, precision="fp32", vectors=stored)[:2] == (61, 16)
    expected = quantized(open_vectors(exact), stored)
    if suffix == ".npy":
        vectors = np.load(output)
    else:
        column = pq.read_table(output)["vector"].combine_chunks()
        vectors = column.values.to_numpy().reshape(61, -1)
    assert vectors.dtype == expected.dtype
    np.testing.assert_array_equal(vectors, expected)
    assert vector_shape(output, stored) == (61, 16)
    with pytest.raises(RequestError, match="vectors: expected float32, int8 or binary, found 'int4'"):
        encode_file(make_encoder(), table, tmp_path / "other.npy", vectors="int4")


@pytest.mark.promise("Encoding waits for the device once a shard", about="waiting")
@pytest.mark.usefixtures("small_blocks")
def test_encoding_waits_for_the_device_once_a_shard(make_encoder, many, tmp_path, monkeypatch):
    encoder = make_encoder()
    expected = encoder.encode(many, precision="fp32")
    monkeypatch.setattr(cpu_kernels, "is_asynchronous", lambda _: True)
    with Waits() as waits:
        fill_vectors(encoder, Texts(many), len(many), tmp_path / "v.npy", "key", batch_tokens=16, precision="fp32")
    assert waits.count == 2 * 8  # shards; a copy to the host, and its numbers
    np.testing.assert_allclose(open_vectors(tmp_path / "v.npy"), expected, atol=1e-6)


def lines_file(tmp_path, lines):
    path = tmp_path / "lines.txt"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return Table.model_validate({"path": str(path)})


def test_a_prompt_stands_before_each_sentence_and_another_one_begins_again(make_encoder, tmp_path):
    encoder, texts = make_encoder(prompts=Prompts({"query": "Rain. ", "other": "A "}, None)), Texts(["A dog."])
    for prompt, text in (("query", "Rain. A dog."), ("query", "Rain. A dog."), ("other", "A A dog.")):
        fill_vectors(encoder, texts, 1, tmp_path / "v.npy", "key", prompt_name=prompt, precision="fp32")
        expected = encoder.encode([text], precision="fp32")
        np.testing.assert_allclose(open_vectors(tmp_path / "v.npy"), expected, atol=1e-6)
    assert len(texts.starts) == 2


@pytest.mark.usefixtures("small_blocks")
def test_row_i_of_the_output_is_line_i_of_the_input_and_parquet_has_the_text_beside_it(
    make_encoder, many, tmp_path, capsys
):
    lines = [*many, "", " \t", "the end"]
    encoder, table = make_encoder(), lines_file(tmp_path, lines)
    expected = encoder.encode(lines, precision="fp32")
    for name in ("out.npy", "out.parquet"):
        encoded = encode_file(encoder, table, tmp_path / name, precision="fp32")
        assert (encoded.sentences, encoded.dim, encoded.precision) == (64, 16, "fp32")
        assert "2 of 64 sentences are blank" in capsys.readouterr().err
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=2e-5)
    file = pq.ParquetFile(tmp_path / "out.parquet")
    rows = file.read()
    assert str(rows.schema.field("vector").type) == "fixed_size_list<element: float>[16]"
    assert file.metadata.num_row_groups == 8
    assert rows["text"].to_pylist() == lines
    np.testing.assert_allclose(np.array(rows["vector"].to_pylist(), dtype=np.float32), expected, atol=2e-5)
    assert {path.name for path in tmp_path.iterdir()} == {"lines.txt", "out.npy", "out.parquet"}


def test_what_is_wrong_is_reported_before_a_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(SentenceEncoder, "load", None)
    lines_file(tmp_path, ["Rain."])
    (tmp_path / "bad.txt").write_bytes(b"Rain.\n" * 9 + b"R\xe9in.\n")
    (tmp_path / "number.jsonl").write_text('{"text": "one"}\n{"text": 3}\n')
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "a.parquet").write_bytes(b"no matter")
    (tmp_path / "b.parquet").symlink_to(tmp_path / "a.parquet")
    (tmp_path / "folder.npy").mkdir()
    for source, output, error_text in [
        ("lines.txt", "out.csv", r"ends in \.npy or \.parquet"),
        ("lines.txt", "nowhere/out.npy", "there is no folder .*nowhere"),
        ("lines.txt", "folder.npy", "found the folder"),
        ("none.txt", "out.npy", "there is no file"),
        ("a.parquet", "b.parquet", "is the input itself"),
        ("empty.txt", "out.npy", "has no records"),
        ("bad.txt", "out.npy", r"bad\.txt, line 10: not valid UTF-8 \(byte 55"),
        ("number.jsonl", "out.npy", r"number\.jsonl, line 2: expected text, found int"),
    ]:
        with pytest.raises(RequestError, match=error_text):
            encode_file("model", tmp_path / source, tmp_path / output)
    for text, kind in ((["A dog runs."] * 99, "list"), ("a dog " * 99, "a sentence")):
        with pytest.raises(RequestError, match=f"name of a file of sentences, found {kind}; write them to a file"):
            encode_file("model", text, tmp_path / "out.npy")
    with pytest.raises(RequestError, match=r"expected the path of a file or folder, found .*File name too long"):
        encode_file("model", "a_dog_" * 99, tmp_path / "out.npy")
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.usefixtures("small_blocks")
def test_a_vector_that_is_not_finite_is_reported_and_never_written(make_encoder, tmp_path):
    make_encoder().save(tmp_path / "spoilt")
    encoder = SentenceEncoder.load(tmp_path / "spoilt")
    word = encoder.tokenize(["Rain."])[0][1]
    encoder.backbone.embeddings.word_embeddings.weight.data[word] = float("nan")
    table, output = lines_file(tmp_path, ["A dog runs."] * 20 + ["Rain."]), tmp_path / "v.npy"
    with pytest.raises(WorkError, match=r"spoilt gives a vector that is not finite for sentence 21\. Check the model"):
        encode_file(encoder, table, output, precision="fp32")
    assert not output.exists()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_a_disk_that_is_full_while_assembling_loses_no_shard_and_keeps_the_earlier_output(
    make_encoder, many, tmp_path, suffix, monkeypatch
):
    table, output = lines_file(tmp_path, many), tmp_path / f"out{suffix}"
    output.write_bytes(b"of yesterday")

    def full(path, dtype):
        if path.stem != "000000":
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_vectors(path, dtype)

    with monkeypatch.context() as patched:
        patched.setattr(encode_files, "open_vectors", full)
        with pytest.raises(WorkError, match=r"could not write .*out\.\w+: No space left"):
            encode_file(make_encoder(), table, output, overwrite=True)
    assert output.read_bytes() == b"of yesterday"
    assert not list(tmp_path.glob(".out*"))
    sentences, dim, rate, _ = encode_file(make_encoder(), table, output, overwrite=True)
    assert (sentences, dim, rate) == (61, 16, None)  # nothing is left to be computed
    assert vector_shape(output) == (61, 16)
    assert {path.name for path in tmp_path.iterdir()} == {"lines.txt", output.name}


def test_the_stage_writes_the_vectors_and_reports_their_count(make_encoder, tmp_path, monkeypatch):
    make_encoder().save(tmp_path / "model")
    (tmp_path / "t.csv").write_text("id,sentence\n1,Rain.\n2,A dog runs.\n")
    table = {"path": str(tmp_path / "t.csv"), "columns": ["sentence"]}
    settings = EncodeSettings.model_validate(
        {"model": str(tmp_path / "model"), "sentences": table, "output": "parquet"}
    )
    context = StageContext(tmp_path, Cache(tmp_path / "cache"))
    metrics = run(settings, context)
    assert (metrics["sentences"], metrics["dim"]) == (2, 16)
    assert (metrics["sentences_per_second"] or 0) > 0
    assert pq.read_table(tmp_path / "vectors.parquet")["text"].to_pylist() == ["Rain.", "A dog runs."]
    monkeypatch.setattr(SentenceEncoder, "load", None)  # what is whole is not computed again
    assert run(settings, context) == {"sentences": 2, "dim": 16, "sentences_per_second": None}


def test_the_stage_writes_a_dataset_of_a_dataset(make_encoder, many, tmp_path):
    make_encoder().save(tmp_path / "model")
    (tmp_path / "in").mkdir()
    for part in range(2):
        table = pa.table({"said": many[part::2], "id": list(range(part, len(many), 2))})
        pq.write_table(table, tmp_path / f"in/{part}.parquet")
    common = {"model": str(tmp_path / "model"), "sentences": {"path": str(tmp_path / "in"), "columns": ["said"]}}
    settings = EncodeSettings.model_validate({**common, "output": "dataset", "keep": ["id"], "precision": "fp32"})
    metrics = run(settings, StageContext(tmp_path, Cache(tmp_path / "cache")))
    rows = pq.read_table(tmp_path / "vectors").sort_by("id")
    assert metrics["sentences"] == len(many) and rows["said"].to_pylist() == many
    expected = make_encoder().encode(many, precision="fp32")
    np.testing.assert_allclose(np.stack(rows["vector"].to_numpy()), expected, atol=1e-6)
    for wrong, message in (({"keep": ["id"]}, "keep: without effect"), ({"output": "dataset"}, "folder of Parquet")):
        table = {"hub": "owner/name"}
        with pytest.raises(ValueError, match=message):
            EncodeSettings.model_validate({**common, "sentences": table, **wrong})


def test_the_digest_of_an_encoder_tells_every_change(make_encoder):
    same = [encoder_digest(make_encoder()), encoder_digest(make_encoder())]
    more_heads = make_encoder()
    more_heads.backbone.config.num_attention_heads = 4  # the same weights, other vectors
    others = [
        encoder_digest(make_encoder(seed=1)),
        encoder_digest(make_encoder(pooling=["cls"])),
        encoder_digest(make_encoder(normalize=True)),
        encoder_digest(make_encoder(max_tokens=9)),
        encoder_digest(more_heads),
    ]
    assert same[0] == same[1]
    assert len({same[0], *others}) == 6


class StandIn(nn.Module):
    """A network of one table, so that a million sentences go through in seconds."""

    def __init__(self, dim):
        super().__init__()
        self.config = SimpleNamespace(hidden_size=dim, vocab_size=300, pad_token_id=0)
        self.table = nn.Embedding(300, dim)

    def forward(self, input_ids, attention_mask):  # noqa: ARG002
        return SimpleNamespace(last_hidden_state=self.table(input_ids))


@pytest.mark.promise("Private memory does not grow with the corpus", about="waiting")
@pytest.mark.skipif(private_memory_mb() is None, reason="only Linux reports private memory")
def test_private_memory_does_not_grow_with_the_corpus(word_piece, tmp_path):
    rows, dim = 75_000, 256
    encoder = SentenceEncoder(StandIn(dim), word_piece)
    seen: list[float] = []

    def read_block(first, end):
        seen.append(private_memory_mb() or 0.0)
        return [f"A dog {row}." for row in range(first, end)]

    fill_vectors(encoder, read_block, rows, tmp_path / "v.npy", "key", precision="fp32", batch_tokens=10_000)
    assert len(seen) == 37
    assert max(seen[24:]) - max(seen[6:24]) < rows * dim * 4 / 1e6 / 3  # the file itself has 77 MB
