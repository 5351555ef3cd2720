"""An encoder as one graph for ONNX Runtime and OpenVINO, from ids and mask to the sentence's vector."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from bertrelay.cpu_kernels import NAME as KERNEL
from bertrelay.data.records import Rejects
from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError, check_choice
from bertrelay.graphs import GRAPHS, PACKAGES, SENTENCE, TOKENS, Backend, GraphBackend, import_openvino
from bertrelay.model_files import refusing
from bertrelay.stage import Metrics, StageContext
from students.evaluate import EvaluationSets
from students.evaluation_settings import ExportSettings, GraphPrecision
from students.metrics import read_variance, save_variance
from students.pairs import read_translations
from students.retention import general_sentences
from students.shrinking import moved, speeds

NEEDED = ("onnx", "onnxscript", "onnxruntime")
ROWS, WIDTH = 2, 8  # of the batch that is traced; the graph takes any


class _Graph(nn.Module):
    """What is exported. Both outputs are there, as some readers pool the vectors of tokens themselves."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.prompt_tokens = encoder.prompt_tokens(encoder.prompts.text())

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.encoder.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return tokens, self.encoder.sentence_vectors(tokens, attention_mask, self.prompt_tokens)


def export(
    model: SentenceEncoder | str | Path,
    folder: str | Path,
    *,
    formats: Sequence[GraphBackend] = ("onnx",),
    precision: GraphPrecision = "fp32",
) -> None:
    """Writes a folder of sentence-transformers with graphs in place of the network's weights.

    Their inputs are `input_ids` and `attention_mask`, int64 (batch, tokens); their outputs `last_hidden_state`
    (batch, tokens, dim) and `sentence_embedding` (batch, dim), after pooling, projections and normalisation.
    folder: must not exist.
    precision: fp32; or int8: weights of products are rounded by channel, the other factor as it comes.
    Raises RequestError without the packages, and for a network that torch cannot export.
    """
    folder = Path(folder)
    if folder.exists():
        raise RequestError(f"folder: expected one that is not there yet, found {folder}; name another")
    _check_request(formats, precision)
    encoder = model if isinstance(model, SentenceEncoder) else SentenceEncoder.load(model, backend="torch")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
        building, exact = Path(name, folder.name), Path(name, "exact", "model.onnx")
        encoder.save(building)
        for weights in building.glob("*.safetensors"):
            weights.unlink()
        graph = building / GRAPHS["onnx"]
        written = graph if precision == "fp32" else exact
        for each in (graph, written):
            each.parent.mkdir(exist_ok=True)
        _write_onnx(encoder, written)
        if precision == "int8":
            _round_to_int8(exact, graph)
        if "openvino" in formats:
            openvino = import_openvino()
            openvino.save_model(openvino.Core().read_model(graph), building / GRAPHS["openvino"], False)
        if "onnx" not in formats:
            rmtree(graph.parent)
        building.rename(folder)


def _check_request(formats: Sequence[str], precision: str) -> None:
    check_choice("precision", precision, get_args(GraphPrecision))
    if isinstance(formats, str) or not formats:
        raise RequestError(f'formats: expected a list of one or more, such as ["onnx"], found {formats!r}')
    for each in formats:
        check_choice("formats", each, get_args(GraphBackend))
    needed = dict.fromkeys((*NEEDED, *(PACKAGES[cast(GraphBackend, each)] for each in formats)))
    if missing := [name for name in needed if not find_spec(name)]:
        extra = "openvino" if "openvino" in formats else "onnx"
        raise RequestError(f"export needs {', '.join(missing)}: pip install 'bertrelay[{extra}]'")


def _write_onnx(encoder: SentenceEncoder, path: Path) -> None:
    copied = deepcopy(encoder).cpu().eval()
    if copied.backbone.config._attn_implementation == KERNEL:  # which chooses by the sizes of a batch
        copied.backbone.set_attn_implementation("sdpa")
    ids = torch.full((ROWS, WIDTH), encoder.pad_id)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    with refusing(lambda error: f"torch cannot export this network ({type(error).__name__})"), _without_notices():
        program: Any = torch.onnx.export(
            _Graph(copied),
            (ids, torch.ones_like(ids)),
            input_names=["input_ids", "attention_mask"],
            output_names=[TOKENS, SENTENCE],
            dynamic_shapes=(sizes, sizes),
            dynamo=True,
            verbose=False,
        )
    for node in program.model.graph:
        node.metadata_props.clear()  # of the code that was traced, with its paths on this machine
    program.save(path)


def _round_to_int8(exact: Path, path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    is_large = len(list(exact.parent.iterdir())) > 1  # its weights are in a file of their own
    with _without_notices():
        quantize_dynamic(exact, path, per_channel=True, weight_type=QuantType.QInt8, use_external_data_format=is_large)


@contextmanager
def _without_notices() -> Iterator[None]:
    """Without what the exporters print of packages that nothing here needs."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def run(settings: ExportSettings, context: StageContext) -> Metrics:
    """Writes `model/`, and measures each of its graphs beside the model; the main process does it alone."""
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        tests = EvaluationSets.read(settings, context, rejects)
    general = read_translations([general_sentences()], None, Rejects(None))
    sentences = list(dict.fromkeys(text for pairs in general.values() for side in pairs for text in side))
    model = SentenceEncoder.load(settings.model, "cpu", backend="torch", cache_dir=context.cache / "hub")
    folder = context.output / "model"
    for left in (folder, *folder.parent.glob(f".{folder.name}.*")):  # by a stage that was stopped
        rmtree(left, ignore_errors=True)
    export(model, folder, formats=settings.formats, precision=settings.precision)
    if (variance := read_variance(settings.model)) is not None:
        save_variance(variance, folder)
    encoders: dict[Backend, SentenceEncoder] = {"torch": model}
    encoders |= {each: SentenceEncoder.load(folder, backend=each) for each in settings.formats}
    exact, metrics = model.encode(sentences, precision="fp32"), Metrics()
    rates = speeds(list(encoders.values()), sentences, "auto")
    for (backend, encoder), rate in zip(encoders.items(), rates, strict=True):
        found = {"sentences_per_second": rate, **tests.metrics(tests.encoded(encoder, "fp32"))}
        if backend == "torch":
            size = sum(weights.numel() * weights.element_size() for weights in model.parameters())
        else:
            vectors = encoder.encode(sentences)
            found |= moved(exact, vectors, None) | {"difference_max": float(np.abs(exact - vectors).max())}
            size = sum(file.stat().st_size for file in (folder / GRAPHS[backend]).parent.iterdir())
        metrics |= {f"{backend}/{name}": value for name, value in {**found, "size_mb": size / 1e6}.items()}
    return metrics
