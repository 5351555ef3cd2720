"""Language codes: any spelling becomes a tag of BCP 47, and codes are matched with a language."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Any

from langcodes import Language as Tag
from langcodes import tag_is_valid
from langcodes.tag_parser import LanguageTagError
from pydantic import AfterValidator, ValidatorFunctionWrapHandler, WrapValidator

CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*(@\w+)?")
"""A possible language code, in the name of a file or before one."""
SCRIPTS = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva"}
"""Modifiers of POSIX locales (`sr@latin`) that are scripts."""
SCRIPTS_OF = {"Jpan": ("Hira", "Kana", "Hani"), "Kore": ("Hang",), "Hans": ("Hani",), "Hant": ("Hani", "Bopo")}
"""Scripts of ISO 15924 to those of Unicode, where one stands for several or for a part of one."""
NO_LANGUAGE = re.compile("q[a-t][a-z]|mul|und|mis|zxx")
"""Codes for private use, and of several, an unknown or no language: they say nothing about a script."""
UNKNOWN = "expected a language code such as de, ko or zh-Hant (BCP 47), found {!r}"


@lru_cache(maxsize=4096)
def language_tag(code: str) -> str:
    """Converts a language code to BCP 47: pt_BR.UTF-8 → pt-BR, sr@latin → sr-Latn, deu → de, cmn → zh.

    Raises ValueError for any other text.
    """
    name, _, modifier = code.strip().partition("@")
    try:
        tag = Tag.get(name.partition(".")[0], normalize=True).prefer_macrolanguage()
    except LanguageTagError:
        raise ValueError(UNKNOWN.format(code[:40])) from None
    script = SCRIPTS.get(modifier.lower())
    return str((tag.update(Tag.make(script=script)) if script else tag).to_tag())


@lru_cache(maxsize=4096)
def is_language(code: str, language: str) -> bool:
    """Returns true if text in `code` is text in `language`: de-AT is de, zh-TW is zh-Hant, pt is (mostly) pt-BR.

    Likely scripts and territories are those of CLDR. False for any text that is no code.
    """
    try:
        tag, expected = Tag.get(language_tag(code)).maximize(), Tag.get(language_tag(language))
    except ValueError:
        return False
    parts = ((expected.language, tag.language), (expected.script, tag.script), (expected.territory, tag.territory))
    return tag.private == expected.private and all(part in (None, actual) for part, actual in parts)


@lru_cache(maxsize=4096)
def likely_scripts(language: str) -> tuple[str, ...]:
    """The Unicode scripts that a language is most likely written in: ko → Hang, sr-Latn → Latn; "" is unknown.

    Codes for private use (qaa to qtz) and of no single language (mul, und) have the script that is named, or none.
    Raises ValueError for a text that is no code.
    """
    tag = Tag.get(language_tag(language))
    script = tag.script or ("" if NO_LANGUAGE.fullmatch(tag.language or "und") else tag.maximize().script) or ""
    return SCRIPTS_OF.get(script, (script,))


def closest_code(codes: Iterable[str], language: str) -> str | None:
    """The code closest to `language`: for fr rather fra than fra-CA, for zh rather zho_Hans than zho_Hant."""
    likely = Tag.get(language_tag(language)).maximize()

    def distance(code: str) -> tuple[bool, bool, int]:
        tag = language_tag(code)
        return tag != language_tag(language), Tag.get(tag).maximize() != likely, len(tag)

    return min((code for code in codes if is_language(code, language)), key=distance, default=None)


def is_registered(code: str) -> bool:
    """Returns true for a language with subtags of BCP 47's registry: zh-Hans and pt_BR, but not de-test or de_old."""
    try:
        tag = language_tag(code)
    except ValueError:
        return False
    return tag_is_valid(tag) and not Tag.get(tag).extlangs  # extlangs: `dev` in de-dev, `old` in de-old


def _registered_tag(code: str) -> str:
    if not is_registered(code):
        raise ValueError(UNKNOWN.format(code))
    return language_tag(code)


LanguageCode = Annotated[str, AfterValidator(_registered_tag)]
"""A setting: a language in any spelling, which becomes its tag of BCP 47."""


def _without_duplicates(codes: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    tags = handler(codes)
    if len(set(tags)) < len(codes):
        raise ValueError(
            f"expected each language once, found {', '.join(codes)}; leave out those that are one language"
        )
    return tags


EachOnce = WrapValidator(_without_duplicates)
"""Marks a list of languages, or a table of settings by language, in which two spellings of one are refused."""
