import numpy as np
import pytest

from bertrelay.cache import Cache
from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.stage import StageContext
from students.evaluate.compare import measure_faq, run
from students.evaluate.judgements import RetrievalData
from students.evaluate.settings import CompareSettings

QUESTIONS = ["one red bird", "two red birds", "a green tree", "no answer here"]
ENTRIES = ["red birds", "green trees", "blue water", "old stones"]


@pytest.fixture
def settings(tiny_encoder, tmp_path):
    """Two encoders and a folder of questions, of which the first two share an entry and the third has two."""
    for seed, name in enumerate(("model", "base")):
        tiny_encoder("bert", QUESTIONS + ENTRIES, seed=seed).save(tmp_path / name)
    folder = tmp_path / "faq"
    folder.mkdir()
    (folder / "questions.txt").write_text("".join(f"{text}\n" for text in QUESTIONS))
    (folder / "entries.txt").write_text("".join(f"{text}\n" for text in ENTRIES))
    (folder / "gold.tsv").write_text("1\t1\n2\t1\n3\t2\n3\t4\n")
    return {"model": str(tmp_path / "model"), "base": str(tmp_path / "base"), "faq": str(folder), "precision": "fp32"}


def test_ranks_are_those_of_sorted_cosines_and_ties_count_against_the_answer():
    entries = np.array([[1, 0], [0, 1], [1, 1], [1, 0]], np.float32)
    questions = np.array([[1, 0.1], [0, 1], [1, 0]], np.float32)
    faq = RetrievalData(["x"] * 3, ["y"] * 4, [{2: 1}, {1: 1, 0: 1}, {0: 1}], [""] * 3)
    assert (1 / measure_faq(faq, questions, entries)["faq/mrr"]).tolist() == [3, 1, 2]
    same, faq = np.ones((4, 2), np.float32), RetrievalData(["x"] * 2, ["y"] * 4, [{0: 1}, {3: 1}], [""] * 2)
    assert (1 / measure_faq(faq, same[:2], same)["faq/mrr"]).tolist() == [4, 4]


def test_scores_are_those_of_each_encoder_and_gains_their_differences(settings, tmp_path):
    metrics = run(CompareSettings.model_validate(settings), StageContext(tmp_path / "out", Cache(tmp_path)))
    assert (metrics["faq/questions"], metrics["faq/entries"]) == (3, 4)
    ranks = {}
    for name in ("model", "base"):
        encoder = SentenceEncoder.load(settings[name])
        similarities = encoder.encode(QUESTIONS, precision="fp32") @ encoder.encode(ENTRIES, precision="fp32").T
        norms = [np.linalg.norm(encoder.encode(texts, precision="fp32"), axis=1) for texts in (QUESTIONS, ENTRIES)]
        order = np.argsort(-similarities / np.outer(*norms), axis=1).tolist()
        ranks[name] = np.array(
            [min(order[row].index(entry) for entry in right) + 1 for row, right in enumerate(([0], [0], [1, 3]))]
        )
        assert metrics[f"{name}/faq/hit_at_1"] == np.mean(ranks[name] == 1)
        assert metrics[f"{name}/faq/hit_at_10"] == 1
        assert metrics[f"{name}/faq/mrr"] == pytest.approx(np.mean(1 / ranks[name]))
    assert metrics["gain/faq/mrr"] == pytest.approx(np.mean(1 / ranks["model"] - 1 / ranks["base"]))
    assert metrics["gain/faq/mrr_low"] <= metrics["gain/faq/mrr"] <= metrics["gain/faq/mrr_high"]


def test_a_pair_without_an_entry_is_an_error_with_its_line(settings, tmp_path):
    (tmp_path / "faq/gold.tsv").write_text("1\t1\n2\t9\n")
    with pytest.raises(RequestError, match=r"gold\.tsv, line 2: expected the line of a sentence"):
        run(CompareSettings.model_validate(settings), StageContext(tmp_path / "out", Cache(tmp_path)))


def test_without_text_there_is_nothing_to_compare(settings):
    with pytest.raises(ValueError, match="expected `parallel` or `faq`"):
        CompareSettings.model_validate(settings | {"faq": ""})
