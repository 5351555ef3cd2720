"""A model as one graph for ONNX Runtime and OpenVINO: an encoder, from ids and mask to the sentence's vector, or a
network with a head, to the scores of its tokens or texts.
"""

import logging
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile, rmtree
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from bertrelay.cache import Cache
from bertrelay.checks import check_choice
from bertrelay.data.records import Rejects
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import pairwise
from bertrelay.files import read_json, write_json, write_tensors, writing_folder
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.files import GRAPHS, PACKAGES, WEIGHTS, GraphBackend, fail_with, read_model_file
from bertrelay.model.folder import ModelFolder
from bertrelay.model.graph import SENTENCE, TOKENS, import_openvino
from bertrelay.model.heads import HEAD_WEIGHTS, head_weights, load_with_head
from bertrelay.model.network import has_types, position_limit
from bertrelay.model.tokenizer import load_tokenizer
from bertrelay.progress import log
from bertrelay.stage import Metrics, StageContext
from students.evaluate import EvaluationSets
from students.evaluation_settings import ExportSettings, GraphPrecision, Opset
from students.metrics import read_variance, save_variance
from students.pairs import read_translations
from students.retention import general_sentences
from students.shrinking import cosines_to_original, speeds

NEEDED = ("onnx", "onnxscript", "onnxruntime")
ROWS, WIDTH = 2, 8  # of the batch that is traced; the graph takes any
KEPT_SUFFIXES = (".json", ".txt", ".model", ".safetensors")
NOT_KEPT = (*WEIGHTS, "*.index.json", "modules.json", "config_sentence_transformers.json")
"""Of a model with a head, whose folder others keep other things in: its configs, tokenizer and small weights."""
TOKENIZER_CONFIG = "tokenizer_config.json"
EXPORT_METRICS = "export.json"
CALIBRATION_SENTENCES = 128  # by which products are ordered
ATTENTION, OPERATOR = "bertrelay_onnx", 23  # the name for transformers of attention as the operator of that opset


class _Exported(NamedTuple):
    """What is exported: an encoder, or a network with a head, whose encoder then is its BERT with mean pooling.

    folder: that the network with a head is from.
    """

    encoder: SentenceEncoder
    headed: PreTrainedModel | None = None
    folder: Path | None = None

    @classmethod
    def load(cls, source: str | Path, cache: Cache | None = None) -> "_Exported":
        folder = ModelFolder.find(source, cache=cache)
        modules = read_model_file(folder.path / "modules.json", list[dict[str, Any]]) or []  # of cross-encoders too
        is_encoder = any("Pooling" in str(module.get("type")) for module in modules)
        network = None if is_encoder else load_with_head(folder)
        if network is None:
            return cls(SentenceEncoder.load(folder, "cpu", backend="torch"))
        backbone = cast(PreTrainedModel, network.eval().base_model)
        return cls(SentenceEncoder(backbone, load_tokenizer(folder.path)), network, folder.path)

    def save(self, folder: Path) -> None:
        """Writes the folder without the weights that become a graph."""
        if self.headed is None or self.folder is None:
            self.encoder.save(folder)
            for weights in folder.glob("*.safetensors"):
                weights.unlink()
        else:
            folder.mkdir()
            for file in self.folder.iterdir():
                if file.suffix in KEPT_SUFFIXES and not any(file.match(name) for name in NOT_KEPT):
                    copyfile(file, folder / file.name)
            rules, limit = read_json(folder / TOKENIZER_CONFIG) or {}, position_limit(self.headed)
            if limit and (rules.get("model_max_length") or limit + 1) > limit:  # a graph does not know it
                write_json(folder / TOKENIZER_CONFIG, rules | {"model_max_length": limit})
            write_tensors(folder / HEAD_WEIGHTS, head_weights(self.headed))

    def graph(self) -> "tuple[_EncoderGraph | _HeadedGraph, list[str], list[str]]":
        """The module that is traced, and the names of its inputs and outputs."""
        inputs = ["input_ids", "attention_mask"]
        if self.headed is None:
            return _EncoderGraph(deepcopy(self.encoder).cpu().eval()), inputs, [TOKENS, SENTENCE]
        has_spans = hasattr(self.headed, "qa_outputs")
        outputs = ["start_logits", "end_logits"] if has_spans else ["logits"]
        types = ["token_type_ids"] if has_types(self.headed) else []
        return _HeadedGraph(deepcopy(self.headed).cpu().eval(), outputs), inputs + types, [TOKENS, *outputs]


