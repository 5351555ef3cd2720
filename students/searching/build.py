"""Build of an index: its sentences, vectors in segments, columns, and FAISS indexes."""

import shutil
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from bertrelay.compute.local import LocalExecutor
from bertrelay.data.arrow import open_arrow
from bertrelay.data.shards import even_spans
from bertrelay.data.tables import Table
from bertrelay.data.vectors import Vectors
from bertrelay.device import ComputePrecision
from bertrelay.encode_files import fill_vectors, forget_manifest
from bertrelay.errors import BertRelayError, RequestError, WorkError
from bertrelay.evaluation.statistics import share, with_interval
from bertrelay.files import publish_folder, refuse_symlink, remove_unfinished, write_error
from bertrelay.fingerprint import Digests, fingerprint
from bertrelay.inputs import check_inputs
from bertrelay.locks import locked_output
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.process_group import check_shared, on_main
from bertrelay.progress import log
from bertrelay.stage import Metrics
from students.searching.equal_vectors import Rows, distinct, equal_rows, first_rows, open_equal, stack, write_equal
from students.searching.faiss import Approximate, at_unit_length, build_structure, merge, recall, write_index
from students.searching.index_folder import (
    FORMAT,
    MANIFEST,
    OWN_FILES,
    SEGMENT_ROWS,
    SENTENCES,
    SHOWN,
    BuiltKind,
    FileDigest,
    IndexManifest,
    Origin,
    Segment,
    check_files,
    check_origin,
    open_segment_vectors,
    open_structures,
    partial_folders,
    read_manifest,
    replaced_folder,
    write_manifest,
)
from students.searching.lexical import WordCounts
from students.searching.sentences import write_columns, write_sentences, write_table
from students.searching.settings import EXACT_UP_TO, ApproximateKind, Hnsw, IndexKind, IndexOptions, SearchKind

RECALL, LOW_RECALL = "recall_at_10", 0.95


@dataclass(frozen=True)
class IndexBuilder:
    """Builds the index of `table` with `encoder`. prompt_name, precision: those of `options`, resolved."""

    encoder: SentenceEncoder
    table: Table
    origin: Origin
    prompt_name: str | None
    precision: ComputePrecision
    options: IndexOptions

    def build(self, folder: Path) -> IndexManifest:
        """Builds the index in `folder`, or adds to a complete one what it lacks; killed and called again, resumes.

        All processes return when the index is complete. Raises RequestError when another process builds it, or it is
        one of another origin.
        """
        folder, process_group = folder.resolve(), self.options.process_group  # a link stays, its folder is replaced
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(folder, error) from error
        with locked_output(folder, process_group):
            # Read under the lock, as another process may have built it in the meantime.
            manifest = None if self.options.rebuild else on_main(lambda: read_manifest(folder), process_group)
            if manifest is None:
                return self._build_anew(folder)
            check_origin(folder, manifest, self.origin)
            return on_main(lambda: _add_missing(folder, self.table, manifest, self.options), process_group)

    def _build_anew(self, folder: Path) -> IndexManifest:
        """Builds the index beside `folder`, which it then replaces."""
        process_group = self.options.process_group
        decisive = {"model": self.origin.model_digest, "content": self.origin.content, "reading": self.origin.reading}
        key = fingerprint({**decisive, "precision": self.precision, "segment": SEGMENT_ROWS, "format": FORMAT})
        building = folder.with_name(f"{folder.name}.partial-{key[:SHOWN]}")
        blank = on_main(lambda: self._write_corpus(building), process_group)
        check_shared(building, process_group)
        sentences = open_arrow(building / SENTENCES)
        spans = even_spans(len(sentences), SEGMENT_ROWS)
        segments = [Segment(number, span.size) for number, span in enumerate(spans)]
        for segment, span in zip(segments, spans, strict=True):
            part = sentences.slice(span.first, span.size)
            if process_group.is_main and not (building / segment.sentences_file).is_file():
                write_table(part, building / segment.sentences_file)
            self._fill_vectors(part, building / segment.vectors_file, key)

        def finish() -> IndexManifest:
            kind = choose_kind(self.options.kind, len(sentences))
            manifest = IndexManifest(self.origin, blank, kind, self.precision, segments, sources=[self.table.name])
            manifest = replace(manifest, id_column=self.origin.reading.get("id_column"))
            manifest = _add_missing(building, self.table, manifest, self.options)
            (building / SENTENCES).unlink()
            _replace(folder, building)
            return manifest

        return on_main(finish, process_group)

    def _write_corpus(self, building: Path) -> int:
        """Writes the sentences, which takes little of a build, and returns the number of blank ones."""
        path, new = building / SENTENCES, building / f"{SENTENCES}.new"
        refuse_symlink(building)
        try:
            building.mkdir(exist_ok=True)
        except OSError as error:
            raise write_error(building, error) from error
        try:
            with self.options.rejects or nullcontext():
                blank = write_sentences(
                    self.table,
                    new,
                    self.options.cache,
                    self.options.rejects,
                    id_column=self.origin.reading.get("id_column"),
                )
        except BertRelayError:
            if not any(building.glob("*.vectors.npy*")):  # nothing that took long
                shutil.rmtree(building)
            raise
        if path.is_file() and Digests().of_file(path) != Digests().of_file(new):  # a data set of the hub may change
            log(f"{building} is of other sentences: restarting")
            for other in building.iterdir():
                if other not in (path, new):
                    shutil.rmtree(other) if other.is_dir() else other.unlink()
        new.replace(path)  # after the vectors of earlier sentences are gone
        if blank:
            log(f"{self.table.name}: left out {blank:,} blank sentences; the others keep the number of their line")
        return blank

    def _fill_vectors(self, sentences: pa.Table, path: Path, key: str) -> None:
        """Writes the vectors of the sentences of a segment, where they are missing."""
        process_group = self.options.process_group
        if not on_main(path.is_file, process_group):
            fill_vectors(
                at_unit_length(self.encoder),
                lambda first, end: sentences["text"].slice(first, end - first).to_pylist(),
                len(sentences),
                path,
                key,
                prompt_name=self.prompt_name,
                precision=self.precision,
                batch_tokens=self.options.batch_tokens,
                executor=LocalExecutor(process_group),
                name_row=lambda row: f"line {sentences['line'][row].as_py():,} of {self.origin.corpus}",
            )
        if process_group.is_main:
            forget_manifest(path)


