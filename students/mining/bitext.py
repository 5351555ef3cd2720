"""Bitext mining: pairs of source and target sentences scored by the ratio margin, taken best first, one to one.

Artetxe & Schwenk (2019), "Margin-based Parallel Corpus Mining with Multilingual Sentence Embeddings": a cosine alone
means little, as some sentences are near to everything. The margin divides it by how near both are to their neighbours.
"""

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertrelay.cache import Cache
from bertrelay.compute.local import LocalExecutor
from bertrelay.data.arrow import Mask
from bertrelay.data.records import Rejects
from bertrelay.data.sentences import as_table
from bertrelay.data.shards import work_folder
from bertrelay.data.tables import Column, Table
from bertrelay.data.vectors import Vectors, open_vectors
from bertrelay.data.writing import write_table
from bertrelay.encode_files import fill_vectors
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import unit
from bertrelay.evaluation.statistics import with_interval
from bertrelay.files import check_output
from bertrelay.fingerprint import fingerprint
from bertrelay.inputs import unchanged_inputs
from bertrelay.model.encoder import SentenceEncoder, encoder_digest, open_encoder
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, on_main
from bertrelay.progress import log
from bertrelay.settings import settings_of
from bertrelay.stage import Metrics, StageContext
from students.mining.knn import Neighbours, Scores, bidirectional_knn, ratio_margins
from students.mining.sentence_files import SentenceFile, read_gold, read_sentences
from students.mining.settings import MINED_SUFFIXES, NEIGHBOURS, Method, MineOptions, MineSettings
from students.searching.equal_vectors import Rows, numbers_of
from students.searching.faiss import at_unit_length, load_faiss

CHUNK = 1_000_000  # pairs that are Python numbers at once
DIGITS_SHOWN = 6  # of a score
VECTORS = ("source.npy", "target.npy")
SENTENCES = ("source.arrow", "target.arrow")
OUTPUT_COLUMNS = {"score": "double"}
OUTPUT_COLUMNS |= {"source_line": "int64", "target_line": "int64", "source": "string", "target": "string"}


class Pairs(NamedTuple):
    """Pairs of rows with their margins, best first; of a tie, the lower rows first. Each (pairs,)."""

    scores: Scores
    sources: Rows
    targets: Rows

    def where(self, chosen: Mask) -> "Pairs":
        return Pairs(self.scores[chosen], self.sources[chosen], self.targets[chosen])


class Quality(NamedTuple):
    """How well the pairs with a score of at least `threshold` meet the true ones."""

    f1: float
    precision: float | None
    recall: float
    threshold: float


def score_pairs(forward: Neighbours, backward: Neighbours) -> Pairs:
    """Every pair of a sentence and one of its k nearest, in both directions, with its ratio margin.

    forward: of each source its nearest targets; backward: of each target its nearest sources.
    """
    (source_count, forward_k), (target_count, backward_k) = forward.rows.shape, backward.rows.shape
    sources = np.concatenate([np.repeat(np.arange(source_count), forward_k), backward.rows.ravel()])
    targets = np.concatenate([forward.rows.ravel(), np.repeat(np.arange(target_count), backward_k)])
    _, once = np.unique(sources * target_count + targets, return_index=True)
    sources, targets = sources[once], targets[once]
    cosines = np.concatenate([forward.cosines.ravel(), backward.cosines.ravel()])[once]
    nearness = (forward.cosines.mean(axis=1)[sources] + backward.cosines.mean(axis=1)[targets]) / 2
    scores = ratio_margins(cosines, nearness)
    order = np.lexsort((targets, sources, -scores))
    return Pairs(scores[order], sources[order], targets[order])


def one_to_one(pairs: Pairs) -> Pairs:
    """The pairs taken best first, each source and each target at most once."""
    taken = np.zeros(len(pairs.scores), bool)
    free_source = bytearray(b"\1") * (int(pairs.sources.max(initial=-1)) + 1)
    free_target = bytearray(b"\1") * (int(pairs.targets.max(initial=-1)) + 1)
    for start in range(0, len(taken), CHUNK):
        chunk = slice(start, start + CHUNK)
        both = zip(pairs.sources[chunk].tolist(), pairs.targets[chunk].tolist(), strict=True)
        for place, (source, target) in enumerate(both, start):
            if free_source[source] and free_target[target]:
                free_source[source] = free_target[target] = 0
                taken[place] = True
    return pairs.where(taken)


