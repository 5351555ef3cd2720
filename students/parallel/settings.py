"""Settings of parallel corpora, of the filters of pairs, and of distillation; free of torch."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from bertrelay.data.tables import (
    TRANSLATIONS,
    Column,
    Format,
    Table,
    TableSource,
    inner_suffix,
    refuse_idle_header,
    refuse_no_lines,
    table_format,
)
from bertrelay.languages import EachOnce, LanguageCode
from bertrelay.model.folder import ModelFolder
from bertrelay.model.settings import NewEncoder, VocabularySize, kind_of_base
from bertrelay.settings import (
    WHEN_SET,
    DataSource,
    EncoderSource,
    HubDataset,
    InputFile,
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
from students.search_settings import NEIGHBOURS

ENGLISH = "en"


def _not_english(value: str) -> str:
    if value == ENGLISH:
        raise ValueError("the other side cannot be en as well; name a variety of English en-x-plain, for example")
    return value


MaxPairs = Annotated[Positive | None, WHEN_SET]
MaxMisplaced = Annotated[float, Field(ge=0, le=1), WHEN_SET]
Weight = Annotated[float, Field(ge=0)]
Language = Annotated[LanguageCode, AfterValidator(_not_english)]
"""Of the side that is not English."""


class AlignedFiles(DataSource):
    """Two files in which row n of one translates row n of the other: lines, or the same table in two languages."""

    english: InputFile
    """File of the English sentences."""
    other: InputFile
    """File of their translations."""
    language: Language
    """Language of the translations."""
    max_pairs: MaxPairs = None
    """Most pairs of a training corpus, in place of that of `filters`."""
    max_misplaced: MaxMisplaced = 0.2
    """Fraction of texts that may seem to be in another language than theirs."""
    column: Column = 0
    """Column of the sentence in both files, by name or by position from 0."""
    format: Format | None = None
    """Format of both files; by their suffixes when absent, where an unknown one means plain lines."""
    header: bool = True
    """CSV and TSV files begin with the names of their columns."""
    quoted: Annotated[bool, WHEN_SET] = False
    """Fields of TSV files may stand in quotes, as those of CSV do; else quotes are text."""

    @model_validator(mode="after")
    def _header_counts(self) -> Self:
        for path in () if self.format else (self.english, self.other):
            refuse_no_lines(path)
        refuse_idle_header(self, [self.format or table_format(path) for path in (self.english, self.other)])
        return self

    @property
    def name(self) -> str:
        """Its name in counts of pairs."""
        return f"{self.english} + {self.other}"

    @property
    def languages(self) -> list[str]:
        return [self.language]

    def tables_read(self) -> Sequence[Table]:
        return self.tables()

    def tables(self) -> tuple[Table, Table]:
        given: dict[str, Any] = self.model_dump(include={"format", "header", "quoted"})
        shape = {**given, "columns": [self.column]}
        return Table(path=self.english, **shape), Table(path=self.other, **shape)


class TranslationColumns(TableSource):
    """One table with a column of English and a column for each other language."""

    english: Column = ENGLISH
    """Column of English."""
    max_pairs: MaxPairs = None
    """Most pairs of a training corpus in each language, in place of that of `filters`."""
    max_misplaced: MaxMisplaced = 0.2
    """Fraction of texts that may seem to be in another language than theirs."""
    others: Annotated[dict[Language, Column], Field(min_length=1), EachOnce]
    """Language to column, such as `{ de = "de", fr = "translation.fr" }`."""

    @model_validator(mode="before")
    @classmethod
    def _keys_of_other_sources(cls, given: Any) -> Any:
        if isinstance(given, dict) and (wrong := [key for key in ("columns", "column", "language") if key in given]):
            keys = ", ".join(sorted(cls.model_fields))
            raise ValueError(
                f"{', '.join(wrong)}: no key of a table of translations; name the column of each language, by name or "
                f"from 0: english = 0, others = {{ de = 1 }}. Its keys are {keys}"
            )
        if isinstance(given, dict) and "others" not in given and inner_suffix(str(given.get("path"))) in TRANSLATIONS:
            raise ValueError("languages: is required and missing, as in { path = FILE, languages = ['de', 'fr'] }")
        return given

    @property
    def languages(self) -> list[str]:
        """The languages beside English, in the order of the columns."""
        return list(self.others)

    def tables_read(self) -> Sequence[Table]:
        return [self.table()]

    def table(self) -> Table:
        shape = self.model_dump(exclude={"english", "others", "max_pairs", "max_misplaced"})
        return Table(columns=[self.english, *self.others.values()], **shape)


class TranslationFiles(DataSource):
    """Translations as people have them: a file, a folder of files, or data sets of the hub, in several languages."""

    path: InputFile | None = None
    """TMX, XLIFF, gettext (.po, .mo), OPUS archives (.zip), `en-de.tsv`, `train.en` beside `train.de`; `.gz` too."""
    hub: HubDataset | None = None
    """Data set with a configuration `en-de` for each language, such as those named
    sentence-transformers/parallel-sentences-…."""
    split: Annotated[str, UsedWith("hub")] = "train"
    """Split of the data set."""
    languages: Annotated[list[Language], Field(min_length=1), EachOnce]
    """Languages to read beside English; de takes de-AT too, and zh-Hant takes zh-TW."""
    tags: Literal["strip", "skip"] = "strip"
    """Strip inline tags and keep the pair, or skip pairs that have any."""
    placeholders: Literal["skip", "keep"] = "skip"
    """Skip pairs with `%s` or `{name}`, or keep them."""
    max_pairs: MaxPairs = None
    """Most pairs of a training corpus in each language, in place of that of `filters`."""
    max_misplaced: MaxMisplaced = 0.2
    """Fraction of texts that may seem to be in another language than theirs."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise ValueError("expected either `path` (a file or folder) or `hub` (a data set), and exactly one of them")
        return self

    @property
    def name(self) -> str:
        """Its name in counts of pairs."""
        return str(self.path) if self.hub is None else f"hub:{self.hub}:{self.split}"


def _kind(value: Any) -> str | None:
    """The kind of source that the keys of `value` belong to, so that its errors are of that kind alone."""
    keys = set(value if isinstance(value, dict) else getattr(type(value), "model_fields", ()))
    if "languages" in keys:
        return "translations"
    if keys & {"others", "path", "hub"}:
        return "columns"
    if keys & {"other", "language", "english"}:
        return "files"
    return None


ParallelSource = Annotated[
    Annotated[AlignedFiles, Tag("files")]
    | Annotated[TranslationColumns, Tag("columns")]
    | Annotated[TranslationFiles, Tag("translations")],
    Discriminator(
        _kind,
        custom_error_type="parallel_source",
        custom_error_message="expected either two aligned files, { english = FILE, other = FILE, language = 'de' }, "
        "or a table, { path = FILE, english = 'en', others = { de = 'de' } }, or translation memories, catalogues and "
        "folders, { path = FILE, languages = ['de', 'fr'] } (hub = NAME in place of path)",
    ),
]


def without_limit(source: Any) -> Any:
    """The parallel source, which is read whole; raises ValueError for one with `max_pairs`."""
    refuse_idle(source, "max_pairs", because="it limits the corpora of a training, and this one is read whole")
    return source


UnlimitedSource = Annotated[ParallelSource, AfterValidator(without_limit)]


class MarginFilter(Settings):
    """Drops pairs whose sentences an encoder finds hardly nearer to each other than to others: a low ratio margin."""

    model: EncoderSource
    """Encoder of the languages, such as sentence-transformers/LaBSE, or an earlier student."""
    threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.06
    """Lowest margin to keep: 1.06 in CCMatrix (Schwenk et al. 2021), 1.04 in WikiMatrix."""
    k: Positive = NEIGHBOURS
    """Number of nearest neighbours of a sentence with which its margin compares."""


class Filters(Settings):
    """Pairs to leave out of training. Each one left out is counted with its reason."""

    min_characters: Positive = 1
    """Fewest characters of either sentence; short strings are often labels of an interface."""
    max_characters: Annotated[int, Field(ge=1)] = 1000
    """Most characters of either sentence; longer ones are seldom one sentence, and a student would see them cut."""
    max_length_ratio: Annotated[float, Field(ge=1)] = 3.0
    """Highest ratio of the longer to the shorter sentence, where the longer has at least 30 characters: short pairs are
    spared, because "Yes." rightly becomes "Oui, bien sûr." East Asian wide characters (Unicode TR 11) count as two, as
    one of them means about as much as two letters."""
    drop_copies: bool = True
    """Drop pairs of equal sentences, but for case and spaces, which are mostly untranslated."""
    drop_duplicates: bool = True
    """Drop a translation of the same English that is repeated."""
    max_pairs: Positive | None = None
    """Most pairs of one source and language, drawn by their English; a source may have its own."""
    margin: Annotated[MarginFilter | None, WHEN_SET] = None
    """Drop pairs with a low ratio margin by a multilingual encoder."""


