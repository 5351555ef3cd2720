"""The synthetic hospital: what is claimed of its risk against arithmetic of other kinds, and every oddity."""

import csv
import gzip
import math
import re
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from functools import cache
from itertools import product
from random import Random

import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict

from bertrelay.cache import Cache
from bertrelay.stage import StageContext
from pipelines.samples.grammar import load
from pipelines.samples.hospital import write_hospital
from pipelines.samples.notes import wordings
from pipelines.samples.patients import SHARE, WEIGHTS, draw_prognosis, draw_subject, risk_of
from pipelines.samples.settings import HospitalSettings

SUBJECTS = 1000
DAY = timedelta(days=1)
REVIEW = "30-day review"
STATED = "(?:Patient reports|Patient is known for|Positive for|History of|Team noted)"


def rows(path):
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def time(text):
    return datetime.fromisoformat(text) if text else None


class Hospital:
    """The tables as they are written, by name, and the true risks by admission."""

    def __init__(self, folder, **settings):
        self.folder, self.settings = folder, settings
        write_hospital(folder, HospitalSettings(**settings))
        self.tables = {path.name.removesuffix(".csv.gz").lower(): rows(path) for path in folder.rglob("*.csv.gz")}
        self.risk = {row["hadm_id"]: float(row["true_risk"]) for row in self.tables["risk"]}


@pytest.fixture(scope="module")
def third(tmp_path_factory):
    return Hospital(tmp_path_factory.mktemp("third"), subjects=SUBJECTS, words=200)


@pytest.fixture(scope="module")
def fourth(tmp_path_factory):
    return Hospital(tmp_path_factory.mktemp("fourth"), subjects=300, words=200, version="IV")


@pytest.fixture(scope="module")
def subjects():
    return [draw_subject(11, number)[0] for number in range(6000)]


@cache
def cases():
    """The risk of each combination of conditions, and its share of all stays."""
    found = list(product((False, True), repeat=len(WEIGHTS)))
    shares = [math.prod(SHARE if is_present else 1 - SHARE for is_present in case) for case in found]
    return np.array([risk_of(case) for case in found]), np.array(shares)


def best_auroc():
    """Of the true risk over all stays there could be: no model can do better."""
    risks, shares = cases()
    returning, staying = shares * risks, shares * (1 - risks)
    wins = (risks[:, None] > risks) + 0.5 * (risks[:, None] == risks)  # (cases that return, cases that do not)
    return returning @ wins @ staying / (returning.sum() * staying.sum())


def test_patients_have_the_best_auroc_and_the_risks_that_follow_by_arithmetic(subjects):
    random = Random(3)
    drawn = [draw_prognosis(random) for _ in range(50_000)]
    risks, returned = np.array([(each.risk, each.returns) for each in drawn]).T
    assert 0.80 < best_auroc() < 0.90
    assert best_auroc() == pytest.approx(roc_auc_score(returned, risks), abs=0.01)
    assert np.prod(cases(), axis=0).sum() == pytest.approx(returned.mean(), abs=0.01)
    deciles = np.linspace(0.1, 0.9, 9)
    of_patients = [stay.prognosis.risk for subject in subjects for stay in subject.stays if stay.prognosis]
    assert np.quantile(risks, deciles) == pytest.approx(np.quantile(of_patients, deciles), abs=0.03)


def slow_labels(subject):
    """(risk, returned) of the stays of one patient, joined where they touch, by looking at each pair of stays."""
    joined = []
    for stay in subject.stays:
        if joined and stay.admitted <= max(each.discharged for each in joined[-1]):
            joined[-1].append(stay)
        else:
            joined.append([stay])
    for parts in joined:
        if any(part.died for part in parts) or parts[0].kind == "newborn":
            continue
        end = max(part.discharged for part in parts)
        starts = [later[0].admitted for later in joined if later[0].admitted > end and later[0].kind != "planned"]
        yield parts[0].prognosis.risk, any(start - end <= 30 * DAY for start in starts)


def test_patients_return_as_often_as_their_risk_says(subjects):
    risks, returned = np.array([label for subject in subjects for label in slow_labels(subject)]).T
    assert len(risks) > 9_000
    assert roc_auc_score(returned, risks) == pytest.approx(best_auroc(), abs=0.012)
    for part in np.array_split(np.argsort(risks), 10):
        error = 4 * math.sqrt(returned[part].mean() * (1 - returned[part].mean()) / len(part) + 1e-5)
        assert returned[part].mean() == pytest.approx(risks[part].mean(), abs=error)


