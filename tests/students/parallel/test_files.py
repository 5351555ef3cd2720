"""Translation memories, catalogues, archives and folders: files written here by other means than the readers'."""

import gettext
import gzip
import json
import random
import struct
import time
import zipfile
from collections import Counter
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertrelay.cache import Cache
from bertrelay.data import readers
from bertrelay.data.records import Rejects
from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError, WorkError
from students.parallel.files import read_translation_files
from students.parallel.pairs import PairCounts, read_pairs
from students.parallel.settings import TranslationColumns, TranslationFiles

LETTERS = "abc déß жшя 日本語 한국 &<>\"'\\"
FILES = 100


def read(path, *languages, **settings):
    """(language, English, other, why it is dropped) of every pair, and what cannot be used."""
    source = TranslationFiles(path=str(path), languages=list(languages), **settings)
    records = list(read_translation_files(source, None))
    pairs = [tuple(pair) for record in records if isinstance(record, list) for pair in record]
    return pairs, [record for record in records if isinstance(record, Unusable)]


def text_of(generator):
    letters = generator.choice([LETTERS, "abc &<>\"'\\"])
    words = ("".join(generator.choices(letters, k=generator.randint(1, 8))) for _ in range(generator.randint(1, 6)))
    return f"x{' '.join(words)}x".replace("</", "<").replace("<", "< ")  # no tag of HTML


# Each writer makes a file of random content, and lists what a reader asked for German and French has to find


def tmx(generator, path):
    encoding = generator.choice(["utf-8", "utf-16", "iso-8859-1", "utf-8-sig"])
    lines, expected = [], []
    for _ in range(generator.randint(1, 12)):
        texts = {code: text_of(generator) for code in generator.sample(["en", "de", "fr", "ja"], 3)}
        codes = {"en": ["en", "EN-US", "en_GB"], "de": ["de", "de-AT"], "fr": ["fr", "FR-ca"], "ja": ["ja"]}
        tags = generator.random() < 0.4
        body = "".join(
            f"<tuv {generator.choice(['xml:lang', 'lang'])}={quoteattr(generator.choice(codes[code]))}>"
            f"<seg>{marked(generator, text) if tags else escaped(generator, text)}</seg></tuv>"
            for code, text in texts.items()
        )
        lines.append(f"<tu><note>{escape(text_of(generator))}</note>{body}</tu>")
        for code in ("de", "fr"):
            dropped = "no English" if "en" not in texts else "" if code in texts else "no translation"
            expected.append((code, texts.get("en", ""), texts.get(code, ""), dropped))
    declared = "utf-8" if encoding == "utf-8-sig" else encoding
    text = f'<?xml version="1.0" encoding="{declared}"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'
    text += '<tmx version="1.4"><header srclang="en"/><body>\n' + "\n".join(lines) + "\n</body></tmx>\n"
    path.write_bytes(text.encode(encoding, "xmlcharrefreplace"))
    return expected, 0


def escaped(generator, text):
    """`text` with entities, or as a CDATA section."""
    if text.isascii() and generator.random() < 0.3:
        return f"<![CDATA[{text}]]>"
    return "".join(f"&#{ord(letter)};" if generator.random() < 0.1 else escape(letter) for letter in text)


def marked(generator, text):
    """`text` with inline tags at a random place: code, which is no text, and marks around text."""
    place = generator.randint(0, len(text))
    before, after = escape(text[:place]), escape(text[place:])
    code = '<ph x="1">&lt;br/&gt;<sub>inner</sub></ph>'
    return generator.choice([f"{before}{code}{after}", f"<hi><hi>{before}</hi>{code}</hi>{after}"])


def xliff(generator, path, version="1.2"):
    lines, expected = [], []
    for number in range(generator.randint(1, 12)):
        source, target = text_of(generator), text_of(generator)
        kind = generator.choice(["plain", "plain", "missing", "new", "locked"])
        state = ' state="needs-translation"' if kind == "new" and version == "1.2" else ""
        inner = "" if kind == "missing" else f"<target{state}>{escaped(generator, target)}</target>"
        locked = ' translate="no"' if kind == "locked" or (kind == "new" and version == "2.0") else ""
        content = f"<source>{escaped(generator, source)}</source>{inner}"
        if version == "1.2":
            more = "<alt-trans><source>other</source><target>anders</target></alt-trans>"
            lines.append(f'<trans-unit id="{number}"{locked}>{content}{more}</trans-unit>')
        else:
            more = '<m:matches xmlns:m="m"><m:match><source>other</source><target>anders</target></m:match></m:matches>'
            lines.append(f'<unit id="{number}"{locked}>{more}<segment>{content}</segment></unit>')
        dropped = {"plain": "", "missing": "no translation"}.get(kind, "not translated")
        expected.append(("de", source, "" if kind == "missing" else target, dropped))
    body = "".join(lines)
    if version == "1.2":
        text = (
            '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="a" '
            f'source-language="en-US" target-language="de-DE"><body><group>{body}</group></body></file></xliff>'
        )
    else:
        text = (
            '<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="de">'
            f'<file id="f">{body}</file></xliff>'
        )
    path.write_text(text, encoding="utf-8")
    return expected, 0


