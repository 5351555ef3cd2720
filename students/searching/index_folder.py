"""The files of an index, its manifest, and the checks of both.

| file                                | content                                                                       |
|-------------------------------------|-------------------------------------------------------------------------------|
| `index.json`                        | the manifest, written last: it names the files that count                     |
| `000000.sentences.arrow`            | of the first segment: text, line, record, source and id of its texts          |
| `000000.columns-<digest>.arrow`     | the columns that are kept with each text, as JSON                             |
| `000000.words.npz`                  | `WordCounts` of its texts, for search by words                                |
| `000000.vectors.npy`                | row i for its text i, at length one                                           |
| `000000.equal.npy`                  | `starts` and `rows` of `EqualRows` end to end; empty where all vectors differ |
| `000000.hnsw-32-100.faiss`          | the FAISS index of kind hnsw, with 32 links and 100 candidates of construction |
| `000000.int8.faiss`, `.binary.…`    | the FAISS index of kinds int8 and binary                                      |
| `000000.deleted-3.npy`              | the rows of its three deleted texts, rising                                   |

A segment has at most `SEGMENT_ROWS` texts; its FAISS indexes have each distinct vector once. What `students.searching.
grow` adds is a further segment, without a FAISS index up to `EXACT_UP_TO` texts, and what it deletes stays in its files
until `compact`.

An index is built in `INDEX.partial-<digest>/`, named by model, corpus and precision, which is renamed when complete.
Each file in it is written once and renamed, so a killed build resumes at the first file that is missing, and among
vectors at their first missing shard. All that changes a complete index writes new files, then the manifest, by one
rename; then it removes the files that no longer count. Who reads the old manifest at that moment reads the new one.
"""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from bertrelay.data.arrow import Mask, open_arrow
from bertrelay.data.sentences import text_column
from bertrelay.data.tables import Column, Table
from bertrelay.data.vectors import Vectors, open_vectors
from bertrelay.errors import RequestError
from bertrelay.files import check_name, read_json, write_error, write_json
from bertrelay.fingerprint import Digests, file_stamp, fingerprint, shows_changes
from bertrelay.inputs import note_input
from bertrelay.model.encoder import SentenceEncoder, encoder_digest
from bertrelay.stage import Metrics
from students.searching.equal_vectors import open_equal
from students.searching.faiss import EXACT_BLOCK, Approximate, open_faiss
from students.searching.settings import ApproximateKind, Hnsw, IndexKind, IndexOptions, SearchKind

SENTENCES, MANIFEST = "sentences.arrow", "index.json"
OWN_FILES = re.compile(
    r"index\.json|(\d{6}\.)?(words\.npz|sentences\.arrow|columns(-\w+)?\.arrow|(vectors|equal|deleted-\d+)\.npy|"
    r"[\w-]+\.faiss)"
)
"""Names of files that a rebuild may delete; without a number, those of formats before 4."""
FORMAT = 4
SEGMENT_ROWS = 16 * EXACT_BLOCK
"""Sentences of a segment, about a million, so that most indexes have one segment: a graph of two takes twice as long to
ask as one of all. More would need too much memory, as the graph of a segment is linked in memory, 2 GB at 384
dimensions, and lose too much in a kill, as its linking restarts. A multiple of EXACT_BLOCK, see there."""
SHOWN = 12  # characters of a digest


@dataclass(frozen=True)
class Origin:
    """The model and the corpus of an index.

    model, corpus: their names, for people; `model_digest` and `content`, a sha256, decide.
    reading: columns, format, header and prompt with which the corpus is read.
    stamp: of the corpus file, which is read anew only where it has another; empty where there is none.
    """

    model: str
    model_digest: str
    dim: int
    corpus: str
    content: str
    reading: dict[str, Any]
    stamp: list[int] = field(default_factory=list, compare=False)


@dataclass(frozen=True)
class FileDigest:
    """The sha256 of a file, and the stamp of an untouched one, which is not read."""

    sha256: str
    stamp: list[int]

    @classmethod
    def of(cls, path: Path) -> "FileDigest":
        return cls(Digests().of_file(path), file_stamp(path))


