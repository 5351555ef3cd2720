"""Files of translations: random ones of all formats, damaged ones, archives and data sets of the hub."""

import json
import random
import time
import zipfile
from collections import Counter
from pathlib import Path

import datasets
import pytest
from translation_writers import NAMELESS, WRITERS, read, units

from bertrelay.cache import Cache
from bertrelay.data import readers
from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError
from students.parallel.files import read_translation_files
from students.parallel.pairs import PairCounts, read_pairs
from students.parallel.settings import TranslationColumns, TranslationFiles

FILES = 100


@pytest.mark.promise(
    "No record of a translation memory, catalogue or archive is lost without being counted", about="complete"
)
@pytest.mark.parametrize("name", WRITERS)
def test_every_record_of_random_files_is_read_or_counted(tmp_path, name):
    path = tmp_path / name
    for seed in range(FILES):
        expected, unusable = WRITERS[name](random.Random(seed), path)
        pairs, faults = read(path, "de", "fr", placeholders="keep")
        pairs = [pair for pair in pairs if name == "a.tmx" or pair[0] == "de" or name == "a.zip"]
        stripped = [tuple(text if text in ("de", "fr") else " ".join(text.split()) for text in pair) for pair in pairs]
        texts = [tuple(" ".join(text.split()) for text in pair) for pair in expected]
        assert Counter(stripped) == Counter(texts), seed
        assert len(faults) == unusable and all(fault.line > 0 for fault in faults)


@pytest.mark.promise(
    "Damage to a translation memory, catalogue or archive is an error or a counted record", about="complete"
)
@pytest.mark.parametrize("name", WRITERS)
def test_damage_is_an_error_that_names_the_file_or_a_record_that_is_counted(tmp_path, capsys, name):
    """Files are cut off, or have bytes that are no text: what is whole is read, and the rest is reported."""
    path, reported = tmp_path / name, 0
    for seed in range(FILES):
        generator = random.Random(seed)
        expected, unusable = WRITERS[name](generator, path)
        content = path.read_bytes()
        position = generator.randrange(4, len(content))  # after the mark by which a file is recognised
        while (
            b"]]>" in content[position - 2 : position + 5]
        ):  # without its end a section of text reaches to the next one
            position = generator.randrange(4, len(content))
        is_cut = generator.random() < 0.5
        damage = b"" if is_cut else b"\xff\xfe\xff" + content[position + 3 :]
        path.write_bytes(content[:position] + damage)
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


PLACEHOLDERS = "%s files", "%1$d of %2$d", "Hi {name}", "${HOME} is full", "%1 of %L2", "%(n)d", "$HOME"
PLAIN = "100 % sure", "I have $300.", "1 < 2"
DROPPED = dict.fromkeys(PLACEHOLDERS, "placeholder") | dict.fromkeys(PLAIN, "")
BY_HAND = [
    *(("en-de.tsv", f"{text}\t{text}\n", "de", [("de", text, text, why)]) for text, why in DROPPED.items()),
    ("en-de.tsv", "<b>Bold</b> text\t<b>Fetter</b> Text\n", "de", [("de", "Bold text", "Fetter Text", "")]),
    ("en-de.tsv", "One<br/>two\tEins<BR>zwei\n", "de", [("de", "One two", "Eins zwei", "")]),
    ("en-de.tsv", "a <b and c> d\ta <b und c> d\n", "de", [("de", "a <b and c> d", "a <b und c> d", "")]),
    ("en-de.tsv", "\ufeffHi\tHallo\n", "de", [("de", "Hi", "Hallo", "")]),
]


@pytest.mark.parametrize(("name", "content", "language", "pairs"), BY_HAND)
def test_pairs_of_lines_are_those_that_people_read(tmp_path, name, content, language, pairs):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read(tmp_path / name, language) == (pairs, [])


def test_pairs_with_placeholders_and_tags_are_left_out_as_the_settings_say(tmp_path):
    (tmp_path / "en-de.tsv").write_text("%s files\t%s!\n<b>Bold</b>\t<b>fett</b>\n")
    reasons = [pair[3] for pair in read(tmp_path / "en-de.tsv", "de", placeholders="keep", tags="skip")[0]]
    assert reasons == ["", "inline tags"]


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


