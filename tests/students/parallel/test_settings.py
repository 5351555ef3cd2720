import pytest
from pydantic import TypeAdapter, ValidationError

from students.parallel.settings import AlignedFiles, ParallelSource, TranslationColumns

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
