"""Growth of an index: texts are added and deleted while others search it.

1. Added texts become a further segment. It takes in the segments before it that are no larger, so that there are few:
   of a million texts that are added one by one, a text is copied some twenty times.
2. Deleted texts are listed by their rows, and left out of every search; their vectors and words stay in the files.
3. `compact_index` writes the segments anew without them, and builds the FAISS indexes over all texts.

Each of the three writes new files, then the manifest, by one rename. So it has happened or it has not, whenever the
process is killed. Vectors of texts to be added stay in `INDEX.partial-<digest>/`, where the same call resumes.
"""

import shutil
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bertrelay.cache import Cache
from bertrelay.compute.local import LocalExecutor
from bertrelay.data.arrow import Mask, mask_of, open_arrow, select_rows, write_arrow
from bertrelay.data.records import Rejects, canonical_id
from bertrelay.data.sentences import as_table
from bertrelay.data.shards import even_spans
from bertrelay.data.tables import BLOCK_ROWS, Table
from bertrelay.data.vectors import open_vectors, write_array, write_npy
from bertrelay.encode_files import fill_vectors
from bertrelay.errors import BertRelayError, RequestError
from bertrelay.files import atomic_write, refuse_symlink
from bertrelay.fingerprint import fingerprint
from bertrelay.inputs import check_inputs, unchanged_inputs
from bertrelay.locks import locked_output
from bertrelay.model.encoder import SentenceEncoder, encoder_digest, open_encoder
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, on_main
from bertrelay.progress import log, renamed
from students.searching.build import add_kind, build_segment, commit, remove_unlisted, write_words
from students.searching.equal_vectors import AnyVectors, Rows, stack
from students.searching.faiss import at_unit_length, load_faiss
from students.searching.index_folder import (
    SEGMENT_ROWS,
    SENTENCES,
    SHOWN,
    IndexManifest,
    Segment,
    check_files,
    check_model,
    live_rows,
    open_columns,
    open_segment_vectors,
    open_sentences,
    read_origin,
    require_manifest,
)
from students.searching.sentences import check_columns, write_columns, write_sentences
from students.searching.settings import EXACT_UP_TO, Hnsw, IndexKind
from students.searching.where import Columns, Condition, Filter

VECTORS, COLUMNS = "vectors.npy", "columns.arrow"


class Added(NamedTuple):
    """The numbers of texts that were added, replaced and, being blank, left out, and of the texts of the index."""

    added: int
    replaced: int
    blank: int
    sentences: int


class Deleted(NamedTuple):
    """The numbers of texts that were deleted, of ids that no text has, and of the texts of the index."""

    deleted: int
    missing: int
    sentences: int


class Compacted(NamedTuple):
    """The numbers of deleted texts whose files are gone, and of the segments and texts of the index."""

    removed: int
    segments: int
    sentences: int