def xliff_2(generator, path):
    return xliff(generator, path, "2.0")


def quoted(generator, text):
    """`text` as strings of a catalogue, on one line or on several."""
    place = generator.randint(0, len(text))
    parts = [text] if generator.random() < 0.6 else ["", text[:place], text[place:]]
    return "\n".join('"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"' for part in parts)


def po(generator, path):
    lines = ['msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Language: de\\n"']
    lines[0] += '\n"Plural-Forms: nplurals=2; plural=(n != 1);\\n"'
    expected = []
    for number in range(generator.randint(1, 12)):
        english, other = (f"{text_of(generator)}{number}".replace("&", "+") for _ in range(2))
        kind = generator.choice(["plain", "plain", "fuzzy", "obsolete", "plural", "empty"])
        entry = f"msgid {quoted(generator, english)}\nmsgstr {quoted(generator, '' if kind == 'empty' else other)}"
        if kind == "plural":
            entry = (
                f"msgid {quoted(generator, english)}\nmsgid_plural {quoted(generator, english + 's')}\n"
                f"msgstr[0] {quoted(generator, other)}\nmsgstr[1] {quoted(generator, other + 'e')}"
            )
            expected += [("de", english, other, ""), ("de", english + "s", other + "e", "")]
        else:
            dropped = kind if kind in ("fuzzy", "obsolete") else ""
            expected.append(("de", english, "" if kind == "empty" else other, dropped))
        context = 'msgctxt "menu"\n' if generator.random() < 0.3 else ""
        former = generator.choice(["", "", '| msgid "a"\n#| "b"\n'])
        comment = generator.choice(["", "#\n", "#near\n", "# far\n", "#,c-format\n"])
        if kind == "obsolete":
            entry = former.replace("#|", "#~|") + context + entry
            lines.append(
                comment
                + "\n".join(
                    line if line[0] == "#" else f"#~{line}" if line[0] == "|" else f"#~ {line}"
                    for line in entry.split("\n")
                )
            )
        else:
            flags = "#: main.c:1\n#, c-format, fuzzy\n" if kind == "fuzzy" else ""
            lines.append(comment + flags + (f"#{former}" if former else "") + context + entry)
    content = generator.choice(["\n\n", "\n"]).join(lines) + "\n"
    path.write_text(content, encoding="utf-8", newline=generator.choice(["\n", "\r\n"]))
    return expected, 0


def mo_bytes(messages, order="<"):
    """A compiled catalogue of (original, translation), both bytes, as the manual of gettext draws it."""
    messages = sorted(messages)
    start = 28 + 16 * len(messages)
    tables, data = ([], []), b""
    for side in (0, 1):
        for message in messages:
            tables[side].append((len(message[side]), start + len(data)))
            data += message[side] + b"\0"
    numbers = [number for table in tables for row in table for number in row]
    head = struct.pack(f"{order}7I", 0x950412DE, 0, len(messages), 28, 28 + 8 * len(messages), 0, 0)
    return head + struct.pack(f"{order}{len(numbers)}I", *numbers) + data


def mo(generator, path):
    header = "Content-Type: text/plain; charset=UTF-8\nLanguage: de\nPlural-Forms: nplurals=2; plural=n != 1;\n"
    messages, expected = [("", header)], []
    for number in range(generator.randint(1, 12)):
        english, other = (f"{text_of(generator)}{number}".replace("&", "+") for _ in range(2))
        context = "menu\4" if generator.random() < 0.3 else ""
        if generator.random() < 0.3:
            messages.append((f"{context}{english}\0{english}s", f"{other}\0{other}e"))
            expected += [("de", english, other, ""), ("de", english + "s", other + "e", "")]
        else:
            messages.append((context + english, other))
            expected.append(("de", english, other, ""))
    content = mo_bytes([(a.encode(), b.encode()) for a, b in messages], generator.choice("<>"))
    path.write_bytes(content)
    return expected, 0


def lines_of(generator, count):
    return [text_of(generator).replace("\t", " ") for _ in range(count)]


