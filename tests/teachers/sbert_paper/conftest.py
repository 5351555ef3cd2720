import pytest

from teachers.sbert_paper.encoders import at_once, fit_of
from teachers.sbert_paper.settings import ProtocolSettings


@pytest.fixture
def encode_of():
    """Opens the encoder that settings of the protocols name."""

    def open_encoder(**source):
        return at_once(fit_of(ProtocolSettings.model_validate({"protocols": ["sts"], "data": ".", **source})))

    return open_encoder
