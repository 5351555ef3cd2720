"""Processes that cost no import: forks of one that has loaded torch, the networks and the training loop."""

import multiprocessing
import os
from multiprocessing.connection import wait

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


def run_command(words, folder, environment, printed, constants):
    """`bertrelay` with these words, here: what it prints is in the files `printed`; constants: has these values."""
    from importlib import import_module

    from pipelines.cli import main

    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, path in enumerate(printed, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        setattr(import_module(module), constant, value)
    main(words)