class _EncoderGraph(nn.Module):
    """Both outputs are there, as some readers pool the vectors of tokens themselves."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.prompt_tokens = encoder.prompt_tokens(encoder.prompts.text())

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.encoder.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return tokens, self.encoder.sentence_vectors(tokens, attention_mask, self.prompt_tokens)

    @property
    def backbone(self) -> PreTrainedModel:
        return self.encoder.backbone


class _HeadedGraph(nn.Module):
    """The scores are there for others; here the head reads the vectors of tokens."""

    def __init__(self, network: PreTrainedModel, outputs: Sequence[str]) -> None:
        super().__init__()
        self.network, self.outputs = network, outputs

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        network, tokens = cast(Any, self.network), list[Tensor]()
        named = dict(zip(("input_ids", "attention_mask", "token_type_ids"), inputs, strict=False))
        with network.base_model.register_forward_hook(lambda *call: tokens.append(call[-1].last_hidden_state)):
            found = network(**named)
        return tokens[0], *(found[name] for name in self.outputs)

    @property
    def backbone(self) -> PreTrainedModel:
        return cast(PreTrainedModel, self.network.base_model)


def export(
    model: SentenceEncoder | str | Path,
    folder: str | Path,
    *,
    formats: Sequence[GraphBackend] = ("onnx",),
    precision: GraphPrecision = "fp32",
    lowest_cosine: float | None = None,
    opset: Opset = 23,
) -> int:
    """Writes a model's folder with graphs in place of the network's weights.

    Their inputs are `input_ids` and `attention_mask`, int64 (batch, tokens), of a network with a head `token_type_ids`
    too where it has types. Outputs are `last_hidden_state` (batch, tokens, dim), and of an encoder `sentence_embedding`
    (batch, dim), after pooling, projections and normalisation; of a network with a head `logits` as transformers gives
    them, or `start_logits` and `end_logits` of one that answers questions.
    model: an encoder, or a folder of one, of a tagger, a scorer, a question answerer or a cross-encoder.
    folder: must not exist.
    precision: fp32; or int8: weights of products are rounded by channel, the other factor as it comes.
    lowest_cosine: of int8: as many products stay in fp32 as it takes that no general sentence's vector is farther from
        the model's in fp32. Of a network with a head the vector is the mean of its tokens'.
    opset: of ONNX. From 23 on attention is one operator, and faster; 20 is for runtimes that do not read 23.
    The folder's `export.json` has how far the vectors of general sentences are from the model's, and the graphs' sizes.
    Returns how many products of an int8 graph stay in fp32. Raises RequestError without the packages, for a network
    that torch cannot export, and for a cosine that is not reached with all of them.
    """
    folder = Path(folder)
    if folder.exists():
        raise RequestError(f"folder: expected one that is not there yet, found {folder}; name another")
    _check_request(formats, precision, lowest_cosine, opset)
    exported = _Exported(model) if isinstance(model, SentenceEncoder) else _Exported.load(model)
    with writing_folder(folder):
        excluded, _ = _export(exported, folder, formats, precision, lowest_cosine, opset)
    return excluded


def _export(
    exported: _Exported,
    folder: Path,
    formats: Sequence[GraphBackend],
    precision: GraphPrecision,
    lowest_cosine: float | None,
    opset: Opset,
) -> tuple[int, Metrics]:
    """Writes the folder. Returns how many products stay in fp32, and what is measured of the graphs."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
        building, exact = Path(name, folder.name), Path(name, "exact", "model.onnx")
        exported.save(building)
        graph = building / GRAPHS["onnx"]
        written = graph if precision == "fp32" else exact
        for each in (graph, written):
            each.parent.mkdir(exist_ok=True)
        _write_onnx(exported, written, opset)
        excluded = 0
        if precision == "int8":
            if lowest_cosine is None:
                _quantize(exact, graph)
            else:
                excluded = _quantize_within(lowest_cosine, exported.encoder, exact, building)
        if "openvino" in formats:
            openvino = import_openvino()
            openvino.save_model(openvino.Core().read_model(graph), building / GRAPHS["openvino"], False)
        if "onnx" not in formats:
            rmtree(graph.parent)
        metrics = _measured(exported.encoder, building, formats)
        if lowest_cosine is not None:
            metrics |= {f"{each}/products_in_fp32": excluded for each in formats}
        write_json(building / EXPORT_METRICS, metrics)
        building.rename(folder)
    return excluded, metrics


