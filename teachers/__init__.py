"""English sentence encoders: objectives, training, evaluation; cross-encoders."""

from typing import TYPE_CHECKING

from bertrelay import loader

if TYPE_CHECKING:
    from teachers.cross_encoder import CrossEncoder
    from teachers.rerank import RerankedFile, load_scorer, rerank_file

__all__ = ["CrossEncoder", "RerankedFile", "load_scorer", "rerank_file"]

__getattr__ = loader(
    __name__,
    {"CrossEncoder": "cross_encoder", **dict.fromkeys(("RerankedFile", "load_scorer", "rerank_file"), "rerank")},
)
