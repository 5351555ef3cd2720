"""Parallel text as people have it: translation memories, catalogues, archives and folders, as a stream of records."""

import gzip
import lzma
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, cast

from bertrelay.cache import Cache
from bertrelay.data.readers import QuotedFields, hub_configs, open_input, refuse_damaged, text_lines
from bertrelay.data.records import rows
from bertrelay.data.tables import NO_LINES, Table, Unusable, inner_suffix
from bertrelay.errors import RequestError
from bertrelay.fingerprint import note_folder, visible_files
from bertrelay.inputs import note_input
from bertrelay.languages import CODE, closest_code, is_language, is_registered
from bertrelay.progress import log
from bertrelay.settings import InputFile, nearest
from students.parallel.gettext import Catalogue, read_mo, read_po
from students.parallel.settings import ENGLISH, TranslationFiles
from students.parallel.tmx_xliff import INLINE_TAG, PLACEHOLDER, Segment, read_tmx, read_xliff, without_tags

DAMAGED = (zipfile.BadZipFile, RuntimeError, EOFError, OSError, ValueError, zlib.error, lzma.LZMAError, struct.error)
SIDE = re.compile(r"(?<=-)(src|ref)(?=\.)")
"""What distinguishes source and reference of one test set, in names such as those of NTREX."""
HIDDEN = re.compile(r"(^|/)\.(?!\.?/)")  # not ./ and ../
PAIR_LINES = re.compile(rf"{ENGLISH}-(.+)\.tsv")
PAIR_TABLE = re.compile(rf"{ENGLISH}-(.+)\.(csv|jsonl|parquet)")
HUB_CONFIG = re.compile(rf"{ENGLISH}-(.+)")
PAIR_COLUMNS = ["english", "non_english"]
"""Of the public sets named parallel-sentences-…, and of tables named as their configurations."""

TAGGED, WITH_PLACEHOLDER = "inline tags", "placeholder"
NO_ENGLISH, NO_TRANSLATION = "no English", "no translation"
MOST_PAIRS = 1_000
"""Of one segment and language: a memory has a few variants of a sentence, and pairs grow as the square of them."""
TOO_MANY = f"a segment with more than {MOST_PAIRS:,} pairs"
EMPTY = "empty side"
FILES_SHOWN = 8


class Translation(NamedTuple):
    """An English text and its translation into a language that was asked for; `dropped` says why not to use it."""

    language: str
    english: str
    other: str
    dropped: str = ""


Records = Iterator[list[Translation] | Unusable]
"""The translations of each record, into one language or several."""


@dataclass
class FileCounts:
    """What is found in a file: pairs by the reason why they are dropped, "" of good ones; the codes of its texts."""

    pairs: Counter[str] = field(default_factory=Counter)
    codes: set[str] = field(default_factory=set)

    def words(self) -> str:
        """Why a file gives no pair."""
        reasons = ", ".join(f"{count:,} × {reason or EMPTY}" for reason, count in self.pairs.most_common())
        codes = ", ".join(code or "none given" for code in sorted(self.codes))
        return (reasons or "no segments") + (f"; languages in it: {codes}" if codes else "")


def read_translation_files(
    source: TranslationFiles, cache: Cache | None, found: dict[str, FileCounts] | None = None
) -> Records:
    """The records of `source` in the order of its files: a segment, a message, or a row.

    found: gets the counts of each file.
    Raises RequestError for a file that is damaged, and for a source without any record.
    """
    found = {} if found is None else found
    is_empty = True
    for record in _of_hub(source, cache, found) if source.hub else _of_files(source, found):
        is_empty = False
        yield record
    if is_empty:
        raise no_translations(source, found)


