"""Exports models as graphs, or a student and its teacher as a pair, and measures them beside the model's parent."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import rmtree

from bertrelay.data.records import Rejects
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import cosine_metrics
from bertrelay.files import new_folder, write_json
from bertrelay.model.encoder import SentenceEncoder, open_encoder
from bertrelay.model.export import EXPORT_METRICS, Exportable
from bertrelay.model.export import export as write_graphs
from bertrelay.model.files import GRAPHS, GraphBackend
from bertrelay.model.settings import GraphPrecision, Opset
from bertrelay.model.static import round_static
from bertrelay.stage import Metrics, StageContext
from students.compress.pair import write_pair
from students.compress.settings import ExportSettings
from students.compress.sizes import speeds
from students.evaluate.stage import EvaluationSets
from students.evaluate.translation import read_variance, save_variance
from students.parallel.general_sentences import general_sentences
from students.parallel.pairs import read_translations


def export(
    model: SentenceEncoder | str | Path,
    folder: str | Path,
    *,
    formats: Sequence[GraphBackend] = ("onnx",),
    precision: GraphPrecision = "fp32",
    opset: Opset = 23,
    pair: SentenceEncoder | str | Path | None = None,
) -> Metrics:
    """Writes a model's folder with graphs, and compares them with the model on the project's general sentences.

    Arguments, metrics and errors: see `bertrelay.model.export.export`.
    pair: the model's teacher. Then no graph is written, but both as one folder: see `students.compress.pair`.
    """
    if pair is not None:
        return write_pair(open_encoder(model), open_encoder(pair), Path(folder), _general_english())
    exported = Exportable(model) if isinstance(model, SentenceEncoder) else Exportable.load(model)
    if exported.encoder.is_static:
        return _write_table(exported.encoder, Path(folder), _general_sentences(), formats, precision)
    return write_graphs(exported, Path(folder), _general_sentences(), formats=formats, precision=precision, opset=opset)


def _general_sentences() -> list[str]:
    """Reads the sentences of many domains and languages that come with the project, each once."""
    general = read_translations(general_sentences(), None, Rejects(None))
    return list(dict.fromkeys(text for translations in general.values() for texts in translations for text in texts))


def _write_table(
    model: SentenceEncoder, folder: Path, sentences: Sequence[str], formats: Sequence[str], precision: GraphPrecision
) -> Metrics:
    """Writes the folder of a static encoder, in int8 with a table of 8 bits, and measures its vectors and its size."""
    if list(formats) != ["onnx"]:
        raise RequestError(f"formats: a static encoder has no graph, found {', '.join(formats)}; leave it out")
    with new_folder(folder) as building:
        model.save(building)
        if precision == "int8":
            round_static(building, normalize=model.normalize, has_projection=model.projection is not None)
        vectors = [encoder.encode(sentences, precision="fp32") for encoder in (model, SentenceEncoder.load(building))]
        size = sum(file.stat().st_size for file in building.rglob("*.safetensors"))
        metrics: Metrics = cosine_metrics(*vectors) | {"size_mb": size / 1e6}
        metrics = {f"table/{name}": value for name, value in metrics.items()}
        write_json(building / EXPORT_METRICS, metrics)
    return metrics


def _general_english() -> list[str]:
    """Reads the English ones of these, which a teacher knows."""
    general = read_translations(general_sentences(), None, Rejects(None))
    return list(dict.fromkeys(text for translations in general.values() for text in translations.english))


def run(settings: ExportSettings, context: StageContext) -> Metrics:
    """Writes `model/`, and measures its graphs beside the model and its parent; only the main process works."""
    settings.log_missing_languages()
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        tests = EvaluationSets.read(settings.parallel, settings.sts, context, rejects)
    sentences, folder = _general_sentences(), context.output / "model"
    if settings.pair is not None:
        rmtree(folder, ignore_errors=True)  # of a stage that was stopped
        encoders = {
            "query": open_encoder(settings.model, context.cache),
            "document": open_encoder(settings.pair, context.cache),
        }
        metrics = write_pair(encoders["query"], encoders["document"], folder, _general_english())
        return metrics | _measure(encoders, sentences, tests)
    exported, encoders = Exportable.load(settings.model, context.cache), dict[str, SentenceEncoder]()
    model = exported.encoder
    if settings.parent is not None:
        encoders["parent"] = Exportable.load(settings.parent, context.cache).encoder
    for unfinished in (folder, *folder.parent.glob(f".{folder.name}.*")):  # of a stage that was stopped
        rmtree(unfinished, ignore_errors=True)
    if model.is_static:
        metrics = _write_table(model, folder, sentences, settings.formats, settings.precision)
        return _measure({**encoders, "torch": model}, sentences, tests) | metrics
    metrics = write_graphs(
        exported,
        folder,
        sentences,
        formats=settings.formats,
        precision=settings.precision,
        opset=settings.opset,
    )
    if (variance := read_variance(settings.model)) is not None:
        save_variance(variance, folder)
    graphs = {name: SentenceEncoder.load(folder, backend=name, is_base=True) for name in settings.formats}
    encoders |= {"torch": model} | graphs
    return metrics | _measure(encoders, sentences, tests)


def _measure(encoders: Mapping[str, SentenceEncoder], sentences: Sequence[str], tests: EvaluationSets) -> Metrics:
    """The speed of each encoder, its scores in fp32, and the size of what is no graph."""
    metrics: Metrics = {}
    rates = speeds(list(encoders.values()), sentences, "auto")
    for (name, encoder), rate in zip(encoders.items(), rates, strict=True):
        measured = {"sentences_per_second": rate, **tests.metrics(tests.encode(encoder, ComputePrecision.FP32))}
        if name not in GRAPHS:
            measured["size_mb"] = sum(weight.numel() * weight.element_size() for weight in encoder.parameters()) / 1e6
        metrics |= {f"{name}/{metric}": value for metric, value in measured.items()}
    return metrics
