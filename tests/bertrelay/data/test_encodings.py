"""Files in encodings other than UTF-8, and files in binary formats: errors name the command that converts them."""

import gzip
import subprocess
from pathlib import Path

import pytest

from bertrelay.data.records import Rejects, read
from bertrelay.data.tables import Table
from bertrelay.errors import RequestError, WorkError

KOREAN = "약을 하루에 몇 번 먹어야 하나요?\n병원 예약은 어떻게 하나요?\n"
TEXTS = {
    "cp949": ("CP949", KOREAN),
    "euc_kr": ("CP949", KOREAN),
    "shift_jis": ("CP932", "薬は一日に何回飲めばいいですか。\n病院の予約はどうすればいいですか。\n"),
    "gbk": ("GB18030", "一天应该吃几次药？\n怎样预约医院？\n"),
    "cp1252": ("WINDOWS-1252", "Er fährt über die Straße – “schön”.\nUn café près de l’hôtel.\n"),
    "latin-1": ("WINDOWS-1252", "Er fährt über die Straße.\nEl niño está aquí mañana.\n"),
    "utf-16": ("UTF-16", "Hallo, Welt.\nHello, world.\n"),
    "utf-16-le": ("UTF-16LE", "Hello, world.\nA dog runs.\n"),
}


def sentences(path: Path, rejects: Rejects | None = None) -> list[str]:
    records = []
    for record in read(Table.model_validate({"path": str(path)}), [0], rejects=rejects):
        records.append(record.values[0])
        if rejects is not None:
            rejects.used()
    return records


@pytest.mark.parametrize("encoding", TEXTS)
def test_the_command_that_an_error_names_converts_the_file(tmp_path: Path, encoding: str) -> None:
    iconv_name, text = TEXTS[encoding]
    path = tmp_path / "q&a.txt"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(RequestError, match=rf"convert it: iconv -f {iconv_name} -t UTF-8 ") as caught:
        sentences(path)
    message = str(caught.value)
    assert "Fix or remove" not in message and "max_rejects" not in message
    command = message.partition("convert it: ")[2].split(").")[0]
    subprocess.run(command, shell=True, check=True)
    assert "\n".join(sentences(tmp_path / "q&a.utf8.txt")) + "\n" == text


def test_too_many_rejects_of_another_encoding_name_the_command_and_no_larger_fraction(tmp_path: Path) -> None:
    path = tmp_path / "q.txt"
    path.write_bytes(KOREAN.encode("cp949"))
    message = r"iconv -f CP949 -t UTF-8 \S+q\.txt > \S+q\.utf8\.txt"
    with pytest.raises(WorkError, match=message) as caught, Rejects(None) as rejects:
        sentences(path, rejects)
    assert "max_rejects" not in str(caught.value) and "Fix the data" not in str(caught.value)


def test_a_larger_fraction_of_rejects_is_advised_only_where_records_can_be_used() -> None:
    message = "or check the columns and the format that were named"
    with pytest.raises(WorkError, match=message) as caught, Rejects(None) as rejects:
        rejects.add("a.tsv", 2, "a score that is not a number")
    assert "max_rejects" not in str(caught.value)
    with pytest.raises(WorkError, match="or allow a larger fraction with max_rejects"), Rejects(None) as rejects:
        rejects.used()
        rejects.add("a.tsv", 2, "a score that is not a number")


def test_a_file_whose_tenth_line_beyond_ascii_is_latin_1_is_refused_at_any_limit(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes((b"A dog runs.\n" * 200 + "Ein Café an der Straße.\n".encode("latin-1")) * 10)
    with pytest.raises(RequestError, match=r"found another encoding; it looks like Windows-1252 .*iconv -f WINDOWS-12"):
        sentences(path, Rejects(None))
    path.write_bytes(("Ein Hund läuft.\n" * 20).encode() + b"A d\xfeg.\n" * 10)
    rejects = Rejects(None, limit=1.0)
    assert len(sentences(path, rejects)) == 20 and rejects.counts == {"not valid UTF-8": 10}


def test_damaged_utf8_is_not_taken_for_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("Müßige Füße\n".encode() * 3 + b"kapu\xfftt\n" + "Süße Träume\n".encode() * 3)
    with pytest.raises(RequestError, match=r"line 4: not valid UTF-8 \(byte \d+ of the file, counted from 0\)\. Fix"):
        sentences(path)


def test_a_packed_file_is_converted_through_gzip(tmp_path: Path) -> None:
    path = tmp_path / "q.txt.gz"
    path.write_bytes(gzip.compress(KOREAN.encode("cp949")))
    with pytest.raises(RequestError) as caught:
        sentences(path)
    subprocess.run(str(caught.value).partition("convert it: ")[2].split(").")[0], shell=True, check=True)
    assert gzip.decompress((tmp_path / "q.utf8.txt.gz").read_bytes()).decode() == KOREAN


@pytest.mark.parametrize(
    ("name", "start", "format_text"),
    [
        ("a.csv", b"PK\x03\x04", "a zip archive; convert it: unzip"),
        ("a.xlsx", b"PK\x03\x04", "a spreadsheet; convert it: libreoffice --headless --convert-to 'csv"),
        ("a.txt", b"%PDF-1.7\n", "PDF; convert it: pdftotext"),
    ],
)
def test_an_error_names_the_format_of_a_binary_file(tmp_path: Path, name: str, start: bytes, format_text: str) -> None:
    (tmp_path / name).write_bytes(start + b"\xe9\0\1\n\2")
    table = Table.model_validate({"path": str(tmp_path / name), "format": "csv"})
    with pytest.raises(RequestError, match=f"expected text, found {format_text}"):
        list(read(table, [0]))
