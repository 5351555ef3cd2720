"""`bertrelay` with the light stages, as a process of its own; `--user ID` changes its user first."""

import importlib
import os
import sys

import light_stages

import pipelines.registry
from pipelines.cli import main

if __name__ == "__main__":
    if sys.argv[1] == "--user":
        for name in ("pipelines.cli.app", "pipelines.run.runner", "importlib.readers", "encodings.utf_8_sig"):
            importlib.import_module(name)  # Python itself may stand where that user may not read
        os.setuid(int(sys.argv[2]))
        del sys.argv[1:3]
    pipelines.registry.REGISTRY = light_stages.REGISTRY
    sys.modules["pipelines.report.page"] = light_stages.page
    main()