def test_a_source_of_translations_without_languages_is_an_error_that_names_the_key():
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


@pytest.mark.parametrize(
    ("name", "content", "error_text"),
    [
        ("messages.xlf", NAMELESS, r"messages\.xlf: 2 × no translation; languages in it: none given, en"),
        ("messages.fr.xlf", NAMELESS, r"2 × no translation; languages in it: en, fr"),
        ("a.tmx", "<tmx><body><tu><tuv xml:lang='en'/></tu></body></tmx>", r"a\.tmx: 1 × no English$"),
        ("a.tmx", units([("en", "Yes"), ("fr", "Oui")]), "1 × no translation; languages in it: en, fr"),
        ("a.tmx", "<tmx><body/></tmx>", r"a\.tmx: no segments"),
        ("fr.po", 'msgid "Yes"\nmsgstr "Oui"\n', r"fr\.po: no segments; languages in it: fr"),
        ("de.po", '#, fuzzy\nmsgid "Yes"\nmsgstr "Ja"\n\nmsgid "No"\nmsgstr ""\n', "1 × fuzzy, 1 × empty text"),
        ("en-de.tsv", "%s\t%s\n", r"en-de\.tsv: 1 × placeholder"),
    ],
)
def test_a_source_without_a_pair_is_an_error_with_file_and_reason(tmp_path, name, content, error_text):
    (tmp_path / name).write_text(content)
    source = TranslationFiles(path=str(tmp_path / name), languages=["de"])
    with pytest.raises(RequestError, match=f"(?m){error_text}"):
        list(read_pairs([source], None, Rejects(None), PairCounts([source])))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_name_in_an_archive_are_an_error(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for text in ("old", "new"):
            packed.writestr("en-de.tsv", f"{text}\t{text}!\n")
    with pytest.raises(RequestError, match=r"a\.zip: expected each name once, .* 'en-de\.tsv'"):
        read(tmp_path / "a.zip", "de")


def test_each_language_of_a_hub_data_set_is_its_closest_configuration(tmp_path, monkeypatch):
    """Names of sentence-transformers/parallel-sentences-talks: `zh-cn` and `zh-tw`, `pt` and `pt-br`."""
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
    translations = {counts.languages[pair.stream]: pair.other for pair in pairs}
    assert translations == {
        "de": "en-de 1", "zh": "en-zh-cn 1", "zh-Hant": "en-zh-tw 1", "pt": "en-pt 1", "pt-BR": "en-pt-br 1"
    }  # fmt: skip
    assert {pair.english for pair in pairs} == {"Good day 0", "Good day 1"}
    assert [json.loads(line)["reason"] for line in (tmp_path / "rejects.jsonl").open()] == ["not text"] * 5
    with pytest.raises(RequestError, match="no translations into ko"):
        list(read_translation_files(TranslationFiles(hub="owner/talks", languages=["ko"]), Cache(tmp_path)))


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


def test_a_member_of_an_archive_that_unpacks_to_one_line_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LONGEST_LINE", 1 << 16)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("en-de.tsv", "x" * (1 << 20) + "\ty\nA dog.\tEin Hund.\n")
    pairs, unusable = read(tmp_path / "a.zip", "de")
    assert [pair[1:3] for pair in pairs] == [("A dog.", "Ein Hund.")]
    assert [row.reason for row in unusable] == ["a line too long"]


def test_a_damaged_member_is_an_error_by_whatever_method_it_is_packed(tmp_path):
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
            archive.writestr("en-de.tsv", "".join(f"A {n * 7919}.\tEin {n * 104729}.\n" for n in range(200)))
        whole = (tmp_path / "a.zip").read_bytes()
        for position in range(60, 260, 40):
            (tmp_path / "a.zip").write_bytes(whole[:position] + b"\xff\x00\xff" + whole[position + 3 :])
            with pytest.raises(RequestError, match=r"a\.zip.* (cannot be unpacked|is cut off or damaged)"):
                read(tmp_path / "a.zip", "de")
