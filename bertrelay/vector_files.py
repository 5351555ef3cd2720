"""The vectors of many sentences, written to a file of any size in blocks that survive a kill."""

import hashlib
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bertrelay.data.records import Rejects, Table
from bertrelay.data.sentences import ReadBlock, Survey, as_table, block_reader, survey
from bertrelay.data.vectors import SUFFIXES, create_vectors, filling_of, finish, shape_of, write_rows
from bertrelay.distributed import check_complete, check_shared, from_main, wait_for_all
from bertrelay.encode_settings import EncodeSettings
from bertrelay.encoder import SentenceEncoder, as_encoder
from bertrelay.encoding import BLOCK_SENTENCES, check_finite, encode_blocks
from bertrelay.files import check_output, output_lock
from bertrelay.fingerprint import fingerprint
from bertrelay.hardware import release_memory, resolve_precision
from bertrelay.ledger import blocks_in, open_ledger
from bertrelay.progress import log, progress
from bertrelay.stage import Metrics, ProcessGroup, StageContext

NO_MATTER = {"transformers_version", "_name_or_path", "dtype", "architectures"}
"""What a network's config says and its vectors do not depend on."""

SMALLEST_BLOCK = 2_048  # sentences; fewer would leave too few of like length to stand in one batch
MOST_SHARES = 64
ALONE = ProcessGroup()


class EncodedFile(NamedTuple):
    """What `encode_file` did: `sentences_per_second` counts what it computed now, and is None where that is nothing."""

    sentences: int
    dim: int
    sentences_per_second: float | None


def encode_file(
    model: SentenceEncoder | str | Path,
    source: Table | str | Path,
    output: str | Path,
    *,
    prompt_name: str | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
    cache: Path | None = None,
    rejects: Rejects | None = None,
    process_group: ProcessGroup = ALONE,
) -> EncodedFile:
    """Writes the vector of each sentence of `source` to `output`: row i for sentence i, a blank one too.

    output: `.npy`, float32 (sentences, dim); or `.parquet`, with the columns `text` and `vector`.
    model: an encoder, or a name that `SentenceEncoder.load` knows, loaded when the input is seen to be right.
    source: plain lines, a table with a column `text`, or a `Table` that names its column.
    prompt_name: which of the model's prompts stands before each sentence; without one, the model's default.
    cache: where a model or data set of the hub is kept.
    rejects: entered while sentences are read; without it the first record that cannot be used raises. Row i is then
        the i-th sentence that can be used.
    process_group: each of several processes computes its share; they need torch.distributed, to synchronise, and
        one folder of `output`, on a disk that all of them see.

    Killed and called again, with as many processes or others, it goes on at the first block that is not done.
    Raises RequestError, before anything is computed, for an input or output that cannot be what it should be, and
    WorkError for a vector that is not finite.
    """
    table, output = as_table(source), Path(output)
    check_output(output, SUFFIXES, table.path)
    with output_lock(output) if process_group.is_main else nullcontext():
        surveyed = from_main(_survey(table, cache, rejects) if process_group.is_main else None, process_group)
        encoder = as_encoder(model, cache)
        precision = from_main(resolve_precision(precision, encoder.device), process_group)
        skip_invalid = rejects is not None
        started, read_block = time.monotonic(), block_reader(table, cache, skip_invalid)
        computed = fill_vectors(
            encoder,
            read_block,
            surveyed.sentences,
            filling_of(output),
            fingerprint({"model": encoder_digest(encoder), "source": surveyed.digest}),
            prompt_name=prompt_name,
            precision=precision,
            batch_tokens=batch_tokens,
            process_group=process_group,
        )
        seconds = time.monotonic() - started
        if process_group.is_main:
            finish(output, block_reader(table, cache, skip_invalid))
        wait_for_all(process_group)
    return EncodedFile(surveyed.sentences, encoder.dim, computed / seconds if computed else None)


def run(settings: EncodeSettings, context: StageContext) -> Metrics:
    """The stage `bertrelay.encode`: the vectors of a table's sentences, in `vectors.npy` or `vectors.parquet`."""
    output = context.output / f"vectors.{settings.output}"
    if output.is_file():  # whole, and the process was killed after it
        sentences, dim = shape_of(output)
        return {"sentences": sentences, "dim": dim, "sentences_per_second": None}
    encoded = encode_file(
        settings.model,
        settings.sentences,
        output,
        prompt_name=settings.prompt,
        precision=settings.precision,
        batch_tokens=settings.batch_tokens,
        cache=context.cache,
        process_group=context.process_group,
    )
    return {**encoded._asdict()}


