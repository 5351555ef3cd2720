"""The files of an index: what it was built from, and whether it is complete.

sentences.arrow   columns text and line: what a hit shows
vectors.npy       row i for sentence i, at length one
hnsw.faiss        an approximate index: a FAISS index of its own, vectors included
index.json        written last
building.json     what is being built, until index.json is there
"""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from bertrelay.data.records import Table
from bertrelay.data.sentences import text_column
from bertrelay.errors import RequestError
from bertrelay.files import read_json, write_error, write_json
from bertrelay.fingerprint import CLOCK_GRAIN_NS, Digests, fingerprint
from bertrelay.stage import Metrics

SENTENCES, VECTORS, GRAPH = "sentences.arrow", "vectors.npy", "hnsw.faiss"
FACTS, BUILDING = "index.json", "building.json"
FORMAT = 1
SHOWN = 12
RECALL = "recall_at_10"


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
class BuildState:
    """The content of `building.json`; the counts are there when `sentences.arrow` is.

    rebuild: the earlier index is to be deleted, and is when the counts are there.
    """

    origin: Origin
    sentences: int | None = None
    blank: int | None = None
    rebuild: bool = False


@dataclass(frozen=True)
class FileSeal:
    """The sha256 of a file, and the stamp by which an untouched one is known without reading it."""

    sha256: str
    stamp: list[int]

    @classmethod
    def of(cls, path: Path) -> "FileSeal":
        return cls(Digests().of_file(path), _stamp(path))


@dataclass(frozen=True)
class IndexManifest:
    """The content of `index.json`.

    sentences: of the index; `blank` ones of the corpus were left out.
    kind: `exact` or `hnsw`.
    hnsw: the parameters of the graph; empty for an exact index.
    recall: `recall_at_10` of the graph against exact search, with its interval; empty for an exact index too.
    """

    origin: Origin
    sentences: int
    blank: int
    kind: str
    precision: str
    files: dict[str, FileSeal]
    hnsw: dict[str, int] = field(default_factory=dict)
    recall: Metrics = field(default_factory=dict)
    format: int = FORMAT


def origin_of(
    model: str, model_digest: str, dim: int, table: Table, prompt_name: str | None, known: Origin | None = None
) -> Origin:
    """The origin of an index of `table`; the whole file is read for its digest, unless `known` has its stamp."""
    reading: dict[str, Any] = {"columns": text_column(table)}
    if prompt_name is not None:
        reading["prompt"] = prompt_name
    if table.path is None:
        return Origin(model, model_digest, dim, table.name, table.name, reading)
    reading["format"] = table.file_format
    if table.file_format in ("csv", "tsv"):
        reading["header"] = table.header
    path = Path(table.path)
    try:
        stamp, now = _stamp(path), time.time_ns()
        content = known.content if known and known.stamp == stamp else Digests().of_file(path)
    except OSError as error:
        raise RequestError(f"{table.name} cannot be read: {error.strerror}. Give a file that may be read") from error
    # Changed again within the clock's grain, a file could keep its stamp: such a fresh one is not kept.
    is_settled = now - max(stamp[1], stamp[2]) > CLOCK_GRAIN_NS
    return Origin(model, model_digest, dim, table.name, content, reading, stamp if is_settled else [])


def check_model(folder: Path, built: Origin, digest: str, dim: int) -> None:
    """Raises RequestError unless `digest` and `dim` are those of the model that `folder` was built with."""
    if built.model_digest != digest:
        raise RequestError(
            f"{folder}: expected the model this index was built with ({built.model or 'digest'}, "
            f"{built.model_digest[:SHOWN]}, {built.dim} dimensions), found another one ({digest[:SHOWN]}, {dim} "
            "dimensions), whose vectors cannot be compared. Give that model; or build another index with --index DIR, "
            "or this one anew with --rebuild"
        )


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


def write_manifest(folder: Path, facts: IndexManifest) -> None:
    """Marks the index as complete."""
    content = asdict(facts)
    _write(folder / FACTS, {**content, "seal": fingerprint(content)})


def write_build_state(folder: Path, state: BuildState) -> None:
    """Writes what is being built."""
    _write(folder / BUILDING, asdict(state))


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        write_json(path, content)
    except OSError as error:
        raise write_error(path, error) from error


def read_build_state(folder: Path) -> BuildState | None:
    """What is being built in `folder`, or None."""
    try:
        return TypeAdapter(BuildState).validate_python(read_json(folder / BUILDING), strict=False)
    except ValidationError:
        return None


def read_manifest(folder: Path) -> IndexManifest | None:
    """The content of `index.json`, or None where there is none. Raises RequestError when it is damaged."""
    if not (folder / FACTS).is_file():
        return None
    found = read_json(folder / FACTS) or {}
    seal = found.pop("seal", None)
    if fingerprint(found) != seal:
        raise damaged(folder, f"{FACTS} is not as it was written")
    if found.get("format") != FORMAT:
        raise damaged(folder, f"{FACTS} has format {found.get('format')}, and this version reads {FORMAT}")
    try:
        return TypeAdapter(IndexManifest).validate_python(found)
    except ValidationError as error:
        raise damaged(folder, f"{FACTS} has {error.error_count()} values of other types") from None


def check_files(folder: Path, facts: IndexManifest, verify: bool = False) -> None:
    """Raises RequestError unless every file is as it was written; `verify` reads untouched ones too."""
    for name, seal in facts.files.items():
        path = folder / name
        if not path.is_file():
            raise damaged(folder, f"{name} is missing")
        if (verify or _stamp(path) != seal.stamp) and Digests().of_file(path) != seal.sha256:
            raise damaged(folder, f"{name} has other bytes than were written")


def damaged(folder: Path, how: str) -> RequestError:
    """What to raise for an index that cannot be believed."""
    return RequestError(
        f"{folder}: expected a whole index, found a damaged one: {how}. Build it anew: "
        f"bertrelay search MODEL CORPUS --index {folder} --rebuild"
    )


def _stamp(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
