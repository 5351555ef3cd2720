"""Parallel corpora: read, filtered, split and kept as memory-mapped files."""
