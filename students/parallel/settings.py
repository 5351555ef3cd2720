"""The settings of parallel text and of the filters of pairs; free of torch."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationInfo, model_validator

from bertrelay.data.by_language import chosen_languages, one_a_language, only_chosen
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
from bertrelay.progress import log
from bertrelay.settings import (
    RUN_ONLY,
    DataSource,
    EncoderSource,
    HubDataset,
    InputFile,
    MaxRejects,
    Positive,
    Seed,
    Settings,
    UsedWith,
    refuse_idle,
)
from students.mining.settings import NEIGHBOURS

ENGLISH = "en"


def _not_english(value: str) -> str:
    if value == ENGLISH:
        raise ValueError("the other language cannot be en as well; name a variety of English en-x-plain, for example")
    return value


MaxMisplaced = Annotated[float, Field(ge=0, le=1)]
Language = Annotated[LanguageCode, AfterValidator(_not_english)]
"""Code of a language other than English."""


class AlignedFiles(DataSource):
    """Two files in which row n of one translates row n of the other: lines, or the same table in two languages."""

    english: InputFile
    """File of the English sentences."""
    other: InputFile
    """File of their translations."""
    language: Language
    """Language of the translations."""
    max_pairs: Positive | None = None
    """Most pairs of a training corpus, in place of that of `filters`."""
    max_misplaced: MaxMisplaced = 0.2
    """Fraction of texts that may seem to be in another language than theirs."""
    column: Column = 0
    """Column of the sentence in both files, by name or by position from 0."""
    format: Format | None = None
    """Format of both files; by their suffixes when absent, where an unknown one means plain lines."""
    header: bool = True
    """CSV and TSV files begin with the names of their columns."""
    quoted: bool = False
    """Fields of TSV files may stand in quotes, as those of CSV do; else quotes are text."""

    @model_validator(mode="after")
    def _header_counts(self) -> Self:
        for path in () if self.format else (self.english, self.other):
            refuse_no_lines(path)
        refuse_idle_header(self, [self.format or table_format(path) for path in (self.english, self.other)])
        return self

    @property
    def name(self) -> str:
        """Name of the source in counts of pairs."""
        return f"{self.english} + {self.other}"

    @property
    def languages(self) -> list[str]:
        return [self.language]

    def tables_read(self) -> Sequence[Table]:
        return self.tables()

    def tables(self) -> tuple[Table, Table]:
        shape: dict[str, Any] = self.model_dump(include={"format", "header", "quoted"}) | {"columns": [self.column]}
        return Table(path=self.english, **shape), Table(path=self.other, **shape)


class TranslationColumns(TableSource):
    """One table with a column of English and a column for each other language."""

    english: Column = ENGLISH
    """Column of English."""
    max_pairs: Positive | None = None
    """Most pairs of a training corpus in each language, in place of that of `filters`."""
    max_misplaced: MaxMisplaced = 0.2
    """Fraction of texts that may seem to be in another language than theirs."""
    others: Annotated[dict[Language, Column], Field(min_length=1), EachOnce]
    """Language to column, such as `{ de = "de", fr = "translation.fr" }`."""

    @model_validator(mode="before")
    @classmethod
    def _keys_of_other_sources(cls, values: Any) -> Any:
        if isinstance(values, dict) and (wrong := [key for key in ("columns", "column", "language") if key in values]):
            keys = ", ".join(sorted(cls.model_fields))
            raise ValueError(
                f"{', '.join(wrong)}: no key of a table of translations; name the column of each language, by name or "
                f"from 0: english = 0, others = {{ de = 1 }}. Its keys are {keys}"
            )
        if (
            isinstance(values, dict)
            and "others" not in values
            and inner_suffix(str(values.get("path"))) in TRANSLATIONS
        ):
            raise ValueError("languages: is required and missing, as in { path = FILE, languages = ['de', 'fr'] }")
        return values

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
    """Translations in several languages: a file, a folder or archive of files, or data sets of the hub."""

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
    max_pairs: Positive | None = None
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
        """Name of the source in counts of pairs."""
        return str(self.path) if self.hub is None else f"hub:{self.hub}:{self.split}"


def _kind(value: Any) -> str | None:
    """The kind of source that the keys of `value` belong to, so that its errors are of that kind only."""
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


class EnglishSource(TableSource):
    """English sentences without translations: plain lines, or a column of a table."""

    column: Column | None = None
    """Column of the sentence, by name or by position from 0; `text` of a table when absent."""
    max_sentences: Positive | None = None
    """Most sentences of a training corpus."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Sentences of an epoch are drawn from the sources in proportion to this times the square root of their number."""
    max_misplaced: MaxMisplaced = 0.2
    """Fraction of sentences that may seem to be in another language."""

    def tables_read(self) -> Sequence[Table]:
        return [] if self.column is None else [self.table()]

    def table(self) -> Table:
        shape = self.model_dump(exclude={"column", "max_sentences", "weight", "max_misplaced"})
        return Table(columns=None if self.column is None else [self.column], **shape)


