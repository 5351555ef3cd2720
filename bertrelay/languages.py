"""Language codes: any spelling becomes a tag of BCP 47, and codes are matched with the language that is asked for."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Any

from langcodes import Language as Tag
from langcodes import tag_is_valid
from langcodes.tag_parser import LanguageTagError
from pydantic import AfterValidator, ValidatorFunctionWrapHandler, WrapValidator

CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*(@\w+)?")
"""What may be a language code, in the name of a file or before one."""
SCRIPTS = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva"}
"""Modifiers of POSIX locales (`sr@latin`) that are scripts."""
SCRIPTS_OF = {"Jpan": ("Hira", "Kana", "Hani"), "Kore": ("Hang",), "Hans": ("Hani",), "Hant": ("Hani", "Bopo")}
"""The scripts of Unicode behind those of ISO 15924 that are several, or parts of one."""
UNKNOWN = "expected a language code such as de, ko or zh-Hant (BCP 47), found {!r}"


@lru_cache(maxsize=4096)
def language_tag(code: str) -> str:
    """A language code in BCP 47: `pt-BR` of `pt_BR.UTF-8`, `sr-Latn` of `sr@latin`, `de` of `deu`, `zh` of `cmn`.

    Raises ValueError for what is no code.
    """
    name, _, modifier = code.strip().partition("@")
    try:
        tag = Tag.get(name.partition(".")[0], normalize=True).prefer_macrolanguage()
    except LanguageTagError:
        raise ValueError(UNKNOWN.format(code[:40])) from None
    script = SCRIPTS.get(modifier.lower())
    return str((tag.update(Tag.make(script=script)) if script else tag).to_tag())


@lru_cache(maxsize=4096)
def is_language(code: str, wanted: str) -> bool:
    """Whether text in `code` is text in `wanted`: de-AT is de, zh-TW is zh-Hant, and pt is pt-BR, as most of it is.

    Likely scripts and territories are those of CLDR. What is no code is no language.
    """
    try:
        given, asked = Tag.get(language_tag(code)).maximize(), Tag.get(language_tag(wanted))
    except ValueError:
        return False
    parts = ((asked.language, given.language), (asked.script, given.script), (asked.territory, given.territory))
    return given.private == asked.private and all(asked_for in (None, part) for asked_for, part in parts)


@lru_cache(maxsize=4096)
def likely_scripts(language: str) -> tuple[str, ...]:
    """The scripts of Unicode that a language is most likely written in: Hang of ko, Latn of sr-Latn; "" is unknown.

    Raises ValueError for what is no code.
    """
    script = Tag.get(language_tag(language)).maximize().script or ""
    return SCRIPTS_OF.get(script, (script,))


def closest_code(codes: Iterable[str], wanted: str) -> str | None:
    """The code closest to `wanted`: for fr rather fra than fra-CA, for zh rather zho_Hans than zho_Hant."""
    likely = Tag.get(language_tag(wanted)).maximize()

    def distance(code: str) -> tuple[bool, bool, int]:
        tag = language_tag(code)
        return tag != language_tag(wanted), Tag.get(tag).maximize() != likely, len(tag)

    return min((code for code in codes if is_language(code, wanted)), key=distance, default=None)


def is_known(code: str) -> bool:
    """Whether `code` is a language with subtags of BCP 47's registry: zh-Hans and pt_BR are, de-test and de_old not."""
    try:
        tag = language_tag(code)
    except ValueError:
        return False
    return tag_is_valid(tag) and not Tag.get(tag).extlangs  # which `dev` would be in de-dev, and `old` in de-old


def _known_tag(code: str) -> str:
    if not is_known(code):
        raise ValueError(UNKNOWN.format(code))
    return language_tag(code)


LanguageCode = Annotated[str, AfterValidator(_known_tag)]
"""In settings: a language as people write it, which becomes its tag of BCP 47."""


def _each_once(given: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    found = handler(given)
    if len(set(found)) < len(given):
        raise ValueError(
            f"expected each language once, found {', '.join(given)}; leave out those that are one language"
        )
    return found


EachOnce = WrapValidator(_each_once)
"""Of a list of languages, or of settings by language."""
