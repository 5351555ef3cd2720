"""Bitext mining: the pairs of sentences of two files that translate one another, by ratio margin."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from bertrelay.cache import Cache
from bertrelay.compute.local import LocalExecutor
from bertrelay.data.records import Rejects
from bertrelay.data.sentences import as_table
from bertrelay.data.shards import work_folder
from bertrelay.data.tables import Column, Table
from bertrelay.data.vectors import Vectors, open_vectors
from bertrelay.data.writing import write_table
from bertrelay.encode_files import fill_vectors
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import unit
from bertrelay.files import check_output
from bertrelay.fingerprint import fingerprint
from bertrelay.inputs import unchanged_inputs
from bertrelay.model.encoder import SentenceEncoder, encoder_digest, open_encoder
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, on_main
from bertrelay.progress import log
from bertrelay.settings import common_values, settings_of
from bertrelay.stage import Metrics, StageContext
from students.mining.gold import (
    Comparison,
    Quality,
    best_quality,
    compare_with_gold,
    f1_interval,
    quality_at,
    read_gold,
)
from students.mining.knn import bidirectional_knn
from students.mining.pairs import Pairs, one_to_one, score_pairs
from students.mining.sentence_files import SentenceFile, read_sentences
from students.mining.settings import MINED_SUFFIXES, NEIGHBOURS, Method, MineOptions, MineSettings
from students.searching.equal_vectors import Rows, numbers_of
from students.searching.faiss import at_unit_length, load_faiss

DIGITS_SHOWN = 6  # of a score
VECTORS = ("source.npy", "target.npy")
SENTENCES = ("source.arrow", "target.arrow")
OUTPUT_COLUMNS = {"score": "double"}
OUTPUT_COLUMNS |= {"source_line": "int64", "target_line": "int64", "source": "string", "target": "string"}


class Mined(NamedTuple):
    """A source and a target row that translate one another, with their ratio margin as the score."""

    score: float
    source: int
    target: int


@dataclass(frozen=True)
class Mining:
    """Counts and metrics of `mine_files`: distinct sentences compared, pairs written, and their quality by gold.

    f1_low, f1_high: the 95 % bootstrap interval of F1.
    """

    pairs: int
    f1: float | None
    precision: float | None
    recall: float | None
    threshold: float | None
    sources: int
    targets: int
    f1_low: float | None = None
    f1_high: float | None = None


def mine(
    source: Vectors, target: Vectors, k: int = NEIGHBOURS, threshold: float | None = None, method: Method = "auto"
) -> list[Mined]:
    """Finds the pairs of rows of `source` (n, dim) and `target` (m, dim) that translate one another, best first.

    Each row is in one pair at most. Vectors of any length; equal ones are rows of their own.
    k, threshold, method: as in `MineOptions`; without a threshold, every row with a partner is in a pair.
    Raises RequestError for vectors that cannot be compared.
    """
    options = settings_of(MineOptions, locals())
    pairs = one_to_one(score_pairs(*bidirectional_knn(unit(source), unit(target), options.k, options.method)))
    mined = pairs if options.threshold is None else pairs.where(pairs.scores >= options.threshold)
    return [Mined(*row) for row in zip(*(column.tolist() for column in mined), strict=True)]


@unchanged_inputs()
def mine_files(
    model: SentenceEncoder | str | Path,
    source: Table | str | Path,
    target: Table | str | Path,
    output: str | Path,
    *,
    gold: Table | str | Path | None = None,
    id_column: Column | None = None,
    work: Path | None = None,
    cache: Cache | None = None,
    rejects: Rejects | None = None,
    k: int = NEIGHBOURS,
    threshold: float | None = None,
    method: Method = "auto",
    precision: str = "auto",
    batch_tokens: int | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    overwrite: bool = False,
) -> Mining:
    """Writes the pairs of sentences of two files that translate one another, best first, with lines and texts.

    Blank sentences are dropped, and of equal ones the first line counts.

    output: `.tsv`, `.csv`, `.jsonl` or `.parquet`, with the columns score, source_line, target_line, source, target.
    gold, id_column, k, threshold, method, precision, batch_tokens: as in `MineSettings`.
    work: a folder for vectors and neighbours, from which another call with the same sentences resumes; without one
        they are next to `output` until it is written.
    cache: of models and data sets of the hub.
    rejects: entered while sentences are read; without it the first unusable record raises.
    process_group: all processes encode, each a part of the blocks; only the main one does the rest.
    overwrite: replace an existing file, which is an error otherwise.
    Raises RequestError for unusable files before anything is encoded.
    """
    options = settings_of(MineOptions, locals())
    load_faiss()  # a missing package is an error before hours of encoding
    tables, output = (as_table(source), as_table(target)), Path(output)
    gold_table = None if gold is None else as_table(gold)
    inputs = [table.path for table in (*tables, gold_table) if table]
    check_output(output, MINED_SUFFIXES, *inputs, overwrite=overwrite)
    ids = None if id_column is None or gold is None else _id_tables(tables, id_column)
    with work_folder(output, process_group, work) as folder:
        files, true_pairs = on_main(lambda: _read(tables, gold_table, ids, folder, cache, rejects), process_group)
        key = _encode(at_unit_length(open_encoder(model, cache)), files, folder, options, process_group)

        def compare() -> Mining:
            vectors = open_vectors(folder / VECTORS[0]), open_vectors(folder / VECTORS[1])
            neighbours = bidirectional_knn(*vectors, k=options.k, method=options.method, folder=folder, key=key)
            pairs = one_to_one(score_pairs(*neighbours))
            compared = None
            if true_pairs is not None:
                compared = compare_with_gold(pairs, true_pairs, *map(numbers_of, vectors))
            return _write(output, pairs, files, options.threshold, compared)

        return on_main(compare, process_group)


def run(settings: MineSettings, context: StageContext) -> Metrics:
    """Runs the stage `students.mine`: writes the pairs to `mined.tsv`, or a file of another format."""
    options = common_values(settings, MineOptions)
    mining = mine_files(
        settings.model,
        settings.source,
        settings.target,
        context.output / f"mined.{settings.output}",
        gold=settings.gold,
        id_column=settings.id_column,
        work=context.work,
        cache=context.cache,
        rejects=Rejects(context.output / "rejects.jsonl", settings.max_rejects),
        process_group=context.process_group,
        overwrite=True,
        **options | {"precision": context.precision(settings.precision)},
    )
    return asdict(mining)


def _id_tables(tables: tuple[Table, Table], column: Column) -> tuple[Table, Table]:
    """Returns the tables of the identifiers of source and target. Raises RequestError for plain lines."""
    for table in tables:
        if table.path and table.file_format == "lines":
            raise RequestError(
                f"id_column: expected a table with a column of identifiers, found plain lines in {table.name}; name "
                "its format, such as tsv"
            )
    source, target = (table.model_copy(update={"columns": [column]}) for table in tables)
    return source, target


def _read(
    tables: tuple[Table, Table],
    gold: Table | None,
    ids: tuple[Table, Table] | None,
    folder: Path,
    cache: Cache | None,
    rejects: Rejects | None,
) -> tuple[tuple[SentenceFile, SentenceFile], Rows | None]:
    """Writes source and target to `folder`; returns them, and the true pairs if there is gold."""
    with rejects or nullcontext():
        source, target = (
            read_sentences(table, folder / name, cache, rejects) for table, name in zip(tables, SENTENCES, strict=True)
        )
    return (source, target), None if gold is None else read_gold(gold, source, target, cache, ids)


def _encode(
    encoder: SentenceEncoder,
    files: tuple[SentenceFile, SentenceFile],
    folder: Path,
    options: MineOptions,
    process_group: ProcessGroup,
) -> str:
    """Fills both files of vectors; returns their key."""
    precision = LocalExecutor(process_group).precision(options.precision, encoder.device)
    digest = encoder_digest(encoder)
    keys = [fingerprint({"model": digest, "sentences": file.digest}) for file in files]
    for file, name, key in zip(files, VECTORS, keys, strict=True):
        fill_vectors(
            encoder,
            file.read,
            len(file),
            folder / name,
            key,
            precision=precision,
            batch_tokens=options.batch_tokens,
            executor=LocalExecutor(process_group),
            description=f"encoding {Path(file.name).name}",
            name_row=file.describe_row,
        )
    return fingerprint({"vectors": keys, "precision": precision})


def _write(
    output: Path,
    pairs: Pairs,
    files: tuple[SentenceFile, SentenceFile],
    threshold: float | None,
    compared: Comparison | None,
) -> Mining:
    """Writes the pairs that reach the threshold, the requested one or the best by gold, with their lines and texts."""
    source, target = files
    quality: Quality | None = None
    interval: tuple[float | None, float | None] = None, None
    if compared is not None:
        scored = pairs.scores, compared.is_true, len(compared.true)
        quality = best_quality(*scored) if threshold is None else quality_at(threshold, *scored)
        taken = pairs.scores >= quality.threshold
        interval = f1_interval(compared.true, compared.mined[taken], compared.is_true[taken])
    f1, precision, recall, threshold = quality or (None, None, None, threshold)
    if threshold is None:
        log("no threshold: all pairs are written; give a threshold, or a gold file to choose it by")
    else:
        best, pairs = pairs.scores[:1], pairs.where(pairs.scores >= threshold)
        if not len(pairs.scores):
            instead = f"the best has {best[0]:.4f}" if len(best) else "there is no pair"
            log(f"{output}: no pair reaches the threshold {threshold:.4f}; {instead}")
    rows = (
        (round(score, DIGITS_SHOWN), source.line(s), target.line(t), source.text(s), target.text(t))
        for score, s, t in zip(*(column.tolist() for column in pairs), strict=True)
    )
    write_table(output, OUTPUT_COLUMNS, rows)
    return Mining(len(pairs.scores), f1, precision, recall, threshold, len(source), len(target), *interval)
