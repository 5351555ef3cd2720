from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from bertrelay.fingerprint import leaves
from students.distill.settings import DistillSettings
from students.evaluate.settings import EvaluateSettings
from students.parallel.settings import (
    BY_LANGUAGE,
    AlignedFiles,
    LanguageChoice,
    ParallelSource,
    ParallelSources,
    TranslationColumns,
)

FILES = {"english": "train.en", "other": "train.de", "language": "de"}
COLUMNS = {"path": "a.tsv", "others": {"de": "de"}}


def sources_of(*values):
    return TypeAdapter(list[ParallelSource]).validate_python(list(values))


def test_the_keys_show_the_kind_of_source():
    first, second = sources_of(FILES, COLUMNS)
    assert isinstance(first, AlignedFiles) and isinstance(second, TranslationColumns)
    assert sources_of(first.model_dump(), second.model_dump()) == [first, second] == sources_of(first, second)


@pytest.mark.parametrize(
    ("value", "key", "message"),
    [
        ({"english": "a", "other": "b", "language": "German"}, "language", "expected a language code"),
        ({"english": "a", "other": "b", "language": "en"}, "language", "cannot be en as well"),
        ({"english": "a", "othr": "b", "language": "de"}, "othr", "Extra inputs are not permitted"),
        ({"path": "a.tsv", "hub": "a/b", "others": {"de": 1}}, "columns", "exactly one of them"),
        ({"path": "a.tsv"}, "others", "Field required"),
        ("a.tsv", 0, "expected either two aligned files"),
    ],
)
def test_a_mistaken_source_is_judged_by_the_kind_its_keys_name(value, key, message):
    with pytest.raises(ValidationError) as refused:
        sources_of(value)
    assert any(message in error["msg"] and error["loc"][-1] == key for error in refused.value.errors())
    assert len({error["loc"][1:2] for error in refused.value.errors()}) == 1


BOTH = ["de", "fr"]
ALIGNED = {"english": "/t.en", "other": "/t.{language}", "languages": BOTH, "max_pairs": 5}
TABLES = {"path": "/{language}.tsv", "others": {"{language}": "{language}"}, "languages": BOTH}
FOLDERS = {"path": "/{language}", "languages": BOTH}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (ALIGNED, [{"english": "/t.en", "other": f"/t.{code}", "language": code, "max_pairs": 5} for code in BOTH]),
        (TABLES, [{"path": f"/{code}.tsv", "others": {code: code}} for code in BOTH]),
        (FOLDERS, [{"path": f"/{code}", "languages": [code]} for code in BOTH]),
    ],
)
def test_a_source_with_the_placeholder_is_one_in_each_of_its_languages(source, expected):
    expand = TypeAdapter(Annotated[list[ParallelSource], BY_LANGUAGE]).validate_python
    assert expand([source, COLUMNS]) == sources_of(*expected, COLUMNS)


@pytest.mark.parametrize("languages", [None, "de", [1]])
def test_a_source_with_the_placeholder_and_no_languages_is_refused(languages):
    with pytest.raises(ValidationError, match=r"expected languages = \['de', 'fr'\] beside \{language\}, found "):
        TypeAdapter(ParallelSources).validate_python([{**ALIGNED, "languages": languages}])


def test_a_source_that_grows_beyond_what_a_recipe_can_need_is_refused():
    many = {**TABLES, "others": {f"{{language}}-x-v{n}": n for n in range(400)}, "languages": ["de"] * 400}
    with pytest.raises(ValidationError, match="expected at most 100,000 values in the sources of all languages"):
        TypeAdapter(ParallelSources).validate_python([many])


class Reading(LanguageChoice):
    parallel: ParallelSources = []


def test_the_languages_of_a_stage_limit_every_kind_of_source(capsys):
    table = {"path": "a.tsv", "others": {"fr": 1, "de-AT": 2}}
    sources = [ALIGNED, FILES, table, {"path": "a.tmx", "languages": ["fr", "de"]}, {**FILES, "language": "fr"}]
    settings = Reading(languages=["de", "ko"], parallel=sources)
    assert [source.languages for source in settings.parallel] == [["de"], ["de"], ["de-AT"], ["de"]]
    settings.log_missing_languages()
    assert capsys.readouterr().err == "parallel: no source has text in ko\n"
    assert Reading.model_validate(settings.model_dump()) == settings
    assert len(Reading(parallel=sources).parallel) == 6


def test_languages_count_in_a_fingerprint_by_the_sources_they_leave():
    def counted(**changes):
        return {leaf.key: leaf.value for leaf in leaves(Reading(**changes)) if not leaf.run_only}

    assert counted(languages=["fr"], parallel=[ALIGNED]) == counted(parallel=[{**ALIGNED, "languages": ["fr"]}])
    assert counted(languages=["fr"], parallel=[ALIGNED]) != counted(parallel=[ALIGNED])


def test_sets_of_other_languages_are_left_out_and_a_name_without_the_placeholder_is_refused():
    def names(sets):
        return list(EvaluateSettings(model="/m", languages=["de"], sts=sets).sts)

    within = {"path": "/{language}.csv", "languages": ["en", "de", "fr"]}
    sets = {"en": {"path": "/en.csv"}, "{language}": within, "en-{language}": {**within, "languages": BOTH}}
    assert names(sets) == ["en", "de", "en-de"]
    with pytest.raises(ValidationError, match=r"s: expected \{language\} in the name"):
        names({"s": within})
    with pytest.raises(ValidationError, match="de: expected each name once, found it twice"):
        names({"de": {"path": "/d.csv"}, "{language}": within})


def test_untrained_languages_choose_weights_whatever_the_languages_of_the_training_are():
    settings = DistillSettings(
        teacher="/t",
        base="/b",
        languages=["de"],
        parallel=[ALIGNED],
        dev_untrained=[FOLDERS, {**FILES, "language": "sw"}],
    )
    assert [source.languages for source in settings.parallel] == [["de"]]
    assert [source.languages for source in settings.dev_untrained] == [["de"], ["fr"], ["sw"]]
