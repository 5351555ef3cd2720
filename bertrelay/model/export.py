"""Models as graphs for ONNX Runtime and OpenVINO: an encoder, from ids and mask to the sentence's vector, or a
network with a head, to the scores of its tokens or texts.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfile, rmtree
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from bertrelay.cache import Cache
from bertrelay.checks import check_choice
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import cosine_metrics
from bertrelay.files import explain_write_errors, read_json, write_json, write_tensors
from bertrelay.model.encoder import SentenceEncoder, refuse_pair
from bertrelay.model.files import GRAPHS, PACKAGES, WEIGHTS, GraphBackend, fail_with, read_model_file
from bertrelay.model.folder import ModelFolder
from bertrelay.model.graph import SENTENCE, TOKENS, import_openvino
from bertrelay.model.heads import HEAD_WEIGHTS, head_weights, load_with_head
from bertrelay.model.network import has_types, position_limit
from bertrelay.model.settings import GraphPrecision, Opset
from bertrelay.model.tokenizer import load_tokenizer
from bertrelay.progress import log
from bertrelay.stage import Metrics

NEEDED = ("onnx", "onnxscript", "onnxruntime")
ROWS, WIDTH = 2, 8  # of the batch that is traced; the graph takes any
COPIED_SUFFIXES = (".json", ".txt", ".model", ".safetensors")
NOT_COPIED = (*WEIGHTS, "*.index.json", "modules.json", "config_sentence_transformers.json")
"""A model with a head keeps its configs, tokenizer and small weights; its folder may hold other files."""
TOKENIZER_CONFIG = "tokenizer_config.json"
EXPORT_METRICS = "export.json"
ATTENTION, OPERATOR = "bertrelay_onnx", 23  # transformers' name of attention as one operator, and its first opset


class Exportable(NamedTuple):
    """A model to export: an encoder, or a network with a head, whose encoder then is its BERT with mean pooling.

    folder: of the network with a head.
    """

    encoder: SentenceEncoder
    headed: PreTrainedModel | None = None
    folder: Path | None = None

    @classmethod
    def load(cls, source: str | Path, cache: Cache | None = None) -> "Exportable":
        """The model of a folder or hub id. Raises RequestError for a network without one of these heads."""
        folder = ModelFolder.find(source, cache=cache)
        modules = read_model_file(folder.path / "modules.json", list[dict[str, Any]]) or []  # cross-encoders have one
        is_encoder = any(
            str(module.get("type")).endswith(("Pooling", "Router", "StaticEmbedding")) for module in modules
        )
        network = None if is_encoder else load_with_head(folder)
        if network is None:
            encoder = SentenceEncoder.load(folder, "cpu", backend="torch")
            refuse_pair(encoder)
            return cls(encoder)
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
                if file.suffix in COPIED_SUFFIXES and not any(file.match(name) for name in NOT_COPIED):
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
    """Gives both outputs, as some readers pool the vectors of tokens themselves."""

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
    """Gives the scores for other readers; this project's head reads the token vectors."""

    def __init__(self, network: PreTrainedModel, outputs: Sequence[str]) -> None:
        super().__init__()
        self.network, self.outputs = network, outputs

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        network, tokens = cast(Any, self.network), list[Tensor]()
        named = dict(zip(("input_ids", "attention_mask", "token_type_ids"), inputs, strict=False))
        with network.base_model.register_forward_hook(lambda *call: tokens.append(call[-1].last_hidden_state)):
            scores = network(**named)
        return tokens[0], *(scores[name] for name in self.outputs)

    @property
    def backbone(self) -> PreTrainedModel:
        return cast(PreTrainedModel, self.network.base_model)


def export(
    model: SentenceEncoder | str | Path | Exportable,
    folder: Path,
    sentences: Sequence[str],
    *,
    formats: Sequence[GraphBackend] = ("onnx",),
    precision: GraphPrecision = "fp32",
    opset: Opset = 23,
) -> Metrics:
    """Writes a model's folder with graphs in place of the network's weights.

    Inputs of a graph are `input_ids` and `attention_mask`, int64 (batch, tokens), and of a network with a head and
    token types also `token_type_ids`. Outputs are `last_hidden_state` (batch, tokens, dim), and of an encoder
    `sentence_embedding` (batch, dim), after pooling, projections and normalisation; of a network with a head `logits`
    as transformers gives them, or `start_logits` and `end_logits` of one that answers questions.
    model: an encoder, or a folder of one, of a tagger, a scorer, a question answerer or a cross-encoder.
    folder: must not exist.
    sentences: general ones, on whose vectors the graphs are compared with the model.
    precision: fp32, or int8: weights of products are rounded by channel, the other factor over its whole range.
    opset: of ONNX. From 23 on attention is one operator, and faster; 20 is for runtimes that do not read 23.
    Returns the distances of the sentences' vectors from the model's in fp32, and the sizes of the graphs, which the
    folder has in `export.json`. The vector of a network with a head is the mean of its tokens'.
    Raises RequestError without the packages, and for a network that torch cannot export.
    """
    if folder.exists():
        raise RequestError(f"folder: expected a folder that does not exist yet, found {folder}; name another")
    _check_request(formats, precision, opset)
    if isinstance(model, SentenceEncoder):
        model = Exportable(model)
    elif not isinstance(model, Exportable):
        model = Exportable.load(model)
    with explain_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
            building, exact = Path(name, folder.name), Path(name, "exact", "model.onnx")
            model.save(building)
            fp32 = building / GRAPHS["onnx"] if precision == "fp32" else exact
            _write_graphs(model, building, fp32, formats, opset)
            metrics = _measure(model.encoder, building, sentences, formats)
            write_json(building / EXPORT_METRICS, metrics)
            building.rename(folder)
    if precision == "int8":
        lowest, mean = (metrics[f"{formats[0]}/cosine_{name}"] for name in ("min", "mean"))
        log(f"int8: cosines of the vectors to those in fp32 are {lowest:.4f} or more, {mean:.4f} in the mean")
    return metrics


