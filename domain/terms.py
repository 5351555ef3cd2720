"""Medical terms in a BERT: vectors, nearest neighbours, agreement with human ratings, and a picture by t-SNE.

After Huang, Altosaar & Ranganath (2019), "ClinicalBERT", section 4.2.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from bertrelay.cache import Cache
from bertrelay.checks import check_choice, list_texts
from bertrelay.data.records import Rejects, is_missing, rows
from bertrelay.data.tables import ABSENT, Column, Record, Row, Table
from bertrelay.data.vectors import Vectors, write_vectors
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, check_location, check_name, explain_write_errors, write_json
from bertrelay.plots import cut, font_families, write_figure
from bertrelay.progress import log
from bertrelay.report import Measure, Picture, Section, StageReport, write_report
from bertrelay.report import Table as ReportTable
from bertrelay.settings import BatchTokens, MaxRejects, ModelSource, Positive, Precision, Seed, Settings
from bertrelay.stage import Metrics, StageContext

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bertrelay.model.encoder import SentenceEncoder

__all__ = ["TermsSettings", "describe_terms", "nearest_terms", "term_vectors"]

Layers = Literal["last_four", "last"]
LAYERS: dict[Layers, int] = {"last_four": 4, "last": 1}
Positions = NDArray[np.float64]
Rows = NDArray[np.int64]
Cosines = NDArray[np.float32]

TERM, GROUP = "term", "group"
RATING: list[Column] = ["term1", "term2", "score"]
FEWEST_RATINGS = 3  # two points are always on a line
FEWEST_DRAWN, MOST_DRAWN = 5, 300
MOST_LISTED = 12

METRICS, REJECTS, TERMS, NEIGHBOURS = "metrics.json", "rejects.jsonl", "terms.csv", "neighbours.csv"
PICTURES = ("tsne.svg", "tsne.png")
VECTORS = ("vectors.npy", "vectors.parquet")

# Okabe & Ito (2008), "Color universal design": distinct to the colour-blind. Each group also has a shape.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
SHAPES = ("o", "s", "^", "D", "v", "P")
CAPTION = """Neighbouring terms are similar to the model.
The axes of t-SNE, the sizes of groups and the distances between groups have no meaning."""


class TermsSettings(Settings):
    """Vectors of medical terms, the nearest neighbours of each, and a picture of all."""

    model: ModelSource
    """Encoder or BERT: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    terms: Table
    """Table whose `columns` are that of the term and that of its group; else they are `term`, or the line of plain
    lines, and `group` where there is a column of that name."""
    ratings: Table | None = None
    """Table of how alike people find two terms, in three columns: `columns`, else `term1`, `term2` and `score`."""
    layers: Layers = "last_four"
    """Layers of a token's vector: `last_four` is the sum of the last four, as in Huang, Altosaar & Ranganath (2019);
    `last` the last only."""
    k: Positive = 5
    """Number of neighbours of each term."""
    perplexity: Annotated[float, Field(ge=1)] | None = None
    """Perplexity of the t-SNE; 30 and less for few terms when absent."""
    seed: Seed = 7
    """Seed of the t-SNE and of the intervals."""
    output: Literal["npy", "parquet"] = "npy"
    """Format of the file of the vectors; `parquet` has the terms beside them."""
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None
    max_rejects: MaxRejects = 0.1
    """Fraction of terms and ratings that may be unusable; in a list of forty, 0.01 would allow none."""

    @model_validator(mode="after")
    def _as_many_columns_as_are_read(self) -> Self:
        named = self.terms.columns or []
        if len(named) > 2:
            raise ValueError(f"terms: expected the columns of term and group, found {len(named)} columns")
        if self.ratings and len(self.ratings.columns or RATING) != len(RATING):
            raise ValueError(f"ratings: expected three columns (two terms, score), found {self.ratings.columns}")
        return self


class Term(NamedTuple):
    """A term, its group (empty: none), its file and line, and its subwords in the vocabulary of the model."""

    text: str
    group: str
    file: str
    line: int
    subwords: Sequence[int] = ()


