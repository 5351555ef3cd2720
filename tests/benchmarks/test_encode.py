import numpy as np
from transformers import BertConfig

from benchmarks.contenders import Spread
from benchmarks.encode import Result, claims, operations


def test_operations_are_those_of_every_matrix_product() -> None:
    network = BertConfig(hidden_size=4, intermediate_size=6, num_hidden_layers=3, num_attention_heads=2)
    expected = 0
    for tokens in (2, 5):
        maps = 4 * tokens * 4 * 4 + 2 * tokens * 4 * 6  # query, key, value, output; up and down
        attention = 2 * tokens * tokens * 4  # scores and mixture
        expected += 3 * 2 * (maps + attention)
    assert operations(np.array([2, 5]), network) == expected


def test_claims_compare_with_the_default_and_with_the_fastest_peer() -> None:
    vectors = np.eye(3, dtype=np.float32)
    seconds = {"default": 10.0, "int8": 4.0, "auto": 2.0, "fp32": 5.0}
    results = {name: Result(name, None, "", vectors, [value]) for name, value in seconds.items()}
    judged = claims(results, Spread(0.6, 0.6, 0.6))
    assert [claim.found for claim in judged] == [
        "5.00 (5.00–5.00)",
        "2.00 (2.00–2.00)",
        "1.000000",
        "0.60 (0.60–0.60)",
        "2.00 (2.00–2.00)",
    ]
    assert "(int8)" in judged[1].text
    assert all(claim.holds for claim in judged)
    results["auto"].vectors = vectors + np.float32(0.1)
    assert [claim.holds for claim in claims(results, Spread(0.5, 0.5, 0.5))] == [True, True, False, False, True]
