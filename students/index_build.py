"""The stage `students.index`: a corpus written, encoded, and where it is large linked to a graph.

Killed anywhere, the same call resumes: from the first block of vectors that is missing, from the last checkpoint of
the graph.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa

from bertrelay.data.records import Rejects
from bertrelay.data.sentences import as_table
from bertrelay.data.shards import locked_output
from bertrelay.data.tables import Table
from bertrelay.data.vectors import open_vectors
from bertrelay.distributed import SINGLE_PROCESS, ProcessGroup, check_shared, from_main, wait_for_all
from bertrelay.encode_files import encoder_digest, fill_vectors, forget_manifest
from bertrelay.encoder import SentenceEncoder, as_encoder
from bertrelay.errors import BertRelayError, RequestError, WorkError, check_choice, check_count
from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.files import read_json, write_error
from bertrelay.hardware import resolve_precision
from bertrelay.progress import log
from bertrelay.stage import Metrics, StageContext
from students.corpus import mapped
from students.index import Hit, SearchIndex, load_index, open_index
from students.index_files import (
    BUILDING,
    FACTS,
    GRAPH,
    RECALL,
    SENTENCES,
    VECTORS,
    BuildState,
    FileSeal,
    IndexManifest,
    Origin,
    check_files,
    check_origin,
    origin_of,
    read_build_state,
    read_manifest,
    write_build_state,
    write_manifest,
)
from students.neighbours import at_unit_length, build_hnsw, load_faiss, open_hnsw, recall, write_index
from students.search_settings import EXACT_UP_TO, Hnsw, IndexKind, IndexSettings, index_beside
from students.sentence_files import write_sentences

CHECKPOINT = "hnsw.checkpoint"
OWN_FILES = {SENTENCES, VECTORS, GRAPH, FACTS, BUILDING, CHECKPOINT}


def run(settings: IndexSettings, context: StageContext) -> Metrics:
    """Builds the index of the stage in `index/`, with all processes."""
    given = dict(settings)
    facts = build_index(
        settings.model,
        settings.corpus,
        context.output / "index",
        **{name: given[name] for name in ("kind", "hnsw", "precision", "batch_tokens")},
        prompt_name=settings.prompt,
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
    Raises RequestError when `folder` has something else in it, an index of another model or corpus, or a damaged one.
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
    with _locked(folder, process_group):
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
    """Raises RequestError where anything in `folder` is not of an index, for a rebuild deletes by name."""
    try:
        found = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return
    except OSError as error:
        raise write_error(folder, error) from error
    strange = [name for name in found if name not in OWN_FILES and not name.startswith(VECTORS)]
    is_damaged_perhaps = SENTENCES in found or "seal" in (read_json(folder / FACTS) or {})  # others have an index.json
    is_index = BUILDING in found or (FACTS in found and is_damaged_perhaps)
    if strange or (found and not is_index):
        raise RequestError(
            f"--index: expected an index and nothing else, an empty folder or none, found {folder} with "
            f"{(strange or found)[0]} in it. Name another folder"
        )


def _is_complete(folder: Path, facts: IndexManifest, origin: Origin, kind: IndexKind, hnsw: Hnsw | None) -> bool:
    """Whether nothing is to be built or tidied. Raises RequestError for an index of another origin."""
    check_origin(folder, facts.origin, origin)
    return not (folder / BUILDING).exists() and not _wants_graph(facts, kind, hnsw, is_new=False)


@contextmanager
def _locked(folder: Path, process_group: ProcessGroup) -> Iterator[None]:
    """Makes `folder` and keeps it to this call. Removes it again when nothing came of the request."""
    if process_group.is_main:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(folder, error) from error
    with locked_output(folder, process_group):
        try:
            yield
        finally:
            if process_group.is_main:
                with suppress(OSError):  # only an empty folder can go
                    folder.rmdir()


# Before the vectors


def _prepare(
    folder: Path, origin: Origin, table: Table, rebuild: bool, cache: Path | None, rejects: Rejects | None
) -> None:
    """Leaves a complete index, or the sentences and `building.json`, which counts them."""
    state = read_build_state(folder)
    is_resumed = state is not None and state.rebuild and state.sentences is not None and state.origin == origin
    if rebuild and not is_resumed:
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


def _has_sentences(folder: Path, state: BuildState | None) -> bool:
    """Whether the sentences of a build that was stopped are all there, as far as their file can be read."""
    try:
        return state is not None and len(mapped(folder / SENTENCES)) == state.sentences
    except (OSError, pa.ArrowInvalid):
        return False


def _clear(folder: Path) -> None:
    """Removes the index, and last what identifies the files as one, so that a kill on the way leaves no riddle."""
    for name in (FACTS, GRAPH, VECTORS, SENTENCES):
        (folder / name).unlink(missing_ok=True)
    _forget_building(folder)


def _write_corpus(folder: Path, state: BuildState, table: Table, cache: Path | None, rejects: Rejects | None) -> None:
    write_build_state(folder, state)
    try:
        with rejects or nullcontext():
            blank = write_sentences(table, folder / SENTENCES, cache, rejects)
    except BertRelayError:
        _clear(folder)
        raise
    if blank:
        log(f"{table.name}: left out {blank:,} blank sentences; the others keep the number of their line")
    write_build_state(folder, replace(state, sentences=len(mapped(folder / SENTENCES)), blank=blank))


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
    sentences = mapped(folder / SENTENCES)
    fill_vectors(
        at_unit_length(encoder),
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


# After the vectors


def _finish(folder: Path, state: BuildState | None, kind: IndexKind, hnsw: Hnsw | None, precision: str) -> None:
    """Builds the graph where one is wanted, and marks the index as complete."""
    facts = read_manifest(folder)
    if state is not None:
        files = {name: FileSeal.of(folder / name) for name in (SENTENCES, VECTORS)}
        sentences = len(open_vectors(folder / VECTORS))
        facts = IndexManifest(state.origin, sentences, state.blank or 0, "exact", precision, files)
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


def _wants_graph(facts: IndexManifest, kind: IndexKind, hnsw: Hnsw | None, is_new: bool) -> bool:
    if kind == "exact":
        return False
    if facts.kind == "hnsw":
        return hnsw is not None and facts.hnsw != hnsw.model_dump()
    if kind == "auto" and is_new:
        chosen = "exact search" if facts.sentences <= EXACT_UP_TO else "an approximate index (HNSW)"
        log(
            f"{facts.sentences:,} sentences: {chosen}, as exact is chosen up to {EXACT_UP_TO:,}; kind = exact or hnsw "
            "sets it"
        )
    return kind == "hnsw" or (is_new and facts.sentences > EXACT_UP_TO)


def _with_graph(folder: Path, facts: IndexManifest, hnsw: Hnsw) -> IndexManifest:
    """Builds the graph unless it exists with the same links, and logs its recall.

    Where it replaces another, the index is exact meanwhile, so a kill between the graph and its facts leaves a whole
    index.
    """
    vectors, parameters, files = open_vectors(folder / VECTORS), hnsw.model_dump(), facts.files
    is_linked = facts.hnsw | {"ef_search": hnsw.ef_search} == parameters  # which only decides how links are walked
    if is_linked:
        graph = open_hnsw(folder / GRAPH)
    else:
        graph = build_hnsw(vectors, hnsw, folder / CHECKPOINT, files[VECTORS].sha256)
    shares = recall(graph, vectors, hnsw.ef_search)
    measured = with_interval(RECALL, share, shares)
    if len(shares):
        log(
            f"recall@10 {measured[RECALL]:.4f} (95 % from {measured[f'{RECALL}_low']:.4f} to "
            f"{measured[f'{RECALL}_high']:.4f}): what the graph finds of the exact ten nearest, for {len(shares):,} "
            "sentences of the corpus"
        )
    if not is_linked:
        files = {name: seal for name, seal in facts.files.items() if name != GRAPH}
        if facts.kind == "hnsw":
            write_manifest(folder, replace(facts, kind="exact", hnsw={}, recall={}, files=files))
        write_index(graph, folder / GRAPH)
        files[GRAPH] = FileSeal.of(folder / GRAPH)
    return replace(facts, kind="hnsw", hnsw=parameters, recall=measured, files=files)


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

    The first call builds an index and leaves it there. For many calls keep what `build_index` or `open_index` returns,
    which describe the options and errors too.

    corpus: None opens `index` as it is.
    index: its folder; next to the corpus by default.
    kind: `exact` compares with every sentence even where there is a graph; without a corpus `hnsw` expects one.
    """
    check_choice("kind", kind, get_args(IndexKind))
    check_count("ef_search", ef_search)
    if corpus is None and rebuild:
        raise RequestError("rebuild: expected a corpus, from which the index is built anew; found none")
    table = None if corpus is None else as_table(corpus)
    corpus_file = table and table.path
    if index is None and corpus_file is None:
        raise RequestError("search: expected the folder of an index, as there is no corpus file for it to be beside")
    folder = Path(index or index_beside(corpus_file or ""))
    encoding: dict[str, Any] = {"precision": precision, "batch_tokens": batch_tokens}
    if table is None:
        opened = open_index(model, folder)
    else:
        prompts: dict[str, Any] = {"prompt_name": prompt_name, "query_prompt_name": query_prompt_name}
        opened = build_index(model, table, folder, kind=kind, rebuild=rebuild, **prompts, **encoding)
    opened.check_graph(kind, ef_search)
    opened.log_precision(precision)
    return opened.search(
        queries, k, exact=kind == "exact", ef_search=ef_search, prompt_name=query_prompt_name, **encoding
    )
