import pytest
from pydantic import ValidationError

from domain.pretraining.settings import DocumentSource, PretrainSettings


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"objectives": ["mlm", "mlm"]}, "objectives: expected each once, found mlm, mlm"),
        ({"masking": {"mask": 0.9, "random": 0.2}}, "to make at most 1, found 0.9 and 0.2"),
        ({"held_out_share": 0}, "keep: the best weights need held-out documents"),
        ({"objectives": ["nsp"], "masking": {"whole_words": True}}, "masking: without effect"),
        ({"objectives": ["mlm"], "short_share": 0.2}, "short_share: without effect"),
        ({"keep": "last", "patience": 3}, "patience: without effect"),
        ({"documents": [{"path": "a.txt", "id": "n"}]}, "without effect, because only tables have columns"),
        ({"documents": [{"path": "a", "format": "blocks", "text": "t"}]}, "without effect, because only tables"),
    ],
)
def test_what_cannot_be_or_has_no_effect_is_reported(given, told):
    with pytest.raises(ValidationError, match=told):
        PretrainSettings.model_validate({"base": "./model", "documents": [{"path": "notes.jsonl"}], **given})


@pytest.mark.parametrize("table_or_folder", ["a.csv", "@samples/papers.jsonl.gz", "notes"])
def test_tables_and_folders_have_columns(table_or_folder):
    assert DocumentSource.model_validate({"path": table_or_folder, "group": "patient"}).group == "patient"
