"""Files of translations as a stream of records: translation memories, catalogues, tables and aligned lines."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from bertrelay.cache import Cache
from bertrelay.data.readers import QuotedFields, hub_configs, refuse_damaged, text_lines
from bertrelay.data.records import rows
from bertrelay.data.tables import NO_LINES, Rejected, Table, inner_suffix
from bertrelay.errors import RequestError
from bertrelay.languages import CODE, closest_code, is_language, is_registered
from bertrelay.progress import log
from bertrelay.settings import InputFile
from students.parallel.archives import Members, Opener, open_members
from students.parallel.file_names import aligned_files, code_in_name, name_and_suffix
from students.parallel.gettext import Catalogue, read_mo, read_po
from students.parallel.settings import ENGLISH, TranslationFiles
from students.parallel.tmx_xliff import INLINE_TAG, PLACEHOLDER, Segment, read_tmx, read_xliff, without_tags

PAIR_LINES = re.compile(rf"{ENGLISH}-(.+)\.tsv")
PAIR_TABLE = re.compile(rf"{ENGLISH}-(.+)\.(csv|jsonl|parquet)")
HUB_CONFIG = re.compile(rf"{ENGLISH}-(.+)")
PAIR_COLUMNS = ["english", "non_english"]
"""Columns of the public sets named parallel-sentences-…, and of tables named as their configurations."""

TAGGED, WITH_PLACEHOLDER = "inline tags", "placeholder"
NO_ENGLISH, NO_TRANSLATION = "no English", "no translation"
MOST_PAIRS = 1_000
"""Most pairs of one segment and language: a memory has a few variants of a sentence, and pairs grow as their square."""
TOO_MANY = f"a segment with more than {MOST_PAIRS:,} pairs"
EMPTY = "empty text"
FILES_SHOWN = 8


class Translation(NamedTuple):
    """An English text and its translation into one of the languages of a source; `dropped` says why not to use it."""

    language: str
    english: str
    other: str
    dropped: str = ""


Records = Iterator[list[Translation] | Rejected]
"""The translations of each record, into one language or several."""


@dataclass
class FileCounts:
    """Counts of a file: pairs by the reason why they are dropped, "" of good ones; and the codes of its texts."""

    pairs: Counter[str] = field(default_factory=Counter)
    codes: set[str] = field(default_factory=set)

    def describe(self) -> str:
        """Words for an error about a file without pairs: `1 × fuzzy; languages in it: fr`."""
        reasons = ", ".join(f"{count:,} × {reason or EMPTY}" for reason, count in self.pairs.most_common())
        codes = ", ".join(code or "none given" for code in sorted(self.codes))
        return (reasons or "no segments") + (f"; languages in it: {codes}" if codes else "")


def read_translation_files(
    source: TranslationFiles, cache: Cache | None, counts: dict[str, FileCounts] | None = None
) -> Records:
    """Streams the records of `source` in the order of its files: a segment, a message, or a row.

    counts: gets the counts of each file, by name.
    Raises RequestError for a file that is damaged, and for a source without any record.
    """
    counts = {} if counts is None else counts
    is_empty = True
    for record in _read_hub(source, cache, counts) if source.hub else _read_files(source, counts):
        is_empty = False
        yield record
    if is_empty:
        raise no_translations(source, counts)


def no_translations(source: TranslationFiles, counts: Mapping[str, FileCounts]) -> RequestError:
    """The error about a source without translations, with the reasons by file."""
    files = [f"{name}: {of_file.describe()}" for name, of_file in counts.items()]
    suffix = inner_suffix(source.path or "")
    if not counts and suffix != ".zip" and (remedy := NO_LINES.get(suffix)):
        return RequestError(f"{source.name}: expected translations, found a {suffix} file; {remedy}.")
    listed = "".join(f"\n  {line}" for line in [*files[:FILES_SHOWN], *(["…"] if files[FILES_SHOWN:] else [])])
    return RequestError(
        f"{source.name} has no translations into {', '.join(source.languages)}.{listed}\nCheck the languages; files "
        f"are recognised by their names: {', '.join(READERS)}, .zip, {ENGLISH}-de.tsv (.csv, .jsonl, .parquet), "
        f"train.{ENGLISH} beside train.de. A file that names no language of its translations may have it in its name: "
        "messages.de.xlf, de.po."
    )


def _without_markup(pair: Translation, source: TranslationFiles) -> Translation:
    """`pair` without HTML-like tags, or with the reason why its markup leaves it out."""
    texts = pair.english, pair.other
    if pair.dropped:
        return pair
    if source.placeholders == "skip" and any(map(PLACEHOLDER.search, texts)):
        return pair._replace(dropped=WITH_PLACEHOLDER)
    if not any(map(INLINE_TAG.search, texts)):
        return pair
    if source.tags == "skip":
        return pair._replace(dropped=TAGGED)
    english, other = map(without_tags, texts)
    return pair._replace(english=english, other=other)


def _count_pairs(records: Records, source: TranslationFiles, counts: FileCounts) -> Records:
    """Streams the records of a file, their pairs without markup, and counts the pairs."""
    for record in records:
        if isinstance(record, Rejected):
            yield record
            continue
        pairs = [_without_markup(pair, source) for pair in record]
        counts.pairs.update(pair.dropped for pair in pairs)
        yield pairs


def _read_hub(source: TranslationFiles, cache: Cache | None, counts: dict[str, FileCounts]) -> Records:
    """Streams the rows of the configuration of each language: `en-de`, or `en-zh-cn` for zh."""
    table = Table(hub=source.hub, split=source.split, columns=[*PAIR_COLUMNS])
    matches = (HUB_CONFIG.fullmatch(name) for name in hub_configs(table, cache))
    configs = {match[1]: match[0] for match in matches if match and is_registered(match[1])}
    for language in source.languages:
        code = closest_code(configs, language)
        if code is None:
            log(f"{source.name} has nothing in {language}")
            continue
        config = table.model_copy(update={"config": configs[code]})
        of_config = counts.setdefault(config.name, FileCounts())
        yield from _count_pairs(_read_rows(config, language, cache), source, of_config)


def _read_rows(table: Table, language: str, cache: Cache | None = None) -> Records:
    """Streams the rows of a table of English and `language`."""
    for row in rows(table, (), cache):
        if isinstance(row, Rejected):
            yield row
        elif all(isinstance(value, str) for value in row.values):
            yield [Translation(language, *row.values)]
        else:
            yield Rejected("not text", file=row.file, line=row.line)


def _read_files(source: TranslationFiles, counts: dict[str, FileCounts]) -> Records:
    with open_members(Path(source.path or "")) as members:
        aligned = aligned_files(members)
        other_files = 0
        for name, opener in members.items():
            inner, suffix = name_and_suffix(name)
            of_file = FileCounts()
            if suffix in READERS:
                records = READERS[suffix](name, opener, source, of_file)
            elif (lines := PAIR_LINES.fullmatch(inner)) and is_registered(lines[1]):
                records = _read_lines(name, opener, _language_of(lines[1], source))
            elif (table := PAIR_TABLE.fullmatch(inner)) and is_registered(table[1]):
                records = _read_table(name, _language_of(table[1], source))
            elif name in aligned:
                records = _read_aligned(name, aligned[name], members, source.languages)
            else:
                other_files += not any(name in partners.values() for partners in aligned.values())
                continue
            with refuse_damaged(name):
                counts[name] = of_file
                yield from _count_pairs(records, source, of_file)
        if other_files:
            are = "file is not read, as its name is" if other_files == 1 else "files are not read, as their names are"
            log(f"{source.name}: {other_files:,} {are} of no parallel text")


def _language_of(code: str, source: TranslationFiles) -> str:
    """The language of `source` that `code` is, or nothing."""
    return next((language for language in source.languages if is_language(code, language)), "")


def _read_aligned(english: str, partners: dict[str, str], members: Members, languages: list[str]) -> Records:
    """Streams the rows of two files of plain lines; the English is read once for each language."""
    chosen = {language: code for language in languages if (code := closest_code(partners, language))}
    for code in partners.keys() - chosen.values():
        if any(is_language(code, language) for language in chosen):
            log(f"{partners[code]} is not read, as another file has the same rows in a language that is closer")
    for language, code in chosen.items():
        other = partners[code]
        with members[english]() as left, members[other]() as right:
            for number, row in enumerate(zip_longest(text_lines(english, left), text_lines(other, right)), 1):
                if None in row:
                    shorter = english if row[0] is None else other
                    raise RequestError(
                        f"row n of {english} should belong to row n of {other}, but {shorter} ends after "
                        f"{number - 1:,} lines. Find the line that is missing or too many."
                    )
                (first, _, fault), (second, _, fault_of_second) = row
                yield fault or fault_of_second or [Translation(language, first, second)]


def _read_table(name: str, language: str) -> Records:
    """Streams the rows of a file with the columns of the public sets. Raises RequestError for one in an archive."""
    if not language:
        return
    if not Path(name).is_file():
        raise RequestError(f"{name}: expected such a table outside of an archive; unpack it, and give its folder")
    yield from _read_rows(Table(path=InputFile(name), columns=[*PAIR_COLUMNS]), language)


def _read_lines(name: str, opener: Opener, language: str) -> Records:
    """Streams lines of English, a tab, and a translation."""
    if not language:
        return
    quotes = QuotedFields(name)
    with opener() as stream:
        for number, (text, _, fault) in enumerate(text_lines(name, stream), 1):
            fields = text.split("\t")
            quotes.add(fields)
            if fault:
                yield fault
            elif len(fields) < 2:
                yield Rejected("too few fields", f"expected 2, found {len(fields)}", file=name, line=number)
            else:
                yield [Translation(language, *fields[:2])]
    quotes.warn()


def _read_memory(
    read: Callable[[str, IO[bytes], str], Iterator[Segment | Rejected]],
    name: str,
    opener: Opener,
    source: TranslationFiles,
    counts: FileCounts,
) -> Records:
    """Streams the pairs of a translation memory: of each segment one for each language of `source`."""
    with opener() as stream:
        for segment in read(name, stream, code_in_name(name)):
            if isinstance(segment, Rejected):
                yield segment
                continue
            texts, tagged, dropped = segment
            counts.codes.update(code for code, _ in texts)
            english = _texts_in(ENGLISH, texts)
            reason = dropped or (TAGGED if tagged and source.tags == "skip" else "")
            yield [pair for language in source.languages for pair in _pairs(language, english, texts, reason)]


def _pairs(language: str, english: Sequence[str], texts: Sequence[tuple[str, str]], reason: str) -> list[Translation]:
    """Pairs every English text of a segment with every one in `language`, of which a memory may have several."""
    others = _texts_in(language, texts)
    if not english:
        return [Translation(language, "", (others or [""])[0], NO_ENGLISH)]
    if not others:
        return [Translation(language, english[0], "", NO_TRANSLATION)]
    if len(english) * len(others) > MOST_PAIRS:
        return [Translation(language, english[0], others[0], TOO_MANY)]
    return [Translation(language, text, other, reason) for text in english for other in others]


def _texts_in(language: str, texts: Iterable[tuple[str, str]]) -> list[str]:
    return [text for code, text in texts if is_language(code, language)]


def _read_catalogue(
    read: Callable[[str, IO[bytes]], Catalogue],
    name: str,
    opener: Opener,
    source: TranslationFiles,
    counts: FileCounts,
) -> Records:
    """Streams the pairs of a catalogue, whose language its folder, its header or its name gives."""
    path = PurePosixPath(name)
    folder_language = path.parent.parent.name if path.parent.name == "LC_MESSAGES" else ""
    if folder_language and not _language_of(folder_language, source):
        counts.codes.add(folder_language)
        return
    with opener() as stream:
        catalogue, language = read(name, stream), None
        for message in catalogue.messages:
            if language is None:  # not of a file without messages
                code = folder_language or _catalogue_language(name, catalogue.language)
                counts.codes.add(code)
                language = _language_of(code, source)
            if not language:
                return
            yield message if isinstance(message, Rejected) else [Translation(language, *message)]


def _catalogue_language(name: str, in_header: str) -> str:
    """The code in the header of a catalogue or in its name. Raises RequestError where neither has one."""
    in_name = code_in_name(name)
    code = in_header or in_name or PurePosixPath(name).stem
    if CODE.fullmatch(code):
        return code
    if in_name:
        log(f"{name}: its language is {in_name}, as in its name; {code[:40]!r} in its header is no code")
        return in_name
    raise RequestError(
        f"{name}: expected its language in the header (`Language: de`), the folder (de/LC_MESSAGES) or the name "
        f"(de.po), found {code[:40]!r}"
    )


READERS: dict[str, Callable[[str, Opener, TranslationFiles, FileCounts], Records]] = {
    ".tmx": partial(_read_memory, read_tmx),
    ".xlf": partial(_read_memory, read_xliff),
    ".xliff": partial(_read_memory, read_xliff),
    ".po": partial(_read_catalogue, read_po),
    ".mo": partial(_read_catalogue, read_mo),
}
