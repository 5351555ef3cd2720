"""The stage `bertrelay.encode` and its settings. Torch is loaded when it runs."""

from typing import Annotated, Literal

from bertrelay.data.tables import Table
from bertrelay.settings import RUN_ONLY, ModelSource, Positive, Precision, Settings
from bertrelay.stage import Metrics, StageContext


class EncodeSettings(Settings):
    """The vectors of a table's sentences, in `vectors.npy` or `vectors.parquet`: row i for sentence i.

    sentences: one column of text: plain lines, `text` of a table, or the column it names.
    output: `parquet` has the text beside the vectors, in columns `text` and `vector`.
    vectors: in fewer bits: `int8`, each times 127 over its largest element, or `binary`, the signs, 8 in a byte.
    prompt: which of the model's prompts precedes each sentence; the model's default when absent.
    batch_tokens: the most tokens in a batch, padding included; chosen by the device when absent.
    """

    model: ModelSource
    sentences: Table
    output: Literal["npy", "parquet"] = "npy"
    vectors: Literal["float32", "int8", "binary"] = "float32"
    prompt: str | None = None
    precision: Precision = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None


def run(settings: EncodeSettings, context: StageContext) -> Metrics:
    """The stage `bertrelay.encode`: the vectors of a table's sentences, in `vectors.npy` or `vectors.parquet`."""
    from bertrelay.data.vectors import shape_of
    from bertrelay.encode_files import encode_file

    output = context.output / f"vectors.{settings.output}"
    if output.is_file():  # whole, and the process was killed after it
        sentences, dim = shape_of(output, settings.vectors)
        return {"sentences": sentences, "dim": dim, "sentences_per_second": None}
    encoded = encode_file(
        settings.model,
        settings.sentences,
        output,
        cache=context.cache,
        process_group=context.process_group,
        engine=context.engine,
        vectors=settings.vectors,
        prompt_name=settings.prompt,
        precision=settings.precision,
        batch_tokens=settings.batch_tokens,
    )
    return {**encoded._asdict()}
