"""Catalogues, against msgfmt, Python's gettext and entries written by hand."""

import gettext
import random
import shutil
import subprocess

import pytest
from translation_writers import mo, mo_bytes, po, read

from bertrelay.data import readers
from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from students.parallel.pairs import PairCounts, read_pairs
from students.parallel.settings import TranslationFiles

RUSSIAN = "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);"
MARKED = {"_Open": "Open", "E&xit": "Exit", "Prefere_nces": "Preferences"}
MARKED |= {text: text for text in ("AT&T", "a_b_c", "foo_bar option", "salt&pepper", "http://x.org/?a=1&b=2")}
FREE_FORMS = [  # which msgfmt compiles
    'msgid\n"A cat"\nmsgstr\n"Eine Katze"\n',
    '#one\nmsgid\n"A "\n\n"cat"\nmsgstr\n"Eine "\n"Katze"\n#next\n#~| msgid "B"',
    'msgid\n""\n"A cat"\nmsgstr ""\n"Eine Katze"\n',
    'msgid\n""\nmsgstr\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Language: de\\n"\nmsgid\n"A cat"\nmsgstr\n'
    '"Eine Katze"\n',
]
BY_HAND = [
    ("de.po", 'msgid "Select _all"\nmsgstr "Alle ausw_ählen"\n', "de", [("de", "Select all", "Alle auswählen", "")]),
    ("de.po", 'msgid "A user_name"\nmsgstr "Der Nutzer_name"\n', "de", [("de", "A user_name", "Der Nutzer_name", "")]),
    ("de.po", 'msgid "Add charset=foo"\nmsgstr "Größe"\n', "de", [("de", "Add charset=foo", "Größe", "")]),
    *(("de.po", f'msgid "{key}"\nmsgstr "x"\n', "de", [("de", text, "x", "")]) for key, text in MARKED.items()),
    (
        "de.po",
        'msgid ""\nmsgstr "Language: German\\n"\n\nmsgid "Open"\nmsgstr "Auf"\n',
        "de",
        [("de", "Open", "Auf", "")],
    ),
    *(("de.po", content, "de", [("de", "A cat", "Eine Katze", "")]) for content in FREE_FORMS),
    ("de.po", 'msgid "A\u2028cat"\nmsgstr "Eine\u2028Katze"\n', "de", [("de", "A\u2028cat", "Eine\u2028Katze", "")]),
    (
        "a.po",
        f'msgid ""\nmsgstr "Language: ru\\nPlural-Forms: {RUSSIAN}\\n"\n\nmsgid "a file"\nmsgid_plural "files"\n'
        'msgstr[0] "файл"\nmsgstr[1] "файла"\nmsgstr[2] "файлов"\nmsgstr[3] "?"\n',
        "ru",
        [
            *(("ru", "a file", "файл", ""), ("ru", "files", "файла", ""), ("ru", "files", "файлов", "")),
            ("ru", "files", "?", "a plural form that the header does not have"),
        ],
    ),
]


@pytest.mark.parametrize(("name", "content", "language", "pairs"), BY_HAND)
def test_pairs_of_a_catalogue_are_those_that_people_read(tmp_path, name, content, language, pairs):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read(tmp_path / name, language) == (pairs, [])


def test_a_broken_string_of_a_catalogue_is_counted_with_its_line_and_changes_no_other_entry(tmp_path):
    """The third message has no quote at its end; plural forms stand apart from their numbers."""
    (tmp_path / "de.po").write_text(
        'msgid\n"a file"\nmsgid_plural\n"files"\nmsgstr [0]\n"Datei"\nmsgstr [ 1 ] "Dateien"\n'
        'msgid\n"no text"\nmsgstr\n\nmsgid\n"open\nmsgstr "x"\n\nmsgid "Yes"\nmsgstr\n"Ja"\n\n'
        'msgid "No"\nmsgstr "Nein"\n# a keyword is missing\n\n"Auf"\n'
    )
    pairs, faults = read(tmp_path / "de.po", "de")
    expected = ("a file", "Datei", ""), ("files", "Dateien", ""), ("no text", "", ""), ("Yes", "Ja", "")
    assert [pair[1:] for pair in pairs] == list(expected)
    assert [(fault.line, fault.reason) for fault in faults] == [(line, "not a line of a .po file") for line in (13, 24)]


ONE_LINE = 'msgid "A cat" msgstr "Eine Katze"\n'
NOT_READ = [  # by polib, and compiled by msgfmt
    'msgid "A cat"\nmsgstr "Eine " "Katze"\n',
    'msgid "A cat"\nmsgstr "K\\303\\266ter\\x21"\n',
    'msgid "A cat"\nmsgstr "\\a"\n',
]


@pytest.mark.parametrize("entry", NOT_READ)
def test_an_entry_of_msgfmt_that_polib_does_not_read_is_counted_with_its_line(tmp_path, entry):
    (tmp_path / "de.po").write_text(entry + '\nmsgid "Yes"\nmsgstr "Ja"\n')
    pairs, faults = read(tmp_path / "de.po", "de")
    assert pairs == [("de", "Yes", "Ja", "")]
    assert [(fault.line, fault.reason) for fault in faults] == [(2, "not a line of a .po file")]


