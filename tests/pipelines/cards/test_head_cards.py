"""Cards of taggers, answerers, scorers and outcome models: from recorded facts, and without a word of a patient."""

import json
import re
import shutil
import stat

import pytest
from huggingface_hub import ModelCard

from bertrelay.errors import RequestError
from bertrelay.files import read_json
from pipelines.cards.card import write_card
from pipelines.run.store import Done
from teachers.sbert_paper.poly_encoder import PolyEncoder

MARK = "Qzxmark"
LIBRARIES = {"torch": "2.0"}
METRICS = {
    "domain.ner": {"f1": 0.8, "f1_low": 0.7, "f1_high": 0.9, "f1/Disease": 0.75, "gold_entities": 200}
    | {"train_steps": 9, "train_sentences": 1234},
    "domain.qa-evaluate": {"f1": 0.6, "exact_match": 0.5, "scored": 300, "train_steps": 9, "train_questions": 2345},
    "teachers.cross-encoder": {"sts/set/spearman_score": 0.7, "train_steps": 9, "train_items": 3456},
    "domain.readmission": {
        "auroc": 0.71,
        "auroc_low": 0.65,
        "auroc_high": 0.77,
        "auroc/tfidf": 0.69,
        "prevalence": 0.2,
        "brier": 0.15,
        "observed_expected": 1.02,
        "observed_expected_low": 0.9,
        "observed_expected_high": 1.1,
        "admissions/train": 900,
        "admissions/validation": 100,
        "admissions/test": 120,
        "train_steps": 9,
    },
}
SLICES = [
    {"characteristic": "age", "group": "65 to 74", "admissions": 50, "metrics": {"auroc": 0.66}, "suppressed": 0},
    {"characteristic": "insurance", "group": MARK, "admissions": 60, "metrics": {"auroc": 0.61}, "suppressed": 0},
    {"characteristic": "sex", "group": None, "admissions": None, "metrics": None, "suppressed": 2},
]


@pytest.fixture
def finish(tmp_path):
    """Writes a finished stage that made a copy of a model; returns its folder."""

    def write(kind, model, **more):
        folder = tmp_path / "runs" / kind / "abc"
        folder.mkdir(parents=True)
        shutil.copytree(model, folder / "model")
        parts = {"uses": kind, "learning_rate": 0.01, "base": "hub:org/base@1", "notes": "output:12/", **more}
        done = Done(parts, METRICS[kind], {}, LIBRARIES, "", "", 65.0)
        (folder / "done.json").write_text(json.dumps(done.__dict__))
        return folder

    return write


@pytest.fixture
def card_of(finish, tmp_path):
    """Writes the card of a model that a stage of a kind made; returns it."""

    def write(kind, model, **more):
        folder = finish(kind, model, **more)
        return ModelCard.load(write_card(folder / "model", tmp_path / "out", results=[folder], license="mit"))

    return write


@pytest.fixture
def poly_encoder(encoder, tmp_path):
    PolyEncoder(encoder, codes=2).save(tmp_path / "poly")
    return tmp_path / "poly"


@pytest.mark.parametrize(
    ("kind", "fixture", "task", "facts"),
    [
        ("domain.ner", "tagger", "token-classification", ["Disease, Gene", "1,234 sentences", "64 tokens"]),
        ("domain.qa-evaluate", "answerer", "question-answering", ["2,345 questions", "48 tokens, which overlap by 32"]),
        ("teachers.cross-encoder", "cross_encoder", "text-ranking", ["3,456 items", "from 0 to 1"]),
        ("teachers.cross-encoder", "poly_encoder", "text-ranking", ["Humeau"]),
        ("domain.readmission", "readmission_model", "text-classification", ["## Intended use", "## Calibration"]),
    ],
)
def test_a_card_has_valid_metadata_the_facts_of_its_stage_and_code_that_runs(
    kind, fixture, task, facts, card_of, request, tmp_path
):
    card = card_of(kind, request.getfixturevalue(fixture))
    data = card.data.to_dict()
    assert (data["pipeline_tag"], data["license"], data["base_model"]) == (task, "mit", ["org/base"])
    assert ModelCard(str(card)).data.to_dict() == data  # written again it is the same
    main = next(name for name in ("f1", "auroc", "sts/set/spearman_score") if name in METRICS[kind])
    assert METRICS[kind][main] in [result.metric_value for result in card.data.eval_results]
    assert [fact for fact in [*facts, "learning_rate = 0.01", "torch 2.0", "1 min 5 s"] if fact not in card.text] == []
    assert str(tmp_path) not in str(card) and "output:" not in str(card)
    for code in re.findall(r"```python\n(.*?)```", card.text, re.DOTALL):
        exec(code.replace('"out"', repr(str(tmp_path / "out"))), {})


@pytest.mark.promise("A clinical model's card holds no word of the hospital's tables", about="privacy")
def test_a_clinical_card_has_cohort_calibration_and_limits_and_no_word_of_the_hospitals_tables(
    readmission_model, finish, tmp_path
):
    folder = finish("domain.readmission", readmission_model)
    (folder / "slices.json").write_text(json.dumps({"slices": SLICES}))
    (folder / "flow.csv").write_text("step,admissions,subjects,left_out,left_out_readmitted\nwith notes,1120,700,8,0\n")
    path = write_card(folder / "model", tmp_path / "out", results=[folder], license="mit")
    card = ModelCard.load(path)
    assert MARK not in str(card)
    description = read_json(readmission_model / "outcome.json")
    for fact in (
        *("no medical device", "900 train, 100 validation, 120 test", "| with notes | 1,120 | 700 | <10 | 0 |"),
        *("| age | 65 to 74 | 50 | 0.660 |", "1.020 (0.900 – 1.100)", f"on, which had a precision of {0.8:g}"),
        *(f"{description['slope']:.3f} times those of the probability", "24 of the rarer kind among 120"),
        *("no external validation is named", "share the folder under the same rules as the notes"),
    ):
        assert fact in card.text, fact
    evaluation = card.text[card.text.index("## Evaluation") :]
    assert "observed/expected" not in evaluation  # it is said once, under Calibration
    assert {result.metric_value for result in card.data.eval_results} == {0.71, 0.15}  # none of the baseline
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def test_a_model_without_a_task_has_no_card(card_of, tmp_path):
    (tmp_path / "classifier").mkdir()
    config = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b"}}
    (tmp_path / "classifier/config.json").write_text(json.dumps(config))
    with pytest.raises(RequestError, match=r"found in .* a classifier of texts"):
        card_of("domain.ner", tmp_path / "classifier")
