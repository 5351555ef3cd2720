"""Streams cut into lists."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def blocks_of(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yields the items in lists of `size`, the last one shorter; as `itertools.batched`, which Python 3.11 lacks."""
    stream = iter(items)
    while block := list(islice(stream, size)):
        yield block
