"""The text of recipes: TOML, `--set` and `${var}` to tables, before any is checked as a stage."""

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from bertrelay.data.encodings import conversion_hint
from bertrelay.errors import RequestError
from bertrelay.settings import PathText, absolute, nearest
from pipelines.recipe.validation import Problems, did_you_mean, shown, unknown

Table = dict[str, Any]
MAX_DEPTH = 20
TOO_DEEP = f"tables or lists nested more than {MAX_DEPTH} deep"
MAX_VALUES, MAX_CHARACTERS = 100_000, 1 << 14  # of a recipe, of a text in it
TOO_MANY = f"expected at most {MAX_VALUES:,} values, and {MAX_CHARACTERS:,} characters of text, found more"
TOO_LARGE = "a whole number of more than 64 bits"
VARIABLE = re.compile(r"\$\{([^{}]*)\}")


@dataclass(frozen=True)
class RecipeText:
    """The text of a recipe.

    title: how messages name it. stem: its name unless it gives another.
    folder: what its relative paths are relative to. path: the file, None for a built-in recipe.
    """

    text: str
    title: str
    stem: str
    folder: Path
    path: Path | None


RENAMED = {"laboratory": "biomedical"}
"""The former names of built-in recipes."""


def built_in_names() -> list[str]:
    """The names of the recipes that come with the project."""
    return sorted(
        item.name.removesuffix(".toml") for item in files("pipelines.recipes").iterdir() if item.name.endswith(".toml")
    )


def find_recipe(recipe: str) -> RecipeText:
    """The recipe of that built-in name, else at that path. Raises RequestError for one that cannot be read."""
    names = built_in_names()
    if recipe in names:
        text = files("pipelines.recipes").joinpath(f"{recipe}.toml").read_text(encoding="utf-8")
        return RecipeText(text, f"built-in recipe {recipe}", recipe, Path.cwd(), None)
    renamed = f"; it is now named {RENAMED[recipe]!r}." if recipe in RENAMED else ""
    hint = f"{renamed or did_you_mean(recipe, names) or '.'} Built in: {', '.join(names) or 'none'}"
    return read_tables_file(recipe, "a recipe file or a built-in recipe", hint)


