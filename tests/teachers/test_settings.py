import pytest
from pydantic import ValidationError

from teachers.settings import TrainSettings

TABLE = {"path": "train.tsv"}


def settings(**fields):
    return TrainSettings.model_validate({"base": "./base", "objective": "softmax", "train": [TABLE], **fields})


def test_a_token_budget_and_patience_with_either_dev_data_are_accepted():
    assert settings(batch_tokens=512).batch_items is None, "a token budget replaces the sixteen pairs"
    assert settings(patience=3, dev=[TABLE]).patience == settings(patience=3, dev_sts={"x": TABLE}).patience == 3


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"concatenation": ["v", "u"]}, r"u, v, \|u-v\|, u\*v; found v, u"),
        ({"objective": "cosine", "score_range": [5, 0]}, "lowest score first"),
        (
            {"objective": "cosine", "head": "@nli/head"},
            "head: without effect, because objective is cosine and not",
        ),
        (
            {"objective": "softmax", "margin": 2.0},
            "margin: without effect, because objective is softmax and",
        ),
        (
            {"objective": "triplet", "dimensions": [8]},
            "dimensions: without effect, because objective is triplet",
        ),
        ({"objective": "angle", "dimensions": [8, 3]}, r"two halves; expected even numbers, found \[3\]"),
        ({"evaluate_every": 10, "patience": 3}, "evaluate_every, patience: without effect"),
    ],
)
def test_a_setting_without_effect_or_sense_is_refused(fields, expected):
    with pytest.raises(ValidationError, match=expected):
        settings(**fields)
