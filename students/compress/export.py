"""Exports models as graphs, and measures the graphs beside the model and its parent."""

from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

from bertrelay.data.records import Rejects
from bertrelay.device import ComputePrecision
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.export import Exportable
from bertrelay.model.export import export as write_graphs
from bertrelay.model.files import GRAPHS, GraphBackend
from bertrelay.model.settings import GraphPrecision, Opset
from bertrelay.stage import Metrics, StageContext
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
) -> Metrics:
    """Writes a model's folder with graphs, and compares them with the model on the project's general sentences.

    Arguments, metrics and errors: see `bertrelay.model.export.export`.
    """
    return write_graphs(model, Path(folder), _general_sentences(), formats=formats, precision=precision, opset=opset)


def _general_sentences() -> list[str]:
    """Reads the sentences of many domains and languages that come with the project, each once."""
    general = read_translations(general_sentences(), None, Rejects(None))
    return list(dict.fromkeys(text for translations in general.values() for texts in translations for text in texts))


def run(settings: ExportSettings, context: StageContext) -> Metrics:
    """Writes `model/`, and measures its graphs beside the model and its parent; only the main process works."""
    settings.log_missing_languages()
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        tests = EvaluationSets.read(settings.parallel, settings.sts, context, rejects)
    sentences = _general_sentences()
    exported, folder = Exportable.load(settings.model, context.cache), context.output / "model"
    model, encoders = exported.encoder, dict[str, SentenceEncoder]()
    if settings.parent is not None:
        encoders["parent"] = Exportable.load(settings.parent, context.cache).encoder
    for unfinished in (folder, *folder.parent.glob(f".{folder.name}.*")):  # of a stage that was stopped
        rmtree(unfinished, ignore_errors=True)
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
    rates = speeds(list(encoders.values()), sentences, "auto")
    for (name, encoder), rate in zip(encoders.items(), rates, strict=True):
        measured = {"sentences_per_second": rate, **tests.metrics(tests.encode(encoder, ComputePrecision.FP32))}
        if name not in GRAPHS:
            measured["size_mb"] = sum(weight.numel() * weight.element_size() for weight in encoder.parameters()) / 1e6
        metrics |= {f"{name}/{metric}": value for metric, value in measured.items()}
    return metrics
