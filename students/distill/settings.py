"""The settings of distillation; free of torch."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge
from pydantic import Discriminator, Field, Tag, model_validator

from bertrelay.data.tables import Table
from bertrelay.model.settings import NewEncoder, VocabularySize, kind_of_base
from bertrelay.settings import (
    MaxRejects,
    MaxTokens,
    ModelSource,
    Positive,
    Settings,
    UnusedWith,
    UsedWith,
    refuse_idle,
)
from bertrelay.training.settings import TrainingSettings
from students.parallel.settings import (
    BY_LANGUAGE,
    EnglishSource,
    Filters,
    LanguageChoice,
    ParallelSources,
    UnlimitedSource,
    UnlimitedSources,
)
from students.settings import Prompt, Teacher, TeacherVectors, prompt_problems

Weight = Annotated[float, Ge(0)]


class TeacherCopy(Settings):
    """A student with the teacher's layers and a new multilingual vocabulary."""

    layers_of: Literal["teacher"]
    """`teacher`: copy its layers."""
    vocabulary: VocabularySize
    """Subwords trained on the corpus; each starts as the mean of the teacher's subwords of its text."""


class StaticBase(Settings):
    """A student without a network: a table of token vectors, whose mean is the vector of a text."""

    static: ModelSource
    """Encoder whose tokenizer the student has; each token starts as its vector of this token alone."""
    dim: Positive | None = None
    """Dimensions of the table, before a linear map to the teacher's; when absent the table has the teacher's vectors
    itself, without a map."""


def _kind_of_base(value: Any) -> str | None:
    for key, kind, settings in (("layers_of", "copy", TeacherCopy), ("static", "static", StaticBase)):
        if isinstance(value, settings) or (isinstance(value, dict) and key in value):
            return kind
    return kind_of_base(value)


Base = Annotated[
    Annotated[ModelSource, Tag("model")]
    | Annotated[NewEncoder, Tag("new")]
    | Annotated[TeacherCopy, Tag("copy")]
    | Annotated[StaticBase, Tag("static")],
    Discriminator(
        _kind_of_base,
        custom_error_type="student_base",
        custom_error_message="expected a model such as 'xlm-roberta-base', a size such as "
        "{ layers = 6, dim = 384, heads = 12, vocabulary = 32000 }, { layers_of = 'teacher', vocabulary = 16000 } or "
        "{ static = 'intfloat/multilingual-e5-small', dim = 256 }",
    ),
]


class Objectives(Settings):
    """Weights of the losses of a student. Each loss is a mean over the batch; the weighted sum is minimised."""

    mse: Weight = 1.0
    """Squared distance to the teacher's vector, in units of the targets' variance."""
    cosine: Weight = 0.0
    """1 − the cosine with the teacher's vector."""
    contrastive: Weight = 0.0
    """InfoNCE of an English sentence and its translation among the other sentences of the batch, in both directions;
    the English and all its translations come in one batch."""
    ranking: Weight = 0.0
    """Ranking of the teacher's vector that a sentence learns and those of `candidates` other sentences: the KL
    divergence of the softmax of its cosines from the softmax of the teacher's (Fang et al. 2021, SEED)."""
    retention: Weight = 1.0
    """Squared distance to the start's vector, of the texts that are `retained`, in units of their variance."""
    temperature: Annotated[float, Field(gt=0), UsedWith("contrastive", "ranking")] = 0.05
    """Number by which cosines are divided before the softmax of `contrastive` and of `ranking`."""
    candidates: Annotated[Positive, UsedWith("ranking")] = 8192
    """Sentences that the teacher has encoded for `ranking`, the same in every step."""
    dimensions: Annotated[list[Positive], UsedWith("contrastive")] = []
    """Matryoshka: `contrastive` is its mean over vectors cut to these dimensions, and whole ones."""

    @model_validator(mode="after")
    def _one_at_least(self) -> Self:
        weights = [name for name, field in type(self).model_fields.items() if Ge(0) in field.metadata]
        weights.remove("retention")  # it learns nothing of the teacher
        if not any(getattr(self, name) for name in weights):
            raise ValueError(f"expected a weight above 0 for {', '.join(weights[:-1])} or {weights[-1]}")
        return self