def archive(generator, path):
    """An archive of OPUS: two files of the same rows for a pair of languages, and a readme."""
    expected = []
    with zipfile.ZipFile(path, "w", generator.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as packed:
        packed.writestr("README", "from OPUS")
        for language in ("de", "fr"):
            count = generator.randint(1, 12)
            sides = [lines_of(generator, count) for _ in range(2)]
            for code, side in zip(("en", language), sides, strict=True):
                packed.writestr(f"Corpus.{language}-en.{code}", "".join(f"{line}\n" for line in side))
            expected += [(language, *pair, "") for pair in zip(*sides, strict=True)]
    return [(language, english, other, dropped) for language, english, other, dropped in expected], 0


def table(generator, path):
    rows = [lines_of(generator, 2) for _ in range(generator.randint(1, 12))]
    short = generator.randint(0, 2)
    content = ["\t".join(row) for row in rows] + ["no tab"] * short
    generator.shuffle(content)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in content).encode()))
    return [("de", *row, "") for row in rows], short


WRITERS = {
    "a.tmx": tmx,
    "a.xlf": xliff,
    "a.xliff": xliff_2,
    "a.po": po,
    "a.mo": mo,
    "a.zip": archive,
    "en-de.tsv.gz": table,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_record_of_random_files_is_read_or_counted(tmp_path, name):
    path = tmp_path / name
    for seed in range(FILES):
        expected, unusable = WRITERS[name](random.Random(seed), path)
        pairs, faults = read(path, "de", "fr", placeholders="keep")
        pairs = [pair for pair in pairs if name == "a.tmx" or pair[0] == "de" or name == "a.zip"]
        stripped = [tuple(text if text in ("de", "fr") else " ".join(text.split()) for text in pair) for pair in pairs]
        wanted = [tuple(" ".join(text.split()) for text in pair) for pair in expected]
        assert Counter(stripped) == Counter(wanted), seed
        assert len(faults) == unusable and all(fault.line > 0 for fault in faults)


@pytest.mark.parametrize("name", WRITERS)
def test_damage_is_an_error_that_names_the_file_or_a_record_that_is_counted(tmp_path, capsys, name):
    """Files are cut off, or have bytes that are no text: what is whole is read, and the rest is reported."""
    path, reported = tmp_path / name, 0
    for seed in range(FILES):
        generator = random.Random(seed)
        expected, unusable = WRITERS[name](generator, path)
        content = path.read_bytes()
        place = generator.randrange(4, len(content))  # after the mark by which a file is known
        while b"]]>" in content[place - 2 : place + 5]:  # without its end a section of text goes on to the next one
            place = generator.randrange(4, len(content))
        is_cut = generator.random() < 0.5
        damage = b"" if is_cut else b"\xff\xfe\xff" + content[place + 3 :]
        path.write_bytes(content[:place] + damage)
        try:
            pairs, faults = read(path, "de", "fr", placeholders="keep")
        except RequestError as error:
            assert str(path) in str(error)
            reported += 1
        else:
            lost = Counter(expected) - Counter(pairs)
            if name == "a.tmx" and len(pairs) == len(expected):
                lost.clear()  # in ISO 8859-1 and UTF-16 these bytes are letters
            is_reported = len(faults) > unusable or "not read" in capsys.readouterr().err
            assert is_reported or not lost or (name == "a.po" and is_cut), seed  # of a text file no one knows the end
            reported += is_reported
    assert reported > FILES / 4


# By hand: a file, its content, the languages that are asked for, and the pairs


def units(*units):
    """TMX of units, each of (code, text in markup)."""
    return "<tmx><body>{}</body></tmx>".format(
        "".join(
            "<tu>{}</tu>".format("".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in unit))
            for unit in units
        )
    )


CODE = '<bpt i="1">&lt;b></bpt><ph>%s</ph><ept i="1">&lt;/b></ept>'
RUSSIAN = "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);"
SEGMENTS = "".join(
    f'<unit id="{state}"><segment state="{state}"><source>Yes</source><target>Ja</target></segment></unit>'
    for state in ("initial", "final")
)
PLACEHOLDERS = "%s files", "%1$d of %2$d", "Hi {name}", "${HOME} is full", "%1 of %L2", "%(n)d", "$HOME"
PLAIN = "100 % sure", "I have $300.", "1 < 2"
DROPPED = dict.fromkeys(PLACEHOLDERS, "placeholder") | dict.fromkeys(PLAIN, "")
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
    *(("en-de.tsv", f"{text}\t{text}\n", "de", [("de", text, text, why)]) for text, why in DROPPED.items()),
    ("en-de.tsv", "<b>Bold</b> text\t<b>Fetter</b> Text\n", "de", [("de", "Bold text", "Fetter Text", "")]),
    ("en-de.tsv", "One<br/>two\tEins<BR>zwei\n", "de", [("de", "One two", "Eins zwei", "")]),
    ("en-de.tsv", "a <b and c> d\ta <b und c> d\n", "de", [("de", "a <b and c> d", "a <b und c> d", "")]),
    ("en-de.tsv", "\ufeffHi\tHallo\n", "de", [("de", "Hi", "Hallo", "")]),
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
    (
        "a.tmx",
        units([("en", f"Delete {CODE}?"), ("de", f"Löschen: {CODE}?")]),
        "de",
        [("de", "Delete %s?", "Löschen: %s?", "placeholder")],
    ),
    (
        "a.tmx",
        units([("en", 'One<ph type="lb"/>two<ph>&lt;br/></ph>three'), ("de", "Eins<br/>zwei<it>\\n</it>drei")]),
        "de",
        [("de", "One two three", "Eins  zweidrei", "")],
    ),
    (
        "a.tmx",
        units([("en", "Cheers"), ("de-DE", "Danke"), ("de-AT", "Prost")], [("", "?"), ("en", "Two"), ("de", "Zwei")]),
        "de",
        [("de", "Cheers", "Danke", ""), ("de", "Cheers", "Prost", ""), ("de", "Two", "Zwei", "")],
    ),
    (
        "a.xlf",
        f'<xliff version="2.0" srcLang="en" trgLang="de"><file id="f">{SEGMENTS}</file></xliff>',
        "de",
        [("de", "Yes", "Ja", "not translated"), ("de", "Yes", "Ja", "")],
    ),
]


