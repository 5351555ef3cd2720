"""Fewer dimensions: a model's vectors on their principal axes, as the last linear map of the model itself.

The axes are those of the vectors as they are, without taking the mean away. That keeps dot products, and so cosines,
as near as so many dimensions can (Eckart & Young, 1936), and turning before or after a normalisation is the same. With
the mean taken away STS scores hardly change, and cosines move away from the model's own.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertrelay.data.records import Rejects, read
from bertrelay.data.sentences import text_column
from bertrelay.data.tables import Table
from bertrelay.encoder import SentenceEncoder, as_encoder
from bertrelay.errors import RequestError, check_count
from bertrelay.evaluation.similarity import Vectors, pairwise
from bertrelay.pooling import Projection, Projections, projection_of, projections_of
from bertrelay.stage import Metrics, StageContext
from bertrelay.texts import each_text
from students.build import keep_layers, linear_projection
from students.evaluate import EvaluationSets
from students.metrics import before_and_after, counts, read_variance, save_variance
from students.settings import ShrinkSettings
from students.vocabulary import check_can_be_read_again, trim_vocabulary

ROUNDS = 5
TIMED_SENTENCES = 512
SAMPLE = 2048  # sentences; with four times as many the axes give the same STS scores to ± 0.001

Axes = NDArray[np.float64]
"""(dim, dimensions), orthonormal columns, the one along which vectors are longest first."""


def principal_axes(vectors: Vectors, dimensions: int) -> Axes:
    """The axes that keep most of the squared length of `vectors` (n, dim).

    Raises RequestError for fewer vectors than axes, and unless there are fewer axes than dimensions.
    """
    count, dim = vectors.shape
    if dimensions >= dim:
        raise RequestError(f"dimensions: expected fewer than the model's {dim}, found {dimensions}")
    if count < dimensions:
        raise RequestError(
            f"dimensions: expected at least as many sentences in the corpus as dimensions, found {count:,} for "
            f"{dimensions}; give more text, or fewer dimensions"
        )
    exact = vectors.astype(np.float64)
    _, axes = np.linalg.eigh(exact.T @ exact)  # (dim, dim), the shortest first
    return np.ascontiguousarray(axes[:, ::-1][:, :dimensions])


def projection_onto(axes: Axes, encoder: SentenceEncoder) -> Projection | Projections | None:
    """The encoder's own projections, if it has any, and the axes after them; a linear map at the end becomes one."""
    turn = torch.from_numpy(axes.T)  # (dimensions, dim)
    own = projections_of(encoder.projection)
    if not own or not isinstance(own[-1].activation, nn.Identity):
        return projection_of([*own, linear_projection(turn, None)])
    weight, bias = own[-1].linear.weight.detach().cpu().double(), own[-1].linear.bias
    last = linear_projection(turn @ weight, None if bias is None else turn @ bias.detach().cpu().double())
    last.normalized = own[-1].normalized
    return projection_of([*own[:-1], last])


def speeds(encoders: Sequence[SentenceEncoder], sentences: Sequence[str], precision: str) -> list[float]:
    """Sentences per second of each encoder, on the first few hundred: the median of rounds in turn.

    In turn, so that a machine that is busy with other work is so for all of them.
    """
    sentences, seconds = sentences[:TIMED_SENTENCES], np.empty((ROUNDS, len(encoders)))
    for taken in seconds:
        for place, encoder in enumerate(encoders):
            started = time.perf_counter()
            encoder.encode(sentences, precision=precision)
            taken[place] = time.perf_counter() - started
    rates: list[float] = (len(sentences) / np.median(seconds, axis=0)).tolist()
    return rates


def moved(before: Vectors, after: Vectors, axes: Axes | None) -> Metrics:
    """Cosines of vectors (n, dim) to those they were, (n, dim before): their mean, and the lowest.

    axes: where there are fewer dimensions, vectors are compared where these lead back to.
    """
    if axes is not None:
        after = (after @ axes.T).astype(np.float32)  # (n, dim before)
    cosines = np.minimum(pairwise(before, after), 1)  # (n,); rounding goes beyond
    return {"cosine_mean": float(cosines.mean(dtype=np.float64)), "cosine_min": float(cosines.min())}


@dataclass(frozen=True)
class Shrunk:
    """A smaller encoder; where it has fewer dimensions, `axes` (dim before, dim) lead back to where vectors were."""

    encoder: SentenceEncoder
    axes: Axes | None = None