def _measured(model: SentenceEncoder, folder: Path, formats: Sequence[GraphBackend]) -> Metrics:
    """How far the vectors of the graphs in `folder` are from those of `model`, and the graphs' sizes."""
    sentences, metrics = _general_sentences(), Metrics()
    exact = model.encode(sentences, precision="fp32")
    for name in formats:
        vectors = SentenceEncoder.load(folder, backend=name, is_base=True).encode(sentences)
        found = cosines_to_original(exact, vectors, None)
        found["difference_max"] = float(np.abs(exact - vectors).max())
        found["size_mb"] = sum(file.stat().st_size for file in (folder / GRAPHS[name]).parent.iterdir()) / 1e6
        metrics |= {f"{name}/{metric}": value for metric, value in found.items()}
    return metrics


def _check_request(formats: Sequence[str], precision: str, lowest_cosine: float | None, opset: int) -> None:
    check_choice("precision", precision, get_args(GraphPrecision))
    if opset not in get_args(Opset):
        raise RequestError(f"opset: expected 20 or 23, found {opset!r}")
    if lowest_cosine is not None and (precision != "int8" or not 0 < lowest_cosine < 1):
        raise RequestError(
            f"lowest_cosine: expected a number between 0 and 1 beside precision int8, found {lowest_cosine} beside "
            f"{precision}; leave it out"
        )
    if isinstance(formats, str) or not formats:
        raise RequestError(f'formats: expected a list of one or more, such as ["onnx"], found {formats!r}')
    for each in formats:
        check_choice("formats", each, get_args(GraphBackend))
    needed = dict.fromkeys((*NEEDED, *(PACKAGES[cast(GraphBackend, each)] for each in formats)))
    if missing := [name for name in needed if not find_spec(name)]:
        extra = "openvino" if "openvino" in formats else "onnx"
        raise RequestError(f"export needs {', '.join(missing)}: pip install 'bertrelay[{extra}]'")


def _attention(
    _: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **unused: object,  # noqa: ARG001 (dropout, and what the mask has already)
) -> tuple[Tensor, None]:
    """The attention function that transformers expects, as one operator of ONNX.

    query, key, value: (batch, heads, tokens, head dim). attention_mask, position_bias: are added to the scores.
    """
    heads, bias = query.shape[1], attention_mask
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    query, key, value = (each.transpose(1, 2) for each in (query, key, value))
    found: Tensor = torch.onnx.ops.attention(
        query.flatten(2),
        key.flatten(2),
        value.flatten(2),
        bias,
        q_num_heads=heads,
        kv_num_heads=key.shape[2],
        scale=scaling,
        softcap=softcap or 0.0,
    )[0]
    return found.view(*found.shape[:2], heads, -1), None


