"""Files other than text in UTF-8: detects their encoding or format and names the command that converts them."""

import re
import shlex
from pathlib import Path
from typing import IO, NamedTuple

from bertrelay.data.tables import TO_TABLE, TO_TEXT, Rejected
from bertrelay.errors import RequestError
from bertrelay.progress import renamed

NOT_UTF8 = "not valid UTF-8"
LOOKS_LIKE, CONVERT = "; it looks like ", "; convert it: "
SAMPLE_BYTES = 1 << 16
UTF8_LETTER = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")


class Encoding(NamedTuple):
    """An encoding: the name people know, the name iconv knows, and the letters it is mostly used for."""

    name: str
    iconv_name: str
    letters: str = "A-Za-zÀ-ʯ‘’“”–—…•°€"


EAST_ASIAN = "、-〿！-｠"  # punctuation, and letters of full width
ENCODINGS = {  # of several that fit equally well the first is chosen
    "cp1252": Encoding("Windows-1252 (Latin-1 is a part of it)", "WINDOWS-1252"),
    "cp932": Encoding("Shift-JIS (CP932)", "CP932", f"ぁ-ヿ一-鿿{EAST_ASIAN}"),
    "cp949": Encoding("CP949 (EUC-KR is a part of it)", "CP949", f"가-힣{EAST_ASIAN}"),
    "gb18030": Encoding("GBK (a part of GB18030)", "GB18030", f"一-鿿{EAST_ASIAN}"),
    "big5": Encoding("Big5", "BIG5", f"一-鿿{EAST_ASIAN}"),
    "euc_jp": Encoding("EUC-JP", "EUC-JP", f"ぁ-ヿ一-鿿{EAST_ASIAN}"),
    "cp1250": Encoding("Windows-1250", "WINDOWS-1250"),
    "cp1251": Encoding("Windows-1251", "WINDOWS-1251", "Ѐ-ӿ"),
    "koi8_r": Encoding("KOI8-R", "KOI8-R", "Ѐ-ӿ"),
    "cp1253": Encoding("Windows-1253", "WINDOWS-1253", "Ͱ-Ͽ"),
    "cp1254": Encoding("Windows-1254", "WINDOWS-1254"),
    "cp1255": Encoding("Windows-1255", "WINDOWS-1255", "֐-׿"),
    "cp1256": Encoding("Windows-1256", "WINDOWS-1256", "؀-ۿ"),
    "cp1257": Encoding("Windows-1257", "WINDOWS-1257"),
    "cp874": Encoding("Windows-874 (TIS-620 is a part of it)", "CP874", "ก-๛"),
}
WIDE = {  # byte order mark → encoding
    b"\xff\xfe\0\0": Encoding("UTF-32", "UTF-32"),
    b"\0\0\xfe\xff": Encoding("UTF-32", "UTF-32"),
    b"\xff\xfe": Encoding('UTF-16, as Excel\'s "Unicode text" is', "UTF-16"),
    b"\xfe\xff": Encoding("UTF-16", "UTF-16"),
}
DOCUMENTS = {
    **dict.fromkeys((".xlsx", ".xlsm", ".xls", ".ods"), ("a spreadsheet", TO_TABLE)),
    **dict.fromkeys((".docx", ".doc", ".odt", ".rtf", ".pptx", ".ppt"), ("a document of a word processor", TO_TEXT)),
    ".pdf": ("PDF", "pdftotext"),
    **dict.fromkeys((".zip", ".epub"), ("a zip archive", "unzip")),
}
"""Suffix → the format, and the command that converts it to text."""
MAGIC = {
    b"PK\x03\x04": ".zip",
    b"\xd0\xcf\x11\xe0": ".xls",
    b"%PDF-": ".pdf",
}
"""First bytes of a file → a suffix of such files."""


def remedy(fault: Rejected, what: str = "line") -> str:
    """Advice of an error about a record that cannot be used."""
    return "Then give the converted file." if LOOKS_LIKE in fault.detail else f"Fix or remove this {what}."


