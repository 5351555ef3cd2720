"""What another process has for itself of the memory, as Linux tells it."""

import re
from pathlib import Path

SECONDS_BETWEEN_LOOKS = 0.05


def private_memory_mb(pid: int | None) -> list[float]:
    """The one figure, or none where the process has just ended."""
    try:
        found = re.search(r"^RssAnon:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return []
    return [int(found[1]) / 1024] if found else []
