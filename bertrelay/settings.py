"""The base of all settings: strict, frozen, with types for values that are files, models or data sets.

A fingerprint depends on these types: of a file it takes the content and not the path, of a hub id the revision, and of
a `RUN_ONLY` setting nothing. This module loads neither torch nor transformers, so that `plan` and `--help` stay fast.
"""

import ast
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from numbers import Number
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, core_schema

from bertrelay.errors import RequestError, describe
from bertrelay.files import NOT_UTF8, is_utf8

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w.-]+)?")
PACKAGE = "package:"
SHOWN = 60  # characters of a value in an error

Positive = Annotated[int, Field(ge=1, lt=2**31)]
MAX_SEED = 2**32 - 1
Seed = Annotated[int, Field(ge=0, le=MAX_SEED, description="Seed of every random choice.")]
"""A seed that the generators of Python, NumPy, torch and scikit-learn all accept."""
PrecisionName = Literal["auto", "bf16", "fp16", "tf32", "fp32"]
Precision = Annotated[PrecisionName, Field(description="auto is bf16 where the hardware computes in it, else fp32.")]
"""Number format of a computation. `tf32` is fp32 whose matrix products a GPU computes from factors with ten bits after
the point."""
Metric = Literal["cosine", "dot", "euclidean", "manhattan"]
"""Measure by which two vectors are compared."""
MaxTokens = Annotated[int, Field(ge=3, lt=2**31)]
"""Longest sentence: two special tokens and at least one of its text."""
MaxRejects = Annotated[float, Field(ge=0, le=1, description="Fraction of records that may be unusable.")]

AnySettings = TypeVar("AnySettings", bound="Settings")


RUN_ONLY = "run only"
"""Marks a setting that changes how the work is done and never its result: workers, log interval, memory."""
BatchTokens = Annotated[
    Positive | None,
    RUN_ONLY,
    Field(description="Most tokens in a batch, padding included; chosen by the device when absent."),
]


class UsedWith:
    """Marks a setting that has an effect only with certain values of others; help, tables and errors say so.

    `UsedWith("gold")`: `gold` is set, neither absent nor empty, false or 0. `UsedWith("mse", "cosine")`: one of the two
    is. `UsedWith(objective=("cosine", "angle"))`: `objective` is one of the values, or a list with one of them. Of
    several marks all must hold.
    """

    preposition = "only with"

    def __init__(self, *keys: str, **values: str | tuple[str, ...]) -> None:
        self.values: dict[str, tuple[str, ...]] = dict.fromkeys(keys, ()) | {
            key: (value,) if isinstance(value, str) else value for key, value in values.items()
        }

    def __str__(self) -> str:
        words = [f"`{key}` {_one_of(values)}".strip() for key, values in self.values.items()]
        return f"{self.preposition} {_one_of(words)}"

    def is_met(self, settings: "Settings") -> bool:
        return self._matches(settings)

    def reason(self, settings: "Settings") -> str:
        """The values for which the setting has no effect: `objective is softmax and not triplet`."""
        return " and ".join(
            f"{key} is {_shown_value(getattr(settings, key))}{f' and not {_one_of(values)}' if values else ''}"
            for key, values in self.values.items()
        )

    def _matches(self, settings: "Settings") -> bool:
        for key, values in self.values.items():
            value = getattr(settings, key)
            present = value if isinstance(value, list) else [value]
            if any(item in values for item in present) if values else value:
                return True
        return False


class UnusedWith(UsedWith):
    """Marks a setting that has no effect with certain values of others, written as in `UsedWith`."""

    preposition = "not with"

    def is_met(self, settings: "Settings") -> bool:
        return not self._matches(settings)

    def reason(self, settings: "Settings") -> str:
        """The values for which the setting has no effect: `engine is local`."""
        return " and ".join(f"{key} is {_shown_value(getattr(settings, key))}" for key in self.values)


def _one_of(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _shown_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) or (isinstance(value, str) and value):
        return str(value).removesuffix(".0")
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return "absent" if value is None else "set" if value else "empty"


class Settings(BaseModel):
    """Base of every settings model: frozen, unknown keys forbidden, no silent coercion.

    The string under a field is its description.
    """

    # Validators are built where a model is first used: a command has the settings of one stage, and `--help` of none.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False, defer_build=True
    )

    @model_validator(mode="after")
    def _refuse_what_is_unused(self) -> Self:
        unused: dict[str, list[str]] = {}
        for name, field in type(self).model_fields.items():
            for mark in field.metadata:
                if isinstance(mark, UsedWith) and not mark.is_met(self):
                    unused.setdefault(mark.reason(self), []).append(name)
        for reason, names in unused.items():
            refuse_idle(self, *names, because=reason)
        return self

    def input_problems(self) -> Iterator[tuple[str, str]]:
        """Keys of inputs that lack what is read from them, and what is wrong; called for the stages of a plan."""
        return iter(())


def descriptions(settings: type[BaseModel]) -> dict[str, str]:
    """Field to description: the string under it in the class or, without one there, in the base; else that of its type.

    The source is read on the first call: pydantic's own `use_attribute_docstrings` reads that of each class when it is
    made, which would take every command 0.2 s.
    """
    texts = {name: field.description or "" for name, field in settings.model_fields.items()}
    for base in reversed(settings.__mro__):
        if issubclass(base, Settings):
            texts |= _strings_under_fields(base.__module__).get(base.__name__, {})
    return texts


