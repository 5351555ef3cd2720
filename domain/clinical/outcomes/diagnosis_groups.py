"""Codes of diagnoses by the categories that they belong to: the first three characters, four of an ICD-9 E code."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

CATEGORIES = {
    9: re.compile(r"(\d{3}|V\d\d)\d{0,2}|(E\d{3})\d?"),
    10: re.compile(r"([A-Z]\d[0-9A-Z])[0-9A-Z]{0,4}"),
}
"""By the version of ICD. An ICD-9 E code says how an injury came about, and has a character more."""

FEWEST_STAYS = 10


def group_of(code: str, version: int) -> str | None:
    """`ICD-9 428` for `4280`; None for what is no code of that version.

    With its version, as `V58` is aftercare in the one and an accident with a pick-up in the other.
    """
    category = CATEGORIES.get(version)
    found = category.fullmatch(code.strip().replace(".", "").upper()) if category else None
    return f"ICD-{version} {next(filter(None, found.groups()))}" if found else None


def groups_of_stay(codes: Iterable[Mapping[str, Any]]) -> set[str]:
    """The groups of a stay's codes, each {code, version}, as `characteristics.parquet` has them."""
    return {group for each in codes if (group := group_of(each["code"], each["version"]))}


def commonest(stays: Iterable[set[str]], count: int, fewest: int = FEWEST_STAYS) -> tuple[str, ...]:
    """The `count` groups that most stays have, the commonest first; of equally common ones the first by name.

    fewest: stays that a group must have. From fewer nothing is learnt, and a model's folder would name them.
    """
    counts = Counter(group for groups in stays for group in groups)
    known = [group for group in counts if counts[group] >= fewest]
    return tuple(sorted(known, key=lambda group: (-counts[group], group))[:count])


def indicators(stays: Sequence[set[str]], groups: Sequence[str]) -> NDArray[np.bool_]:
    """Whether each stay has each of `groups`, (stays, groups)."""
    return np.array([[group in of_stay for group in groups] for of_stay in stays], bool).reshape(-1, len(groups))
