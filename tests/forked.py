"""Processes that cost no import: forks of one that has loaded torch, the networks and the training loop."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from importlib import import_module
from multiprocessing.connection import wait

from pipelines.cli import main

ELASTIC = "torch.distributed.elastic"
"""The package of torchrun's launcher."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["bertrelay.training.loop", "bertrelay.encode_files", "pipelines.cli.app", "torch._dynamo"]
)


def rank_environments(processes):
    """The environment of each of `processes` on the CPU, as torchrun sets it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    sizes = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "ACCELERATE_USE_CPU": "true"}
    return [{**os.environ, **address, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


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
    if "--processes" in words:
        handler = import_module(f"{ELASTIC}.multiprocessing.subprocess_handler.subprocess_handler")
        handler.Popen = fork_again
    main()


def fork_again(args, env, **options):
    """As `Popen`, though nothing is loaded: the child continues in `main`."""

    def work():
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # Popen waits for the end of one
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)  # not what the parent does
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(env)
        try:
            main()
        except SystemExit as ended:
            sys.stdout.flush()
            os._exit(ended.code)

    return subprocess.Popen(args, env=env, preexec_fn=work, **options)
