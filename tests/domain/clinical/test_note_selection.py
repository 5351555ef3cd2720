"""Of a table of all notes, scoring reads the kinds that the model was trained on, or stops."""

import pandas as pd
import pytest

from bertrelay.errors import RequestError
from domain.clinical import score_dataset, score_file
from domain.clinical.model import save_model, start_model
from domain.clinical.predict import OutcomeScorer, ReadmissionScorer
from domain.clinical.settings import ModelDescription

RAW = pd.DataFrame(
    [
        ("1", "Discharge summary ", "", "the wound is dry."),  # MIMIC-III has blanks behind its categories
        ("1", "Nursing", "", "the failing heart came back again."),
        ("1", "Discharge summary", "1", "the failing heart came back again."),
        ("2", "discharge summary", "", "slept well."),
        ("2", "Radiology", "", "the failing heart came back again."),
        ("3", "Nursing", "", "walked with the nurse."),
    ],
    columns=["hadm_id", "CATEGORY", "ISERROR", "text"],
)
SUMMARIES = RAW.iloc[[0, 3]][["hadm_id", "text"]]


@pytest.fixture(scope="module")
def trained_on(bert, tmp_path_factory):
    """The folder of a model whose `outcome.json` names these notes."""

    def write(**notes):
        settings = ModelDescription.model_validate({"chunking": {"max_tokens": 24}, **notes})
        save_model(start_model(bert, settings, seed=1), folder := tmp_path_factory.mktemp("model"))
        return folder

    return write


def scores_of(path):
    return pd.read_json(path, lines=True, dtype={"hadm_id": str}).set_index("hadm_id")["probability"]


@pytest.fixture
def expected(trained_on):
    selected = ReadmissionScorer.load(trained_on(input="discharge")).score(SUMMARIES, precision="fp32")
    return selected.set_index("hadm_id")["probability"]


def test_of_a_raw_table_the_summaries_are_read_and_the_rest_is_counted(trained_on, expected, tmp_path, capsys):
    model = trained_on(input="discharge", cut="text until the discharge")
    RAW.to_csv(tmp_path / "noteevents.csv", index=False)
    scored = score_file(model, tmp_path / "noteevents.csv", tmp_path / "o.jsonl", precision="fp32")
    assert (scored.admissions, scored.left_out, scored.rejected) == (2, 4, 0)
    assert scores_of(tmp_path / "o.jsonl").to_dict() == pytest.approx(expected.to_dict(), abs=1e-5)
    stated = (
        "left out 4 of 6 rows, which the model does not read: 3 × no discharge summary by category, 1 × marked as an"
    )
    assert stated in (logged := capsys.readouterr().err)
    assert "1 admissions have no other rows, and so no score" in logged
    assert "warning: the model was trained on text until the discharge; " in logged  # later reports reveal the outcome
    assert "has not the times for that, so that notes written later, which may name the outcome, are read" in logged
    in_memory = ReadmissionScorer.load(model).score(RAW, precision="fp32").set_index("hadm_id")["probability"]
    assert in_memory.to_dict() == pytest.approx(expected.to_dict(), abs=1e-6)


def test_a_dataset_is_read_alike(trained_on, expected, tmp_path):
    (tmp_path / "in").mkdir()
    RAW.to_parquet(tmp_path / "in/a.parquet")
    output = f"{tmp_path}/out/"
    scored = score_dataset(trained_on(input="discharge"), f"{tmp_path}/in/", output, precision="fp32")
    assert (scored.admissions, scored.left_out) == (2, 4)
    selected = pd.read_parquet(output).set_index("hadm_id")["probability"]
    assert selected.to_dict() == pytest.approx(expected.to_dict(), abs=1e-5)


@pytest.mark.parametrize(
    ("notes", "which"),
    [
        ({"input": "early"}, "those of the first hours of a stay"),
        ({"input": "discharge", "radiology": True}, "discharge summaries with radiology reports"),
        ({"input": None}, "which its folder does not name"),
    ],
)
def test_where_the_table_does_not_say_which_rows_a_model_reads_it_is_refused(trained_on, tmp_path, notes, which):
    model = trained_on(**notes)
    RAW.to_csv(tmp_path / "noteevents.csv", index=False)
    with pytest.raises(RequestError, match=f"{which}, found a table of several kinds, by its column category"):
        score_file(model, tmp_path / "noteevents.csv", tmp_path / "o.csv")
    assert not (tmp_path / "o.csv").exists()
    with pytest.raises(RequestError, match="found a table of several kinds"):
        OutcomeScorer.load(model).score(RAW)
    alone = RAW.drop(columns="CATEGORY")  # errors are errors to every model
    assert OutcomeScorer.load(model).score(alone)["hadm_id"].tolist() == ["1", "2", "3"]


def test_a_table_without_any_summary_and_one_of_radiology_reports_are_refused(trained_on, tmp_path):
    model = trained_on(input="discharge")
    RAW[RAW["CATEGORY"] == "Nursing"].to_csv(tmp_path / "n.csv", index=False)
    with pytest.raises(RequestError, match=r"expected discharge summaries, .* left out 2 × no discharge summary"):
        score_file(model, tmp_path / "n.csv", tmp_path / "o.csv")
    mimic_iv = SUMMARIES.assign(note_type=["RR", "AR"])
    with pytest.raises(RequestError, match="left out 2 × no discharge summary by note_type"):
        ReadmissionScorer.load(model).score(mimic_iv)
    assert len(ReadmissionScorer.load(model).score(SUMMARIES.assign(note_type=["DS", "AD"]))) == 2
