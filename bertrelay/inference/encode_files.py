"""The vectors of a file of sentences of any size, computed in shards that survive a kill."""

from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple, Unpack

from bertrelay.cache import Cache
from bertrelay.checks import check_choice
from bertrelay.compute.engine import LOCAL, Engine
from bertrelay.data.records import Rejects, Table
from bertrelay.data.sentences import SentenceScan, as_table, block_reader, scan
from bertrelay.data.shards import locked_output
from bertrelay.data.vectors import DTYPES, SUFFIXES, Stored
from bertrelay.errors import plural
from bertrelay.files import check_output
from bertrelay.fingerprint import fingerprint
from bertrelay.inference.batches import computed_precision
from bertrelay.inference.encode import EncodingOptions
from bertrelay.inference.encode_shards import encoder_digest, fill_file
from bertrelay.inputs import unchanged_inputs
from bertrelay.model.encoder import SentenceEncoder, open_encoder
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, on_main
from bertrelay.progress import log


class EncodedFile(NamedTuple):
    """What `encode_file` did: `sentences_per_second` counts what it computed now, and is None where that is nothing.

    precision: that the vectors are computed in.
    """

    sentences: int
    dim: int
    sentences_per_second: float | None
    precision: str


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
    **options: Unpack[EncodingOptions],
) -> EncodedFile:
    """Writes the vector of each sentence of `source` to `output`: row i for sentence i, a blank one too.

    output: `.npy`, (sentences, dim); or `.parquet`, with the columns `text` and `vector`. Datasets of many files are
        for `encode_dataset`.
    vectors: `float32`; or in fewer bits `int8` or `binary`, see `bertrelay.data.vectors.quantized`.
    model: an encoder, or a name that `SentenceEncoder.load` knows, loaded when the input is seen to be right.
    source: plain lines, a table with a column `text`, or a `Table` that names its column.
    cache: where a model or data set of the hub is kept.
    rejects: entered while sentences are read; without it the first record that cannot be used raises. Row i is then
        the i-th sentence that can be used.
    process_group: each of several processes computes its share; they need torch.distributed, to synchronise, and
        one folder of `output`, on a disk that all of them see.
    engine: in place of several processes a Ray cluster, `ray`, `ray://HOST:PORT` or an `Engine`; its workers see the
        folder of `output`.
    options: `prompt_name`, `precision`, `batch_tokens` and more, see `EncodingOptions`.

    Killed and called again, with as many processes or others, it resumes at the first shard that is missing.
    Raises RequestError, before anything is computed, for an input or output that cannot be what it should be, and
    WorkError for a vector that is not finite.
    """
    table, output, where = as_table(source), Path(output), Engine.of(engine, process_group)
    check_output(output, SUFFIXES, table.path)
    check_choice("vectors", vectors, tuple(DTYPES))

    def scan_table() -> SentenceScan:
        with rejects or nullcontext():
            scanned = scan(table, cache, rejects)
        if scanned.blank:
            are = plural(scanned.blank, "is", "are")
            log(f"{scanned.blank:,} of {scanned.sentences:,} sentences {are} blank; each has its row as any other")
        return scanned

    with locked_output(output, process_group), where.connected():
        scanned = on_main(scan_table, process_group)
        encoder = open_encoder(model, cache)
        precision = where.precision(options.get("precision"), encoder.device, process_group)
        options["precision"] = precision
        key = fingerprint({"model": encoder_digest(encoder), "source": scanned.digest})
        # One reader is ahead of the model, the other gives the texts of a Parquet file.
        read_block, texts = (block_reader(table, cache, rejects is not None) for _ in range(2))
        given = encoder, read_block, scanned.sentences, output, key, process_group, options
        filled = fill_file(*given, texts=texts, stored=vectors, engine=where)
    return EncodedFile(scanned.sentences, encoder.dim, filled.rate, computed_precision(encoder.backbone, precision))
