"""The tags that a network tells apart, as arrays: which begin an entity, which go on with one, and of what type."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from domain.biomedical.tags import OPENING, OUTSIDE, Scheme, follows, is_tag, split_tag, types_of
from domain.biomedical.tags import labels as all_tags

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class LabelSet:
    """Tags in the order in which a network numbers them: `O`, `B-Disease`, `I-Disease` and so on.

    Raises ValueError unless they are `O` and all tags of some types in this scheme.
    """

    tags: tuple[str, ...]
    scheme: Scheme = "IOB2"

    def __post_init__(self) -> None:
        known = [tag for tag in self.tags if is_tag(tag, self.scheme)]
        if sorted(self.tags) != sorted(all_tags(types_of(known), self.scheme)):
            wanted = ", ".join(all_tags(["Type"], self.scheme))
            raise ValueError(f"expected the tags {wanted} for each type, found {', '.join(self.tags)}")

    @classmethod
    def of_types(cls, types: Iterable[str], scheme: Scheme = "IOB2") -> "LabelSet":
        """All tags for these types of entities."""
        return cls(tuple(all_tags(types, scheme)), scheme)

    def __len__(self) -> int:
        return len(self.tags)

    @cached_property
    def types(self) -> list[str]:
        """The types in the order of their first tags."""
        return list(dict.fromkeys(split_tag(tag)[1] for tag in self.tags if tag != OUTSIDE))

    @cached_property
    def number(self) -> dict[str, int]:
        """Each tag's number."""
        return {tag: index for index, tag in enumerate(self.tags)}

    @cached_property
    def type_numbers(self) -> NDArray[np.int64]:
        """Each tag's type as its place in `types`, −1 for O, (tags,)."""
        return np.array([-1 if tag == OUTSIDE else self.types.index(split_tag(tag)[1]) for tag in self.tags])

    @cached_property
    def begins(self) -> Flags:
        """Which tags stand at an entity's first word, (tags,)."""
        return np.array([split_tag(tag)[0] in OPENING for tag in self.tags])

    @cached_property
    def goes_on(self) -> Flags:
        """Which tags stand at an entity's other words, (tags,)."""
        return ~self.begins & (self.type_numbers >= 0)

    @cached_property
    def legal_follow(self) -> Flags:
        """Which tag may stand after which, (from, to)."""
        return np.array([[follows(tag, before, self.scheme) for tag in self.tags] for before in self.tags])

    @cached_property
    def legal_start(self) -> Flags:
        """Which tag may stand at a sentence's first word, (tags,)."""
        return np.array([follows(tag, OUTSIDE, self.scheme) for tag in self.tags])

    @cached_property
    def legal_end(self) -> Flags:
        """Which tag may stand at a sentence's last word, (tags,)."""
        return np.array([follows(OUTSIDE, tag, self.scheme) for tag in self.tags])