def best_quality(scores: Scores, right: Mask, true_pairs: int) -> Quality:
    """The threshold with the highest F1, and the metrics at it; of a tie, the highest threshold.

    It is half way to the next lower score, so that printing it rounds no pair away.

    scores: of the pairs, best first, at least one; right: which of them are true, of `true_pairs` that there are.
    """
    ends = np.flatnonzero(np.append(scores[1:] < scores[:-1], True))  # equal scores are taken together
    f1 = 2 * np.cumsum(right)[ends] / (ends + 1 + true_pairs)
    last = int(ends[np.argmax(f1)])
    return quality_at(float(scores[last : last + 2].mean()), scores, right, true_pairs)


class Judged(NamedTuple):
    """Which mined pairs are true, (pairs,); the sources of true and of mined pairs, those of equal vectors as one."""

    right: Mask
    true: Rows
    mined: Rows


def judge(pairs: Pairs, true_pairs: Rows, sources: Rows, targets: Rows) -> Judged:
    """Compares mined pairs with the true ones, source row × targets + target row.

    sources, targets: the number of the vector of each row. Pairs of rows with the same vectors are one to the model:
        as many of them are right as are true, whichever they are.
    """
    true_sources, true_targets = np.divmod(true_pairs, len(targets))
    true = sources[true_sources] * len(targets) + targets[true_targets]
    mined = sources[pairs.sources] * len(targets) + targets[pairs.targets]
    known, counts = np.unique(true, return_counts=True)
    order = np.argsort(mined, kind="stable")
    earlier = np.empty(len(mined), np.int64)  # of the same vectors
    earlier[order] = np.arange(len(mined)) - np.searchsorted(mined[order], mined[order])
    place = np.searchsorted(known, mined).clip(max=max(len(known) - 1, 0))
    right = (earlier < counts[place]) & (known[place] == mined) if len(known) else np.zeros(len(mined), bool)
    return Judged(right, sources[true_sources], sources[pairs.sources])


def f1_interval(true: Rows, mined: Rows, right: Mask) -> tuple[float | None, float | None]:
    """The 95 % bootstrap interval of F1, over the sources that have a true pair or a mined one.

    true, mined: the source of each true and of each mined pair; right: which mined pairs are true, (mined,).
    """
    length = 1 + int(max(true.max(initial=-1), mined.max(initial=-1)))
    counts = np.stack([np.bincount(rows, minlength=length) for rows in (true, mined, mined[right])])  # (3, sources)
    found = with_interval("f1", _f1, *counts[:, counts.any(axis=0)])
    return found.get("f1_low"), found.get("f1_high")


def _f1(true: Rows, mined: Rows, right: Rows) -> float | None:
    pairs = int(true.sum() + mined.sum())
    return 2 * int(right.sum()) / pairs if pairs else None


def quality_at(threshold: float, scores: Scores, right: Mask, true_pairs: int) -> Quality:
    """The metrics of the pairs with a score of at least `threshold`; precision is None where there are none."""
    taken = scores >= threshold
    found, count = int(right[taken].sum()), int(taken.sum())
    precision = found / count if count else None
    return Quality(2 * found / (count + true_pairs), precision, found / true_pairs, threshold)


class Mined(NamedTuple):
    """A source and a target row that translate one another, with their ratio margin as the score."""

    score: float
    source: int
    target: int


