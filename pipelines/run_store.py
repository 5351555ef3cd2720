"""The run store: the folders of stages, whether they are complete, and how they are written.

runs/<recipe>/<stage>/<fingerprint, 12 hex>/            whole: done.json was written last, then the folder renamed
runs/<recipe>/<stage>/<fingerprint, 12 hex>.partial/    being built, or stopped on the way
runs/<recipe>/<stage>/latest                            the one that the last run finished or skipped
"""

import json
import math
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bertrelay.errors import RequestError
from bertrelay.files import read_json, sync_folder, write_json
from bertrelay.fingerprint import Digests, Parts
from bertrelay.stage import WORK, Metrics

FINGERPRINT, DONE, METRICS = "fingerprint.json", "done.json", "metrics.json"
ATTEMPT = f"{WORK}/attempt.json"
DIGITS = 12
PARTIAL, DISCARDED = ".partial", ".discarded"
LIBRARIES = (
    "bertrelay",
    "torch",
    "transformers",
    "tokenizers",
    "sentencepiece",
    "accelerate",
    "datasets",
    "safetensors",
    "numpy",
    "faiss-cpu",
)


@dataclass(frozen=True)
class Done:
    """What `done.json` says of a complete folder.

    seconds: of all attempts together, those that were stopped or killed among them.
    """

    parts: Parts
    metrics: Metrics
    seconds: float
    finished: str
    outputs: dict[str, dict[str, Any]]


def partial_of(folder: Path) -> Path:
    """Where the folder is built."""
    return folder.with_name(folder.name + PARTIAL)


def _whole_of(partial: Path) -> Path:
    return partial.with_name(partial.name.removesuffix(PARTIAL))


def latest_name(seed: int | None) -> str:
    """The name of the link to the last result; a repeated stage has one for each seed."""
    return "latest" if seed is None else f"latest-seed-{seed}"


def read_done(folder: Path) -> Done | None:
    """The content of `done.json`, or None where there is none that can be read."""
    found = read_json(folder / DONE)
    try:
        return Done(**{name: found[name] for name in Done.__dataclass_fields__}) if found else None
    except KeyError:
        return None


def damage(folder: Path, digests: Digests) -> str | None:
    """What is wrong with a folder that should be whole, or None."""
    done = read_done(folder)
    if done is None:
        return f"{DONE} cannot be read"
    for name, written in done.outputs.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != written["size"] or digests.of_file(path) != written["sha256"]:
            return f"{name} was changed after it was written"
    return None


def has_work(folder: Path) -> bool:
    """Whether a stage stopped on the way to `folder` and left something to resume from."""
    partial = partial_of(folder)
    ours = {partial / FINGERPRINT, partial / ATTEMPT}
    return any(path.is_file() and path not in ours for path in partial.rglob("*"))


def unfinished(stage_folder: Path) -> list[Path]:
    """The partial folders of a stage that hold some work."""
    return [partial for partial in sorted(stage_folder.glob(f"*{PARTIAL}")) if has_work(_whole_of(partial))]


