"""Vectors of files and Parquet datasets of any size, computed in shards that survive a kill."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, TypeVar, Unpack

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertrelay.cache import Cache
from bertrelay.checks import check_choice
from bertrelay.compute.engine import LOCAL, Engine
from bertrelay.compute.local import LocalExecutor
from bertrelay.compute.work import Compute, Executor, Work, whole_span
from bertrelay.data.parquet import ROW, ParquetInput, check_outside
from bertrelay.data.records import Rejects
from bertrelay.data.sentences import SentenceScan, as_table, block_reader, scan
from bertrelay.data.shards import ShardFiles, Span, even_spans
from bertrelay.data.tables import BLOCK_SENTENCES, Table
from bertrelay.data.vectors import (
    DTYPES,
    SUFFIXES,
    ReadBlock,
    Stored,
    check_space,
    open_vectors,
    quantized,
    stored_columns,
    write_block,
    write_vectors,
)
from bertrelay.device import ComputePrecision, default_device
from bertrelay.errors import plural
from bertrelay.files import check_output, read_json, refuse_symlink, write_json
from bertrelay.fingerprint import fingerprint
from bertrelay.inference.batches import computed_precision
from bertrelay.inference.encode import EncodingOptions, check_finite, encode_blocks
from bertrelay.inference.run_model import FillResult, connect, fill, fill_dataset
from bertrelay.inputs import unchanged_inputs
from bertrelay.locks import locked_output
from bertrelay.model.encoder import SentenceEncoder, encoder_digest, open_encoder
from bertrelay.model.graph import GraphNetwork
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, check_shared, on_main, wait_for_all
from bertrelay.progress import Bar, log

Block = TypeVar("Block")

SMALLEST_SHARD = 2_048  # sentences; fewer would leave too few of like length for one batch
MOST_SHARDS = 64
MANIFEST = ".manifest.json"  # beside a file of vectors


class EncodedFile(NamedTuple):
    """sentences_per_second: counts the rows that this call computed; None where none were missing.

    precision: in which the vectors are computed.
    """

    sentences: int
    dim: int
    sentences_per_second: float | None
    precision: str


def name_sentence(row: int) -> str:
    """Names the sentence of a row in errors."""
    return f"sentence {row + 1:,}"


def name_dataset_row(row: int) -> str:
    """Names the text of a row of a dataset in errors."""
    return f"row {row:,}"


@unchanged_inputs()
def encode_file(
    model: SentenceEncoder | str | Path,
    source: Table | str | Path,
    output: str | Path,
    *,
    cache: Cache | None = None,
    rejects: Rejects | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine | str = LOCAL,
    vectors: Stored = "float32",
    overwrite: bool = False,
    **options: Unpack[EncodingOptions],
) -> EncodedFile:
    """Writes the vector of each sentence of `source` to `output`: row i for sentence i, a blank one too.

    output: `.npy`, (sentences, dim); or `.parquet`, with the columns `text` and `vector`. Datasets of many files are
        for `encode_dataset`.
    vectors: `float32`; or in fewer bits `int8` or `binary`, see `bertrelay.data.vectors.quantized`.
    model: an encoder, or a name that `SentenceEncoder.load` knows, loaded once the input has been read through.
    source: plain lines, a table with a column `text`, or a `Table` that names its column.
    cache: the folder that keeps a model or data set of the hub.
    rejects: entered while sentences are read; without it the first record that cannot be used raises. Row i is then
        the i-th sentence that can be used.
    process_group: each of several processes computes its part; they need torch.distributed, to synchronise, and
        one folder of `output`, on a disk that all of them see.
    engine: in place of several processes a Ray cluster, `ray`, `ray://HOST:PORT` or an `Engine`; its workers see the
        folder of `output`.
    overwrite: replace an existing file, which is an error otherwise.
    options: `prompt_name`, `precision`, `batch_tokens` and more, see `EncodingOptions`.

    Killed and called again, with as many processes or others, it resumes at the first shard that is missing.
    Raises RequestError, before anything is computed, for an input or output that cannot be used, and WorkError for a
    vector that is not finite.
    """
    table, output, settings = as_table(source), Path(output), Engine.of(engine, process_group)
    check_output(output, SUFFIXES, table.path, overwrite=overwrite)
    check_choice("vectors", vectors, tuple(DTYPES))

    def scan_table() -> SentenceScan:
        with rejects or nullcontext():
            scanned = scan(table, cache, rejects)
        if scanned.blank:
            are = plural(scanned.blank, "is", "are")
            log(f"{scanned.blank:,} of {scanned.sentences:,} sentences {are} blank; each has its row as any other")
        return scanned

    with locked_output(output, process_group), connect(settings, process_group) as executor:
        scanned = on_main(scan_table, process_group)
        encoder = open_encoder(model, cache).for_prompt(options.get("prompt_name"))
        # One reader is ahead of the model, the other gives the texts of a Parquet file.
        read_block, texts = (block_reader(table, cache, rejects is not None) for _ in range(2))
        key = fingerprint({"model": encoder_digest(encoder), "source": scanned.digest})
        encoding = BlockEncoder.of(encoder, executor, options, vectors)
        result = VectorFile(encoding, read_block, scanned.sentences, key).write(output, executor, texts)
    return EncodedFile(scanned.sentences, encoder.dim, result.rate, encoding.computed_in)


def fill_vectors(
    encoder: SentenceEncoder,
    read_block: ReadBlock,
    rows: int,
    path: Path,
    key: str,
    *,
    executor: Executor | None = None,
    description: str = "encoding",
    name_row: Callable[[int], str] = name_sentence,
    **options: Unpack[EncodingOptions],
) -> int:
    """Writes the vectors of `rows` sentences to `path`, a `.npy` file, row i for sentence i; resumes.

    A manifest beside the file describes the vectors; another call with the same manifest computes nothing.

    read_block: (first, end) -> the sentences of these rows; called in this process from one thread, in rising order,
        except for shards of a lost worker.
    key: identifies all that decides the vectors besides prompt and precision, such as digests of model and text.
    executor: this process alone when None; all processes return when the file is whole.
    name_row: names the sentence of a row in errors.
    Returns how many vectors were missing. Raises RequestError when the processes do not share the folder of `path`,
    and WorkError for a vector that is not finite.
    """
    executor = executor or LocalExecutor()
    check_shared(path.parent, executor.process_group)
    with locked_output(path, executor.process_group, wait=True):
        encoding = BlockEncoder.of(encoder, executor, options, name_row=name_row)
        file = VectorFile(encoding, read_block, rows, key, description)
        manifest_path, group = path.with_name(path.name + MANIFEST), executor.process_group
        if on_main(lambda: path.is_file() and read_json(manifest_path) == file.manifest, group):
            return 0
        if group.is_main:
            refuse_symlink(path)
            manifest_path.unlink(missing_ok=True)
            path.unlink(missing_ok=True)  # of another model or input
        return file.write(path, executor, manifest_path=manifest_path).size


def rows_per_shard(rows: int) -> int:
    """The sentences of each shard of `rows` sentences; the last one may have fewer."""
    return min(BLOCK_SENTENCES, max(SMALLEST_SHARD, -(-rows // MOST_SHARDS)))


def forget_manifest(path: Path) -> None:
    """Removes what `fill_vectors` keeps beside `path`, once the vectors are used without it."""
    for suffix in (MANIFEST, ".lock"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    ShardFiles(path, []).remove()


@dataclass(frozen=True)
class BlockEncoder:
    """Turns blocks of sentences into stored vectors. Workers are sent one.

    prompt: the text before each sentence. batch_tokens, batch_size: as of `EncodingOptions`.
    name_row: names the sentence of a row in errors.
    is_sent: True where another process computes, whose devices may be others.
    """

    encoder: SentenceEncoder
    prompt: str
    precision: ComputePrecision
    batch_tokens: int | None
    batch_size: int | None
    stored: Stored
    name_row: Callable[[int], str]
    is_sent: bool

    @classmethod
    def of(
        cls,
        encoder: SentenceEncoder,
        executor: Executor,
        options: EncodingOptions,
        stored: Stored = "float32",
        name_row: Callable[[int], str] = name_sentence,
    ) -> "BlockEncoder":
        """Resolves prompt and precision for what `executor` computes.

        Workers, which may have no accelerator, get a copy on the CPU; the caller's encoder stays where it is.
        """
        prompt = encoder.text_before(options.get("prompt_name"), options.get("prompt"))
        precision = executor.precision(options.get("precision"), encoder.device)
        batches = options.get("batch_tokens"), options.get("batch_size")
        if executor.sends_work and encoder.device.type != "cpu":
            encoder = deepcopy(encoder).to("cpu")
        return cls(encoder, prompt, precision, *batches, stored, name_row, executor.sends_work)

    @property
    def computed_in(self) -> str:
        """The precision of the network where it has its own, else the one that is requested."""
        return computed_precision(self.encoder.backbone, self.precision)

    def start(self) -> "BlockEncoder":
        """Puts an encoder that was sent onto this process's device."""
        if self.is_sent and not isinstance(self.encoder.backbone, GraphNetwork):
            self.encoder.to(default_device())
        return self

    def vectors(
        self, blocks: Iterable[tuple[Block, int, Sequence[str]]], bar: Bar
    ) -> Iterator[tuple[Block, NDArray[np.generic]]]:
        """Yields each block with its vectors as they are stored, (sentences, columns).

        blocks: (block, number of its first row, sentences). Raises WorkError for a vector that is not finite.
        """
        pending = deque[tuple[Block, int]]()  # read, but not yet encoded

        def texts() -> Iterator[Sequence[str]]:
            for block, first, sentences in blocks:
                pending.append((block, first))
                yield sentences

        encoded = encode_blocks(
            self.encoder,
            texts(),
            bar,
            prompt=self.prompt,
            precision=self.precision,
            batch_tokens=self.batch_tokens,
            batch_size=self.batch_size,
        )
        for vectors in encoded:
            block, first = pending.popleft()
            check_finite(self.encoder, vectors, self.name_row, first)
            yield block, quantized(vectors, self.stored)


