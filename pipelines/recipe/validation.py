"""Validation: all that is wrong with a recipe, reported at once and in plain words."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import BaseModel, Tag, ValidationError

from bertrelay.errors import RequestError

SHOWN = 60  # characters of a found value

EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "none_required": "nothing",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "too_short": "{min_length} or more entries",
    "too_long": "{max_length} or fewer entries",
    "string_too_short": "text of {min_length} or more characters",
    "string_pattern_mismatch": "text like {pattern}",
}
KEYS = re.compile(r"^[\w.\[\]]+(, [\w.\[\]]+)*(?=:)")
"""What an error about settings begins with."""
LEFT_OUT = "; none of them is in one of the stage's `languages`: change these, or add a source"
REMOVED = dict.fromkeys(
    ("for_each", "among"),
    "no key of a recipe any more. Write {language} in the texts of one source, with languages = [...] beside it; "
    "`languages` of the stage limits all its sources",
) | dict.fromkeys(
    ("if", "unless"),
    'no key of a recipe any more. Write a recipe for each case, or an entry "${name}", which stands for all entries '
    "of name = [] in [vars]",
)
"""Former keys, with what to write in their place."""


@dataclass
class Problems:
    """A list of problems that ends in one error."""

    title: str
    found: list[str] = field(default_factory=list)

    def add(self, table: str, key: str, text: str) -> None:
        """Notes what is wrong at `key` of `[table]`; an empty table is the top of the recipe."""
        key_of_table = " ".join(part for part in (f"[{table}]" if table else "", key) if part)
        end = " " if key_of_table and not key and KEYS.match(text) else ": "
        self.found.append(f"{key_of_table}{end}{text}" if key_of_table else text)

    def raise_if_any(self) -> None:
        """Raises RequestError with every problem, each once."""
        found = list(dict.fromkeys(self.found))
        if found:
            count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
            raise RequestError("\n  ".join([f"{self.title}: {count}", *found]))


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean "epochs"?` for the nearest of `choices`, or nothing."""
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def unknown(word: str, choices: Sequence[str], what: str = "key") -> str:
    """`unknown key; did you mean "epochs"? Allowed: …`."""
    hint = did_you_mean(word, choices) or "."
    return f"unknown {what}{hint} Allowed: {', '.join(choices) if choices else 'none'}"


def shown(value: Any) -> str:
    """A found value as a recipe would write it, cut short."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def explain(model: type[BaseModel], error: ValidationError, names: Mapping[str, str] = {}) -> str:
    """All that pydantic found wrong with settings that come from a command, in one line of plain words.

    names: field to the option that it is, `--protocol STS`.
    """
    problems = Problems("")
    add_validation_errors(problems, "", model, error)

    def options(keys: re.Match[str]) -> str:
        return ", ".join(names.get(key.partition("[")[0], key).partition(" ")[0] for key in keys[0].split(", "))

    return "; ".join(KEYS.sub(options, text) for text in dict.fromkeys(problems.found))


def add_validation_errors(problems: Problems, table: str, model: type[BaseModel], error: ValidationError) -> None:
    """Adds pydantic's findings about `[table]` in plain words; what several types were tried for is said once."""
    expected: dict[tuple[str, str], list[str]] = {}
    for fault in error.errors():
        kind, context, value = fault["type"], fault.get("ctx", {}), fault["input"]
        models, key = _walk(model, fault["loc"], kind == "extra_forbidden")
        if kind == "extra_forbidden":
            word, names = str(fault["loc"][-1]), [name for holder in models for name in holder.model_fields]
            problems.add(table, key, REMOVED.get(word) or unknown(word, names))
        elif kind == "missing":
            problems.add(table, key, "is required and missing")
        elif kind == "value_error":
            problems.add(table, key, str(context["error"]))
        else:
            allowed = EXPECTED[kind].format(**context) if kind in EXPECTED else fault["msg"].removeprefix("expected ")
            choices = re.findall("'([^']*)'", context["expected"]) if kind == "literal_error" else []
            hint = did_you_mean(value, choices) if isinstance(value, str) else ""
            hint = LEFT_OUT if table and value and context.get("min_length") == 1 else hint
            expected.setdefault((key, shown(value) + hint), []).append(allowed)
    for (key, text), alternatives in expected.items():
        problems.add(table, key, f"expected {' or '.join(dict.fromkeys(alternatives))}, found {text}")


def _walk(
    model: type[BaseModel], location: Sequence[int | str], ends_unknown: bool
) -> tuple[list[type[BaseModel]], str]:
    """The models that hold the last key of `location`, and the key as a recipe reads: `parallel[0].language`.

    Pydantic names the members of a union in a location as well; they are no keys and are left out.
    ends_unknown: whether the last key is one that the models do not have.
    """
    holders, key = [model], ""
    inside = [("", model)]  # the models where the location leads to, with their tags
    for number, part in enumerate(location):
        fields = [holder.model_fields[part] for _, holder in inside if part in holder.model_fields]
        if isinstance(part, int):
            key += f"[{part}]"
        elif tagged := [holder for tag, holder in inside if tag == part]:
            inside = [("", holder) for holder in tagged]  # a key may be called as a tag is
        elif fields or (ends_unknown and number == len(location) - 1):
            key += f".{part}" if key else part
            holders = [holder for _, holder in inside]
            inside = [holder for field in fields for holder in _models_of(field.annotation)]
    return holders, key


def _models_of(annotation: Any, tag: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """The models in an annotation, each with its tag in a union of `Annotated[NewEncoder, Tag("new")]` and others."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield tag, annotation
    parts = get_args(annotation)
    tag = next((part.tag for part in parts if isinstance(part, Tag)), tag)
    for part in parts:
        yield from _models_of(part, tag)
