"""Settings of the stages that write sample data."""

from typing import Annotated, Literal

from pydantic import Field

from bertrelay.settings import Positive, Seed, Settings, UsedWith


class SampleSettings(Settings):
    """Sample sentences: how many training rows of each kind, and parallel test rows, the first of those that there are.

    Development parts have a twelfth of the NLI and STS rows and a tenth of the triplets; the STS test a sixth.
    """

    parallel_train: int = Field(default=11_000, ge=100, le=11_000)
    """Parallel rows to train on."""
    parallel_test: int = Field(default=1_200, ge=10, le=1_200)
    """Parallel rows to test on."""
    nli: int = Field(default=6_000, ge=100, le=6_000)
    """Training rows of NLI."""
    sts: int = Field(default=6_000, ge=100, le=6_000)
    """Training rows of STS."""
    triplets: int = Field(default=3_000, ge=100, le=3_000)
    """Training rows of triplets."""


class PaperSettings(Settings):
    """Synthetic abstracts of papers."""

    seed: Seed = 7
    """Seed of the abstracts."""
    documents: int = Field(default=1_500, ge=10)
    """Number of abstracts."""


class EntitySettings(Settings):
    """Synthetic abstracts with marked entities."""

    seed: Seed = 7
    """Seed of the abstracts."""
    train: int = Field(default=600, ge=10)
    """Abstracts in train."""
    dev: int = Field(default=100, ge=5)
    """Abstracts in dev."""
    test: int = Field(default=150, ge=5)
    """Abstracts in test."""


class QuestionSettings(EntitySettings):
    """Synthetic abstracts with questions about them."""


class BioasqSampleSettings(EntitySettings):
    """Synthetic questions in BioASQ's form, with snippets of synthetic abstracts."""


class SbertPaperSettings(Settings):
    """Sample files in the form of the SBERT paper's data sets; always the same."""


class HospitalSettings(Settings):
    """A synthetic hospital with tables in the form of MIMIC."""

    seed: Seed = 7
    """Seed of the hospital."""
    subjects: Positive = 500
    """Number of patients; each has two admissions or so, and each is the same however many patients there are."""
    version: Literal["III", "IV"] = "III"
    """Version of MIMIC; IV has discharge and radiology notes only."""
    forms: Annotated[list[Literal["table", "omop", "meds", "fhir"]], UsedWith(version="III")] = []
    """Other forms in which the same hospital is written beside MIMIC's: `table`, tables of its own; `omop`, tables of
    OMOP's CDM 5.3; `meds`, shards of MEDS 0.4; `fhir`, a bulk export of FHIR R4."""
    words: Annotated[int, Field(ge=100)] = 400
    """Words of a discharge summary, on average; it cannot be shorter than what it has to state, some 160."""
