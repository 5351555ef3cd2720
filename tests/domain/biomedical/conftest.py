"""A tiny BERT of the synthetic texts."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # synthetic_questions and real_files are imported by name


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    """The folder of a random BERT whose subwords are those of the synthetic texts, and parts of their words."""
    from random_bert import save_random_bert
    from synthetic_questions import ASKED, MENTIONS, PLAIN

    words = " ".join([*PLAIN, *ASKED.values(), *MENTIONS["disease"], *MENTIONS["chemical"]])
    return save_random_bert(tmp_path_factory.mktemp("bert"), [words] * 3)
