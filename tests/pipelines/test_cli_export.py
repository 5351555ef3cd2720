"""The command `bertrelay export`."""

import json

import numpy as np
import pytest

from bertrelay.errors import RequestError

TEXTS = ["a dog runs", "two birds sing in the old garden", "ein Hund"]


def test_the_command_writes_a_folder_that_other_commands_read(call, tiny_encoder, tmp_path, write_lines):
    encoder = tiny_encoder("bert", TEXTS * 10, normalize=True)
    encoder.save(tmp_path / "model")
    lines = call("export", tmp_path / "model", tmp_path / "graph", "--format", "onnx").splitlines()
    shown = {line.split("  ")[1].strip() or line.split()[0]: line.split() for line in lines if line.startswith("  ")}
    assert {"sentences/s", "mean cosine", "lowest cosine", "largest difference", "MB"} <= set(shown)
    kept = json.loads((tmp_path / "graph/export.json").read_text())
    assert kept["onnx/cosine_min"] == pytest.approx(1, abs=1e-6)
    text = write_lines("text.txt", TEXTS)
    call("encode", tmp_path / "graph", text, tmp_path / "vectors.npy")
    assert np.abs(np.load(tmp_path / "vectors.npy") - encoder.encode(TEXTS, precision="fp32")).max() < 1e-5
    with pytest.raises(RequestError, match="expected a folder that is not there yet"):
        call("export", tmp_path / "model", tmp_path / "graph")
