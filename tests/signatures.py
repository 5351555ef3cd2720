"""Functions whose keyword arguments are settings, held against the class of the settings."""

import inspect
from collections.abc import Callable, Set
from typing import Any

from bertrelay.settings import Settings, descriptions


def check_signature(
    function: Callable[..., Any],
    settings: type[Settings],
    *,
    except_: Set[str] = frozenset(),
    beside: Set[str] = frozenset(),
) -> None:
    """Asserts that the arguments of `function` with a default are the fields of `settings`, with the same defaults.

    Where they are described is asserted too: in a line of its own in the docstring of the function, or with a
    description in the class, which that docstring names.

    except_: fields that are no such arguments. beside: arguments that are no fields.
    """
    arguments = {
        name: list(argument.default) if isinstance(argument.default, tuple) else argument.default
        for name, argument in inspect.signature(function).parameters.items()
        if name not in beside and (argument.kind is argument.KEYWORD_ONLY or argument.default is not argument.empty)
    }
    fields = {
        name: inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in settings.model_fields.items()
        if name not in except_
    }
    assert arguments == fields
    text, texts = inspect.getdoc(function) or "", descriptions(settings)
    missing = [name for name in fields if f"{name}: " not in text and not (settings.__name__ in text and texts[name])]
    assert missing == [], f"without a description: {missing}"
