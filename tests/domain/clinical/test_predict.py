"""Scoring in memory: the chunks, probability and explanation of each admission."""

import html
import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from synthetic_patients import HARMLESS, TELLING, stays

from bertrelay.errors import RequestError, WorkError
from domain.clinical.aggregation import aggregate_labels
from domain.clinical.chunks import Chunker, chunk_tokens
from domain.clinical.cleaning import clean
from domain.clinical.model import chunk_log_odds, load_model, save_model, start_model
from domain.clinical.predict import OutcomeScorer, ReadmissionScorer, admission_page, clean_and_join
from domain.clinical.settings import LENGTH_OF_STAY, ModelDescription

SETTINGS = {"chunking": {"max_tokens": 24}, "c": 3.0, "slope": 0.5, "threshold": 0.5}
LENGTHS = {"chunking": {"max_tokens": 24}, "task": "length-of-stay", "labels": [*LENGTH_OF_STAY.labels]}
OVERLAPPING = {**SETTINGS, "chunking": {"max_tokens": 24, "overlap": 12}}


def random_model(bert, settings):
    """A random model whose log-odds differ well from chunk to chunk."""
    model = start_model(bert, ModelDescription.model_validate(settings), seed=1)
    model.network.network.classifier.weight.data *= 60
    return model


@pytest.fixture(scope="module")
def model_folder(bert, tmp_path_factory):
    save_model(random_model(bert, SETTINGS), folder := tmp_path_factory.mktemp("model"))
    return folder


@pytest.fixture(scope="module")
def scorer(model_folder):
    return ReadmissionScorer.load(model_folder)


def by_hand(scorer, text):
    """P of one admission: every chunk in a batch of its own, and the formula written out."""
    tokens = chunk_tokens([text], Chunker(scorer.model.tokenizer, scorer.model.description.chunking))
    numbers, n, c = range(len(tokens)), len(tokens), 3.0
    alone = [float(expit(chunk_log_odds(scorer.model, tokens, np.array([number]), "fp32")[0, 0])) for number in numbers]
    return (max(alone) + sum(alone) / n * n / c) / (1 + n / c)


def test_notes_of_an_admission_are_anywhere_and_ids_are_of_any_type(scorer):
    texts = stays(6)["text"].tolist()
    frame = pd.DataFrame({"hadm_id": [7, "8", 7.0, " 8 ", "7", 9], "text": texts}).astype({"hadm_id": object})
    scored = scorer.score(frame, precision="fp32")
    columns = "hadm_id probability calibrated alarm n_chunks unknown_share subwords_per_word top_start top_end "
    columns += "top_section top_share"
    assert scored.columns.tolist() == [*columns.split(), "reason"]
    assert scored["hadm_id"].tolist() == ["7", "8", "9"]
    for row, notes in zip(scored.itertuples(), [[0, 2, 4], [1, 3], [5]], strict=True):
        text = clean_and_join([texts[note] for note in notes])
        assert row.probability == pytest.approx(by_hand(scorer, text), abs=1e-5)
        odds = row.probability / (1 - row.probability)
        assert row.calibrated == pytest.approx(odds**0.5 / (1 + odds**0.5), abs=1e-6)
        assert row.alarm == (row.probability >= 0.5)
    assert scored["probability"].nunique() == 3


def test_a_note_given_twice_counts_once(scorer, capsys):
    texts = stays(4)["text"].tolist()
    once = pd.DataFrame({"hadm_id": ["7", "7", "8", "9"], "text": [*texts[:3], texts[0]]})  # another's is no copy
    expected = scorer.score(once, precision="fp32")
    assert "copies" not in capsys.readouterr().err
    again = pd.DataFrame({"hadm_id": ["7", "8", "8"], "text": [f"{texts[0]} \n", texts[2], ""]})
    assert scorer.score(pd.concat([once, again]), precision="fp32").equals(expected)
    assert "2 of 7 notes are copies of an earlier one, of one admission, and count once" in capsys.readouterr().err


def test_shares_add_up_to_the_probability_and_the_top_one_is_the_largest(scorer):
    for text, score in zip(texts := stays(20)["text"], scorer.score_texts(texts.tolist()), strict=True):
        assert sum(chunk.share for chunk in score.chunks) == pytest.approx(score.probability)
        assert "".join(text[chunk.start : chunk.end] for chunk in score.chunks) == text
        assert score.top == score.chunks[int(np.argmax([chunk.probability for chunk in score.chunks]))]
        assert score.section in ("hospital course", "plan")
    (score,) = scorer.score_texts([f"DOCTOR QZXNAME:\n{' '.join(HARMLESS)}"])
    assert score.section is None and score.probability is not None  # an unknown header may be a name


def test_a_text_that_cannot_be_read_has_no_probability_and_says_why(scorer, capsys):
    vocabulary = set(scorer.model.tokenizer.get_vocab())
    assert {".", "[SEP]", "the"} <= vocabulary and not {"患", "退"} & vocabulary
    texts = ["患者は退院した。", "患者. [SEP] 退院.", HARMLESS[0], f"{HARMLESS[0]} 患者"]  # marks make no text readable
    texts += [" NA", "  \n\t", "\u200b", None, float("nan"), pd.NA]
    scored = scorer.score(pd.DataFrame({"hadm_id": range(10), "text": texts}))
    assert scored["reason"].fillna("").tolist() == ["no known word"] * 2 + [""] * 2 + ["no text"] * 6
    assert scored["probability"].isna().tolist() == [True, True, False, False] + [True] * 6
    assert scored["n_chunks"].tolist() == [0, 0, 1, 1] + [0] * 6
    assert scored[["calibrated", "alarm", "top_start", "top_share"]].iloc[[0, 4]].isna().all(axis=None)
    ids = scorer.model.tokenizer(texts[3], add_special_tokens=False)["input_ids"]
    share = np.mean(np.array(ids) == scorer.model.tokenizer.unk_token_id)
    assert scored["unknown_share"][[0, 2, 3]].tolist() == pytest.approx([1, 0, share]) and 0 < share < 1
    assert scored["unknown_share"][4:].isna().all()
    assert "in 3 of 10 admissions" in capsys.readouterr().err
    assert "no known word" in admission_page(scorer.explain(texts[0]), scorer.model.description)
    scorer.score(pd.DataFrame({"hadm_id": [3], "text": HARMLESS[:1]}))
    assert "unknown" not in capsys.readouterr().err


def test_a_network_that_is_not_finite_is_an_error_and_not_an_admission_without_alarm(bert):
    model = random_model(bert, SETTINGS)
    model.network.network.classifier.bias.data[0] = np.inf
    with pytest.raises(WorkError, match="log-odds that is not finite for chunk 1 of 1"):
        OutcomeScorer(model).score(pd.DataFrame({"hadm_id": [1], "text": HARMLESS[:1]}))


def test_admissions_that_max_chunks_may_have_cut_are_reported(bert, capsys):
    chunking = SETTINGS["chunking"] | {"max_chunks": 1}
    frame = pd.DataFrame({"hadm_id": [1, 2], "text": ["", " ".join(HARMLESS * 9)]})
    OutcomeScorer(random_model(bert, {**SETTINGS, "chunking": chunking})).score(frame)
    assert "1 of 2 admissions have 1 chunks, the most that the model reads (max_chunks)" in capsys.readouterr().err


NO_ID, NO_INTEGER = "no id of an admission", "an id that is neither text nor a whole number"
NO_NOTE, NO_UNICODE = "a note that is something other than text", r"text that is not valid Unicode"
INVALID_ROWS = [
    *[((value, "b"), NO_ID) for value in (None, float("nan"), pd.NA, " ")],
    *[((value, "b"), NO_INTEGER) for value in (True, np.True_, ["qzx"], 100.5, float("inf"), b"7")],
    *[((8, value), NO_NOTE) for value in (7, 1.5, True, ["qzx"], b"qzx")],
    *[(row, NO_UNICODE) for row in (("qzx\ud800", "a"), (8, "qzx \udfff b"))],
]


@pytest.mark.parametrize(("row", "message"), INVALID_ROWS, ids=ascii)
def test_an_invalid_row_is_reported_by_its_number_alone(scorer, row, message):
    frame = pd.DataFrame([(7, "a"), row], columns=["hadm_id", "text"], dtype=object)
    with pytest.raises(RequestError, match=rf"found {message}.* in row 1, from 0") as raised:
        scorer.score(frame)
    assert "qzx" not in str(raised.value) and "100.5" not in str(raised.value)
    for notes, message in (
        ("notes.csv", "expected a data frame with a row for each note, found str"),
        (frame.set_axis(["text", "text"], axis=1), "expected one column 'text', found 2"),
    ):
        with pytest.raises(RequestError, match=message):
            scorer.score(notes, id_column="text")
    with pytest.raises(RequestError, match="expected a column 'hadm_id', found 2 columns of other names") as raised:
        scorer.score(frame.set_axis(["qzx7", "qzx came in"], axis=1))  # a first row as names
    assert "qzx" not in str(raised.value)


def test_an_explanation_is_of_the_note_as_it_is_scored(scorer):
    raw = f"Hospital Course:\r\n{HARMLESS[0]}\r\n[**Known lastname 12**] {HARMLESS[1]}\r\n______________\n{TELLING}"
    explanation = scorer.explain(raw, precision="fp32")
    scored = scorer.score(pd.DataFrame({"hadm_id": [1], "text": [raw]}), precision="fp32")
    assert explanation.score.probability == scored["probability"][0] and explanation.text == clean(raw) != raw
    assert scorer.explain(explanation.text, cleaned=True, precision="fp32") == explanation
    assert scorer.explain(raw, cleaned=True).text == raw


@pytest.mark.parametrize("settings", [SETTINGS, LENGTHS])
def test_a_words_importance_is_what_masking_it_loses(bert, settings):
    scorer = OutcomeScorer(model := random_model(bert, settings))
    text = f"{' '.join(HARMLESS * 2)} {TELLING}"
    explanation = scorer.explain(text, precision="fp32")
    top, label = explanation.score.top, int(np.argmax(explanation.score.by_label))
    shown = text[top.start : top.end]
    assert [text[word.start : word.end] for word in explanation.words] == re.findall(r"\w+|[^\w\s]", shown)
    chunker = Chunker(model.tokenizer, model.description.chunking)
    tokens, chunk = chunk_tokens([text], chunker), explanation.score.chunks.index(top)
    _, numbers, _ = chunker.words(shown)

    def predicted():
        log_odds = chunk_log_odds(model, tokens, np.arange(len(tokens)), "fp32")
        p = aggregate_labels(expit(log_odds), np.zeros(len(tokens), np.int64), 1, model.description)
        return np.array([log_odds[chunk, label], p[0, label]])

    before, ids = predicted(), tokens.ids.copy()
    for number, word in enumerate(explanation.words):
        tokens.ids[tokens.starts[chunk] + np.flatnonzero(numbers == number)] = model.tokenizer.mask_token_id
        assert (word.lost_log_odds, word.lost_probability) == pytest.approx(before - predicted(), abs=1e-3)
        tokens.ids[:] = ids
    assert max(abs(word.lost_log_odds) for word in explanation.words) > 0.1


def test_the_page_shows_all_text_none_of_it_as_markup_and_marks_words_of_the_top_chunk_alone(scorer, bert):
    text = f"{' '.join(HARMLESS)} <script>alert(1)</script> & {TELLING}"
    explanation = scorer.explain(text)
    shown = admission_page(explanation, scorer.model.description)
    assert "<script>" not in shown and "http" not in shown
    chunks = re.findall(r'<div class="text" dir="auto">(.*?)</div>', shown, re.DOTALL)
    assert "".join(html.unescape(re.sub(r"</?mark[^>]*>", "", chunk)) for chunk in chunks) == text
    assert shown.count("<mark") > 3
    assert "No probability" in admission_page(scorer.explain(""), scorer.model.description)
    scorer = OutcomeScorer(random_model(bert, OVERLAPPING))
    explanation = scorer.explain(f"{' '.join(HARMLESS * 2)} {TELLING} {' '.join(HARMLESS)}")
    top = explanation.score.top
    assert any(chunk != top and chunk.start < top.end and top.start < chunk.end for chunk in explanation.score.chunks)
    for section in admission_page(explanation, scorer.model.description).split("<section")[1:]:
        assert ("<mark" in section) == section.startswith(' class="top"')


def test_the_page_has_one_scale_the_calibrated_one_beside_the_average_of_the_hospital(bert):
    values = {**SETTINGS, "slope": 2.0, "threshold": 0.6, "prevalence": 0.302, "window_days": 90.0}
    scorer = OutcomeScorer(random_model(bert, values))  # calibrated odds are the square of P's
    explanation = scorer.explain(f"{' '.join(HARMLESS)} {TELLING}")
    shown = " ".join(admission_page(explanation, scorer.model.description).split())
    assert f"<h1>{100 * explanation.score.calibrated:.1f} %</h1>" in shown and "fitted to is 30.2 %." in shown
    alarm = "An alarm" if explanation.score.probability >= 0.6 else "No alarm"
    assert f"{alarm}: these are from 69.2 % on." in shown  # 0.6² / (0.6² + 0.4²)
    for chunk in explanation.score.chunks:
        odds = (chunk.probability / (1 - chunk.probability)) ** 2
        share = 100 * chunk.share / explanation.score.probability
        assert f"alone {100 * odds / (1 + odds):.1f} %, share {share:.0f} %" in shown
    assert "P =" not in shown and "in P" not in shown and f"{explanation.score.probability:.3f}" not in shown
    assert "within 90 days of discharge" in shown


@pytest.mark.parametrize(
    "key", ["task", "labels", "chunking", "max_tokens", "aggregation", "slope", "threshold", "pooling", "alarms", "cut"]
)
def test_a_key_that_is_missing_is_never_taken_for_its_default(model_folder, tmp_path, key):
    shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
    written = json.loads((tmp_path / "outcome.json").read_text())
    del (written["chunking"] if key == "max_tokens" else written)[key]
    (tmp_path / "outcome.json").write_text(json.dumps(written))
    with pytest.raises(RequestError, match=rf"expected (chunking\.)?{key} in .*outcome\.json"):
        load_model(tmp_path)
