"""Files that are no text in UTF-8: their encoding or format, and the command that converts them."""

import re
import shlex
from pathlib import Path
from typing import IO, NamedTuple

from bertrelay.data.tables import TO_TABLE, TO_TEXT, Unusable
from bertrelay.errors import RequestError
from bertrelay.progress import renamed

NOT_UTF8 = "not valid UTF-8"
LOOKS, CONVERT = "; it looks like ", "; convert it: "
SAMPLE_BYTES = 1 << 16
UTF8_LETTER = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")


class Encoding(NamedTuple):
    """An encoding by the name that people know and the one that iconv knows, and the letters it is mostly used for."""

    name: str
    of_iconv: str
    letters: str = "A-Za-zÀ-ʯ‘’“”–—…•°€"


OF_EAST_ASIA = "、-〿！-｠"  # punctuation, and letters of full width
ENCODINGS = {  # the first of several that fit equally well is taken
    "cp1252": Encoding("Windows-1252 (Latin-1 is a part of it)", "WINDOWS-1252"),
    "cp932": Encoding("Shift-JIS (CP932)", "CP932", f"ぁ-ヿ一-鿿{OF_EAST_ASIA}"),
    "cp949": Encoding("CP949 (EUC-KR is a part of it)", "CP949", f"가-힣{OF_EAST_ASIA}"),
    "gb18030": Encoding("GBK (a part of GB18030)", "GB18030", f"一-鿿{OF_EAST_ASIA}"),
    "big5": Encoding("Big5", "BIG5", f"一-鿿{OF_EAST_ASIA}"),
    "euc_jp": Encoding("EUC-JP", "EUC-JP", f"ぁ-ヿ一-鿿{OF_EAST_ASIA}"),
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
WIDE = {  # by the bytes that begin such a file
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
"""What a file is by its suffix, and the command that makes text of it."""
MAGIC = {
    b"PK\x03\x04": ".zip",
    b"\xd0\xcf\x11\xe0": ".xls",
    b"%PDF-": ".pdf",
}
"""The bytes that begin such files, by a suffix of theirs."""


def remedy(fault: Unusable, what: str = "line") -> str:
    """What an error says to do about a record that cannot be used."""
    return "Then give the converted file." if LOOKS in fault.detail else f"Fix or remove this {what}."


def refuse_other_formats(file: str, start: bytes) -> None:
    """Raises RequestError for a file that is no text in UTF-8 by its first bytes, with the command that converts it."""
    if suffix := next((suffix for magic, suffix in MAGIC.items() if start.startswith(magic)), ""):
        own = Path(file).suffix.lower()
        kind, command = DOCUMENTS[own if own in DOCUMENTS and own != ".rtf" else suffix]
        raise RequestError(f"{file}: expected text, found {kind}{CONVERT}{command} {shlex.quote(file)}")
    if encoding := _wide_encoding(start):
        raise RequestError(f"{file}: expected UTF-8, found {encoding.name}{CONVERT}{_iconv(file, encoding)}")


def conversion_of(file: str, sample: bytes) -> str:
    """`; it looks like CP949 …; convert it: iconv …` for bytes of another encoding than UTF-8.

    Empty where they are UTF-8 but for some damage, or of no encoding that is known.
    """
    encoding = encoding_of(sample[:SAMPLE_BYTES])
    return "" if encoding is None else f"{LOOKS}{encoding.name}{CONVERT}{_iconv(file, encoding)}"


def sample_after(raw: bytes, stream: IO[bytes]) -> bytes:
    """`raw`, which was read from `stream`, and the whole lines after it that are in memory; the stream stays there."""
    peek = getattr(stream, "peek", None)
    return raw + (b"" if peek is None else peek(SAMPLE_BYTES).rpartition(b"\n")[0])


def encoding_of(sample: bytes) -> Encoding | None:
    """The encoding of whole lines, None for UTF-8 and for bytes of no known one."""
    if wide := _wide_encoding(sample):
        return wide
    damaged = sample.decode(errors="replace").count("\ufffd")
    if not damaged or len(UTF8_LETTER.findall(sample)) > damaged:
        return None
    from charset_normalizer import from_bytes

    matches = from_bytes(sample, cp_isolation=[*ENCODINGS], threshold=0.5)
    ranked = [
        (round(match.chaos, 1), -round(match.coherence, 2), -_share_of_letters(sample, name), place, name)
        for match in matches
        for place, name in enumerate(ENCODINGS)
        if name in match.could_be_from_charset
    ]
    return ENCODINGS[min(ranked)[-1]] if ranked else None


def _share_of_letters(sample: bytes, name: str) -> float:
    """The fraction of what is not ASCII that is letters the encoding is mostly used for."""
    others = [character for character in sample.decode(name, errors="replace") if not character.isascii()]
    letters = re.findall(f"[{ENCODINGS[name].letters}]", "".join(others))
    return round(len(letters) / len(others), 1) if others else 0.0


def _wide_encoding(start: bytes) -> Encoding | None:
    """UTF-16 or UTF-32, by its mark or by a NUL in every second byte of Latin letters."""
    for mark, encoding in WIDE.items():
        if start.startswith(mark):
            return encoding
    for place, name in ((0, "UTF-16BE"), (1, "UTF-16LE")):
        nulls, others = start[place::2].count(0), start[1 - place :: 2].count(0)
        if nulls > len(start) // 4 and not others:
            return Encoding(f"{name} without a byte order mark", name)
    return None


def _iconv(file: str, encoding: Encoding) -> str:
    """The command that converts `file`, which may be packed, or what to pipe standard input through."""
    if renamed(file) != file:
        return f"pipe it through iconv -f {encoding.of_iconv} -t UTF-8"
    path = Path(file)
    is_packed = path.suffix.lower() == ".gz"
    inner = path.with_suffix("") if is_packed else path
    new = shlex.quote(f"{inner.with_suffix('')}.utf8{inner.suffix}{'.gz' * is_packed}")
    convert = f"iconv -f {encoding.of_iconv} -t UTF-8"
    return (
        f"gzip -dc {shlex.quote(file)} | {convert} | gzip > {new}"
        if is_packed
        else f"{convert} {shlex.quote(file)} > {new}"
    )
