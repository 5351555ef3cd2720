import pytest
from pydantic import ValidationError

from bertrelay.model.settings import NewEncoder
from students.compress.settings import ExportSettings, ShrinkSettings
from students.distill.settings import DistillSettings, TeacherCopy
from students.evaluate.settings import EvaluateSettings
from students.mining.settings import MineSettings
from students.settings import TeacherVectors

FILES = {"english": "train.en", "other": "train.de", "language": "de"}
COLUMNS = {"path": "a.tsv", "others": {"de": "de"}}
VECTORS = {"vectors": "v.parquet"}
NEEDED = {
    DistillSettings: {"teacher": "@teacher/model", "base": "./base", "parallel": [FILES]},
    EvaluateSettings: {"model": "./student"},
    ExportSettings: {"model": "./student"},
    TeacherVectors: {},
    MineSettings: {"model": "./student", "source": {"path": "a"}, "target": {"path": "b"}},
    ShrinkSettings: {"model": "./student", "corpus": [{"path": "t.txt", "language": "de"}]},
}
STS = {"sts": {"en": {"path": "sts.tsv"}}}


def test_a_base_is_a_model_a_size_or_the_teachers_layers():
    def base(value):
        return DistillSettings.model_validate({**NEEDED[DistillSettings], "base": value}).base

    assert base("xlm-roberta-base") == "xlm-roberta-base"
    assert isinstance(base({"layers": 2, "dim": 8, "heads": 2, "vocabulary": 100}), NewEncoder)
    assert isinstance(base({"layers_of": "teacher", "vocabulary": 100}), TeacherCopy)
    with pytest.raises(ValidationError, match="expected a model such as 'xlm-roberta-base', a size such as"):
        base(3)


WRONG = {
    DistillSettings: [
        ({"dev": [FILES], "dev_sentences": 5}, "dev_sentences: without effect, because dev is set"),
        ({"dev_sentences": 0, "patience": 3}, "patience: without effect, because dev is empty and dev_sentences is 0"),
        ({"dev": [{**COLUMNS, "max_pairs": 9}]}, "max_pairs: without effect, because it limits the corpora"),
        ({"parallel": [{**FILES, "header": False}]}, "header: without effect, because only csv and"),
        (
            {"objectives": {"cosine": 1, "dimensions": [8]}},
            "dimensions: without effect, because contrastive is 0",
        ),
        ({"objectives": {"candidates": 9}}, "candidates: without effect, because ranking is 0"),
        *(({"student_prompt": prompt}, "student_prompt") for prompt in ("", {"text": ""}, {"txt": "query: "}, 5)),
        (
            {"teacher": VECTORS, "teacher_prompt": "query"},
            "teacher_prompt: .* because the teacher is a file of vectors",
        ),
    ],
    EvaluateSettings: [
        ({}, "expected `parallel`, `sts`, `xsim`, `mining` or `retrieval`"),
        ({**STS, "teacher": "./b"}, "teacher: without effect, because parallel is empty"),
        ({"parallel": [FILES], "recall_at": 10}, "recall_at: without effect, because teacher is absent"),
        ({"parallel": [FILES], "teacher_prompt": "query"}, "teacher_prompt: .* because there is no teacher"),
        ({"parallel": [FILES], "teacher": VECTORS, "teacher_prompt": "query"}, "there is no teacher that encodes"),
        ({**STS, "xsim_pairs": "all"}, "xsim_pairs: without effect, because xsim is empty"),
        (
            {"xsim": {"flores": [FILES]}, "xsim_pairs": [["de", "en"], ["de", "ko"]]},
            "xsim_pairs: expected languages of `xsim`, found ko",
        ),
        (
            {"xsim": {"flores": [FILES]}, "xsim_pairs": [["de", "de"]]},
            "expected two different languages, found de twice",
        ),
        ({"xsim": {"a/b": [FILES]}}, "String should match pattern"),
    ],
    TeacherVectors: [
        ({"vectors": "a.npy"}, r"expected a \.parquet file, found \.npy; a line converts it: python -c .*"),
        ({"vectors": "a.csv"}, r"expected a \.parquet file, found \.csv"),
    ],
    MineSettings: [({"id_column": 0}, "id_column: without effect, because gold is absent")],
    ShrinkSettings: [
        ({"languages": ["de", "fr"]}, "expected text of each in the corpus, found none in fr"),
        ({"coverage": 0.9}, "coverage: without effect, because languages is empty"),
        ({"languages": ["de"], "trim_vocabulary": False, "layers": 1}, "because trim_vocabulary is false"),
        ({"languages": ["German"]}, "expected a language code such as de"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "values", "error_text"), [(kind, *case) for kind, cases in WRONG.items() for case in cases]
)
def test_a_setting_that_cannot_be_or_has_no_effect_is_refused(kind, values, error_text):
    with pytest.raises(ValidationError, match=error_text):
        kind.model_validate({**NEEDED[kind], **values})
