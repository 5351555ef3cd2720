"""Builds the indexes of the tests."""

from pathlib import Path

from bertrelay.data.tables import Table
from students.searching.index import build_index

BLOCK = 8
FILES = {"000000.sentences.arrow", "000000.vectors.npy", "index.json"}
"""Files of a small index that is searched exactly."""


def build(encoder, corpus, folder=None, **options):
    folder = folder or Path(f"{corpus.path if isinstance(corpus, Table) else corpus}.index")
    return build_index(encoder, corpus, folder, precision="fp32", **options)