def choose_kind(kind: IndexKind, sentences: int) -> SearchKind:
    """Chooses the kind of search for `auto` by the number of sentences, and logs it."""
    if kind != "auto":
        return kind
    chosen: SearchKind = "exact" if sentences <= EXACT_UP_TO else "int8"
    name = {"exact": "exact search", "int8": "an approximate index (int8)"}[chosen]
    log(
        f"{sentences:,} sentences: {name}, as exact is chosen up to {EXACT_UP_TO:,}; kind = exact, int8 or hnsw sets it"
    )
    return chosen


def _replace(folder: Path, building: Path) -> None:
    """Renames a complete build to `folder`, and removes an earlier index and other unfinished builds."""
    earlier = replaced_folder(folder)
    try:
        if folder.exists():
            shutil.rmtree(earlier, ignore_errors=True)
            folder.rename(earlier)
        publish_folder(building, folder)
    except OSError as error:  # the folder of a mounted disk, for example, cannot be renamed
        raise write_error(folder, error) from error
    _remove_partial(folder)


def _remove_partial(folder: Path) -> None:
    """Removes the index that a complete one in `folder` replaced, and unfinished builds."""
    earlier = replaced_folder(folder)
    for partial in sorted(partial_folders(folder), key=earlier.__eq__):  # it last: while it is there, others may be
        shutil.rmtree(partial)


def finish_replacing(folder: Path) -> None:
    """Removes what a build leaves that is killed after its index replaced another in `folder`.

    A build that is stopped before keeps its folder, as it resumes in it.
    """
    folder = folder.resolve()
    if replaced_folder(folder).exists():
        with suppress(RequestError, WorkError), locked_output(folder):  # another process removes it, or none may
            if (folder / MANIFEST).is_file():
                _remove_partial(folder)


def _add_missing(folder: Path, table: Table, manifest: IndexManifest, options: IndexOptions) -> IndexManifest:
    """Adds the columns, the words and the kind that `manifest` lacks, and writes the manifest that has them."""
    check_files(folder, manifest)
    if missing := manifest.missing_columns(options):
        manifest = replace(manifest, columns=[*manifest.columns, *missing])
        lines = {
            folder / segment.columns_file(manifest.columns): open_arrow(folder / segment.sentences_file)[
                "line"
            ].to_pylist()
            for segment in manifest.segments
        }
        write_columns(table, manifest.columns, lines, options.cache)
    if options.lexical and not manifest.lexical:
        manifest = replace(manifest, lexical=True)
        for segment in manifest.segments:
            write_words(folder, segment)
    check_inputs()
    if kind := manifest.missing_kind(options):
        manifest = add_kind(folder, manifest, kind, options.hnsw or Hnsw())
    return commit(folder, manifest, SENTENCES)


