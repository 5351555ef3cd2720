"""The stage `domain.terms`: medical terms in a model: vectors, neighbours, agreement with ratings, and a picture."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects
from bertrelay.data.vectors import write_vectors
from bertrelay.device import ComputePrecision, resolve_precision
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import pairwise
from bertrelay.evaluation.statistics import pearson, spearman, with_interval
from bertrelay.files import atomic_write, write_error, write_json
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.plots import write_figure
from bertrelay.progress import log
from bertrelay.stage import Metrics, StageContext
from domain.terms.picture import LEAST_TERMS, MOST_TERMS, Map, draw_terms, place_terms
from domain.terms.settings import RatedPairs, Term, TermsSettings, check_files, read_ratings, read_terms
from domain.terms.vectors import (
    NearestTerms,
    TermTokens,
    Vectors,
    group_metrics,
    layers_summed,
    nearest_terms,
    term_tokens,
    vectors_of_tokens,
)

METRICS, REJECTS, TERMS, NEIGHBOURS = "metrics.json", "rejects.jsonl", "terms.csv", "neighbours.csv"
PICTURES = ("tsne.svg", "tsne.png")
VECTORS = ("vectors.npy", "vectors.parquet")


def run(settings: TermsSettings, context: StageContext) -> Metrics:
    """The stage `domain.terms`, see `describe_terms`; one process does it."""
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    return describe_terms(settings, context.output, context.cache, precision=precision)


def describe_terms(
    settings: TermsSettings,
    output: Path,
    cache: Cache | None = None,
    overwrite: bool = True,
    precision: ComputePrecision | None = None,
) -> Metrics:
    """Writes into the folder `output` vectors, neighbours and a picture of the terms, and returns the metrics.

    `vectors.npy` or `.parquet`, row i for line i + 1 of `terms.csv` below its header; `neighbours.csv`; `tsne.svg` and
    `tsne.png`; `metrics.json`; and `rejects.jsonl` with what was left out, by file, line and reason.
    cache: where a model or data set of the hub is kept. overwrite: whether such files may be there already.
    precision: of the stage; by default that of the settings on this device.
    Raises RequestError for files that cannot be what they should be, for an output that is one of them, and for fewer
    than two terms.
    """
    check_files(settings, cache)
    _check_output(settings, output, overwrite)
    try:
        return _describe(settings, output, cache, precision or resolve_precision(settings.precision))
    except OSError as error:
        raise write_error(output, error) from error


def _check_output(settings: TermsSettings, output: Path, overwrite: bool) -> None:
    if output.exists() and not output.is_dir():
        raise RequestError(f"output: expected a folder to write into, found the file {output}; name another")
    written = [(output / name).resolve() for name in (TERMS, NEIGHBOURS, METRICS, REJECTS, *VECTORS, *PICTURES)]
    for table in filter(None, (settings.terms, settings.ratings)):
        if table.path and Path(table.path).resolve() in written:
            raise RequestError(f"output: {table.path} is an input and would be written over; name another folder")
    there = [path.name for path in written if path.exists()]
    if there and not overwrite:
        raise RequestError(
            f"output: {', '.join(there)} in {output} are there already; name another folder, or replace them with "
            "--overwrite"
        )


def _describe(settings: TermsSettings, output: Path, cache: Cache | None, precision: ComputePrecision) -> Metrics:
    output.mkdir(parents=True, exist_ok=True)
    encoder = SentenceEncoder.load(settings.model, backend="torch", cache=cache, is_base=True)
    with Rejects(output / REJECTS, settings.max_rejects) as rejects:
        terms, tokens = _usable_terms(settings, encoder, rejects, cache)
        row_of = {term.text: row for row, term in enumerate(terms)}
        rated = read_ratings(settings.ratings, row_of, rejects, cache) if settings.ratings else None
    texts, groups = [term.text for term in terms], [term.group for term in terms]
    vectors = vectors_of_tokens(encoder, tokens, settings.layers, precision, settings.batch_tokens)
    placed = _placed(vectors, settings)
    for earlier in (*VECTORS, *PICTURES):  # this run may write other ones
        (output / earlier).unlink(missing_ok=True)
    count, dim = vectors.shape
    write_vectors(output / f"vectors.{settings.output}", [vectors], count, dim, lambda first, end: texts[first:end])
    near = nearest_terms(vectors, settings.k)
    _write_tables(output, terms, tokens, placed, near)
    metrics: Metrics = {
        **(_agreement(vectors, rated, settings.seed) if rated else {}),
        **group_metrics(groups, near, settings.seed),
        **(_write_pictures(output, texts, groups, placed) if placed else {}),
        "terms/count": count,
        "terms/dim": dim,
        "terms/layers": layers_summed(encoder, settings.layers),
        "terms/perplexity": placed.perplexity if placed else None,
        "terms/rejected": rejects.counts.total(),
        "terms/unknown": int((tokens.known == 0).sum()),
    }
    write_json(output / METRICS, metrics)
    return metrics


def _usable_terms(
    settings: TermsSettings, encoder: SentenceEncoder, rejects: Rejects, cache: Cache | None
) -> tuple[list[Term], TermTokens]:
    """The terms that the model can read, and their tokens."""
    listed = read_terms(settings.terms, rejects, cache)
    tokens = term_tokens(encoder, [term.text for term in listed])
    faults = [tokens.fault(place, encoder.max_tokens) for place in range(len(listed))]
    for term, fault in zip(listed, faults, strict=True):
        if fault:
            rejects.add(term.file, term.line, fault)
    kept = [place for place, fault in enumerate(faults) if fault is None]
    rejects.used(len(kept))
    if len(kept) < 2:
        left_out = f"; left out were {summary}" if (summary := rejects.summary()) else ""
        raise RequestError(
            f"{settings.terms.name}: expected two terms at least, to be compared, found {len(kept)}{left_out}"
        )
    tokens = tokens.take(kept)
    unknown = int((tokens.known == 0).sum())
    if unknown == len(kept):
        raise RequestError(
            f"terms: expected terms that the model's vocabulary knows pieces of, found none among {unknown:,}. "
            "Take a model that was made for their language"
        )
    if unknown:
        log(
            f"{unknown:,} of {len(kept):,} terms have no piece that the model's vocabulary knows; their vectors mean "
            "nothing. Take a model that was made for their language"
        )
    return [listed[place] for place in kept], tokens


def _placed(vectors: Vectors, settings: TermsSettings) -> Map | None:
    """Where the terms are on the picture; None, and a message, where there are too few."""
    shown = min(len(vectors), MOST_TERMS)
    if shown < LEAST_TERMS:
        log(f"no picture: t-SNE needs {LEAST_TERMS} terms at least, and there are {shown}")
        return None
    if settings.perplexity and settings.perplexity >= shown:
        raise RequestError(
            f"perplexity: expected less than the {shown} terms of the picture, found {settings.perplexity:g}; "
            "without one it is fitted to their number"
        )
    if shown < len(vectors):
        log(f"the picture shows {shown:,} of {len(vectors):,} terms, drawn at random; the tables have all")
    placed = place_terms(vectors, settings.seed, settings.perplexity)
    log(f"t-SNE of {shown:,} terms: perplexity {placed.perplexity:.3g}")
    return placed


def _write_pictures(output: Path, texts: Sequence[str], groups: Sequence[str], placed: Map) -> Metrics:
    figure, unlabelled = draw_terms(texts, groups, placed)
    for name in PICTURES:
        write_figure(output / name, figure)
    if unlabelled:
        log(f"{unlabelled:,} terms have no label on the picture, for lack of space; terms.csv has their places")
    return {"terms/unlabelled": unlabelled}


def _write_tables(
    output: Path, terms: Sequence[Term], tokens: TermTokens, placed: Map | None, near: NearestTerms
) -> None:
    """Terms, with their pieces, those of them that the vocabulary has, and places on the picture; and neighbours."""
    table = pd.DataFrame([term[:2] for term in terms], columns=["term", "group"])
    counted = table.assign(pieces=tokens.pieces, known_pieces=tokens.known, x=np.nan, y=np.nan)
    if placed:
        counted.loc[placed.rows, ["x", "y"]] = placed.positions
    neighbours = table.loc[np.repeat(table.index, near.rows.shape[1])].reset_index(drop=True)
    others = table.loc[near.rows.ravel()].reset_index(drop=True)
    neighbours["rank"] = np.tile(np.arange(near.rows.shape[1]) + 1, len(terms))
    neighbours["neighbour"], neighbours["neighbour_group"] = others["term"], others["group"]
    neighbours["cosine"] = near.cosines.ravel()
    for name, rows in ((TERMS, counted), (NEIGHBOURS, neighbours)):
        with atomic_write(output / name) as building:
            rows.to_csv(building, index=False, float_format="%.4f", lineterminator="\n")


def _agreement(vectors: Vectors, rated: RatedPairs, seed: int) -> Metrics:
    """How the cosines of rated pairs agree with their scores; intervals resample pairs."""
    first, second = np.array(rated.pairs).T
    cosines = pairwise(vectors[first], vectors[second]).astype(np.float64)  # (pairs,)
    scores = np.array(rated.scores)
    return {
        **with_interval("terms/pearson_cosine", pearson, cosines, scores, seed=seed),
        **with_interval("terms/spearman_cosine", spearman, cosines, scores, seed=seed),
        "terms/rated_pairs": len(rated.pairs),
        "terms/ratings_missing": rated.missing,
        "terms/ratings_repeated": rated.repeated,
    }
