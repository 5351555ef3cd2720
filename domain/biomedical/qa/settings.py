"""Settings of splitting questions, of training, evaluation and answering; free of torch."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import (
    RUN_ONLY,
    AnswererSource,
    BatchTokens,
    DataSource,
    InputFile,
    MaxRejects,
    ModelSource,
    Positive,
    Precision,
    Seed,
    Settings,
    UsedWith,
)
from bertrelay.training.settings import TrainingSettings

SPLITS = ("train", "dev", "test")
MAX_TOKENS = 384
"""Longest window, in subwords, of a training or a model that states none."""
LIST_MARGIN = 2.3
"""How far the score of an entry of a list may be below the best one without list questions in dev: it then is a tenth
as likely, as scores are logarithms."""
CANDIDATES = 20
"""Most candidate spans of a question; their probabilities, with that of no answer, add up to 1."""

QuestionFormat = Literal["squad", "bioasq", "jsonl"]
AnswerType = Literal["factoid", "list", "yesno"]
"""The form of an exact answer, by BioASQ's names."""
TableFormat = Literal["csv", "tsv", "jsonl", "parquet"]
InputFormat = Literal[TableFormat, QuestionFormat]

Share = Annotated[float, Field(ge=0, le=1)]


def default_overlap(max_tokens: int) -> int:
    """Two thirds of `max_tokens`: windows begin a third of one apart."""
    return max_tokens - max(1, max_tokens // 3)


class QuestionSource(DataSource):
    """A file of questions."""

    path: InputFile
    """File, or `@stage/path`."""
    format: QuestionFormat | None = None
    """Format of the file; by its content when absent."""
    types: Annotated[list[AnswerType], Field(min_length=1)] = ["factoid"]
    """Types of BioASQ's questions that are read: `factoid`, `list`, `yesno`."""


class SplitShares(Settings):
    """Fractions of the articles in each split; they add up to 1."""

    train: Share = 0.8
    """Fraction of the articles in train."""
    dev: Share = 0.1
    """Fraction of the articles in dev."""
    test: Share = 0.1
    """Fraction of the articles in test."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        total = self.train + self.dev + self.test
        if abs(total - 1) > 1e-9:
            raise ValueError(f"train, dev and test: expected fractions that add up to 1, found {total:.4g}")
        return self


class QuestionsSettings(Settings):
    """Questions with their answers located in the context, split by article into train, dev and test."""

    files: Annotated[list[QuestionSource], Field(min_length=1)]
    """Files of questions."""
    split: SplitShares = SplitShares()
    """Fractions `train`, `dev` and `test`. The split of an article depends only on its name, the seed and the
    fractions."""
    seed: Seed = 1
    """Seed of the split."""
    max_rejects: MaxRejects = 0.01
    """Fraction of the questions that may be unusable."""
    with_text: bool = False
    """Write the alignment of sensitive data by the ids of its questions, too."""


class QaSettings(TrainingSettings):
    """A BERT trained to find the answer to a question in a text."""

    base: ModelSource
    """Any BERT: a model of the hub, a folder of domain.pretrain or domain.qa, a sentence encoder."""
    train: Annotated[list[QuestionSource], Field(min_length=1)]
    """Files of questions."""
    dev: list[QuestionSource] = []
    """Files of questions that choose the best weights by F1, set the threshold of "no answer" (where there are
    questions without one), and calibrate the probabilities."""
    max_tokens: Annotated[int, Field(ge=16)] | None = None
    """Longest window in which a text is read, in subwords, question and special tokens among them; when absent 384, or
    as many positions as the base has."""
    overlap: Positive | None = None
    """Subwords that a window shares with the next one, question and special tokens among them; two thirds of
    `max_tokens` when absent. An answer of up to `overlap` less the question and the special tokens is whole in some
    window."""
    max_answer_tokens: Positive = 30
    """Longest answer, in subwords."""
    whole_words: bool = True
    """Give no answer that begins or ends inside a word; gold answers that do are still trained on."""
    empty_windows: Annotated[int, Field(ge=0)] | None = None
    """Most windows without the answer of each question in an epoch, drawn again in each epoch; all when absent. Long
    texts have many."""
    evaluate_every: Annotated[Positive | None, UsedWith("dev")] = None
    patience: Annotated[Positive | None, UsedWith("dev")] = None
    epochs: Positive = 2
    batch_tokens: Positive | None = 4096
    learning_rate: Annotated[float, Field(gt=0)] = 3e-5
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Dropout in every layer and before the head; that of the base when absent."""
    max_rejects: MaxRejects = 0.01
    """Fraction of questions that may be unusable."""
    max_swapped: Share = 0.2
    """Fraction of questions that may be longer than their contexts."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_stride(cls, values: Any) -> Any:
        """Raises ValueError for `stride`, the step from window to window, with the overlap of the same windows."""
        if isinstance(values, dict) and "stride" in values:
            size, stride = values.get("max_tokens", MAX_TOKENS), values["stride"]
            is_step = isinstance(size, int) and isinstance(stride, int) and 0 < stride < size
            number = f"{size - stride}, which is max_tokens, {size}, less {stride}" if is_step else "max_tokens less it"
            if "max_tokens" not in values:
                number += ", or less by as much as the base has fewer positions"
            raise ValueError(
                f"stride: expected the overlap of windows in place of their step; write overlap = {number}"
            )
        return values


class QaEvaluateSettings(Settings):
    """A model's answers scored on files of questions."""

    model: AnswererSource
    """Question answerer: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    test: Annotated[list[QuestionSource], Field(min_length=1)]
    """Files of questions."""
    published: dict[str, Share] = {}
    """Published F1 and exact match of other models on these files, shown beside the model's in the report."""
    max_rejects: MaxRejects = 0.01
    """Fraction of questions that may be unusable."""
    max_swapped: Share = 0.2
    """Fraction of questions that may be longer than their contexts."""
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None
    """Subwords in a batch, padding included; chosen by the device when absent."""
    with_text: bool = False
    """Write predictions and examples of sensitive data too, which hold its text."""


class BioasqOptions(Settings):
    """Options of answering the questions of a BioASQ file from their snippets."""

    whole_words: bool | None = None
    """Give no answer that begins or ends inside a word; as the model has it when absent."""
    max_rejects: MaxRejects = 0.01
    """Fraction of questions that may be unusable."""
    precision: Precision = "auto"
    batch_tokens: BatchTokens = None
    """Subwords in a batch, padding included; chosen by the device when absent."""


class BioasqSettings(BioasqOptions):
    """A BioASQ file whose questions a model answers from their snippets, for its evaluator."""

    model: AnswererSource
    """Question answerer: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    questions: InputFile
    """BioASQ's JSON, of phase B."""


class AnswerOptions(BioasqOptions):
    """Options of answering questions from the contexts beside them."""

    top: Annotated[int, Field(ge=1, le=CANDIDATES)] = 5
    """Most candidates of a question, 20 at most."""
    with_text: Annotated[bool, RUN_ONLY] = False
    """Allow a page of sensitive questions, as it shows their text."""


class AnswerSettings(AnswerOptions):
    """Questions that a model answers from the contexts beside them."""

    model: AnswererSource
    """Question answerer: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    questions: InputFile
    """A table with a row for each question, or SQuAD's or BioASQ's JSON."""
    format: InputFormat | None = None
    """Format of the questions; by the file's name and content when absent."""
    id: str | None = None
    """Column of the id, of a table; when absent its column `id`, or else the lines count."""
    question: str = "question"
    """Column of the question, of a table."""
    context: str = "context"
    """Column of the context, of a table."""
    output: Literal["jsonl", "csv", "parquet"] = "jsonl"
    """Format of the file that is written."""
    page: bool = False
    """Write an HTML page of contexts with their answers as well."""
    keep: list[str] = []
    """Fields of JSONL that the output, which is JSONL, has too."""
