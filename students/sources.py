"""Where parallel sentences come from and which pairs are kept: settings alone, with nothing heavy to load."""

import re
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from bertrelay.data.tables import Column, Format, Table, TableSource, format_of, refuse_idle_header
from bertrelay.settings import DataSource, InputFile, Settings

ENGLISH = "en"
LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")


def _language(value: str) -> str:
    if not LANGUAGE.fullmatch(value):
        raise ValueError(f"expected a language code such as de, ko or zh-Hant, found {value!r}")
    if value == ENGLISH:
        raise ValueError("the other side cannot be en as well; name a variety of English en-x-plain, for example")
    return value


Language = Annotated[str, AfterValidator(_language)]


class AlignedFiles(DataSource):
    """Two files in which row n of one translates row n of the other: plain lines, or the same table in two languages.

    column: which column of both files holds the sentence.
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
        """What accounts call it."""
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


def _kind(value: Any) -> str | None:
    """Which kind of source the keys of `value` speak of, so that mistakes are judged by that kind alone."""
    keys = set(value) if isinstance(value, dict) else set(type(value).model_fields) if _is_source(value) else set()
    if keys & {"others", "path", "hub"}:
        return "columns"
    if keys & {"other", "language", "english"}:
        return "files"
    return None


def _is_source(value: Any) -> bool:
    return isinstance(value, AlignedFiles | TranslationColumns)


ParallelSource = Annotated[
    Annotated[AlignedFiles, Tag("files")] | Annotated[TranslationColumns, Tag("columns")],
    Discriminator(
        _kind,
        custom_error_type="parallel_source",
        custom_error_message="expected either two aligned files, { english = FILE, other = FILE, language = 'de' }, "
        "or a table, { path = FILE, english = 'en', others = { de = 'de' } } (hub = NAME in place of path)",
    ),
]


class Filters(Settings):
    """Which pairs are left out of training. Each one left out is counted with its reason.

    max_characters: of either side; longer ones are seldom one sentence, and a student would see them cut.
    max_length_ratio: of the longer side to the shorter, where the longer has at least 30 characters. East Asian wide
    characters (Unicode TR 11) count as two, as one of them says about as much as two letters; short pairs are spared,
    because "Yes." rightly becomes "Oui, bien sûr."
    drop_copies: pairs whose two sides are the same but for case and spaces, which are mostly untranslated.
    drop_duplicates: the same translation of the same English, given again.
    """

    max_characters: Annotated[int, Field(ge=1)] = 1000
    max_length_ratio: Annotated[float, Field(ge=1)] = 3.0
    drop_copies: bool = True
    drop_duplicates: bool = True
