"""The values of settings, flat: which of them a fingerprint counts, and settings with some of them replaced.

A file counts by its content and suffix, never by its path; another stage's output by the fingerprint of that stage; a
hub id by its revision. Run-only settings do not count. Loads neither torch nor transformers.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bertrelay.fingerprint import Digests, Parts, note_folder
from bertrelay.inputs import note_input
from bertrelay.settings import RUN_ONLY, WHEN_SET, AnySettings, Settings, Source
from bertrelay.stage import Stage

COMPRESSED = {".gz", ".bz2", ".xz", ".zst"}


class Leaf(NamedTuple):
    """One value of a settings model: its dotted key (`train[0].path`), the value, and whether the result ignores it."""

    key: str
    value: Any
    run_only: bool


def leaves(settings: Settings) -> Iterator[Leaf]:
    """Every value of `settings`, flat, in the order of the fields."""
    for name, field in type(settings).model_fields.items():
        of_field = getattr(settings, name)
        run_only = RUN_ONLY in field.metadata or (WHEN_SET in field.metadata and of_field == field.default)
        for key, value in flatten(name, of_field):
            yield Leaf(key, value, run_only)


def flatten(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of each plain value in `value`; settings, tables and lists are entered."""
    if isinstance(value, Settings):
        for leaf in leaves(value):
            if not leaf.run_only:
                yield f"{key}.{leaf.key}", leaf.value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from flatten(f"{key}.{name}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from flatten(f"{key}[{index}]", item)
    else:
        yield key, value


def with_values(settings: AnySettings, replace: Callable[[str, Any], Any]) -> AnySettings:
    """`settings` with `replace(key, value)` for every value, keys as in `leaves`."""

    def walk(key: str, value: Any) -> Any:
        if isinstance(value, Settings):
            prefix = f"{key}." if key else ""
            return value.model_copy(
                update={name: walk(f"{prefix}{name}", getattr(value, name)) for name in type(value).model_fields}
            )
        if isinstance(value, dict):
            return {name: walk(f"{key}.{name}", item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(walk(f"{key}[{index}]", item) for index, item in enumerate(value))
        return replace(key, value)

    replaced: AnySettings = walk("", settings)
    return replaced


def with_stage_paths(settings: AnySettings, locate: Callable[[str, str], Path]) -> AnySettings:
    """`settings` with every `@stage/path` replaced by `locate(stage, path)`."""

    def located(_: str, value: Any) -> Any:
        reference = value.stage_reference if isinstance(value, Source) else None
        return type(value)(locate(*reference)) if reference else value

    return with_values(settings, located)


def is_auto_precision(key: str, value: object) -> bool:
    return key.rpartition(".")[2] == "precision" and value == "auto"


def parts_of(
    stage: Stage,
    settings: Any,
    digests: Digests,
    upstream: Callable[[str], str],
    revision: Callable[[Source], str],
    auto_precision: str | None = None,
) -> Parts:
    """What the result of `stage` with `settings` depends on.

    auto_precision: what precision `auto` means; when not given, what this machine computes in.
    upstream: name of another stage to its fingerprint.
    revision: the revision of a hub id that the recipe does not pin.
    """

    def part(key: str, value: Any) -> Any:
        if isinstance(value, Source):
            return _source_part(value, digests, upstream, revision)
        if is_auto_precision(key, value):
            from bertrelay.device import resolve_precision

            return auto_precision or resolve_precision(value)
        return value

    counted = {leaf.key: part(leaf.key, leaf.value) for leaf in leaves(settings) if not leaf.run_only}
    return {"uses": stage.kind, "uses.version": stage.version, **counted}


def content_parts(settings: Any, fields: Iterable[str], digests: Digests) -> Parts:
    """What depends on `fields` of a stage's settings, for naming what is kept in the cache.

    Such settings hold no reference to another stage any more; a hub id without a revision counts by its name.
    """
    wanted = set(fields)
    counted = [leaf for leaf in leaves(settings) if re.split(r"[.\[]", leaf.key)[0] in wanted and not leaf.run_only]
    for leaf in counted:  # before its digest: what is added from here on is of another name
        if isinstance(leaf.value, Source) and leaf.value.folder and leaf.value.folder.is_dir():
            note_folder(leaf.value.folder)
    return {
        leaf.key: _source_part(leaf.value, digests, str, lambda _: "") if isinstance(leaf.value, Source) else leaf.value
        for leaf in counted
    }


def _source_part(
    value: Source,
    digests: Digests,
    upstream: Callable[[str], str],
    revision: Callable[[Source], str],
) -> str:
    if value.stage_reference:
        stage, inner = value.stage_reference
        return f"output:{upstream(stage)}/{inner}"
    if path := value.folder:
        if path.is_dir():
            return f"folder:{digests.of_folder(path)}"
        note_input(path)
        # The suffix by which a file is read counts: `.tsv`, `.tsv.gz`.
        inner = Path(path.stem).suffix if path.suffix.lower() in COMPRESSED else ""
        return f"file:{f'{inner}{path.suffix}'.lower()}:{digests.of_file(path)}"
    return f"hub:{value.hub_id}@{value.revision or revision(value)}"
