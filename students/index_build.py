"""The stage `students.index`: a corpus written, encoded, and where it is large linked to a graph.

Killed anywhere, the same call resumes: from the first block of vectors that is missing, from the last checkpoint of
the graph.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
from filelock import FileLock, Timeout

from bertrelay.data.records import Rejects
from bertrelay.data.sentences import as_table, sentence_records
from bertrelay.data.tables import Table
from bertrelay.data.vectors import open_vectors
from bertrelay.distributed import SINGLE_PROCESS, ProcessGroup, check_shared, from_main, wait_for_all
from bertrelay.encode_files import encoder_digest, fill_vectors, forget_manifest
from bertrelay.encoder import SentenceEncoder, as_encoder
from bertrelay.errors import BertRelayError, RequestError, WorkError, check_choice, check_count
from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.files import read_json, sync_contents, write_error
from bertrelay.hardware import resolve_precision
from bertrelay.progress import log
from bertrelay.stage import Metrics, StageContext
from students.index import Hit, SearchIndex, load_index, open_index
from students.index_files import (
    BUILDING,
    FACTS,
    GRAPH,
    RECALL,
    SENTENCES,
    VECTORS,
    BuildState,
    IndexManifest,
    Origin,
    check_files,
    check_origin,
    file_seal,
    open_sentences,
    origin_of,
    read_build_state,
    read_manifest,
    write_build_state,
    write_manifest,
)
from students.neighbours import build_hnsw, load_faiss, open_hnsw, recall, write_index
from students.settings import EXACT_UP_TO, Hnsw, IndexKind, IndexSettings, index_beside

READ_AT_ONCE = 4096
CHECKPOINT = "hnsw.checkpoint"
LOCK = ".lock"
OWN_FILES = {SENTENCES, VECTORS, GRAPH, FACTS, BUILDING, CHECKPOINT}
SCHEMA = pa.schema({"text": pa.string(), "line": pa.int64()})


def run(settings: IndexSettings, context: StageContext) -> Metrics:
    """Builds the index of the stage in `index/`, with all processes."""
    facts = build_index(
        settings.model,
        settings.corpus,
        context.output / "index",
        kind=settings.kind,
        hnsw=settings.hnsw,
        prompt_name=settings.prompt,
        precision=settings.precision,
        batch_tokens=settings.batch_tokens,
        cache=context.cache,
        process_group=context.process_group,
        rejects=Rejects(context.output / "rejects.jsonl", settings.max_rejects),
    ).facts
    return {"sentences": facts.sentences, "blank": facts.blank, "dim": facts.origin.dim, **facts.recall}


def build_index(
    model: SentenceEncoder | str | Path,
    corpus: Table | str | Path,
    folder: str | Path,
    *,
    kind: IndexKind = "auto",
    hnsw: Hnsw | None = None,
    prompt_name: str | None = None,
    query_prompt_name: str | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
    rebuild: bool = False,
    verify: bool = False,
    cache: Path | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    rejects: Rejects | None = None,
) -> SearchIndex:
    """The index of the sentences of `corpus` in `folder`: opened where it is complete, else built or resumed.

    Blank sentences are left out and counted; the others keep the number of their line. A whole index is opened without
    a lock and without writing, and its corpus read only where it was touched.

    model: an encoder, or a name that `SentenceEncoder.load` knows.
    corpus: plain lines, a table with a column `text`, or a `Table` that names its column.
    kind: `auto` takes what is there; where there is nothing, it is exact up to 100,000 sentences and HNSW beyond.
    hnsw: of the graph; where there is one with other links, it is linked anew.
    prompt_name: which of the model's prompts precedes each sentence; without one, the model's default.
    query_prompt_name: the prompt of each query; it is checked before anything is encoded.
    rebuild: start from the beginning; a rebuild of the same that was stopped is resumed.
    verify: read every file again, the corpus too, instead of trusting those that were not touched.
    cache: where a model or data set of the hub is kept.
    process_group: all processes encode, each its share of the blocks; the main one does the rest.
    rejects: entered while the corpus is read; without it the first record that cannot be used raises.
    Raises RequestError when `folder` holds something else, an index of another model or corpus, or a damaged one.
    """
    check_choice("kind", kind, get_args(IndexKind))
    load_faiss()  # where it is missing, say so before hours of encoding
    table, folder = as_table(corpus), Path(folder)
    _check_is_index(folder)
    facts = None if rebuild else read_manifest(folder)
    encoder = as_encoder(model, cache)
    precision = from_main(resolve_precision(precision, encoder.device), process_group)
    for wanted in (prompt_name, query_prompt_name):
        encoder.prompts.text(wanted)  # where there is none of that name, say so
    name = "" if encoder is model else str(model)
    known = facts.origin if facts and not verify else None
    origin = origin_of(name, encoder_digest(encoder), encoder.dim, table, prompt_name, known)
    if from_main(facts is not None and _is_complete(folder, facts, origin, kind, hnsw), process_group):
        return load_index(encoder, folder, verify)
    with _index_lock(folder) if process_group.is_main else nullcontext():
        if process_group.is_main:
            _prepare(folder, origin, table, rebuild, cache, rejects)
        check_shared(folder, process_group)
        state = read_build_state(folder)
        if state is not None:
            _encode(encoder, folder, state, prompt_name, precision, batch_tokens, process_group)
        if process_group.is_main:
            _finish(folder, state, kind, hnsw, precision)
        wait_for_all(process_group)
    return load_index(encoder, folder, verify)


def _check_is_index(folder: Path) -> None:
    """Raises RequestError where `folder` holds anything that is not of an index, for a rebuild deletes by name."""
    try:
        found = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return
    except OSError as error:
        raise write_error(folder, error) from error
    strange = [name for name in found if name not in OWN_FILES and not name.startswith(VECTORS)]
    if strange or (found and not _is_index(folder, found)):
        raise RequestError(
            f"--index: expected an index and nothing else, an empty folder or none, found {folder} with "
            f"{(strange or found)[0]} in it. Name another folder"
        )


def _is_index(folder: Path, found: list[str]) -> bool:
    """Whether `found` are an index, damaged perhaps; others have an `index.json` too."""
    if BUILDING in found:
        return True
    return FACTS in found and (SENTENCES in found or "seal" in (read_json(folder / FACTS) or {}))


def _is_complete(folder: Path, facts: IndexManifest, origin: Origin, kind: IndexKind, hnsw: Hnsw | None) -> bool:
    """Whether nothing is to be built or tidied. Raises RequestError for an index of another origin."""
    check_origin(folder, facts.origin, origin)
    return not (folder / BUILDING).exists() and not _wants_graph(facts, kind, hnsw, is_new=False)


@contextmanager
def _index_lock(folder: Path) -> Iterator[None]:
    """Makes `folder` and keeps it to this process; the system lets go of it even when the process is killed."""
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout as error:
        raise RequestError(f"{folder}: another process builds this index; wait for it, or stop it") from error
    except OSError as error:
        raise write_error(folder, error) from error
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # only an empty folder can go: nothing came of the request
            folder.rmdir()


# Before the vectors


def _prepare(
    folder: Path, origin: Origin, table: Table, rebuild: bool, cache: Path | None, rejects: Rejects | None
) -> None:
    """Leaves a complete index, or the sentences and `building.json`, which counts them."""
    if rebuild and not _is_rebuilding(folder, origin):
        write_build_state(folder, BuildState(origin, rebuild=True))
        _clear(folder)
    facts, state = read_manifest(folder), read_build_state(folder)
    if facts is not None:
        check_origin(folder, facts.origin, origin)
        check_files(folder, facts)
        _forget_encoding(folder)  # and not the checkpoint of a graph that is being linked to it
        return
    if state is not None and state.sentences is not None:
        check_origin(folder, state.origin, origin)
    if not _has_sentences(folder, state):
        _write_corpus(folder, BuildState(origin, rebuild=rebuild), table, cache, rejects)


def _is_rebuilding(folder: Path, origin: Origin) -> bool:
    """Whether a rebuild from `origin` was stopped here after it had cleared the folder."""
    state = read_build_state(folder)
    return state is not None and state.rebuild and state.sentences is not None and state.origin == origin


def _has_sentences(folder: Path, state: BuildState | None) -> bool:
    """Whether the sentences of a build that was stopped are all there, as far as their file can be read."""
    try:
        return state is not None and len(open_sentences(folder)) == state.sentences
    except (OSError, pa.ArrowInvalid):
        return False


def _clear(folder: Path) -> None:
    """Removes the index, and last what says that the files were one, so that a kill on the way leaves no riddle."""
    for name in (FACTS, GRAPH, VECTORS, SENTENCES):
        (folder / name).unlink(missing_ok=True)
    _forget_building(folder)


def _write_corpus(folder: Path, state: BuildState, table: Table, cache: Path | None, rejects: Rejects | None) -> None:
    write_build_state(folder, state)
    try:
        sentences, blank = _write_sentences(folder / SENTENCES, table, cache, rejects)
    except BertRelayError:
        _clear(folder)
        raise
    if blank:
        log(f"{table.name}: left out {blank:,} blank sentences; the others keep the number of their line")
    sync_contents(folder)
    write_build_state(folder, replace(state, sentences=sentences, blank=blank))


def _write_sentences(path: Path, table: Table, cache: Path | None, rejects: Rejects | None) -> tuple[int, int]:
    """Writes the sentences of `table` that are not blank; how many they are, and how many blank ones there were."""
    sentences = blank = 0
    try:
        with rejects or nullcontext(), pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            records = sentence_records(table, cache, rejects)
            while block := list(islice(records, READ_AT_ONCE)):
                if rejects is not None:
                    rejects.used(len(block))
                kept = [{"text": text, "line": line} for (text,), _, line in block if text.strip()]
                writer.write_batch(pa.RecordBatch.from_pylist(kept, SCHEMA))
                sentences, blank = sentences + len(kept), blank + len(block) - len(kept)
    except OSError as error:
        raise write_error(path, error) from error
    if sentences == 0:
        raise RequestError(f"{table.name}: expected sentences, found {blank:,} blank ones and no other")
    return sentences, blank


# The vectors


def _encode(
    encoder: SentenceEncoder,
    folder: Path,
    state: BuildState,
    prompt_name: str | None,
    precision: str,
    batch_tokens: int | None,
    process_group: ProcessGroup,
) -> None:
    sentences = open_sentences(folder)
    fill_vectors(
        _at_unit_length(encoder),
        lambda first, end: sentences["text"].slice(first, end - first).to_pylist(),
        len(sentences),
        folder / VECTORS,
        f"{state.origin.model_digest} {state.origin.content} {state.origin.reading}",
        prompt_name=prompt_name,
        precision=precision,
        batch_tokens=batch_tokens,
        process_group=process_group,
        place=lambda row: f"line {sentences['line'][row].as_py():,} of {state.origin.corpus}",
    )


def _at_unit_length(encoder: SentenceEncoder) -> SentenceEncoder:
    """The same encoder with its vectors normalised; a zero vector stays zero."""
    return SentenceEncoder(
        encoder.backbone,
        encoder.tokenizer,
        pooling=encoder.pooling,
        projection=encoder.projection,
        normalize=True,
        max_tokens=encoder.max_tokens,
        prompts=encoder.prompts,
    ).train(encoder.training)


# After the vectors


def _finish(folder: Path, state: BuildState | None, kind: IndexKind, hnsw: Hnsw | None, precision: str) -> None:
    """Builds the graph where one is wanted, and marks the index as complete."""
    facts = read_manifest(folder) if state is None else _exact_manifest(folder, state, precision)
    if facts is None:
        raise WorkError(f"{folder}: the index vanished while it was built; run the same command again")
    wants_graph = _wants_graph(facts, kind, hnsw, is_new=state is not None)
    if wants_graph:
        facts = _with_graph(folder, facts, hnsw or Hnsw())
    if wants_graph or state is not None:
        write_manifest(folder, facts)
    if facts.kind == "hnsw" or state is not None:
        _forget_building(folder)


def _forget_building(folder: Path) -> None:
    for checkpoint in folder.glob(f"*{CHECKPOINT}*"):  # one half written, too
        checkpoint.unlink()
    _forget_encoding(folder)


def _forget_encoding(folder: Path) -> None:
    forget_manifest(folder / VECTORS)
    (folder / BUILDING).unlink(missing_ok=True)


def _exact_manifest(folder: Path, state: BuildState, precision: str) -> IndexManifest:
    return IndexManifest(
        origin=state.origin,
        sentences=len(open_vectors(folder / VECTORS)),
        blank=state.blank or 0,
        kind="exact",
        precision=precision,
        hnsw={},
        recall={},
        files={name: file_seal(folder / name) for name in (SENTENCES, VECTORS)},
    )


def _wants_graph(facts: IndexManifest, kind: IndexKind, hnsw: Hnsw | None, is_new: bool) -> bool:
    if kind == "exact":
        return False
    if facts.kind == "hnsw":
        return hnsw is not None and facts.hnsw != hnsw.model_dump()
    if kind == "auto" and is_new:
        _log_choice(facts.sentences)
    return kind == "hnsw" or (is_new and facts.sentences > EXACT_UP_TO)


def _log_choice(sentences: int) -> None:
    chosen = "exact search" if sentences <= EXACT_UP_TO else "an approximate index (HNSW)"
    log(f"{sentences:,} sentences: {chosen}, as exact is chosen up to {EXACT_UP_TO:,}; kind = exact or hnsw sets it")


def _with_graph(folder: Path, facts: IndexManifest, hnsw: Hnsw) -> IndexManifest:
    """Builds the graph unless it exists with the same links, and logs its recall."""
    vectors = open_vectors(folder / VECTORS)
    is_linked = _links(facts.hnsw) == _links(hnsw.model_dump())
    graph = (
        open_hnsw(folder / GRAPH)
        if is_linked
        else build_hnsw(vectors, hnsw, folder / CHECKPOINT, facts.files[VECTORS]["sha256"])
    )
    shares = recall(graph, vectors, hnsw.ef_search)
    measured = with_interval(RECALL, share, shares)
    if len(shares):
        log(
            f"recall@10 {measured[RECALL]:.4f} (95 % from {measured[f'{RECALL}_low']:.4f} to "
            f"{measured[f'{RECALL}_high']:.4f}): what the graph finds of the exact ten nearest, for {len(shares):,} "
            "sentences of the corpus"
        )
    if not is_linked:
        facts = _write_graph(folder, facts, graph)
    return replace(facts, kind="hnsw", hnsw=hnsw.model_dump(), recall=measured)


def _links(parameters: dict[str, int]) -> dict[str, int]:
    """Those of a graph's parameters that decide its links; `ef_search` only says how they are walked."""
    return {name: value for name, value in parameters.items() if name != "ef_search"}


