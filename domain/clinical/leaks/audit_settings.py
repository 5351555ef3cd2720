"""The settings of an audit; free of torch and pandas."""

from typing import Annotated, Literal

from pydantic import Field

from bertrelay.settings import InputFile, Settings

NEAR = 0.8
LEAST_NEAR = 0.7  # texts that are less alike are not surely found


class AuditSettings(Settings):
    """Which files are looked at for what their splits share; all of them together.

    files: Parquet with a column `split`, and `subject_id`, `hadm_id` and `text` as far as they have them.
    near: texts that share so much of their runs of five words are near-duplicates.
    leaks: stop the run at a leak, or only tell it.
    """

    files: Annotated[list[InputFile], Field(min_length=1)]
    near: Annotated[float, Field(ge=LEAST_NEAR, le=1)] = NEAR
    leaks: Literal["stop", "tell"] = "stop"