@pytest.mark.parametrize("form", ["third", "fourth"])
def test_the_cohort_returns_as_its_true_risk_says(form, request, tmp_path):
    import pandas as pd

    from domain.clinical.cohort import run as make_cohort
    from domain.clinical.settings import CohortSettings

    hospital = request.getfixturevalue(form)
    make_cohort(CohortSettings(mimic=str(hospital.folder / "mimic")), StageContext(tmp_path, Cache(tmp_path)))
    cohort = pd.read_parquet(tmp_path / "cohort.parquet")
    stays = [stay for number in range(SUBJECTS) for stay in draw_subject(7, number)[0].stays if stay.prognosis]
    drawn = {str(stay.hadm_id): stay.prognosis.returns for stay in stays}
    assert cohort["readmitted"].tolist() == cohort["hadm_id"].map(drawn).tolist()
    risks = cohort["hadm_id"].map(hospital.risk)
    assert risks.notna().all()
    deviation = 0.5 / math.sqrt(cohort["readmitted"].sum())
    assert roc_auc_score(cohort["readmitted"], risks) == pytest.approx(best_auroc(), abs=2 * deviation)
    assert cohort["readmitted"].mean() == pytest.approx(risks.mean(), abs=1.5 / math.sqrt(len(cohort)))


def discharge_texts(hospital):
    texts = defaultdict(list)
    for note in sorted(hospital.tables["noteevents"], key=lambda note: note["CHARTDATE"]):
        if note["CATEGORY"] == "Discharge summary" and note["HADM_ID"] in hospital.risk:
            texts[note["HADM_ID"]].append(note["TEXT"])
    return {hadm_id: "\n".join(parts) for hadm_id, parts in texts.items()}


def early_texts(hospital):
    admitted = {row["HADM_ID"]: time(row["ADMITTIME"]) for row in hospital.tables["admissions"]}
    texts = defaultdict(str)
    for note in hospital.tables["noteevents"]:
        stay, charted = note["HADM_ID"], time(note["CHARTTIME"])
        if stay in hospital.risk and charted and not note["ISERROR"] and charted - admitted[stay] < 2 * DAY:
            texts[stay] += note["TEXT"]
    return texts


def drawn_outcomes(risks):
    """Outcomes of the true risks: which stays were last, transferred or planned does not matter here."""
    return np.random.default_rng(5).random(len(risks)) < np.array(risks)


@pytest.mark.parametrize("texts_of", [discharge_texts, early_texts])
def test_every_condition_is_stated_in_the_discharge_notes_and_in_the_early_ones(third, texts_of):
    texts = texts_of(third)
    found = []
    for subject in (draw_subject(7, number)[0] for number in range(300)):
        for stay in subject.stays:
            if stay.prognosis and str(stay.hadm_id) in texts:
                text = " ".join(texts[str(stay.hadm_id)].split())
                conditions = zip(wordings("conditions"), stay.prognosis.present, strict=True)
                present = [condition for condition, is_present in conditions if is_present]
                found += [re.search(rf"{STATED} (?:{'|'.join(each)})", text) is not None for each in present]
    assert len(found) > 500
    assert np.mean(found) > 0.99


def test_words_without_their_order_carry_less_than_the_text(third):
    texts = discharge_texts(third)
    outcomes = drawn_outcomes([third.risk[hadm_id] for hadm_id in texts])
    words = TfidfVectorizer(min_df=5, sublinear_tf=True).fit_transform(texts.values())
    scores = cross_val_predict(LogisticRegression(), words, outcomes, cv=3, method="predict_proba")[:, 1]
    assert 0.60 < roc_auc_score(outcomes, scores) < best_auroc() - 0.05


def test_tables_without_notes_carry_no_information(third):
    stays = [row for row in third.tables["admissions"] if row["HADM_ID"] in third.risk]
    sexes = {row["SUBJECT_ID"]: row["GENDER"] for row in third.tables["patients"]}
    codes = Counter((row["HADM_ID"], row["ICD9_CODE"]) for row in third.tables["diagnoses_icd"])
    known = defaultdict(dict, {})
    for hadm_id, code in codes:
        known[hadm_id][code] = 1
    columns = ("ADMISSION_TYPE", "DISCHARGE_LOCATION", "INSURANCE", "MARITAL_STATUS", "ETHNICITY", "DIAGNOSIS")
    features = [
        {name: row[name] for name in columns}
        | known[row["HADM_ID"]]
        | {
            "sex": sexes[row["SUBJECT_ID"]],
            "id": rank,
            "days": min((time(row["DISCHTIME"]) - time(row["ADMITTIME"])) / DAY, 20) / 20,
        }
        for row, rank in zip(stays, rankdata([int(row["HADM_ID"]) for row in stays]) / len(stays), strict=True)
    ]
    outcomes = drawn_outcomes([third.risk[row["HADM_ID"]] for row in stays])
    table = DictVectorizer().fit_transform(features)
    model = LogisticRegression(C=0.1, max_iter=500)
    scores = cross_val_predict(model, table, outcomes, cv=3, method="predict_proba")[:, 1]
    assert 0.45 < roc_auc_score(outcomes, scores) < 0.55


