from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertrelay.encoder import Projection, SentenceEncoder
from bertrelay.stage import StageContext
from teachers.settings import TrainSettings
from teachers.train import start_encoder

MakeEncoder = Callable[..., SentenceEncoder]

SENTENCES = ["A dog runs in the park.", "Two cats sleep.", "The bird sings in the tall tree.", "A child reads."]
NEW = {"layers": 2, "dim": 16, "heads": 2, "vocabulary": 80, "max_tokens": 24}


def start(context: StageContext, base: Any, sentences: list[str] = SENTENCES, **given: Any) -> SentenceEncoder:
    fields = {"base": base, "objective": "softmax", "train": [{"path": "train.tsv"}], **given}
    return start_encoder(TrainSettings.model_validate(fields), sentences, context)


@pytest.fixture
def saved(tiny_encoder: MakeEncoder, tmp_path: Path) -> Callable[..., str]:
    def save(**parts: Any) -> str:
        tiny_encoder("bert", SENTENCES, **parts).save(tmp_path / "base")
        return str(tmp_path / "base")

    return save


def weights(encoder: SentenceEncoder) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in encoder.parameters()])


def test_a_new_teacher_has_the_size_asked_for(context: StageContext) -> None:
    encoder = start(context, NEW)
    config = encoder.backbone.config
    assert (config.model_type, config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (
        "bert", 2, 16, 64,
    )  # fmt: skip
    assert (encoder.dim, encoder.max_tokens, encoder.pooling.modes) == (16, 24, ("mean",))


def test_a_new_teachers_word_pieces_come_from_its_own_corpus(context: StageContext) -> None:
    known = start(context, NEW).tokenizer
    assert known.unk_token_id not in known("the tall bird reads").input_ids
    foreign = start(context, NEW, ["Zwölf Boxkämpfer jagen Viktor quer."]).tokenizer
    assert foreign.unk_token_id in foreign("sphinx").input_ids  # no h in that corpus: another vocabulary


def test_the_seed_decides_a_new_teachers_weights_and_nothing_else_does(context: StageContext) -> None:
    torch.manual_seed(5)
    first = weights(start(context, NEW, seed=1, linear=True))
    after = torch.rand(1)
    torch.manual_seed(6)
    torch.testing.assert_close(first, weights(start(context, NEW, seed=1, linear=True)), rtol=0, atol=0)
    assert not torch.equal(first, weights(start(context, NEW, seed=2, linear=True)))
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))  # the caller's generator is where it was


def test_a_base_keeps_its_pooling_unless_another_is_asked_for(context: StageContext, saved: Callable[..., str]) -> None:
    folder = saved(pooling=["cls"])
    assert start(context, folder).pooling.modes == ("cls",)
    both = start(context, folder, pooling=["mean", "max"])
    assert both.dim == 32
    assert SentenceEncoder.load(folder).pooling.modes == ("cls",)


def test_max_tokens_cuts_sentences(context: StageContext, saved: Callable[..., str]) -> None:
    [ids] = start(context, saved(), max_tokens=5).tokenize([SENTENCES[2]])
    assert len(ids) == 5


def test_a_linear_layer_of_equal_size_survives_saving(context: StageContext, tmp_path: Path) -> None:
    encoder = start(context, NEW, linear=True, pooling=["mean", "max"])
    assert encoder.projection is not None
    assert encoder.projection.linear.weight.shape == (32, 32)
    encoder.save(tmp_path / "model")
    assert (tmp_path / "model" / "2_Dense" / "model.safetensors").is_file()
    again = SentenceEncoder.load(tmp_path / "model")
    np.testing.assert_array_equal(
        again.encode(SENTENCES, precision="fp32"), encoder.eval().encode(SENTENCES, precision="fp32")
    )


def test_the_linear_layer_of_a_base_is_gone_on_with(context: StageContext, saved: Callable[..., str]) -> None:
    torch.manual_seed(3)
    learnt = Projection(16, 16)
    continued = start(context, saved(projection=learnt), linear=True, seed=9)
    assert continued.projection is not None
    assert torch.equal(continued.projection.linear.weight, learnt.linear.weight)
