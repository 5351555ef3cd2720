"""Continued pretraining: masked words and next sentences of notes and papers."""

from typing import TYPE_CHECKING

from bertrelay import loader

if TYPE_CHECKING:
    from domain.pretraining.corpus import Corpus, build_corpus
    from domain.pretraining.documents import read_documents
    from domain.pretraining.settings import DocumentSource, Masking, PretrainSettings
    from domain.pretraining.train import pretrain

__all__ = ["Corpus", "DocumentSource", "Masking", "PretrainSettings", "build_corpus", "pretrain", "read_documents"]

MODULES = {
    "corpus": ("Corpus", "build_corpus"),
    "documents": ("read_documents",),
    "settings": ("DocumentSource", "Masking", "PretrainSettings"),
    "train": ("pretrain",),
}
__getattr__ = loader(__name__, {name: module for module, names in MODULES.items() for name in names})
