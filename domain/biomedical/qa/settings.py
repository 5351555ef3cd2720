"""The settings of questions: where they are read, and how they are split; free of torch."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import (
    RUN_ONLY,
    WHEN_SET,
    AnswererSource,
    DataSource,
    InputFile,
    ModelSource,
    Positive,
    Precision,
    Seed,
    Settings,
    refuse_idle,
)
from bertrelay.training.settings import TrainingSettings

SPLITS = ("train", "dev", "test")
CANDIDATES = 20
"""Spans that are kept of a question; their probabilities add up to 1."""

QuestionFormat = Literal["squad", "bioasq", "jsonl"]
TableFormat = Literal["csv", "tsv", "jsonl", "parquet"]
InputFormat = Literal[TableFormat, QuestionFormat]

Share = Annotated[float, Field(ge=0, le=1)]


class QuestionSource(DataSource):
    """A file of questions, whose `format` is found by its content when absent."""

    path: InputFile
    format: QuestionFormat | None = None


class SplitShares(Settings):
    """Which share of the articles each split has; they add up to 1."""

    train: Share = 0.8
    dev: Share = 0.1
    test: Share = 0.1

    @model_validator(mode="after")
    def _whole(self) -> Self:
        total = self.train + self.dev + self.test
        if abs(total - 1) > 1e-9:
            raise ValueError(f"train, dev and test: expected shares that add up to 1, found {total:.4g}")
        return self


class QuestionsSettings(Settings):
    """Questions with their answers located in the context, split by article into train, dev and test.

    split: the shares. Which split an article is in depends on its name, the seed and the shares alone.
    max_rejects: the share of the questions that may be unusable.
    with_text: whether the alignment of sensitive data is written question by question too, by their ids.
    """

    files: Annotated[list[QuestionSource], Field(min_length=1)]
    split: SplitShares = SplitShares()
    seed: Seed = 1
    max_rejects: Share = 0.01
    with_text: Annotated[bool, WHEN_SET] = False


class QaSettings(TrainingSettings):
    """A BERT that is trained to find the answer to a question in a text.

    base: any BERT: a model of the hub, a folder that a pretraining or a stage like this wrote, a sentence encoder.
    train, dev: files of questions. `dev` chooses the best weights by F1, sets the threshold of "no answer"
        (where it has questions without one), and calibrates the probabilities.
    max_tokens: of the windows in which a text is read, in subwords, question and special tokens among them; 384, or
        as many positions as the base has.
    stride: subwords from the beginning of a window to that of the next one; a third of `max_tokens` when left out.
        An answer of up to `max_tokens` less the question less this is whole in some window.
    max_answer_tokens: no longer answer is given, in subwords.
    whole_words: whether no answer is given that begins or ends inside a word; right answers that do are trained on all
        the same.
    empty_windows: how many windows without the answer a question brings to an epoch at most, drawn anew for each; all
        when left out. Long texts have many.
    dropout: in every layer and before the head; that of the base when left out.
    max_rejects: the share of questions that may be unusable.
    max_swapped: the share of questions that may be longer than their contexts.
    """

    base: ModelSource
    train: Annotated[list[QuestionSource], Field(min_length=1)]
    dev: list[QuestionSource] = []
    max_tokens: Annotated[int, Field(ge=16)] | None = None
    stride: Positive | None = None
    max_answer_tokens: Positive = 30
    whole_words: bool = True
    empty_windows: Annotated[int, Field(ge=0)] | None = None
    epochs: Positive = 2
    batch_tokens: Positive | None = 4096
    learning_rate: Annotated[float, Field(gt=0)] = 3e-5
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    max_rejects: Share = 0.01
    max_swapped: Annotated[Share, WHEN_SET] = 0.2

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        if not self.dev:
            refuse_idle(self, "evaluate_every", "patience", because="there is no dev data")
        return self


class QaEvaluateSettings(Settings):
    """A model's answers scored on files of questions.

    published: F1 and exact match that others have published for these files, shown beside ours in the report.
    max_rejects: the share of questions that may be unusable.
    max_swapped: the share of questions that may be longer than their contexts.
    batch_tokens: subwords in a batch, padding included; chosen by the device when absent.
    with_text: whether predictions and examples are written of sensitive data too, which hold its text.
    """

    model: AnswererSource
    test: Annotated[list[QuestionSource], Field(min_length=1)]
    published: dict[str, Share] = {}
    max_rejects: Share = 0.01
    max_swapped: Annotated[Share, WHEN_SET] = 0.2
    precision: Precision = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None
    with_text: Annotated[bool, WHEN_SET] = False


class AnswerOptions(Settings):
    """How questions are answered from the contexts beside them.

    top: the most candidates of a question, 20 at most.
    whole_words: whether an answer may neither begin nor end inside a word; as the model has it when absent.
    max_rejects: the share of questions that may be unusable.
    with_text: allows a page of sensitive questions, as it shows their text.
    batch_tokens: subwords in a batch, padding included; chosen by the device when absent.
    """

    top: Annotated[int, Field(ge=1, le=CANDIDATES)] = 5
    whole_words: bool | None = None
    max_rejects: Share = 0.01
    with_text: Annotated[bool, RUN_ONLY] = False
    precision: Precision = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None


class AnswerSettings(AnswerOptions):
    """Questions that a model answers from the contexts beside them.

    questions: a table with a row for each question, or SQuAD's or BioASQ's JSON; `format` if unclear.
    id, question, context: columns of a table; without `id` its column `id`, or else the lines count.
    output: the format that is written. page: whether an HTML page of contexts with their answers is written as well.
    keep: fields of JSONL that the output, which is JSONL, has too.
    """

    model: AnswererSource
    questions: InputFile
    format: InputFormat | None = None
    id: str | None = None
    question: str = "question"
    context: str = "context"
    output: Literal["jsonl", "csv", "parquet"] = "jsonl"
    page: bool = False
    keep: Annotated[list[str], WHEN_SET] = []
