"""Settings of the stages that write sample data."""

from typing import Annotated, Literal

from pydantic import Field

from bertrelay.settings import Positive, Seed, Settings


class SampleSettings(Settings):
    """How many training rows of each kind, and parallel test rows, from which seed.

    Development parts have a twelfth of the NLI and STS rows and a tenth of the triplets; the STS test a sixth.
    """

    seed: Seed = 7
    parallel_train: int = Field(default=11_000, ge=100)
    parallel_test: int = Field(default=1_200, ge=10)
    nli: int = Field(default=6_000, ge=100)
    sts: int = Field(default=6_000, ge=100)
    triplets: int = Field(default=3_000, ge=100)


class PaperSettings(Settings):
    """How many made-up abstracts, from which seed."""

    seed: Seed = 7
    documents: int = Field(default=1_500, ge=10)


class EntitySettings(Settings):
    """How many made-up abstracts with marked entities each part has, from which seed."""

    seed: Seed = 7
    train: int = Field(default=600, ge=10)
    dev: int = Field(default=100, ge=5)
    test: int = Field(default=150, ge=5)


class QuestionSettings(EntitySettings):
    """How many made-up abstracts with questions about them each part has, from which seed."""


class SbertPaperSettings(Settings):
    """How many lines the files of the SBERT paper's data sets have, from which seed.

    sts: pairs of each subset, of each topic of arguments, and of each dev and test part.
    train: of each training part.
    classes: sentences of each class.
    """

    seed: Seed = 7
    sts: int = Field(default=60, ge=20)
    train: int = Field(default=600, ge=20)
    classes: int = Field(default=60, ge=10)


class HospitalSettings(Settings):
    """How large a made-up hospital, and in whose form its tables are.

    seed: another seed, another hospital.
    subjects: patients; each has two admissions or so, and each is the same however many there are.
    version: of MIMIC; IV has discharge and radiology notes alone.
    words: of a discharge summary, on average; it cannot be shorter than what it has to state, some 160.
    """

    seed: Seed = 7
    subjects: Positive = 500
    version: Literal["III", "IV"] = "III"
    words: Annotated[int, Field(ge=100)] = 400
