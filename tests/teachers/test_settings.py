import pytest
from pydantic import ValidationError

from bertrelay.encoder_settings import NewEncoder
from teachers.settings import CONCATENATIONS, StsSettings, TrainSettings

TABLE = {"path": "train.tsv"}
SIZE = {"layers": 2, "dim": 8, "heads": 2, "vocabulary": 100}


def settings(**given):
    return TrainSettings.model_validate({"base": "./base", "objective": "softmax", "train": [TABLE], **given})


def test_what_may_be_given_is_taken():
    assert settings(batch_tokens=512).batch_items is None, "a token budget replaces the sixteen pairs"
    for parts in CONCATENATIONS:
        assert settings(concatenation=list(parts)).concatenation == list(parts)
    assert settings(patience=3, dev=[TABLE]).patience == settings(patience=3, dev_sts={"x": TABLE}).patience == 3
    assert settings(base="@nli/model").base == "@nli/model"
    size = settings(base=SIZE).base
    assert isinstance(size, NewEncoder) and size.dim == 8


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"concatenation": ["v", "u"]}, r"u, v, \|u-v\|, u\*v; found v, u"),
        ({"objective": "cosine", "score_range": [5, 0]}, "lowest score first"),
        ({"objective": "cosine", "head": "@nli/head"}, "head: without effect, because only the softmax objective"),
        ({"objective": "triplet", "concatenation": ["u", "v"]}, "concatenation: without effect"),
        ({"objective": "softmax", "margin": 2.0}, "margin: without effect, because only the triplet objective"),
        ({"objective": "triplet", "score_range": [0, 1]}, "score_range: without effect"),
        ({"patience": 3}, "patience: without effect, because there is no dev data"),
        ({"evaluate_every": 10, "patience": 3}, "evaluate_every, patience: without effect"),
    ],
)
def test_a_setting_without_effect_or_sense_is_refused(given, expected):
    with pytest.raises(ValidationError, match=expected):
        settings(**given)


def test_an_unknown_key_of_a_size_is_named_and_nothing_else_is_blamed():
    with pytest.raises(ValidationError) as raised:
        settings(base={**SIZE, "headz": 2})
    [error] = raised.value.errors()
    assert error["loc"][0] == "base" and error["loc"][-1] == "headz" and error["type"] == "extra_forbidden"


def test_an_evaluation_without_sets_is_refused():
    with pytest.raises(ValidationError):
        StsSettings.model_validate({"model": "./model", "sts": {}})