def size_of(folder: Path) -> int:
    """The bytes of all files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def previous_parts(stage_folder: Path, seed: int | None) -> Parts | None:
    """The fingerprint parts of the last result; without one, of the newest unfinished folder."""
    last = _parts_in(stage_folder / latest_name(seed))
    if last is not None or seed is not None or not stage_folder.is_dir():
        return last
    started = [path for path in stage_folder.iterdir() if path.is_dir() and not path.is_symlink()]
    newest = sorted(started, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return next((parts for path in newest if (parts := _parts_in(path)) is not None), None)


def parts_of_result(stage_folder: Path, fingerprint: str) -> Parts | None:
    """The fingerprint parts of the result with that fingerprint, if it still stands."""
    return _parts_in(stage_folder / fingerprint[:DIGITS])


def _parts_in(folder: Path) -> Parts | None:
    done = read_done(folder)
    return done.parts if done else read_json(folder / FINGERPRINT)


def begin(folder: Path, parts: Parts) -> Path:
    """Makes or reopens the place where `folder` is built, and notes when."""
    partial = partial_of(folder)
    (partial / WORK).mkdir(parents=True, exist_ok=True)
    now, before = datetime.now(UTC), read_json(partial / ATTEMPT)
    attempt = {
        "first": before["first"] if before else now.isoformat(timespec="seconds"),
        "began": now.timestamp(),
        "seconds_before": _seconds_so_far(before, partial) if before else 0.0,
    }
    write_json(partial / FINGERPRINT, parts)
    write_json(partial / ATTEMPT, attempt)
    return partial


def _seconds_so_far(attempt: Mapping[str, Any], partial: Path) -> float:
    """How long the attempts took. A killed one could not say when it ended: it did with the last file it wrote."""
    last_sign = max(path.stat().st_mtime for path in partial.rglob("*"))
    return float(attempt["seconds_before"] + max(0.0, last_sign - attempt["began"]))


def finish(folder: Path, parts: Parts, metrics: Metrics, digests: Digests) -> None:
    """Says that the partial folder is whole, `done.json` last, and gives it its name."""
    partial = partial_of(folder)
    plain = {name: _figure(value) for name, value in metrics.items()}
    write_json(partial / METRICS, plain)
    finished, attempt = datetime.now(UTC), json.loads((partial / ATTEMPT).read_text())
    facts = {
        "parts": parts,
        "metrics": plain,
        "outputs": dict(_outputs(partial, digests)),
        "libraries": _versions(),
        "started": attempt["first"],
        "finished": finished.isoformat(timespec="seconds"),
        "seconds": round(attempt["seconds_before"] + finished.timestamp() - attempt["began"], 3),
    }
    write_json(partial / DONE, facts)
    _rename_whole(folder, digests)


def settle(run_folder: Path, digests: Digests) -> None:
    """Names what was killed between its last word and the renaming."""
    for done in run_folder.glob(f"*/*{PARTIAL}/{DONE}"):
        folder = _whole_of(done.parent)
        if not folder.exists():
            _rename_whole(folder, digests)


def _rename_whole(folder: Path, digests: Digests) -> None:
    partial = partial_of(folder)
    shutil.rmtree(partial / WORK, ignore_errors=True)
    partial.rename(folder)
    sync_folder(folder.parent)
    digests.moved(partial, folder)


def unlink_other_seeds(stage_folder: Path, seeds: Sequence[int]) -> None:
    """Removes the links of seeds that the recipe no longer has; their results stay."""
    names = {latest_name(seed) for seed in seeds}
    for link in stage_folder.glob("latest-seed-*"):
        if link.name not in names:
            link.unlink()


def link_latest(folder: Path, name: str) -> None:
    """Lets the link `name` beside `folder` point to it, in one step."""
    link = folder.parent / name
    if link.is_symlink() and link.readlink() == Path(folder.name):
        return
    building = folder.parent / f".{name}.{os.getpid()}"
    building.unlink(missing_ok=True)
    building.symlink_to(folder.name, target_is_directory=True)
    building.replace(link)


def discard(folder: Path) -> None:
    """Removes a result, finished or not; half removed it has another name, so it is never taken for complete."""
    for path in (folder, partial_of(folder)):
        if path.exists():
            doomed = folder.with_name(folder.name + DISCARDED)
            shutil.rmtree(doomed, ignore_errors=True)
            path.rename(doomed)
            shutil.rmtree(doomed)


def _outputs(folder: Path, digests: Digests) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / DONE and not path.is_relative_to(folder / WORK):
            yield (
                path.relative_to(folder).as_posix(),
                {"size": path.stat().st_size, "sha256": digests.of_file(path)},
            )


def _figure(value: float | None) -> float | None:
    """A figure as JSON holds it; what is not a number was not measured."""
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(value)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


HOLDER = ".holder.json"


@contextmanager
def run_lock(run_folder: Path) -> Iterator[None]:
    """Holds `run_folder`; the system lets go of it even when the process is killed.

    Raises RequestError, saying who holds it, when another process does.
    """
    run_folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(run_folder / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise RequestError(
            f"{run_folder}: {_holder(run_folder)} is at work here. Wait for it, stop it, "
            "or give this run another folder with --runs DIR"
        ) from error
    try:
        write_json(
            run_folder / HOLDER,
            {
                "pid": os.getpid(),
                "host": platform.node(),
                "since": datetime.now().astimezone().isoformat(" ", "seconds"),
            },
        )
        yield
    finally:
        with suppress(OSError):
            (run_folder / HOLDER).unlink(missing_ok=True)
        lock.release()


def _holder(run_folder: Path) -> str:
    note = read_json(run_folder / HOLDER)
    if note is None:
        return "another process"
    return f"process {note.get('pid')} on {note.get('host')}, since {note.get('since')},"
