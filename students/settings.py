"""Where parallel sentences come from and which pairs are kept: settings alone, with nothing heavy to load."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from bertrelay.data.tables import Column, Format, StsTable, Table, TableSource, format_of, refuse_idle_header
from bertrelay.encoder_settings import NewEncoder, VocabularySize, kind_of_base
from bertrelay.settings import (
    WHEN_SET,
    DataSource,
    HubDataset,
    InputFile,
    MaxTokens,
    ModelSource,
    Positive,
    Settings,
    refuse_idle,
)
from bertrelay.training.settings import TrainingSettings
from students.search_settings import NEIGHBOURS, MiningTest

ENGLISH = "en"
LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")


def _language(value: str) -> str:
    if not LANGUAGE.fullmatch(value):
        raise ValueError(f"expected a language code such as de, ko or zh-Hant, found {value!r}")
    if value == ENGLISH:
        raise ValueError("the other side cannot be en as well; name a variety of English en-x-plain, for example")
    return value


def _two_languages(pair: list[str]) -> list[str]:
    if pair[0] == pair[1]:
        raise ValueError(f"expected two different languages, found {pair[0]} twice")
    return pair


Weight = Annotated[float, Field(ge=0)]
Language = Annotated[str, AfterValidator(_language)]


class AlignedFiles(DataSource):
    """Two files in which row n of one translates row n of the other: plain lines, or the same table in two languages.

    column: the column of the sentence in both files.
    format, header: as for any table.
    """

    english: InputFile
    other: InputFile
    language: Language
    column: Column = 0
    format: Format | None = None
    header: bool = True

    @model_validator(mode="after")
    def _header_counts(self) -> Self:
        refuse_idle_header(self, [self.format or format_of(path) for path in (self.english, self.other)])
        return self

    @property
    def name(self) -> str:
        """Its name in counts of pairs."""
        return f"{self.english} + {self.other}"

    @property
    def languages(self) -> list[str]:
        """The languages beside English."""
        return [self.language]

    def tables(self) -> tuple[Table, Table]:
        """The English table and the other one."""
        shape: dict[str, Any] = {"format": self.format, "columns": [self.column], "header": self.header}
        return Table(path=self.english, **shape), Table(path=self.other, **shape)


class TranslationColumns(TableSource):
    """One table with a column of English and a column for each other language.

    others: language to column, such as `{ de = "de", fr = "translation.fr" }`.
    """

    english: Column = ENGLISH
    others: Annotated[dict[Language, Column], Field(min_length=1)]

    @property
    def languages(self) -> list[str]:
        """The languages beside English, in the order of the columns."""
        return list(self.others)

    def table(self) -> Table:
        """The table with its columns, English first."""
        return Table(columns=[self.english, *self.others.values()], **self.model_dump(exclude={"english", "others"}))


class TranslationFiles(DataSource):
    """Translations as people have them: a file, a folder of files, or data sets of the hub, in several languages.

    path: TMX, XLIFF, gettext (.po, .mo), OPUS archives (.zip), `en-de.tsv`, `train.en` beside `train.de`; `.gz` too.
    hub: a data set with a configuration `en-de` for each language, such as those named
        sentence-transformers/parallel-sentences-….
    languages: those to read beside English; de takes de-AT too, and zh-Hant takes zh-TW.
    tags: strip inline tags and keep the pair, or skip pairs that have any.
    placeholders: skip pairs with `%s` or `{name}`, or keep them.
    """

    path: InputFile | None = None
    hub: HubDataset | None = None
    split: str = "train"
    languages: Annotated[list[Language], Field(min_length=1)]
    tags: Literal["strip", "skip"] = "strip"
    placeholders: Literal["skip", "keep"] = "skip"

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


class MarginFilter(Settings):
    """Leaves out pairs whose sentences are hardly nearer to each other than to others: a low ratio margin.

    model: an encoder of the languages, such as sentence-transformers/LaBSE, or an earlier student.
    threshold: the lowest margin that is kept: 1.06 in CCMatrix (Schwenk et al. 2021), 1.04 in WikiMatrix.
    k: so many nearest neighbours of a sentence say what is near for it.
    """

    model: ModelSource
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
    max_pairs: at most so many of one source and language, drawn by their English.
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
    """A teacher's vectors as files, for one that is behind an API: of all English sentences, training and held-out.

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
    Annotated[ModelSource, Tag("model")] | Annotated[GivenVectors, Tag("vectors")],
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