def refuse_other_formats(file: str, start: bytes) -> None:
    """Raises RequestError for a file whose first bytes show another format, with the command that converts it."""
    if suffix := next((suffix for magic, suffix in MAGIC.items() if start.startswith(magic)), ""):
        file_suffix = Path(file).suffix.lower()
        kind, command = DOCUMENTS[file_suffix if file_suffix in DOCUMENTS and file_suffix != ".rtf" else suffix]
        raise RequestError(f"{file}: expected text, found {kind}{CONVERT}{command} {shlex.quote(file)}")
    if encoding := _wide_encoding(start):
        raise RequestError(f"{file}: expected UTF-8, found {encoding.name}{CONVERT}{_iconv(file, encoding)}")


def conversion_hint(file: str, sample: bytes) -> str:
    """`; it looks like CP949 …; convert it: iconv …` for bytes in another encoding than UTF-8.

    Empty where they are UTF-8 with some damage, or in no known encoding.
    """
    encoding = detect_encoding(sample[:SAMPLE_BYTES])
    return "" if encoding is None else f"{LOOKS_LIKE}{encoding.name}{CONVERT}{_iconv(file, encoding)}"


def sample_after(raw: bytes, stream: IO[bytes]) -> bytes:
    """`raw`, just read from `stream`, and the whole lines after it that are buffered; the stream does not move."""
    peek = getattr(stream, "peek", None)
    return raw + (b"" if peek is None else peek(SAMPLE_BYTES).rpartition(b"\n")[0])


def detect_encoding(sample: bytes) -> Encoding | None:
    """Detects the encoding of whole lines; None for UTF-8 and for bytes in no known encoding."""
    if wide := _wide_encoding(sample):
        return wide
    damaged = sample.decode(errors="replace").count("\ufffd")
    if not damaged or len(UTF8_LETTER.findall(sample)) > damaged:
        return None
    from charset_normalizer import from_bytes

    matches = from_bytes(sample, cp_isolation=[*ENCODINGS], threshold=0.5)
    ranked = [
        (round(match.chaos, 1), -round(match.coherence, 2), -_letter_fraction(sample, name), position, name)
        for match in matches
        for position, name in enumerate(ENCODINGS)
        if name in match.could_be_from_charset
    ]
    return ENCODINGS[min(ranked)[-1]] if ranked else None


def _letter_fraction(sample: bytes, name: str) -> float:
    """Fraction of the characters beyond ASCII that are letters the encoding is mostly used for."""
    others = [character for character in sample.decode(name, errors="replace") if not character.isascii()]
    letters = re.findall(f"[{ENCODINGS[name].letters}]", "".join(others))
    return round(len(letters) / len(others), 1) if others else 0.0


def _wide_encoding(start: bytes) -> Encoding | None:
    """Detects UTF-16 or UTF-32 by the byte order mark, or by a NUL in every second byte of Latin letters."""
    for mark, encoding in WIDE.items():
        if start.startswith(mark):
            return encoding
    for offset, name in ((0, "UTF-16BE"), (1, "UTF-16LE")):
        nulls, others = start[offset::2].count(0), start[1 - offset :: 2].count(0)
        if nulls > len(start) // 4 and not others:
            return Encoding(f"{name} without a byte order mark", name)
    return None


def _iconv(file: str, encoding: Encoding) -> str:
    """The command that converts `file`, packed or not; for standard input the command to pipe it through."""
    if renamed(file) != file:
        return f"pipe it through iconv -f {encoding.iconv_name} -t UTF-8"
    path = Path(file)
    is_packed = path.suffix.lower() == ".gz"
    inner = path.with_suffix("") if is_packed else path
    new = shlex.quote(f"{inner.with_suffix('')}.utf8{inner.suffix}{'.gz' * is_packed}")
    convert = f"iconv -f {encoding.iconv_name} -t UTF-8"
    return (
        f"gzip -dc {shlex.quote(file)} | {convert} | gzip > {new}"
        if is_packed
        else f"{convert} {shlex.quote(file)} > {new}"
    )
