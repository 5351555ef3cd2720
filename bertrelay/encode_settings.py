"""The settings of the stage that encodes a file; free of torch."""

from typing import Annotated, Literal

from bertrelay.data.tables import Table
from bertrelay.settings import RUN_ONLY, ModelSource, Positive, Settings

Metric = Literal["cosine", "dot", "euclidean", "manhattan"]
"""How two vectors are compared."""


class EncodeSettings(Settings):
    """The vectors of a table's sentences, in `vectors.npy` or `vectors.parquet`: row i for sentence i.

    sentences: one column of text: plain lines, `text` of a table, or the column it names.
    output: `parquet` has the text beside the vectors, in columns `text` and `vector`.
    prompt: which of the model's prompts stands before each sentence; the model's default when absent.
    batch_tokens: the most tokens in a batch, padding included; chosen by the device when absent.
    """

    model: ModelSource
    sentences: Table
    output: Literal["npy", "parquet"] = "npy"
    prompt: str | None = None
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None