@dataclass(frozen=True)
class Segment:
    """The number of a segment, by which its files are named, and the number of its texts, deleted ones included.

    deleted: the number of its deleted texts. is_exact: it has no FAISS index, whatever the kind of the index.
    """

    number: int
    rows: int
    deleted: int = 0
    is_exact: bool = False

    @property
    def live(self) -> int:
        """The number of its texts that are not deleted."""
        return self.rows - self.deleted

    @property
    def sentences_file(self) -> str:
        return f"{self.number:06}.{SENTENCES}"

    @property
    def words_file(self) -> str:
        return f"{self.number:06}.words.npz"

    @property
    def vectors_file(self) -> str:
        return f"{self.number:06}.vectors.npy"

    @property
    def equal_file(self) -> str:
        return f"{self.number:06}.equal.npy"

    @property
    def deleted_file(self) -> str:
        """Names the rows of deleted texts by their number, which only rises."""
        return f"{self.number:06}.deleted-{self.deleted}.npy"

    def columns_file(self, columns: Sequence[Column]) -> str:
        return f"{self.number:06}.columns-{fingerprint({'columns': columns})[:SHOWN]}.arrow"

    def faiss_file(self, kind: str, hnsw: Hnsw) -> str:
        """Names the FAISS index by all that decides it; `ef_search` only decides how links are walked."""
        parameters = f"-{hnsw.links}-{hnsw.ef_construction}" if kind == "hnsw" else ""
        return f"{self.number:06}.{kind}{parameters}.faiss"


@dataclass(frozen=True)
class BuiltKind:
    """The parameters of a graph, none of codes, and `recall_at_10` against exact search, with its interval."""

    hnsw: dict[str, int]
    recall: Metrics


@dataclass(frozen=True)
class IndexManifest:
    """The content of `index.json`.

    blank: sentences that were left out.
    kind: `exact`, `hnsw`, `int8` or `binary`: the kind that was built last; of an open index that of its search.
    approximate: the kinds that exist beside exact search.
    columns: those of the corpus that are kept with each text, for hits and conditions.
    id_column: the column of the ids; None where texts have none.
    lexical: search by words is possible.
    sources: the names of the files of its texts, by their number; the first is the corpus.
    changes: the number of additions, deletions and compactions since it was built.
    files: the digest of each file but the manifest, by its name.
    """

    origin: Origin
    blank: int
    kind: SearchKind
    precision: str
    segments: list[Segment]
    approximate: dict[ApproximateKind, BuiltKind] = field(default_factory=dict)
    columns: list[Column] = field(default_factory=list)
    id_column: Column | None = None
    lexical: bool = False
    sources: list[str] = field(default_factory=list)
    changes: int = 0
    files: dict[str, FileDigest] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def sentences(self) -> int:
        """The number of texts, without deleted ones."""
        return sum(segment.live for segment in self.segments)

    @property
    def hnsw(self) -> dict[str, int]:
        """The parameters of the graph; empty where `kind` is none."""
        return self.approximate[self.kind].hnsw if self.kind in self.approximate else {}

    @property
    def recall(self) -> Metrics:
        """The recall of `kind`; empty where it is exact."""
        return self.approximate[self.kind].recall if self.kind in self.approximate else {}

    @property
    def words_files(self) -> list[str]:
        """The files of the words of its segments; none where search by words is not possible."""
        return [segment.words_file for segment in self.segments] if self.lexical else []

    def file_names(self) -> Iterator[str]:
        """Yields the names of all files but the manifest."""
        yield from self.words_files
        for segment in self.segments:
            yield segment.sentences_file
            yield segment.vectors_file
            if self.columns:
                yield segment.columns_file(self.columns)
            if segment.deleted:
                yield segment.deleted_file
            if self.approximate and not segment.is_exact:
                yield segment.equal_file
                for kind, built in self.approximate.items():
                    yield segment.faiss_file(kind, Hnsw(**built.hnsw))

    def as_kind(self, folder: Path, kind: IndexKind) -> "IndexManifest":
        """Gives the manifest of an index that is searched by `kind`. Raises RequestError where it is not built."""
        if kind not in ("auto", "exact", *self.approximate):
            kinds = ", ".join(["exact", *self.approximate])
            remedy = f"bertrelay index compact {folder} --kind {kind} builds it"
            remedy = remedy if self.changes else "give the corpus too, and it is built"
            raise RequestError(f"kind: expected {kind} in {folder}, found {kinds}; {remedy}")
        return self if kind == "auto" else replace(self, kind=kind)

    def lacks(self, options: IndexOptions) -> bool:
        """True where columns, words or a kind of `options` are to be built."""
        missing_words = options.lexical and not self.lexical
        return bool(missing_words or self.missing_columns(options) or self.missing_kind(options))

    def missing_columns(self, options: IndexOptions) -> list[Column]:
        return [column for column in options.show if column not in self.columns]

    def missing_kind(self, options: IndexOptions) -> ApproximateKind | None:
        """Gives the kind that is to be built, also for a graph with other parameters; None where it exists."""
        kind = self.kind if options.kind == "auto" else options.kind
        if kind == "exact":
            return None
        built = self.approximate.get(kind)
        is_other_graph = kind == "hnsw" and built and options.hnsw and options.hnsw.model_dump() != built.hnsw
        return kind if built is None or is_other_graph else None


