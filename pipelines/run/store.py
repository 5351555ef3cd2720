"""The folders of stages: reading, building and completing them.

runs/<recipe>/<stage>/<fingerprint, 12 hex>/            complete: done.json was written last, then the folder renamed
runs/<recipe>/<stage>/<fingerprint, 12 hex>.partial/    unfinished: running now, or stopped
runs/<recipe>/<stage>/latest                            link to the result that the last run finished or skipped
"""

import json
import math
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bertrelay.errors import RequestError
from bertrelay.files import read_json, remove_unfinished, sync, write_json
from bertrelay.fingerprint import Digests, Parts
from bertrelay.stage import PRECISION, WORK, Metrics

FINGERPRINT, DONE, METRICS = "fingerprint.json", "done.json", "metrics.json"
RUN, REPORT = "run.json", "report.html"
ATTEMPT, HOLDER = f"{WORK}/attempt.json", ".holder.json"
DIGITS = 12
PARTIAL, DISCARDED = ".partial", ".discarded"
LIBRARIES = (
    *("bertrelay", "torch", "transformers", "tokenizers", "sentencepiece", "accelerate", "datasets", "safetensors"),
    *("numpy", "faiss-cpu"),
)


@dataclass(frozen=True)
class Done:
    """The facts of a complete folder in `done.json`.

    seconds: of all attempts, stopped and killed ones too. reasons: why it was made rather than an earlier one used.
    precision: in which it was computed, `auto` resolved; None for a stage without that setting.
    """

    parts: Parts
    metrics: Metrics
    outputs: dict[str, dict[str, Any]]
    libraries: dict[str, str]
    started: str
    finished: str
    seconds: float
    reasons: Sequence[str] = ()
    precision: str | None = None


def partial_of(folder: Path) -> Path:
    """The folder beside it in which it is built."""
    return folder.with_name(folder.name + PARTIAL)


def latest_name(seed: int | None) -> str:
    """The name of the link to the last result; a repeated stage has one for each seed."""
    return "latest" if seed is None else f"latest-seed-{seed}"


def read_done(folder: Path) -> Done | None:
    """The content of `done.json`, or None if there is none that can be read."""
    facts = read_json(folder / DONE)
    try:
        return Done(**{name: facts[name] for name in Done.__dataclass_fields__ if name in facts}) if facts else None
    except TypeError:
        return None


def damage(folder: Path, digests: Digests) -> str | None:
    """The reason why a finished folder is not as its stage left it, or None."""
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


def other_libraries(folder: Path) -> list[str]:
    """`made with torch 1.13.0` for a result of other major versions, which stays valid."""
    done, now = read_done(folder), _libraries()
    made_with = done.libraries if done else {}
    others = [name for name, old in made_with.items() if name in now and _major(old) != _major(now[name])]
    return [f"made with {', '.join(f'{name} {made_with[name]}' for name in others)}"] if others else []


def _major(version: str) -> str:
    return version.partition(".")[0]


@cache
def _libraries() -> dict[str, str]:
    """The installed versions of Python and of LIBRARIES."""
    libraries = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            libraries[name] = version(name)
    return libraries


def has_work(partial: Path) -> bool:
    """True if a stopped stage has left something in the partial folder to resume from."""
    ours = {partial / FINGERPRINT, partial / ATTEMPT, partial / PRECISION}
    return any(path.is_file() and path not in ours for path in partial.rglob("*"))


def unfinished(stage_folder: Path) -> dict[Path, int]:
    """The partial folders of a stage that have work in them, and their sizes in bytes."""
    partials = [path for path in sorted(stage_folder.glob(f"*{PARTIAL}")) if has_work(path)]
    return {partial: sum(path.stat().st_size for path in partial.rglob("*") if path.is_file()) for partial in partials}


