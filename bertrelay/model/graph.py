"""Networks that are graphs on disk, computed by ONNX Runtime or OpenVINO in place of torch.

`bertrelay export` writes them. A graph takes ids and mask to the token vectors; pooling and heads stay in torch, since
an encoder has prompts and a head selects tokens.
"""

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutputWithPooling

from bertrelay.errors import RequestError, Stopped
from bertrelay.fingerprint import Digests
from bertrelay.model.files import GRAPHS, PACKAGES, Backend, fail_with, graph_files
from bertrelay.model.folder import ModelFolder
from bertrelay.model.network import load_config
from bertrelay.progress import log

BackendChoice = Backend | Literal["auto"] | None
"""None is torch where the folder has weights, else its graph. `auto` is the fastest that the folder has, whatever its
precision."""
Run = Callable[[Mapping[str, NDArray[np.int64]]], NDArray[np.float32]]
"""Inputs (batch, tokens) by name, of which a graph takes some, to token vectors (batch, tokens, dim)."""

TIMED_ROUNDS = 3  # the first lays out weights
UNLIMITED = 2**31
LONGEST_PROBE = 1_024  # tokens: attention over more takes seconds, and memory
LARGEST_ERROR = 0.25
"""Squared distance of a graph's vectors to those of the weights, as a fraction of their variance: rounding to int8
gives about 0.03, other weights give more."""
TOKENS, SENTENCE = "last_hidden_state", "sentence_embedding"