@pytest.mark.parametrize(("name", "content", "language", "pairs"), BY_HAND)
def test_pairs_are_those_that_people_read_in_the_file(tmp_path, name, content, language, pairs):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read(tmp_path / name, language) == (pairs, [])


def test_a_broken_string_of_a_catalogue_is_counted_with_its_line_and_changes_no_other_entry(tmp_path):
    """The third message has no quote at its end; plural forms stand apart from their numbers."""
    (tmp_path / "de.po").write_text(
        'msgid\n"a file"\nmsgid_plural\n"files"\nmsgstr [0]\n"Datei"\nmsgstr [ 1 ] "Dateien"\n'
        'msgid\n"no text"\nmsgstr\n\nmsgid\n"open\nmsgstr "x"\n\nmsgid "Yes"\nmsgstr\n"Ja"\n'
    )
    pairs, faults = read(tmp_path / "de.po", "de")
    expected = ("a file", "Datei", ""), ("files", "Dateien", ""), ("no text", "", ""), ("Yes", "Ja", "")
    assert [pair[1:] for pair in pairs] == list(expected)
    assert [(fault.line, fault.reason) for fault in faults] == [(13, "not a line of a .po file")]


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ('msgid "A cat" msgstr "Eine Katze"\n', 1),
        ('msgid "A cat"\nmsgstr "Eine " "Katze"\n', 2),
        ('msgid "A cat"\nmsgstr "Gr\\303\\266\\xc3\\x9fe"\n', 2),
        ('msgid "A bell"\nmsgstr "\\a"\n', 2),
    ],
)
def test_a_layout_of_msgfmt_that_polib_does_not_read_is_counted_with_its_line(tmp_path, entry, line):
    (tmp_path / "de.po").write_text(entry + '\nmsgid "Yes"\nmsgstr "Ja"\n')
    pairs, faults = read(tmp_path / "de.po", "de") if line > 1 else ([("de", "Yes", "Ja", "")], [])
    assert pairs == [("de", "Yes", "Ja", "")]
    assert [(fault.line, fault.reason) for fault in faults] == [(2, "not a line of a .po file")] * (line - 1)
    if line == 1:
        with pytest.raises(RequestError, match=r"de\.po, line 3: expected msgctxt, msgid, .* msgcat \S*de\.po"):
            read(tmp_path / "de.po", "de")


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


def test_placeholders_and_tags_stay_or_leave_a_pair_out_as_asked(tmp_path):
    (tmp_path / "en-de.tsv").write_text("%s files\t%s!\n<b>Bold</b>\t<b>fett</b>\n")
    found = [pair[3] for pair in read(tmp_path / "en-de.tsv", "de", placeholders="keep", tags="skip")[0]]
    assert found == ["", "inline tags"]