def fill_vectors(
    encoder: SentenceEncoder,
    read_block: ReadBlock,
    rows: int,
    path: Path,
    key: str,
    *,
    process_group: ProcessGroup = ALONE,
    **options: Any,
) -> int:
    """Fills the vector file at `path`, each process its share of the blocks, and returns when all are on the disk.

    options: and the other arguments, as of `fill_share`, and so is what it returns.
    Raises RequestError when the processes do not share the folder of `path`.
    """
    check_shared(path.parent, process_group)
    missing = fill_share(encoder, read_block, rows, path, key, process_group=process_group, **options)
    check_complete(path, lambda: blocks_in(path), process_group)
    return missing


def fill_share(
    encoder: SentenceEncoder,
    read_block: ReadBlock,
    rows: int,
    path: Path,
    key: str,
    *,
    prompt_name: str | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
    process_group: ProcessGroup = ALONE,
    description: str = "encoding",
    place: Callable[[int], str] = lambda row: f"sentence {row + 1:,}",
) -> int:
    """Fills this process's share of the file at `path` (`bertrelay.data.vectors`): row i for sentence i, resumable.

    read_block: (first, end) -> the sentences of these rows; asked in rising order, from one thread.
    key: what decides the vectors besides prompt and precision, such as digests of model and text; another one begins
        again.
    process_group: process r of w fills the blocks r::w, and returns when *its* blocks are on the disk.
    place: what an error calls the sentence of a row.
    Returns how many rows were not filled yet, whoever fills them. Raises WorkError for a vector that is not finite.
    """
    precision, dim, size = resolve_precision(precision, encoder.device), encoder.dim, _block_size(rows)
    holds = {"key": key, "precision": precision, "rows": rows, "dim": dim, "block": size}
    if prompt_name is not None:
        holds["prompt"] = encoder.prompts.text(prompt_name)
    spans = [range(first, min(first + size, rows)) for first in range(0, rows, size)]
    ledger = open_ledger(path, holds, len(spans), lambda: create_vectors(path, rows, dim))
    waiting = ledger.waiting()
    mine = [block for block in waiting if block % process_group.size == process_group.rank]
    missing = sum(len(spans[block]) for block in waiting)
    if 0 < missing < rows:
        log(f"{description}: going on after {rows - missing:,} of {rows:,} sentences")
    texts = (read_block(spans[block].start, spans[block].stop) for block in mine)
    with progress(description, rows, "sentences", rows - missing) as bar:
        theirs = set(waiting).difference(mine)
        computed = encode_blocks(encoder, texts, precision, batch_tokens, prompt_name, bar)
        for block, vectors in zip(mine, computed, strict=True):
            check_finite(encoder, vectors, place, spans[block].start)
            write_rows(path, spans[block].start, vectors)
            ledger.mark(block)
            release_memory()
            done = theirs.difference(ledger.waiting())  # by other processes, since the last block
            bar.advance(sum(len(spans[other]) for other in done))
            theirs -= done
    return missing


def _block_size(rows: int) -> int:
    """Sentences in a block: fewer in a small file, so that each of many processes has its share."""
    return min(BLOCK_SENTENCES, max(SMALLEST_BLOCK, -(-rows // MOST_SHARES)))


def _survey(table: Table, cache: Path | None, rejects: Rejects | None) -> Survey:
    with rejects or nullcontext():
        found = survey(table, cache, rejects)
    if found.blank:
        log(f"{found.blank:,} of {found.sentences:,} sentences are blank; each has its row as any other")
    return found


def encoder_digest(encoder: SentenceEncoder) -> str:
    """sha256 of all that decides an encoder's vectors: weights, tokenizer, pooling, what comes after, prompts."""
    digest = hashlib.sha256()
    for name, weight in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().numpy().data)
    digest.update(encoder.tokenizer.backend_tokenizer.to_str().encode())
    network = {name: value for name, value in encoder.backbone.config.to_dict().items() if name not in NO_MATTER}
    layout = replace(encoder.layout, similarity=None)  # how vectors are compared is not what they are
    return fingerprint({"weights": digest.hexdigest(), "network": network, "layout": repr(layout)})
