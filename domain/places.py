"""Where a name falls, for splits in which nobody moves when others come."""

import hashlib


def place(name: str, key: str) -> float:
    """Where `name` falls between 0 and 1: a keyed hash, even over names and unlike for every key."""
    digest = hashlib.blake2b(name.encode(), key=hashlib.sha256(key.encode()).digest(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64