@cache
def _strings_under_fields(module: str) -> dict[str, dict[str, str]]:
    """Class to field to the string under it, in the source of a module; none for a notebook, which has no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {
        node.name: {
            field.target.id: " ".join(below.value.value.split())
            for field, below in pairwise(node.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if isinstance(below.value.value, str)
        }
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


class DataSource(Settings):
    """Base of every source of data."""

    sensitive: Annotated[bool, RUN_ONLY] = False
    """Data that others must not see, such as text about patients. Files made from it are readable by their owner only,
    and logs, errors and reports neither name nor quote its records."""

    def tables_read(self) -> Sequence[Any]:
        """Tables of which columns are named here, so that a plan finds those that are missing."""
        return ()


def names_sensitive(settings: Any) -> bool:
    """Returns true if a source in `settings`, nested ones included, is marked sensitive."""
    if isinstance(settings, Settings):
        return getattr(settings, "sensitive", False) is True or any(map(names_sensitive, dict(settings).values()))
    if isinstance(settings, dict):
        return any(map(names_sensitive, settings.values()))
    return isinstance(settings, list | tuple) and any(map(names_sensitive, settings))


def refuse_idle(settings: Settings, *keys: str, because: str) -> None:
    """Raises ValueError for those of `keys` that differ from their defaults, as what a user sets must have an effect.

    For a condition on another setting of the same class, mark the field with `UsedWith` instead.
    """
    fields = type(settings).model_fields
    idle = [key for key in keys if getattr(settings, key) != fields[key].get_default(call_default_factory=True)]
    if idle:
        raise ValueError(f"{', '.join(idle)}: without effect, because {because}. Leave it out.")


def options_of(model: type[AnySettings], keywords: dict[str, Any]) -> AnySettings:
    """Keyword arguments of a Python function as `model`; a number of NumPy becomes one of Python, a tuple a list.

    Raises RequestError, which names those that do not fit.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, Number) and hasattr(value, "item"):
            return value.item()
        return list(value) if type(value) is tuple else value

    try:
        return model(**{name: plain(value) for name, value in keywords.items()})
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        raise RequestError(
            "; ".join(_fault(model, ".".join(map(str, fault["loc"])), fault) for fault in faults)
        ) from None


def settings_of(model: type[AnySettings], arguments: Mapping[str, Any]) -> AnySettings:
    """Settings from the arguments of a function, its `locals()` at the start: those that are fields of `model`.

    Raises as `options_of`.
    """
    return options_of(model, {name: arguments[name] for name in model.model_fields if name in arguments})


def common_values(settings: Settings, kind: type[Settings]) -> dict[str, Any]:
    """Returns the values of `settings` whose keys settings of `kind` have too."""
    return {key: getattr(settings, key) for key in type(settings).model_fields if key in kind.model_fields}


def _fault(model: type[Settings], name: str, fault: Any) -> str:
    if fault["type"] != "extra_forbidden":
        message = fault["msg"].removeprefix("Value error, ")
        expected = message.removeprefix("Input should be ")
        text = message if expected == message else f"expected {expected}, found {describe(fault['input'])}"
        return f"{name}: {text}" if name else text  # without a name: of the settings as a whole
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
    """Resolves `value` against the folder of the file it was written in, else against the working directory.

    Follows links, except that a file which is itself a link keeps its name: the suffix decides how it is read, and in a
    hub's cache only the link has it.
    Raises ValueError for an invalid path: too long, or of an unknown home.
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
        """The source that `value` names, as an absolute path if it is one. Raises ValueError."""
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
    """A model: a folder, `@stage/path`, `package:name/path`, or a hub id, with `@revision` or without.

    An existing folder is one, and so is a name like a path (`./x`, `../x`, `/x`, `~/x`, `a/b/c`), and `a/b` where a
    folder `a` exists; everything else is a hub id.

    kind: as in `bertrelay.model.kinds`; any when empty.
    written: the name of a folder as the user wrote it.
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
    """The `ModelSource` of a sentence encoder, or of a network of which one is made."""

    kind = "encoder"


class TaggerSource(ModelSource):
    """The `ModelSource` of a tagger of entities."""

    kind = "tagger"


class AnswererSource(ModelSource):
    """The `ModelSource` of a model that answers questions."""

    kind = "answerer"


class PredictorSource(ModelSource):
    """The `ModelSource` of a model that predicts clinical outcomes."""

    kind = "predictor"


class ScorerSource(ModelSource):
    """The `ModelSource` of a network that scores pairs."""

    kind = "scorer"


def _is_path(value: str) -> bool:
    """Returns true for the name of a folder, or of a file in its place; for `owner/name@main` only where one exists."""
    if not value or "://" in value:
        return False
    if value.startswith(("/", "./", "../", "~")) or value.count("/") > 1:
        return True
    folder = Path(absolute(value))
    return folder.exists() or ("/" in value and "@" not in value and folder.parent.is_dir())


def nearest(path: Path, folders_only: bool = False) -> str:
    """`did you mean /a/b?`: the name nearest to the first part of `path` that is missing, or nothing."""
    missing = path
    while not missing.parent.is_dir():
        missing = missing.parent
    try:
        names = [item.name for item in missing.parent.iterdir() if not folders_only or item.is_dir()]
    except OSError:
        return ""
    near = get_close_matches(missing.name, names, n=1)
    return f"did you mean {missing.parent / near[0]}?" if near else ""


def no_model_folder(folder: Path, written: str = "") -> str:
    """The error for a missing model folder, with the nearest one or the way to write a hub id.

    written: the name as the user wrote it; `owner/name` is a path where a folder `owner` exists.
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