@unchanged_inputs()
def add_to_index(
    model: SentenceEncoder | str | Path,
    corpus: Table | str | Path,
    folder: str | Path,
    *,
    overwrite: bool = False,
    batch_tokens: int | None = None,
    cache: Cache | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    rejects: Rejects | None = None,
) -> Added:
    """Adds the texts of `corpus` to the index in `folder`, with the columns that it keeps; killed, the same resumes.

    They are encoded as the others were: by the same model, with the same prompt and precision. Others search the index
    as it was until all of them are in it.

    model: the encoder of the index, or a name that `SentenceEncoder.load` knows.
    corpus: plain lines, a table with a column `text`, or a `Table` that names its column.
    overwrite: replace texts of the same ids, which is an error otherwise.
    rejects: entered while the corpus is read; without it the first record that cannot be used raises.
    Raises RequestError for an index of another model, a corpus without its columns, and an id that a text has already.
    """
    load_faiss()
    table, folder = as_table(corpus), Path(folder).resolve()
    encoder = open_encoder(model, cache)
    with locked_output(folder, process_group):
        manifest = on_main(lambda: _open_unchanged(folder), process_group)
        check_model(folder, manifest.origin, encoder_digest(encoder), encoder.dim)
        if manifest.columns:
            check_columns(table, manifest.columns, cache)
        prompt_name = manifest.origin.reading.get("prompt")
        origin = read_origin("", encoder, table, prompt_name, None, manifest.id_column)
        key = fingerprint({"model": origin.model_digest, "content": origin.content, "reading": origin.reading})
        building, source = folder.with_name(f"{folder.name}.partial-{key[:SHOWN]}"), renamed(table.name)

        def prepare() -> int:
            refuse_symlink(building)
            building.mkdir(exist_ok=True)
            sources = list(dict.fromkeys([*manifest.sources, source]))
            number, id_column = sources.index(source), manifest.id_column
            try:
                with rejects or nullcontext():
                    path = building / SENTENCES
                    blank = write_sentences(table, path, cache, rejects, id_column=id_column, source=number)
                if not overwrite:
                    _refuse_existing_ids(folder, manifest, table, open_arrow(path))
            except BertRelayError:
                if not any(building.glob(f"{VECTORS}*")):  # nothing that took long
                    shutil.rmtree(building)
                raise
            return blank

        blank = on_main(prepare, process_group)
        sentences = open_arrow(building / SENTENCES)
        fill_vectors(
            at_unit_length(encoder),
            lambda first, end: sentences["text"].slice(first, end - first).to_pylist(),
            len(sentences),
            building / VECTORS,
            key,
            prompt_name=prompt_name,
            precision=manifest.precision,
            batch_tokens=batch_tokens,
            executor=LocalExecutor(process_group),
            name_row=lambda row: f"line {sentences['line'][row].as_py():,} of {table.name}",
        )

        def finish() -> Added:
            if manifest.columns:
                lines = {building / COLUMNS: sentences["line"].to_pylist()}
                write_columns(table, manifest.columns, lines, cache)
            check_inputs()
            added = _append(folder, manifest, building, source, blank)
            shutil.rmtree(building)
            return added

        return on_main(finish, process_group)


def delete_from_index(
    folder: str | Path, *, ids: Iterable[object] = (), where: str | Filter | Condition | None = None
) -> Deleted:
    """Deletes the texts of these ids, or those that fulfil a condition; one of the two is given.

    ids: as text or whole numbers; those that no text has are counted and logged.
    where: see `students.searching.where`.
    Raises RequestError for ids where the index has none, and for a condition on a column that it does not keep.
    """
    folder, identifiers = Path(folder).resolve(), list(dict.fromkeys(map(_as_id, ids)))
    if bool(identifiers) == (where is not None):
        raise RequestError("expected ids or a condition (where) of texts to delete, found neither or both")
    with locked_output(folder):
        manifest = _open_unchanged(folder)
        sentences, live = open_sentences(folder, manifest), _live(folder, manifest)
        if where is not None:
            chosen = Condition.of(where).select(Columns(sentences, open_columns(folder, manifest)))
        elif manifest.id_column is None:
            raise RequestError(
                f"{folder}: expected an index whose texts have ids, found one without. Give a condition (where), or "
                "build it with a column of ids"
            )
        else:
            chosen = _have_ids(sentences, pa.array(identifiers, pa.string()))
        chosen &= live
        count = int(chosen.sum())
        missing = 0 if where is not None else len(identifiers) - count
        if missing:
            log(f"{folder}: {missing:,} of {len(identifiers):,} ids are of no text in it")
        if count:
            segments = _with_deleted(folder, manifest.segments, live & ~chosen)
            manifest = commit(folder, replace(manifest, segments=segments, changes=manifest.changes + 1))
    return Deleted(count, missing, manifest.sentences)