class Objectives(Settings):
    """The weights of the losses of a student. Each is a mean over the batch; the sum of them is minimised.

    mse: squared distance to the teacher's vector of the English, in units of the targets' variance.
    cosine: 1 − its cosine.
    contrastive: of an English sentence and its translation among the other sentences of the batch (InfoNCE, both
        ways); the English and all its translations come in one batch.
    retention: squared distance to the start's vector, of the texts that are `retained`, in units of their variance.
    temperature: cosines are divided by it before the softmax of `contrastive`.
    dimensions: Matryoshka: `contrastive` is the mean of it over vectors cut to these dimensions, and whole ones.
    cut_teacher: the teacher is Matryoshka too: `cosine` is such a mean as well, to its vectors cut likewise.
    """

    mse: Weight = 1.0
    cosine: Weight = 0.0
    contrastive: Weight = 0.0
    retention: Weight = 1.0
    temperature: Annotated[float, Field(gt=0)] = 0.05
    dimensions: list[Positive] = []
    cut_teacher: Annotated[bool, WHEN_SET] = False

    @model_validator(mode="after")
    def _one_at_least(self) -> Self:
        if not (self.mse or self.cosine or self.contrastive):
            raise ValueError("expected a weight above 0 for mse, cosine or contrastive")
        if not self.contrastive:
            refuse_idle(self, "temperature", because="the weight of contrastive is 0")
        if not (self.cosine and self.dimensions):
            refuse_idle(self, "cut_teacher", because="the weight of cosine is 0, or there are no dimensions")
        if not (self.contrastive or self.cut_teacher):
            refuse_idle(self, "dimensions", because="the weight of contrastive is 0, and cut_teacher is false")
        return self


class DistillSettings(TrainingSettings):
    """A student that learns to give, for English and for its translations, the teacher's vector of the English.

    teacher: an encoder, or the vectors that one has made, `{ vectors = "vectors.parquet" }`.
    base: what it starts from: a pretrained model, a size, or the teacher's layers.
    teacher_prompt: which of the teacher's prompts precedes each English sentence, or `{ text = "query: " }`; the
        teacher's default when absent.
    student_prompt: which of the base's prompts precedes each sentence, or `{ text = "query: " }`; none when absent. It
        is the default of the student, so that `encode` uses it too.
    trim_vocabulary: leave out the pieces of a pretrained base that `parallel` does not use, before training.
    layers: keep so many of the base's layers, evenly spread. With either, sizes before and after are metrics.
    dropout: while training, in every layer; the base's own when absent.
    frozen_layers: the token embeddings and so many of the lowest layers keep their weights; 0: the embeddings alone.
    layer_decay: the learning rate of a layer, as a share of that of the layer above it.
    average_with_start: of the weights between the start's and the trained ones, those farthest from the start whose
        translation accuracy on `dev`, and on `dev_untrained`, is not below the start's (by 0.002 at most).
    objectives: what is minimised.
    retained: texts in any language, translated or not, whose vectors stay those of the start; of a table the column
        that is named, else `text`.
    parallel: the corpora; `filters` say which of their pairs are left out.
    dev: held-out corpora, whose English is taken out of `parallel`; without any, `dev_sentences` English sentences
        are held out of `parallel`, in every language.
    dev_untrained: held-out corpora of other domains and languages than `parallel`; without any, 150 sentences of many
        domains in 21 languages that come with the project.
    max_tokens: the longest input, special tokens included.
    max_rejects: the share of records that may be unusable.
    """

    teacher: Teacher
    base: Base
    teacher_prompt: Annotated[Prompt | None, WHEN_SET] = None
    student_prompt: Annotated[Prompt | None, WHEN_SET] = None
    trim_vocabulary: bool = False
    layers: Positive | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    frozen_layers: Annotated[int, Field(ge=0)] | None = None
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    average_with_start: bool = False
    objectives: Objectives = Objectives()
    retained: list[Table] = []
    parallel: Annotated[list[ParallelSource], Field(min_length=1)]
    filters: Filters = Filters()
    dev: list[ParallelSource] = []
    dev_sentences: Annotated[int, Field(ge=0)] = 1000
    dev_untrained: list[ParallelSource] = []
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
        if not self.average_with_start:
            refuse_idle(self, "dev_untrained", because="it chooses among averages, and average_with_start is false")
        if not self.retained:
            refuse_idle(self.objectives, "retention", because="there are no `retained` texts")
        if self.dev:
            refuse_idle(self, "dev_sentences", because="`dev` gives the held-out sentences")
        elif self.dev_sentences == 0:
            refuse_idle(self, "evaluate_every", "patience", because="there is no dev data: dev_sentences is 0")
        return self


