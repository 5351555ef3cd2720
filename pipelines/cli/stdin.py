"""`-` for INPUT: standard input, copied to a file, for it is read more than once and by several processes."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bertrelay.errors import BertRelayError, RequestError
from bertrelay.files import write_error
from bertrelay.process_group import ProcessGroup
from bertrelay.progress import NAMES, log, renamed
from pipelines.run.errors import stopping_at_once

DASH = "-"
NAME = "standard input"
COPY = "BERTRELAY_STDIN"
"""Where the processes that share the work find the copy."""

READERS = (
    *(["encode"], ["ner", "tag"], ["qa", "answer"], ["similarity"], ["search"], ["mine"], ["mine-negatives"]),
    *(["index", "add"], ["rerank"], ["shrink"], ["terms"], ["readmission", "score"], ["outcome", "score"]),
)


def check_dashes(arguments: Sequence[str]) -> None:
    """Raises RequestError where `-` is given twice, or to a command that reads no standard input."""
    words = zip(["", *arguments], arguments, strict=False)
    dashes = sum(word == DASH and before != "--query" for before, word in words)
    if dashes and not any(list(arguments[: len(names)]) == names for names in READERS):
        commands = ", ".join(" ".join(names) for names in READERS)
        raise RequestError(f"{DASH}: expected a file; standard input is read by {commands}. Write it to a file first")
    if dashes > 1:
        raise RequestError(f"expected {NAME} ({DASH}) once, found it {dashes} times; write one of them to a file")


@contextmanager
def input_file(source: str, output: Path | str | None, suffix: str = "") -> Iterator[str]:
    """The name of the file to read for `source`: itself, or for `-` that of a private copy of standard input.

    The copy is beside `output`, or among temporary files, and is removed in the end. Errors call it by its name.
    suffix: of the copy, for a reader that knows formats by their suffixes.
    """
    if source != DASH:
        yield source
        return
    copy = os.environ.get(COPY)
    with ExitStack() as context:
        if copy is None:
            if ProcessGroup.from_environment().size > 1:
                raise RequestError(f"{DASH}: expected a file, for a launcher gives its processes no {NAME} to share")
            context.enter_context(stopping_at_once())
            folder = Path(output).absolute().parent if output else Path(tempfile.gettempdir())
            copy = os.environ[COPY] = _copy_into(folder, suffix, context)
            context.callback(os.environ.pop, COPY)
        NAMES[copy] = NAME
        context.callback(NAMES.pop, copy)
        try:
            yield copy
        except BertRelayError as error:
            error.args = (renamed(str(error)),)
            raise


def _copy_into(folder: Path, suffix: str, context: ExitStack) -> str:
    """Copies standard input to a file in a new folder in `folder`, which goes when `context` ends."""
    if sys.stdin is None:
        raise RequestError(f"{DASH}: expected {NAME}, found it closed; connect it to a file or a pipe")
    if sys.stdin.isatty():
        log(f"reading {NAME}; Ctrl-D ends it")
    try:
        private = context.enter_context(tempfile.TemporaryDirectory(prefix=".bertrelay-", dir=folder))
        with Path(private, f"stdin{suffix}").open("wb") as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
    except OSError as error:
        raise write_error(folder, error) from error
    return copy.name


def first_bytes(path: str) -> bytes:
    """The beginning of a file, unpacked where it is gzip, without white space before it."""
    from bertrelay.data.readers import open_input

    with open_input(path) as stream:
        return stream.read(1000).lstrip()
