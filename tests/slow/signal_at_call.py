"""Runs `bertrelay` in a process that sends itself a signal at a call of a function.

python signal_at_call.py MODULE FUNCTION CALL SIGNAL run RECIPE …
"""

import importlib
import itertools
import os
import sys

from pipelines.cli import main


def send_at_call(module, function, call, number):
    """Makes the function send the signal `number` at its `call`th call, counted from 1, before its work."""
    *outer, name = function.split(".")
    owner = importlib.import_module(module)
    for attribute in outer:
        owner = getattr(owner, attribute)
    original, calls = getattr(owner, name), itertools.count(1)

    def replacement(*arguments, **named):
        if next(calls) == call:
            os.kill(os.getpid(), number)
        return original(*arguments, **named)

    setattr(owner, name, replacement)


if __name__ == "__main__":
    module, function, call, number = sys.argv[1:5]
    send_at_call(module, function, int(call), int(number))
    main(sys.argv[5:])
