"""The settings of stages with their descriptions: for help, `bertrelay recipes STAGE`, and the tables in docs.

`python -m pipelines.settings_table docs/*.md` writes these tables again.
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

ENTRY = re.compile(r"((?:\w+, )*\w+): (.+)")
TYPES = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "NoneType": ""}
KINDS = dict.fromkeys(["ModelSource", "EncoderSource", "TaggerSource", "AnswererSource", "ScorerSource"], "model")
KINDS |= {"InputFile": "file", "HubDataset": "data set of the hub"}

MARKED = re.compile(r"(<!-- settings of ([\w.:-]+):((?: \w+)+) -->\n).*?(<!-- end -->)", re.DOTALL)
"""Where the table of some settings of a stage, or of `module:Class`, is in a page."""

COMMON = {
    "model": "A model folder, `@stage/model`, `package:name/path` or a hub id.",
    "precision": "auto is bf16 where the hardware computes in it, else fp32.",
    "batch_tokens": "Most tokens in a batch, padding included; less needs less memory.",
    "max_rejects": "Share of records that may be unusable.",
    "seed": "Of all that is random.",
    "prompt": "Which of the model's prompts precedes each sentence; the model's default when absent.",
    "format": "Format of the input; found by its name, or else its content, when absent.",
    "with_text": "Show text and ids of sensitive data too.",
}
"""Settings that mean the same in most stages, where a stage does not describe them itself."""


def described(model: type[BaseModel]) -> dict[str, str]:
    """Setting to description: the `name: text` lines of the class and its bases, else the field's own, or `COMMON`."""
    fields = model.model_fields
    found = {name: fields[name].description or COMMON.get(name, "") for name in fields}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            for line in re.sub(r"\n {8,}", " ", base.__doc__ or "").splitlines():  # a text continues in indented lines
                entry = ENTRY.fullmatch(line.strip())
                names = entry[1].split(", ") if entry else []
                if entry and all(name in fields for name in names):
                    found |= {name: _sentence(entry[2], fields[name].annotation) for name in names}
    texts = {name: text for name, text in descriptions(model).items() if text}
    marks = {
        name: " ".join(str(mark) for mark in fields[name].metadata if isinstance(mark, UsedWith)) for name in fields
    }
    found |= {name: text for name, text in texts.items() if text != fields[name].description}
    return {name: f"{found[name]} {marks[name]}".strip() for name in found}


def _sentence(text: str, annotation: Any) -> str:
    """`text` with a capital, unless it begins with one of the values."""
    first = text.split()[0].strip("`,")
    return text if f"'{first}'" in str(annotation) else text[0].upper() + text[1:]


def settings_lines(stage: Stage) -> Iterator[str]:
    """What a recipe may set in a stage: a line for each setting, its description below."""
    yield f"{stage.kind}: {stage.summary}"
    for key, kind, default, description in settings_rows(stage.load_settings()):
        yield f"\n{key}  ({', '.join(filter(None, [kind, default]))})"
        if description:
            yield f"    {description}"


def settings_rows(settings: type[Settings]) -> Iterator[tuple[str, str, str, str]]:
    """(setting, type, default, description) of each field."""
    texts = described(settings)
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
    """`page` with the tables at its markers as the settings are now."""
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
