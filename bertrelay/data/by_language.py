"""Sources that are written once for several languages: `{language}` stands for each one of their `languages`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import ValidationInfo

from bertrelay.languages import is_language
from bertrelay.settings import PathText

LANGUAGE = "{language}"
MAX_VALUES = 100_000  # of all copies of a table
NAME = ""  # no setting has this name


def chosen_languages(info: ValidationInfo) -> Sequence[str]:
    """The `languages` of the settings that are validated, a field above the one at hand; empty for all."""
    return (info.data or {}).get("languages") or ()


def only_chosen(languages: Iterable[str], chosen: Sequence[str]) -> list[str]:
    """The `languages` that are one of `chosen`, as de-AT is de; all if there is nothing to choose."""
    return [code for code in languages if not chosen or any(is_language(code, language) for language in chosen)]


def one_a_language(table: Any, chosen: Sequence[str] = ()) -> dict[str, dict[str, Any]] | None:
    """A copy of `table` for each of its `languages` that is one of `chosen`; None for one that names no `{language}`.

    {"path": "en-{language}.tsv", "languages": ["de", "fr"]} gives
    {"de": {"path": "en-de.tsv"}, "fr": {"path": "en-fr.tsv"}}.
    Raises ValueError for a table with `{language}` whose `languages` are no list of texts, and for one too large.
    """
    if not isinstance(table, dict) or not any(isinstance(value, str) and LANGUAGE in value for value in _values(table)):
        return None
    languages = table.get("languages")
    if not isinstance(languages, list) or not all(isinstance(code, str) for code in languages):
        raise ValueError(f"expected languages = ['de', 'fr'] beside {LANGUAGE}, found {languages or 'none'}")
    shape = {key: value for key, value in table.items() if key != "languages"}
    if len(languages) * sum(1 for _ in _values(shape)) > MAX_VALUES:
        raise ValueError(f"expected at most {MAX_VALUES:,} values in the sources of all languages, found more")
    return {code: _replaced(shape, code) for code in only_chosen(languages, chosen)}


def sets_by_language(sets: Any, info: ValidationInfo) -> Any:
    """Tables by name, those whose name has `{language}` once for each of their `languages`. Raises ValueError."""
    if not isinstance(sets, dict):
        return sets
    expanded: dict[str, Any] = {}
    for name, table in sets.items():
        named = {**table, NAME: name} if isinstance(table, dict) else table
        copies = one_a_language(named, chosen_languages(info))
        if copies is not None and LANGUAGE not in name:
            raise ValueError(f"{name}: expected {LANGUAGE} in the name of a set of several languages")
        entries = {name: table} if copies is None else {copy.pop(NAME): copy for copy in copies.values()}
        if twice := expanded.keys() & entries.keys():
            raise ValueError(f"{min(twice)}: expected each name once, found it twice")
        expanded |= entries
    return expanded


def _values(value: Any) -> Iterator[Any]:
    """Yields all keys and values in tables and lists, nested ones too."""
    if isinstance(value, dict):
        yield from value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield item
        yield from _values(item)


def _replaced(value: Any, code: str) -> Any:
    """`value` with `code` in place of `{language}` in all keys and texts; paths still count from the same folder."""
    if isinstance(value, dict):
        return {_replaced(key, code): _replaced(item, code) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, code) for item in value]
    if not isinstance(value, str):
        return value
    text = value.replace(LANGUAGE, code)
    return PathText(text, value.base) if isinstance(value, PathText) else text
