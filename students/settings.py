"""Where parallel sentences come from, which pairs are kept, and how a student is trained: settings alone."""

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
    format_of,
    refuse_idle_header,
    refuse_no_lines,
    suffix_of,
)
from bertrelay.languages import EachOnce, LanguageCode
from bertrelay.model.kinds import prompts_in
from bertrelay.model.settings import NewEncoder, VocabularySize, kind_of_base
from bertrelay.settings import (
    WHEN_SET,
    DataSource,
    EncoderSource,
    HubDataset,
    InputFile,
    MaxTokens,
    ModelSource,
    Positive,
    Settings,
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
    """Two files in which row n of one translates row n of the other: plain lines, or the same table in two languages.

    column: the column of the sentence in both files.
    format, header, quoted: as for any table.
    max_pairs: of a training corpus, in place of that of `filters`.
    max_misplaced: the share of texts that may seem to be in another language than theirs.
    """

    english: InputFile
    other: InputFile
    language: Language
    max_pairs: MaxPairs = None
    max_misplaced: MaxMisplaced = 0.2
    column: Column = 0
    format: Format | None = None
    header: bool = True
    quoted: Annotated[bool, WHEN_SET] = False

    @model_validator(mode="after")
    def _header_counts(self) -> Self:
        for path in () if self.format else (self.english, self.other):
            refuse_no_lines(path)
        refuse_idle_header(self, [self.format or format_of(path) for path in (self.english, self.other)])
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
    """One table with a column of English and a column for each other language.

    others: language to column, such as `{ de = "de", fr = "translation.fr" }`.
    max_pairs: of a training corpus and language, in place of that of `filters`.
    max_misplaced: the share of texts that may seem to be in another language than theirs.
    """

    english: Column = ENGLISH
    max_pairs: MaxPairs = None
    max_misplaced: MaxMisplaced = 0.2
    others: Annotated[dict[Language, Column], Field(min_length=1), EachOnce]

    @model_validator(mode="before")
    @classmethod
    def _keys_of_other_sources(cls, given: Any) -> Any:
        if isinstance(given, dict) and (wrong := [key for key in ("columns", "column", "language") if key in given]):
            keys = ", ".join(sorted(cls.model_fields))
            raise ValueError(
                f"{', '.join(wrong)}: no key of a table of translations; name the column of each language, by name or "
                f"from 0: english = 0, others = {{ de = 1 }}. Its keys are {keys}"
            )
        if isinstance(given, dict) and "others" not in given and suffix_of(str(given.get("path"))) in TRANSLATIONS:
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
    """Translations as people have them: a file, a folder of files, or data sets of the hub, in several languages.

    path: TMX, XLIFF, gettext (.po, .mo), OPUS archives (.zip), `en-de.tsv`, `train.en` beside `train.de`; `.gz` too.
    hub: a data set with a configuration `en-de` for each language, such as those named
        sentence-transformers/parallel-sentences-….
    languages: those to read beside English; de takes de-AT too, and zh-Hant takes zh-TW.
    tags: strip inline tags and keep the pair, or skip pairs that have any.
    placeholders: skip pairs with `%s` or `{name}`, or keep them.
    max_pairs: of a training corpus and language, in place of that of `filters`.
    max_misplaced: the share of texts that may seem to be in another language than theirs.
    """

    path: InputFile | None = None
    hub: HubDataset | None = None
    split: str = "train"
    languages: Annotated[list[Language], Field(min_length=1), EachOnce]
    tags: Literal["strip", "skip"] = "strip"
    placeholders: Literal["skip", "keep"] = "skip"
    max_pairs: MaxPairs = None
    max_misplaced: MaxMisplaced = 0.2

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise ValueError("expected either `path` (a file or folder) or `hub` (a data set), and exactly one of them")
        if self.hub is None:
            refuse_idle(self, "split", because="only data sets of the hub have one, and this is a file or folder")
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
    """Leaves out pairs whose sentences are hardly nearer to each other than to others: a low ratio margin.

    model: an encoder of the languages, such as sentence-transformers/LaBSE, or an earlier student.
    threshold: the lowest margin that is kept: 1.06 in CCMatrix (Schwenk et al. 2021), 1.04 in WikiMatrix.
    k: so many nearest neighbours of a sentence say what is near for it.
    """

    model: EncoderSource
    threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.06
    k: Positive = NEIGHBOURS


class Filters(Settings):
    """Which pairs are left out of training. Each one left out is counted with its reason.

    min_characters: of either side; shorter ones are often labels, whose translation hangs on where they stand.
    max_characters: of either side; longer ones are seldom one sentence, and a student would see them cut.
    max_length_ratio: of the longer side to the shorter, where the longer has at least 30 characters. East Asian wide
    characters (Unicode TR 11) count as two, as one of them means about as much as two letters; short pairs are spared,
    because "Yes." rightly becomes "Oui, bien sûr."
    drop_copies: pairs whose two sides are the same but for case and spaces, which are mostly untranslated.
    drop_duplicates: the same translation of the same English, given again.
    max_pairs: at most so many of one source and language, drawn by their English; a source may have its own.
    margin: pairs that a multilingual encoder finds no nearer than others.
    """

    min_characters: Positive = 1
    max_characters: Annotated[int, Field(ge=1)] = 1000
    max_length_ratio: Annotated[float, Field(ge=1)] = 3.0
    drop_copies: bool = True
    drop_duplicates: bool = True
    max_pairs: Positive | None = None
    margin: Annotated[MarginFilter | None, WHEN_SET] = None


class GivenVectors(DataSource):
    """A teacher's vectors as files, for one that is behind an API: of all it is to encode, training and held-out.

    vectors: Parquet with the columns `text` and `vector`, as `bertrelay encode` writes it; or `.npy` with `texts`.
    texts: the text of each row of a `.npy`, a line each.
    """

    vectors: InputFile
    texts: InputFile | None = None

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
    """A student with the teacher's layers and a new multilingual vocabulary.

    vocabulary: pieces trained on the corpus; each starts as the mean of the teacher's pieces of its text.
    """

    layers_of: Literal["teacher"]
    vocabulary: VocabularySize


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
    """A prompt that is none of the model's own.

    text: what precedes each sentence, with the space at its end where one belongs there.
    """

    text: Annotated[str, Field(min_length=1)]


Prompt = Annotated[
    Annotated[str, Field(min_length=1), Tag("name")] | Annotated[PromptText, Tag("text")],
    Discriminator(lambda value: "text" if isinstance(value, dict | PromptText) else "name"),
]
"""The name of one of a model's prompts, as in `encode`, or a text."""


def prompt_problem(prompt: Any, model: Any) -> str:
    """What is wrong with the name of a prompt of a model whose folder is there, or that is the text of one."""
    if not isinstance(prompt, str):
        return ""
    if prompt != prompt.strip() or prompt.endswith(":"):
        return f"expected the name of a prompt, found {prompt!r}; for any text write {{ text = {prompt!r} }}"
    if isinstance(model, NewEncoder):
        return unknown_prompt(prompt, [])
    if not isinstance(model, ModelSource) or model.folder is None or not model.folder.is_dir():
        return ""
    names = prompts_in(model.folder)
    return "" if prompt in names else unknown_prompt(prompt, names)


def prompt_problems(models: Mapping[str, Any], settings: Settings) -> Iterator[tuple[str, str]]:
    """What is wrong with the prompts of `settings`, each under its key; `models` has the model of each."""
    for key, model in models.items():
        if fault := prompt_problem(getattr(settings, key), model):
            yield key, fault


def unknown_prompt(prompt: str, names: Sequence[str]) -> str:
    """The error for a prompt that is none of a model's `names`."""
    expected = f"one of the model's prompts {', '.join(names)}" if names else "no name, as the model has no prompts"
    return f"expected {expected}, found {prompt!r}; for any text write {{ text = {prompt!r} }}"


class Objectives(Settings):
    """The weights of the losses of a student. Each is a mean over the batch; the sum of them is minimised.

    mse: squared distance to the teacher's vector, in units of the targets' variance.
    cosine: 1 − its cosine.
    contrastive: of an English sentence and its translation among the other sentences of the batch (InfoNCE, both
        ways); the English and all its translations come in one batch.
    ranking: how a sentence ranks the teacher's vector that it learns and those of `candidates` other sentences: the KL
        divergence of the softmax of its cosines from the softmax of the teacher's own (Fang et al. 2021, SEED).
    retention: squared distance to the start's vector, of the texts that are `retained`, in units of their variance.
    temperature: cosines are divided by it before the softmax of `contrastive` and of `ranking`.
    candidates: so many sentences that the teacher has encoded, the same in every step.
    dimensions: Matryoshka: `contrastive` is the mean of it over vectors cut to these dimensions, and whole ones.
    cut_teacher: the teacher is Matryoshka too: `cosine` and `ranking` are such means as well, its vectors cut likewise.
    """

    mse: Weight = 1.0
    cosine: Weight = 0.0
    contrastive: Weight = 0.0
    ranking: Weight = 0.0
    retention: Weight = 1.0
    temperature: Annotated[float, Field(gt=0)] = 0.05
    candidates: Positive = 8192
    dimensions: list[Positive] = []
    cut_teacher: Annotated[bool, WHEN_SET] = False

    @model_validator(mode="after")
    def _one_at_least(self) -> Self:
        if not (self.mse or self.cosine or self.contrastive or self.ranking):
            raise ValueError("expected a weight above 0 for mse, cosine, contrastive or ranking")
        if not (self.contrastive or self.ranking):
            refuse_idle(self, "temperature", because="the weights of contrastive and ranking are 0")
        if not self.ranking:
            refuse_idle(self, "candidates", because="the weight of ranking is 0")
        if not ((self.cosine or self.ranking) and self.dimensions):
            refuse_idle(
                self, "cut_teacher", because="the weights of cosine and ranking are 0, or there are no dimensions"
            )
        if not (self.contrastive or self.cut_teacher):
            refuse_idle(self, "dimensions", because="the weight of contrastive is 0, and cut_teacher is false")
        return self


class DistillSettings(TrainingSettings):
    """A student that learns the teacher's vector of English, for the English and for its translations.

    teacher: an encoder, or the vectors that one has made, `{ vectors = "vectors.parquet" }`.
    base: what it starts from: a pretrained model, a size, or the teacher's layers.
    teacher_prompt: which of the teacher's prompts precedes each sentence it encodes, or `{ text = "query: " }`; the
        teacher's default when absent.
    own_vectors: a translation learns the teacher's vector of itself, as a multilingual teacher gives it, and not that
        of its English: for a student that is to be like a larger one.
    student_prompt: which of the base's prompts precedes each sentence, or `{ text = "query: " }`; none when absent. It
        is the default of the student, so that `encode` uses it too.
    trim_vocabulary: leave out the pieces of a pretrained base that `parallel` does not use, before training.
    layers: keep so many of the base's layers; each time the one whose removal moves the vectors least is left out.
    intermediate_size: keep so many neurons of each feed-forward layer of the base, those that its output depends on
        most. With any of the three, sizes before and after are metrics.
    dropout: while training, in every layer; the base's own when absent.
    frozen_layers: the token embeddings and so many of the lowest layers keep their weights; 0: the embeddings alone.
    layer_decay: the learning rate of a layer, as a share of that of the layer above it.
    average_with_start: of the weights between the start's and the trained ones, those whose translation accuracy falls
        least short of the best, on `dev` or on `dev_untrained`, whichever is worse; of equal ones (but for 0.002) those
        farthest from the start.
    objectives: what is minimised.
    retained: texts in any language, translated or not, whose vectors stay those of the start; of a table the column
        that is named, else `text`.
    parallel: the corpora; `filters` say which of their pairs are left out.
    dev: held-out corpora, whose English is taken out of `parallel`; without any, `dev_sentences` English sentences
        are held out of `parallel`, in every language.
    dev_untrained: held-out corpora of other domains and languages than `parallel`, which choose the weights as much as
        those of `dev`; without any, 150 sentences of many domains that come with the project, for a pretrained base in
        21 languages, for a new one in those that are trained.
    max_tokens: the longest input, special tokens included.
    max_rejects: the share of records that may be unusable.
    """

    teacher: Teacher
    base: Base
    teacher_prompt: Annotated[Prompt | None, WHEN_SET] = None
    own_vectors: Annotated[bool, WHEN_SET] = False
    student_prompt: Annotated[Prompt | None, WHEN_SET] = None
    trim_vocabulary: bool = False
    layers: Positive | None = None
    intermediate_size: Annotated[Positive | None, WHEN_SET] = None
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    frozen_layers: Annotated[int, Field(ge=0)] | None = None
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    average_with_start: bool = False
    objectives: Objectives = Objectives()
    retained: list[Table] = []
    parallel: Annotated[list[ParallelSource], Field(min_length=1)]
    filters: Filters = Filters()
    dev: list[UnlimitedSource] = []
    dev_sentences: Annotated[int, Field(ge=0)] = 1000
    dev_untrained: list[UnlimitedSource] = []
    max_tokens: MaxTokens = 128
    batch_tokens: Positive | None = 2048
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

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
        if not (self.has_dev or self.average_with_start):
            refuse_idle(self, "dev_untrained", because="it chooses weights beside dev data, and dev_sentences is 0")
        if not self.retained:
            refuse_idle(self.objectives, "retention", because="there are no `retained` texts")
        if self.dev:
            refuse_idle(self, "dev_sentences", because="`dev` gives the held-out sentences")
        elif self.dev_sentences == 0:
            refuse_idle(self, "evaluate_every", "patience", because="there is no dev data: dev_sentences is 0")
        return self

    def input_problems(self) -> Iterator[tuple[str, str]]:
        yield from prompt_problems({"teacher_prompt": self.teacher, "student_prompt": self.base}, self)

    @property
    def has_dev(self) -> bool:
        """Whether held-out sentences of the trained corpora choose weights."""
        return bool(self.dev or self.dev_sentences)