def previous_parts(stage_folder: Path, seed: int | None) -> Parts | None:
    """The fingerprint parts of the last result, or else of the newest unfinished folder."""
    last = parts_in(stage_folder / latest_name(seed))
    if last is not None or seed is not None or not stage_folder.is_dir():
        return last
    started = [path for path in stage_folder.iterdir() if path.is_dir() and not path.is_symlink()]
    newest = sorted(started, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return next((parts for path in newest if (parts := parts_in(path)) is not None), None)


def parts_in(folder: Path) -> Parts | None:
    """The fingerprint parts of a result or a partial folder; None if there is neither."""
    done = read_done(folder)
    return done.parts if done else read_json(folder / FINGERPRINT)


def begin(folder: Path, parts: Parts, reasons: Sequence[str] = ()) -> Path:
    """Makes or reopens the partial folder, and notes the time of this attempt and the reasons for the first.

    The time of an attempt that was killed counts until the last file it wrote.
    """
    partial = partial_of(folder)
    (partial / WORK).mkdir(parents=True, exist_ok=True)
    remove_unfinished(partial)
    if not has_work(partial):
        (partial / PRECISION).unlink(missing_ok=True)  # nothing was computed in it
    now = datetime.now(UTC)
    first: dict[str, Any] = {"first": now.isoformat(timespec="seconds"), "seconds_before": 0.0, "reasons": reasons}
    attempt = read_json(partial / ATTEMPT) or first
    if "began" in attempt:
        last_write = max(path.stat().st_mtime for path in partial.rglob("*"))
        attempt["seconds_before"] += max(0.0, last_write - attempt["began"])
    write_json(partial / FINGERPRINT, parts)
    write_json(partial / ATTEMPT, {**attempt, "began": now.timestamp()})
    return partial


def finish(folder: Path, parts: Parts, metrics: Metrics, digests: Digests) -> None:
    """Completes the partial folder, `done.json` last, and renames it."""
    partial = partial_of(folder)
    plain = {name: _finite(value) for name, value in metrics.items()}
    write_json(partial / METRICS, plain)
    finished, attempt = datetime.now(UTC), json.loads((partial / ATTEMPT).read_text())
    outputs = {
        path.relative_to(partial).as_posix(): {"size": path.stat().st_size, "sha256": digests.of_file(path)}
        for path in sorted(partial.rglob("*"))
        if path.is_file() and path != partial / DONE and not path.is_relative_to(partial / WORK)
    }
    seconds = round(attempt["seconds_before"] + finished.timestamp() - attempt["began"], 3)
    times = attempt["first"], finished.isoformat(timespec="seconds")
    why, precision = attempt.get("reasons", ()), (read_json(partial / PRECISION) or {}).get("precision")
    write_json(partial / DONE, asdict(Done(parts, plain, outputs, _libraries(), *times, seconds, why, precision)))
    _rename_complete(folder, digests)


def _finite(value: float | None) -> float | None:
    """A metric as a number of JSON; null if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(value)


def settle(run_folder: Path, digests: Digests) -> None:
    """Completes what a killed run left: renames partial folders that have their `done.json`, removes discarded ones.

    Raises RequestError if folders have the names of the links to the latest results.
    """
    copied = [path for path in sorted(run_folder.glob("*/latest*")) if path.is_dir() and not path.is_symlink()]
    if copied:
        raise RequestError(
            f"expected a link to a result beside it, found a folder, as copying without links makes one: "
            f"{', '.join(map(str, copied))}. Remove {'it' if len(copied) == 1 else 'them'} and run again"
        )
    for doomed in run_folder.glob(f"*/*{DISCARDED}"):
        shutil.rmtree(doomed)
    for done in run_folder.glob(f"*/*{PARTIAL}/{DONE}"):
        folder = done.parent.with_suffix("")
        if not folder.exists():
            _rename_complete(folder, digests)


def _rename_complete(folder: Path, digests: Digests) -> None:
    partial = partial_of(folder)
    shutil.rmtree(partial / WORK, ignore_errors=True)
    partial.rename(folder)
    sync(folder.parent)
    digests.moved(partial, folder)


def unlink_other_seeds(stage_folder: Path, seeds: Sequence[int]) -> None:
    """Removes the links of seeds that the recipe no longer has; their results stay."""
    names = {latest_name(seed) for seed in seeds}
    for link in stage_folder.glob("latest-seed-*"):
        if link.name not in names:
            link.unlink()


def link_latest(folder: Path, name: str) -> None:
    """Makes the link `name` beside `folder` point to it, atomically."""
    link = folder.parent / name
    if link.is_symlink() and link.readlink() == Path(folder.name):
        return
    building = folder.parent / f".{name}.{os.getpid()}"
    building.unlink(missing_ok=True)
    building.symlink_to(folder.name, target_is_directory=True)
    building.replace(link)


def discard(folder: Path) -> None:
    """Removes a result, finished or not, after renaming it, so that half of it is never taken for a complete one."""
    for path in (folder, partial_of(folder)):
        if path.exists():
            doomed = folder.with_name(folder.name + DISCARDED)
            shutil.rmtree(doomed, ignore_errors=True)
            path.rename(doomed)
            shutil.rmtree(doomed)


@contextmanager
def run_lock(run_folder: Path) -> Iterator[None]:
    """Locks `run_folder`; the system releases the lock even when the process is killed.

    Raises RequestError with the process that has locked it, when another one has.
    """
    run_folder.mkdir(parents=True, exist_ok=True)
    lock, note = FileLock(run_folder / ".lock"), run_folder / HOLDER
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        holder = read_json(note)
        since = f"process {holder.get('pid')} on {holder.get('host')}, since {holder.get('since')}," if holder else ""
        raise RequestError(
            f"{run_folder}: {since or 'another process'} is at work here. Wait for it, stop it, or give this run "
            "another folder with --runs DIR"
        ) from error
    try:
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        write_json(note, {"pid": os.getpid(), "host": platform.node(), "since": since})
        yield
    finally:
        with suppress(OSError):
            note.unlink(missing_ok=True)
        lock.release()
