"""A stream in blocks: as much as a block holds is cut and computed together, and the next one is cut meanwhile."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def blocks(items: Iterable[Item], size: Callable[[Item], int], limit: int) -> Iterator[list[Item]]:
    """`items` in blocks that are closed as soon as their sizes, each at least 1, add up to `limit`."""
    block: list[Item] = []
    total = 0
    for item in items:
        block.append(item)
        total += max(1, size(item))
        if total >= limit:
            yield block
            block, total = [], 0
    if block:
        yield block


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; each is made by another thread while the caller works on the one before it."""
    with ThreadPoolExecutor(1, "ahead") as other:
        waiting = other.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = other.submit(next, items, None)
            yield item