def read_manifest(folder: Path) -> IndexManifest | None:
    """Reads the manifest; None where there is none. Raises RequestError when it is damaged, or of another format."""
    if not (folder / MANIFEST).is_file():
        return None
    content = read_json(folder / MANIFEST) or {}
    seal = content.pop("seal", None)
    if fingerprint(content) != seal:
        raise damaged(folder, f"{MANIFEST} is not as it was written")
    if content.get("format") != FORMAT:
        raise _unusable(folder, f"an index of format {FORMAT}, found format {content.get('format')} of another version")
    return TypeAdapter(IndexManifest).validate_python(content)


def write_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Writes the manifest, sealed by its own digest; with it the index is complete."""
    content = asdict(manifest)
    try:
        write_json(folder / MANIFEST, {**content, "seal": fingerprint(content)})
    except OSError as error:
        raise write_error(folder / MANIFEST, error) from error


def require_manifest(folder: Path) -> IndexManifest:
    """Reads the manifest. Raises RequestError where there is none, or as `read_manifest` does."""
    manifest = read_manifest(folder)
    if manifest is None and partial_folders(folder):
        raise RequestError(
            f"{folder}: this index is not finished. Resume it: bertrelay search MODEL CORPUS --index {folder}"
        )
    if manifest is None:
        raise RequestError(f"{folder}: expected an index, found none. Build one: bertrelay search MODEL CORPUS")
    return manifest


def check_files(folder: Path, manifest: IndexManifest, verify: bool = False) -> None:
    """Raises RequestError unless every file is as it was written; `verify` reads untouched ones too."""
    for name, digest in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise damaged(folder, f"{name} is missing")
        if (verify or file_stamp(path) != digest.stamp) and Digests().of_file(path) != digest.sha256:
            raise damaged(folder, f"{name} has other bytes than were written")


def damaged(folder: Path, defect: str) -> RequestError:
    return _unusable(folder, f"a complete index, found a damaged one: {defect}")


def _unusable(folder: Path, expected: str) -> RequestError:
    return RequestError(
        f"{folder}: expected {expected}. Build it anew: bertrelay search MODEL CORPUS --index {folder} --rebuild"
    )


def read_origin(
    model: str,
    encoder: SentenceEncoder,
    table: Table,
    prompt_name: str | None,
    earlier: Origin | None,
    id_column: Column | None = None,
) -> Origin:
    """Describes model and corpus; reads the corpus through for its digest, unless `earlier` has its stamp."""
    reading: dict[str, Any] = {"columns": text_column(table)}
    if id_column is not None:
        reading["id_column"] = id_column
    if prompt_name is not None:
        reading["prompt"] = prompt_name
    content, stamp = table.name, list[int]()
    if table.path is not None:
        reading["format"] = table.file_format
        if table.file_format in ("csv", "tsv"):
            reading["header"] = table.header
            reading |= {"quoted": True} if table.quoted else {}
        path = Path(table.path)
        note_input(path)
        try:
            stamp, now = file_stamp(path), time.time_ns()
            content = earlier.content if earlier and earlier.stamp == stamp else Digests().of_file(path)
        except OSError as error:
            raise RequestError(f"{table.name} cannot be read: {error.strerror}; give one that may be") from error
        if not shows_changes(stamp, now):
            stamp = []
    return Origin(model, encoder_digest(encoder), encoder.dim, table.name, content, reading, stamp)


def check_origin(folder: Path, manifest: IndexManifest, origin: Origin) -> None:
    """Raises RequestError, with the differences, when `origin` is not that of the index in `folder`."""
    built = manifest.origin
    check_model(folder, built, origin.model_digest, origin.dim)
    if manifest.changes:
        raise RequestError(
            f"{folder}: expected an index of {origin.corpus} and nothing else, found one that was changed since it was "
            "built. Search it as it is: leave CORPUS out and give --index alone; change it with bertrelay index add, "
            "delete or compact, or build it anew with --rebuild"
        )
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
    """Raises RequestError when a model is not that of the index in `folder`."""
    if built.model_digest != digest:
        raise RequestError(
            f"{folder}: expected the model this index was built with ({built.model or 'digest'}, "
            f"{built.model_digest[:SHOWN]}, {built.dim} dimensions), found another one ({digest[:SHOWN]}, {dim} "
            "dimensions), whose vectors cannot be compared. Give that model; or build another index with --index DIR, "
            "or this one anew with --rebuild"
        )


def check_is_index(folder: Path) -> None:
    """Raises RequestError where anything in `folder` is not of an index, for a rebuild deletes the folder."""
    check_name(folder, "--index")
    try:
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return
    except OSError as error:
        raise write_error(folder, error) from error
    foreign = [name for name in names if not OWN_FILES.fullmatch(name)]
    is_index = MANIFEST in names and any(name.endswith(SENTENCES) for name in names)  # others have an index.json too
    if foreign or (names and not is_index):
        raise RequestError(
            f"--index: expected an index and nothing else, an empty folder or none, found {folder} with "
            f"{(foreign or names)[0]} in it. Name another folder"
        )


def partial_folders(folder: Path) -> list[Path]:
    """Lists the folders of unfinished builds of the index in `folder`."""
    return list(folder.parent.glob(f"{escape(folder.name)}.partial-*"))


def replaced_folder(folder: Path) -> Path:
    """Names the folder of the index that a rebuilt one in `folder` replaces, until it is removed."""
    return folder.with_name(f"{folder.name}.partial-replaced")


def open_segment_vectors(folder: Path, manifest: IndexManifest) -> list[Vectors]:
    """Opens the vectors of each segment, memory-mapped; raises RequestError for those of another shape."""
    vectors = [open_vectors(folder / segment.vectors_file) for segment in manifest.segments]
    shapes = [part.shape for part in vectors]
    expected = [(segment.rows, manifest.origin.dim) for segment in manifest.segments]
    if shapes != expected:
        raise damaged(folder, f"its vectors have shapes {shapes} and not {expected}")
    return vectors


def open_structures(
    folder: Path, segments: Sequence[Segment], vectors: Sequence[Vectors], kind: ApproximateKind, hnsw: Hnsw
) -> list[Approximate]:
    """Opens the FAISS index of each segment over its vectors, where it has one."""
    return [
        Approximate(kind, None, part, None)
        if segment.is_exact
        else Approximate(
            kind,
            open_faiss(folder / segment.faiss_file(kind, hnsw), kind),
            part,
            open_equal(folder / segment.equal_file, segment.rows),
        )
        for segment, part in zip(segments, vectors, strict=True)
    ]


def live_rows(folder: Path, manifest: IndexManifest) -> Mask | None:
    """Reads which rows of all segments are not deleted, (rows,); None where none is."""
    if not any(segment.deleted for segment in manifest.segments):
        return None
    live = [np.ones(segment.rows, bool) for segment in manifest.segments]
    for segment, rows in zip(manifest.segments, live, strict=True):
        if segment.deleted:
            rows[np.load(folder / segment.deleted_file)] = False
    return np.concatenate(live)


def open_sentences(folder: Path, manifest: IndexManifest) -> pa.Table:
    """Opens text, line, record, source and id of the texts of all segments, memory-mapped."""
    return pa.concat_tables(open_arrow(folder / segment.sentences_file) for segment in manifest.segments)


def open_columns(folder: Path, manifest: IndexManifest) -> pa.Table:
    """Opens the columns of all segments, as JSON."""
    if not manifest.columns:
        return pa.table({})
    files = (segment.columns_file(manifest.columns) for segment in manifest.segments)
    return pa.concat_tables(open_arrow(folder / name) for name in files)