class DistillSettings(LanguageChoice, TrainingSettings):
    """A student that learns the teacher's vector of English, for the English and for its translations."""

    teacher: Teacher
    """Encoder, or the vectors that one has made, `{ vectors = "vectors.parquet" }`."""
    base: Base
    """Start of the student: a pretrained model, a size, the teacher's layers, or a table of token vectors."""
    teacher_prompt: Prompt | None = None
    """Name of the teacher's prompt that precedes each sentence it encodes, or `{ text = "query: " }`; the teacher's
    default when absent."""
    own_vectors: bool = False
    """A translation learns the teacher's vector of itself, as a multilingual teacher gives it, and not that of its
    English: for a student that is to be like a larger one."""
    student_prompt: Prompt | None = None
    """Name of the base's prompt that precedes each sentence, or `{ text = "query: " }`; none when absent. It is the
    default of the student, so that `encode` uses it too."""
    trim_vocabulary: bool = False
    """Leave out the subwords of a pretrained base that `parallel` does not use, before training."""
    layers: Positive | None = None
    """Layers of the base to keep; each time the one whose removal moves the vectors least is left out."""
    intermediate_size: Positive | None = None
    """Neurons of each feed-forward layer of the base to keep, those that its output depends on most. With
    `trim_vocabulary`, `layers` or this, sizes before and after are metrics."""
    head_neurons: Positive | None = None
    """Neurons of a hidden layer between the base's vectors and the student's, fitted before the first step; when absent
    the map is linear."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Dropout in every layer while training; the base's own when absent."""
    frozen_layers: Annotated[int, Field(ge=0)] | None = None
    """The token embeddings and this many of the lowest layers keep their weights; 0: only the embeddings."""
    average_with_start: bool = False
    """Choose the weights between start and end that are nearest to the best in the accuracy on `dev`, in that on
    `dev_untrained` and in the cosine to the teacher there, by the worst of the three; within 0.002 those nearest the
    end."""
    keep_directions: bool = False
    """After training, add to the head a linear map that keeps all directions of the network's vectors, with the weight
    that is chosen as `average_with_start` chooses."""
    objectives: Objectives = Objectives()
    """Weights of the losses."""
    retained: list[Table] = []
    """Texts in any language, translated or not, whose vectors stay those of the start; of a table the column that is
    named, else `text`."""
    parallel: Annotated[ParallelSources, Field(min_length=1)]
    """Corpora to train on."""
    filters: Filters = Filters()
    """Pairs of `parallel`, and sentences of `english`, to leave out."""
    english: list[EnglishSource] = []
    """English sentences without translations: each learns the teacher's vector of itself."""
    english_per_epoch: Annotated[Positive | None, UsedWith("english"), UnusedWith("budget_minutes")] = None
    """Sentences of `english` in an epoch, drawn from its sources by weight; as many as the sources have when absent."""
    budget_minutes: Annotated[float, Field(gt=0)] | None = None
    """Minutes for the teacher's vectors and the steps. Sentences and epochs are then planned, by rates measured
    before; start, evaluations and averages come on top."""
    epochs: Annotated[Positive, UnusedWith("budget_minutes")] = 1
    dev: UnlimitedSources = []
    """Held-out corpora, whose English is taken out of `parallel`; without any, `dev_sentences` English sentences are
    held out of `parallel`, in every language."""
    dev_sentences: Annotated[int, Field(ge=0), UnusedWith("dev")] = 1000
    """English sentences to hold out of `parallel`, in every language; 0 for no dev data."""
    dev_untrained: Annotated[
        list[UnlimitedSource], BY_LANGUAGE, UsedWith("dev", "dev_sentences", "average_with_start", "keep_directions")
    ] = []
    """Held-out corpora of other domains and languages than `parallel`, whatever `languages` are. They choose the
    weights as much as those of `dev`; without any, 150 sentences of many domains that come with the project, for a
    pretrained base in 21 languages, for a new one in those that are trained."""
    evaluate_every: Annotated[Positive | None, UsedWith("dev", "dev_sentences")] = None
    patience: Annotated[Positive | None, UsedWith("dev", "dev_sentences")] = None
    max_tokens: MaxTokens = 128
    """Longest input, special tokens included."""
    batch_tokens: Positive | None = 2048
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    max_rejects: MaxRejects = 0.01

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        if isinstance(self.base, TeacherCopy) and isinstance(self.teacher, TeacherVectors):
            raise ValueError("base: vectors have no layers; expected a model or the size of a new one")
        if isinstance(self.teacher, TeacherVectors):
            refuse_idle(self, "teacher_prompt", because="the teacher is a file of vectors")
        if isinstance(self.base, StaticBase):
            names = ("layers", "intermediate_size", "dropout", "frozen_layers", "max_tokens")
            refuse_idle(self, *names, because="a table of token vectors has no layers and no longest input")
            refuse_idle(self, "budget_minutes", because="a table learns in minutes anyway; give epochs")
            if self.base.dim is None:
                because = "the table has the student's vectors; give base.dim too"
                refuse_idle(self, "head_neurons", "keep_directions", because=because)
        elif not isinstance(self.base, ModelSource):
            refuse_idle(self, "trim_vocabulary", because="the vocabulary of this base is trained on the corpus")
            refuse_idle(self, "head_neurons", because="this base is not pretrained, so there is nothing to fit it to")
        if isinstance(self.base, NewEncoder):
            refuse_idle(
                self,
                *("frozen_layers", "average_with_start", "keep_directions"),
                because="a new network knows nothing to keep",
            )
        if not self.retained:
            refuse_idle(self.objectives, "retention", because="there are no `retained` texts")
        return self

    def input_problems(self) -> Iterator[tuple[str, str]]:
        yield from prompt_problems({"teacher_prompt": self.teacher, "student_prompt": self.base}, self)

    @property
    def has_dev(self) -> bool:
        """Returns true if held-out sentences of the trained corpora choose weights."""
        return bool(self.dev or self.dev_sentences)
