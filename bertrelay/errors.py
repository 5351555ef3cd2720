"""The project's own errors. Each names what was expected, what was found and where, and what to do."""

import traceback
from numbers import Real

LONGEST_WORD = 60
PACKAGES = {"bertrelay", "teachers", "students", "domain", "pipelines"}
MACHINE_ERRORS = {"OutOfMemoryError", "AcceleratorError"}


class BertRelayError(Exception):
    """Base of every error the project raises on purpose; `exit_code` is the exit status of the command line."""

    exit_code = 1


class RequestError(BertRelayError, ValueError):
    """The request was wrong: a setting, recipe or input file is invalid.

    A ValueError too, as similar libraries raise: code that catches theirs catches this one.
    """

    exit_code = 2


class WorkError(BertRelayError):
    """The request was right and the work failed: a full disk, a non-finite loss, too many rejects."""


class Stopped(BertRelayError):
    """A signal stopped the work; the results so far are saved and can be resumed."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number


def plural(count: float, one: str, many: str) -> str:
    """`one` or `many`, whichever is right after `count`."""
    return one if count == 1 else many


def describe(value: object) -> str:
    """A value for an error: a number or a short word, else only its type, as it may be text passed by mistake."""
    is_word = isinstance(value, str) and len(value) <= LONGEST_WORD and not any(map(str.isspace, value))
    return repr(value) if value is None or is_word or isinstance(value, Real) else type(value).__name__


def describe_unforeseen(error: BaseException) -> str:
    """The type of an unforeseen error, and the line of the project that raised it."""
    frames = list(traceback.walk_tb(error.__traceback__))
    project_frames = [frame for frame in frames if _is_project_module(str(frame[0].f_globals.get("__name__")))]
    frame, line = (project_frames or frames)[-1]
    return f"an unforeseen {type(error).__name__} in {frame.f_code.co_filename}, line {line}"


def _is_project_module(module: str) -> bool:
    """True for modules of the project except bertrelay.privacy, which every error passes through."""
    return module.partition(".")[0] in PACKAGES and module != "bertrelay.privacy"


def is_machine_error(error: BaseException) -> bool:
    """True if an error is about files, memory or installed packages, so that its message quotes no record."""
    has_number = isinstance(error, OSError) and error.errno is not None  # Arrow raises OSError without one
    return has_number or isinstance(error, MemoryError | ImportError) or type(error).__name__ in MACHINE_ERRORS
