"""Writers of random files of translations, and the pairs that a reader of German and French has to find.

They share nothing with the readers.
"""

import gzip
import struct
import zipfile
from xml.sax.saxutils import escape, quoteattr

from bertrelay.data.tables import Rejected
from students.parallel.files import read_translation_files
from students.parallel.settings import TranslationFiles

LETTERS = "abc déß жшя 日本語 한국 &<>\"'\\"
NAMELESS = '<xliff version="1.2"><file source-language="en"><body>{}</body></file></xliff>'.format(
    "<trans-unit><source>Yes</source><target>Ja</target></trans-unit>" * 2
)


def read(path, *languages, **settings):
    """(language, English, other, reason to drop it) of every pair, and the records that cannot be used."""
    source = TranslationFiles(path=str(path), languages=list(languages), **settings)
    records = list(read_translation_files(source, None))
    pairs = [tuple(pair) for record in records if isinstance(record, list) for pair in record]
    return pairs, [record for record in records if isinstance(record, Rejected)]


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
    """`text` with inline tags at a random position: code, which is no text, and marks around text."""
    position = generator.randint(0, len(text))
    before, after = escape(text[:position]), escape(text[position:])
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
    position = generator.randint(0, len(text))
    parts = [text] if generator.random() < 0.6 else ["", text[:position], text[position:]]
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
    """A compiled catalogue of (original, translation), both bytes, after the manual of gettext."""
    messages = sorted(messages)
    start = 28 + 16 * len(messages)
    tables, data = ([], []), b""
    for column in (0, 1):
        for message in messages:
            tables[column].append((len(message[column]), start + len(data)))
            data += message[column] + b"\0"
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
            columns = [lines_of(generator, count) for _ in range(2)]
            for code, column in zip(("en", language), columns, strict=True):
                packed.writestr(f"Corpus.{language}-en.{code}", "".join(f"{line}\n" for line in column))
            expected += [(language, *pair, "") for pair in zip(*columns, strict=True)]
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


# By hand: a file, its content, the languages that are asked for, and the pairs
def units(*units):
    """TMX of units, each of (code, text in markup)."""
    return "<tmx><body>{}</body></tmx>".format(
        "".join(
            "<tu>{}</tu>".format("".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in unit))
            for unit in units
        )
    )