@dataclass(frozen=True)
class VectorFile:
    """The vectors of `rows` sentences, to be written to one file. read_block, key: as of `fill_vectors`."""

    encoding: BlockEncoder
    read_block: ReadBlock
    rows: int
    key: str
    description: str = "encoding"

    @property
    def manifest(self) -> dict[str, object]:
        """Describes the vectors; shards and files of another manifest are not resumed."""
        return {
            "key": self.key,
            "precision": self.encoding.precision,
            "rows": self.rows,
            "dim": self.encoding.encoder.dim,
            "block": rows_per_shard(self.rows),
            "prompt": self.encoding.prompt,
            "vectors": self.encoding.stored,
        }

    def write(
        self, output: Path, executor: Executor, texts: ReadBlock | None = None, manifest_path: Path | None = None
    ) -> FillResult:
        """Fills shards and assembles `output` from them. The next texts are tokenized while the model computes.

        texts: read for a Parquet file. manifest_path: takes the manifest of an output that is a cache.
        """
        stored, group = self.encoding.stored, executor.process_group
        spans = even_spans(self.rows, rows_per_shard(self.rows))
        dtype, columns = DTYPES[stored], stored_columns(self.encoding.encoder.dim, stored)
        shards = ShardFiles(output, spans, group, ".npy", write_block)
        shards.begin(self.manifest)
        if group.is_main:
            missing = sum(spans[number].size for number in shards.missing())
            check_space(shards.folder, (self.rows + missing) * columns * dtype.itemsize)
        start = partial(_start_arrays, self.encoding)
        result = fill(shards, Work(self._read, start, self.description, "sentences"), executor)
        if group.is_main:
            blocks = (open_vectors(path, dtype) for path in shards.complete())
            write_vectors(output, blocks, self.rows, columns, texts or self.read_block, dtype)
            if manifest_path:
                write_json(manifest_path, self.manifest)
            shards.remove()
        wait_for_all(group)
        return result

    def _read(self, span: Span) -> tuple[int, Sequence[str]]:
        return span.first, self.read_block(span.first, span.end)


