"""Settings of the evaluation of encoders: similarity test sets and tasks of mteb; free of torch."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from bertrelay.languages import EachOnce, LanguageCode
from bertrelay.settings import (
    EncoderSource,
    MaxRejects,
    Positive,
    Precision,
    Settings,
    Source,
    refuse_idle,
)
from teachers.settings import Poolings, StsSets, StsTable


class StsSettings(Settings):
    """The evaluation of an encoder on STS sets: Spearman of cosine, without training."""

    model: EncoderSource
    """Encoder: a model folder, `@stage/model`, `package:name/path` or a hub id."""
    sts: Annotated[StsSets, Field(min_length=1)]
    """STS sets by name."""
    dimensions: list[Positive] = []
    """Further numbers of dimensions to which vectors are cut and scored."""
    precision: Precision = "auto"
    max_rejects: MaxRejects = 0.01


class MtebTask(Source):
    """The name of a task or benchmark of the package mteb, which downloads its data from the hub."""

    @classmethod
    def parse(cls, value: str) -> Self:
        if not value.strip() or value.startswith(("/", "@")):
            raise ValueError(f"expected the name of a task of mteb, such as STS17, found {value!r}")
        return cls(value)

    @property
    def hub_id(self) -> str:
        return self

    @property
    def revision(self) -> str:
        """Constant, as the package pins the revision of each data set."""
        return "mteb"


class LocalTask(StsTable):
    """A task of mteb's kind on local files; several of one `task` are its subsets."""

    task: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    """Name of the task in results."""
    type: Literal["sts", "bitext"]
    """`sts` reads two sentences and their gold similarity, `bitext` two sentences that translate each other."""
    languages: Annotated[list[LanguageCode], Field(min_length=1, max_length=2)]
    """Languages of the two sentences; one where both have the same."""

    @model_validator(mode="after")
    def _two_languages(self) -> Self:
        if self.type == "bitext" and len(set(self.languages)) < 2:
            raise ValueError(f"languages: expected two for translations, found {', '.join(self.languages)}")
        if self.type == "bitext":
            refuse_idle(self, "scores", "where", "reversed", because="translations have no scores")
        return self

    @property
    def subset(self) -> str:
        """The name among the subsets of its task: `de`, `en-de`."""
        return "-".join(self.languages)


def _different_subsets(local: list[LocalTask]) -> list[LocalTask]:
    subsets = [(table.task, table.subset) for table in local]
    if repeated := [f"{task} in {subset}" for task, subset in subsets if subsets.count((task, subset)) > 1]:
        raise ValueError(f"expected each task once in each pair of languages, found twice {repeated[0]}")
    if mixed := [task for task in dict(subsets) if len({table.type for table in local if table.task == task}) > 1]:
        raise ValueError(f"expected one type for all subsets of a task, found two for {mixed[0]}")
    return local


MtebTasks = list[MtebTask]
LocalTasks = Annotated[list[LocalTask], AfterValidator(_different_subsets)]


def check_tasks(tasks: Sequence[MtebTask], local: Sequence[LocalTask]) -> None:
    """Raises ValueError when there is no task of either kind."""
    if not (tasks or local):
        raise ValueError("tasks: expected the name of a task of mteb, or tasks of your own under `local`")


class MtebSettings(Settings):
    """The evaluation of an encoder by tasks of mteb."""

    model: EncoderSource
    """Any encoder; a plain BERT gives the mean of its token vectors."""
    tasks: MtebTasks = []
    """Tasks of mteb by name, such as STS17, or a whole benchmark; their data come from the hub."""
    local: LocalTasks = []
    """Tasks of mteb's kind on local files."""
    languages: Annotated[list[LanguageCode], EachOnce] = []
    """Only the subsets of mteb's tasks that are in these languages; all subsets when empty."""
    pooling: Poolings | None = None
    """Pooling in place of the model's own: `["cls"]` for the vector of [CLS]."""
    truncate_dim: Positive | None = None
    """Number of the first dimensions of a model's vectors to keep."""
    precision: Precision = "fp32"
    """fp32, as for published results; `auto` is faster, and moves a correlation by some 0.001."""
    max_rejects: MaxRejects = 0.01

    @model_validator(mode="after")
    def _some_tasks(self) -> Self:
        check_tasks(self.tasks, self.local)
        return self
