"""The settings of answering questions; free of torch."""

from typing import Annotated, Literal

from pydantic import Field

from bertrelay.settings import RUN_ONLY, InputFile, ModelSource, Positive, Settings
from domain.biomedical.answers.questions_settings import Share

InputFormat = Literal["csv", "tsv", "jsonl", "parquet", "squad", "bioasq"]
OutputFormat = Literal["jsonl", "csv", "parquet"]

CANDIDATES = 20
"""So many spans of a question are kept, and share what its probabilities add up to; no more can be told."""


class AnswerSettings(Settings):
    """Questions that a model answers from the contexts beside them.

    questions: a table with a row for each question, or SQuAD's or BioASQ's JSON; `format` when its name does not tell.
    id, question, context: columns of a table; without `id` its column `id`, or else the lines count.
    output: the format that is written. page: whether an HTML page of contexts with their answers is written as well.
    top: the most candidates told of a question, 20 at most.
    whole_words: whether an answer may neither begin nor end inside a word; as the model has it when absent.
    max_rejects: the share of questions that may be unusable.
    batch_tokens: pieces in a batch, padding included; chosen by the device when absent.
    with_text: allows a page of sensitive questions, as it shows their text.
    """

    model: ModelSource
    questions: InputFile
    format: InputFormat | None = None
    id: str | None = None
    question: str = "question"
    context: str = "context"
    output: OutputFormat = "jsonl"
    page: bool = False
    top: Annotated[int, Field(ge=1, le=CANDIDATES)] = 5
    whole_words: bool | None = None
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    max_rejects: Share = 0.01
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None
    with_text: Annotated[bool, RUN_ONLY] = False
