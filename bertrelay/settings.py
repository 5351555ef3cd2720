"""The base of all settings: strict, frozen, with types for values that are files, models or data sets.

A fingerprint depends on these types: of a file it takes the content and not the path, of a hub id the revision, and of
a `RUN_ONLY` setting nothing. This module loads neither torch nor transformers, so that `plan` and `--help` stay fast.
"""

import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from numbers import Number
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from bertrelay.errors import RequestError, shown
from bertrelay.files import NOT_UTF8, is_utf8

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w.-]+)?")
PACKAGE = "package:"
SHOWN = 60  # characters of a value in an error

Positive = Annotated[int, Field(ge=1, lt=2**31)]
MAX_SEED = 2**32 - 1
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
"""A seed that the generators of Python, NumPy, torch and scikit-learn all accept."""
Precision = Literal["auto", "bf16", "fp16", "tf32", "fp32"]
"""Of the computation; `auto` is bf16 where the device computes in it, else fp32. `tf32` is fp32 whose matrix products a
GPU computes from factors of ten bits after the point."""
Metric = Literal["cosine", "dot", "euclidean", "manhattan"]
"""How two vectors are compared."""
MaxTokens = Annotated[int, Field(ge=3, lt=2**31)]
"""Of a sentence: two special tokens and one of its own."""

AnySettings = TypeVar("AnySettings", bound="Settings")


RUN_ONLY = "run only"
"""Marks a setting that changes how the work is done and never its result: workers, log interval, memory."""
WHEN_SET = "when set"
"""Marks a setting that is part of the fingerprint only where it differs from its default: one that was added later,
whose default gives the same result as before."""


class Settings(BaseModel):
    """Base of every settings model: frozen, unknown keys forbidden, no silent coercion."""

    # Validators are built where a model is first used: a command has the settings of one stage, and `--help` of none.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False, defer_build=True
    )

    def input_problems(self) -> Iterator[tuple[str, str]]:
        """Keys of inputs that lack what is read from them, and what is wrong; asked of the stages that are planned."""
        return iter(())


class DataSource(Settings):
    """Base of every source of data.

    sensitive: whether others must not see it, as with text about patients. What is made from it is then readable by
        its owner only, and logs, errors and reports neither name nor quote its records.
    """

    sensitive: Annotated[bool, RUN_ONLY] = False

    def tables_read(self) -> Sequence[Any]:
        """The tables of which columns are named here, so that a plan finds those that are not there."""
        return ()


def names_sensitive(settings: Any) -> bool:
    if isinstance(settings, Settings):
        return getattr(settings, "sensitive", False) is True or any(map(names_sensitive, dict(settings).values()))
    if isinstance(settings, dict):
        return any(map(names_sensitive, settings.values()))
    return isinstance(settings, list | tuple) and any(map(names_sensitive, settings))


def refuse_idle(settings: Settings, *keys: str, because: str) -> None:
    """Raises ValueError for those of `keys` that differ from their defaults: what a user sets must have an effect."""
    fields = type(settings).model_fields
    idle = [key for key in keys if getattr(settings, key) != fields[key].default]
    if idle:
        raise ValueError(f"{', '.join(idle)}: without effect, because {because}. Leave it out.")


def options_of(model: type[AnySettings], given: dict[str, Any]) -> AnySettings:
    """Keyword arguments of a Python function as `model`; a number of NumPy is one of Python.

    Raises RequestError, which names those that do not fit.
    """
    plain = {
        name: value.item() if isinstance(value, Number) and hasattr(value, "item") else value
        for name, value in given.items()
    }
    try:
        return model(**plain)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        raise RequestError("; ".join(_fault(model, ".".join(map(str, each["loc"])), each) for each in faults)) from None


def _fault(model: type[Settings], name: str, fault: Any) -> str:
    if fault["type"] != "extra_forbidden":
        message = fault["msg"].removeprefix("Value error, ")
        what = message.removeprefix("Input should be ")
        expected = what if what == message else f"expected {what}, found {shown(fault['input'])}"
        return f"{name}: {expected}" if name else expected  # of the settings as a whole
    near = get_close_matches(name, model.model_fields, n=1)
    hint = f" did you mean {near[0]}?" if near else ""
    return f"{name}: unknown;{hint} expected one of {', '.join(model.model_fields)}"


class PathText(str):
    """A string with the folder that its relative path starts from."""

    base: Path

    def __new__(cls, value: str, base: Path) -> Self:
        text = super().__new__(cls, value)
        text.base = base
        return text


def absolute(value: str) -> str:
    """`value` as an absolute path, relative to the file it was written in, else to the working directory.

    Links are followed but for a file's own: its suffix says how it is read, and a hub's cache has it in the link alone.
    Raises ValueError for a path that no file can have: too long, or of an unknown home.
    """
    base = value.base if isinstance(value, PathText) else Path.cwd()
    try:
        path = base / Path(value).expanduser()
        whole = path.resolve()  # raises for an invalid name
        is_folder = path.name in ("", "..") or os.path.isdir(whole)  # noqa: PTH112 (of pathlib it may raise)
        path = whole if is_folder else path.parent.resolve() / path.name
        path.exists()  # raises for an invalid name
    except PermissionError:
        pass  # it exists; reading it will report the error
    except (OSError, RuntimeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"expected the path of a file or folder, found {_shortened(value)!r}: {why}") from error
    if not is_utf8(str(path)):
        raise ValueError(f"{NOT_UTF8}, found {_shortened(value)!r}; rename it")
    return str(path)


