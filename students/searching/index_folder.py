"""The files of an index, and how a corpus becomes one: written, encoded, and where it is large linked to a graph.

| file                 | content                                                                                      |
|----------------------|----------------------------------------------------------------------------------------------|
| `building.json`      | first, with what is built of what; with counts when `sentences.arrow` is there; removed last |
| `sentences.arrow`    | columns text, line and record: what a hit shows                                              |
| `columns.arrow`      | other columns of the corpus that hits show, as JSON                                          |
| `vectors.npy`        | row i for sentence i, at length one; until it is complete, shards beside it                  |
| `hnsw.checkpoint`    | a graph as far as it is linked                                                               |
| `hnsw.faiss`         | of kind hnsw: a FAISS index of its own, vectors included, each distinct one once             |
| `<kind>.faiss`       | of kinds int8 and binary: a FAISS index of the distinct vectors in fewer bits                |
| `equal.npy`          | `starts` and `rows` of `EqualRows`, one after the other, where vectors are equal             |
| `index.json`         | the manifest, written when all else is there: an index is complete where it is               |
"""

import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from bertrelay.cache import Cache
from bertrelay.compute.local import LocalExecutor
from bertrelay.data.arrow import open_arrow
from bertrelay.data.records import Rejects
from bertrelay.data.sentences import text_column
from bertrelay.data.shards import locked_output
from bertrelay.data.tables import Column, Table
from bertrelay.data.vectors import Vectors, open_vectors
from bertrelay.encode_files import fill_vectors, forget_manifest
from bertrelay.errors import BertRelayError, RequestError
from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.files import atomic_write, check_name, read_json, write_error, write_json
from bertrelay.fingerprint import Digests, file_stamp, fingerprint, shows_changes
from bertrelay.inputs import check_inputs, note_input
from bertrelay.model.encoder import SentenceEncoder, encoder_digest
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, check_shared, wait_for_all
from bertrelay.progress import log
from bertrelay.settings import BatchTokens, Precision, Settings
from bertrelay.stage import Metrics
from students.searching.equal_vectors import AnyVectors, EqualRows, distinct, equal_rows
from students.searching.faiss import at_unit_length, build_codes, build_hnsw, nearest, open_faiss, recall, write_index
from students.searching.sentences import write_columns, write_sentences
from students.searching.settings import EXACT_UP_TO, Hnsw, IndexKind

SENTENCES, VECTORS = "sentences.arrow", "vectors.npy"
FAISS = {kind: f"{kind}.faiss" for kind in ("hnsw", "int8", "binary")}
"""The file of a graph or of codes by the kind of the index."""
EQUAL, COLUMNS = "equal.npy", "columns.arrow"
MANIFEST, BUILDING, CHECKPOINT = "index.json", "building.json", "hnsw.checkpoint"
OWN_FILES = {SENTENCES, COLUMNS, VECTORS, *FAISS.values(), EQUAL, MANIFEST, BUILDING, CHECKPOINT}
FORMAT = 2
SHOWN = 12  # characters of a digest
RECALL, LOW_RECALL = "recall_at_10", 0.95


class IndexOptions(Settings):
    """Options of building an index."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    kind: IndexKind = "auto"
    """`auto` takes the kind that was built last; without an index it is exact up to 100,000 sentences and int8 beyond.
    Another kind is built beside the existing one, and the index returned searches by it."""
    show: list[Column] = Field(default=[])
    """Columns of the corpus that hits show too; they are added to an index without encoding it a second time."""
    hnsw: Hnsw | None = None
    """Graph of kind hnsw; an existing one with other links is linked anew."""
    prompt_name: str | None = None
    """Name of the model's prompt that precedes each sentence; when absent that for documents, or the default."""
    query_prompt_name: str | None = None
    """Name of the prompt of each query; it is checked before anything is encoded."""
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None
    rebuild: bool = False
    """Build from the beginning; a stopped rebuild of the same index resumes."""
    verify: bool = False
    """Read every file, the corpus too, instead of trusting those that were not touched."""
    cache: Cache | None = None
    """Folder of models and data sets from the hub."""
    process_group: ProcessGroup = SINGLE_PROCESS
    """Processes that encode, each its part of the blocks; the main one does the rest."""
    rejects: Rejects | None = None
    """Context manager, entered while the corpus is read; without it the first record that cannot be used raises."""