def shrink(
    model: SentenceEncoder | str | Path,
    texts: Iterable[str],
    *,
    trim: bool = True,
    layers: int | None = None,
    dimensions: int | None = None,
    precision: str = "auto",
) -> Shrunk:
    """A smaller encoder; one that is given stays as it is.

    model: an encoder, or a name that `SentenceEncoder.load` knows.
    texts: in the languages it is for; read several times and never held, so no generator.
    trim: leave out the pieces that `texts` do not use. No vector of `texts` changes by that.
    layers: so many are kept, evenly spread; dimensions: so many are left of a vector.
    Raises RequestError for what a model has not or cannot lose.
    """
    check_count("layers", layers)
    check_count("dimensions", dimensions)
    check_can_be_read_again(texts)
    encoder = as_encoder(model)
    table = encoder.backbone.get_input_embeddings()  # the bulk of a model; trimming makes a table of its own
    smaller, axes = deepcopy(encoder, {id(table): table} if trim else {}), None
    if layers is not None:
        keep_layers(smaller.backbone, layers)
    if layers is not None or dimensions is not None:
        smaller.space = None  # its vectors are no longer those of its teacher's space
    if dimensions is not None:
        axes = principal_axes(smaller.encode(sample_of(texts), precision=precision), dimensions)
        smaller.projection = projection_onto(axes, smaller)
        smaller.to(smaller.device)
    return Shrunk(trim_vocabulary(smaller, texts) if trim else smaller, axes)


def sample_of(texts: Iterable[str], count: int = SAMPLE) -> list[str]:
    """At most `count` texts that are not blank, each once: those of the smallest digests, whatever their order."""
    by_digest: dict[bytes, str] = {}
    for text in each_text(texts, "texts"):
        if text.strip():
            by_digest[hashlib.sha256(text.encode()).digest()] = text
        if len(by_digest) >= 4 * count:
            by_digest = dict(sorted(by_digest.items())[:count])
    return [text for _, text in sorted(by_digest.items())[:count]]


def run(settings: ShrinkSettings, context: StageContext) -> Metrics:
    """Writes `model/`, and measures it beside the model it comes from; the main process does it alone."""
    if not context.process_group.is_main:
        return {}
    texts = CorpusTexts(settings.corpus, context.cache)
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        sample = sample_of(texts.read(rejects))
        tests = EvaluationSets.read(settings, context, rejects)
    if not sample:
        raise RequestError("corpus: expected text, found blank lines alone; check that it is the right file")
    larger = as_encoder(settings.model, context.cache)
    options = settings.model_dump(include={"layers", "dimensions", "precision"})
    shrunk = shrink(larger, texts, trim=settings.trim_vocabulary, **options)
    shrunk.encoder.save(context.output / "model")
    variance = read_variance(settings.model)
    if variance is not None:
        save_variance(variance, context.output / "model")
    larger.save(context.work / "before")  # so that both sizes are of files of one kind
    encoders = {context.work / "before": larger, context.output / "model": shrunk.encoder}
    rates = speeds(list(encoders.values()), sample, settings.precision)
    measured: list[Metrics] = []
    for (folder, encoder), rate in zip(encoders.items(), rates, strict=True):
        bytes_on_disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        sizes = {"size_mb": bytes_on_disk / 1e6, **counts(encoder), "dimensions": encoder.dim}
        scores = tests.metrics(tests.encoded(encoder, settings.precision))
        measured.append({**sizes, "sentences_per_second": rate, **scores})
    before, after = (encoder.encode(sample, precision=settings.precision) for encoder in encoders.values())
    return before_and_after(*measured) | moved(before, after, shrunk.axes)


@dataclass(frozen=True)
class CorpusTexts:
    """The texts of tables, read anew each time they are gone through; what cannot be used was counted before."""

    tables: Sequence[Table]
    cache: Path

    def __iter__(self) -> Iterator[str]:
        return self.read(Rejects(None, limit=1.0))

    def read(self, rejects: Rejects) -> Iterator[str]:
        """The texts in the columns of all tables."""
        for table in self.tables:
            for record in read(table, text_column(table), self.cache, rejects):
                if all(isinstance(value, str) for value in record.values):
                    rejects.used()
                    yield from record.values
                else:
                    rejects.add(record.file, record.line, "not text")
