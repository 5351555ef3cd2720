"""The command line, `bertrelay`. A command's own module loads what it needs when it is called, so help is quick."""

import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

from bertrelay.errors import BertRelayError, RequestError, describe_unforeseen, is_machine_error
from bertrelay.inputs import unchanged_inputs
from bertrelay.privacy import sensitive_data
from bertrelay.progress import printable

INTERRUPTED = 130
DEBUG, SENSITIVE, GROUP_READ = ANYWHERE = ("--debug", "--sensitive", "--group-read")
ALWAYS_SENSITIVE = (("readmission",), ("outcome",), ("data", "audit"))
"""Commands that read about patients, whatever else is said."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and ends the process: 0 done, 1 the work failed, 2 a wrong request, 129, 130 or 143 stopped."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as it is with sys.stderr
    requested = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in requested if word not in ANYWHERE]
    code = _exit_code(words, DEBUG in requested, SENSITIVE in requested, GROUP_READ in requested)
    if code and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # in an orderly end torch's threads might abort the process, and hide `code`
    sys.exit(code)


def _exit_code(arguments: list[str], debug: bool, sensitive: bool = False, group_read: bool = False) -> int:
    sensitive = sensitive or any(arguments[: len(words)] == list(words) for words in ALWAYS_SENSITIVE)
    try:
        from pipelines.cli.app import app  # here, so that Ctrl-C while all this loads is no error either
        from pipelines.cli.stdin import check_dashes
        from pipelines.run.errors import disk_explained
        from pipelines.run.launch import end_with_launcher

        end_with_launcher()
        check_dashes(arguments)
        if "--runs=" in arguments or ("--runs", "") in pairwise(arguments):
            raise RequestError("--runs: expected a folder, found an empty text")
        if group_read and not sensitive:
            raise RequestError(
                f"{GROUP_READ}: without effect without {SENSITIVE}; give both. In a recipe, group_read = true"
            )
        protected = sensitive_data(group_read) if sensitive else nullcontext()
        with unchanged_inputs(), protected, disk_explained(Path("the output"), "another output"):
            app(args=arguments, prog_name="bertrelay")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BertRelayError as error:
        _show(error, str(error), error.exit_code, debug)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` say, has seen enough; Python would complain once more while it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        # The error's words may hold text of a record, so only the machine's are shown.
        words = f": {error}" if is_machine_error(error) else ""
        message = (
            f"{describe_unforeseen(error)}{words}\nWhat was done is kept. With {DEBUG} the same command shows the "
            "traceback, which may hold text of your data."
        )
        _show(error, message, 1, debug)
        return 1
    return 0


def _show(error: Exception, message: str, code: int, debug: bool) -> None:
    """Prints an error; of several processes that our launcher started, it shows one. Being stopped concerns all."""
    from pipelines.run.launch import leave_error

    if debug:
        message = "".join(traceback.format_exception(error))
    rank = int(os.environ.get("RANK", "0"))
    if not leave_error(message, code) and (rank == 0 or code <= 128):
        print(printable(f"process {rank}: {message}" if rank else message), file=sys.stderr)