def test_two_languages_of_a_name_are_no_language_and_files_of_an_archive_may_be_packed(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("x.en-de.de", "x.en-de.en", "x.fr-de.de", "x.fr-de.fr"):
            archive.writestr(f"./{name}.gz", gzip.compress(f"{name}\n".encode()))
    assert read(tmp_path / "a.zip", "de", "fr")[0] == [("de", "x.en-de.en", "x.en-de.de", "")]


def test_a_document_type_with_entities_is_refused(tmp_path):
    bomb = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    for entity in (bomb, '<!ENTITY e9 SYSTEM "file:///etc/passwd">', '<!ENTITY % e9 SYSTEM "http://host/x.dtd"> %e9;'):
        path = tmp_path / "a.tmx"
        path.write_text(
            f'<?xml version="1.0"?>\n<!DOCTYPE tmx [<!ENTITY e0 "x">{entity}]>\n<tmx><body><tu>'
            '<tuv xml:lang="en"><seg>&e9;</seg></tuv></tu></body></tmx>'
        )
        with pytest.raises(RequestError, match=r"a\.tmx, line 2: expected no entities"):
            read(path, "de")


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


def test_tables_of_a_folder_are_known_by_their_languages(tmp_path):
    rows = {"english": ["a dog", "a cat", None], "non_english": ["ein Hund", "eine Katze", "ein Vogel"]}
    pq.write_table(pa.table(rows), tmp_path / "en-de.parquet")
    lines = ["english,non_english", '"a dog, red",un chien rouge', "a cat"]
    (tmp_path / "en-fr.csv").write_text("\n".join(lines))
    (tmp_path / "en-ko.jsonl").write_text(json.dumps({"english": "a dog", "non_english": "개"}))
    (tmp_path / "en-ja.jsonl").write_text("damaged, and not asked for")
    pairs, unusable = read(tmp_path, "deu", "fr", "ko")
    assert [pair[:3] for pair in pairs] == [
        *(("de", "a dog", "ein Hund"), ("de", "a cat", "eine Katze")),
        *(("fr", "a dog, red", "un chien rouge"), ("ko", "a dog", "개")),
    ]
    assert [(Path(each.file).name, each.line) for each in unusable] == [("en-de.parquet", 3), ("en-fr.csv", 3)]


# The names of LASER's Tatoeba, FLORES-200, FLORES+ and NTREX, and which file is read for a language that was asked for
SETS = {
    "tatoeba.deu-eng.deu tatoeba.deu-eng.eng tatoeba.cmn-eng.cmn tatoeba.cmn-eng.eng tatoeba.arz-eng.arz "
    "tatoeba.arz-eng.eng tatoeba.ara-eng.ara tatoeba.ara-eng.eng tatoeba.pes-eng.pes tatoeba.pes-eng.eng": {
        "de": "tatoeba.deu-eng.deu",
        "zh": "tatoeba.cmn-eng.cmn",
        "ar": "tatoeba.ara-eng.ara",
        "arz": "tatoeba.arz-eng.arz",
        "fa": "tatoeba.pes-eng.pes",
    },
    "arb_Arab.devtest arb_Latn.devtest deu_Latn.devtest eng_Latn.devtest zho_Hans.devtest zho_Hant.devtest": {
        "ar": "arb_Arab.devtest",
        "de": "deu_Latn.devtest",
        "zh": "zho_Hans.devtest",
        "zh-Hant": "zho_Hant.devtest",
    },
    "devtest.deu_Latn devtest.eng_Latn": {"de": "devtest.deu_Latn"},
    "newstest2019-ref.deu.txt newstest2019-ref.eng-GB.txt newstest2019-ref.fra-CA.txt newstest2019-ref.fra.txt "
    "newstest2019-ref.por-BR.txt newstest2019-ref.por.txt newstest2019-ref-2.spa.txt newstest2019-ref.spa.txt "
    "newstest2019-ref.zho-CN.txt newstest2019-ref.zho-TW.txt newstest2019-src.eng.txt": {
        "de": "newstest2019-ref.deu.txt",
        "fr": "newstest2019-ref.fra.txt",
        "fr-CA": "newstest2019-ref.fra-CA.txt",
        "pt-BR": "newstest2019-ref.por-BR.txt",
        "es": "newstest2019-ref.spa.txt",
        "zh": "newstest2019-ref.zho-CN.txt",
        "zh-Hant": "newstest2019-ref.zho-TW.txt",
    },
}


@pytest.mark.parametrize(("names", "expected"), SETS.items(), ids=["tatoeba", "flores", "flores+", "ntrex"])
def test_test_sets_are_read_by_the_names_they_come_with(tmp_path, names, expected):
    for name in names.split():
        (tmp_path / name).write_text(f"first of {name}\nsecond of {name}\n")
    (tmp_path / "README.md").write_text("# A test set\n")
    pairs, unusable = read(tmp_path, *expected)
    assert {pair[0]: pair[2].removeprefix("first of ").strip() for pair in reversed(pairs)} == expected
    assert len(pairs) == 2 * len(expected) and not unusable
    assert all(pair[1].strip().endswith(("eng", "eng_Latn", "src.eng.txt", "eng_Latn.devtest")) for pair in pairs)


def test_files_of_a_folder_are_those_whose_names_are_of_languages_through_links_and_no_hidden_ones(tmp_path):
    source = tmp_path / "source"
    for name in ("zh-Hans", "pt_BR", "de", "de-test", "de-dev", "de_old", "de-train", "de-bpe"):
        for file in (source / f"en-{name}.tsv", source / f"._en-{name}.tsv", source / f".kept/en-{name}.tsv"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{file.name}\t{name}\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/en-de.tsv").write_text("more\tmehr\n")
    (source / "link").symlink_to(tmp_path / "more")
    pairs, _ = read(source, "de", "zh", "pt")
    assert Counter(pair[2] for pair in pairs) == Counter(["zh-Hans", "pt_BR", "de", "mehr"])


@pytest.mark.parametrize(
    ("name", "content", "error_text"),
    [
        ("a.tmx", b'<?xml version="1.0" encoding="gb2312"?><tmx/>', "encoding cannot be read"),
        ("a.tmx", b'<?xml version="1.0" encoding="no-such"?><tmx/>', "encoding cannot be read"),
        ("en-de.tsv", "Hi\tHallo\n".encode("utf-16"), "expected UTF-8, found UTF-16.*iconv -f UTF-16 -t UTF-8"),
        ("a.tmx", '<?xml version="1.0" encoding="cp949"?><tmx><seg>안녕하세요</seg></tmx>'.encode("cp949"), "-f CP949"),
        ("a.tmx", "<tmx><seg>안녕하세요</seg></tmx>".encode("cp949"), "well-formed XML: .* looks like CP949"),
    ],
)
def test_an_encoding_that_is_not_read_is_an_error_that_names_the_file(tmp_path, name, content, error_text):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RequestError, match=rf"{name}(, line 1)?: .*{error_text}"):
        read(tmp_path / name, "de")


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


def test_rows_that_do_not_fit_are_an_error_with_the_line(tmp_path):
    (tmp_path / "train.en").write_text("a\nb\nc\n")
    (tmp_path / "train.de").write_text("a\nb\n")
    with pytest.raises(RequestError, match=r"train\.de ends after 2 lines"):
        read(tmp_path, "de")


@pytest.mark.parametrize("name", ["a.po", "en-de.tsv", "a.zip", "notes.txt"])
def test_a_source_without_translations_is_an_error(tmp_path, name):
    path = Path(tmp_path / name)
    if name == "a.zip":
        zipfile.ZipFile(path, "w").close()
    else:
        path.write_text("")
    with pytest.raises(RequestError, match="has no translations into ja"):
        read(path, "ja")


def test_a_file_of_another_kind_in_place_of_translations_is_named_with_what_converts_it(tmp_path, capsys):
    path = tmp_path / "memory.xlsx"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(RequestError, match=r"expected translations, found a \.xlsx file; save it as CSV .*libreoffice"):
        read(path, "ko")
    assert "1 file is not read, as its name is of no parallel text" in capsys.readouterr().err


def test_a_file_of_translations_without_their_languages_is_asked_for_them():
    with pytest.raises(ValueError, match=r"languages: is required and missing, as in { path = FILE, languages = "):
        TranslationColumns(path="memory.tmx")


def test_pairs_of_a_corpus_are_counted_by_language_and_reason(tmp_path):
    (tmp_path / "en-de.tsv").write_text("a dog\tein Hund\n%s\t%s\n\tleer\nbroken\na\0\tb\n")
    (tmp_path / "en-fr.tsv").write_text("a dog\tun chien\n")
    source = TranslationFiles(path=str(tmp_path), languages=["de", "fr"])
    counts, rejects = PairCounts([source]), Rejects(None, 1.0)
    pairs = list(read_pairs([source], None, rejects, counts))
    assert pairs == [(0, "a dog", "ein Hund"), (0, "", "leer"), (1, "a dog", "un chien")]
    assert counts.outcomes[0] == {"placeholder": 1} and rejects.counts == {"too few fields": 1, "a NUL character": 1}


def test_a_file_of_a_language_that_another_one_has_too_is_named_as_not_read(tmp_path, capsys):
    for code in ("en", "de", "deu", "fr"):
        (tmp_path / f"train.{code}").write_text(f"{code}\n")
    assert read(tmp_path, "de") == ([("de", "en", "de", "")], [])
    assert [line for line in capsys.readouterr().err.splitlines() if "train.deu is not read" in line]


NAMELESS = '<xliff version="1.2"><file source-language="en"><body>{}</body></file></xliff>'.format(
    "<trans-unit><source>Yes</source><target>Ja</target></trans-unit>" * 2
)


@pytest.mark.parametrize("name", ["messages.de.xlf", "de.xlf", "plugin-de_DE.xliff"])
def test_a_file_without_a_language_of_its_translations_has_the_one_in_its_name(tmp_path, name):
    (tmp_path / name).write_text(NAMELESS)
    assert read(tmp_path / name, "de") == ([("de", "Yes", "Ja", "")] * 2, [])


@pytest.mark.parametrize(
    ("name", "content", "error_text"),
    [
        ("messages.xlf", NAMELESS, r"messages\.xlf: 2 × no translation; languages in it: none given, en"),
        ("messages.fr.xlf", NAMELESS, r"2 × no translation; languages in it: en, fr"),
        ("a.tmx", "<tmx><body><tu><tuv xml:lang='en'/></tu></body></tmx>", r"a\.tmx: 1 × no English$"),
        ("a.tmx", units([("en", "Yes"), ("fr", "Oui")]), "1 × no translation; languages in it: en, fr"),
        ("a.tmx", "<tmx><body/></tmx>", r"a\.tmx: no segments"),
        ("fr.po", 'msgid "Yes"\nmsgstr "Oui"\n', r"fr\.po: no segments; languages in it: fr"),
        ("de.po", '#, fuzzy\nmsgid "Yes"\nmsgstr "Ja"\n\nmsgid "No"\nmsgstr ""\n', "1 × fuzzy, 1 × empty side"),
        ("en-de.tsv", "%s\t%s\n", r"en-de\.tsv: 1 × placeholder"),
    ],
)
def test_a_source_without_a_pair_is_an_error_with_file_and_reason(tmp_path, name, content, error_text):
    (tmp_path / name).write_text(content)
    source = TranslationFiles(path=str(tmp_path / name), languages=["de"])
    with pytest.raises(RequestError, match=f"(?m){error_text}"):
        list(read_pairs([source], None, Rejects(None), PairCounts([source])))


UNIT = "<tu><tuv xml:lang='en'><seg>{0}</seg></tuv><tuv xml:lang='de'><seg>{0}!</seg></tuv></tu>"


def test_segments_at_the_wrong_place_are_counted_with_their_lines_and_change_no_other(tmp_path):
    """A unit in a unit, one in a sentence, and sentences outside of units."""
    nested = UNIT.format("a").replace("</tu>", f"\n{UNIT.format('b')}</tu>")
    inline = UNIT.format("c<x>\n" + UNIT.format("d") + "</x>e")
    outside = "<tuv xml:lang='de'>\n<seg>f</seg></tuv>"
    (tmp_path / "a.tmx").write_text(f"<tmx><body>{nested}{inline}{outside}{UNIT.format('g')}</body></tmx>")
    pairs, faults = read(tmp_path / "a.tmx", "de")
    assert [pair[1:3] for pair in pairs] == [("a", "a!"), ("ce", "ce!"), ("g", "g!")]
    assert [(fault.line, fault.reason) for fault in faults] == [
        (2, "a tu in another one"), (3, "a tu in another one"), (4, "a tu in another one"), (5, "a seg outside of a tu")
    ]  # fmt: skip


def test_units_of_xliff_at_the_wrong_place_are_counted(tmp_path):
    unit = "<trans-unit><source>{0}</source>{1}<target>{0}!</target></trans-unit>"
    content = unit.format("a", "\n" + unit.format("b", "")) + "<source>c</source>" + unit.format("d", "")
    head = '<xliff version="1.2"><file source-language="en" target-language="de"><body>'
    (tmp_path / "a.xlf").write_text(f"{head}{content}</body></file></xliff>")
    pairs, faults = read(tmp_path / "a.xlf", "de")
    assert [pair[1:3] for pair in pairs] == [("a", "a!"), ("d", "d!")]
    assert [fault.reason for fault in faults] == [
        "a trans-unit in another one",
        "a source outside of a trans-unit or segment",
    ]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_name_in_an_archive_are_an_error(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for text in ("old", "new"):
            packed.writestr("en-de.tsv", f"{text}\t{text}!\n")
    with pytest.raises(RequestError, match=r"a\.zip: expected each name once, .* 'en-de\.tsv'"):
        read(tmp_path / "a.zip", "de")


def test_each_language_of_a_hub_data_set_is_its_closest_configuration(tmp_path, monkeypatch):
    """As sentence-transformers/parallel-sentences-talks names them: `zh-cn` and `zh-tw`, `pt` and `pt-br`."""
    configs = [f"en-{code}" for code in ("de", "fr", "fr-ca", "pt", "pt-br", "zh-cn", "zh-tw")]

    def load_dataset(path, name, split, **_):
        assert (path, split) == ("owner/talks", "train")
        rows = [{"english": f"Good day <b>{n}</b>", "non_english": f"{name} {n}"} for n in range(2)]
        return datasets.Dataset.from_list([*rows, {"english": "Hello", "non_english": None}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda **_: ["default", *configs])
    source = TranslationFiles(hub="owner/talks", languages=["de", "zh", "zh-Hant", "pt", "pt-BR", "ko"])
    counts = PairCounts([source])
    with Rejects(tmp_path / "rejects.jsonl", 1.0) as rejects:
        pairs = list(read_pairs([source], Cache(tmp_path), rejects, counts))
    found = {counts.languages[pair.stream]: pair.other for pair in pairs}
    assert found == {
        "de": "en-de 1", "zh": "en-zh-cn 1", "zh-Hant": "en-zh-tw 1", "pt": "en-pt 1", "pt-BR": "en-pt-br 1"
    }  # fmt: skip
    assert {pair.english for pair in pairs} == {"Good day 0", "Good day 1"}
    assert [json.loads(line)["reason"] for line in (tmp_path / "rejects.jsonl").open()] == ["not text"] * 5
    with pytest.raises(RequestError, match="no translations into ko"):
        list(read_translation_files(TranslationFiles(hub="owner/talks", languages=["ko"]), Cache(tmp_path)))


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


def test_text_that_looks_like_a_placeholder_takes_no_longer_than_its_length(tmp_path):
    hostile = [
        "x %" + "0" * 200_000,
        "%(" * 100_000,
        "%123.4-" * 50_000 + "%",
        "<a b='\" c=\"' " * 20_000,
        "<a " + "b=c " * 50_000,
    ]
    (tmp_path / "en-de.tsv").write_text("".join(f"{text}\ty\n" for text in hostile))
    started = time.monotonic()
    pairs, _ = read(tmp_path / "en-de.tsv", "de", placeholders="skip")
    assert time.monotonic() - started < 5  # of 200,000 zeros alone took an hour
    assert [dropped for *_, dropped in pairs] == [""] * 5
    (tmp_path / "en-de.tsv").write_text(
        "".join(f"{text}\ty\n" for text in ("%05d", "%-8.3lf", "%1$s", "%(n)s", "${x}"))
    )
    assert [pair[3] for pair in read(tmp_path / "en-de.tsv", "de", placeholders="skip")[0]] == ["placeholder"] * 5


def test_a_segment_of_thousands_of_variants_is_one_dropped_pair_and_not_their_product(tmp_path):
    def segment(variants):
        return (
            "<tu>"
            + "".join(
                f'<tuv xml:lang="{code}"><seg>{code} {number}</seg></tuv>'
                for code in ("en", "de")
                for number in range(variants)
            )
            + "</tu>"
        )

    (tmp_path / "a.tmx").write_text(f"<tmx><body>{segment(4_000)}{segment(2)}</body></tmx>")
    pairs, _ = read(tmp_path / "a.tmx", "de")
    assert [pair[3] for pair in pairs] == ["a segment with more than 1,000 pairs", "", "", "", ""]


@pytest.mark.parametrize("endless", ["<tu note='%s'/>", "<tu><tuv lang='en'><seg>%s</seg></tuv></tu>", "<!-- %s -->"])
def test_a_tag_or_sentence_without_an_end_is_refused(tmp_path, endless):
    (tmp_path / "a.tmx").write_text(f"<tmx><body>{endless % ('x ' * (3 << 20))}</body></tmx>")
    with pytest.raises(RequestError, match=r"a\.tmx, line 1: expected segments and tags of at most 4 MiB"):
        read(tmp_path / "a.tmx", "de")
    (tmp_path / "a.tmx").write_text(f"<tmx><body>{' ' * (6 << 20)}</body></tmx>")
    with pytest.raises(RequestError, match="has no translations"):
        read(tmp_path / "a.tmx", "de")


def test_elements_nested_without_end_are_refused(tmp_path):
    def nested(depth):
        sentence = "<hi>" * depth + "Ja" + "</hi>" * depth
        (tmp_path / "a.tmx").write_text(units([("en", "Yes"), ("de", sentence)]))
        return read(tmp_path / "a.tmx", "de")

    assert nested(195) == ([("de", "Yes", "Ja", "")], [])
    with pytest.raises(RequestError, match=r"a\.tmx, line 1: expected at most 200 elements in each other"):
        nested(196)


def test_a_member_of_an_archive_that_unpacks_to_one_line_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LONGEST_LINE", 1 << 16)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("en-de.tsv", "x" * (1 << 20) + "\ty\nA dog.\tEin Hund.\n")
    pairs, unusable = read(tmp_path / "a.zip", "de")
    assert [pair[1:3] for pair in pairs] == [("A dog.", "Ein Hund.")]
    assert [row.reason for row in unusable] == ["a line too long"]


@pytest.mark.parametrize("name", ["punycode", "idna", "unicode_escape", "hex"])
def test_a_codec_that_is_no_character_set_is_refused(tmp_path, name):
    (tmp_path / "de.po").write_text(f'msgid ""\nmsgstr "Content-Type: text/plain; charset={name}\\n"\n')
    with pytest.raises(RequestError, match=f"expected a character set, found charset={name}"):
        read(tmp_path / "de.po", "de")


def test_a_damaged_member_is_an_error_by_whatever_method_it_is_packed(tmp_path):
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
            archive.writestr("en-de.tsv", "".join(f"A {n * 7919}.\tEin {n * 104729}.\n" for n in range(200)))
        whole = (tmp_path / "a.zip").read_bytes()
        for place in range(60, 260, 40):
            (tmp_path / "a.zip").write_bytes(whole[:place] + b"\xff\x00\xff" + whole[place + 3 :])
            with pytest.raises(RequestError, match=r"a\.zip.* (cannot be unpacked|is cut off or damaged)"):
                read(tmp_path / "a.zip", "de")
