"""The settings of the students' stages; free of torch."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from bertrelay.encoder_settings import NewEncoder, VocabularySize
from bertrelay.settings import MaxTokens, ModelSource, Positive, Settings, refuse_idle
from bertrelay.training.settings import TrainingSettings
from students.sources import Filters, ParallelSource
from teachers.settings import StsTable


class TeacherCopy(Settings):
    """A student with the teacher's layers and a new multilingual vocabulary.

    vocabulary: pieces learnt from the corpus; each begins as the mean of the teacher's pieces of its text.
    """

    layers_of: Literal["teacher"]
    vocabulary: VocabularySize


def _kind_of_base(value: Any) -> str | None:
    if isinstance(value, str):
        return "model"
    if isinstance(value, TeacherCopy) or (isinstance(value, dict) and "layers_of" in value):
        return "copy"
    return "new" if isinstance(value, dict | NewEncoder) else None


Base = Annotated[
    Annotated[ModelSource, Tag("model")] | Annotated[NewEncoder, Tag("new")] | Annotated[TeacherCopy, Tag("copy")],
    Discriminator(
        _kind_of_base,
        custom_error_type="student_base",
        custom_error_message="expected a model such as 'xlm-roberta-base', a size such as "
        "{ layers = 6, dim = 384, heads = 12, vocabulary = 32000 }, or { layers_of = 'teacher', vocabulary = 16000 }",
    ),
]


class DistillSettings(TrainingSettings):
    """A student that learns to give, for English and for its translations, the teacher's vector of the English.

    base: what it starts from: a pretrained model, a size, or the teacher's layers.
    trim_vocabulary: leave out the pieces of a pretrained base that `parallel` does not use, before anything is learnt.
    layers: keep so many of the base's layers, evenly spread. With either, sizes are told before and after.
    dropout: while training, in every layer; the base's own when absent.
    parallel: the corpora; `filters` say which of their pairs are left out.
    dev: held-out corpora, whose English is taken out of `parallel`; without any, `dev_sentences` English sentences
        are held out of `parallel`, in every language.
    max_tokens: the longest input, special tokens included.
    max_rejects: the share of records that may be unusable.
    """

    teacher: ModelSource
    base: Base
    trim_vocabulary: bool = False
    layers: Positive | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    parallel: Annotated[list[ParallelSource], Field(min_length=1)]
    filters: Filters = Filters()
    dev: list[ParallelSource] = []
    dev_sentences: Annotated[int, Field(ge=0)] = 1000
    max_tokens: MaxTokens = 128
    batch_tokens: Positive | None = 2048
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        if not isinstance(self.base, ModelSource):
            refuse_idle(self, "trim_vocabulary", because="the vocabulary of this base is learnt from the corpus")
        if self.dev:
            refuse_idle(self, "dev_sentences", because="`dev` gives the held-out sentences")
        elif self.dev_sentences == 0:
            refuse_idle(self, "evaluate_every", "patience", because="there is no dev data: dev_sentences is 0")
        return self


class EvaluateSettings(Settings):
    """A student on held-out sentences: translation accuracy, distance to the teacher, STS within and across languages.

    teacher: gives `mse/<language>`; left out, there is none.
    lookup: training corpora from which word-for-word lookup learns its dictionary; its accuracy is told beside.
    picture_sentences: how many sentences, in every language, the picture of similarities shows; 0 for none.
    """

    model: ModelSource
    teacher: ModelSource | None = None
    parallel: list[ParallelSource] = []
    sts: dict[str, StsTable] = {}
    lookup: list[ParallelSource] = []
    picture_sentences: Annotated[int, Field(ge=0)] = 4
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _something_to_score(self) -> Self:
        if not (self.parallel or self.sts):
            raise ValueError("expected `parallel` or `sts` (or both): without them there is nothing to score")
        if not self.parallel:
            refuse_idle(self, "teacher", "lookup", "picture_sentences", because="it needs the sentences of `parallel`")
        return self