def _write_graphs(model: Exportable, folder: Path, fp32: Path, formats: Sequence[GraphBackend], opset: Opset) -> None:
    """Writes the graph in fp32 to `fp32`, and where that is not in `folder` its int8 graph into the folder."""
    onnx = folder / GRAPHS["onnx"]
    for graph in (onnx, fp32):
        graph.parent.mkdir(exist_ok=True)
    _write_onnx(model, fp32, opset)
    if fp32 != onnx:
        _quantize(fp32, onnx)
    if "openvino" in formats:
        openvino = import_openvino()
        openvino.save_model(openvino.Core().read_model(onnx), folder / GRAPHS["openvino"], False)
    if "onnx" not in formats:
        rmtree(onnx.parent)


def _measure(
    model: SentenceEncoder, folder: Path, sentences: Sequence[str], formats: Sequence[GraphBackend]
) -> Metrics:
    """The distances of the vectors of the graphs in `folder` from those of `model`, and the sizes of the graphs."""
    metrics: Metrics = {}
    exact = model.encode(sentences, precision="fp32")
    for name in formats:
        vectors = SentenceEncoder.load(folder, backend=name, is_base=True).encode(sentences)
        measured = cosine_metrics(exact, vectors)
        measured["difference_max"] = float(np.abs(exact - vectors).max())
        measured["size_mb"] = sum(file.stat().st_size for file in (folder / GRAPHS[name]).parent.iterdir()) / 1e6
        metrics |= {f"{name}/{metric}": value for metric, value in measured.items()}
    return metrics


def _check_request(formats: Sequence[str], precision: str, opset: int) -> None:
    check_choice("precision", precision, get_args(GraphPrecision))
    if opset not in get_args(Opset):
        raise RequestError(f"opset: expected 20 or 23, found {opset!r}")
    if isinstance(formats, str) or not formats:
        raise RequestError(f'formats: expected a list of one or more, such as ["onnx"], found {formats!r}')
    for name in formats:
        check_choice("formats", name, get_args(GraphBackend))
    needed = dict.fromkeys((*NEEDED, *(PACKAGES[cast(GraphBackend, name)] for name in formats)))
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
    **unused: object,  # noqa: ARG001 (dropout, and arguments that the mask already respects)
) -> tuple[Tensor, None]:
    """The attention function that transformers expects, as one operator of ONNX.

    query, key, value: (batch, heads, tokens, head dim). attention_mask, position_bias: added to the scores.
    """
    heads, bias = query.shape[1], attention_mask
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    query, key, value = (heads_first.transpose(1, 2) for heads_first in (query, key, value))
    attended: Tensor = torch.onnx.ops.attention(
        query.flatten(2),
        key.flatten(2),
        value.flatten(2),
        bias,
        q_num_heads=heads,
        kv_num_heads=key.shape[2],
        scale=scaling,
        softcap=softcap or 0.0,
    )[0]
    return attended.view(*attended.shape[:2], heads, -1), None


def _write_onnx(model: Exportable, path: Path, opset: Opset) -> None:
    from onnxscript.optimizer import optimize

    graph, inputs, outputs = model.graph()
    backbone = graph.backbone
    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, eager_mask)
    # Without the operator two products and a softmax are the fastest.
    backbone.set_attn_implementation(ATTENTION if opset >= OPERATOR else "eager")
    ids = torch.full((ROWS, WIDTH), model.encoder.pad_id)
    arguments = (ids, torch.ones_like(ids), torch.zeros_like(ids))[: len(inputs)]
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    with (
        fail_with(lambda error: f"torch cannot export this network ({type(error).__name__})"),
        silence_notices(),
    ):
        program: Any = torch.onnx.export(
            graph,
            arguments,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=(sizes,) * len(arguments) if model.headed is None else ((sizes,) * len(arguments),),
            dynamo=True,
            verbose=False,
            opset_version=opset,
            optimize=False,
        )
        optimize(program.model)  # without torch's fusions: ONNX Runtime refuses shapes of its fused rotary embedding
    for node in program.model.graph:
        node.metadata_props.clear()  # they quote the traced code, with its paths on this machine
    program.save(path)


def _quantize(exact: Path, path: Path) -> None:
    """Writes the graph `exact` to `path` in int8, except products of projections and heads.

    These are small, and this project computes them in fp32 itself.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # A Gemm gets the second name when it is rewritten as a MatMul.
    excluded = [name for product in _products_after_tokens(exact) for name in (product, f"{product}_MatMul")]
    is_large = len(list(exact.parent.iterdir())) > 1  # its weights have a separate file
    with silence_notices():
        quantize_dynamic(
            exact,
            path,
            op_types_to_quantize=[
                "MatMul",
                "Gemm",
                "Gather",
            ],  # not Attention: the quantizer takes it for another operator
            per_channel=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=excluded,
            use_external_data_format=is_large,
        )


def _products_after_tokens(path: Path) -> list[str]:
    """Lists the names of a graph's products with weights that come after the token vectors."""
    import onnx

    nodes = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in nodes.initializer}
    network = [TOKENS in node.output for node in nodes.node].index(True)
    return [
        node.name
        for node in nodes.node[network + 1 :]
        if node.op_type in ("MatMul", "Gemm") and node.input[1] in weights
    ]


@contextmanager
def silence_notices() -> Iterator[None]:
    """Silences the exporters' notices of packages that are not needed here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
