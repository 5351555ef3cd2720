"""Figures of Reimers & Gurevych (2019), to stand beside ours: each under a heading that says it was published."""

from collections.abc import Iterable
from copy import deepcopy

from pipelines.scores import ABLATION, CLASSIFICATION, FACETS, SECTIONS, SIMILARITY, Figure, ScoreTable

PUBLISHED = "published"
FIGURES = {
    (SIMILARITY, ""): {
        # Each year's pairs as one set, and one correlation: sentence-transformers, issue 1165.
        ("mean / all", "SBERT-NLI-base"): 0.7489,
        ("mean / all", "GloVe, averaged"): 0.6132,
        ("mean / all", "BERT, averaged"): 0.5481,
        ("mean / all", "BERT, [CLS]"): 0.2919,
        ("STSb", "SBERT, STSb"): 0.8467,
        ("STSb", "SBERT, NLI + STSb"): 0.8535,
    },
    (CLASSIFICATION, ""): {("mean", "SBERT-NLI-base"): 0.8741},
    (FACETS, ""): {  # Spearman
        ("ten-fold", "SBERT-AFS-base"): 0.7413,
        ("ten-fold", "BERT-AFS-base, cross-encoder"): 0.7484,
        ("cross-topic", "SBERT-AFS-base"): 0.5065,
        ("cross-topic", "BERT-AFS-base, cross-encoder"): 0.5723,
    },
    (SECTIONS, ""): {("accuracy", "SBERT-WikiSec-base"): 0.8042},
    (ABLATION, "pooling"): {("mean", "NLI"): 0.8078, ("max", "NLI"): 0.7907, ("cls", "NLI"): 0.7980},
    (ABLATION, "concatenation"): {
        ("u, v", "NLI"): 0.6604,
        ("|u-v|", "NLI"): 0.6978,
        ("u*v", "NLI"): 0.7054,
        ("|u-v|, u*v", "NLI"): 0.7837,
        ("u, v, u*v", "NLI"): 0.7744,
        ("u, v, |u-v|", "NLI"): 0.8078,
        ("u, v, |u-v|, u*v", "NLI"): 0.8044,
    },
}
"""(family, caption) of a table to (row, what it is of) to the figure."""


def with_published(tables: Iterable[ScoreTable]) -> list[ScoreTable]:
    """The tables, and in those that have the row of a published figure, that figure in a column of its own."""
    found = deepcopy(list(tables))
    for table in found:
        for (row, column), value in FIGURES.get((table.family, table.caption), {}).items():
            if row in table.rows:
                table.put(row, (PUBLISHED, column), Figure(value))
    return found
