"""What sentence encoders are compared with: word vectors, TF-IDF, networks that read two sentences at once."""

from typing import TYPE_CHECKING

from bertrelay.lazy import loader

if TYPE_CHECKING:
    from teachers.baselines.cross_encoder import CrossEncoder
    from teachers.baselines.poly_encoder import PolyEncoder
    from teachers.baselines.rerank import RerankedFile, load_scorer, rerank_file

__all__ = ["CrossEncoder", "PolyEncoder", "RerankedFile", "load_scorer", "rerank_file"]

__getattr__ = loader(
    __name__,
    {
        "CrossEncoder": "cross_encoder",
        "PolyEncoder": "poly_encoder",
        "RerankedFile": "rerank",
        "load_scorer": "rerank",
        "rerank_file": "rerank",
    },
)