class GraphNetwork(nn.Module):
    """A graph as a network: it has a config and gives token vectors, on the CPU, and cannot be trained.

    position_limit: the most tokens of an input.
    pooler: BERT's, which a head applies to the first token; it is not part of the graph.
    """

    digest: Tensor
    pooler: nn.Module | None
    own_precision = "the precision of its graph"

    def __init__(self, path: Path, config: PreTrainedConfig, run: Run, position_limit: int | None = None) -> None:
        super().__init__()
        self.config, self.name_or_path, self.position_limit, self._run = config, str(path), position_limit, run
        self.pooler = None
        hashes = bytearray.fromhex("".join(map(Digests().of_file, graph_files(path))))
        self.register_buffer("digest", torch.frombuffer(hashes, dtype=torch.uint8))  # like weights, it differs by model
        self.train(False)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        **unused: object,  # noqa: ARG002 (the arguments of transformers' networks)
    ) -> BaseModelOutputWithPooling:
        """(batch, tokens) ids, mask and types -> an output whose `last_hidden_state` is (batch, tokens, dim).

        unused: further arguments of transformers' heads.
        """
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": types}
        tokens = self._compute({name: values.to(torch.int64).numpy() for name, values in inputs.items()})
        pooled: Tensor | None = None
        if isinstance(self.pooler, nn.Linear):  # ALBERT's, whose network does the rest
            pooled = torch.tanh(self.pooler(tokens[:, 0]))
        elif self.pooler is not None:
            pooled = self.pooler(tokens)
        return BaseModelOutputWithPooling(last_hidden_state=tokens, pooler_output=pooled)

    def _compute(self, inputs: Mapping[str, NDArray[np.int64]]) -> Tensor:
        """Token vectors (batch, tokens, dim). Raises RequestError for a graph that fails or gives another shape."""
        rows, width = inputs["input_ids"].shape
        try:
            vectors = self._run(inputs)
        except (Stopped, MemoryError):
            raise
        except Exception as error:  # each runtime has its own
            raise RequestError(
                f"model: the graph {self.name_or_path} cannot be computed for {rows} × {width} tokens "
                f"({type(error).__name__}); export it again, or use the model with its weights"
            ) from error
        if vectors.shape != (rows, width, self.config.hidden_size):
            raise RequestError(
                f"model: expected the graph {self.name_or_path} to give {TOKENS} of the shape "
                f"{(rows, width, self.config.hidden_size)} for {rows} × {width} tokens, found {vectors.shape}; export "
                "it again with any number of texts and tokens"
            )
        return torch.from_numpy(vectors)

    def __reduce__(self) -> tuple[Any, ...]:
        """Sends the path of the graph to another process, as its runtime cannot be pickled."""
        return _read_again, (Path(self.name_or_path).absolute(), self.position_limit, self.digest, self.pooler)

    def get_input_embeddings(self) -> NoReturn:
        """Raises RequestError: a graph has no weights to change."""
        self._refuse()

    def save_pretrained(self, folder: Path) -> NoReturn:  # noqa: ARG002 (the argument of transformers' method)
        """Raises RequestError: a graph cannot be saved again."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RequestError(
            f"model: {self.name_or_path} is a graph, which cannot be changed, trained or saved again; give the model "
            "that it was exported from"
        )


def load_graph(folder: ModelFolder, backend: Backend, max_tokens: int | None = None) -> GraphNetwork:
    """The graph of a model's folder, for inputs of at most `max_tokens`.

    Raises RequestError for an absent, damaged or unfitting one, and without the package.
    """
    path = folder.path / GRAPHS[backend]
    if not path.is_file():
        others = [name for name, inner in GRAPHS.items() if (folder.path / inner).is_file()]
        existing = f"one for {' and '.join(others)}" if others else "none"
        raise RequestError(
            f"backend: expected a graph for {backend} at {path}, found {existing}; `bertrelay export` writes one"
        )
    if not find_spec(PACKAGES[backend]):
        raise RequestError(
            f"backend: {backend} needs the package {PACKAGES[backend]}: pip install 'bertrelay[{backend}]'"
        )
    start = {"onnx": _onnx, "openvino": _openvino}[backend]
    config = load_config(folder)
    with fail_with(lambda error: f"the graph {path} cannot be computed ({type(error).__name__}); export it again"):
        limit = max_tokens if max_tokens and max_tokens < UNLIMITED else None  # from a tokenizer without a limit
        network = GraphNetwork(path, config, start(path), limit)
    for shape in ((2, 3), (1, min(limit or 1, LONGEST_PROBE))):
        ids = torch.zeros(shape, dtype=torch.int64)
        network(ids, ids + 1)
    return network


def _read_again(path: Path, max_tokens: int | None, digest: Tensor, pooler: nn.Module | None) -> GraphNetwork:
    """Loads the graph at `path` in another process. Raises RequestError for a missing or another one."""
    backend = next(name for name, inner in GRAPHS.items() if path.match(inner))
    network = load_graph(ModelFolder(path.parents[1]), backend, max_tokens)
    if not torch.equal(network.digest, digest):
        raise RequestError(f"model: expected {path} to be the same on every node, found another; copy the folder there")
    network.pooler = pooler
    return network


def fastest(computations: Mapping[Backend, Callable[[], NDArray[np.float32]]], folder: Path) -> Backend:
    """The backend that computes the same vectors (n, dim) in the least time; logged.

    A graph with other vectors than the weights is left out, with a warning.
    """
    vectors = {backend: compute() for backend, compute in computations.items()}
    if (exact := vectors.get("torch")) is not None:
        errors = {backend: _relative_error(computed, exact) for backend, computed in vectors.items()}
        for backend in [name for name, error in errors.items() if not error <= LARGEST_ERROR]:
            log(
                f"{folder}: warning: the vectors of {backend} are not those of the weights (squared error "
                f"{errors[backend]:.2f} of their variance), and it is left out; export the graph again"
            )
            del vectors[backend]
    seconds = dict.fromkeys(vectors, math.inf)
    for _ in range(TIMED_ROUNDS - 1):
        for backend in vectors:
            started = time.perf_counter()
            computations[backend]()
            seconds[backend] = min(seconds[backend], time.perf_counter() - started)
    best = min(seconds, key=lambda backend: seconds[backend])
    times = ", ".join(f"{backend} {1000 * taken:,.1f} ms" for backend, taken in seconds.items())
    log(f"{folder}: the backend is {best} ({times})")
    return best


def _relative_error(vectors: NDArray[np.float32], exact: NDArray[np.float32]) -> float:
    if vectors.shape != exact.shape:
        return math.inf
    spread = np.square(exact - exact.mean(axis=0)).sum()
    return float(np.square(vectors - exact).sum() / max(spread, np.finfo(np.float32).tiny))


def check_backend(backend: str | None, device: Any) -> None:
    """Raises RequestError for an unknown backend, and for a device that it does not support."""
    if backend not in (*get_args(Backend), "auto", None):
        raise RequestError(f"backend: expected torch, onnx, openvino or auto, found {backend!r}")
    if backend in GRAPHS and device is not None and torch.device(device).type != "cpu":
        raise RequestError(f"device: expected cpu, where graphs are computed, found {device}; leave backend out")


def _onnx(path: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=["SkipLayerNormFusion"]
    )  # an addition and a normalisation take a third of the time of that kernel
    expected = [node.name for node in session.get_inputs()]
    return lambda inputs: session.run([TOKENS], {name: inputs[name] for name in expected})[0]


def _openvino(path: Path) -> Run:
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    model = import_openvino().Core().compile_model(str(path), "CPU", hints)
    expected, requests = [node.any_name for node in model.inputs], threading.local()

    def run(inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        if not hasattr(requests, "request"):  # a request serves one thread at a time
            requests.request = model.create_infer_request()
        tokens: NDArray[np.float32] = requests.request.infer({name: inputs[name] for name in expected})[TOKENS]
        return tokens

    return run


def import_openvino() -> Any:
    """Imports the package without `openvino_telemetry`, by which it would report its use."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino
