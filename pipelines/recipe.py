"""A recipe, read and checked: the steps of a run in their order, each with its settings.

A step is one stage for one seed. What a recipe does not repeat over `seeds` has the seed None.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from bertrelay.privacy import is_sensitive
from bertrelay.settings import MAX_SEED, InputFile, Settings, Source, leaves, names_sensitive
from bertrelay.stage import Stage
from pipelines.mistakes import Mistakes, add_validation_mistakes, did_you_mean, shown, unknown
from pipelines.source import TOP_KEYS, RecipeText, Table, find_recipe, read_tables

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

    Raises RequestError with all its mistakes, each with its table and key, what was found and what is allowed.
    """
    source = find_recipe(recipe)
    mistakes = Mistakes(source.title)
    tables = read_tables(source, overrides, mistakes)
    name, seeds = _name(tables, source, mistakes), _seeds(tables, mistakes)
    _check_flag("", "group_read", tables, mistakes)
    stages = _stages(tables, registry, mistakes)
    marked = {stage for stage in stages if _check_flag(stage, SENSITIVE, tables[stage], mistakes) or is_sensitive()}
    settings = {stage: _settings(stage, tables[stage], kind, seeds, mistakes) for stage, kind in stages.items()}
    needs = {stage: _needs(stage, tables, settings.get(stage), mistakes) for stage in _stage_tables(tables)}
    order = _order(needs, mistakes)
    mistakes.raise_if_any()
    steps = _steps(order, stages, settings, needs, seeds, marked)
    return Recipe(name, source, tables["vars"], seeds.values, tuple(steps), tables.get("group_read", False))


def _name(tables: Table, source: RecipeText, mistakes: Mistakes) -> str:
    name = tables.get("name", source.stem)
    if not isinstance(name, str) or not _names_folder(name, NAME):
        mistakes.add("", "name", f"expected {FOLDER_NAME}, found {shown(name)}")
    return str(name)


def _names_folder(name: str, pattern: re.Pattern[str]) -> bool:
    return pattern.fullmatch(name) is not None and len(name.encode()) <= MAX_NAME


def _seeds(tables: Table, mistakes: Mistakes) -> _Seeds:
    repeated = "seeds" in tables
    if repeated and "seed" in tables:
        mistakes.add("", "seeds", "expected seed or seeds, found both")
    elif repeated and not _are_seeds(tables["seeds"]):
        mistakes.add(
            "",
            "seeds",
            f"expected different whole numbers of 0 to {MAX_SEED:,}, as [1, 2, 3], found {shown(tables['seeds'])}",
        )
    elif "seed" in tables and not _are_seeds([tables["seed"]]):
        mistakes.add("", "seed", f"expected a whole number from 0 to {MAX_SEED:,}, found {shown(tables['seed'])}")
    else:
        return _Seeds(tuple(tables["seeds"] if repeated else [tables["seed"]] if "seed" in tables else []), repeated)
    return _Seeds((), False)


def _check_flag(name: str, key: str, table: Table, mistakes: Mistakes) -> bool:
    """Whether `key` is set in a table; notes what is neither true nor false."""
    found = table.get(key, False)
    if not isinstance(found, bool):
        mistakes.add(name, key, f"expected true or false, found {shown(found)}")
    return found is True


def _are_seeds(written: Any) -> bool:
    whole = isinstance(written, list) and all(type(seed) is int and 0 <= seed <= MAX_SEED for seed in written)
    return whole and 0 < len(set(written)) == len(written)


def _stage_tables(tables: Table) -> list[str]:
    return [name for name, table in tables.items() if name != "vars" and isinstance(table, dict)]


def _stages(tables: Table, registry: Sequence[Stage], mistakes: Mistakes) -> dict[str, Stage]:
    """The kind of each stage table that has a right one."""
    kinds = {stage.kind: stage for stage in registry}
    found = {}
    for name, table in tables.items():
        if name in TOP_KEYS or name == "vars":
            continue
        if not isinstance(table, dict):
            hint = did_you_mean(name, TOP_KEYS) or "."
            mistakes.add("", name, f"unknown key{hint} Allowed: {', '.join(TOP_KEYS)}, [vars] and tables of stages")
        elif "uses" not in table:
            hint = did_you_mean(name, ["vars"])
            mistakes.add(name, "uses", f"is required and missing{hint} Allowed: {', '.join(kinds)}")
        elif not isinstance(table["uses"], str) or table["uses"] not in kinds:
            mistakes.add(
                name, "uses", f"found {shown(table['uses'])}: {unknown(str(table['uses']), list(kinds), 'kind')}"
            )
        else:
            found[name] = kinds[table["uses"]]
        if isinstance(table, dict) and not _names_folder(name, STAGE_NAME):
            mistakes.add(name[:MAX_NAME], "", f"expected the name of a stage, {FOLDER_NAME}")
    if not any(isinstance(table, dict) for name, table in tables.items() if name != "vars"):
        mistakes.add("", "", "expected at least one stage, a table with `uses`, found none")
    return found


def _settings(name: str, table: Table, kind: Stage, seeds: _Seeds, mistakes: Mistakes) -> dict[int | None, Settings]:
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
        add_validation_mistakes(mistakes, name, model, error)
        return {}


def _needs(
    name: str, tables: Table, settings: Mapping[int | None, Settings] | None, mistakes: Mistakes
) -> dict[str, None]:
    """The stages that stage `name` refers to, in the order it names them."""
    others = [other for other in _stage_tables(tables) if other != name]
    found: dict[str, None] = {}
    for key, other in _references(tables[name], settings):
        if other == name:
            mistakes.add(name, key, f"@{other} is this stage itself; a stage cannot need its own output")
        elif other not in others:
            mistakes.add(name, key, f"found @{other}: {unknown(other, others, 'stage')}")
        else:
            found[other] = None
    return found


def _references(table: Table, settings: Mapping[int | None, Settings] | None) -> list[tuple[str, str]]:
    """(key, stage) of every `@stage/path`; of a stage with mistakes, of every value that looks like one."""
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


def _order(needs: Mapping[str, Mapping[str, None]], mistakes: Mistakes) -> list[str]:
    """The stages, each after what it needs, else as they are written; notes every cycle."""
    done: dict[str, None] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            mistakes.add("", "", f"stages need each other in a circle: {_circle(path[path.index(name) :])}")
        elif name not in done:
            for other in needs[name]:
                visit(other, (*path, name))
            done[name] = None

    for name in needs:
        visit(name, ())
    return list(done)


def _circle(names: Sequence[str]) -> str:
    """The circle from its alphabetically first stage, so that one met from several sides is one mistake."""
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
