"""The sentences of many domains and languages that come with the project."""

from collections.abc import Collection
from pathlib import Path

from bertrelay.languages import is_language
from students.parallel.settings import TranslationColumns

GENERAL = Path(__file__).with_name("general_sentences.tsv")
"""Table of sentences of many domains, written for this project in groups that differ in little, with translations."""


def general_sentences(among: Collection[str] | None = None) -> list[TranslationColumns]:
    """The source of GENERAL, in all its languages or in those that `among` has; without any, no source."""
    with GENERAL.open(encoding="utf-8") as file:
        _, *languages = file.readline().split()
    others = {
        code: code for code in languages if among is None or any(is_language(code, language) for language in among)
    }
    return [TranslationColumns.model_validate({"path": str(GENERAL), "others": others})] if others else []