def compact_index(folder: str | Path, *, kind: IndexKind = "auto", hnsw: Hnsw | None = None) -> Compacted:
    """Writes the segments of an index anew, without deleted texts, and builds its FAISS indexes over all texts.

    Nothing is encoded again. Others search the index as it was until the new one is complete.

    kind: a kind to build beside those that the index has; `auto` is these.
    hnsw: the graph of kind hnsw; that of the index when absent.
    Raises RequestError where all texts are deleted.
    """
    folder = Path(folder).resolve()
    with locked_output(folder):
        before = manifest = _open_unchanged(folder)
        removed = sum(segment.deleted for segment in manifest.segments)
        if not manifest.sentences:
            raise RequestError(f"{folder}: expected texts, found only deleted ones; add some, or remove the folder")
        if removed or [segment.is_exact for segment in manifest.segments] != [False] * _fewest(manifest):
            manifest = replace(manifest, segments=_rewrite(folder, manifest), approximate={})
        last = before.kind if kind == "auto" else kind
        graphs = {name: Hnsw(**built.hnsw) for name, built in before.approximate.items()}
        if last != "exact":
            graph = graphs.pop(last, Hnsw())
            graphs[last] = hnsw if hnsw and last == "hnsw" else graph  # built after the others
        for name, graph in graphs.items():
            built = manifest.approximate.get(name)
            if built is None or (name == "hnsw" and built.hnsw != graph.model_dump()):
                manifest = add_kind(folder, manifest, name, graph)
        manifest = replace(manifest, kind=last)
        if manifest != before:
            manifest = commit(folder, replace(manifest, changes=manifest.changes + 1))
    return Compacted(removed, len(manifest.segments), manifest.sentences)


def _as_id(value: object) -> str:
    try:
        if identifier := canonical_id(value):
            return identifier
    except ValueError as error:
        raise RequestError(f"ids: {error}") from None
    raise RequestError("ids: expected ids, found an empty one")


def _open_unchanged(folder: Path) -> IndexManifest:
    """Reads the manifest of a whole index, and removes what an earlier change that was killed has left in `folder`."""
    manifest = require_manifest(folder)
    check_files(folder, manifest)
    remove_unlisted(folder, manifest)
    return manifest


def _live(folder: Path, manifest: IndexManifest) -> Mask:
    """The rows that are not deleted, (rows,)."""
    live = live_rows(folder, manifest)
    return np.ones(sum(segment.rows for segment in manifest.segments), bool) if live is None else live


def _have_ids(sentences: pa.Table, ids: pa.Array) -> Mask:
    """The rows whose texts have one of `ids`, (rows,)."""
    return np.asarray(pc.is_in(sentences["id"], value_set=ids).to_numpy())


def _refuse_existing_ids(folder: Path, manifest: IndexManifest, table: Table, sentences: pa.Table) -> None:
    """Raises RequestError, with a line, where a text to be added has the id of one in the index."""
    if manifest.id_column is None:
        return
    existing = open_sentences(folder, manifest)["id"].filter(pa.array(_live(folder, manifest)))
    repeated = np.flatnonzero(_have_ids(sentences, existing.combine_chunks()))
    if len(repeated):
        line = sentences["line"][int(repeated[0])].as_py()
        raise RequestError(
            f"{table.name}, line {line:,}: expected new ids, found {len(repeated):,} that texts in {folder} have; "
            "leave them out, or replace these texts with --replace, in Python overwrite=True"
        )


@dataclass(frozen=True)
class _Texts:
    """Texts that become segments: SCHEMA, columns as JSON and unit vectors, (rows,) each, of which `rows` are taken."""

    sentences: pa.Table
    columns: pa.Table
    vectors: AnyVectors
    rows: Rows


