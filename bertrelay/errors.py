"""The project's own errors. Each names what was expected, what was found and where, and what to do."""

import traceback
from collections.abc import Sequence
from numbers import Integral, Real

LONGEST_WORD = 60
PACKAGES = {"bertrelay", "teachers", "students", "domain", "pipelines"}
OF_THE_MACHINE = {"OutOfMemoryError", "AcceleratorError"}


class BertRelayError(Exception):
    """Base of every error the project raises on purpose; `exit_code` is what the command line ends with."""

    exit_code = 1


class RequestError(BertRelayError, ValueError):
    """The request was wrong: a setting, a recipe, or an input file that cannot be what it should be.

    A ValueError too, which libraries of this kind raise: what catches those of others passes it on.
    """

    exit_code = 2


class WorkError(BertRelayError):
    """The request was right and the work failed: a full disk, a non-finite loss, too many rejects."""


class Stopped(BertRelayError):
    """A signal stopped the work; what was done is saved and can be resumed."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number


def plural(count: float, one: str, many: str) -> str:
    """`one` or `many`, as it is right after a `count`."""
    return one if count == 1 else many


def check_choice(name: str, found: object, choices: Sequence[str]) -> None:
    """Raises RequestError unless what was `found` under this name is one of `choices`."""
    if not isinstance(found, str) or found not in choices:
        raise RequestError(f"{name}: expected {', '.join(choices[:-1])} or {choices[-1]}, found {shown(found)}")


def check_dimensions(dimensions: Sequence[int], dim: int) -> None:
    """Raises RequestError for vectors to be cut to more dimensions than the `dim` they have."""
    if dimensions and max(dimensions) > dim:
        raise RequestError(f"dimensions: expected at most the {dim} of the model's vectors, found {max(dimensions)}")


def check_count(name: str, found: int | None) -> None:
    """Raises RequestError for a count of less than one; None is one that was not given."""
    if found is not None and (not isinstance(found, Integral) or found < 1):
        raise RequestError(f"{name}: expected 1 or more, found {shown(found)}")


def shown(found: object) -> str:
    """A value for an error: a number, a short word, or its type alone, for it may be text given in the wrong place."""
    is_word = isinstance(found, str) and len(found) <= LONGEST_WORD and not any(map(str.isspace, found))
    return repr(found) if found is None or is_word or isinstance(found, Real) else type(found).__name__


def place_of(error: BaseException) -> str:
    """What kind of unforeseen error it is, and where in the project it arose."""
    frames = list(traceback.walk_tb(error.__traceback__))
    ours = [each for each in frames if _is_ours(str(each[0].f_globals.get("__name__")))]
    frame, line = (ours or frames)[-1]
    return f"an unforeseen {type(error).__name__} in {frame.f_code.co_filename}, line {line}"


def _is_ours(module: str) -> bool:
    """Whether a frame of `module` is of the project, but for bertrelay.privacy, which every error passes through."""
    return module.partition(".")[0] in PACKAGES and module != "bertrelay.privacy"


def is_of_the_machine(error: BaseException) -> bool:
    """Whether an error is about files, memory or installed packages, so that its message quotes no record."""
    has_number = isinstance(error, OSError) and error.errno is not None  # Arrow raises OSError without one
    return has_number or isinstance(error, MemoryError | ImportError) or type(error).__name__ in OF_THE_MACHINE
