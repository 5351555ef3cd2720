"""Processes that cost no import: forks of one that has loaded torch, the networks and the training loop."""

import multiprocessing
import os
import signal
import subprocess
import sys
from importlib import import_module
from multiprocessing.connection import wait
from types import SimpleNamespace

from pipelines.cli import main
from pipelines.run import launch

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["bertrelay.training.loop", "bertrelay.encode_files", "pipelines.cli.app", "torch._dynamo"]
)


def finish(started, seconds=120.0):
    """The exit codes. When one is killed the others are too, as a launcher does it; none outlives the call."""
    try:
        waiting = {process.sentinel: process for process in started}
        while waiting:
            ended = wait(list(waiting), timeout=seconds)
            assert ended, "a process did not end"
            for sentinel in ended:
                process = waiting.pop(sentinel)
                process.join()
                if process.exitcode < 0:
                    kill(started)
        return [process.exitcode for process in started]
    finally:
        kill(started)


def kill(started):
    for process in started:
        process.kill()
        process.join()


def run_command(words, folder, printed, constants):
    """`bertrelay` with these words, here: what it prints is in the files `printed`; constants: has these values.

    The processes of `--processes` are forks of this one, as it is now.
    """
    os.environ["ACCELERATE_USE_CPU"] = "true"
    os.chdir(folder)
    for descriptor, path in enumerate(printed, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        setattr(import_module(module), constant, value)
    sys.argv[1:] = words
    launch.subprocess = SimpleNamespace(Popen=fork_again, TimeoutExpired=subprocess.TimeoutExpired)
    main()


def fork_again(command, env, **how):
    """As `Popen`, though nothing is loaded: the child continues in `main`."""

    def work():
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # Popen waits for the end of one
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)  # not what the parent does
        os.environ.update(env)
        try:
            main()
        except SystemExit as ended:
            sys.stdout.flush()
            os._exit(ended.code)

    return subprocess.Popen(command, env=env, preexec_fn=work, **how)
