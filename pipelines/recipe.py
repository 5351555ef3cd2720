"""Recipes: TOML, `--set` and `${var}` to validated steps in the order of a run."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertrelay.errors import RequestError
from bertrelay.privacy import is_sensitive
from bertrelay.settings import MAX_SEED, InputFile, PathText, Settings, Source, leaves, names_sensitive
from bertrelay.stage import Stage
from pipelines.validation import Problems, add_validation_errors, did_you_mean, shown, unknown

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


def read_tables(source: RecipeText, overrides: Sequence[str], problems: Problems) -> Table:
    """The recipe's tables with overrides set and `${var}` replaced; each text knows where its paths count from."""
    try:
        tables = _locate(_toml(source.text), source.folder)
    except ValueError as error:
        raise RequestError(f"{source.title}: expected TOML, found a slip in writing: {error}") from error
    for override in overrides:
        _apply(tables, override, source.text, problems)
    return _substitute_all(tables, problems)


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
        return PathText(value, base)
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(TOO_LARGE)
    if isinstance(value, dict):
        return {key: _locate(item, base, depth + 1) for key, item in value.items()}
    return [_locate(item, base, depth + 1) for item in value] if isinstance(value, list) else value


def _apply(tables: Table, override: str, text: str, problems: Problems) -> None:
    """Sets `a.b=VALUE` in `tables`, which are ours, or notes why it cannot."""
    target, equals, written = override.partition("=")
    keys = [key.strip() for key in target.split(".")]
    wrong = "expected KEY=VALUE, such as student.epochs=2" if not equals else _wrong_target(tables, keys, text)
    if wrong:
        problems.add("", f"--set {override}", wrong)
        return
    for other in {"seed", "seeds"} & {keys[0]}:
        tables.pop("seeds" if other == "seed" else "seed", None)
    inner = tables
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            problems.add("", f"--set {override}", f"expected a table at {key}, found {shown(inner)}")
            return
    try:
        inner[keys[-1]] = _locate(toml_value(written.strip()), Path.cwd(), len(keys) - 1)
    except ValueError as error:
        problems.add("", f"--set {override[:SHOWN]}…", f"expected a value, found {error}")


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


def _substitute_all(tables: Table, problems: Problems) -> Table:
    written = tables.get("vars", {})
    if not isinstance(written, dict):
        problems.add("vars", "", f"expected a table, found {shown(written)}")
        written = {}
    values: Table = {}
    for name, value in written.items():  # a var may use those above it
        values[name] = _substitute(value, values, problems, "vars", name)
    rest = {
        table: _substitute(value, values, problems, table, "") for table, value in tables.items() if table != "vars"
    }
    return {"vars": values, **rest}


def _substitute(value: Any, values: Mapping[str, Any], problems: Problems, table: str, key: str) -> Any:
    if isinstance(value, PathText):
        return _fill(value, values, problems, table, key)
    if isinstance(value, dict):
        return {
            name: _substitute(item, values, problems, table, f"{key}.{name}" if key else name)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_substitute(item, values, problems, table, f"{key}[{n}]") for n, item in enumerate(value)]
    return value


def _fill(text: PathText, values: Mapping[str, Any], problems: Problems, table: str, key: str) -> Any:
    """`text` with its vars filled in; one that is only `${var}` becomes the var's value, number or text."""
    unset = [name for name in VARIABLE.findall(text) if name not in values]
    for name in unset:
        problems.add(table, key, f"${{{name}}} is not set" + (did_you_mean(name, values) or "; write it in [vars]"))
    if unset:
        return text
    only = VARIABLE.fullmatch(text)
    if only:
        return values[only[1]]
    first = VARIABLE.match(text)
    leading = values[first[1]] if first else text
    base = leading.base if isinstance(leading, PathText) else text.base
    return PathText(VARIABLE.sub(lambda found: str(values[found[1]]), text), base)


NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
MAX_NAME = 100
FOLDER_NAME = f"letters, digits, - and _ (it names a folder), {MAX_NAME} bytes at most"
STAGE_NAME = re.compile(r"[A-Za-z0-9][\w-]*")
REFERENCE = re.compile(r"@([\w-]+)(/.*)?")

SENSITIVE = "sensitive"
"""The key, beside `uses`, by which the table of any stage says that it reads sensitive data."""

Key = tuple[str, int | None]


@dataclass(frozen=True)
class Step:
    """One stage of a recipe, for one seed where the stage is repeated.

    sensitive: whether sensitive data is in what it is made of, be it only what a model has learnt from.
    reads_sensitive: whether it reads such data itself.
    """

    name: str
    seed: int | None
    stage: Stage
    settings: Settings
    needs: tuple[Key, ...]
    sensitive: bool = False
    reads_sensitive: bool = False

    @property
    def key(self) -> Key:
        return self.name, self.seed

    @property
    def label(self) -> str:
        return self.name if self.seed is None else f"{self.name} (seed {self.seed})"

    @property
    def sources(self) -> Iterator[tuple[str, Source]]:
        """The keys and values that name a file, a model or a data set."""
        return ((leaf.key, leaf.value) for leaf in leaves(self.settings) if isinstance(leaf.value, Source))


