"""Settings of the stage that writes a hospital."""

from typing import Annotated, Literal

from pydantic import Field

from bertrelay.settings import Positive, Seed, Settings


class HospitalSettings(Settings):
    """How large a made-up hospital, and in whose form its tables are.

    seed: another seed, another hospital.
    subjects: patients; each has two admissions or so, and each is the same however many there are.
    version: of MIMIC; IV has discharge and radiology notes alone.
    words: of a discharge summary, on average; it cannot be shorter than what it has to say, some 160.
    """

    seed: Seed = 7
    subjects: Positive = 500
    version: Literal["III", "IV"] = "III"
    words: Annotated[int, Field(ge=100)] = 400