@dataclass(frozen=True)
class Origin:
    """What an index is made from.

    model, corpus: where they were, for people; `model_digest` and `content` are what counts.
    reading: how the corpus was read: columns, format, header, prompt.
    stamp: of the corpus file, by which an untouched one is known without reading it; empty where there is none.
    """

    model: str
    model_digest: str
    dim: int
    corpus: str
    content: str
    reading: dict[str, Any]
    stamp: list[int] = field(default_factory=list, compare=False)


@dataclass(frozen=True)
class FileSeal:
    """The sha256 of a file, and the stamp by which an untouched one is known without reading it."""

    sha256: str
    stamp: list[int]

    @classmethod
    def of(cls, path: Path) -> "FileSeal":
        return cls(Digests().of_file(path), file_stamp(path))


@dataclass(frozen=True)
class ApproximateKind:
    """A graph or codes: the parameters of the graph, and `recall_at_10` against exact search, with its interval."""

    hnsw: dict[str, int]
    recall: Metrics


@dataclass(frozen=True)
class IndexManifest:
    """The content of `index.json`.

    sentences: of the index; `blank` ones of the corpus were left out.
    kind: `exact`, `hnsw`, `int8` or `binary`: what `auto` opens; of an open index what it searches by.
    approximate: what there is beside the exact vectors, by its kind.
    distinct: how many vectors differ; None where neither graph nor codes were built of them.
    columns: those of the corpus that hits can show.
    """

    origin: Origin
    sentences: int
    blank: int
    kind: str
    precision: str
    files: dict[str, FileSeal]
    approximate: dict[str, ApproximateKind] = field(default_factory=dict)
    distinct: int | None = None
    columns: list[Column] = field(default_factory=list)
    format: int = FORMAT

    @property
    def hnsw(self) -> dict[str, int]:
        """The parameters of the graph; empty where `kind` is none."""
        return self.approximate[self.kind].hnsw if self.kind in self.approximate else {}

    @property
    def recall(self) -> Metrics:
        """Of `kind`; empty where it is exact."""
        return self.approximate[self.kind].recall if self.kind in self.approximate else {}

    def as_kind(self, folder: Path, kind: str) -> "IndexManifest":
        """The same of an index that is searched by `kind`. Raises RequestError where it is not there."""
        if kind not in ("auto", "exact", *self.approximate):
            there = ", ".join(["exact", *self.approximate])
            raise RequestError(
                f"kind: expected {kind} in {folder}, found {there}; give the corpus too, and it is built"
            )
        return self if kind == "auto" else replace(self, kind=kind)


@dataclass(frozen=True)
class BuildState:
    """The content of `building.json`; the counts are there when `sentences.arrow` is.

    rebuild: the earlier index is to be deleted, and is when the counts are there.
    """

    origin: Origin
    sentences: int | None = None
    blank: int | None = None
    rebuild: bool = False

    @classmethod
    def read(cls, folder: Path) -> "BuildState | None":
        """What is being built in `folder`, or None."""
        try:
            return TypeAdapter(BuildState).validate_python(read_json(folder / BUILDING))
        except ValidationError:
            return None

    def write(self, folder: Path) -> None:
        _write(folder / BUILDING, asdict(self))


