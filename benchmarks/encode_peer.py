"""The side of sentence-transformers in benchmarks.encode; its ONNX ways run in an environment of their own."""

import json
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer

from benchmarks.contenders import Work, serve

VERSIONS = f"sentence-transformers {sentence_transformers.__version__}, transformers {transformers.__version__}"
CPU = {"provider": "CPUExecutionProvider"}


def prepare(device: str, threads: int, model: str, scratch: str, way: str) -> Work:
    torch.set_num_threads(threads)
    loaded = WAYS[way](model, device, Path(scratch, way), threads)
    sentences = json.loads(Path(scratch, "sentences.json").read_text(encoding="utf-8"))

    def work(batch_size: int, count: int | None = None, keep: bool = False) -> dict[str, Any]:
        precision = torch.autocast(device, dtype=torch.bfloat16) if way == "bf16 autocast" else nullcontext()
        began = time.perf_counter()
        with precision:
            vectors = loaded.encode(sentences[:count], batch_size=batch_size, show_progress_bar=False)
        seconds = time.perf_counter() - began
        if keep:
            np.save(Path(scratch, "vectors.npy"), vectors)
        return {"seconds": seconds, "versions": VERSIONS}

    return work


def in_fp32(model: str, device: str, scratch: Path, threads: int) -> SentenceTransformer:  # noqa: ARG001
    return SentenceTransformer(model, device=device)


def in_bf16(model: str, device: str, scratch: Path, threads: int) -> SentenceTransformer:  # noqa: ARG001
    return SentenceTransformer(model, device=device).bfloat16()


def onnx(model: str, device: str, scratch: Path, threads: int) -> SentenceTransformer:
    return _opened(_exported(model, device, scratch), "model.onnx", device, threads)


def onnx_optimized(model: str, device: str, scratch: Path, threads: int) -> SentenceTransformer:
    folder = _exported(model, device, scratch)
    exported = _opened(folder, "model.onnx", device, threads)
    sentence_transformers.export_optimized_onnx_model(exported, "O3", str(folder))
    return _opened(folder, "model_O3.onnx", device, threads)


def onnx_int8(model: str, device: str, scratch: Path, threads: int) -> SentenceTransformer:
    folder = _exported(model, device, scratch)
    exported = _opened(folder, "model.onnx", device, threads)
    kind = "avx512_vnni" if "avx512_vnni" in Path("/proc/cpuinfo").read_text() else "avx2"
    sentence_transformers.export_dynamic_quantized_onnx_model(exported, kind, str(folder))
    return _opened(folder, next((folder / "onnx").glob("*int8*")).name, device, threads)


def _exported(model: str, device: str, scratch: Path) -> Path:
    """A copy of the model's folder with its network as ONNX, since the export writes beside what it reads."""
    shutil.copytree(model, scratch)
    exported = SentenceTransformer(str(scratch), backend="onnx", device=device, model_kwargs=CPU)
    exported.save_pretrained(str(scratch), create_model_card=False)
    return scratch


def _opened(folder: Path, file: str, device: str, threads: int) -> SentenceTransformer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    arguments = {**CPU, "file_name": f"onnx/{file}", "session_options": options}
    return SentenceTransformer(str(folder), backend="onnx", device=device, model_kwargs=arguments)


WAYS: dict[str, Callable[[str, str, Path, int], SentenceTransformer]] = {
    "default": in_fp32,
    "bf16 weights": in_bf16,
    "bf16 autocast": in_fp32,
    "ONNX fp32": onnx,
    "ONNX fp32, O3": onnx_optimized,
    "ONNX int8": onnx_int8,
}

if __name__ == "__main__":
    serve(prepare)
