"""English sentence encoders: objectives, training, evaluation; cross-encoders."""

from typing import TYPE_CHECKING

from bertrelay import loader

if TYPE_CHECKING:
    from teachers.evaluation.mteb import MtebEncoder, evaluate_tasks
    from teachers.pairs.model import CrossEncoder
    from teachers.pairs.rerank import RerankedFile, load_scorer, rerank_file

__all__ = ["CrossEncoder", "MtebEncoder", "RerankedFile", "evaluate_tasks", "load_scorer", "rerank_file"]

MODULES = {
    "evaluation.mteb": ("MtebEncoder", "evaluate_tasks"),
    "pairs.model": ("CrossEncoder",),
    "pairs.rerank": ("RerankedFile", "load_scorer", "rerank_file"),
}
__getattr__ = loader(__name__, {name: module for module, names in MODULES.items() for name in names})
