"""The settings of stages with their descriptions: for help, `bertrelay recipes STAGE`, and the tables in docs.

`python -m pipelines.recipe.settings_table docs/*.md` updates these tables.
"""

import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bertrelay.settings import Settings, UsedWith, descriptions
from bertrelay.stage import Stage, load
from pipelines.registry import REGISTRY

TYPES = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "NoneType": ""}
MODELS = ["ModelSource", "EncoderSource", "TaggerSource", "AnswererSource", "PredictorSource", "ScorerSource"]
KINDS = dict.fromkeys(MODELS, "model")
KINDS |= {"InputFile": "file", "HubDataset": "data set of the hub"}

MARKED = re.compile(r"(<!-- settings of ([\w.:-]+):((?: \w+)+) -->\n).*?(<!-- end -->)", re.DOTALL)
"""The position of a table of settings of a stage, or of `module:Class`, in a page."""


def help_texts(model: type[BaseModel]) -> dict[str, str]:
    """Setting to description, followed by the values of other settings with which it has an effect."""
    texts = descriptions(model)
    for name, field in model.model_fields.items():
        conditions = " and ".join(str(mark) for mark in field.metadata if isinstance(mark, UsedWith))
        if conditions:
            texts[name] += f" {conditions[0].upper()}{conditions[1:]}."
    return texts


def settings_lines(stage: Stage) -> Iterator[str]:
    """The settings of a stage for a reader: a line for each, and its description below."""
    yield f"{stage.kind}: {stage.summary}"
    for key, kind, default, description in settings_rows(stage.load_settings()):
        yield f"\n{key}  ({', '.join(filter(None, [kind, default]))})"
        if description:
            yield f"    {description}"


def settings_rows(settings: type[Settings]) -> Iterator[tuple[str, str, str, str]]:
    """(setting, type, default, description) of each field."""
    texts = help_texts(settings)
    for name, field in settings.model_fields.items():
        yield name, _type(field.annotation), _default(field), texts.get(name, "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None or isinstance(value, BaseModel) or value == {} else str(value)


def _type(annotation: Any) -> str:
    """A type in words of TOML: `text`, `list of file`, `fp32 or int8`."""
    kind, arguments = get_origin(annotation), get_args(annotation)
    if kind is Literal:
        return " or ".join(map(str, arguments))
    if kind is list:
        return f"list of {_type(arguments[0])}"
    if kind is dict:
        return f"table of {_type(arguments[1])} by name"
    if hasattr(annotation, "__metadata__"):
        return _type(arguments[0])
    if arguments:
        return " or ".join(dict.fromkeys(filter(None, map(_type, arguments))))
    name = getattr(annotation, "__name__", str(annotation))
    return KINDS.get(name) or TYPES.get(name, "table")


def with_tables(page: str) -> str:
    """Replaces the tables at the markers of `page` by those of the settings."""
    stages = {stage.kind: stage.settings for stage in REGISTRY}

    def table(marker: re.Match[str]) -> str:
        """The rows of the marker's settings; neighbours that differ in nothing but their names share one."""
        rows = {key: " | ".join(rest) for key, *rest in settings_rows(load(stages.get(marker[2], marker[2])))}
        lines = ["| setting | value | default | |", "|---|---|---|---|"]
        for row, keys in groupby(marker[3].split(), key=rows.__getitem__):
            lines.append(f"| {', '.join(f'`{key}`' for key in keys)} | {row} |")
        return "\n".join([marker[1].rstrip("\n"), *lines, marker[4]])

    return MARKED.sub(table, page)


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(with_tables(file.read_text("utf-8")), "utf-8")
