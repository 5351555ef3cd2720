from typing import Any

import pytest
from pydantic import ValidationError

from bertrelay.encoder_settings import NewEncoder
from teachers.settings import CONCATENATIONS, StsSettings, TrainSettings

TABLE = {"path": "train.tsv"}


def settings(**given: Any) -> TrainSettings:
    return TrainSettings.model_validate({"base": "./base", "objective": "softmax", "train": [TABLE], **given})


def message(**given: Any) -> str:
    with pytest.raises(ValidationError) as raised:
        settings(**given)
    return str(raised.value)


def test_defaults_are_the_papers() -> None:
    chosen = settings()
    assert (chosen.epochs, chosen.batch_items, chosen.batch_tokens, chosen.learning_rate) == (1, 16, None, 2e-5)
    assert (chosen.warmup, chosen.schedule, chosen.margin) == (0.1, "linear", 1.0)
    assert chosen.concatenation == ["u", "v", "|u-v|"]
    assert (chosen.linear, chosen.dropout) == (False, 0.0)


def test_a_token_budget_replaces_the_sixteen_pairs() -> None:
    assert settings(batch_tokens=512).batch_items is None


@pytest.mark.parametrize("parts", CONCATENATIONS)
def test_each_of_the_papers_concatenations_is_taken(parts: tuple[str, ...]) -> None:
    assert settings(concatenation=list(parts)).concatenation == list(parts)


def test_another_concatenation_is_refused_with_the_seven() -> None:
    told = message(concatenation=["v", "u"])
    assert "found v, u" in told and "u, v, |u-v|, u*v" in told


def test_scores_from_high_to_low_are_refused() -> None:
    assert "lowest score first" in message(score_range=[5, 0])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"objective": "cosine", "head": "@nli/head"}, "head: without effect, because only the softmax objective"),
        ({"objective": "triplet", "concatenation": ["u", "v"]}, "concatenation: without effect"),
        ({"objective": "softmax", "margin": 2.0}, "margin: without effect, because only the triplet objective"),
        ({"objective": "triplet", "score_range": [0, 1]}, "score_range: without effect"),
        ({"patience": 3}, "patience: without effect, because there is no dev data"),
        ({"evaluate_every": 10, "patience": 3}, "evaluate_every, patience: without effect"),
    ],
)
def test_a_setting_that_nothing_looks_at_is_told(given: dict[str, Any], told: str) -> None:
    assert told in message(**given)


def test_patience_needs_dev_data_of_either_kind() -> None:
    assert settings(patience=3, dev=[TABLE]).patience == settings(patience=3, dev_sts={"x": TABLE}).patience == 3


def test_base_is_a_model_or_a_size() -> None:
    assert settings(base="@nli/model").base == "@nli/model"
    size = settings(base={"layers": 2, "dim": 8, "heads": 2, "vocabulary": 100}).base
    assert isinstance(size, NewEncoder) and size.dim == 8


def test_an_unknown_key_of_a_size_is_named_and_nothing_else_is_blamed() -> None:
    with pytest.raises(ValidationError) as raised:
        settings(base={"layers": 2, "dim": 8, "heads": 2, "vocabulary": 100, "headz": 2})
    [mistake] = raised.value.errors()
    assert mistake["loc"][0] == "base" and mistake["loc"][-1] == "headz" and mistake["type"] == "extra_forbidden"


def test_an_evaluation_without_sets_is_refused() -> None:
    with pytest.raises(ValidationError):
        StsSettings.model_validate({"model": "./model", "sts": {}})