def read_tables_file(name: str, expected: str, hint: str = "") -> RecipeText:
    """The recipe, or another file of tables, at the path `name`. Raises RequestError for one that cannot be read.

    expected, hint: what an error says of a path without a file.
    """
    try:
        absolute(name)
    except ValueError as error:
        raise RequestError(str(error)) from error
    path = Path(name).expanduser()
    try:
        if not path.is_file():
            is_there = "a folder" if path.is_dir() else "nothing of that name"
            if not path.exists() and (near := nearest(Path(absolute(name)))):
                hint = f"; {near}{hint.removeprefix('.')}"
            raise RequestError(f"expected {expected}, found {is_there}: {name!r}{hint}")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RequestError(f"{path}: expected {expected} that can be read, found: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line, byte = error.object.count(b"\n", 0, error.start) + 1, error.object[error.start]
        raise RequestError(
            f"{path}, line {line}: expected UTF-8, found the byte 0x{byte:02x}; save it as UTF-8"
            + conversion_hint(str(path), error.object)
        ) from error
    return RecipeText(text, str(path), path.stem, path.resolve().parent, path.resolve())


def read_tables(source: RecipeText, overrides: Sequence[str], problems: Problems) -> Table:
    """The recipe's tables with overrides set and `${var}` replaced; each text knows what its paths are relative to."""
    try:
        tables: Table = _locate(_toml(source.text), source.folder)
    except ValueError as error:
        raise RequestError(f"{source.title}: expected TOML, found something else: {error}") from error
    if not isinstance(tables.setdefault("vars", {}), dict):
        problems.add("vars", "", f"expected a table, found {shown(tables['vars'])}")
        tables["vars"] = {}
    written = set(tables["vars"])
    for override in overrides:
        _apply(tables, override, source.text, problems)
    values: Table = {}
    # A var may use those above it; what --set adds comes first, for any may use it, but for what uses one itself.
    added = {name: value for name, value in tables["vars"].items() if not (name in written or "${" in str(value))}
    for name, value in {**added, **tables.pop("vars")}.items():
        values[name] = _fill(value, values, "vars", name, problems)
        _check_size(values[name], "vars", name, problems)
    filled: Table = {}
    for name, value in tables.items():
        table, key = (name, "") if isinstance(value, dict) else ("", name)
        filled[name] = _fill(value, values, table, key, problems)
        _check_size(filled[name], table, key, problems)
    return filled


def _toml(text: str) -> Table:
    """The content of TOML. Raises ValueError where it is invalid, nested too deeply, or has too large a number."""
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
        return PathText(value, base)
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(TOO_LARGE)
    if isinstance(value, dict):
        return {key: _locate(item, base, depth + 1) for key, item in value.items()}
    return [_locate(item, base, depth + 1) for item in value] if isinstance(value, list) else value


def _apply(tables: Table, override: str, text: str, problems: Problems) -> None:
    """Sets `a.b=VALUE` in `tables`, which are ours, or notes why nothing would use it."""
    target, equals, written = override.partition("=")
    *outer, key = [part.strip() for part in target.split(".")]
    variables, wrong = tables["vars"], ""
    stages = [name for name, table in tables.items() if name != "vars" and isinstance(table, dict)]
    if not equals:
        wrong = "expected KEY=VALUE, such as student.epochs=2"
    elif outer == ["vars"]:
        is_used = key in variables or f"${{{key}}}" in text
        wrong = "" if is_used else unknown(key, list(variables), "var")
    elif not outer and key == "vars":
        wrong = "expected vars.NAME=VALUE"
    elif outer and outer[0] not in stages:
        wrong = unknown(outer[0], [*stages, "vars"], "stage")
    elif not outer and key in stages:
        wrong = f"expected a key of a stage: {key}.KEY=VALUE"
    inner = tables
    for part in outer if not wrong else ():
        inner = inner.setdefault(part, {})
        if not isinstance(inner, dict):
            wrong = f"expected a table at {part}, found {shown(inner)}"
            break
    if wrong:
        problems.add("", f"--set {override}", wrong)
        return
    try:
        value = _locate(toml_value(written.strip()), Path.cwd(), len(outer))
    except ValueError as error:
        problems.add("", f"--set {target}=…", f"expected a value, found {error}")
        return
    old = variables.get(key) if outer == ["vars"] else None
    if wrong := _unquoted_list(target.strip(), value) or _other_kind(key, old, value):
        problems.add("", f"--set {override}", wrong)
        return
    inner[key] = value
    if not outer and key in ("seed", "seeds"):  # of which a recipe has one
        tables.pop("seeds" if key == "seed" else "seed", None)


def _unquoted_list(target: str, value: Any) -> str:
    """The fault of a list whose quotes the shell has taken, `[de,ko]`; empty for other values."""
    if not isinstance(value, str) or not (value.startswith("[") and value.endswith("]")):
        return ""
    if "{" in value:
        return (
            f"expected a list of tables, found {shown(value)}, whose quotes the shell has taken; put the whole of it "
            f"in single quotes and each text in double ones: --set '{target}=[{{ path = \"FILE\" }}]', for example"
        )
    items = json.dumps(
        [item.strip(" \"'") for item in value[1:-1].split(",")], ensure_ascii=False, separators=(",", ":")
    )
    return f"expected a list, found {shown(value)}, whose quotes the shell has taken; write --set '{target}={items}'"


def _other_kind(name: str, old: Any, new: Any) -> str:
    """The fault of a new value for a var that is true or false, or a list, in the recipe; empty for a right one."""
    if isinstance(old, bool) and not isinstance(new, bool):
        return f"expected true or false, found {shown(new)}"
    if isinstance(old, list) and isinstance(new, str):
        items = json.dumps([item.strip() for item in new.split(",")], ensure_ascii=False, separators=(",", ":"))
        return f"expected a list, found text; write --set 'vars.{name}={items}'"
    return ""


def toml_value(written: str) -> Any:
    """The value after `=` in `--set`: of TOML, else plain text (dates are text, for no setting is a date)."""
    try:
        table = _toml(f"value = {written}")
    except tomllib.TOMLDecodeError:
        return written
    plain = len(table) == 1 and isinstance(table["value"], bool | int | float | str | list | dict)
    return table["value"] if plain else written


def _fill(value: Any, values: Table, table: str, key: str, problems: Problems) -> Any:
    """`value` with its vars filled in; a text that is only `${var}` becomes the var's value, number or text.

    In a list such a text stands for all entries of a var that is a list: `["${own}", "c"]` is `["a", "b", "c"]`.
    """
    if isinstance(value, dict):
        prefix = f"{key}." if key else ""
        return {name: _fill(item, values, table, f"{prefix}{name}", problems) for name, item in value.items()}
    if isinstance(value, list):
        entries: list[Any] = []
        for position, item in enumerate(value):
            entry = _fill(item, values, table, f"{key}[{position}]", problems)
            entries += entry if isinstance(item, str) and isinstance(entry, list) else [entry]
        return entries
    if not isinstance(value, PathText):
        return value
    for var in VARIABLE.findall(value):
        if var not in values:
            hint = did_you_mean(var, values) or "; write it in [vars]"
            problems.add(table, key, f"${{{var}}} is not set{hint}")
    if only := VARIABLE.fullmatch(value):
        return values.get(only[1], value)
    written = {var: str(values[var]) for var in VARIABLE.findall(value) if var in values}
    if sum(len(written.get(var, "")) for var in VARIABLE.findall(value)) > MAX_CHARACTERS:
        problems.add(table, key, f"{TOO_MANY} when its vars are filled in")
        problems.raise_if_any()
    first = VARIABLE.match(value)
    leading = values.get(first[1]) if first else None
    base = leading.base if isinstance(leading, PathText) else value.base
    return PathText(VARIABLE.sub(lambda found: written.get(found[1], found[0]), value), base)


def _check_size(value: Any, table: str, key: str, problems: Problems) -> None:
    """Raises RequestError for a value with more in it than a recipe can need, which few lines could ask for.

    What is one object in memory counts each time.
    """
    left, waiting = MAX_VALUES, [value]
    while waiting:
        inner = waiting.pop()
        left -= 1 + (len(inner) if isinstance(inner, dict | list) else len(str(inner)) // 1000)
        if left < 0:
            problems.add(table, key, f"{TOO_MANY} when its vars are filled in")
            problems.raise_if_any()
        if isinstance(inner, dict | list):
            waiting.extend(inner.values() if isinstance(inner, dict) else inner)