def _shortened(value: str) -> str:
    return value if len(value) <= SHOWN else f"{value[:SHOWN]}…"


class Source(str):
    """A value whose content is elsewhere: in a file, a folder, another stage (`@stage/path`) or on the hub."""

    @classmethod
    def parse(cls, value: str) -> Self:
        """What `value` names, as an absolute path where it is one. Raises ValueError."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        def build(value: object) -> str:
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
            if not isinstance(value, str):
                raise ValueError(f"expected text, found {value!r}")
            return value if isinstance(value, cls) else cls.parse(value)

        return core_schema.no_info_plain_validator_function(build)

    @property
    def stage_reference(self) -> tuple[str, str] | None:
        """(stage, path inside its output) of a value written `@stage/path`, else None."""
        stage, _, inner = self[1:].partition("/")
        return (stage, inner) if self.startswith("@") else None

    @property
    def folder(self) -> Path | None:
        """The file or folder, when this is one; None for a hub id and for a stage's output that has no path yet."""
        return Path(self) if self.startswith("/") else None

    @property
    def hub_id(self) -> str | None:
        return None if self.startswith(("/", "@")) else self.partition("@")[0]

    @property
    def revision(self) -> str | None:
        return self.partition("@")[2] or None if self.hub_id else None


class InputFile(Source):
    """A file or folder that a stage reads: an absolute path, or `@stage/path`."""

    @classmethod
    def parse(cls, value: str) -> Self:
        if not value:
            raise ValueError("expected a file or folder, found an empty text")
        if "://" in value:
            raise ValueError(f"expected a file or folder of this machine, found the address {value}; copy it here")
        return cls(value if value.startswith("@") else absolute(value))


class HubDataset(Source):
    """The id of a data set on the hub, `owner/name` or `owner/name@revision`."""

    @classmethod
    def parse(cls, value: str) -> Self:
        if not HUB_ID.fullmatch(value):
            raise ValueError(f"expected a data set of the hub, owner/name or owner/name@revision, found {str(value)!r}")
        return cls(value)


class ModelSource(Source):
    """Where a model comes from: a folder, `@stage/path`, `package:name/path`, or a hub id, `@revision` or not.

    An existing folder is one, and so is what is written like a path (`./x`, `../x`, `/x`, `~/x`, `a/b/c`) and `a/b`
    where a folder `a` exists; everything else is a hub id.

    kind: as in `bertrelay.model.kinds`; any when empty.
    written: how a folder was named.
    """

    kind: ClassVar[str] = ""
    written = ""

    @classmethod
    def parse(cls, value: str) -> Self:
        if value.startswith("@"):
            return cls(value)
        if value.startswith(PACKAGE):
            return cls(_package_folder(value))
        if _is_path(value):
            path = cls(absolute(value))
            path.written = value
            return path
        if not HUB_ID.fullmatch(value):
            raise ValueError(
                f"expected a model folder, @stage/model, package:name/path or a hub id, found {str(value)!r}"
            )
        return cls(value)


class EncoderSource(ModelSource):
    """As `ModelSource`, of a sentence encoder, or a network of which one is made."""

    kind = "encoder"


class TaggerSource(ModelSource):
    """As `ModelSource`, of a tagger of entities."""

    kind = "tagger"


class AnswererSource(ModelSource):
    """As `ModelSource`, of a model that answers questions."""

    kind = "answerer"


class ScorerSource(ModelSource):
    """As `ModelSource`, of a network that scores pairs."""

    kind = "scorer"


def _is_path(value: str) -> bool:
    """Whether a folder is meant, or a file is given in its place; `owner/name@main` only is where such a one exists."""
    if not value or "://" in value:
        return False
    if value.startswith(("/", "./", "../", "~")) or value.count("/") > 1:
        return True
    folder = Path(absolute(value))
    return folder.exists() or ("/" in value and "@" not in value and folder.parent.is_dir())


def nearest(path: Path, folders_only: bool = False) -> str:
    """` did you mean /a/b?`: what is nearest by its name to the first part of `path` that is not there, or nothing."""
    missing = path
    while not missing.parent.is_dir():
        missing = missing.parent
    try:
        beside = [each.name for each in missing.parent.iterdir() if not folders_only or each.is_dir()]
    except OSError:
        return ""
    near = get_close_matches(missing.name, beside, n=1)
    return f"did you mean {missing.parent / near[0]}?" if near else ""


def no_model_folder(folder: Path, written: str = "") -> str:
    """The error for a missing model folder: with the nearest one, or how to write a hub id.

    written: how it was named; `owner/name` is a path where a folder `owner` exists.
    """
    if folder.is_file():
        return f"expected a model folder, found a file: {folder}"
    hint = nearest(folder, folders_only=True) or "check the path"
    if hint == "check the path" and written.count("/") == 1 and HUB_ID.fullmatch(written):
        hint += f"; for a model of the hub write {written}@main"
    return f"expected a model folder, found none at {folder}; {hint}"


def _package_folder(value: str) -> str:
    name, _, inner = value.removeprefix(PACKAGE).partition("/")
    spec = importlib.util.find_spec(name) if name.isidentifier() and name != "__main__" else None
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        raise ValueError(
            f"{str(value)!r} names the Python package {name!r}, which is not installed; install it or give a folder"
        )
    package = Path(spec.origin).parent
    folder = absolute(PathText(inner, package))
    if not Path(folder).resolve().is_relative_to(package.resolve()):
        raise ValueError(f"expected a folder inside the Python package {name!r}, found {_shortened(value)!r}")
    return folder