@dataclass(frozen=True)
class Mining:
    """What `mine_files` did: the distinct sentences compared, the pairs written, and how good they are by gold.

    f1_low, f1_high: its 95 % bootstrap interval.
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
    k, threshold, method: as in `MineOptions`; without a threshold, every row that finds a partner has it.
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
) -> Mining:
    """Writes the pairs of sentences of two files that translate one another, best first, with lines and texts.

    Blank sentences are left out, and of equal ones the first line counts.

    output: `.tsv`, `.csv`, `.jsonl` or `.parquet`, with the columns score, source_line, target_line, source, target.
    gold, id_column, k, threshold, method, precision, batch_tokens: as in `MineSettings`.
    work: a folder to keep vectors and neighbours in, from which another call with the same sentences resumes; without
        one, next to `output` until it is written.
    cache: where a model or data set of the hub is kept.
    rejects: entered while sentences are read; without it the first record that cannot be used raises.
    process_group: all processes encode, each its share of the blocks; the main one does the rest.
    Raises RequestError for files that cannot be what they should be, before anything is encoded.
    """
    options = settings_of(MineOptions, locals())
    load_faiss()  # where it is missing, say so before hours of encoding
    tables, output = (as_table(source), as_table(target)), Path(output)
    gold_table = None if gold is None else as_table(gold)
    check_output(output, MINED_SUFFIXES, *(table.path for table in (*tables, gold_table) if table))
    ids = None if id_column is None or gold is None else _ids(tables, id_column)
    with work_folder(output, process_group, work) as folder:
        files, true_pairs = on_main(lambda: _read(tables, gold_table, ids, folder, cache, rejects), process_group)
        key = _encode(at_unit_length(open_encoder(model, cache)), files, folder, options, process_group)

        def compare() -> Mining:
            vectors = open_vectors(folder / VECTORS[0]), open_vectors(folder / VECTORS[1])
            neighbours = bidirectional_knn(*vectors, k=options.k, method=options.method, folder=folder, key=key)
            pairs = one_to_one(score_pairs(*neighbours))
            judged = None if true_pairs is None else judge(pairs, true_pairs, *map(numbers_of, vectors))
            return _write(output, pairs, files, options.threshold, judged)

        return on_main(compare, process_group)


def run(settings: MineSettings, context: StageContext) -> Metrics:
    """The stage `students.mine`: the pairs in `mined.tsv`, or another kind of file."""
    options = {name: getattr(settings, name) for name in MineOptions.model_fields}
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
        **options | {"precision": context.precision(settings.precision)},
    )
    return asdict(mining)


def _ids(tables: tuple[Table, Table], column: Column) -> tuple[Table, Table]:
    """The tables of the identifiers of source and target."""
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
    """Source and target, written to `folder`, and the true pairs where there is gold."""
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
            name_row=file.place,
        )
    return fingerprint({"sides": keys, "precision": precision})


def _write(
    output: Path,
    pairs: Pairs,
    files: tuple[SentenceFile, SentenceFile],
    threshold: float | None,
    judged: "Judged | None",
) -> Mining:
    """Writes the pairs that reach the threshold, given or chosen, with their lines and texts."""
    source, target = files
    quality: Quality | None = None
    interval: tuple[float | None, float | None] = None, None
    if judged is not None:
        known = pairs.scores, judged.right, len(judged.true)
        quality = best_quality(*known) if threshold is None else quality_at(threshold, *known)
        taken = pairs.scores >= quality.threshold
        interval = f1_interval(judged.true, judged.mined[taken], judged.right[taken])
    f1, precision, recall, threshold = quality or (None, None, None, threshold)
    if threshold is None:
        log("no threshold: all pairs are written; give a threshold, or a gold file to choose it by")
    else:
        best, pairs = pairs.scores[:1], pairs.where(pairs.scores >= threshold)
        if not len(pairs.scores):
            found = f"the best has {best[0]:.4f}" if len(best) else "there is no pair"
            log(f"{output}: no pair reaches the threshold {threshold:.4f}; {found}")
    rows = (
        (round(score, DIGITS_SHOWN), source.line(s), target.line(t), source.text(s), target.text(t))
        for score, s, t in zip(*(column.tolist() for column in pairs), strict=True)
    )
    write_table(output, OUTPUT_COLUMNS, rows)
    return Mining(len(pairs.scores), f1, precision, recall, threshold, len(source), len(target), *interval)
