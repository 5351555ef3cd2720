"""Continued pretraining: masked words and next sentences, on notes and on papers."""

from typing import TYPE_CHECKING

from bertrelay import loader

if TYPE_CHECKING:
    from domain.pretraining.corpus import Corpus, build_corpus
    from domain.pretraining.readers import read_documents
    from domain.pretraining.settings import DocumentSource, Masking, PretrainSettings
    from domain.pretraining.train import pretrain

__all__ = ["Corpus", "DocumentSource", "Masking", "PretrainSettings", "build_corpus", "pretrain", "read_documents"]

__getattr__ = loader(
    __name__,
    {
        "Corpus": "corpus",
        "DocumentSource": "settings",
        "Masking": "settings",
        "PretrainSettings": "settings",
        "build_corpus": "corpus",
        "pretrain": "train",
        "read_documents": "readers",
    },
)
