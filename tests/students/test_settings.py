import pytest
from pydantic import ValidationError

from bertrelay.encoder_settings import NewEncoder
from students.settings import DistillSettings, EvaluateSettings, TeacherCopy

FILES = {"english": "train.en", "other": "train.de", "language": "de"}
GIVEN = {"teacher": "@teacher/model", "base": "./base", "parallel": [FILES]}
SIZE = {"layers": 2, "dim": 8, "heads": 2, "vocabulary": 100}


def mistakes(**given):
    """Kind and key of everything that is wrong, tags of unions left out."""
    with pytest.raises(ValidationError) as raised:
        DistillSettings.model_validate({**GIVEN, **given})
    tags = {"new", "copy", "model", "files", "columns"}
    return [
        (found["type"], ".".join(str(part) for part in found["loc"] if part not in tags))
        for found in raised.value.errors()
    ]


def test_a_base_is_a_model_a_size_or_the_teachers_layers():
    def base(value):
        return DistillSettings.model_validate({**GIVEN, "base": value}).base

    assert base("xlm-roberta-base") == "xlm-roberta-base"
    assert isinstance(base(SIZE), NewEncoder)
    assert isinstance(base({"layers_of": "teacher", "vocabulary": 100}), TeacherCopy)


def test_all_mistakes_are_told_at_once():
    found = {key for _, key in mistakes(base=3, layers=0, dropout=1.0, epochs="2", parallel=[{**FILES, "column": -1}])}
    assert {"base", "layers", "dropout", "epochs"} <= found and any(
        key.startswith("parallel.0.column") for key in found
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"dev": [FILES], "dev_sentences": 5}, "dev_sentences: without effect, because `dev` gives"),
        ({"dev_sentences": 0, "patience": 3}, "patience: without effect, because there is no dev data"),
        ({"parallel": [{**FILES, "header": False}]}, "header: without effect, because only csv and tsv"),
        ({"parallel": [{"path": "x.tsv", "split": "dev", "others": {"de": "de"}}]}, "split: without effect"),
    ],
)
def test_a_setting_that_nothing_looks_at_is_told(given, told):
    with pytest.raises(ValidationError, match=told):
        DistillSettings.model_validate({**GIVEN, **given})


def test_a_teacher_without_parallel_sentences_is_told():
    with pytest.raises(ValidationError, match="teacher: without effect, because it needs the sentences of `parallel`"):
        EvaluateSettings.model_validate({"model": "./a", "teacher": "./b", "sts": {"en": {"path": "sts.tsv"}}})


def test_an_evaluation_of_nothing_is_refused():
    with pytest.raises(ValidationError, match="expected `parallel` or `sts`"):
        EvaluateSettings.model_validate({"model": "./student"})
    assert EvaluateSettings.model_validate({"model": "./student", "sts": {"en": {"path": "sts.tsv"}}}).teacher is None
