"""What a process has for itself of the memory, as Linux tells it."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertrelay.hardware import private_memory_mb as own_memory_mb

SECONDS_BETWEEN_LOOKS = 0.05


def private_memory_mb(pid: int | None) -> list[float]:
    """The one figure of another process, or none where it has just ended."""
    try:
        found = re.search(r"^RssAnon:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return []
    return [int(found[1]) / 1024] if found else []


@contextmanager
def looked_at() -> Iterator[list[float]]:
    """The private memory of this process, looked at again and again."""
    looks, ended = [own_memory_mb() or 0.0], threading.Event()

    def look() -> None:
        while not ended.wait(SECONDS_BETWEEN_LOOKS):
            looks.append(own_memory_mb() or 0.0)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield looks
    finally:
        ended.set()
        watcher.join()
