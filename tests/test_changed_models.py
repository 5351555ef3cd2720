"""Models with one thing changed in their folder; tests/slow/test_fuzz.py does the same to every kind."""

import shutil
from collections import Counter

import pytest
from changes import change_folder, check_changed_model, is_alike
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertrelay.errors import RequestError, WorkError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.pooling import Projection

TEXTS = ["A dog runs in the park.", "Two children play with a red ball.", "Nobody knows."]


def load(folder):
    encoder = SentenceEncoder.load(folder)
    return lambda: encoder.encode(TEXTS, precision="fp32")


@pytest.fixture
def folders(tiny_encoder, tmp_path):
    """The folder of a model, and of its copy that is changed."""
    encoder = tiny_encoder("bert", TEXTS * 20, projection=Projection(16, 8), pooling=["cls"])
    encoder.save(tmp_path / "model")
    return tmp_path / "model", tmp_path / "changed"


@pytest.mark.promise("A changed model is a clear error or changes nothing", about="loading")
def test_a_changed_model_is_a_clear_error_or_changes_nothing(folders):
    original, folder = folders
    ends = Counter()

    @settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def change_and_use(data):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(original, folder)
        is_valid = data.draw(change_folder(folder))
        try:
            check_changed_model(load, original, folder, is_valid)
        except (RequestError, WorkError):
            ends["refused"] += 1
        else:
            ends["harmless"] += 1

    change_and_use()
    assert min(ends["refused"], ends["harmless"]) > 5


def test_another_output_in_silence_is_seen(folders):
    original, folder = folders
    shutil.copytree(original, folder)
    config = folder / "2_Dense" / "config.json"
    config.write_text(config.read_text().replace("linear.Identity", "activation.Tanh"))
    with pytest.raises(AssertionError, match="another output"):
        check_changed_model(load, original, folder, is_valid=False)
    check_changed_model(load, original, folder, is_valid=True)


def test_outputs_are_alike_but_for_the_last_digits_of_their_numbers():
    assert is_alike([0.470302957, "a1", 12], [0.470302964, "a1", 12])
    for other in ([0.4713, "a1", 12], [0.4703, "a1", 13], [0.4703, "b1", 12], [0.4703, "a1", None]):
        assert not is_alike([0.4703, "a1", 12], other)
