"""Recipes as validated steps in the order of a run."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from bertrelay.compute.engine import LOCAL_ENGINE, Engine
from bertrelay.fingerprint import flatten, leaves
from bertrelay.privacy import is_sensitive
from bertrelay.settings import InputFile, Seed, Settings, Source, names_sensitive
from bertrelay.stage import Stage
from pipelines.recipe.text import RecipeText, Table, find_recipe, read_tables
from pipelines.recipe.validation import Problems, add_validation_errors, did_you_mean, shown, unknown

REFERENCE = re.compile(r"@([\w-]+)(/.*)?")
NAME, STAGE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*"), re.compile(r"[A-Za-z0-9][\w-]*")
MAX_NAME = 100
STAGE_KEYS = ("uses", "sensitive")
"""The keys of a stage's table that any stage has; the others are its settings."""
FOLDER_NAME = f"letters, digits, - and _{{}} (it names a folder), {MAX_NAME} bytes at most"


def _names_folder(name: str, pattern: re.Pattern[str]) -> bool:
    return pattern.fullmatch(name) is not None and len(name.encode()) <= MAX_NAME


def _recipe_name(name: str) -> str:
    if not _names_folder(name, NAME):
        allowed = FOLDER_NAME.format(", and . behind the first")
        raise ValueError(f"expected {allowed}, found {shown(name)}; give the recipe such a `name`")
    return name


class RecipeSettings(Engine):
    """Keys of a recipe that are not in a stage's table; those of `Engine` are for the stages that run on Ray."""

    name: Annotated[str, AfterValidator(_recipe_name)] = "recipe"
    """Name of the recipe, and of its folder of results."""
    seed: Seed | None = None
    """Seed of the stages that set none."""
    seeds: Annotated[list[Seed], Field(min_length=1)] | None = None
    """Seeds to repeat these stages with, and what needs them."""
    group_read: bool = False
    """Let the group of a file read what stages make of sensitive data."""

    @model_validator(mode="after")
    def _consistent_seeds(self) -> Self:
        if self.seed is not None and self.seeds is not None:
            raise ValueError("expected seed or seeds, found both")
        if self.seeds and len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: expected different whole numbers, as [1, 2, 3], found {self.seeds}")
        return self

    @property
    def variants(self) -> dict[int | None, int]:
        """The seeds of a stage that writes none, by what names its repetition; None names the only one."""
        if self.seeds:
            return {seed: seed for seed in self.seeds}
        return {} if self.seed is None else {None: self.seed}


Key = tuple[str, int | None]


@dataclass(frozen=True)
class Step:
    """One stage of a recipe, for one seed where the stage is repeated.

    sensitive: whether sensitive data is in what it is made of, be it only what a model was trained on.
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
        return _sources(self.settings)


def _sources(settings: Settings) -> Iterator[tuple[str, Source]]:
    return ((leaf.key, leaf.value) for leaf in leaves(settings) if isinstance(leaf.value, Source))


@dataclass(frozen=True)
class Recipe:
    """Steps to run, in an order in which each comes after what it needs."""

    name: str
    source: RecipeText
    seeds: tuple[int, ...]
    steps: tuple[Step, ...]
    group_read: bool = False
    engine: Engine = LOCAL_ENGINE

    @property
    def stage_names(self) -> list[str]:
        return list(dict.fromkeys(step.name for step in self.steps))


def read_recipe(recipe: str, registry: Sequence[Stage], overrides: Sequence[str] = ()) -> Recipe:
    """The recipe at a path or of a built-in name.

    Raises RequestError with all its problems, each with its table and key, what was found and what is allowed.
    """
    source = find_recipe(recipe)
    problems = Problems(source.title)
    tables = read_tables(source, overrides, problems)
    keys = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    tables = {name: table for name, table in tables.items() if isinstance(table, dict)}
    stages = _stages(tables, registry, problems)
    for key in _of_a_stage(keys, stages, problems):
        del keys[key]
    top = _validated(RecipeSettings, {"name": source.stem, **keys}, "", problems) or RecipeSettings()
    settings = {name: _settings(name, tables[name], stage, top, problems) for name, stage in stages.items()}
    needs = {name: _needs(name, tables, settings.get(name), problems) for name in tables}
    order = _order(needs, problems)
    problems.raise_if_any()
    marked = {name for name, table in tables.items() if is_sensitive() or table.get("sensitive")}
    steps = _steps(order, stages, settings, needs, marked)
    engine = Engine(**top.model_dump(include=set(Engine.model_fields)))
    return Recipe(top.name, source, tuple(top.variants.values()), tuple(steps), top.group_read, engine)


def _validated(model: type[Settings], values: Table, table: str, problems: Problems) -> Any:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        add_validation_errors(problems, table, model, error)
        return None


def _stages(tables: Table, registry: Sequence[Stage], problems: Problems) -> dict[str, Stage]:
    """The kind of each stage table that has a valid one."""
    kinds = {stage.kind: stage for stage in registry}
    stages = {}
    for name, table in tables.items():
        kind, sensitive = table.get("uses"), table.get("sensitive", False)
        if "uses" not in table:
            hint = did_you_mean(name, ["vars"])
            problems.add(name, "uses", f"is required and missing{hint} Allowed: {', '.join(kinds)}")
        elif not isinstance(kind, str) or kind not in kinds:
            problems.add(name, "uses", f"found {shown(kind)}: {unknown(str(kind), list(kinds), 'kind')}")
        else:
            stages[name] = kinds[kind]
        if not isinstance(sensitive, bool):
            problems.add(name, "sensitive", f"expected true or false, found {shown(sensitive)}")
        if not _names_folder(name, STAGE_NAME):
            problems.add(name[:MAX_NAME], "", f"expected the name of a stage, {FOLDER_NAME.format('')}")
    if not tables:
        problems.add("", "", "expected at least one stage, a table with `uses`, found none")
    return stages


def _of_a_stage(keys: Table, stages: Mapping[str, Stage], problems: Problems) -> list[str]:
    """Notes those of the recipe's own `keys` that are settings of a stage, with where to write them."""
    misplaced = []
    for key in keys.keys() - RecipeSettings.model_fields:
        if having := [name for name, stage in stages.items() if key in stage.load_settings().model_fields]:
            misplaced.append(key)
            settings = " or ".join(f"{name}.{key}" for name in having)
            problems.add("", key, f"is a setting of a stage: write {settings}, as in --set {having[-1]}.{key}=…")
    return misplaced


