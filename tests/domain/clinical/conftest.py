"""Path of the helper modules of these tests, and the BERT that they share."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # hospital_tables is imported by name


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """The folder of a tiny random BERT that knows the words of `synthetic_patients`."""
    from random_bert import save_random_bert
    from synthetic_patients import HARMLESS, TELLING

    texts = [*HARMLESS, TELLING, "Hospital Course: Plan:"] * 3
    return save_random_bert(tmp_path_factory.mktemp("bert"), texts, std=0.15, max_tokens=48)