def _write_graph(folder: Path, facts: IndexManifest, graph: Any) -> IndexManifest:
    """The graph on the disk and among the files. Where it replaces another, the index is exact meanwhile.

    So a kill between the graph and its facts leaves a whole index, without a graph.
    """
    files = {name: seal for name, seal in facts.files.items() if name != GRAPH}
    if facts.kind == "hnsw":
        write_manifest(folder, replace(facts, kind="exact", hnsw={}, recall={}, files=files))
    write_index(graph, folder / GRAPH)
    return replace(facts, files={**files, GRAPH: file_seal(folder / GRAPH)})


def search(
    model: SentenceEncoder | str | Path,
    corpus: Table | str | Path | None,
    queries: Sequence[str],
    k: int = 10,
    *,
    index: str | Path | None = None,
    kind: IndexKind = "auto",
    ef_search: int | None = None,
    rebuild: bool = False,
    prompt_name: str | None = None,
    query_prompt_name: str | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
) -> list[list[Hit]]:
    """For each of `queries` the `k` nearest sentences of `corpus`, best first.

    The first call builds an index and leaves it there; who asks often keeps what `build_index` or `open_index` gives.

    corpus: as for `build_index`; None opens `index` as it is.
    index: its folder; next to the corpus by default.
    kind: as for `build_index`; `exact` compares with every sentence even where there is a graph, and without a corpus
        `hnsw` expects one.
    ef_search: as for `SearchIndex.search`.
    rebuild: as for `build_index`, so there must be a corpus.
    prompt_name, query_prompt_name: which of the model's prompts precedes each sentence, and each query.
    Raises RequestError as `build_index`, `open_index` and `SearchIndex.search` do.
    """
    check_choice("kind", kind, get_args(IndexKind))
    check_count("ef_search", ef_search)
    if corpus is None and rebuild:
        raise RequestError("rebuild: expected a corpus, from which the index is built anew; found none")
    table = None if corpus is None else as_table(corpus)
    folder = _folder(corpus, index)
    opened = (
        open_index(model, folder)
        if table is None
        else build_index(
            model,
            table,
            folder,
            kind=kind,
            prompt_name=prompt_name,
            query_prompt_name=query_prompt_name,
            precision=precision,
            batch_tokens=batch_tokens,
            rebuild=rebuild,
        )
    )
    opened.check_graph(kind, ef_search)
    opened.log_precision(precision)
    return opened.search(
        queries,
        k,
        exact=kind == "exact",
        ef_search=ef_search,
        prompt_name=query_prompt_name,
        precision=precision,
        batch_tokens=batch_tokens,
    )


def _folder(corpus: Table | str | Path | None, index: str | Path | None) -> Path:
    if index is not None:
        return Path(index)
    path = corpus.path if isinstance(corpus, Table) else corpus
    if path is None:
        raise RequestError("search: expected the folder of an index, as there is no corpus file for it to be beside")
    return index_beside(path)
