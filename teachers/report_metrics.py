"""The metrics of teachers as a report shows them, with those of Reimers & Gurevych (2019) for comparison."""

from dataclasses import replace

from bertrelay.metrics import Family, Metric
from teachers.evaluation.settings import MAIN

MEASURES = {
    f"{correlation}_{similarity}": f"{correlation.capitalize()}, {similarity}"
    for correlation in ("spearman", "pearson")
    for similarity in ("cosine", "dot", "euclidean", "manhattan", "score")  # the last of networks that read both
}
SIMILARITY = Family(
    "Semantic textual similarity",
    "Spearman's rank correlation of the vectors' similarity with the gold scores. A year's figure is the mean of its "
    "subsets, and under “all” that of its pairs taken together. The published means take each year's pairs together, "
    "and compare with “mean / all”.",
    place=20,
    in_terminal=True,
    published={
        "": {
            # Each year's pairs as one set, and one correlation: sentence-transformers, issue 1165.
            ("mean / all", "SBERT-NLI-base"): 0.7489,
            ("mean / all", "GloVe, averaged"): 0.6132,
            ("mean / all", "BERT, averaged"): 0.5481,
            ("mean / all", "BERT, [CLS]"): 0.2919,
            ("STSb", "SBERT, STSb"): 0.8467,
            ("STSb", "SBERT, NLI + STSb"): 0.8535,
        }
    },
)
CLASSIFICATION = Family(
    "Classification of sentences",
    "Logistic regression on frozen vectors, on test sentences.",
    place=21,
    in_terminal=True,
    published={"": {("mean", "SBERT-NLI-base"): 0.8741}},
)
FACETS = Family(
    "Argument facets",
    "Correlation of the vectors' similarity, or of a cross-encoder's score, with how far two arguments make the same "
    "point. Published values are Spearman's.",
    place=22,
    in_terminal=True,
    published={
        "": {
            ("ten-fold", "SBERT-AFS-base"): 0.7413,
            ("ten-fold", "BERT-AFS-base, cross-encoder"): 0.7484,
            ("cross-topic", "SBERT-AFS-base"): 0.5065,
            ("cross-topic", "BERT-AFS-base, cross-encoder"): 0.5723,
        }
    },
)
SECTIONS = Family(
    "Sections of Wikipedia",
    "How often a sentence of the same section is nearer than one of another section.",
    place=23,
    in_terminal=True,
    published={"": {("accuracy", "SBERT-WikiSec-base"): 0.8042}},
)
OTHER_MEASURES = replace(SIMILARITY, in_terminal=False, published={})
ABLATION = Family(
    "Ablation",
    "Spearman's rank correlation of cosine with the gold scores, for one variant of training at a time.",
    place=24,
    in_terminal=True,
    with_intervals=True,
    published={
        "pooling": {("mean", "NLI"): 0.8078, ("max", "NLI"): 0.7907, ("cls", "NLI"): 0.7980},
        "concatenation": {
            ("u, v", "NLI"): 0.6604,
            ("|u-v|", "NLI"): 0.6978,
            ("u*v", "NLI"): 0.7054,
            ("|u-v|, u*v", "NLI"): 0.7837,
            ("u, v, u*v", "NLI"): 0.7744,
            ("u, v, |u-v|", "NLI"): 0.8078,
            ("u, v, |u-v|, u*v", "NLI"): 0.8044,
        },
    },
)
SECTION_ROWS = {"accuracy_cosine": "accuracy, cosine"}

METRICS = (
    Metric(
        rf"sts/(?P<set>.+)/(?P<measure>{'|'.join(MAIN)})",
        SIMILARITY,
        "{set}",
        "{measure}",
        labels={"measure": MEASURES},
    ),
    Metric(
        r"sts/(?P<set>.+)/(?P<measure>[^/]+)",
        OTHER_MEASURES,
        "{set}",
        "{measure}",
        caption="{measure}",
        labels={"measure": MEASURES},
    ),
    Metric(r"senteval/(?P<set>[^/]+)/(?P<measure>[^/]+)", CLASSIFICATION, "{set}", "{measure}"),
    Metric(r"facets/(?P<split>[^/]+)/(?P<measure>[^/]+)", FACETS, "{split}", "{measure}", labels={"measure": MEASURES}),
    Metric(r"sections/(?P<measure>[^/]+)", SECTIONS, "{measure}", labels={"measure": SECTION_ROWS}),
    Metric(
        r"ablation/(?P<part>[^/]+)/(?P<variant>[^/]+)/(?P<trained>[^/]+)",
        ABLATION,
        "{variant}",
        "{trained}",
        caption="{part}",
    ),
)