def _start_arrays(encoding: BlockEncoder) -> Compute[tuple[int, Sequence[str]], NDArray[np.generic]]:
    """Computes an array for each block of sentences, which comes with the number of its first row."""
    encoding = encoding.start()

    def compute(blocks: Iterable[tuple[int, Sequence[str]]], bar: Bar) -> Iterator[NDArray[np.generic]]:
        numbered = ((first, first, sentences) for first, sentences in blocks)
        return map(itemgetter(1), encoding.vectors(numbered, bar))

    return compute


@unchanged_inputs()
def encode_dataset(
    model: SentenceEncoder | str | Path,
    source: str | Path,
    output: str | Path,
    *,
    column: str = "text",
    keep: Sequence[str] = (),
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    engine: Engine | str = LOCAL,
    vectors: Stored = "float32",
    overwrite: bool = False,
    **options: Unpack[EncodingOptions],
) -> EncodedFile:
    """Writes the vector of each text of the Parquet files of `source` to the dataset `output`, with `row` and `keep`.

    source, output: folders, or addresses that pyarrow or fsspec opens, such as `s3://bucket/folder`. A shard has row
        groups of one file, 100,000 rows or a few more; processes and workers read those of their own shards only.
    overwrite: replace a finished dataset of another model or input, which is an error otherwise.
    Killed and called again it resumes at the first shard that is missing. Other arguments are those of `encode_file`.
    Raises as `encode_file` does, and for a store that refuses.
    """
    check_choice("vectors", vectors, tuple(DTYPES))
    settings = Engine.of(engine, process_group)
    check_outside(output, source)
    inputs = on_main(lambda: ParquetInput(source, [column], keep, ["vector"]), process_group)
    encoder = open_encoder(model, cache).for_prompt(options.get("prompt_name"))
    width = stored_columns(encoder.dim, vectors)
    vector = pa.field("vector", pa.list_(pa.from_numpy_dtype(DTYPES[vectors]), width))
    with connect(settings, process_group) as executor:
        encoding = BlockEncoder.of(encoder, executor, options, vectors, name_dataset_row)
        manifest: dict[str, object] = {
            "model": encoder_digest(encoder),
            "source": inputs.digest,
            "precision": encoding.precision,
            "prompt": encoding.prompt,
            "vectors": vectors,
        }
        work = Work(whole_span, partial(_start_tables, encoding, inputs), "encoding", "sentences")
        columns = [*inputs.schema, vector]
        written = fill_dataset(output, inputs.spans, columns, manifest, work, executor, overwrite=overwrite)
    return EncodedFile(written.rows, encoder.dim, written.rows_per_second, encoding.computed_in)


def _start_tables(encoding: BlockEncoder, inputs: ParquetInput) -> Compute[Span, Iterator[pa.Table]]:
    """Computes the tables of each span, which are read here."""
    encoding = encoding.start()

    def compute(spans: Iterable[Span], bar: Bar) -> Iterator[Iterator[pa.Table]]:
        spans = list(spans)
        blocks = (
            (block, block[ROW][0].as_py(), block[inputs.texts[0]].to_pylist())
            for span in spans
            for block in inputs.blocks(span)
        )
        encoded = encoding.vectors(blocks, bar)
        return (_tables_of_shard(span, encoded) for span in spans)

    return compute


def _tables_of_shard(span: Span, encoded: Iterator[tuple[pa.Table, NDArray[np.generic]]]) -> Iterator[pa.Table]:
    """Takes the tables of one shard, and none of the next, whose text may be unusable when this one is complete."""
    rows = 0
    while rows < span.size:
        block, vectors = next(encoded)
        rows += len(block)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        yield block.append_column("vector", column)
