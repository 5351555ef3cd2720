"""The settings of learning to answer questions, and of scoring it; free of torch."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bertrelay.settings import RUN_ONLY, WHEN_SET, ModelSource, Positive, Settings, refuse_idle
from bertrelay.training.settings import TrainingSettings
from domain.biomedical.answers.questions_settings import QuestionSource, Share


class QaSettings(TrainingSettings):
    """A BERT that learns where in a text the answer to a question stands.

    base: any BERT: a model of the hub, a folder that a pretraining or a stage like this wrote, a sentence encoder.
    train, dev: files of questions. `dev` chooses the best weights by F1, tells from when on "no answer" is the answer
        (where it has questions without one), and calibrates the probabilities.
    max_tokens: a text is read in windows of so many pieces, the question before each and special ones among them; 384,
        or as many positions as the base has.
    stride: how many pieces after the beginning of a window the next one begins; a third of `max_tokens` when left out.
        An answer of up to `max_tokens` less the question less this stands whole in some window.
    max_answer_tokens: no longer answer is given, in pieces.
    whole_words: whether no answer is given that begins or ends inside a word; right answers that do are learnt from all
        the same.
    empty_windows: how many windows without the answer a question brings to an epoch at most, drawn anew for each; all
        when left out. Long texts have many.
    dropout: in every layer and before the head; that of the base when left out.
    max_rejects: the share of questions that may be unusable.
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

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        if not self.dev:
            refuse_idle(self, "evaluate_every", "patience", because="there is no dev data")
        return self


class QaEvaluateSettings(Settings):
    """A model's answers scored on files of questions.

    published: F1 and exact match that others have published for these files, to stand beside ours in the report.
    max_rejects: the share of questions that may be unusable.
    batch_tokens: pieces in a batch, padding included; chosen by the device when absent.
    with_text: whether predictions and examples are written of sensitive data too, which hold its text.
    """

    model: ModelSource
    test: Annotated[list[QuestionSource], Field(min_length=1)]
    published: dict[str, Share] = {}
    max_rejects: Share = 0.01
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    batch_tokens: Annotated[Positive | None, RUN_ONLY] = None
    with_text: Annotated[bool, WHEN_SET] = False