@pytest.mark.skipif(shutil.which("msgcat") is None, reason="gettext is not installed")
@pytest.mark.parametrize("entry", [ONE_LINE, *NOT_READ[:2]])
def test_the_command_that_errors_name_makes_a_catalogue_readable(tmp_path, entry):
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    (tmp_path / "old.po").write_text(header + entry)
    subprocess.run(["msgcat", tmp_path / "old.po", "-o", tmp_path / "de.po"], check=True)
    [(_, english, other, dropped)], faults = read(tmp_path / "de.po", "de")
    assert (english, dropped, faults) == ("A cat", "", []) and other in ("Eine Katze", "Köter!")


@pytest.mark.parametrize(
    ("entry", "error_text"),
    [
        (
            'msgid "a"\nmsgid "b"\nmsgstr "c"\n',
            "line 2: expected msgctxt, msgid, msgid_plural and msgstr in this order",
        ),
        ('# of no message\nmsgstr "c"\n', "line 2: expected msgctxt, msgid"),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr[0] "c"\n"d"\nmsgstr[0] "e"\n', r"line 5: msgstr\[0\] is there twice"),
    ],
)
def test_entries_whose_keywords_do_not_fit_are_refused_with_the_line(tmp_path, entry, error_text):
    (tmp_path / "de.po").write_text(entry)
    with pytest.raises(RequestError, match=rf"de\.po, {error_text}"):
        read(tmp_path / "de.po", "de")


@pytest.mark.parametrize("name", ["de.po", "de.mo"])
def test_a_catalogue_too_large_to_be_held_in_memory_is_refused(tmp_path, monkeypatch, name):
    content = po if name == "de.po" else mo
    expected, _ = content(random.Random(0), tmp_path / name)
    monkeypatch.setattr(readers, "LONGEST_LINE", (tmp_path / name).stat().st_size)
    assert len(read(tmp_path / name, "de")[0]) == len(expected)
    monkeypatch.setattr(readers, "LONGEST_LINE", (tmp_path / name).stat().st_size - 1)
    with pytest.raises(RequestError, match=rf"{name}: expected at most 0 MiB, found more"):
        read(tmp_path / name, "de")


def test_a_folder_of_catalogues_is_read_as_gettext_reads_it(tmp_path):
    header = b"Content-Type: text/plain; charset=ISO-8859-2\nLanguage: xx\n"
    for code, word in {"cs": "Otevřít…", "de": "Öffnen", "de_AT": "Aufmachen"}.items():
        folder = tmp_path / code / "LC_MESSAGES"
        folder.mkdir(parents=True)
        messages = [(b"", header), (b"_Open", word.replace("…", "").encode("iso-8859-2"))]
        (folder / "a.mo").write_bytes(mo_bytes(messages))
        with (folder / "a.mo").open("rb") as file:
            assert gettext.GNUTranslations(file).gettext("_Open") == word.replace("…", "")
    pairs, _ = read(tmp_path, "cs", "de")
    assert pairs == [("cs", "Open", "Otevřít", ""), ("de", "Open", "Öffnen", ""), ("de", "Open", "Aufmachen", "")]


@pytest.mark.parametrize(
    ("content_type", "meant"),
    [("Content-Type: text/plain; charset=UTF-8\\n", "its header names"), ("", "meant where its header names none")],
)
def test_a_catalogue_in_another_encoding_than_its_header_names_is_named_with_the_command(tmp_path, content_type, meant):
    text = f'msgid ""\nmsgstr "Language: ko\\n{content_type}"\n\nmsgid "Hi"\nmsgstr "안녕"\n'
    (tmp_path / "ko.po").write_bytes(text.encode("cp949"))
    source = TranslationFiles(path=str(tmp_path / "ko.po"), languages=["ko"])
    message = rf"not valid UTF-8 in \S+ko\.po; it looks like CP949 .*iconv -f CP949.* \(which (is )?{meant}\)"
    with pytest.raises(WorkError, match=message), Rejects(None) as rejects:
        list(read_pairs([source], None, rejects, PairCounts([source])))


@pytest.mark.parametrize(
    ("header", "error_text"),
    [
        ("Plural-Forms: nplurals=2; plural=n%0;", r"de\.po, line 1: Plural-Forms: n%0"),
        ("Plural-Forms: nplurals=1000000000; plural=0;", r"line 1: .*expected at most 10 plural forms"),
        ("Content-Type: text/plain; charset=hex", r"de\.po, line 3: expected a character set, found charset=hex"),
        ("Content-Type: text/plain; charset=undefined", r"line 3: expected a character set"),
    ],
)
def test_a_header_that_cannot_be_used_is_refused_with_its_line(tmp_path, header, error_text):
    (tmp_path / "de.po").write_text(f'msgid ""\nmsgstr ""\n"{header}\\n"\n\nmsgid "Open"\nmsgstr "Auf"\n')
    with pytest.raises(RequestError, match=error_text):
        read(tmp_path / "de.po", "de")


@pytest.mark.parametrize("name", ["punycode", "idna", "unicode_escape", "hex"])
def test_a_codec_that_is_no_character_set_is_refused(tmp_path, name):
    (tmp_path / "de.po").write_text(f'msgid ""\nmsgstr "Content-Type: text/plain; charset={name}\\n"\n')
    with pytest.raises(RequestError, match=f"expected a character set, found charset={name}"):
        read(tmp_path / "de.po", "de")