@dataclass(frozen=True)
class Recipe:
    """What is to be run: steps in an order in which each comes after what it needs.

    group_read: whether the group of a file may read what stages make of sensitive data.
    """

    name: str
    source: RecipeText
    vars: Table
    seeds: tuple[int, ...]
    steps: tuple[Step, ...]
    group_read: bool = False

    @property
    def stage_names(self) -> list[str]:
        return list(dict.fromkeys(step.name for step in self.steps))


@dataclass(frozen=True)
class _Seeds:
    """`seed = 7` is given to stages once; `seeds = [1, 2]` repeats them."""

    values: tuple[int, ...]
    repeated: bool


def read_recipe(recipe: str, registry: Sequence[Stage], overrides: Sequence[str] = ()) -> Recipe:
    """The recipe at a path or of a built-in name.

    Raises RequestError with all its problems, each with its table and key, what was found and what is allowed.
    """
    source = find_recipe(recipe)
    problems = Problems(source.title)
    tables = read_tables(source, overrides, problems)
    name, seeds = _name(tables, source, problems), _seeds(tables, problems)
    _check_flag("", "group_read", tables, problems)
    stages = _stages(tables, registry, problems)
    marked = {stage for stage in stages if _check_flag(stage, SENSITIVE, tables[stage], problems) or is_sensitive()}
    settings = {stage: _settings(stage, tables[stage], kind, seeds, problems) for stage, kind in stages.items()}
    needs = {stage: _needs(stage, tables, settings.get(stage), problems) for stage in _stage_tables(tables)}
    order = _order(needs, problems)
    problems.raise_if_any()
    steps = _steps(order, stages, settings, needs, seeds, marked)
    return Recipe(name, source, tables["vars"], seeds.values, tuple(steps), tables.get("group_read", False))


def _name(tables: Table, source: RecipeText, problems: Problems) -> str:
    name = tables.get("name", source.stem)
    if not isinstance(name, str) or not _names_folder(name, NAME):
        problems.add("", "name", f"expected {FOLDER_NAME}, found {shown(name)}")
    return str(name)


def _names_folder(name: str, pattern: re.Pattern[str]) -> bool:
    return pattern.fullmatch(name) is not None and len(name.encode()) <= MAX_NAME


def _seeds(tables: Table, problems: Problems) -> _Seeds:
    repeated = "seeds" in tables
    if repeated and "seed" in tables:
        problems.add("", "seeds", "expected seed or seeds, found both")
    elif repeated and not _are_seeds(tables["seeds"]):
        problems.add(
            "",
            "seeds",
            f"expected different whole numbers of 0 to {MAX_SEED:,}, as [1, 2, 3], found {shown(tables['seeds'])}",
        )
    elif "seed" in tables and not _are_seeds([tables["seed"]]):
        problems.add("", "seed", f"expected a whole number from 0 to {MAX_SEED:,}, found {shown(tables['seed'])}")
    else:
        return _Seeds(tuple(tables["seeds"] if repeated else [tables["seed"]] if "seed" in tables else []), repeated)
    return _Seeds((), False)


def _check_flag(name: str, key: str, table: Table, problems: Problems) -> bool:
    """Whether `key` is set in a table; notes what is neither true nor false."""
    found = table.get(key, False)
    if not isinstance(found, bool):
        problems.add(name, key, f"expected true or false, found {shown(found)}")
    return found is True


def _are_seeds(written: Any) -> bool:
    whole = isinstance(written, list) and all(type(seed) is int and 0 <= seed <= MAX_SEED for seed in written)
    return whole and 0 < len(set(written)) == len(written)


def _stage_tables(tables: Table) -> list[str]:
    return [name for name, table in tables.items() if name != "vars" and isinstance(table, dict)]


def _stages(tables: Table, registry: Sequence[Stage], problems: Problems) -> dict[str, Stage]:
    """The kind of each stage table that has a right one."""
    kinds = {stage.kind: stage for stage in registry}
    found = {}
    for name, table in tables.items():
        if name in TOP_KEYS or name == "vars":
            continue
        if not isinstance(table, dict):
            hint = did_you_mean(name, TOP_KEYS) or "."
            problems.add("", name, f"unknown key{hint} Allowed: {', '.join(TOP_KEYS)}, [vars] and tables of stages")
        elif "uses" not in table:
            hint = did_you_mean(name, ["vars"])
            problems.add(name, "uses", f"is required and missing{hint} Allowed: {', '.join(kinds)}")
        elif not isinstance(table["uses"], str) or table["uses"] not in kinds:
            problems.add(
                name, "uses", f"found {shown(table['uses'])}: {unknown(str(table['uses']), list(kinds), 'kind')}"
            )
        else:
            found[name] = kinds[table["uses"]]
        if isinstance(table, dict) and not _names_folder(name, STAGE_NAME):
            problems.add(name[:MAX_NAME], "", f"expected the name of a stage, {FOLDER_NAME}")
    if not any(isinstance(table, dict) for name, table in tables.items() if name != "vars"):
        problems.add("", "", "expected at least one stage, a table with `uses`, found none")
    return found