def _append(folder: Path, manifest: IndexManifest, building: Path, source: str, blank: int) -> Added:
    """Puts the texts of `building` into the index as its last segments, and commits."""
    sentences, vectors = open_arrow(building / SENTENCES), open_vectors(building / VECTORS)
    live, count = _live(folder, manifest), len(sentences)
    replaced = np.zeros(len(live), bool)
    if manifest.id_column is not None:
        replaced = _have_ids(open_sentences(folder, manifest), sentences["id"].combine_chunks()) & live
    remaining, taken = _with_deleted(folder, manifest.segments, live & ~replaced), list[Segment]()
    total = count
    while remaining and _is_taken_in(remaining[-1], total, manifest):
        taken.insert(0, remaining.pop())
        total += taken[0].live
    first = sum(segment.rows for segment in remaining)
    earlier = replace(manifest, segments=taken)
    tables = [open_sentences(folder, earlier)] if taken else []
    columns = [open_columns(folder, earlier)] if taken else []
    texts = _Texts(
        pa.concat_tables([*tables, sentences]),
        pa.concat_tables([*columns, open_arrow(building / COLUMNS)]) if manifest.columns else pa.table({}),
        stack([*open_segment_vectors(folder, earlier), vectors]),
        np.append(np.flatnonzero((live & ~replaced)[first:]), len(live) - first + np.arange(count)),
    )
    added = _write_segments(folder, manifest, texts)
    for segment in added:
        for kind, built in manifest.approximate.items():
            if not segment.is_exact:
                build_segment(folder, segment, open_vectors(folder / segment.vectors_file), kind, Hnsw(**built.hnsw))
    manifest = commit(
        folder,
        replace(
            manifest,
            segments=[*remaining, *added],
            blank=manifest.blank + blank,
            sources=list(dict.fromkeys([*manifest.sources, source])),
            changes=manifest.changes + 1,
        ),
    )
    exact = sum(segment.live for segment in manifest.segments if segment.is_exact)
    if manifest.approximate and exact > EXACT_UP_TO:
        log(f"{folder}: {exact:,} added texts are compared exactly; bertrelay index compact takes them into its index")
    return Added(count, int(replaced.sum()), blank, manifest.sentences)


def _is_taken_in(segment: Segment, texts: int, manifest: IndexManifest) -> bool:
    """True for a segment that is written anew with `texts` others: no larger one, and none with a FAISS index."""
    has_structure = bool(manifest.approximate) and not segment.is_exact
    return not has_structure and segment.live <= texts and segment.live + texts <= SEGMENT_ROWS


def _with_deleted(folder: Path, segments: Sequence[Segment], live: Mask) -> list[Segment]:
    """Writes the deleted rows of the segments that have more of them now. live: (rows of all,)."""
    changed, first = list[Segment](), 0
    for segment in segments:
        rows = np.flatnonzero(~live[first : first + segment.rows])
        first += segment.rows
        updated = replace(segment, deleted=len(rows))
        if updated != segment:
            with atomic_write(folder / updated.deleted_file) as building:
                write_array(building, rows)
        changed.append(updated)
    return changed


def _fewest(manifest: IndexManifest) -> int:
    """The number of segments that hold the texts of the index."""
    return -(-manifest.sentences // SEGMENT_ROWS)


def _rewrite(folder: Path, manifest: IndexManifest) -> list[Segment]:
    """Writes all texts that are not deleted into new segments."""
    texts = _Texts(
        open_sentences(folder, manifest),
        open_columns(folder, manifest),
        stack(open_segment_vectors(folder, manifest)),
        np.flatnonzero(_live(folder, manifest)),
    )
    return [replace(segment, is_exact=False) for segment in _write_segments(folder, manifest, texts)]


def _write_segments(folder: Path, manifest: IndexManifest, texts: _Texts) -> list[Segment]:
    """Writes texts into segments of new numbers: sentences, columns, words and vectors."""
    number = 1 + max(segment.number for segment in manifest.segments)
    segments = list[Segment]()
    for span in even_spans(len(texts.rows), SEGMENT_ROWS):
        segment = Segment(number + len(segments), span.size, is_exact=span.size <= EXACT_UP_TO)
        rows = texts.rows[span.first : span.end]
        for table, name in (
            (texts.sentences, segment.sentences_file),
            (texts.columns, segment.columns_file(manifest.columns)),
        ):
            if table.column_names:
                blocks = select_rows(table, mask_of(rows, len(table)), {key: key for key in table.column_names})
                with atomic_write(folder / name) as building:
                    write_arrow(building, table.schema, blocks)
        vectors = (texts.vectors[rows[start : start + BLOCK_ROWS]] for start in range(0, len(rows), BLOCK_ROWS))
        with atomic_write(folder / segment.vectors_file) as building:
            write_npy(building, vectors, len(rows), manifest.origin.dim)
        if manifest.lexical:
            write_words(folder, segment)
        segments.append(segment)
    return segments