SetName = Annotated[str, Field(pattern=r"^[\w.-]+$")]
"""Of a test set: a part of metrics' and of files' names."""
LanguagePair = Annotated[
    list[Language | Literal["en"]], Field(min_length=2, max_length=2), AfterValidator(_two_languages)
]
XsimPairs = Literal["english", "all"] | Annotated[list[LanguagePair], Field(min_length=1)]
"""Pairs of source and target language: those with English, all of them, or those named."""


class EvaluateSettings(Settings):
    """A student on held-out sentences: translation accuracy, distance to the teacher, STS within and across languages.

    teacher: gives `mse/<language>`; left out, there is none.
    teacher_prompt: as the student was taught; the teacher's default when absent.
    recall_at: search the English sentences of `parallel`, as the teacher's vectors, with so many hits for a query: the
        student's vector of English and of each language. Gives `recall_at_<k>/<language>`.
    xsim: n-way test sets by name, each a list of sources with the same English: gives `xsim_error/<set>/<from>/<into>`,
        the share in % of sentences whose translation is not the nearest by ratio margin, as LASER's xsim.
    xsim_pairs: which languages: English with each other one, all with all, or pairs such as [["de", "ko"]], from the
        first into the second.
    mining: tests of bitext mining by name; gives `mining_f1/<name>/train` and `/test`, precision, recall and threshold.
    lookup: training corpora for the dictionary of word-for-word lookup, a baseline.
    dimensions: score vectors cut to these dimensions too.
    picture_sentences: how many sentences, in every language, the picture of similarities shows; 0 for none.
    """

    model: ModelSource
    teacher: Teacher | None = None
    teacher_prompt: Annotated[Prompt | None, WHEN_SET] = None
    recall_at: Annotated[Positive | None, WHEN_SET] = None
    parallel: list[ParallelSource] = []
    sts: dict[str, StsTable] = {}
    xsim: Annotated[dict[SetName, Annotated[list[ParallelSource], Field(min_length=1)]], WHEN_SET] = {}
    xsim_pairs: Annotated[XsimPairs, WHEN_SET] = "english"
    mining: Annotated[dict[SetName, MiningTest], WHEN_SET] = {}
    lookup: list[ParallelSource] = []
    dimensions: Annotated[list[Positive], WHEN_SET] = []
    picture_sentences: Annotated[int, Field(ge=0)] = 4
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _something_to_score(self) -> Self:
        if not (self.parallel or self.sts or self.xsim or self.mining):
            raise ValueError("expected `parallel`, `sts`, `xsim` or `mining`: without any there is nothing to score")
        if not self.xsim:
            refuse_idle(self, "xsim_pairs", because="there are no sets in `xsim`")
        elif not isinstance(self.xsim_pairs, str):
            known = {ENGLISH, *(of for sources in self.xsim.values() for source in sources for of in source.languages)}
            if missing := sorted({language for pair in self.xsim_pairs for language in pair} - known):
                raise ValueError(f"xsim_pairs: expected languages of `xsim`, found {', '.join(missing)}, of no source")
        if not isinstance(self.teacher, ModelSource):
            refuse_idle(self, "teacher_prompt", because="there is no teacher that encodes")
        if not self.parallel:
            refuse_idle(self, "teacher", "lookup", "picture_sentences", because="it needs the sentences of `parallel`")
        if self.teacher is None:
            refuse_idle(self, "recall_at", because="there is no `teacher`, whose vectors are searched")
        return self