class GivenVectors(DataSource):
    """A teacher's vectors as files, for one that is behind an API: of all it is to encode, training and held-out."""

    vectors: InputFile
    """Parquet with the columns `text` and `vector`, as `bertrelay encode` writes it; or `.npy` with `texts`."""
    texts: InputFile | None = None
    """Text of each row of a `.npy`, a line each."""

    @model_validator(mode="after")
    def _files_fit(self) -> Self:
        suffix = Path(self.vectors).suffix
        if suffix not in (".npy", ".parquet"):
            raise ValueError(f"vectors: expected a .parquet or .npy file, found {suffix or 'no suffix'}")
        if (suffix == ".npy") != (self.texts is not None):
            raise ValueError("texts: a .npy file of vectors needs one with the text of each row; Parquet has its own")
        return self


Teacher = Annotated[
    Annotated[EncoderSource, Tag("model")] | Annotated[GivenVectors, Tag("vectors")],
    Discriminator(
        lambda value: "vectors" if isinstance(value, dict | GivenVectors) else "model",
    ),
]


class TeacherCopy(Settings):
    """A student with the teacher's layers and a new multilingual vocabulary."""

    layers_of: Literal["teacher"]
    """`teacher`: copy its layers."""
    vocabulary: VocabularySize
    """Subwords trained on the corpus; each starts as the mean of the teacher's subwords of its text."""


def _kind_of_base(value: Any) -> str | None:
    is_copy = isinstance(value, TeacherCopy) or (isinstance(value, dict) and "layers_of" in value)
    return "copy" if is_copy else kind_of_base(value)


Base = Annotated[
    Annotated[ModelSource, Tag("model")] | Annotated[NewEncoder, Tag("new")] | Annotated[TeacherCopy, Tag("copy")],
    Discriminator(
        _kind_of_base,
        custom_error_type="student_base",
        custom_error_message="expected a model such as 'xlm-roberta-base', a size such as "
        "{ layers = 6, dim = 384, heads = 12, vocabulary = 32000 }, or { layers_of = 'teacher', vocabulary = 16000 }",
    ),
]


class PromptText(Settings):
    """A prompt that is none of the model's own."""

    text: Annotated[str, Field(min_length=1)]
    """Text that precedes each sentence, with the space at its end where one belongs there."""


Prompt = Annotated[
    Annotated[str, Field(min_length=1), Tag("name")] | Annotated[PromptText, Tag("text")],
    Discriminator(lambda value: "text" if isinstance(value, dict | PromptText) else "name"),
]
"""The name of one of a model's prompts, as in `encode`, or a text."""


def prompt_problem(prompt: Any, model: Any) -> str:
    """The error for a name that is none of the model's prompts, or that is the text of one; empty when it is valid.

    Names are checked where the model's folder exists.
    """
    if not isinstance(prompt, str):
        return ""
    if prompt != prompt.strip() or prompt.endswith(":"):
        return f"expected the name of a prompt, found {prompt!r}; for any text write {{ text = {prompt!r} }}"
    if isinstance(model, NewEncoder):
        return unknown_prompt(prompt, [])
    if not isinstance(model, ModelSource) or model.folder is None or not model.folder.is_dir():
        return ""
    names = ModelFolder(model.folder).prompt_names
    return "" if prompt in names else unknown_prompt(prompt, names)


def prompt_problems(models: Mapping[str, Any], settings: Settings) -> Iterator[tuple[str, str]]:
    """(key, error) of the invalid prompts of `settings`; `models` has the model of each key."""
    for key, model in models.items():
        if fault := prompt_problem(getattr(settings, key), model):
            yield key, fault


def unknown_prompt(prompt: str, names: Sequence[str]) -> str:
    """The error for a prompt that is none of a model's `names`."""
    expected = f"one of the model's prompts {', '.join(names)}" if names else "no name, as the model has no prompts"
    return f"expected {expected}, found {prompt!r}; for any text write {{ text = {prompt!r} }}"


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
    dimensions: Annotated[list[Positive], UsedWith("contrastive", "cut_teacher")] = []
    """Matryoshka: `contrastive` is its mean over vectors cut to these dimensions, and whole ones."""
    cut_teacher: Annotated[bool, UsedWith("cosine", "ranking"), UsedWith("dimensions"), WHEN_SET] = False
    """The teacher is Matryoshka too: `cosine` and `ranking` are such means as well, its vectors cut likewise."""

    @model_validator(mode="after")
    def _one_at_least(self) -> Self:
        if not (self.mse or self.cosine or self.contrastive or self.ranking):
            raise ValueError("expected a weight above 0 for mse, cosine, contrastive or ranking")
        return self


