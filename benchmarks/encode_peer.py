"""sentence-transformers as a contender of `encode` and `peers`, in this environment or in one of another version."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Answer, Work, latencies, timed

TRIED_ON, QUERIES, CALIBRATED_ON = 2_000, 200, 300
CPU = {"provider": "CPUExecutionProvider"}


def read_peers() -> dict[str, Any]:
    """The packages of each environment, and sentences."""
    return tomllib.loads(Path(__file__).with_name("peers.toml").read_text(encoding="utf-8"))


def environment(folder: Path, name: str) -> Path:
    """The Python of the environment `name` below `folder`, installed unless it is there, with the torch of this one."""
    python = (folder / name / "bin" / "python").absolute()
    query = "import importlib.metadata as m; m.version('sentence-transformers')"
    if python.exists() and subprocess.run([python, "-c", query], capture_output=True).returncode == 0:
        return python
    packages = [*read_peers()["packages"][name], f"torch=={torch.__version__.partition('+')[0]}"]
    print(f"installing {', '.join(packages)} into {folder / name}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder / name], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    # Exporters want torchvision, which may not fit the build of torch, and then nothing is imported.
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"], check=True)
    return python


def prepare(model: str, scratch: str, variant: str, ids: bool = False) -> Work:
    """ids: whether the answers have the token ids of each sentence."""
    import numpy as np
    import sentence_transformers
    import transformers

    versions = f"sentence-transformers {sentence_transformers.__version__}, transformers {transformers.__version__}"
    loaded, sentences = load(variant, model, Path(scratch, variant)), read_sentences(scratch)

    def work(batch_size: int, number: int | None) -> Answer:
        given = sentences[:TRIED_ON] if number is None else sentences
        with torch.autocast(loaded.device.type, torch.bfloat16, enabled=variant == "autocast"):
            vectors, seconds = timed(lambda: loaded.encode(given, batch_size=batch_size, show_progress_bar=False))
            single = latencies(lambda query: loaded.encode([query], show_progress_bar=False), given[:QUERIES])
        np.save(Path(scratch, f"{variant}.npy"), vectors)
        answer = {"seconds": seconds, "versions": versions, **single}
        if ids:
            answer["ids"] = [loaded.tokenize([sentence])["input_ids"][0].tolist() for sentence in given]
        return answer

    return work


def read_sentences(scratch: str) -> list[str]:
    sentences: list[str] = json.loads(Path(scratch, "sentences.json").read_text(encoding="utf-8"))
    return sentences


def load(variant: str, model: str, scratch: Path) -> Any:
    """`default` and `autocast` are the model as it comes, `bf16` has its weights in bf16, the others are graphs."""
    import sentence_transformers
    from sentence_transformers import SentenceTransformer

    if not variant.startswith(("onnx", "openvino")):
        loaded = SentenceTransformer(model)
        return loaded.bfloat16() if variant == "bf16" else loaded
    shutil.copytree(model, scratch)  # the export writes beside what it reads
    if variant == "openvino-int8":
        return load_openvino(scratch)
    SentenceTransformer(str(scratch), backend="onnx", device="cpu", model_kwargs=CPU).save_pretrained(
        str(scratch), create_model_card=False
    )
    file = "model.onnx"
    if variant == "onnx-o3":
        sentence_transformers.export_optimized_onnx_model(open_onnx(scratch, file), "O3", str(scratch))
        file = "model_O3.onnx"
    elif variant == "onnx-int8":
        kind = "avx512_vnni" if "avx512_vnni" in Path("/proc/cpuinfo").read_text() else "avx2"
        sentence_transformers.export_dynamic_quantized_onnx_model(open_onnx(scratch, file), kind, str(scratch))
        file = next((scratch / "onnx").glob("*int8*")).name
    return open_onnx(scratch, file)


def open_onnx(folder: Path, file: str) -> Any:
    import onnxruntime
    from sentence_transformers import SentenceTransformer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    arguments = {**CPU, "file_name": f"onnx/{file}", "session_options": options}
    return SentenceTransformer(str(folder), backend="onnx", device="cpu", model_kwargs=arguments)


def load_openvino(folder: Path) -> Any:
    """The model in static int8, calibrated on the first sentences, as its documentation does it."""
    from optimum.intel import OVQuantizationConfig
    from sentence_transformers import SentenceTransformer, export_static_quantized_openvino_model

    rows = ({"text": sentence} for sentence in read_sentences(str(folder.parent))[:CALIBRATED_ON])
    (folder / "calibration").mkdir()
    (folder / "calibration/train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    exported = SentenceTransformer(str(folder), backend="openvino", device="cpu")
    exported.save_pretrained(str(folder), create_model_card=False)
    export_static_quantized_openvino_model(
        exported,
        OVQuantizationConfig(num_samples=CALIBRATED_ON),
        str(folder),
        dataset_name=str(folder / "calibration"),
        dataset_config_name="default",
        dataset_split="train",
        column_name="text",
    )
    settings = {"INFERENCE_NUM_THREADS": str(torch.get_num_threads())}
    arguments = {"file_name": "openvino/openvino_model_qint8_quantized.xml", "ov_config": settings}
    return SentenceTransformer(str(folder), backend="openvino", device="cpu", model_kwargs=arguments)
