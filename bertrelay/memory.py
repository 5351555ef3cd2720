"""Memory of this process."""

import ctypes
import platform
import re
from pathlib import Path


def private_memory_mb() -> float | None:
    """Private memory of this process in MB (`RssAnon`: memory-mapped files do not count); None where unknown."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # not Linux
        return None
    size = re.search(r"^RssAnon:\s*(\d+) kB", status, re.MULTILINE)
    return int(size[1]) / 1024 if size else None


def release_memory() -> None:
    """Returns free heap memory of the C library to the system; it keeps each thread's peak otherwise."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
