"""The stage `students.shrink`: a smaller model, with its size, speed and scores beside the larger one's."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bertrelay.blocks import blocks_of
from bertrelay.cache import Cache
from bertrelay.checks import check_count
from bertrelay.data.arrow import open_arrow, write_arrow
from bertrelay.data.records import Rejects, read
from bertrelay.data.sentences import text_column
from bertrelay.errors import RequestError
from bertrelay.evaluation.encode import finite
from bertrelay.languages import is_language
from bertrelay.model.encoder import SentenceEncoder, open_encoder, refuse_pair
from bertrelay.stage import Metrics, StageContext
from students.compress.coverage import LanguageSubwords, sample_texts, subwords_of_languages
from students.compress.dimensions import Axes, cosines_to_original, principal_axes, projection_onto
from students.compress.pruning import keep_layers, keep_neurons
from students.compress.settings import COVERAGE, CorpusTable, ShrinkSettings
from students.compress.sizes import before_and_after, counts, speeds
from students.compress.vocabulary import check_can_be_read_again, trim_vocabulary
from students.evaluate.stage import EvaluationSets
from students.evaluate.translation import read_variance, save_variance
from students.parallel.language_check import LanguageCheck
from students.parallel.pairs import PairCounts, read_pairs
from students.parallel.settings import ENGLISH
from students.teacher import resolve_prompt

SAMPLE = 2048  # sentences; with four times as many the axes give the same STS scores to ± 0.001
TEXTS_AT_ONCE = 8192
TEXTS = pa.schema({"language": pa.string(), "text": pa.string()})


@dataclass(frozen=True)
class Shrunk:
    """A smaller encoder.

    axes: (dim before, dim), which lead its vectors back to the dimensions before; None with as many dimensions.
    coverage: metrics of held-out text, if the vocabulary was trimmed by languages.
    """

    encoder: SentenceEncoder
    axes: Axes | None = None
    coverage: Metrics = field(default_factory=dict)


def shrink(
    model: SentenceEncoder | str | Path,
    texts: Iterable[str],
    *,
    trim: bool = True,
    languages: Mapping[str, Iterable[str]] | None = None,
    coverage: float = COVERAGE,
    layers: int | None = None,
    intermediate_size: int | None = None,
    dimensions: int | None = None,
    prompt: str | None = None,
    precision: str = "auto",
) -> Shrunk:
    """Returns a smaller encoder; `model` does not change.

    model: an encoder, or a name for `SentenceEncoder.load`.
    texts: in the languages the model is for; read several times and never held in memory, so no generator.
    trim: leave out the subwords that `texts` do not use. That changes no vector of `texts`.
    languages: code to text in it, which is among `texts` too. Subwords of its scripts are kept, as many as the fraction
        `coverage` of the tokens of held-out text needs to be as before.
    layers: number to keep, chosen by the vectors of `texts`. intermediate_size: number of neurons to keep in each
        feed-forward layer. dimensions: number to keep of a vector.
    prompt: the text before each of `texts` where vectors decide; the model's default one when absent.
    Raises RequestError for more than a model has, and for parts that it cannot lose.
    """
    check_count("layers", layers)
    check_count("intermediate_size", intermediate_size)
    check_count("dimensions", dimensions)
    check_can_be_read_again(texts)
    larger = open_encoder(model)
    refuse_pair(larger)
    encoder = larger.with_default_prompt(prompt)
    if dimensions is not None and encoder.truncate_dim is not None:
        raise RequestError(
            f"dimensions: expected a model with whole vectors, found truncate_dim = {encoder.truncate_dim}; remove it "
            "from config_sentence_transformers.json"
        )
    table = encoder.backbone.get_input_embeddings()  # the bulk of a model; trimming makes a new table anyway
    smaller, axes = deepcopy(encoder, {id(table): table} if trim else {}), None  # with trim the table is shared
    if layers is not None:
        keep_layers(smaller, layers, texts, precision)
    if intermediate_size is not None:
        keep_neurons(smaller, intermediate_size, texts)
    if dimensions is not None:
        encode = finite(partial(smaller.encode, precision=precision))
        axes = principal_axes(encode(sample_texts(texts, SAMPLE)), dimensions)
        smaller.projection = projection_onto(axes, smaller)
        smaller.matryoshka_dimensions = ()
        smaller.to(smaller.device)
    needed = LanguageSubwords(set(), {})
    if trim:
        needed = subwords_of_languages(smaller, texts, languages, coverage) if languages else needed
        smaller = trim_vocabulary(smaller, texts, needed.ids)
    if (layers, intermediate_size, dimensions) != (None, None, None):
        smaller.spaces = ()  # its vectors are those of no other encoder
    smaller.prompts = larger.prompts
    return Shrunk(smaller, axes, needed.metrics)


def run(settings: ShrinkSettings, context: StageContext) -> Metrics:
    """Writes `model/`, and measures it beside the larger model; only the main process works."""
    settings.log_missing_languages()
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        texts = CorpusTexts.write(context.work / "corpus.arrow", settings, context.cache, rejects)
        sample = sample_texts(texts, SAMPLE)
        tests = EvaluationSets.read(settings.parallel, settings.sts, context, rejects)
    if not sample:
        raise RequestError("corpus: expected text, found only blank lines; check that it is the right file")
    larger = open_encoder(settings.model, context.cache)
    options = settings.model_dump(include={"coverage", "layers", "intermediate_size", "dimensions"})
    by_language = {language: texts.of(language) for language in settings.kept_languages}
    prompt = resolve_prompt(settings.prompt, larger, "prompt")
    trim = settings.trim_vocabulary
    shrunk = shrink(larger, texts, trim=trim, languages=by_language, prompt=prompt, precision=precision, **options)
    shrunk.encoder.save(context.output / "model")
    variance = read_variance(settings.model)
    if variance is not None:
        save_variance(variance, context.output / "model")
    larger.save(context.work / "before")  # so that both sizes are of files of one kind
    encoders = {context.work / "before": larger, context.output / "model": shrunk.encoder}
    encoders = {folder: encoder.with_default_prompt(prompt) for folder, encoder in encoders.items()}
    rates = speeds(list(encoders.values()), sample, precision)
    measured: list[Metrics] = []
    for (folder, encoder), rate in zip(encoders.items(), rates, strict=True):
        bytes_on_disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        sizes = {"size_mb": bytes_on_disk / 1e6, **counts(encoder), "dimensions": encoder.dim}
        scores = tests.metrics(tests.encode(encoder, precision))
        measured.append({**sizes, "sentences_per_second": rate, **scores})
    before, after = (encoder.encode(sample, precision=precision) for encoder in encoders.values())
    return before_and_after(*measured) | cosines_to_original(before, after, shrunk.axes) | shrunk.coverage


@dataclass(frozen=True)
class CorpusTexts:
    """The texts of a corpus, or those with some language codes, read from the disk in every iteration."""

    table: pa.Table
    codes: list[str] | None = None

    @classmethod
    def write(cls, path: Path, settings: ShrinkSettings, cache: Cache, rejects: Rejects) -> "CorpusTexts":
        """Reads all sources once; unusable records are counted."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_arrow(path, TEXTS, _blocks(_read_corpus(settings, cache, rejects)))
        return cls(open_arrow(path))

    def of(self, language: str) -> "CorpusTexts":
        codes = pc.unique(self.table["language"]).to_pylist()
        return CorpusTexts(self.table, [code for code in codes if is_language(code, language)])

    def __iter__(self) -> Iterator[str]:
        codes = None if self.codes is None else pa.array(self.codes, pa.string())
        for batch in self.table.to_batches():
            selected = batch if codes is None else batch.filter(pc.is_in(batch["language"], codes))
            yield from selected["text"].to_pylist()


def _blocks(texts: Iterator[tuple[str, str]]) -> Iterator[dict[str, Sequence[str]]]:
    for block in blocks_of(texts, TEXTS_AT_ONCE):
        yield dict(zip(TEXTS.names, zip(*block, strict=True), strict=True))


def _read_corpus(settings: ShrinkSettings, cache: Cache, rejects: Rejects) -> Iterator[tuple[str, str]]:
    """Yields the language, or an empty string, and the text of all sources."""
    for source in settings.corpus:
        if not isinstance(source, CorpusTable):
            counts = PairCounts([source])
            for stream, english, other in read_pairs([source], cache, rejects, counts):
                yield from ((ENGLISH, english), (counts.languages[stream], other))
            continue
        check = LanguageCheck([source.language] if source.language else [])
        for record in read(source, text_column(source), cache, rejects):
            if all(isinstance(value, str) for value in record.values):
                rejects.used()
                for value in record.values if source.language else ():
                    check.add([value])
                yield from ((source.language or "", value) for value in record.values)
            else:
                rejects.add(record.file, record.line, "not text")
        check.check(source.name, source.max_misplaced)
