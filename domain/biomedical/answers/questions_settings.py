"""The settings of questions: where they are read, and how they are split; free of torch."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from bertrelay.settings import WHEN_SET, DataSource, InputFile, Seed, Settings
from domain.biomedical.answers.question_files import QuestionFormat

SPLITS = ("train", "dev", "test")

Share = Annotated[float, Field(ge=0, le=1)]


class QuestionSource(DataSource):
    """A file of questions.

    format: found by what the file holds when absent.
    """

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
    """Questions read, their answers put where they stand, and split by article into train, dev and test.

    split: the shares. Which split an article is in depends on its name, the seed and the shares alone.
    max_rejects: the share of the questions that may be unusable.
    with_text: whether the alignment of sensitive data is written question by question too, by their ids.
    """

    files: Annotated[list[QuestionSource], Field(min_length=1)]
    split: SplitShares = SplitShares()
    seed: Seed = 1
    max_rejects: Share = 0.01
    with_text: Annotated[bool, WHEN_SET] = False