def no_translations(source: TranslationFiles, found: Mapping[str, FileCounts]) -> RequestError:
    """The error of a source without translations, with the reasons by file."""
    files = [f"{name}: {counts.words()}" for name, counts in found.items()]
    suffix = inner_suffix(source.path or "")
    if not found and suffix != ".zip" and (remedy := NO_LINES.get(suffix)):
        return RequestError(f"{source.name}: expected translations, found a {suffix} file; {remedy}.")
    listed = "".join(f"\n  {line}" for line in [*files[:FILES_SHOWN], *(["…"] if files[FILES_SHOWN:] else [])])
    return RequestError(
        f"{source.name} has no translations into {', '.join(source.languages)}.{listed}\nCheck the languages; files "
        f"are known by their names: {', '.join(READERS)}, .zip, {ENGLISH}-de.tsv (.csv, .jsonl, .parquet), "
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


def _counted(records: Records, source: TranslationFiles, counts: FileCounts) -> Records:
    """The records of a file, pairs without markup."""
    for record in records:
        if isinstance(record, Unusable):
            yield record
            continue
        pairs = [_without_markup(pair, source) for pair in record]
        counts.pairs.update(pair.dropped for pair in pairs)
        yield pairs


def _of_hub(source: TranslationFiles, cache: Cache | None, found: dict[str, FileCounts]) -> Records:
    """The rows of the configuration of each language: `en-de`, or `en-zh-cn` where zh is asked for."""
    whole = Table(hub=source.hub, split=source.split, columns=[*PAIR_COLUMNS])
    named = (HUB_CONFIG.fullmatch(name) for name in hub_configs(whole, cache))
    configs = {match[1]: match[0] for match in named if match and is_registered(match[1])}
    for language in source.languages:
        code = closest_code(configs, language)
        if code is None:
            log(f"{source.name} has nothing in {language}")
            continue
        config = whole.model_copy(update={"config": configs[code]})
        counts = found.setdefault(config.name, FileCounts())
        yield from _counted(_rows(config, language, cache), source, counts)


def _rows(table: Table, language: str, cache: Cache | None = None) -> Records:
    """The rows of a table of English and `language`."""
    for row in rows(table, (), cache):
        if isinstance(row, Unusable):
            yield row
        elif all(isinstance(value, str) for value in row.values):
            yield [Translation(language, *row.values)]
        else:
            yield Unusable(row.file, row.line, "not text")


# Files: one, those of a folder, or those of an archive

Opener = Callable[[], AbstractContextManager[IO[bytes]]]
Members = Mapping[str, Opener]
"""The files of a source by name, and what opens each, unpacked."""


@contextmanager
def _members(path: Path) -> Iterator[Members]:
    if path.is_dir():
        note_folder(path)
        names = sorted(str(inner) for inner in visible_files(path) if inner.is_file())
        yield {name: partial(open_input, name) for name in names}
    elif path.suffix.lower() == ".zip":
        note_input(path)
        try:
            with zipfile.ZipFile(path) as archive:
                names = sorted(name for name in archive.namelist() if not HIDDEN.search(name) and name[-1] != "/")
                _check_once(path, names)
                yield {f"{path}/{name}": partial(_open_member, archive, name) for name in names}
        except RequestError:
            raise
        except DAMAGED as error:
            # cut off, damaged, packed by an unknown method, or with a password
            raise RequestError(f"{path} cannot be unpacked: {error}. Fetch or pack it again.") from None
    else:
        yield {str(path): partial(open_input, str(path))}


def _check_once(path: Path, names: Sequence[str]) -> None:
    """Raises RequestError for two files of one name, of which only one could be read by it."""
    if again := [name for name, count in Counter(names).items() if count > 1]:
        raise RequestError(
            f"{path}: expected each name once, found {len(again)} that several files have, the first of them "
            f"{again[0]!r}. Pack it again without older ones, or under different names."
        )


def _open_member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    member = archive.open(name)
    return cast(IO[bytes], gzip.GzipFile(fileobj=member)) if name.lower().endswith(".gz") else member


def _of_files(source: TranslationFiles, found: dict[str, FileCounts]) -> Records:
    path = Path(source.path or "")
    if not path.exists():
        near = nearest(path) or "Check the path"
        raise RequestError(f"there is no file or folder {path}. {near}; in a recipe it counts from its folder.")
    with _members(path) as members:
        aligned = _aligned_names(members)
        other_files = 0
        for name, opened in members.items():
            inner, suffix = _name_and_suffix(name)
            counts = FileCounts()
            if suffix in READERS:
                items = READERS[suffix](name, opened, source, counts)
            elif (lines := PAIR_LINES.fullmatch(inner)) and is_registered(lines[1]):
                items = _lines(name, opened, _asked(lines[1], source))
            elif (table := PAIR_TABLE.fullmatch(inner)) and is_registered(table[1]):
                items = _table(name, _asked(table[1], source))
            elif name in aligned:
                items = _aligned(name, aligned[name], members, source.languages)
            else:
                other_files += not any(name in partners.values() for partners in aligned.values())
                continue
            with refuse_damaged(name):
                found[name] = counts
                yield from _counted(items, source, counts)
        if other_files:
            are = "file is not read, as its name is" if other_files == 1 else "files are not read, as their names are"
            log(f"{source.name}: {other_files:,} {are} of no parallel text")


def _name_and_suffix(name: str) -> tuple[str, str]:
    """The name of a file without folder and `.gz`, and its suffix."""
    path = PurePosixPath(name)
    path = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return path.name, path.suffix.lower()


def _aligned_names(members: Iterable[str]) -> dict[str, dict[str, str]]:
    """English file to the files of the same rows in other languages, by code: `train.en` to `train.de`.

    Where a suffix is no code of such a set, another part of the name is: `deu_Latn.devtest` belongs to
    `eng_Latn.devtest`, and `newstest2019-ref.deu.txt` to `newstest2019-src.eng.txt`.
    """
    by_suffix = _sets_with_english(members, lambda parts: range(max(len(parts) - 1, 1), len(parts)))
    named = {name for english, others in by_suffix.items() for name in (english, *others.values())}
    others = [name for name in members if name not in named]
    return by_suffix | _sets_with_english(others, lambda parts: range(len(parts) - 1))


def _sets_with_english(
    names: Iterable[str], places: Callable[[Sequence[str]], Iterable[int]]
) -> dict[str, dict[str, str]]:
    """Files whose names differ in a language code alone, at one of the `places` of their dotted parts."""
    sets: dict[str, dict[str, str]] = {}
    for name in names:
        parts = _name_and_suffix(name)[0].split(".")
        for place in places(parts):
            if CODE.fullmatch(parts[place]) and is_registered(parts[place]):
                rest = SIDE.sub("", ".".join([*parts[:place], "*", *parts[place + 1 :]]))
                sets.setdefault(str(PurePosixPath(name).with_name(rest)), {})[parts[place]] = name
    found = {}
    for of_code in sets.values():
        english = closest_code(of_code, ENGLISH)
        if english is not None and len(of_code) > 1:
            found[of_code.pop(english)] = of_code
    return found


def _aligned(english: str, partners: dict[str, str], members: Members, languages: list[str]) -> Records:
    """The rows of two files of plain lines; the English is read once for each language."""
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


def _table(name: str, language: str) -> Records:
    """The rows of a file with the columns of the public sets. Raises RequestError for one in an archive."""
    if not language:
        return
    if not Path(name).is_file():
        raise RequestError(f"{name}: expected such a table outside of an archive; unpack it, and give its folder")
    yield from _rows(Table(path=InputFile(name), columns=[*PAIR_COLUMNS]), language)


def _lines(name: str, opened: Opener, language: str) -> Records:
    """Lines of English, a tab, and a translation."""
    if not language:
        return
    quotes = QuotedFields(name)
    with opened() as stream:
        for number, (text, _, fault) in enumerate(text_lines(name, stream), 1):
            fields = text.split("\t")
            quotes.add(fields)
            if fault:
                yield fault
            elif len(fields) < 2:
                yield Unusable(name, number, "too few fields", f"expected 2, found {len(fields)}")
            else:
                yield [Translation(language, *fields[:2])]
    quotes.warn()


def _memory(
    read: Callable[[str, IO[bytes], str], Iterator[Segment | Unusable]],
    name: str,
    opened: Opener,
    source: TranslationFiles,
    counts: FileCounts,
) -> Records:
    """The pairs of a translation memory: of each segment one for each language that was asked for."""
    with opened() as stream:
        for segment in read(name, stream, _code_in_name(name)):
            if isinstance(segment, Unusable):
                yield segment
                continue
            texts, tagged, dropped = segment
            counts.codes.update(code for code, _ in texts)
            english = _texts_in(ENGLISH, texts)
            reason = dropped or (TAGGED if tagged and source.tags == "skip" else "")
            yield [pair for language in source.languages for pair in _pairs(language, english, texts, reason)]


def _code_in_name(name: str) -> str:
    """The language code of `de.po`, `messages.de.xlf` and `plugin-de_DE.po`, or nothing."""
    stem = PurePosixPath(_name_and_suffix(name)[0]).stem
    codes = (stem, stem.rpartition(".")[2], stem.rpartition("-")[2])
    return next((code for code in codes if CODE.fullmatch(code) and is_registered(code)), "")


def _pairs(language: str, english: Sequence[str], texts: Sequence[tuple[str, str]], reason: str) -> list[Translation]:
    """Every English text of a segment with every one in `language`, of which a memory may have several."""
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


def _catalogue(
    read: Callable[[str, IO[bytes]], Catalogue],
    name: str,
    opened: Opener,
    source: TranslationFiles,
    counts: FileCounts,
) -> Records:
    """The pairs of a catalogue, whose language its folder, its header or its name gives."""
    path = PurePosixPath(name)
    folder_language = path.parent.parent.name if path.parent.name == "LC_MESSAGES" else ""
    if folder_language and not _asked(folder_language, source):
        counts.codes.add(folder_language)
        return
    with opened() as stream:
        catalogue, language = read(name, stream), None
        for message in catalogue.messages:
            if language is None:  # not of a file without messages
                code = folder_language or _catalogue_language(name, catalogue.language)
                counts.codes.add(code)
                language = _asked(code, source)
            if not language:
                return
            yield message if isinstance(message, Unusable) else [Translation(language, *message)]


def _catalogue_language(name: str, in_header: str) -> str:
    """The code in the header of a catalogue or in its name. Raises RequestError where neither has one."""
    in_name = _code_in_name(name)
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


def _asked(code: str, source: TranslationFiles) -> str:
    """The language of `source` that `code` is, or nothing."""
    return next((language for language in source.languages if is_language(code, language)), "")


READERS: dict[str, Callable[[str, Opener, TranslationFiles, FileCounts], Records]] = {
    ".tmx": partial(_memory, read_tmx),
    ".xlf": partial(_memory, read_xliff),
    ".xliff": partial(_memory, read_xliff),
    ".po": partial(_catalogue, read_po),
    ".mo": partial(_catalogue, read_mo),
}