def _code(value: str) -> str:
    if not LANGUAGE.fullmatch(value):
        raise ValueError(f"expected a language code such as de, ko or zh-Hant, found {value!r}")
    return value


LanguageOfText = Annotated[str, AfterValidator(_code)]


class CorpusTable(Table):
    """Text of a corpus: of a table all the columns that are named, else `text`.

    language: of all of it, where it is known.
    """

    language: LanguageOfText | None = None

    @property
    def languages(self) -> list[str]:
        """The language of its text, if it is known."""
        return [self.language] if self.language else []


CorpusSource = Annotated[
    Annotated[CorpusTable, Tag("text")]
    | Annotated[AlignedFiles, Tag("files")]
    | Annotated[TranslationColumns, Tag("columns")]
    | Annotated[TranslationFiles, Tag("translations")],
    Discriminator(lambda value: _kind_of_corpus(value)),
]


def _kind_of_corpus(value: Any) -> str:
    keys = set(value if isinstance(value, dict) else getattr(type(value), "model_fields", ()))
    of_pairs = (("languages", "translations"), ("others", "columns"), ("english", "files"), ("other", "files"))
    return next((kind for key, kind in of_pairs if key in keys), "text")


COVERAGE = 0.999


class ShrinkSettings(Settings):
    """A smaller model, in `model/`, and size, speed and scores of both.

    corpus: text in the languages the model is for: tables, `{ path = FILE, language = "de" }`, and parallel sources.
    trim_vocabulary: leave out the pieces that the corpus does not use. Changes no vector of the corpus.
    languages: keep pieces of these languages beyond the corpus, which has text of each: a tenth of it is held out.
    coverage: the share of the tokens of held-out text, in each language, that must be cut as before.
    layers: keep so many layers, evenly spread, the first and the last among them.
    dimensions: so many dimensions of a vector, along which those of the corpus are longest.
    sts, parallel: test sets for `sts/…` and `translation_accuracy/…`, before and after; none of them is trained on.
    max_rejects: the share of records that may be unusable.

    Fewer layers or dimensions give other vectors. `students.distill` can start from such a model, and train it again.
    """

    model: ModelSource
    corpus: Annotated[list[CorpusSource], Field(min_length=1)]
    trim_vocabulary: bool = True
    languages: list[LanguageOfText] = []
    coverage: Annotated[float, Field(gt=0, le=1)] = COVERAGE
    layers: Positive | None = None
    dimensions: Positive | None = None
    sts: dict[str, StsTable] = {}
    parallel: list[ParallelSource] = []
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    max_rejects: Annotated[float, Field(ge=0, le=1)] = 0.01

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        if not (self.trim_vocabulary or self.layers or self.dimensions):
            raise ValueError("expected trim_vocabulary, layers or dimensions: without any the model stays as it is")
        if not self.trim_vocabulary:
            refuse_idle(self, "languages", because="trim_vocabulary = false")
        if not self.languages:
            refuse_idle(self, "coverage", because="no languages are given")
        return self

    @model_validator(mode="after")
    def _text_of_each_language(self) -> Self:
        known = {language for source in self.corpus for language in source.languages}
        if not all(isinstance(source, CorpusTable) for source in self.corpus):
            known.add(ENGLISH)
        if missing := [language for language in self.languages if language not in known]:
            raise ValueError(
                f"languages: expected text of each in the corpus, found none in {', '.join(missing)}. Name the "
                'language of a table, { path = FILE, language = "de" }, or give parallel sources'
            )
        return self
