"""Where a recipe comes from and what its text says: TOML, `--set`, `${var}`, and the base of relative paths."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from bertrelay.errors import RequestError
from bertrelay.settings import Located
from pipelines.mistakes import Mistakes, did_you_mean, shown, unknown

Table = dict[str, Any]
TOP_KEYS = ("name", "seed", "seeds", "group_read")
MAX_DEPTH = 20
TOO_DEEP = f"tables or lists nested more than {MAX_DEPTH} deep"
TOO_LARGE = "a whole number of more than 64 bits"
SHOWN = 20  # characters of an override in an error
VARIABLE = re.compile(r"\$\{([^{}]*)\}")


@dataclass(frozen=True)
class RecipeText:
    """The text of a recipe.

    title: how messages name it. stem: its name unless it says another.
    folder: what its relative paths count from. path: the file, None for a built-in recipe.
    """

    text: str
    title: str
    stem: str
    folder: Path
    path: Path | None


def built_in_names() -> list[str]:
    """The names of the recipes that come with the project."""
    return sorted(
        item.name.removesuffix(".toml") for item in files("pipelines.recipes").iterdir() if item.name.endswith(".toml")
    )


def find_recipe(recipe: str) -> RecipeText:
    """The recipe of that built-in name, else at that path."""
    if recipe in built_in_names():
        text = files("pipelines.recipes").joinpath(f"{recipe}.toml").read_text(encoding="utf-8")
        return RecipeText(text, f"built-in recipe {recipe}", recipe, Path.cwd(), None)
    path = Path(recipe).expanduser()
    if not path.is_file():
        raise RequestError(_not_found(recipe))
    return RecipeText(_read(path), str(path), path.stem, path.resolve().parent, path.resolve())


def _not_found(recipe: str) -> str:
    names = built_in_names()
    found = "a folder" if Path(recipe).is_dir() else "nothing of that name"
    return (
        f"expected a recipe file or a built-in recipe, found {found}: {recipe!r}{did_you_mean(recipe, names) or '.'}"
        f" Built in: {', '.join(names) or 'none'}"
    )


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path}: this recipe cannot be read: {error.strerror}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RequestError(
            f"{path}, line {line}: expected UTF-8, found the byte 0x{content[error.start]:02x}; "
            "save the recipe as UTF-8"
        ) from error


def read_tables(source: RecipeText, overrides: Sequence[str], mistakes: Mistakes) -> Table:
    """The recipe's tables with overrides set and `${var}` replaced; each text knows where its paths count from."""
    try:
        tables = _locate(_toml(source.text), source.folder)
    except ValueError as error:
        raise RequestError(f"{source.title}: expected TOML, found a slip in writing: {error}") from error
    for override in overrides:
        _apply(tables, override, source.text, mistakes)
    return _substitute_all(tables, mistakes)


def _toml(text: str) -> Table:
    """What TOML says. Raises ValueError where it is none, is nested too deeply, or has a number of over 64 bits."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except ValueError:  # Python reads no number of more than 4,300 digits
        raise ValueError(TOO_LARGE) from None


def _locate(value: Any, base: Path, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(TOO_DEEP)
    if isinstance(value, str):
        return Located(value, base)
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(TOO_LARGE)
    if isinstance(value, dict):
        return {key: _locate(item, base, depth + 1) for key, item in value.items()}
    return [_locate(item, base, depth + 1) for item in value] if isinstance(value, list) else value


def _apply(tables: Table, override: str, text: str, mistakes: Mistakes) -> None:
    """Sets `a.b=VALUE` in `tables`, which are ours, or notes why it cannot."""
    target, equals, written = override.partition("=")
    keys = [key.strip() for key in target.split(".")]
    wrong = "expected KEY=VALUE, such as student.epochs=2" if not equals else _wrong_target(tables, keys, text)
    if wrong:
        mistakes.add("", f"--set {override}", wrong)
        return
    for other in {"seed", "seeds"} & {keys[0]}:
        tables.pop("seeds" if other == "seed" else "seed", None)
    inner = tables
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            mistakes.add("", f"--set {override}", f"expected a table at {key}, found {shown(inner)}")
            return
    try:
        inner[keys[-1]] = _locate(toml_value(written.strip()), Path.cwd(), len(keys) - 1)
    except ValueError as error:
        mistakes.add("", f"--set {override[:SHOWN]}…", f"expected a value, found {error}")


def _wrong_target(tables: Table, keys: list[str], text: str) -> str | None:
    """Why nothing would use this target, or None."""
    first = keys[0]
    if len(keys) == 1:
        stages = f"a key of a stage: {first}.KEY=VALUE" if first in tables else ""
        return None if first in TOP_KEYS else (f"expected {stages}" if stages else unknown(first, TOP_KEYS))
    if first == "vars":
        used = keys[1] in tables.get("vars", {}) or f"${{{keys[1]}}}" in text
        return None if used and len(keys) == 2 else unknown(keys[1], list(tables.get("vars", {})), "var")
    stages_of_recipe = [name for name, table in tables.items() if isinstance(table, dict) and name != "vars"]
    return None if first in stages_of_recipe else unknown(first, [*stages_of_recipe, "vars"], "stage")


def toml_value(written: str) -> Any:
    """What follows `=` in `--set`: a TOML value, else plain text (dates are text, for no setting is a date)."""
    try:
        found = _toml(f"value = {written}")
    except tomllib.TOMLDecodeError:
        return written
    plain = len(found) == 1 and isinstance(found["value"], bool | int | float | str | list | dict)
    return found["value"] if plain else written


def _substitute_all(tables: Table, mistakes: Mistakes) -> Table:
    written = tables.get("vars", {})
    if not isinstance(written, dict):
        mistakes.add("vars", "", f"expected a table, found {shown(written)}")
        written = {}
    values: Table = {}
    for name, value in written.items():  # a var may use those above it
        values[name] = _substitute(value, values, mistakes, "vars", name)
    rest = {
        table: _substitute(value, values, mistakes, table, "") for table, value in tables.items() if table != "vars"
    }
    return {"vars": values, **rest}


def _substitute(value: Any, values: Mapping[str, Any], mistakes: Mistakes, table: str, key: str) -> Any:
    if isinstance(value, Located):
        return _fill(value, values, mistakes, table, key)
    if isinstance(value, dict):
        return {
            name: _substitute(item, values, mistakes, table, f"{key}.{name}" if key else name)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_substitute(item, values, mistakes, table, f"{key}[{n}]") for n, item in enumerate(value)]
    return value


def _fill(text: Located, values: Mapping[str, Any], mistakes: Mistakes, table: str, key: str) -> Any:
    """`text` with its vars filled in; one that is only `${var}` becomes the var's value, number or text."""
    unset = [name for name in VARIABLE.findall(text) if name not in values]
    for name in unset:
        mistakes.add(table, key, f"${{{name}}} is not set" + (did_you_mean(name, values) or "; write it in [vars]"))
    if unset:
        return text
    only = VARIABLE.fullmatch(text)
    if only:
        return values[only[1]]
    first = VARIABLE.match(text)
    leading = values[first[1]] if first else text
    base = leading.base if isinstance(leading, Located) else text.base
    return Located(VARIABLE.sub(lambda found: str(values[found[1]]), text), base)
