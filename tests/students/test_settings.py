import pytest
from pydantic import ValidationError

from bertrelay.encoder_settings import NewEncoder
from students.evaluation_settings import EvaluateSettings
from students.search_settings import MineSettings
from students.settings import DistillSettings, TeacherCopy

FILES = {"english": "train.en", "other": "train.de", "language": "de"}
GIVEN = {"teacher": "@teacher/model", "base": "./base", "parallel": [FILES]}
STS = {"model": "./student", "sts": {"en": {"path": "sts.tsv"}}}


def test_a_base_is_a_model_a_size_or_the_teachers_layers():
    def base(value):
        return DistillSettings.model_validate({**GIVEN, "base": value}).base

    assert base("xlm-roberta-base") == "xlm-roberta-base"
    assert isinstance(base({"layers": 2, "dim": 8, "heads": 2, "vocabulary": 100}), NewEncoder)
    assert isinstance(base({"layers_of": "teacher", "vocabulary": 100}), TeacherCopy)
    with pytest.raises(ValidationError, match="expected a model such as 'xlm-roberta-base', a size such as"):
        base(3)


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        (DistillSettings, {"dev": [FILES], "dev_sentences": 5}, "dev_sentences: without effect, because `dev` gives"),
        (
            DistillSettings,
            {"dev_sentences": 0, "patience": 3},
            "patience: without effect, because there is no dev data",
        ),
        (DistillSettings, {"parallel": [{**FILES, "header": False}]}, "header: without effect, because only csv and"),
        (DistillSettings, {"objectives": {"cosine": 1, "dimensions": [8]}}, "dimensions: without effect, because the"),
        (
            DistillSettings,
            {"objectives": {"contrastive": 1, "dimensions": [8], "cut_teacher": True}},
            "cut_teacher: without effect, because the weights of cosine and ranking are 0",
        ),
        (
            DistillSettings,
            {"objectives": {"candidates": 9}},
            "candidates: without effect, because the weight of ranking",
        ),
        (EvaluateSettings, {**STS, "teacher": "./b"}, "teacher: without effect, because it needs the sentences of"),
        (
            EvaluateSettings,
            {"model": "./student", "parallel": [FILES], "recall_at": 10},
            "recall_at: without effect, because there is no `teacher`",
        ),
        (EvaluateSettings, {"model": "./student"}, "expected `parallel`, `sts`, `xsim` or `mining`"),
        (
            MineSettings,
            {"model": "./student", "source": {"path": "a"}, "target": {"path": "b"}, "id_column": 0},
            "id_column: without effect, because there is no `gold`",
        ),
        (EvaluateSettings, {**STS, "xsim_pairs": "all"}, "xsim_pairs: without effect, because there are no sets"),
        (
            EvaluateSettings,
            {"model": "./student", "xsim": {"flores": [FILES]}, "xsim_pairs": [["de", "en"], ["de", "ko"]]},
            "xsim_pairs: expected languages of `xsim`, found ko",
        ),
        (
            EvaluateSettings,
            {"model": "./student", "xsim": {"flores": [FILES]}, "xsim_pairs": [["de", "de"]]},
            "expected two different languages, found de twice",
        ),
        (EvaluateSettings, {"model": "./student", "xsim": {"a/b": [FILES]}}, "String should match pattern"),
    ],
)
def test_a_setting_that_nothing_looks_at_is_told(kind, given, told):
    with pytest.raises(ValidationError, match=told):
        kind.model_validate({**(GIVEN if kind is DistillSettings else {}), **given})
