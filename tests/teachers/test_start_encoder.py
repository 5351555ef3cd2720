"""Encoders before their first step."""

import torch

from bertrelay.model.pooling import Projection
from teachers.settings import TrainSettings
from teachers.train import start_encoder

SENTENCES = ["A dog runs in the park.", "Two cats sleep.", "The bird sings in the tall tree.", "A child reads."]
SMALL = {"layers": 2, "dim": 16, "heads": 2, "vocabulary": 80, "max_tokens": 24}


def start(context, base, sentences=SENTENCES, **options):
    fields = {"base": base, "objective": "softmax", "train": [{"path": "train.tsv"}], **options}
    return start_encoder(TrainSettings.model_validate(fields), sentences, context)


def weights(encoder):
    return torch.cat([weight.flatten() for weight in encoder.parameters()])


def test_only_the_seed_decides_the_weights_of_a_new_encoder(context):
    torch.manual_seed(5)
    first = weights(start(context, SMALL, seed=1, linear=True))
    after = torch.rand(1)
    torch.manual_seed(6)
    torch.testing.assert_close(first, weights(start(context, SMALL, seed=1, linear=True)), rtol=0, atol=0)
    assert not torch.equal(first, weights(start(context, SMALL, seed=2, linear=True)))
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))  # the caller's generator did not move


def test_a_base_stays_as_it_is_without_settings(context, tiny_encoder, tmp_path):
    torch.manual_seed(3)
    projection, folder = Projection(16, 16), str(tmp_path / "base")
    tiny_encoder("bert", SENTENCES, pooling=["cls"]).save(folder)
    assert start(context, folder).pooling.modes == ("cls",)
    both = start(context, folder, pooling=["mean", "max"], linear=True)
    assert both.dim == 32 and both.projection.linear.weight.shape == (32, 32)
    assert len(start(context, folder, max_tokens=5).tokenize([SENTENCES[2]])[0]) == 5
    tiny_encoder("bert", SENTENCES, projection=projection).save(folder)
    encoder = start(context, folder, linear=True, seed=9)
    assert torch.equal(encoder.projection.linear.weight, projection.linear.weight)
