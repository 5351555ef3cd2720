"""The files of a model folder, which may come from anywhere: their names, and JSON bounded in size and type-checked.

Every JSON file is read by `read_model_file`.
"""

import json
import math
import mmap
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from bertrelay.errors import RequestError, Stopped

GraphBackend = Literal["onnx", "openvino"]
Backend = Literal["torch", "onnx", "openvino"]
"""What computes a network: torch, or its folder's graph by ONNX Runtime or OpenVINO, on the CPU."""

WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
"""The files of a whole network; those of a head alone have another name."""
GRAPHS: dict[Backend, str] = {"onnx": "onnx/model.onnx", "openvino": "openvino/openvino_model.xml"}
"""Where sentence-transformers and text-embeddings-inference look for a graph."""

PACKAGES: dict[Backend, str] = {"onnx": "onnxruntime", "openvino": "openvino"}

MAX_BYTES = 64 << 20
SHOWN = 3

Size = Annotated[int, Field(ge=1, lt=2**31)]
Count = Annotated[int, Field(ge=1, le=1_000)]
"""A number of modules that are built one by one: layers, heads."""

Content = TypeVar("Content")


class Description(BaseModel):
    """Base of the expected content of such a file: no coercion; other keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


def read_model_file(path: Path, content: type[Content]) -> Content | None:
    """Reads `path` as `content`; None without such a file.

    Raises RequestError for a file that is no JSON, too large, too deeply nested, or of other types.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise RequestError(f"model: expected a file of at most {MAX_BYTES >> 20} MiB, found something else: {path}")
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_finite, parse_float=_finite)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RequestError(f"model: {path} cannot be read ({type(error).__name__}); copy the folder again") from error
    except RequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise RequestError(f"model: expected JSON, found something else in {path}: {error}") from error
    return validate(content, value, path)


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is no number")
    return value


def validate(content: type[Content], value: object, path: Path) -> Content:
    """Converts `value`, read from `path`, to `content`. Raises RequestError, naming the keys that do not fit."""
    try:
        return TypeAdapter(content).validate_python(value)
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False, include_context=False)
        objects = {"model_type", "dict_type"}  # whose messages name classes of ours
        named = [
            f"{'.'.join(map(str, fault['loc'])) or 'the file'}: "
            f"{'expected an object' if fault['type'] in objects else fault['msg']}"
            for fault in faults[:SHOWN]
        ]
        raise RequestError(
            f"model: {path} is not as expected: {'; '.join(named)}{'; …' if len(faults) > SHOWN else ''}. "
            "Correct it, or copy the folder again"
        ) from None


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Keeps transformers' progress bars and load reports off the terminal; faults in them are raised as errors."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def fail_with(message: Callable[[Exception], str]) -> Iterator[None]:
    """Raises RequestError with this message in place of any exception within, as every library raises its own."""
    try:
        with silence_transformers():
            yield
    except (Stopped, RequestError):
        raise
    except Exception as error:
        raise RequestError(f"model: {message(error)}") from error


def explain_unreadable(file: Path, content: str) -> AbstractContextManager[None]:
    """Raises RequestError, naming `file`, for weights in it that cannot be read or are not of `content`."""
    return fail_with(
        lambda error: (
            f"expected {content} in {file}, found none that can be read ({type(error).__name__}); it is incomplete, "
            "damaged, or of another model: copy the folder again"
        )
    )


def has_weights(folder: Path) -> bool:
    """True if the weights of a whole network lie in `folder`."""
    return any(any(folder.glob(name)) for name in WEIGHTS)


def graph_files(path: Path) -> list[Path]:
    """The graph at `path` and the files of its weights: those it names, and OpenVINO's `.bin` of the same name."""
    others = [file for file in path.parent.rglob("*") if file.is_file() and file != path]
    if not path.stat().st_size:
        return [path]
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        named = [other for other in others if content.find(other.relative_to(path.parent).as_posix().encode()) >= 0]
    return sorted({path, *named, *(other for other in others if other == path.with_suffix(".bin"))})


def remove_graphs(folder: Path) -> None:
    """Removes a model's graphs, which are of an earlier network than the one now written to `folder`."""
    for graph in (folder / inner for inner in GRAPHS.values()):
        for path in {*graph.parent.glob(f"{graph.stem}*"), *(graph_files(graph) if graph.is_file() else [])}:
            path.unlink()
        if graph.parent.is_dir() and not any(graph.parent.iterdir()):
            graph.parent.rmdir()
