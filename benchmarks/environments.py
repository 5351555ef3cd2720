"""Environments of peers: packages that cannot stand beside ours, each set in a folder of its own."""

import subprocess
import sys
from pathlib import Path

import torch

PACKAGES = {
    "3.4.1": ["sentence-transformers==3.4.1", "transformers==4.49.0"],
    "5.1.2": ["sentence-transformers==5.1.2", "transformers==4.57.1"],
    "6.2.0": ["sentence-transformers==6.2.0", "transformers==5.23.0"],
    "onnx": [
        "sentence-transformers[onnx]==5.7.0",
        "transformers==4.57.6",
        "optimum-onnx==0.1.0",
        "onnx==1.23.2",
        "onnxruntime==1.31.1",
    ],
}
"""By name of the environment. Versions of sentence-transformers come with the transformers of their time; its ONNX
way wants transformers 4, and 5.7.0 is its newest version that goes with it."""


def environment(folder: Path, name: str) -> Path:
    """The Python of the environment `name` below `folder`; made and filled unless it is there.

    All of them get the torch that runs here, so that a difference is the library's.
    """
    python = (folder / name / "bin" / "python").absolute()
    question = "import importlib.metadata as m; m.version('sentence-transformers')"
    if python.exists() and subprocess.run([python, "-c", question], capture_output=True).returncode == 0:
        return python
    print(f"installing {', '.join(PACKAGES[name])} into {folder / name}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder / name], check=True)
    packages = [*PACKAGES[name], f"torch=={torch.__version__.partition('+')[0]}"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python