def without_limit(source: Any) -> Any:
    """The parallel source, which is read whole; raises ValueError for one with `max_pairs`."""
    refuse_idle(source, "max_pairs", because="it limits the corpora of a training, and this one is read whole")
    return source


UnlimitedSource = Annotated[ParallelSource, AfterValidator(without_limit)]


def _sources_by_language(sources: Any) -> Any:
    """Replaces each source with `{language}` by one for each of its `languages`. Raises ValueError."""
    if not isinstance(sources, list):
        return sources
    expanded: list[Any] = []
    for source in sources:
        copies = one_a_language(source)
        expanded += [source] if copies is None else [_with_language(*item) for item in copies.items()]
    return expanded


def _with_language(code: str, source: dict[str, Any]) -> dict[str, Any]:
    """The keys of a source of one language, written as its kind of source has it."""
    if "others" in source:
        return source
    return {**source, "language": code} if "other" in source else {**source, "languages": [code]}


def _limited_to_chosen(sources: list[Any], info: ValidationInfo) -> list[Any]:
    chosen = chosen_languages(info)
    limited = (_limited(source, only_chosen(source.languages, chosen)) for source in sources)
    return [source for source in limited if source is not None]


def _limited(source: Any, languages: list[str]) -> Any:
    """`source` with only these of its languages; None without any."""
    if languages == source.languages:
        return source
    if not languages:
        return None
    if isinstance(source, TranslationColumns):
        return source.model_copy(update={"others": {code: source.others[code] for code in languages}})
    return source.model_copy(update={"languages": languages})


BY_LANGUAGE = BeforeValidator(_sources_by_language)
"""Marks a list of sources in which one with `{language}` stands for several."""
ONLY_CHOSEN = AfterValidator(_limited_to_chosen)
"""Marks a list of sources that the `languages` of a stage limit."""
ParallelSources = Annotated[list[ParallelSource], BY_LANGUAGE, ONLY_CHOSEN]
UnlimitedSources = Annotated[list[UnlimitedSource], BY_LANGUAGE, ONLY_CHOSEN]


class LanguageChoice(Settings):
    """Base of the settings of a stage that reads parallel sources."""

    languages: Annotated[list[LanguageCode], EachOnce, RUN_ONLY] = []
    """Read only these languages of every source, and only test sets of these; all when empty."""

    def log_missing_languages(self) -> None:
        """Logs, for each list of sources, those of `languages` in which it has no text."""
        for name, field in type(self).model_fields.items():
            if ONLY_CHOSEN in field.metadata and name in self.model_fields_set:
                codes = [code for source in getattr(self, name) for code in source.languages]
                if missing := [code for code in self.languages if not only_chosen(codes, [code])]:
                    log(f"{name}: no source has text in {', '.join(missing)}")


class MarginFilter(Settings):
    """Drops pairs with a low ratio margin: the encoder's cosine of both sentences, compared with their neighbours'."""

    model: EncoderSource
    """Encoder of the languages, such as sentence-transformers/LaBSE, or an earlier student."""
    threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.06
    """Lowest margin to keep: 1.06 in CCMatrix (Schwenk et al. 2021), 1.04 in WikiMatrix."""
    k: Positive = NEIGHBOURS
    """Number of nearest neighbours of a sentence with which its margin compares."""


class Filters(Settings):
    """Pairs, and sentences of `english`, to leave out of training. Each one left out is counted with its reason."""

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
    margin: MarginFilter | None = None
    """Drop pairs with a low ratio margin by a multilingual encoder."""


class SplitSettings(LanguageChoice):
    """Parallel text in two parts, `train/` and `test/`, that share no English sentence; all of it is held in memory."""

    parallel: Annotated[UnlimitedSources, Field(min_length=1)]
    """Parallel sentences, of which each is in one of the parts; those without text in both languages are left out."""
    test_sentences: Positive = 1000
    """English sentences to hold out, with all their translations; a tenth of all where that is fewer."""
    seed: Seed = 42
    """Seed of the choice of sentences."""
    max_rejects: MaxRejects = 0.01


class CorpusSettings(Protocol):
    """Settings of a stage that decide what is in its parallel corpus."""

    @property
    def parallel(self) -> Sequence[ParallelSource]: ...
    @property
    def filters(self) -> Filters: ...
    @property
    def english(self) -> Sequence[EnglishSource]: ...
    @property
    def dev(self) -> Sequence[ParallelSource]: ...
    @property
    def dev_sentences(self) -> int: ...
    @property
    def retained(self) -> Sequence[Table]: ...
    @property
    def own_vectors(self) -> bool: ...
    @property
    def seed(self) -> int: ...
    @property
    def max_rejects(self) -> float: ...
