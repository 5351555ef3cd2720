"""The stage `students.shrink`: a model with fewer pieces, layers or dimensions, and what that costs and brings."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from bertrelay.data.records import Rejects, read
from bertrelay.data.sentences import text_column
from bertrelay.data.tables import Table
from bertrelay.data.texts import each_text
from bertrelay.encoder import SentenceEncoder, as_encoder
from bertrelay.errors import RequestError, check_count
from bertrelay.settings import ModelSource
from bertrelay.stage import Metrics, StageContext
from students.corpus import Translations
from students.evaluation import all_sentences, read_translations
from students.layers import keep_layers
from students.scores import Encoded, parallel_metrics
from students.shrinking.dimensions import Axes, principal_axes, projection_onto
from students.shrinking.settings import ShrinkSettings
from students.shrinking.side_by_side import moved, side_by_side, size, size_saved, speeds
from students.shrinking.trim import check_can_be_read_again, trim_vocabulary
from students.targets import read_variance, save_variance
from teachers.evaluation.sts import StsPairs, read_sts, sts_metrics

SAMPLE = 2048  # sentences; with four times as many the axes give the same STS scores to ± 0.001


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
    if dimensions is not None:
        axes = principal_axes(smaller.encode(sample_of(texts), precision=precision), dimensions)
        smaller.projection = projection_onto(axes, smaller).to(smaller.device)
    return Shrunk(trim_vocabulary(smaller, texts) if trim else smaller, axes)


def sample_of(texts: Iterable[str], count: int = SAMPLE) -> list[str]:
    """At most `count` texts that are not blank, each once: those of the smallest digests, wherever they stand."""
    found: dict[bytes, str] = {}
    for text in each_text(texts, "texts"):
        if text.strip():
            found[hashlib.sha256(text.encode()).digest()] = text
        if len(found) >= 4 * count:
            found = dict(sorted(found.items())[:count])
    return [text for _, text in sorted(found.items())[:count]]


def run(settings: ShrinkSettings, context: StageContext) -> Metrics:
    """Writes `model/`, and measures it beside the model it comes from; the main process does it alone."""
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        sample = sample_of(_texts(settings.corpus, context, rejects))
        tests = read_translations(settings.parallel, context, rejects)
        sts = {name: read_sts(table, context, rejects) for name, table in settings.sts.items()}
    if not sample:
        raise RequestError("corpus: expected text, found blank lines alone; check that it is the right file")
    larger = as_encoder(settings.model, context.cache)
    shrunk = shrink(
        larger,
        CorpusTexts(settings.corpus, context),
        trim=settings.trim_vocabulary,
        layers=settings.layers,
        dimensions=settings.dimensions,
        precision=settings.precision,
    )
    _save(shrunk.encoder, settings.model, context.output / "model")
    encoders = (larger, shrunk.encoder)
    before, after = (encoder.encode(sample, precision=settings.precision) for encoder in encoders)
    sizes = size_saved(larger, context.work / "before"), size(shrunk.encoder, context.output / "model")
    rates = ({"sentences_per_second": rate} for rate in speeds(encoders, sample, settings.precision))
    scores = (_scores(encoder, tests, sts, settings.precision) for encoder in encoders)
    figures = (size | rate | score for size, rate, score in zip(sizes, rates, scores, strict=True))
    return side_by_side(*figures) | moved(before, after, shrunk.axes)


def _save(encoder: SentenceEncoder, source: ModelSource, folder: Path) -> None:
    """Saves a student with the unit of its distances, if it has one."""
    encoder.save(folder)
    variance = read_variance(source)
    if variance is not None:
        save_variance(variance, folder)


def _scores(
    encoder: SentenceEncoder, tests: Mapping[str, Translations], sts: Mapping[str, StsPairs], precision: str
) -> Metrics:
    vectors = Encoded.of(encoder, all_sentences(tests, sts), precision)
    return (sts_metrics(sts, vectors) if sts else {}) | parallel_metrics(tests, vectors, None, None)


@dataclass(frozen=True)
class CorpusTexts:
    """The texts of tables, read anew each time they are gone through; what cannot be used was counted before."""

    tables: Sequence[Table]
    context: StageContext

    def __iter__(self) -> Iterator[str]:
        return _texts(self.tables, self.context, Rejects(None, limit=1.0))


def _texts(tables: Sequence[Table], context: StageContext, rejects: Rejects) -> Iterator[str]:
    """The texts in the columns of all tables."""
    for table in tables:
        for record in read(table, text_column(table), context.cache, rejects):
            if all(isinstance(value, str) for value in record.values):
                rejects.used()
                yield from record.values
            else:
                rejects.add(record.file, record.line, "not text")