def _settings(
    name: str, table: Table, stage: Stage, top: RecipeSettings, problems: Problems
) -> dict[int | None, Settings]:
    """The settings of a stage: under None, or under each seed that it is repeated with; empty for invalid ones."""
    model = stage.load_settings()
    written = {key: value for key, value in table.items() if key not in STAGE_KEYS}
    takes_seed = "seed" in model.model_fields and "seed" not in written
    variants = {key: written | {"seed": seed} for key, seed in top.variants.items()} if takes_seed else {}
    settings = {key: _validated(model, values, name, problems) for key, values in (variants or {None: written}).items()}
    return {key: valid for key, valid in settings.items() if valid is not None}


def _needs(
    name: str, tables: Table, settings: Mapping[int | None, Settings] | None, problems: Problems
) -> dict[str, None]:
    """The stages that stage `name` refers to by `@stage/path`, in the order it names them."""
    if settings:
        sources = _sources(next(iter(settings.values())))
        references = [(key, source.stage_reference[0]) for key, source in sources if source.stage_reference]
    else:  # it has problems: every value that looks like a reference is one
        values = (leaf for key, value in tables[name].items() for leaf in flatten(key, value))
        matches = ((key, REFERENCE.fullmatch(value)) for key, value in values if isinstance(value, str))
        references = [(key, match[1]) for key, match in matches if match]
    others = [other for other in tables if other != name]
    needs: dict[str, None] = {}
    for key, other in references:
        if other == name:
            problems.add(name, key, f"@{other} is this stage itself; a stage cannot need its own output")
        elif other not in others:
            problems.add(name, key, f"found @{other}: {unknown(other, others, 'stage')}")
        else:
            needs[other] = None
    return needs


def _order(needs: Mapping[str, Mapping[str, None]], problems: Problems) -> list[str]:
    """The stages, each after what it needs, else as they are written; notes every cycle."""
    done: dict[str, None] = {}
    path: dict[str, Iterator[str]] = {}  # the stages on the way to one, and of each what else it needs

    for first in needs:
        waiting = [first] if first not in done else []
        while waiting:  # and no function that calls itself: a chain may be of any length
            name = waiting[-1]
            other = next(path.setdefault(name, iter(needs[name])), None)
            if other is None:
                done[waiting.pop()] = None
                del path[name]
            elif other in path:
                problems.add("", "", f"stages need each other in a circle: {_circle(waiting, other)}")
            elif other not in done:
                waiting.append(other)
    return list(done)


def _circle(path: Sequence[str], name: str) -> str:
    """The circle that closes with `name`, from its first stage in the alphabet: one problem, however it is found."""
    cycle = path[path.index(name) :]
    first = cycle.index(min(cycle))
    return " → ".join(f"[{stage}]" for stage in (*cycle[first:], *cycle[:first], cycle[first]))


def _steps(
    order: Sequence[str],
    stages: Mapping[str, Stage],
    settings: Mapping[str, Mapping[int | None, Settings]],
    needs: Mapping[str, Mapping[str, None]],
    marked: set[str],
) -> Iterator[Step]:
    """The steps in order: what needs a repeated stage is repeated with it, what is made of sensitive data is sensitive.

    marked: the stages that the recipe declares to read sensitive data.
    """
    seeds: dict[str, list[int | None]] = {}
    sensitive: set[str] = set()
    for name in order:
        variants = settings[name]
        first = next(iter(variants.values()))
        files = (source.stage_reference for _, source in _sources(first) if isinstance(source, InputFile))
        reads = name in marked or stages[name].sensitive or names_sensitive(first)
        reads = reads or any(written and written[0] in sensitive for written in files)
        if reads or sensitive.intersection(needs[name]):
            sensitive.add(name)
        seeds[name] = next(
            (those for those in (list(variants), *(seeds[other] for other in needs[name])) if those != [None]), [None]
        )
        for seed in seeds[name]:
            upstream = tuple((other, None if seeds[other] == [None] else seed) for other in needs[name])
            chosen = variants[seed] if seed in variants else variants[None]
            yield Step(name, seed, stages[name], chosen, upstream, name in sensitive, reads)