def _write_onnx(exported: _Exported, path: Path, opset: Opset) -> None:
    from onnxscript.optimizer import optimize

    graph, inputs, outputs = exported.graph()
    backbone = graph.backbone
    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, eager_mask)
    # Without the operator two products and a softmax are the fastest.
    backbone.set_attn_implementation(ATTENTION if opset >= OPERATOR else "eager")
    ids = torch.full((ROWS, WIDTH), exported.encoder.pad_id)
    given = (ids, torch.ones_like(ids), torch.zeros_like(ids))[: len(inputs)]
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    with (
        fail_with(lambda error: f"torch cannot export this network ({type(error).__name__})"),
        _without_notices(),
    ):
        program: Any = torch.onnx.export(
            graph,
            given,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=(sizes,) * len(given) if exported.headed is None else ((sizes,) * len(given),),
            dynamo=True,
            verbose=False,
            opset_version=opset,
            optimize=False,
        )
        optimize(program.model)  # without torch's fusions: ONNX Runtime refuses shapes of its fused rotary embedding
    for node in program.model.graph:
        node.metadata_props.clear()  # of the code that was traced, with its paths on this machine
    program.save(path)


def _quantize_within(lowest: float, encoder: SentenceEncoder, exact: Path, folder: Path) -> int:
    """Quantizes the graph `exact` into `folder` as far as no general sentence's cosine to `encoder` is below `lowest`.

    First those products are excluded that, quantized alone, move vectors most. Returns how many are.
    """
    sentences = _general_sentences()
    vectors, (products, _) = encoder.encode(sentences, precision="fp32"), _products(exact)
    losses = _losses_by_rounding(encoder, sentences[:CALIBRATION_SENTENCES])
    if len(losses) != len(products):
        raise RequestError(
            f"lowest_cosine: expected a product for each of the {len(losses)} linear maps of this network, found "
            f"{len(products)}; leave it out"
        )
    by_loss = [products[place] for place in np.argsort(-losses, kind="stable")]

    def cosine_min(excluded: int) -> float:
        _quantize(exact, folder / GRAPHS["onnx"], by_loss[:excluded])
        quantized = SentenceEncoder.load(folder, backend="onnx", is_base=True).encode(sentences)
        return cast(float, cosines_to_original(vectors, quantized, None)["cosine_min"])

    excluded = bisect_left(range(len(by_loss) + 1), lowest, key=cosine_min)
    reached = cosine_min(min(excluded, len(by_loss)))  # and its graph is in the folder
    if excluded > len(by_loss):
        raise RequestError(
            f"lowest_cosine: expected {lowest} or more, found {reached:.4f} with all {len(by_loss)} products in fp32, "
            "as tables of embeddings are rounded too; ask for less, or for precision fp32"
        )
    log(f"int8: {excluded} of {len(by_loss)} products stay in fp32, for a lowest cosine of {reached:.4f}")
    return excluded


def _products(path: Path) -> tuple[list[str], list[str]]:
    """The names of a graph's products with weights, as they are computed: of the network, and of what follows it."""
    import onnx

    nodes = onnx.load(path, load_external_data=False).graph
    weights = {each.name for each in nodes.initializer}
    before, after = list[str](), list[str]()
    names = before
    for node in nodes.node:
        if node.op_type in ("MatMul", "Gemm") and node.input[1] in weights:
            names.append(node.name)
        if TOKENS in node.output:
            names = after
    return before, after


