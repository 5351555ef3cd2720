"""The core: sentence encoder, data, training loop, checkpoints, evaluation. Knows no task."""

from typing import TYPE_CHECKING

from bertrelay.lazy import loader

if TYPE_CHECKING:
    from bertrelay.data.tables import Table
    from bertrelay.encode_files import encode_file
    from bertrelay.encoder import SentenceEncoder
    from bertrelay.encoding import encode
    from bertrelay.evaluation.similarity import compare_all, compare_pairs
    from bertrelay.plots import write_heatmap

__all__ = ["SentenceEncoder", "Table", "compare_all", "compare_pairs", "encode", "encode_file", "write_heatmap"]

__getattr__ = loader(
    __name__,
    {
        "SentenceEncoder": "encoder",
        "Table": "data.tables",
        "compare_all": "evaluation.similarity",
        "compare_pairs": "evaluation.similarity",
        "encode": "encoding",
        "encode_file": "encode_files",
        "write_heatmap": "plots",
    },
)
