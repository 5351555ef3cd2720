"""Changes of JSON values, bytes and model folders that nobody expects, drawn by Hypothesis.

A changed model must be refused while it is loaded, or compute what it did, or be a valid model, or be warned of.
"""

import json
import math
import re
import shutil
from contextlib import redirect_stderr
from io import StringIO

import numpy as np
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from bertrelay.errors import BertRelayError

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
VALUES = st.sampled_from(
    [
        *(None, True, False, 0, -1, 1, 3, 10**8, 10**12, 10**30, -(2**63), 2**70, 0.5, -0.5, 1e300, 1e-300),
        *("", "x", "../..", "/etc", "x" * 300, "\x1b[31m", "\x00", "é\u202e", [], [1], ["x"], [[]], {}, {"x": 1}),
        *([None] * 3, math.nan, math.inf),
    ]
) | st.recursive(st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=4)
BYTES = st.binary(min_size=1, max_size=20) | st.sampled_from(
    [
        *(b"\0", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b'"', b'"' * 999, b"\n", b"\r", b"\n" * 9_999),
        *(b"\t" * 99, b" " * 99_999, b"\\", b"\x1b[2J", b"9" * 5_000, b"[" * 100_000, b"{" * 20_000, b"(" * 50_000),
        *(b"<" * 5_000, b"<tu>" * 2_000, b"]]>", b"&x;", b"<!ENTITY x SYSTEM '/etc/passwd'>"),
        *(b"charset=punycode", b"charset=utf-16", b"nplurals=9; plural=n%0;"),
    ]
)


def chance(times):
    """True once in so many times."""
    return st.integers(1, times).map(lambda number: number == times)


@st.composite
def changed(draw, value):
    """A JSON value with one thing in it replaced or removed, at any depth, and whether it still has the same types."""
    keys = list(value if isinstance(value, dict) else range(len(value))) if isinstance(value, dict | list) else []
    if not keys or draw(chance(20)):
        new = draw(VALUES)
        is_number = isinstance(value, float) and type(new) in (int, float) and math.isfinite(new)  # JSON has one kind
        return new, is_number or (not isinstance(value, float) and type(new) is type(value))
    key, copy = draw(st.sampled_from(keys)), value.copy()
    if draw(chance(7)):
        del copy[key]
        return copy, False
    copy[key], has_same_types = draw(changed(value[key]))
    return copy, has_same_types


@st.composite
def changed_bytes(draw, content):
    """The content cut, emptied, or with something inserted, over a part of it or in its place."""
    position, new = draw(st.integers(0, len(content))), draw(BYTES)
    start, end = content[:position], content[position:]
    choices = [start + new + end, start + new + end[len(new) :], start, end, new + content, new, b"", b"null"]
    return draw(st.sampled_from(choices))


@st.composite
def change_folder(draw, folder):
    """Changes one thing in the folder of a model, and draws whether it is still a valid one."""
    file = draw(st.sampled_from(sorted(path for path in folder.rglob("*") if path.is_file() and is_read(path))))
    modules = sorted(path for path in folder.iterdir() if path.is_dir())
    kind = draw(st.sampled_from(["content"] * 20 + ["missing", "missing", "folder", "copied", "renamed"]))
    if kind in ("missing", "folder"):
        file.unlink()
        if kind == "folder":
            file.mkdir()
    elif kind == "copied":
        module = draw(st.sampled_from(modules or [folder]))
        shutil.copytree(module, folder / draw(st.sampled_from(["4_Dense", "0_Transformer"])))
    elif kind == "renamed" and modules:
        draw(st.sampled_from(modules)).rename(folder / "9_Other")
    elif file.suffix == ".json" and not draw(chance(5)):
        value, is_valid = draw(changed(json.loads(file.read_text())))
        file.write_text(json.dumps(value))
        return is_valid
    elif file.suffix == ".safetensors":
        draw(change_weights(file))
    else:
        file.write_bytes(draw(changed_bytes(file.read_bytes())))
    return False


def is_read(file):
    return file.name not in ("README.md", "distillation.json")


@st.composite
def change_weights(draw, file):
    """Changes the header of a file of weights, which a reader can check, or its tensors."""
    if draw(chance(3)):
        content = bytearray(file.read_bytes())
        content[draw(st.integers(0, 7 + int.from_bytes(content[:8], "little")))] ^= 1 << draw(st.integers(0, 7))
        end = draw(st.sampled_from([len(content), draw(st.integers(0, len(content) - 1))]))
        file.write_bytes(bytes(content[:end]))
        return
    weights = load_file(file)
    name = draw(st.sampled_from(sorted(weights)))
    tensor = weights.pop(name)
    other_layer = name.replace(".0.", ".7.") if ".0." in name else f"{name}_7"
    replacements = [
        {},
        {f"{name}x": tensor},
        {name: tensor, f"{name}.copy": tensor.clone()},
        {name: tensor.new_zeros((*tensor.shape, 2))},
        {name: tensor, other_layer: tensor.clone()},
    ]
    save_file(weights | draw(st.sampled_from(replacements)), file)


def check_changed_model(load, original, folder, is_valid):
    """Raises AssertionError for a changed model that fails only in use, or that computes something else in silence.

    load: opens a folder, and returns the function that computes its output. RequestError and WorkError pass.
    """
    expected = load(original)()
    with redirect_stderr(StringIO()) as log:
        use = load(folder)
        try:
            output = use()
        except BertRelayError as error:
            raise AssertionError(f"an error not while loading: {error}") from error
    is_explained = is_valid or "warning" in log.getvalue()
    assert is_explained or is_alike(output, expected), "another output, and no warning"


def is_alike(*outputs):
    """True for outputs that differ only in the last digits of their numbers, as sums do where memory lies elsewhere."""
    one, other = (repr(output.tolist() if hasattr(output, "tolist") else output) for output in outputs)
    numbers, others = (np.array(NUMBER.findall(text), float) for text in (one, other))
    return NUMBER.sub("", one) == NUMBER.sub("", other) and np.allclose(numbers, others, rtol=1e-4, atol=1e-5)