def run(settings: TermsSettings, context: StageContext) -> Metrics:
    """The stage `domain.terms`, see `describe_terms`; only the main process works."""
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    metrics = describe_terms(settings, context.output, context.cache, overwrite=True, precision=precision)
    write_report(terms_report(context.output), context)
    return metrics


def describe_terms(
    settings: TermsSettings,
    output: Path,
    cache: Cache | None = None,
    overwrite: bool = False,
    precision: ComputePrecision | None = None,
) -> Metrics:
    """Writes into the folder `output` vectors, neighbours and a picture of the terms, and returns the metrics.

    `vectors.npy` or `.parquet`, row i for line i + 1 of `terms.csv` below its header; `neighbours.csv`; `tsne.svg` and
    `tsne.png`; `metrics.json`; and `rejects.jsonl` with the unusable rows by file, line and reason.
    cache: folder of downloads of the hub. overwrite: replace files of an earlier run.
    precision: of the stage; by default that of the settings on this device.
    Raises RequestError for tables that cannot be read, for an output that is one of them, and for fewer than two terms.
    """
    from bertrelay.model.encoder import SentenceEncoder

    _check_output(settings, output, overwrite)
    next(_term_rows(settings.terms, cache))  # a missing file or column is reported before the model is loaded
    if settings.ratings:
        next(rows(settings.ratings, RATING, cache))
    encoder = SentenceEncoder.load(settings.model, backend="torch", cache=cache, is_base=True)
    with explain_write_errors(output):
        with Rejects(output / REJECTS, settings.max_rejects) as rejects:
            terms = _usable_terms(settings, encoder, rejects, cache)
            row_of = {term.text: row for row, term in enumerate(terms)}
            ratings, counts = read_ratings(settings.ratings, row_of, rejects, cache) if settings.ratings else ({}, {})
        texts, groups = [term.text for term in terms], [term.group for term in terms]
        vectors = term_vectors(
            encoder,
            texts,
            layers=settings.layers,
            precision=precision or settings.precision,
            batch_tokens=settings.batch_tokens,
        )
        neighbours, cosines = nearest_terms(vectors, settings.k)
        perplexity, positions = _positions(vectors, settings)
        for earlier in (*VECTORS, *PICTURES):  # not all of them are written in this run
            (output / earlier).unlink(missing_ok=True)
        count, dim = vectors.shape
        write_vectors(output / f"vectors.{settings.output}", [vectors], count, dim, lambda first, end: texts[first:end])
        _write_tables(output, terms, encoder.tokenizer.unk_token_id, positions, neighbours, cosines)
        if perplexity is not None:
            figure = draw_terms(texts, groups, positions, f"Perplexity {perplexity:.3g}, seed {settings.seed}.")
            for name in PICTURES:
                write_figure(output / name, figure)
        metrics: Metrics = {
            **(_agreement(vectors, ratings, settings.seed) | counts if ratings else {}),
            **group_metrics(groups, neighbours, settings.seed),
            "terms/count": count,
            "terms/dim": dim,
            "terms/layers": _summed_layers(encoder, settings.layers),
            "terms/perplexity": perplexity,
            "terms/rejected": rejects.counts.total(),
            "terms/unknown": sum({*term.subwords} == {encoder.tokenizer.unk_token_id} for term in terms),
        }
        write_json(output / METRICS, metrics)
    return metrics


