"""sentence-transformers as a contender of `encode` and `peers`; its other versions run in environments of their own."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer

from benchmarks.harness import Work, timed

VERSIONS = f"sentence-transformers {sentence_transformers.__version__}, transformers {transformers.__version__}"
CPU = {"provider": "CPUExecutionProvider"}


def prepare(threads: int, model: str, scratch: str, variant: str) -> Work:
    torch.set_num_threads(threads)
    loaded = load(variant, model, Path(scratch, variant), threads)

    def work(batch_size: int, count: int | None = None, keep: str | None = None, ids: bool = False) -> dict[str, Any]:
        sentences = json.loads(Path(scratch, "sentences.json").read_text(encoding="utf-8"))[:count]
        precision = torch.autocast("cpu", dtype=torch.bfloat16) if variant == "autocast" else nullcontext()
        with precision:
            vectors, seconds = timed(lambda: loaded.encode(sentences, batch_size=batch_size, show_progress_bar=False))
        if keep:
            np.save(Path(scratch, keep), vectors)
        tokens = [loaded.tokenize([sentence])["input_ids"][0].tolist() for sentence in sentences] if ids else None
        return {"seconds": seconds, "versions": VERSIONS, "ids": tokens}

    return work


def load(variant: str, model: str, scratch: Path, threads: int) -> SentenceTransformer:
    """`default` and `autocast` are the model as it comes, `bf16` has its weights in bf16, the others are ONNX."""
    if not variant.startswith("onnx"):
        loaded = SentenceTransformer(model, device="cpu")
        return loaded.bfloat16() if variant == "bf16" else loaded
    shutil.copytree(model, scratch)  # the export writes beside what it reads
    SentenceTransformer(str(scratch), backend="onnx", device="cpu", model_kwargs=CPU).save_pretrained(
        str(scratch), create_model_card=False
    )
    file = "model.onnx"
    if variant == "onnx-o3":
        exported = open_onnx(scratch, file, threads)
        sentence_transformers.export_optimized_onnx_model(exported, "O3", str(scratch))
        file = "model_O3.onnx"
    elif variant == "onnx-int8":
        exported = open_onnx(scratch, file, threads)
        kind = "avx512_vnni" if "avx512_vnni" in Path("/proc/cpuinfo").read_text() else "avx2"
        sentence_transformers.export_dynamic_quantized_onnx_model(exported, kind, str(scratch))
        file = next((scratch / "onnx").glob("*int8*")).name
    return open_onnx(scratch, file, threads)


def open_onnx(folder: Path, file: str, threads: int) -> SentenceTransformer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    arguments = {**CPU, "file_name": f"onnx/{file}", "session_options": options}
    return SentenceTransformer(str(folder), backend="onnx", device="cpu", model_kwargs=arguments)
