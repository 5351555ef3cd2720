"""Settings of the stage that writes sample data."""

from pydantic import Field

from bertrelay.settings import Settings
from pipelines.samples.writing import Sizes


class SampleSettings(Settings):
    """How much sample data, from which seed; smaller parts are shares of these sizes, as `Sizes` says."""

    seed: int = 7
    parallel_train: int = Field(default=Sizes.parallel_train, ge=100)
    parallel_test: int = Field(default=Sizes.parallel_test, ge=10)
    nli: int = Field(default=Sizes.nli, ge=100)
    sts: int = Field(default=Sizes.sts, ge=100)
    triplets: int = Field(default=Sizes.triplets, ge=100)