def write_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Marks the index as complete."""
    content = asdict(manifest)
    _write(folder / MANIFEST, {**content, "seal": fingerprint(content)})


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        write_json(path, content)
    except OSError as error:
        raise write_error(path, error) from error


def read_manifest(folder: Path) -> IndexManifest | None:
    """The manifest, or None where there is none. Raises RequestError when it is damaged."""
    if not (folder / MANIFEST).is_file():
        return None
    content = read_json(folder / MANIFEST) or {}
    seal = content.pop("seal", None)
    if fingerprint(content) != seal:
        raise damaged(folder, f"{MANIFEST} is not as it was written")
    if content.get("format") != FORMAT:
        raise damaged(folder, f"{MANIFEST} has format {content.get('format')}, and this version reads {FORMAT}")
    return TypeAdapter(IndexManifest).validate_python(content)


def require_manifest(folder: Path) -> IndexManifest:
    """As `read_manifest`; raises RequestError where there is none."""
    manifest = read_manifest(folder)
    if manifest is None and (folder / BUILDING).is_file():
        raise RequestError(
            f"{folder}: this index is not finished. Resume it: bertrelay search MODEL CORPUS --index {folder}"
        )
    if manifest is None:
        raise RequestError(f"{folder}: expected an index, found none. Build one: bertrelay search MODEL CORPUS")
    return manifest


def check_files(folder: Path, manifest: IndexManifest, verify: bool = False) -> None:
    """Raises RequestError unless every file is as it was written; `verify` reads untouched ones too."""
    for name, seal in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise damaged(folder, f"{name} is missing")
        if (verify or file_stamp(path) != seal.stamp) and Digests().of_file(path) != seal.sha256:
            raise damaged(folder, f"{name} has other bytes than were written")


def damaged(folder: Path, how: str) -> RequestError:
    return RequestError(
        f"{folder}: expected a complete index, found a damaged one: {how}. Build it anew: "
        f"bertrelay search MODEL CORPUS --index {folder} --rebuild"
    )


def origin_of(
    model: str, encoder: SentenceEncoder, table: Table, prompt_name: str | None, known: Origin | None = None
) -> Origin:
    """The origin of an index of `table`; the whole file is read for its digest, unless `known` has its stamp."""
    reading: dict[str, Any] = {"columns": text_column(table)}
    if prompt_name is not None:
        reading["prompt"] = prompt_name
    content, kept_stamp = table.name, list[int]()
    if table.path is not None:
        reading["format"] = table.file_format
        if table.file_format in ("csv", "tsv"):
            reading["header"] = table.header
            reading |= {"quoted": True} if table.quoted else {}
        path = Path(table.path)
        note_input(path)
        try:
            stamp, now = file_stamp(path), time.time_ns()
            content = known.content if known and known.stamp == stamp else Digests().of_file(path)
        except OSError as error:
            raise RequestError(f"{table.name} cannot be read: {error.strerror}; give one that may be") from error
        kept_stamp = stamp if shows_changes(stamp, now) else []
    return Origin(model, encoder_digest(encoder), encoder.dim, table.name, content, reading, kept_stamp)


def check_origin(folder: Path, built: Origin, origin: Origin) -> None:
    """Raises RequestError, with what differs, when `origin` is not what `folder` was built from."""
    check_model(folder, built, origin.model_digest, origin.dim)
    pairs = [(key, built.reading.get(key), origin.reading.get(key)) for key in built.reading | origin.reading]
    changes = [f"{key}: {old} → {new}" for key, old, new in pairs if old != new]
    if built.content != origin.content:
        changes.insert(0, f"its content differs ({built.content[:SHOWN]} → {origin.content[:SHOWN]})")
    if changes:
        raise RequestError(
            f"{folder}: expected the corpus this index was built from ({built.corpus}), found {origin.corpus}; "
            f"{', '.join(changes)}. Build it anew with --rebuild, build another one with --index DIR, or search this "
            "one as it is: leave CORPUS out and give --index alone"
        )


def check_model(folder: Path, built: Origin, digest: str, dim: int) -> None:
    if built.model_digest != digest:
        raise RequestError(
            f"{folder}: expected the model this index was built with ({built.model or 'digest'}, "
            f"{built.model_digest[:SHOWN]}, {built.dim} dimensions), found another one ({digest[:SHOWN]}, {dim} "
            "dimensions), whose vectors cannot be compared. Give that model; or build another index with --index DIR, "
            "or this one anew with --rebuild"
        )


def check_is_index(folder: Path) -> None:
    """Raises RequestError where anything in `folder` is not of an index, for a rebuild deletes by name."""
    check_name(folder, "--index")
    try:
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return
    except OSError as error:
        raise write_error(folder, error) from error
    foreign = [name for name in names if name not in OWN_FILES and not name.startswith(VECTORS)]
    is_sealed = SENTENCES in names or "seal" in (read_json(folder / MANIFEST) or {})  # others have an index.json too
    if foreign or (names and BUILDING not in names and not (MANIFEST in names and is_sealed)):
        raise RequestError(
            f"--index: expected an index and nothing else, an empty folder or none, found {folder} with "
            f"{(foreign or names)[0]} in it. Name another folder"
        )


def is_finished(folder: Path, manifest: IndexManifest, origin: Origin, options: IndexOptions) -> bool:
    """Whether nothing is to be built or tidied. Raises RequestError for an index of another origin."""
    check_origin(folder, manifest.origin, origin)
    return not ((folder / BUILDING).exists() or _wants_more(manifest, options) or _missing_columns(manifest, options))


def build(encoder: SentenceEncoder, table: Table, origin: Origin, folder: Path, options: IndexOptions) -> None:
    """Builds what is missing of an index, and keeps others from it meanwhile."""
    process_group = options.process_group
    if process_group.is_main:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(folder, error) from error
    with locked_output(folder, process_group):
        if process_group.is_main:
            _prepare(table, origin, folder, options)
        check_shared(folder, process_group)
        state = BuildState.read(folder)
        if state is not None:
            sentences = open_arrow(folder / SENTENCES)
            fill_vectors(
                at_unit_length(encoder),
                lambda first, end: sentences["text"].slice(first, end - first).to_pylist(),
                len(sentences),
                folder / VECTORS,
                f"{origin.model_digest} {origin.content} {origin.reading}",
                prompt_name=options.prompt_name,
                precision=options.precision,
                batch_tokens=options.batch_tokens,
                executor=LocalExecutor(process_group),
                name_row=lambda row: f"line {sentences['line'][row].as_py():,} of {origin.corpus}",
            )
        if process_group.is_main:
            _finish(folder, table, state, options)
        wait_for_all(process_group)


def _prepare(table: Table, origin: Origin, folder: Path, options: IndexOptions) -> None:
    """Leaves a complete index, or the sentences and `building.json`, which counts them."""
    state = BuildState.read(folder)
    if options.rebuild and not (state and state.rebuild and state.sentences is not None and state.origin == origin):
        state = BuildState(origin, rebuild=True)
        state.write(folder)
        _clear(folder)
    manifest = read_manifest(folder)
    if manifest is not None:
        check_origin(folder, manifest.origin, origin)
        check_files(folder, manifest)
        if (folder / BUILDING).exists():
            _forget_building(folder)
        return
    if state is not None and state.sentences is not None:
        check_origin(folder, state.origin, origin)
        with suppress(OSError, pa.ArrowInvalid):
            if len(open_arrow(folder / SENTENCES)) == state.sentences:
                return
    _write_corpus(table, BuildState(origin, rebuild=options.rebuild), folder, options)


def _write_corpus(table: Table, state: BuildState, folder: Path, options: IndexOptions) -> None:
    state.write(folder)
    try:
        with options.rejects or nullcontext():
            blank = write_sentences(table, folder / SENTENCES, options.cache, options.rejects)
    except BertRelayError:
        _clear(folder)
        with suppress(OSError):  # only an empty folder can go
            folder.rmdir()
        raise
    if blank:
        log(f"{table.name}: left out {blank:,} blank sentences; the others keep the number of their line")
    replace(state, sentences=len(open_arrow(folder / SENTENCES)), blank=blank).write(folder)


def _clear(folder: Path) -> None:
    """Removes the index, and last `building.json`, by which a rebuild that is killed on the way is known."""
    for name in (MANIFEST, *FAISS.values(), EQUAL, COLUMNS, VECTORS, SENTENCES):
        (folder / name).unlink(missing_ok=True)
    _forget_building(folder)


def _forget_building(folder: Path) -> None:
    for checkpoint in folder.glob(f"*{CHECKPOINT}*"):  # one half written, too
        checkpoint.unlink()
    forget_manifest(folder / VECTORS)
    (folder / BUILDING).unlink(missing_ok=True)


def _finish(folder: Path, table: Table, state: BuildState | None, options: IndexOptions) -> None:
    """Adds columns, a graph or codes where they are wanted, and marks the index as complete.

    state: None of one that was complete before.
    """
    if state is None:
        manifest = require_manifest(folder)
    else:
        files = {name: FileSeal.of(folder / name) for name in (SENTENCES, VECTORS)}
        counts = state.sentences or 0, state.blank or 0
        manifest = IndexManifest(state.origin, *counts, "exact", options.precision, files)
        if options.kind == "auto":
            kind = "exact" if manifest.sentences <= EXACT_UP_TO else "int8"
            how = {"exact": "exact search", "int8": "an approximate index (int8)"}[kind]
            log(
                f"{manifest.sentences:,} sentences: {how}, as exact is chosen up to {EXACT_UP_TO:,}; kind = exact, "
                "int8 or hnsw sets it"
            )
            options = options.model_copy(update={"kind": kind})
    missing = _missing_columns(manifest, options)
    if missing:
        manifest = _with_columns(folder, table, manifest, missing, options.cache)
    check_inputs()
    wants_more = _wants_more(manifest, options)
    if wants_more:
        manifest = _with_faiss(folder, manifest, options)
    if wants_more or missing or state is not None:
        write_manifest(folder, manifest)
        _forget_building(folder)


def _missing_columns(manifest: IndexManifest, options: IndexOptions) -> list[Column]:
    return [column for column in options.show if column not in manifest.columns]


def _with_columns(
    folder: Path, table: Table, manifest: IndexManifest, missing: list[Column], cache: Cache | None
) -> IndexManifest:
    """Writes the columns that hits show, those that are there and those that are missing, from the corpus."""
    columns, path = [*manifest.columns, *missing], folder / COLUMNS
    files = {name: seal for name, seal in manifest.files.items() if name != COLUMNS}
    if manifest.columns:  # so that a kill leaves an index that is complete
        write_manifest(folder, replace(manifest, columns=[], files=files))
    write_columns(table, columns, open_arrow(folder / SENTENCES)["line"].to_pylist(), path, cache)
    return replace(manifest, columns=columns, files={**files, COLUMNS: FileSeal.of(path)})


def _wants_more(manifest: IndexManifest, options: IndexOptions) -> bool:
    """Whether a graph or codes are to be built for vectors that are there; `auto` takes what is there."""
    kind = manifest.kind if options.kind == "auto" else options.kind
    if kind == "exact":
        return False
    if kind not in manifest.approximate:
        return True
    is_linked_otherwise = options.hnsw is not None and options.hnsw.model_dump() != manifest.approximate[kind].hnsw
    return kind == "hnsw" and is_linked_otherwise


def _with_faiss(folder: Path, manifest: IndexManifest, options: IndexOptions) -> IndexManifest:
    """Builds the graph or the codes beside what is there, unless a graph exists with the same links.

    A graph that replaces another is taken out of the manifest before, so a kill between the file and its manifest
    leaves an index that is complete.
    """
    kind = manifest.kind if options.kind == "auto" else options.kind
    vectors = open_vectors(folder / VECTORS)
    equal, manifest = _equal_rows(folder, manifest, vectors)
    distinct_vectors = distinct(vectors, equal)
    hnsw = options.hnsw or Hnsw()
    parameters = hnsw.model_dump() if kind == "hnsw" else {}
    earlier = manifest.approximate.get(kind)
    # `ef_search` only decides how links are walked
    is_linked = earlier is not None and earlier.hnsw | {"ef_search": hnsw.ef_search} == parameters
    if is_linked:
        built = open_faiss(folder / FAISS["hnsw"], kind)
    elif kind == "hnsw":
        built = build_hnsw(distinct_vectors, hnsw, folder / CHECKPOINT, manifest.files[VECTORS].sha256)
    else:
        built = build_codes(distinct_vectors, "binary" if kind == "binary" else "int8")
    measured = _measured(kind, built, distinct_vectors, hnsw.ef_search)
    if not is_linked:
        others = {name: each for name, each in manifest.approximate.items() if name != kind}
        files = {name: seal for name, seal in manifest.files.items() if name != FAISS[kind]}
        if earlier is not None:
            write_manifest(folder, replace(manifest, kind="exact", approximate=others, files=files))
        write_index(built, folder / FAISS[kind])
        manifest = replace(manifest, files={**files, FAISS[kind]: FileSeal.of(folder / FAISS[kind])})
    approximate = {**manifest.approximate, kind: ApproximateKind(parameters, measured)}
    return replace(manifest, kind=kind, approximate=approximate)


def _equal_rows(folder: Path, manifest: IndexManifest, vectors: Vectors) -> tuple[EqualRows | None, IndexManifest]:
    """The rows of equal vectors, which are searched for and written once, and the manifest that knows them."""
    if manifest.distinct is not None:
        return open_equal(folder, manifest), manifest
    equal, count = equal_rows(vectors), len(vectors)
    if equal is None:
        return None, replace(manifest, distinct=count)
    log(
        f"{count:,} sentences have {len(equal):,} distinct vectors, which are searched; each gives all sentences that "
        "have it"
    )
    with atomic_write(folder / EQUAL) as writing, writing.open("wb") as file:
        np.save(file, np.concatenate([equal.starts, equal.rows]))
    files = {**manifest.files, EQUAL: FileSeal.of(folder / EQUAL)}
    return equal, replace(manifest, distinct=len(equal), files=files)


def open_equal(folder: Path, manifest: IndexManifest) -> EqualRows | None:
    """What `equal.npy` has, mapped from the disk; None where all vectors are distinct, or nobody looked."""
    if EQUAL not in manifest.files or manifest.distinct is None:
        return None
    numbers = np.load(folder / EQUAL, mmap_mode="r")
    return EqualRows(numbers[: manifest.distinct + 1], numbers[manifest.distinct + 1 :])


def _measured(kind: str, built: Any, vectors: AnyVectors, candidates: int) -> Metrics:
    """`recall_at_10` of a graph or codes on distinct vectors, which is logged, and what helps where it is low."""
    shares = recall(partial(nearest, kind, built, vectors, candidates), vectors)
    measured = with_interval(RECALL, share, shares)
    if not len(shares):
        return measured
    log(
        f"recall@10 {measured[RECALL]:.4f} (95 % from {measured[f'{RECALL}_low']:.4f} to "
        f"{measured[f'{RECALL}_high']:.4f}): what {kind} finds of the exact ten nearest, for {len(shares):,} "
        "distinct sentences of the corpus"
    )
    if shares.mean() < LOW_RECALL:
        better = "int8 or exact" if kind != "int8" else "exact"
        log(
            f"recall@10 is below {LOW_RECALL}: more candidates (ef_search, now {candidates}) find more, and so does "
            f"kind = {better}"
        )
    return measured