def test_the_first_notes_state_how_ill_a_patient_came_and_each_coded_diagnosis(third):
    codes = defaultdict(set)
    for row in third.tables["diagnoses_icd"]:
        codes[row["HADM_ID"]].add(row["ICD9_CODE"])
    stated = defaultdict(str)
    for note in third.tables["noteevents"]:
        if note["TEXT"].startswith("Admitted with") and not note["ISERROR"]:
            stated[note["HADM_ID"]] += note["TEXT"]
    names = {each["icd9"]: each["name"] for kind in ("problems", "diagnoses") for each in load("hospital")[kind]}
    for hadm_id, text in stated.items():
        assert {code for code, name in names.items() if name in text.partition("Vitals")[0]} == codes[hadm_id]
    stays = {str(stay.hadm_id): stay for n in range(SUBJECTS) for stay in draw_subject(7, n)[0].stays}
    assert all(wordings("severity")[stays[hadm_id].severity] in text for hadm_id, text in stated.items())
    assert len(stated) > SUBJECTS
    ill = [stays[hadm_id].severity for hadm_id in stated]
    assert roc_auc_score([stays[hadm_id].died for hadm_id in stated], ill) > 0.65
    long = [stays[hadm_id].discharged - stays[hadm_id].admitted > 7 * DAY for hadm_id in stated]
    assert roc_auc_score(long, ill) > 0.6


def texts_read(folder, **settings):
    """The discharge texts by stay, as the pipeline reads them."""
    import pandas as pd

    from domain.clinical import NotesSettings, write_notes

    mimic, cohort = str(folder / "mimic"), str(folder / "cohort")
    write_notes(NotesSettings(mimic=mimic, cohort=cohort, **settings), folder / "notes")
    return pd.read_parquet(folder / "notes/notes.parquet").set_index("hadm_id")["text"]


@pytest.mark.parametrize("version", ["III", "IV"])
def test_late_notes_give_the_outcome_away_and_are_read_only_without_the_cut_offs(version, tmp_path):
    import pandas as pd

    from domain.clinical import CohortSettings, write_cohort

    write_hospital(tmp_path, HospitalSettings(subjects=150, words=100, version=version))
    write_cohort(CohortSettings(mimic=str(tmp_path / "mimic")), tmp_path / "cohort")
    assert not texts_read(tmp_path).str.contains(REVIEW).any()
    assert not texts_read(tmp_path, after_discharge_hours=0).str.contains(REVIEW).any()
    file = tmp_path / "cohort/cohort.parquet"
    cohort = pd.read_parquet(file).set_index("hadm_id", drop=False)
    before_the_return = texts_read(tmp_path, after_discharge_hours=1e9)
    cohort.assign(next_stay_at=pd.NaT).to_parquet(file)
    late = [
        texts[texts.str.contains(REVIEW)]
        for texts in (before_the_return, texts_read(tmp_path, after_discharge_hours=1e9))
    ]
    for texts in late:
        outcomes = texts.str.contains("there was an unplanned readmission")
        assert outcomes.tolist() == cohort.loc[texts.index, "readmitted"].tolist()
        assert outcomes.any() and not outcomes.all()
    assert set(late[0].index) < set(late[1].index)


@pytest.mark.parametrize("form", ["third", "fourth"])
def test_patients_who_are_added_change_no_row_of_the_others(form, request, tmp_path):
    more = request.getfixturevalue(form)
    write_hospital(tmp_path, HospitalSettings(**{**more.settings, "subjects": 20}))
    for path in tmp_path.rglob("*.gz"):
        others = gzip.decompress((more.folder / path.relative_to(tmp_path)).read_bytes())
        few = gzip.decompress(path.read_bytes())
        assert others.startswith(few) and len(others) > len(few)
