"""The stage `bertrelay.encode` and its settings. Torch is loaded when it runs."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from bertrelay.data.tables import Table
from bertrelay.device import ComputePrecision
from bertrelay.progress import log
from bertrelay.settings import BatchTokens, EncoderSource, Precision, Settings, UsedWith, refuse_idle
from bertrelay.stage import Metrics, StageContext

if TYPE_CHECKING:
    from bertrelay.encode_files import EncodedFile


class EncodeSettings(Settings):
    """The vectors of a table's sentences, in `vectors.npy` or `vectors.parquet`: row i for sentence i."""

    model: EncoderSource
    """Encoder: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    sentences: Table
    """One column of text: plain lines, `text` of a table, or the column it names."""
    output: Literal["npy", "parquet", "dataset"] = "npy"
    """`parquet` has the text beside the vectors, in columns `text` and `vector`. `dataset` reads a folder of Parquet
    files and writes another, `vectors`."""
    keep: Annotated[list[str], UsedWith(output="dataset")] = Field(default=[])
    """Columns of the input that the output has too."""
    vectors: Literal["float32", "int8", "binary"] = "float32"
    """Number format of the vectors: `int8` is each number times 127 over the largest of its vector, `binary` the signs,
    8 in a byte."""
    prompt: str | None = None
    """Name of the model's prompt that precedes each sentence; the model's default when absent."""
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None

    @model_validator(mode="after")
    def _dataset(self) -> Self:
        if self.output != "dataset":
            return self
        columns = self.sentences.columns or [""]
        if self.sentences.path is None or len(columns) > 1 or not isinstance(columns[0], str):
            raise ValueError(
                "output: a dataset is made of a folder of Parquet files and the name of one column of text"
            )
        refuse_idle(self.sentences, "format", "header", "quoted", because="a dataset has Parquet files")
        return self


def run(settings: EncodeSettings, context: StageContext) -> Metrics:
    """The stage `bertrelay.encode`: the vectors of a table's sentences, in `vectors.npy`, `.parquet` or a folder."""
    from bertrelay.inference.run_model import connect

    with connect(context.engine, context.process_group) as executor:
        return _encode(settings, context, context.precision(settings.precision, executor))


def _encode(settings: EncodeSettings, context: StageContext, precision: ComputePrecision) -> Metrics:
    from bertrelay.data.vectors import vector_shape
    from bertrelay.encode_files import encode_dataset, encode_file

    options: dict[str, Any] = {
        "cache": context.cache,
        "process_group": context.process_group,
        "engine": context.engine,
        "vectors": settings.vectors,
        "prompt_name": settings.prompt,
        "precision": precision,
        "batch_tokens": settings.batch_tokens,
    }
    if settings.output == "dataset":
        column = str((settings.sentences.columns or ["text"])[0])
        source, output = str(settings.sentences.path), str(context.output / "vectors")
        return _metrics(encode_dataset(settings.model, source, output, column=column, keep=settings.keep, **options))
    file = context.output / f"vectors.{settings.output}"
    if file.is_file():  # whole, and the process was killed after it
        sentences, dim = vector_shape(file, settings.vectors)
        return {"sentences": sentences, "dim": dim, "sentences_per_second": None}
    return _metrics(encode_file(settings.model, settings.sentences, file, **options))


def _metrics(encoded: "EncodedFile") -> Metrics:
    log(f"the vectors are computed in {encoded.precision}")
    return {name: value for name, value in encoded._asdict().items() if name != "precision"}
