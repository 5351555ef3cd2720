"""Language codes are what BCP 47 and CLDR say, in files and in settings."""

from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from bertrelay.languages import EachOnce, LanguageCode, closest_code, is_language, language_tag, likely_scripts


def test_codes_in_any_form_are_tags_of_bcp_47():
    codes = ["pt_BR.UTF-8", "sr@latin", "deu", "cmn", "zh_TW", "EN-us", "ger"]
    assert list(map(language_tag, codes)) == ["pt-BR", "sr-Latn", "de", "zh", "zh-TW", "en-US", "de"]
    assert is_language("de-AT", "de") and is_language("zh_TW", "zh-Hant") and is_language("pt", "pt-BR")
    assert not is_language("zh_CN", "zh-Hant") and not is_language("pt-PT", "pt-BR") and not is_language("!", "de")
    with pytest.raises(ValueError, match="expected a language code"):
        language_tag("no language")


def test_the_closest_of_several_codes_is_the_plainest():
    assert closest_code(["fra-CA", "fra", "de"], "fr") == "fra"
    assert closest_code(["zho_Hant", "zho_Hans"], "zh") == "zho_Hans"
    assert closest_code(["de", "en"], "fr") is None


def test_settings_have_each_language_once_by_its_tag():
    languages = TypeAdapter(Annotated[list[LanguageCode], EachOnce])
    assert languages.validate_python(["deu", "zh_TW", "en-x-plain"]) == ["de", "zh-TW", "en-x-plain"]
    columns = TypeAdapter(Annotated[dict[LanguageCode, int], EachOnce])
    assert columns.validate_python({"por": 1, "pt_br": 2}) == {"pt": 1, "pt-BR": 2}
    for codes in (["de", "deu"], ["de", "de"]):
        with pytest.raises(ValidationError, match=f"each language once, found {codes[0]}, {codes[1]}; leave out"):
            languages.validate_python(codes)
    with pytest.raises(ValidationError, match="each language once, found zh, cmn"):
        columns.validate_python({"zh": 1, "cmn": 2})
    for unknown in ("german", "xx", "", "de fr"):
        with pytest.raises(ValidationError, match=f"expected a language code such as .* found '{unknown}'"):
            languages.validate_python([unknown])


def test_scripts_of_languages_are_those_of_cldr():
    scripts = {code: likely_scripts(code) for code in ("ko", "kr", "ja", "zh-TW", "sr", "sr-Latn", "hi", "en-x-plain")}
    assert scripts == {
        "ko": ("Hang",), "kr": ("Latn",), "ja": ("Hira", "Kana", "Hani"), "zh-TW": ("Hani", "Bopo"), "sr": ("Cyrl",),
        "sr-Latn": ("Latn",), "hi": ("Deva",), "en-x-plain": ("Latn",),
    }  # fmt: skip


def test_a_code_for_private_use_says_nothing_about_a_script():
    assert [likely_scripts(code) for code in ("qaa", "qtz", "und", "qaa-Cyrl")] == [("",), ("",), ("",), ("Cyrl",)]