def _settings(name: str, table: Table, kind: Stage, seeds: _Seeds, problems: Problems) -> dict[int | None, Settings]:
    """The settings of a stage: under None, or under each seed that it is repeated with."""
    model = kind.load_settings()
    written = {key: value for key, value in table.items() if key not in ("uses", SENSITIVE)}
    takes_seed = "seed" in model.model_fields and "seed" not in written
    variants: dict[int | None, Table] = {None: written}
    if takes_seed and seeds.values:
        given: list[int | None] = list(seeds.values) if seeds.repeated else [None]
        variants = {key: {**written, "seed": seed} for key, seed in zip(given, seeds.values, strict=True)}
    try:
        return {seed: model.model_validate(values) for seed, values in variants.items()}
    except ValidationError as error:
        add_validation_errors(problems, name, model, error)
        return {}


def _needs(
    name: str, tables: Table, settings: Mapping[int | None, Settings] | None, problems: Problems
) -> dict[str, None]:
    """The stages that stage `name` refers to, in the order it names them."""
    others = [other for other in _stage_tables(tables) if other != name]
    found: dict[str, None] = {}
    for key, other in _references(tables[name], settings):
        if other == name:
            problems.add(name, key, f"@{other} is this stage itself; a stage cannot need its own output")
        elif other not in others:
            problems.add(name, key, f"found @{other}: {unknown(other, others, 'stage')}")
        else:
            found[other] = None
    return found


def _references(table: Table, settings: Mapping[int | None, Settings] | None) -> list[tuple[str, str]]:
    """(key, stage) of every `@stage/path`; of a stage with problems, of every value that looks like one."""
    if not settings:
        return list(_raw_references("", table))
    sources = [leaf for leaf in leaves(next(iter(settings.values()))) if isinstance(leaf.value, Source)]
    return [(leaf.key, leaf.value.stage_reference[0]) for leaf in sources if leaf.value.stage_reference]


def _raw_references(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _raw_references(f"{key}.{name}" if key else name, item)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _raw_references(f"{key}[{number}]", item)
    elif isinstance(value, str) and (found := REFERENCE.fullmatch(value)):
        yield key, found[1]


def _order(needs: Mapping[str, Mapping[str, None]], problems: Problems) -> list[str]:
    """The stages, each after what it needs, else as they are written; notes every cycle."""
    done: dict[str, None] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            problems.add("", "", f"stages need each other in a circle: {_circle(path[path.index(name) :])}")
        elif name not in done:
            for other in needs[name]:
                visit(other, (*path, name))
            done[name] = None

    for name in needs:
        visit(name, ())
    return list(done)


def _circle(names: Sequence[str]) -> str:
    """The circle from its alphabetically first stage, so that one found from several stages is one problem."""
    first = names.index(min(names))
    return " → ".join(f"[{name}]" for name in (*names[first:], *names[:first], names[first]))


def _steps(
    order: Sequence[str],
    stages: Mapping[str, Stage],
    settings: Mapping[str, Mapping[int | None, Settings]],
    needs: Mapping[str, Mapping[str, None]],
    seeds: _Seeds,
    marked: set[str],
) -> Iterator[Step]:
    """The steps in order; what hangs on a repeated stage is repeated with it, what is made of sensitive data is too.

    marked: the stages that the recipe says read sensitive data.
    """
    repeated: set[str] = set()
    sensitive: set[str] = set()
    for name in order:
        variants = settings[name]
        reads = name in marked or stages[name].sensitive or _reads_sensitive(next(iter(variants.values())), sensitive)
        if reads or sensitive.intersection(needs[name]):
            sensitive.add(name)
        if None not in variants or repeated.intersection(needs[name]):
            repeated.add(name)
        for seed in seeds.values if name in repeated else [None]:
            upstream = tuple((other, seed if other in repeated else None) for other in needs[name])
            chosen = variants[seed] if seed in variants else variants[None]
            yield Step(name, seed, stages[name], chosen, upstream, name in sensitive, reads)


def _reads_sensitive(settings: Settings, sensitive: set[str]) -> bool:
    """Whether a source is marked as sensitive, or is a file that one of the stages `sensitive` wrote."""
    files = [leaf.value.stage_reference for leaf in leaves(settings) if isinstance(leaf.value, InputFile)]
    return names_sensitive(settings) or any(found and found[0] in sensitive for found in files)