def write_words(folder: Path, segment: Segment) -> None:
    """Writes the counts of the words of a segment."""
    chunks = open_arrow(folder / segment.sentences_file)["text"].chunks
    WordCounts.of(text for chunk in chunks for text in chunk.to_pylist()).write(folder / segment.words_file)


def commit(folder: Path, manifest: IndexManifest, *spared: str) -> IndexManifest:
    """Writes the manifest with the digests of its files, and removes files that it does not name, nor `spared`.

    Until the manifest is renamed into its place, the index is what it was.
    """
    names = list(manifest.file_names())
    files = {name: manifest.files.get(name) or FileDigest.of(folder / name) for name in names}
    manifest = replace(manifest, files=files)
    write_manifest(folder, manifest)
    remove_unlisted(folder, manifest, *spared)
    return manifest


def remove_unlisted(folder: Path, manifest: IndexManifest, *spared: str) -> None:
    """Removes the files of an index that its manifest does not name, nor `spared`: of other links or columns, say."""
    remove_unfinished(folder)
    names = {MANIFEST, *manifest.file_names(), *spared}
    for path in folder.iterdir():
        if OWN_FILES.fullmatch(path.name) and path.name not in names:
            path.unlink()


def add_kind(folder: Path, manifest: IndexManifest, kind: ApproximateKind, hnsw: Hnsw) -> IndexManifest:
    """Builds the FAISS index of each segment that has none of these parameters, and measures their recall."""
    vectors = open_segment_vectors(folder, manifest)
    for segment, part in zip(manifest.segments, vectors, strict=True):
        build_segment(folder, segment, part, kind, hnsw)
    segments = open_structures(folder, manifest.segments, vectors, kind, hnsw)
    if (count := sum(len(segment.distinct) for segment in segments)) < manifest.sentences:
        log(
            f"{manifest.sentences:,} sentences have {count:,} distinct vectors, which are searched; each gives all "
            "sentences that have it"
        )
    built = BuiltKind(hnsw.model_dump() if kind == "hnsw" else {}, _measure(segments, hnsw.ef_search))
    return replace(manifest, kind=kind, approximate={**manifest.approximate, kind: built})


def build_segment(folder: Path, segment: Segment, vectors: Vectors, kind: ApproximateKind, hnsw: Hnsw) -> None:
    """Builds the FAISS index of a segment, and finds its equal vectors, where they are missing."""
    equal_path, path = folder / segment.equal_file, folder / segment.faiss_file(kind, hnsw)
    if not equal_path.is_file():
        write_equal(equal_path, equal_rows(vectors))
    if not path.is_file():
        distinct_vectors = distinct(vectors, open_equal(equal_path, segment.rows))
        write_index(build_structure(kind, distinct_vectors, hnsw), path)


def _measure(segments: Sequence[Approximate], candidates: int) -> Metrics:
    """Measures and logs `recall_at_10` on distinct vectors, and says what helps where it is low."""
    kind, parts = segments[0].kind, [segment.distinct for segment in segments]

    def find(queries: Vectors, top_k: int) -> tuple[Vectors, Rows]:
        nearest = (segment.distinct_neighbours(queries, top_k, candidates) for segment in segments)
        return merge(zip(first_rows(parts), nearest, strict=True), top_k)

    fractions = recall(find, stack(parts))
    measured = with_interval(RECALL, share, fractions)
    if not len(fractions):
        return measured
    log(
        f"recall@10 {measured[RECALL]:.4f} (95 % from {measured[f'{RECALL}_low']:.4f} to "
        f"{measured[f'{RECALL}_high']:.4f}): what {kind} finds of the exact ten nearest, for {len(fractions):,} "
        "distinct sentences of the corpus"
    )
    if fractions.mean() < LOW_RECALL:
        better = "int8 or exact" if kind != "int8" else "exact"
        log(
            f"recall@10 is below {LOW_RECALL}: more candidates (ef_search, now {candidates}) find more, and so does "
            f"kind = {better}"
        )
    return measured
