"""Trainings that were never stopped, to compare resumed ones with."""

import pytest
from small_training import DROPOUT, run, stderr_of


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory):
    """`uninterrupted(processes, **settings)`: the folder of a training with dropout that ran through."""
    folders = {}

    def train(processes, **settings):
        key = (processes, *settings.items())
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("uninterrupted")
            codes = run(folders[key], processes, settings=settings, **DROPOUT)
            assert codes == [0] * processes, stderr_of(folders[key])
        return folders[key]

    return train
