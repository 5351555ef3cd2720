"""The JSON files of a model folder, which may come from anywhere: bounded in size and depth, and type-checked.

Every such file is read by `read_model_file`, and every path that it names is checked by `folder_inside`.
"""

import json
import math
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from bertrelay.errors import RequestError

MAX_BYTES = 64 << 20
MAX_DEPTH = 50
SHOWN = 3

Size = Annotated[int, Field(ge=1, lt=2**31)]
Count = Annotated[int, Field(ge=1, le=1_000)]
"""Of what is built one by one: layers, heads."""

Content = TypeVar("Content")


class Description(BaseModel):
    """Base of what is expected in such a file: no coercion; other keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


def read_model_file(path: Path, content: type[Content]) -> Content | None:
    """The content of `path`, as `content`; None where there is no such file.

    Raises RequestError for a file that is no JSON, too large, too deeply nested, or of other types.
    """
    text = _text(path)
    return None if text is None else checked(content, _parsed(text, path), path)


def checked(content: type[Content], value: object, path: Path) -> Content:
    """`value`, which was read from `path`, as `content`. Raises RequestError, naming the keys that do not fit."""
    try:
        return TypeAdapter(content).validate_python(value)
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False, include_context=False)
        named = [f"{'.'.join(map(str, each['loc'])) or 'the file'}: {_why(each)}" for each in faults[:SHOWN]]
        raise RequestError(
            f"model: {path} is not as expected: {'; '.join(named)}{'; …' if len(faults) > SHOWN else ''}. "
            "Correct it, or copy the folder again"
        ) from None


def _why(fault: Any) -> str:
    return "expected an object" if fault["type"] in ("model_type", "dict_type") else str(fault["msg"])


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers' progress bars and load reports off the terminal; what matters in them is raised here."""
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


def folder_inside(folder: Path, path: str, source: Path) -> Path:
    """The folder `path` inside the model's `folder`. Raises RequestError where `source`, which names it, leads outside.

    Checked with links followed, for a module's weights must be those that lie in the model's folder.
    """
    try:
        inner = (folder / path).resolve()
    except (OSError, ValueError, RuntimeError):
        inner = Path("/")
    if not inner.is_relative_to(folder.resolve()):
        raise RequestError(f"model: expected a path inside the model's folder in {source}, found {path!r}")
    return folder / path


def _text(path: Path) -> str | None:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            raise RequestError(f"model: expected a file of at most {MAX_BYTES >> 20} MiB, found something else: {path}")
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"model: {path} cannot be read ({type(error).__name__}); copy the folder again") from error


def _parsed(text: str, path: Path) -> Any:
    try:
        value = json.loads(text, parse_constant=_refused, parse_float=_finite)
        _check_depth(value)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise RequestError(f"model: expected JSON, found something else in {path}: {why}") from error
    return value


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refused(number)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [item for items in inner for item in items]
        if not level:
            return
    raise RecursionError
