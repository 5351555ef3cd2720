"""Files are recognised by their names, as those of public test sets."""

import gzip
import json
import zipfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from translation_writers import read


def test_two_languages_of_a_name_are_no_language_and_files_of_an_archive_may_be_packed(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("x.en-de.de", "x.en-de.en", "x.fr-de.de", "x.fr-de.fr"):
            archive.writestr(f"./{name}.gz", gzip.compress(f"{name}\n".encode()))
    assert read(tmp_path / "a.zip", "de", "fr")[0] == [("de", "x.en-de.en", "x.en-de.de", "")]


def test_tables_of_a_folder_are_recognised_by_their_languages(tmp_path):
    rows = {"english": ["a dog", "a cat", None], "non_english": ["ein Hund", "eine Katze", "ein Vogel"]}
    pq.write_table(pa.table(rows), tmp_path / "en-de.parquet")
    lines = ["english,non_english", '"a dog, red",un chien rouge', "a cat"]
    (tmp_path / "en-fr.csv").write_text("\n".join(lines))
    (tmp_path / "en-ko.jsonl").write_text(json.dumps({"english": "a dog", "non_english": "개"}))
    (tmp_path / "en-ja.jsonl").write_text("damaged, of another language")
    pairs, unusable = read(tmp_path, "deu", "fr", "ko")
    assert [pair[:3] for pair in pairs] == [
        *(("de", "a dog", "ein Hund"), ("de", "a cat", "eine Katze")),
        *(("fr", "a dog, red", "un chien rouge"), ("ko", "a dog", "개")),
    ]
    assert [(Path(row.file).name, row.line) for row in unusable] == [("en-de.parquet", 3), ("en-fr.csv", 3)]


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
"""Names of LASER's Tatoeba, FLORES-200, FLORES+ and NTREX, and the file of each language."""


@pytest.mark.promise("Test sets are read by the names they come with", about="elsewhere")
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
        for file in (source / f"en-{name}.tsv", source / f"._en-{name}.tsv", source / f".hidden/en-{name}.tsv"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{file.name}\t{name}\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/en-de.tsv").write_text("more\tmehr\n")
    (source / "link").symlink_to(tmp_path / "more")
    pairs, _ = read(source, "de", "zh", "pt")
    assert Counter(pair[2] for pair in pairs) == Counter(["zh-Hans", "pt_BR", "de", "mehr"])


def test_a_file_of_a_language_that_another_one_has_too_is_named_as_not_read(tmp_path, capsys):
    for code in ("en", "de", "deu", "fr"):
        (tmp_path / f"train.{code}").write_text(f"{code}\n")
    assert read(tmp_path, "de") == ([("de", "en", "de", "")], [])
    assert [line for line in capsys.readouterr().err.splitlines() if "train.deu is not read" in line]
