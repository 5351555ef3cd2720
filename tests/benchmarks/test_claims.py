"""Claims hold for metrics that meet them and fail for others."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import BertConfig

from benchmarks import clinic, distill, encode, tagging
from benchmarks.harness import Result, Spread


def test_operations_are_those_of_every_matrix_product():
    network = BertConfig(hidden_size=4, intermediate_size=6, num_hidden_layers=3, num_attention_heads=2)
    expected = 0
    for tokens in (2, 5):
        maps = 4 * tokens * 4 * 4 + 2 * tokens * 4 * 6  # query, key, value, output; up and down
        attention = 2 * tokens * tokens * 4  # scores and mixture
        expected += 3 * 2 * (maps + attention)
    assert encode.operations(np.array([2, 5]), network) == expected


def results_of(**answers: dict[str, float]) -> dict[str, Result]:
    return {name.replace("_", "-"): Result(name.replace("_", "-"), [answer]) for name, answer in answers.items()}


def test_encoding_is_compared_with_the_default_and_with_the_fastest_peer():
    seconds = {"default": 10.0, "onnx": 4.0, "ours": 2.0, "ours_fp32": 5.0}
    results = results_of(**{name: {"seconds": value} for name, value in seconds.items()})
    judged = encode.claims(results, 1.0, Spread(0.6, 0.6, 0.6), "cpu")
    assert [claim.measured.split()[0] for claim in judged] == ["5.00", "2.00", "1.000000", "0.60", "2.00"]
    assert "(onnx)" in judged[1].text and all(claim.holds for claim in judged)
    far = encode.smallest_cosine(np.eye(3, dtype=np.float32) + np.float32(0.1), np.eye(3, dtype=np.float32))
    assert far == pytest.approx(1.1 / np.sqrt(1.1**2 + 2 * 0.1**2))
    judged = encode.claims(results, far, Spread(0.5, 0.5, 0.5), "cpu")
    assert [claim.holds for claim in judged] == [True, True, False, False, True]
    seconds |= {"ours": 3.2}  # 3.1 and 1.25 × as fast
    results = results_of(**{name: {"seconds": value} for name, value in seconds.items()})
    judged = encode.claims(results, 1.0, Spread(0.1, 0.1, 0.1), "cuda")
    assert [claim.holds for claim in judged] == [True, False, True]


def test_without_bf16_graphs_of_ours_are_compared_with_graphs_of_the_peer():
    seconds = {"default": 9.0, "onnx": 7.0, "onnx-o3": 6.0, "onnx-int8": 3.0}
    seconds |= {"ours-fp32": 5.5, "ours-onnx": 4.5, "ours-int8": 2.6}
    results = {name: Result(name, [{"seconds": value}]) for name, value in seconds.items()}
    cosines = {"ours-fp32": 1.0, "ours-onnx": 0.999995, "ours-int8": 0.97, "onnx-int8": 0.96, "openvino-int8": 0.95}
    judged = encode.claims_without_bf16(results, cosines)
    assert [claim.measured.split()[0] for claim in judged] == ["1.33", "0.9999950", "2.00", "1.15", "0.970000"]
    assert [claim.holds for claim in judged] == [True, True, True, False, True]
    assert "(ours-onnx) as its best (onnx-o3)" in judged[0].text
    results["openvino-int8"] = Result("openvino-int8", [{"seconds": 2.9}])
    judged = encode.claims_without_bf16(results, cosines)
    assert judged[3].measured.startswith("1.12") and judged[4].measured == "0.970000 of 0.950000"
    del results["openvino-int8"]
    judged = encode.claims_without_bf16(results, {**cosines, "ours-onnx": 0.9999, "onnx-int8": 0.98})
    assert [claim.holds for claim in judged] == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("accuracies", "found", "held"),
    [
        ({}, ["6.67", "3.00", "3.00"], [True, True, True]),
        ({"ours_48": 0.79}, ["6.67", "2.50", "3.00"], [True, False, True]),  # the next is slower
        ({"weights": 0.86}, ["6.67", "none", "3.00"], [True, False, True]),
        ({"ours_fp32": 0.6}, ["6.67", "3.00", "none"], [True, True, False]),  # fast, but worse than the default
    ],
)
def test_each_distillation_is_compared_with_the_fastest_of_ours_that_is_as_accurate(accuracies, found, held):
    reached = {
        "default": (60, 0.7),
        "bf16": (33, 0.9),
        "weights": (30, 0.8),
        "ours_64": (9, 0.75),
        "ours_48": (10, 0.8),
    }
    reached |= {"ours_32": (12, 0.85), "ours_fp32": (20, 0.9)}
    answers = {name: {"seconds": s, "accuracy": accuracies.get(name, a)} for name, (s, a) in reached.items()}
    judged = distill.claims(results_of(**answers), "cpu")
    assert [claim.measured.split()[0] for claim in judged] == found
    assert [claim.holds for claim in judged] == held
    judged = distill.claims(results_of(**answers), "cuda")
    assert [claim.holds for claim in judged] == [True, "none" not in found[1]]  # 4 and 1.5 × are enough


@pytest.mark.parametrize(
    ("growth", "beyond", "held"), [(0, 100, [True, True]), (25, 100, [False, True]), (0, 201, [True, False])]
)
def test_memory_of_a_long_document_may_grow_by_the_slack_alone(growth, beyond, held):
    results = results_of(pipeline={"seconds": 4.0}, ours={"seconds": 1.0})
    ten, one = (tagging.Memory(500, 500 + peak, 1) for peak in (beyond - growth, beyond))
    assert [claim.holds for claim in tagging.claims(results, [ten, one])] == [True, *held]


def test_the_metrics_of_a_run_are_those_it_writes(tmp_path, monkeypatch):
    def run(command, **_):
        runs = Path(command[command.index("--runs") + 1])
        (runs / "clinic").mkdir()
        (runs / "clinic/metrics.json").write_text(json.dumps({"readmission": {"auroc": 0.8}}))
        assert command[command.index("--set") + 1] == "seed=1"

    monkeypatch.setattr("subprocess.run", run)
    metrics = clinic.run_recipe("clinic", "readmission", tmp_path, {"seed": 1})
    assert metrics == {"readmission": {"auroc": 0.8}}