class DistillSettings(TrainingSettings):
    """A student that learns the teacher's vector of English, for the English and for its translations."""

    teacher: Teacher
    """Encoder, or the vectors that one has made, `{ vectors = "vectors.parquet" }`."""
    base: Base
    """Start of the student: a pretrained model, a size, or the teacher's layers."""
    teacher_prompt: Annotated[Prompt | None, WHEN_SET] = None
    """Name of the teacher's prompt that precedes each sentence it encodes, or `{ text = "query: " }`; the teacher's
    default when absent."""
    own_vectors: Annotated[bool, WHEN_SET] = False
    """A translation learns the teacher's vector of itself, as a multilingual teacher gives it, and not that of its
    English: for a student that is to be like a larger one."""
    student_prompt: Annotated[Prompt | None, WHEN_SET] = None
    """Name of the base's prompt that precedes each sentence, or `{ text = "query: " }`; none when absent. It is the
    default of the student, so that `encode` uses it too."""
    trim_vocabulary: bool = False
    """Leave out the subwords of a pretrained base that `parallel` does not use, before training."""
    layers: Positive | None = None
    """Layers of the base to keep; each time the one whose removal moves the vectors least is left out."""
    intermediate_size: Annotated[Positive | None, WHEN_SET] = None
    """Neurons of each feed-forward layer of the base to keep, those that its output depends on most. With
    `trim_vocabulary`, `layers` or this, sizes before and after are metrics."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Dropout in every layer while training; the base's own when absent."""
    frozen_layers: Annotated[int, Field(ge=0)] | None = None
    """The token embeddings and this many of the lowest layers keep their weights; 0: only the embeddings."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Learning rate of a layer, as a fraction of that of the layer above it."""
    average_with_start: bool = False
    """Of the weights between the start's and the trained ones, take those whose translation accuracy falls least short
    of the best, on `dev` or on `dev_untrained`, whichever is worse; of equal ones (but for 0.002) those farthest from
    the start."""
    objectives: Objectives = Objectives()
    """Weights of the losses."""
    retained: list[Table] = []
    """Texts in any language, translated or not, whose vectors stay those of the start; of a table the column that is
    named, else `text`."""
    parallel: Annotated[list[ParallelSource], Field(min_length=1)]
    """Corpora to train on."""
    filters: Filters = Filters()
    """Pairs of `parallel` to leave out."""
    dev: list[UnlimitedSource] = []
    """Held-out corpora, whose English is taken out of `parallel`; without any, `dev_sentences` English sentences are
    held out of `parallel`, in every language."""
    dev_sentences: Annotated[int, Field(ge=0), UnusedWith("dev")] = 1000
    """English sentences to hold out of `parallel`, in every language; 0 for no dev data."""
    dev_untrained: Annotated[list[UnlimitedSource], UsedWith("dev", "dev_sentences", "average_with_start")] = []
    """Held-out corpora of other domains and languages than `parallel`, which choose the weights as much as those of
    `dev`; without any, 150 sentences of many domains that come with the project, for a pretrained base in 21 languages,
    for a new one in those that are trained."""
    evaluate_every: Annotated[Positive | None, UsedWith("dev", "dev_sentences")] = None
    patience: Annotated[Positive | None, UsedWith("dev", "dev_sentences")] = None
    max_tokens: MaxTokens = 128
    """Longest input, special tokens included."""
    batch_tokens: Positive | None = 2048
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    max_rejects: MaxRejects = 0.01

    @model_validator(mode="after")
    def _nothing_idle(self) -> Self:
        if isinstance(self.base, TeacherCopy) and isinstance(self.teacher, GivenVectors):
            raise ValueError("base: vectors have no layers; expected a model or the size of a new one")
        if isinstance(self.teacher, GivenVectors):
            refuse_idle(self, "teacher_prompt", because="the teacher's vectors are given")
        if not isinstance(self.base, ModelSource):
            refuse_idle(self, "trim_vocabulary", because="the vocabulary of this base is trained on the corpus")
        if isinstance(self.base, NewEncoder):
            refuse_idle(self, "frozen_layers", "average_with_start", because="a new network knows nothing to keep")
        if not self.retained:
            refuse_idle(self.objectives, "retention", because="there are no `retained` texts")
        return self

    def input_problems(self) -> Iterator[tuple[str, str]]:
        yield from prompt_problems({"teacher_prompt": self.teacher, "student_prompt": self.base}, self)

    @property
    def has_dev(self) -> bool:
        """Returns true if held-out sentences of the trained corpora choose weights."""
        return bool(self.dev or self.dev_sentences)
