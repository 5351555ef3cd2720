"""Validation: all that is wrong with a recipe, reported at once and in plain words."""

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
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
    "too_short": "a list of {min_length} or more",
    "too_long": "a list of {max_length} or fewer",
    "string_too_short": "text of {min_length} or more characters",
    "string_pattern_mismatch": "text like {pattern}",
}


@dataclass
class Problems:
    """A list of problems that ends in one error."""

    title: str
    found: list[str] = field(default_factory=list)

    def add(self, table: str, key: str, text: str) -> None:
        """Notes what is wrong at `key` of `[table]`; an empty table is the top of the recipe."""
        place = " ".join(part for part in (f"[{table}]" if table else "", key) if part)
        self.found.append(f"{place}: {text}" if place else text)

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


def explain(model: type[BaseModel], error: ValidationError) -> str:
    """All that pydantic found wrong with settings that come from a command, in one line of plain words."""
    problems = Problems("")
    add_validation_errors(problems, "", model, error)
    return "; ".join(dict.fromkeys(problems.found))


def add_validation_errors(problems: Problems, table: str, model: type[BaseModel], error: ValidationError) -> None:
    """Adds pydantic's findings about `[table]` in plain words; what several types were tried for is said once."""
    expected: dict[tuple[str, str], list[str]] = {}
    for found in error.errors():
        models, key = _walk(model, found["loc"], found["type"] == "extra_forbidden")
        if found["type"] == "extra_forbidden":
            word = str(found["loc"][-1])
            problems.add(table, key, unknown(word, [name for each in models for name in each.model_fields]))
        elif found["type"] == "missing":
            problems.add(table, key, "is required and missing")
        elif found["type"] == "value_error":
            problems.add(table, key, str(found["ctx"]["error"]))
        else:
            ours = EXPECTED.get(found["type"])
            allowed = ours.format(**found.get("ctx", {})) if ours else found["msg"].removeprefix("expected ")
            expected.setdefault((key, _found(found)), []).append(allowed)
    for (key, value), allowed_here in expected.items():
        problems.add(table, key, f"expected {' or '.join(dict.fromkeys(allowed_here))}, found {value}")


def _found(found: Any) -> str:
    choices = [word.strip("'") for word in found.get("ctx", {}).get("expected", "").replace(" or ", ", ").split(", ")]
    word = found["input"] if found["type"] == "literal_error" and isinstance(found["input"], str) else ""
    return shown(found["input"]) + (did_you_mean(word, choices) if word else "")


def _walk(
    model: type[BaseModel], location: Sequence[int | str], ends_unknown: bool
) -> tuple[list[type[BaseModel]], str]:
    """The models that hold the last key of `location`, and the key as a recipe reads: `parallel[0].language`.

    Pydantic names the members of a union in a location as well; they are no keys and are left out.
    ends_unknown: whether the last key is one that the models do not have.
    """
    holders, models, key, inside_field = [model], [model], "", False
    tagged: dict[str, type[BaseModel]] = {}
    for number, part in enumerate(location):
        if isinstance(part, int):
            key += f"[{part}]"
            continue
        if part in tagged:
            models = [tagged[part]]
            continue
        is_field = any(part in each.model_fields for each in models)
        is_last_unknown = ends_unknown and number == len(location) - 1 and bool(models)
        if not (is_field or is_last_unknown) or (inside_field and not models):
            continue
        key += f".{part}" if key else part
        holders = models
        fields = [each.model_fields[part].annotation for each in models if part in each.model_fields]
        models = [inner for annotation in fields for inner in _models_of(annotation)]
        tagged = {tag: inner for annotation in fields for tag, inner in _tagged_models(annotation)}
        inside_field = True
    return holders, key


def _models_of(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and not get_args(annotation):
        return [annotation]
    return [found for inner in get_args(annotation) for found in _models_of(inner)]


def _tagged_models(annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """The members of unions that go by a tag, as in `Annotated[NewEncoder, Tag("new")]`."""
    parts = get_args(annotation)
    tags = [part.tag for part in parts if isinstance(part, Tag)]
    for part in parts:
        yield from ((tags[0], model) for model in _models_of(part)) if tags else _tagged_models(part)
