"""The settings of tagging documents; free of torch."""

from typing import Annotated, Literal

from pydantic import Field

from bertrelay.settings import RUN_ONLY, InputFile, ModelSource, Positive, Settings
from domain.biomedical.formats.front import FormatName, WrittenName


class TagSettings(Settings):
    """Documents whose entities a model finds.

    documents: a file or folder; `format` when its name does not tell it.
    output: the format that is written.
    max_rejects: the share of documents that may be unusable, and that the output format may be unable to hold.
    batch_tokens: pieces in a batch, padding included; chosen by the device when absent.
    with_text: allows a page of sensitive documents, as it shows their text.
    """

    model: ModelSource
    documents: InputFile
    format: FormatName | None = None
    output: WrittenName = "jsonl"
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None
    with_text: Annotated[bool, RUN_ONLY] = False