def _losses_by_rounding(encoder: SentenceEncoder, sentences: Sequence[str]) -> NDArray[np.float64]:
    """What the mean cosine loses with the factors of each linear map rounded, (maps,), in the order of computation."""
    computed: list[nn.Linear] = []

    def seen(module: nn.Linear, inputs: tuple[Tensor], _: Tensor) -> None:
        if inputs[0].dim() > 2:  # a pooler's are vectors of sentences, which no graph computes
            computed.append(module)

    maps = [module for module in encoder.backbone.modules() if isinstance(module, nn.Linear)]
    with ExitStack() as hooked:
        for module in maps:
            hooked.enter_context(module.register_forward_hook(seen))
        exact = encoder.encode(sentences, precision="fp32")
    losses = []
    for module in dict.fromkeys(computed):
        with module.register_forward_hook(_rounded_product):
            losses.append(1 - pairwise(exact, encoder.encode(sentences, precision="fp32")).mean(dtype=np.float64))
    return np.array(losses)


def _rounded_product(module: nn.Linear, inputs: tuple[Tensor], _: Tensor) -> Tensor:
    """What ONNX Runtime computes of a linear map in int8: weights by channel, the other factor by its whole range."""
    (values,), tiny = inputs, torch.finfo(torch.float32).tiny
    weight_step = module.weight.abs().amax(dim=1, keepdim=True).clamp(min=tiny) / 127
    low, high = values.min().clamp(max=0), values.max().clamp(min=0)
    step = (high - low).clamp(min=tiny) / 255
    zero = (-low / step).round()
    values = ((values / step).round() + zero).clamp(0, 255).sub(zero) * step
    return linear(values, (module.weight / weight_step).round() * weight_step, module.bias)


def _general_sentences() -> list[str]:
    """Those of many domains and languages that come with the project, each once."""
    general = read_translations(general_sentences(), None, Rejects(None))
    return list(dict.fromkeys(text for pairs in general.values() for side in pairs for text in side))


def _quantize(exact: Path, path: Path, excluded: Sequence[str] = ()) -> None:
    """Writes the graph `exact` to `path` in int8, but for the products `excluded` and those of projections and heads.

    These are small, and where the project loads the graph it computes them in fp32.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    for earlier in path.parent.iterdir():  # large weights would be written behind those that are there
        earlier.unlink()
    # A Gemm gets the second name once it is none.
    after = [name for product in _products(exact)[1] for name in (product, f"{product}_MatMul")]
    is_large = len(list(exact.parent.iterdir())) > 1  # its weights are in a file of their own
    with _without_notices():
        quantize_dynamic(
            exact,
            path,
            op_types_to_quantize=["MatMul", "Gemm", "Gather"],  # all would be Attention too, taken for another operator
            per_channel=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=[*excluded, *after],
            use_external_data_format=is_large,
        )


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
    """Writes `model/`, and measures its graphs beside the model and its parent; the main process does it alone."""
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        tests = EvaluationSets.read(settings, context, rejects)
    sentences = _general_sentences()
    exported, folder = _Exported.load(settings.model, context.cache), context.output / "model"
    model, encoders = exported.encoder, dict[str, SentenceEncoder]()
    if settings.parent is not None:
        encoders["parent"] = _Exported.load(settings.parent, context.cache).encoder
    for left in (folder, *folder.parent.glob(f".{folder.name}.*")):  # by a stage that was stopped
        rmtree(left, ignore_errors=True)
    how = settings.formats, settings.precision, settings.lowest_cosine, settings.opset
    _check_request(*how)
    _, measured = _export(exported, folder, *how)
    if (variance := read_variance(settings.model)) is not None:
        save_variance(variance, folder)
    graphs = {each: SentenceEncoder.load(folder, backend=each, is_base=True) for each in settings.formats}
    encoders |= {"torch": model} | graphs
    metrics, rates = measured, speeds(list(encoders.values()), sentences, "auto")
    for (name, encoder), rate in zip(encoders.items(), rates, strict=True):
        found = {"sentences_per_second": rate, **tests.metrics(tests.encoded(encoder, ComputePrecision.FP32))}
        if name not in GRAPHS:
            found["size_mb"] = sum(each.numel() * each.element_size() for each in encoder.parameters()) / 1e6
        metrics |= {f"{name}/{metric}": value for metric, value in found.items()}
    return metrics
