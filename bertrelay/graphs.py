"""Networks that are graphs on disk, computed by ONNX Runtime or OpenVINO in place of torch.

`bertrelay export` writes them: folders of sentence-transformers whose weights are in a graph from ids and mask to the
vectors of tokens and of the sentence. Pooling and what follows it are the encoder's own here, which knows of prompts.
"""

import sys
import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput

from bertrelay.backbone import load_config
from bertrelay.errors import RequestError
from bertrelay.fingerprint import Digests
from bertrelay.model_files import refusing

GraphBackend = Literal["onnx", "openvino"]
Backend = Literal["torch", "onnx", "openvino"]
Run = Callable[[Mapping[str, NDArray[np.int64]]], NDArray[np.float32]]
"""Inputs (batch, tokens) by name, of which a graph takes some, to the vectors of tokens, (batch, tokens, dim)."""

TOKENS, SENTENCE = "last_hidden_state", "sentence_embedding"
GRAPHS: dict[Backend, str] = {"onnx": "onnx/model.onnx", "openvino": "openvino/openvino_model.xml"}
"""Where sentence-transformers and text-embeddings-inference look for a graph."""
PACKAGES: dict[Backend, str] = {"onnx": "onnxruntime", "openvino": "openvino"}


class GraphNetwork(nn.Module):
    """A network that is a graph: it has a config and gives vectors of tokens, on the CPU, and cannot be trained.

    position_limit: how many tokens it reads at most.
    """

    digest: Tensor

    def __init__(self, path: Path, config: PreTrainedConfig, run: Run, position_limit: int | None = None) -> None:
        super().__init__()
        self.config, self.name_or_path, self.position_limit, self._run = config, str(path), position_limit, run
        files = sorted(path.parent.glob(f"{path.stem}*"))  # large weights are in a file of their own
        hashes = bytearray.fromhex("".join(map(Digests().of_file, files)))
        self.register_buffer("digest", torch.frombuffer(hashes, dtype=torch.uint8))  # tells models apart, as weights do
        self.train(False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> BaseModelOutput:
        """(batch, tokens) ids and mask -> an output whose `last_hidden_state` is (batch, tokens, dim)."""
        ids, mask = (each.to(torch.int64).numpy() for each in (input_ids, attention_mask))
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return BaseModelOutput(last_hidden_state=torch.from_numpy(self._run(inputs)))

    def get_input_embeddings(self) -> NoReturn:
        """A graph has no weights to change."""
        self._refuse()

    def save_pretrained(self, folder: Path) -> NoReturn:  # noqa: ARG002 (the argument of transformers' method)
        """A graph cannot be saved again."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RequestError(
            f"model: {self.name_or_path} is a graph, which cannot be changed, trained or saved again; give the model "
            "that it was exported from"
        )


def load_graph(folder: Path, backend: Backend, max_tokens: int | None = None) -> GraphNetwork:
    """The graph of a model's folder, which reads so many tokens at most.

    Raises RequestError for an absent, damaged or unfitting one, and without the package.
    """
    path = folder / GRAPHS[backend]
    if not path.is_file():
        there = [name for name, inner in GRAPHS.items() if (folder / inner).is_file()]
        found = f"one for {' and '.join(there)}" if there else "none"
        raise RequestError(
            f"backend: expected a graph for {backend} at {path}, found {found}; `bertrelay export` writes one"
        )
    if not find_spec(PACKAGES[backend]):
        raise RequestError(
            f"backend: {backend} needs the package {PACKAGES[backend]}: pip install 'bertrelay[{backend}]'"
        )
    start = {"onnx": _onnx, "openvino": _openvino}[backend]
    config = load_config(folder)
    with refusing(lambda error: f"the graph {path} cannot be computed ({type(error).__name__}); export it again"):
        network = GraphNetwork(path, config, start(path), max_tokens)
        one_token = torch.zeros(1, 1, dtype=torch.int64)
        dim = network(one_token, one_token + 1).last_hidden_state.shape[-1]
    if dim != config.hidden_size:
        raise RequestError(f"model: the graph {path} gives {dim} dimensions, and its config.json {config.hidden_size}")
    return network


def usable_backends(folder: Path) -> list[Backend]:
    """The backends for a folder here, by its weights, its graphs and the packages; the graphs alone if none fits."""
    graphs = [backend for backend, path in GRAPHS.items() if (folder / path).is_file()]
    has_weights = any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
    usable = [backend for backend in graphs if find_spec(PACKAGES[backend])]
    if has_weights or not graphs:
        return ["torch", *usable]
    return usable or graphs


def check_backend(backend: str | None, device: Any) -> None:
    """Raises RequestError for a backend that there is not, and for a device on which it does not compute."""
    known = (*get_args(Backend), "auto", None)
    if backend not in known:
        raise RequestError(f"backend: expected torch, onnx, openvino or auto, found {backend!r}")
    if backend in GRAPHS and device is not None and torch.device(device).type != "cpu":
        raise RequestError(f"device: expected cpu, where graphs are computed, found {device}; leave backend out")


def _onnx(path: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    expected = [each.name for each in session.get_inputs()]
    return lambda inputs: session.run([TOKENS], {name: inputs[name] for name in expected})[0]


def _openvino(path: Path) -> Run:
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    model = import_openvino().Core().compile_model(str(path), "CPU", hints)
    expected, requests = [each.any_name for each in model.inputs], threading.local()

    def run(inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        if not hasattr(requests, "own"):  # one computes for one thread at a time
            requests.own = model.create_infer_request()
        tokens: NDArray[np.float32] = requests.own.infer({name: inputs[name] for name in expected})[TOKENS]
        return tokens

    return run


def import_openvino() -> Any:
    """The package, which would report its use to its makers where `openvino_telemetry` can be imported."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino
