"""Scoring in memory: whose chunks are whose, what is told of each admission, and what its words did."""

import html
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from noted_patients import HARMLESS, TELLING, stays
from scipy.special import expit

from bertrelay.errors import RequestError
from domain.clinical.chunks import Chunker, chunk_tokens
from domain.clinical.classifier import load_model, save_model, start_model
from domain.clinical.outcomes import OutcomeModelSettings
from domain.clinical.prediction import aggregate, chunk_log_odds
from domain.clinical.scorer import OutcomeScorer, ReadmissionScorer, admission_page, joined

SETTINGS = {"chunking": {"max_tokens": 24}, "c": 3.0, "temperature": 2.0, "threshold": 0.5}


@pytest.fixture(scope="module")
def model_folder(bert, tmp_path_factory):
    """A random model whose log-odds differ well from chunk to chunk."""
    folder = tmp_path_factory.mktemp("model")
    model = start_model(bert, OutcomeModelSettings.model_validate(SETTINGS), seed=1)
    model.network.network.classifier.weight.data *= 60
    save_model(model, folder)
    return folder


@pytest.fixture(scope="module")
def scorer(model_folder):
    return ReadmissionScorer.load(model_folder)


def by_hand(scorer: ReadmissionScorer, text: str) -> float:
    """Each chunk alone through the network, and the formula written out."""
    tokens = chunk_tokens([text], Chunker(scorer.model.tokenizer, scorer.model.settings.chunking))
    places, n, c = range(len(tokens)), len(tokens), 3.0
    alone = [float(expit(chunk_log_odds(scorer.model, tokens, np.array([each]), "fp32")[0, 0])) for each in places]
    return (max(alone) + sum(alone) / n * n / c) / (1 + n / c)


def test_notes_of_an_admission_are_anywhere_and_ids_are_of_any_type(scorer):
    texts = stays(6)["text"].tolist()
    frame = pd.DataFrame({"hadm_id": [7, "8", 7.0, " 8 ", "7", 9], "text": texts}).astype({"hadm_id": object})
    found = scorer.score(frame, precision="fp32")
    columns = (
        "hadm_id probability calibrated alarm n_chunks unknown_share top_start top_end top_section top_share reason"
    )
    assert found.columns.tolist() == columns.split()
    assert found["hadm_id"].tolist() == ["7", "8", "9"]
    for row, notes in zip(found.itertuples(), [[0, 2, 4], [1, 3], [5]], strict=True):
        text = joined([texts[note] for note in notes])
        assert row.probability == pytest.approx(by_hand(scorer, text), abs=1e-5)
        odds = row.probability / (1 - row.probability)
        assert row.calibrated == pytest.approx(odds**0.5 / (1 + odds**0.5), abs=1e-6)
        assert row.alarm == (row.probability >= 0.5)
    assert found["probability"].nunique() == 3


def test_shares_add_up_to_the_probability_and_the_top_one_is_the_largest(scorer):
    for text, score in zip(texts := stays(20)["text"], scorer.score_texts(texts.tolist()), strict=True):
        assert sum(chunk.share for chunk in score.chunks) == pytest.approx(score.probability)
        assert "".join(text[chunk.start : chunk.end] for chunk in score.chunks) == text
        assert score.top == score.chunks[int(np.argmax([chunk.probability for chunk in score.chunks]))]
        assert score.section in ("hospital course", "plan")


def test_an_unknown_header_is_not_reported(scorer):
    (score,) = scorer.score_texts([f"DOCTOR QZXNAME:\n{' '.join(HARMLESS)}"])
    assert score.section is None and score.probability is not None


@pytest.mark.parametrize("text", ["", "  \n\t", "\u200b", None, float("nan"), pd.NA], ids=repr)
def test_an_admission_without_text_has_no_probability(scorer, text):
    found = scorer.score(pd.DataFrame({"hadm_id": [1, 2], "text": [text, HARMLESS[0]]}))
    assert found["n_chunks"].tolist() == [0, 1]
    assert pd.isna(found["probability"][0]) and pd.isna(found["top_start"][0])
    assert found["probability"][1] > 0


def test_a_text_of_unknown_tokens_only_has_no_probability_and_says_why(scorer, capsys):
    texts = ["患者は退院した。", "", HARMLESS[0], f"{HARMLESS[0]} 患者"]
    found = scorer.score(pd.DataFrame({"hadm_id": [1, 2, 3, 4], "text": texts}))
    assert found["reason"].tolist()[:2] == ["no known word", "no text"] and found["reason"][2:].isna().all()
    assert found["probability"].isna().tolist() == [True, True, False, False]
    assert found[["calibrated", "alarm", "top_start", "top_share"]].iloc[0].isna().all() and found["n_chunks"][0] == 0
    ids = scorer.model.tokenizer(texts[3], add_special_tokens=False)["input_ids"]
    share = np.mean(np.array(ids) == scorer.model.tokenizer.unk_token_id)
    assert found["unknown_share"].tolist()[2:] == pytest.approx([0, share]) and 0 < share < 1
    assert found["unknown_share"][0] == 1 and np.isnan(found["unknown_share"][1])
    assert "in 2 of 4 admissions" in capsys.readouterr().err
    assert "no known word" in admission_page(scorer.explain(texts[0]), scorer.model.settings)
    scorer.score(pd.DataFrame({"hadm_id": [3], "text": HARMLESS[:1]}))
    assert "unknown" not in capsys.readouterr().err


def test_punctuation_and_marks_make_no_text_readable(scorer):
    known = set(scorer.model.tokenizer.get_vocab())
    assert {".", "[SEP]", "the"} <= known and not {"患", "退"} & known
    found = scorer.score_texts(["患者. [SEP] 退院.", "患者. the 退院", HARMLESS[0]])
    assert [each.reason for each in found] == ["no known word", None, None]
    assert found[0].probability is None and not found[0].chunks and 0 < found[0].unknown_share < 1


NO_ID, NO_INTEGER = "no id of an admission", "an id that is neither text nor a whole number"
NO_NOTE, NO_UNICODE = "a note that is something other than text", r"text that is not valid Unicode"
INVALID_ROWS = [
    *[((each, "b"), NO_ID) for each in (None, float("nan"), pd.NA, " ")],
    *[((each, "b"), NO_INTEGER) for each in (True, np.True_, ["qzx"], 100.5, float("inf"), b"7")],
    *[((8, each), NO_NOTE) for each in (7, 1.5, True, ["qzx"], b"qzx")],
    *[(each, NO_UNICODE) for each in (("qzx\ud800", "a"), (8, "qzx \udfff b"))],
]


@pytest.mark.parametrize(("row", "message"), INVALID_ROWS, ids=ascii)
def test_an_invalid_row_is_reported_by_its_number_alone(scorer, row, message):
    frame = pd.DataFrame([(7, "a"), row], columns=["hadm_id", "text"], dtype=object)
    with pytest.raises(RequestError, match=rf"found {message}.* in row 1, from 0") as raised:
        scorer.score(frame)
    assert "qzx" not in str(raised.value) and "100.5" not in str(raised.value)


def test_a_frame_without_a_header_is_reported_without_its_first_row(scorer):
    with pytest.raises(RequestError, match="expected a column 'hadm_id', found 2 columns of other names") as raised:
        scorer.score(pd.DataFrame([["1", "b"]], columns=["qzx7", "Qzx came in with QZXFEVER"]))
    assert "qzx" not in str(raised.value).casefold()


def test_ids_of_several_kinds_are_reported_once_and_those_of_one_not_at_all(scorer, capsys):
    scorer.score(pd.DataFrame({"hadm_id": pd.array([7, 8, 7], "Int64"), "text": ["a"] * 3}))
    assert capsys.readouterr().err == ""
    scorer.score(pd.DataFrame({"hadm_id": pd.Series([7, "7", 7.0, 7, "7"], dtype=object), "text": ["a"] * 5}))
    assert capsys.readouterr().err.count("some ids are numbers with a point, others text, others whole numbers") == 1


def test_a_words_importance_is_what_masking_it_loses(scorer):
    text = f"{' '.join(HARMLESS * 2)} {TELLING}"
    found = scorer.explain(text, precision="fp32")
    top = found.score.top
    assert [text[word.start : word.end] for word in found.words] == re.findall(
        r"\w+|[^\w\s]", text[top.start : top.end]
    )
    ids, numbers, _ = scorer._chunker.words(text[top.start : top.end])
    place = found.score.chunks.index(top)
    for number, word in enumerate(found.words):
        masked = np.where(numbers == number, scorer.model.tokenizer.mask_token_id, ids)
        log_odds = _alone(scorer, masked)
        assert word.lost_log_odds == pytest.approx(_alone(scorer, ids) - log_odds, abs=1e-3)
        others = [chunk.probability for chunk in found.score.chunks]
        others[place] = float(expit(log_odds))
        (after,) = aggregate(np.array(others), np.zeros(len(others), np.int64), 1, c=3.0)
        assert word.lost_probability == pytest.approx(found.score.probability - after, abs=1e-3)
    assert max(abs(word.lost_log_odds) for word in found.words) > 0.1


def _alone(scorer, ids):
    with torch.inference_mode():
        given = torch.from_numpy(np.array(ids)[None])
        return float(scorer.model.network.eval()(given, torch.ones_like(given))[0, 0])


def test_the_page_shows_all_text_and_none_of_it_as_markup(scorer):
    text = f"{' '.join(HARMLESS)} <script>alert(1)</script> & {TELLING}"
    found = scorer.explain(text)
    shown = admission_page(found, scorer.model.settings)
    assert "<script>" not in shown and "http" not in shown
    chunks = re.findall(r'<div class="text" dir="auto">(.*?)</div>', shown, re.DOTALL)
    assert "".join(html.unescape(re.sub(r"</?mark[^>]*>", "", chunk)) for chunk in chunks) == text
    assert shown.count("<mark") > 3
    assert "No probability" in admission_page(scorer.explain(""), scorer.model.settings)


def test_words_are_marked_in_the_top_chunk_alone_where_chunks_overlap(model_folder):
    model = load_model(model_folder)
    chunking = {"max_tokens": 24, "overlap": 12}
    how = OutcomeModelSettings.model_validate({**SETTINGS, "chunking": chunking})
    scorer = OutcomeScorer(replace(model, settings=how))
    found = scorer.explain(f"{' '.join(HARMLESS * 2)} {TELLING} {' '.join(HARMLESS)}")
    top = found.score.top
    assert any(chunk != top and chunk.start < top.end and top.start < chunk.end for chunk in found.score.chunks)
    for section in admission_page(found, how).split("<section")[1:]:
        assert ("<mark" in section) == section.startswith(' class="top"')


@pytest.mark.parametrize(
    "key", ["task", "labels", "chunking", "max_tokens", "aggregation", "c", "slope", "intercept", "threshold"]
)
def test_a_key_that_is_missing_is_never_taken_for_its_default(model_folder, tmp_path, key):
    shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
    told = json.loads((tmp_path / "outcome.json").read_text())
    del (told["chunking"] if key == "max_tokens" else told)[key]
    (tmp_path / "outcome.json").write_text(json.dumps(told))
    with pytest.raises(RequestError, match=rf"expected (chunking\.)?{key} in .*outcome\.json"):
        load_model(tmp_path)


def test_a_folder_of_the_first_edition_loads(model_folder, tmp_path):
    shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
    told = json.loads((tmp_path / "outcome.json").read_text())
    kept = ("task", "labels", "input", "chunking", "aggregation", "c", "threshold")
    older = {name: told[name] for name in kept} | {"temperature": 2.0}
    (tmp_path / "outcome.json").write_text(json.dumps(older))
    assert load_model(tmp_path).settings == load_model(model_folder).settings


def test_the_temperature_of_an_older_model_is_a_slope():
    found = OutcomeModelSettings.model_validate({"temperature": 4.0, "threshold": 0.3})
    assert (found.slope, found.intercept, found.threshold) == (0.25, 0.0, 0.3)
    for wrong in (0.0, -1.0, "2", None, float("nan"), float("inf"), [1.0]):
        with pytest.raises(ValueError, match="temperature"):
            OutcomeModelSettings.model_validate({"temperature": wrong})