def terms_report(output: Path) -> StageReport:
    """The report of the stage that wrote to `output`: its picture, and every so many terms with their neighbours."""
    if not (output / PICTURES[0]).is_file():
        return StageReport()
    neighbours: dict[str, list[str]] = {}
    with (output / NEIGHBOURS).open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            neighbours.setdefault(row["term"], []).append(f"{row['neighbour']} ({float(row['cosine']):.2f})")
    listed: list[list[str | Measure]] = [[term, ", ".join(nearest)] for term, nearest in neighbours.items()]
    rows = listed[:: -(-len(listed) // MOST_LISTED)]
    caption = "Terms from the whole list, and the nearest ones to each; in brackets the cosine."
    table = ReportTable(columns=["Term", "Nearest"], rows=rows, caption=caption, texts=2, quotes=True)
    picture = Picture(file=PICTURES[0], alt=f"Map of {len(listed)} terms by t-SNE. {' '.join(CAPTION.split())}")
    return StageReport(sections=[Section(title="Medical terms, drawn", blocks=[picture, table])])


def _check_output(settings: TermsSettings, output: Path, overwrite: bool) -> None:
    check_name(output)
    if output.exists() and not output.is_dir():
        raise RequestError(f"output: expected a folder to write into, found the file {output}; name another")
    inputs = [table.path for table in (settings.terms, settings.ratings) if table]
    for name in (TERMS, NEIGHBOURS, METRICS, REJECTS, *VECTORS, *PICTURES):
        if (output / name).exists():
            check_location(output / name, *inputs, overwrite=overwrite)


def _term_rows(table: Table, cache: Cache | None) -> Iterator[Row]:
    """Rows of term and group: of the columns that `table` names, else of those that it has."""
    is_lines = table.path is not None and table.file_format == "lines"
    names_group = len(table.columns or []) == 2
    return rows(table, [0 if is_lines else TERM], cache, optional=[] if names_group else [GROUP])


def read_terms(table: Table, rejects: Rejects, cache: Cache | None = None) -> list[Term]:
    """The terms of `table` without white space around them; only the first of equal ones."""
    terms: dict[str, Term] = {}
    for row in _term_rows(table, cache):
        try:
            text, group = _values(row, terms=1)
            group = "" if group is ABSENT or is_missing(group) else str(group).strip()
            if text in terms:
                other = "" if terms[text].group == group else ", in another group"
                raise ValueError(f"a term that is there already{other}")
            terms[text] = Term(text, group, row.file, row.line)
        except ValueError as error:
            rejects.add(row.file, row.line, str(error))
    return list(terms.values())


def read_ratings(
    table: Table, row_of: Mapping[str, int], rejects: Rejects, cache: Cache | None = None
) -> tuple[dict[tuple[int, int], float], Metrics]:
    """The mean score of each pair of terms that both have a row, by these rows, and counts of ratings.

    Raises RequestError for fewer than three pairs.
    """
    scores: dict[tuple[int, int], list[float]] = {}
    missing = 0
    for row in rows(table, RATING, cache):
        try:
            *pair, rating = _values(row, terms=2)
            score = _score(rating)
        except ValueError as error:
            rejects.add(row.file, row.line, str(error))
            continue
        rejects.used()
        if row_of.keys() >= {*pair}:
            first, second = sorted(row_of[text] for text in pair)
            scores.setdefault((first, second), []).append(score)
        else:
            missing += 1
    if len(scores) < FEWEST_RATINGS:
        raise RequestError(
            f"ratings: expected at least {FEWEST_RATINGS} pairs of terms that are listed, found {len(scores):,} in "
            f"{table.name}, and {missing:,} ratings of other terms. Terms must be spelt alike in both files, capitals "
            "too; list the rated terms, or give the ratings of these"
        )
    repeated = sum(map(len, scores.values())) - len(scores)
    means = {pair: sum(ratings) / len(ratings) for pair, ratings in scores.items()}
    return means, {
        "terms/rated_pairs": len(scores),
        "terms/ratings_missing": missing,
        "terms/ratings_repeated": repeated,
    }


def _values(row: Row, terms: int) -> list[Any]:
    """The values of a row, the first `terms` of them stripped. Raises ValueError, without the text, for no terms."""
    if not isinstance(row, Record):
        raise ValueError(row.reason)
    texts = row.values[:terms]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a term that is no text")
    if not all(text.strip() for text in texts):
        raise ValueError("an empty term")
    return [*(text.strip() for text in texts), *row.values[terms:]]


def _score(value: Any) -> float:
    try:
        score = float(value)
    except (TypeError, ValueError):  # its message quotes the value
        score = math.nan
    if not math.isfinite(score):
        raise ValueError("no score")
    return score


def _usable_terms(
    settings: TermsSettings, encoder: "SentenceEncoder", rejects: Rejects, cache: Cache | None
) -> list[Term]:
    """The terms that the model can read, with their subwords."""
    listed, terms = read_terms(settings.terms, rejects, cache), list[Term]()
    for term, subwords in zip(listed, _subwords(encoder, [term.text for term in listed]), strict=True):
        if fault := _fault(encoder, subwords):
            rejects.add(term.file, term.line, fault)
        else:
            terms.append(term._replace(subwords=subwords))
    rejects.used(len(terms))
    if len(terms) < 2:
        left_out = f"; left out were {summary}" if (summary := rejects.summary()) else ""
        raise RequestError(f"{settings.terms.name}: expected two terms at least, found {len(terms)}{left_out}")
    if unknown := sum({*term.subwords} == {encoder.tokenizer.unk_token_id} for term in terms):
        log(
            f"{unknown:,} of {len(terms):,} terms have no subword that the model's vocabulary knows; their vectors "
            "mean nothing. Take a model that was made for their language"
        )
    return terms


def _subwords(encoder: "SentenceEncoder", terms: Sequence[str]) -> list[list[int]]:
    """The ids of each term without special tokens; long terms are not cut."""
    if not terms:
        raise RequestError("terms: expected one term or more, found none")
    tokenized = encoder.tokenizer(list(terms), add_special_tokens=False, return_attention_mask=False, verbose=False)
    ids: list[list[int]] = tokenized["input_ids"]
    return ids


def _fault(encoder: "SentenceEncoder", subwords: Sequence[int]) -> str:
    """The reason why a term has no vector; empty where it has one."""
    if len(subwords) + encoder.tokenizer.num_special_tokens_to_add() > encoder.max_tokens:
        return f"a term of more than the {encoder.max_tokens} tokens that the model reads"
    return "" if subwords else "a term without a subword in the model's vocabulary"


def _write_tables(
    output: Path, terms: Sequence[Term], unknown: int, positions: Positions, neighbours: Rows, cosines: Cosines
) -> None:
    """Writes terms, with counts of subwords and positions on the picture, and their neighbours."""
    import pandas as pd

    table = pd.DataFrame([term[:2] for term in terms], columns=["term", "group"])
    counts = {
        "pieces": [len(term.subwords) for term in terms],
        "known_pieces": [sum(subword != unknown for subword in term.subwords) for term in terms],
    }
    count, k = neighbours.shape
    pairs = table.loc[np.repeat(table.index, k)].assign(rank=np.tile(np.arange(k) + 1, count))
    others = table.loc[neighbours.ravel()].to_numpy()
    pairs[["neighbour", "neighbour_group"]] = others
    for name, frame in (
        (TERMS, table.assign(**counts, x=positions[:, 0], y=positions[:, 1])),
        (NEIGHBOURS, pairs.assign(cosine=cosines.ravel())),
    ):
        with atomic_write(output / name) as building:
            frame.to_csv(building, index=False, float_format="%.4f", lineterminator="\n")


def term_vectors(
    model: "SentenceEncoder | str | Path",
    terms: Sequence[str],
    *,
    layers: Layers = "last_four",
    precision: str = "auto",
    batch_tokens: int | None = None,
    cache: Cache | None = None,
) -> Vectors:
    """Vectors of `terms`, float32 (terms, dim): the mean over a term's subwords of the sum of the last layers.

    model: any BERT: a plain folder, a sentence encoder's, a classifier's, or a hub id. Its own pooling, projection and
        prompts do not count here, nor do special tokens such as [CLS] and [SEP].
    layers: `last_four` is the sum of the last four layers, or of all where there are fewer, which is logged; `last` is
        the last one only.
    Raises RequestError for other layers, a term without subwords, and one that is longer than the model reads;
    WorkError for a vector that is not finite.
    """
    import torch

    from bertrelay.inference.encode import check_finite, encode
    from bertrelay.model.encoder import SentenceEncoder

    check_choice("layers", layers, [*LAYERS])
    encoder = model
    if not isinstance(encoder, SentenceEncoder):
        encoder = SentenceEncoder.load(encoder, backend="torch", cache=cache, is_base=True)
    texts = list_texts(terms, "terms")
    for number, subwords in enumerate(_subwords(encoder, texts)):
        if fault := _fault(encoder, subwords):
            raise RequestError(f"terms: expected terms that the model can read, found {fault} at position {number:,}")
    summed = _summed_layers(encoder, layers)
    if summed < LAYERS[layers]:
        log(f"the model has {summed} layers: a term's vector is their sum, where the paper's is that of the last four")
    special = torch.tensor(encoder.tokenize([""])[0], device=encoder.device)

    class TermEncoder(SentenceEncoder):
        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor, prompt_tokens: int | None = None
        ) -> torch.Tensor:
            """(batch, tokens) ids and mask -> float32 (batch, dim)."""
            states = self.backbone(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
            last = torch.stack([state.float() for state in states.hidden_states[-summed:]])  # (layers, batch, …, dim)
            is_subword = attention_mask.bool() & ~torch.isin(input_ids, special)  # (batch, tokens)
            with torch.autocast(input_ids.device.type, enabled=False):
                vectors: torch.Tensor = self.pooling(last.sum(dim=0), is_subword, prompt_tokens or 0)
            return vectors

    term_encoder = TermEncoder(encoder.backbone, encoder.tokenizer, max_tokens=encoder.max_tokens)
    vectors = encode(term_encoder, texts, precision=precision, batch_tokens=batch_tokens)
    check_finite(encoder, vectors, lambda row: f"term {row + 1:,}")
    return vectors


def _summed_layers(encoder: "SentenceEncoder", layers: Layers) -> int:
    return min(LAYERS[layers], int(encoder.backbone.config.num_hidden_layers))


def nearest_terms(vectors: Vectors, k: int = 5) -> tuple[Rows, Cosines]:
    """The `k` rows of `vectors` (n, dim) with the largest cosine to each row except itself, or all others if fewer.

    Returns their numbers, nearest first, and their cosines, (n, k) each. Exact.
    Raises RequestError for fewer than two vectors.
    """
    from sklearn.neighbors import NearestNeighbors

    if len(vectors) < 2 or k < 1:
        raise RequestError(f"neighbours: expected two vectors and k = 1 at least, found {len(vectors)} and k = {k}")
    search = NearestNeighbors(n_neighbors=min(k, len(vectors) - 1), metric="cosine", algorithm="brute").fit(vectors)
    distances, nearest = search.kneighbors()  # without queries, a row is not its own neighbour
    return nearest, (1 - distances).astype(np.float32)


def group_metrics(groups: Sequence[str], neighbours: Rows, seed: int) -> Metrics:
    """The fraction of neighbours that are of the term's own group, with an interval over terms, and that by chance.

    Only terms with a group count. Empty where there are fewer than two groups.
    """
    from bertrelay.evaluation.statistics import share, with_interval

    names, numbers, sizes = np.unique(np.array(groups), return_inverse=True, return_counts=True)
    grouped = np.flatnonzero(np.array(groups) != "")
    if np.count_nonzero(names != "") < 2:
        return {}
    same = (numbers[neighbours[grouped]] == numbers[grouped, None]).mean(axis=1)  # (terms with a group,)
    chance = (sizes[numbers[grouped]] - 1) / (len(groups) - 1)
    fraction = with_interval("terms/same_group", share, same, seed=seed)
    return {**fraction, "terms/same_group_by_chance": float(chance.mean())}


def _agreement(vectors: Vectors, ratings: Mapping[tuple[int, int], float], seed: int) -> Metrics:
    """Correlations of cosines with the scores of rated pairs; intervals resample pairs."""
    from bertrelay.evaluation.similarity import pairwise
    from bertrelay.evaluation.statistics import pearson, spearman, with_interval

    first, second = np.array([*ratings]).T
    cosines = pairwise(vectors[first], vectors[second]).astype(np.float64)  # (pairs,)
    scores = np.array([*ratings.values()])
    return {
        **with_interval("terms/pearson_cosine", pearson, cosines, scores, seed=seed),
        **with_interval("terms/spearman_cosine", spearman, cosines, scores, seed=seed),
    }


def _positions(vectors: Vectors, settings: TermsSettings) -> tuple[float | None, Positions]:
    """The perplexity and the positions (n, 2) of t-SNE (van der Maaten & Hinton, 2008), nan for terms not drawn.

    Of more than 300 terms, 300 are drawn at random. The perplexity is by default the usual 30, or a third of the other
    terms if fewer. No perplexity, and a message, for too few terms.
    """
    from sklearn.manifold import TSNE

    positions, drawn = np.full((len(vectors), 2), np.nan), min(len(vectors), MOST_DRAWN)
    if drawn < FEWEST_DRAWN:
        log(f"no picture: t-SNE needs {FEWEST_DRAWN} terms at least, found {drawn}")
        return None, positions
    perplexity = settings.perplexity or min(30.0, (drawn - 1) / 3)
    if perplexity >= drawn:
        raise RequestError(f"perplexity: expected less than the {drawn} terms of the picture, found {perplexity:g}")
    if drawn < len(vectors):
        log(f"the picture shows {drawn:,} of {len(vectors):,} terms, drawn at random; the tables have all")
    chosen = np.sort(np.random.default_rng(settings.seed).choice(len(vectors), drawn, replace=False))
    tsne = TSNE(perplexity=perplexity, metric="cosine", init="random", method="exact", random_state=settings.seed)
    positions[chosen] = tsne.fit_transform(np.asarray(vectors[chosen], np.float64))
    return perplexity, positions


def draw_terms(texts: Sequence[str], groups: Sequence[str], positions: Positions, note: str) -> "Figure":
    """Draws the terms that have a position, (n, 2), each with a label; colour and shape show the group.

    Labels of neighbouring terms may cover each other; `terms.csv` has all positions.
    """
    from matplotlib.figure import Figure

    drawn = np.flatnonzero(np.isfinite(positions[:, 0])).tolist()
    labels = [cut(texts[row]) for row in drawn]
    names = {group: cut(group) or "no group" for group in dict.fromkeys(groups[row] for row in drawn)}
    height = max(7.0, 0.7 * math.sqrt(len(drawn)))  # inches
    figure = Figure(figsize=(1.3 * height, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xticks=[], yticks=[], xmargin=0.15)  # labels are to the right of their marks
    text: dict[str, Any] = {"family": font_families([*labels, *names.values()]), "parse_math": False}
    shown = f"{len(drawn):,}" if len(drawn) == len(texts) else f"{len(drawn):,} of {len(texts):,}"
    axes.set_title(f"{shown} terms by t-SNE", loc="left", fontweight="bold", **text)
    for (group, name), colour, shape in zip(names.items(), cycle(COLOURS), cycle(SHAPES)):
        members = [row for row in drawn if groups[row] == group]
        style: dict[str, Any] = {"c": colour, "marker": shape, "s": 50, "edgecolors": "black", "linewidths": 0.6}
        axes.scatter(*positions[members].T, label=f"{len(members):,} {name}", **style)
    for label, position in zip(labels, positions[drawn], strict=True):
        axes.annotate(label, position, (6, 4), textcoords="offset points", fontsize=8, **text)
    if len(names) > 1:
        fonts = {"family": text["family"], "size": 9}
        legend = axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, prop=fonts)
        for entry in legend.get_texts():
            entry.set_parse_math(False)
    axes.text(0, -0.02, f"{CAPTION}\n{note}", transform=axes.transAxes, fontsize=9, va="top", **text)
    return figure
