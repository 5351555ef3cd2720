"""The ground floor: sentence encoder, batches, training loop, checkpoints, records. Knows no task."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertrelay.compare import compare_all, compare_pairs
    from bertrelay.encoder import SentenceEncoder
    from bertrelay.encoding import encode
    from bertrelay.heatmap import write_heatmap
    from bertrelay.tables import Table
    from bertrelay.vector_files import encode_file

__all__ = ["SentenceEncoder", "Table", "compare_all", "compare_pairs", "encode", "encode_file", "write_heatmap"]

ROOMS = {
    "SentenceEncoder": "encoder",
    "Table": "tables",
    "compare_all": "compare",
    "compare_pairs": "compare",
    "encode": "encoding",
    "encode_file": "vector_files",
    "write_heatmap": "heatmap",
}


def __getattr__(name: str) -> object:
    """Loads a room, and torch with it where it needs torch, only when somebody asks for what is in it."""
    if name in ROOMS:
        return getattr(import_module(f"bertrelay.{ROOMS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
