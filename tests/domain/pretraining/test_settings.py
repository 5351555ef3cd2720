import pytest
from pydantic import ValidationError

from domain.pretraining.settings import DocumentSource, PretrainSettings

GIVEN = {"base": "./model", "documents": [{"path": "notes.jsonl"}]}


def settings(**more):
    return PretrainSettings.model_validate({**GIVEN, **more})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"objectives": []}, "at least 1 item"),
        ({"objectives": ["mlm", "mlm"]}, "objectives: expected each once, found mlm, mlm"),
        ({"objectives": ["mlm", "sop"]}, "'mlm' or 'nsp'"),
        ({"base": 3}, "expected a model such as 'bert-base-uncased', or a size"),
        ({"documents": []}, "at least 1 item"),
        ({"max_tokens": 4}, "greater than or equal to 8"),
        ({"masking": {"mask": 0.9, "random": 0.2}}, "to make at most 1, found 0.9 and 0.2"),
        ({"masking": {"share": 0}}, "greater than 0"),
        ({"held_out_share": 0}, "keep: the best weights need held-out documents"),
        ({"objectives": ["nsp"], "masking": {"whole_words": True}}, "masking: without effect"),
        ({"objectives": ["mlm"], "short_share": 0.2}, "short_share: without effect"),
        ({"keep": "last", "patience": 3}, "patience: without effect"),
    ],
)
def test_what_cannot_be_or_has_no_effect_is_reported(given, told):
    with pytest.raises(ValidationError, match=told):
        settings(**given)


@pytest.mark.parametrize(
    "given",
    [{"path": "a.txt", "id": "n"}, {"path": "a.xml.gz", "group": "p"}, {"path": "a", "format": "blocks", "text": "t"}],
)
def test_columns_are_of_tables_alone(given):
    with pytest.raises(ValidationError, match="without effect, because only tables have columns"):
        DocumentSource.model_validate(given)
    for table_or_folder in ("a.csv", "@samples/papers.jsonl.gz", "notes"):
        assert DocumentSource.model_validate({"path": table_or_folder, "group": "patient"}).group == "patient"
