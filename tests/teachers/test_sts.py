from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import rankdata

from bertrelay.data.records import Rejects
from bertrelay.data.tables import StsTable
from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError, WorkError
from bertrelay.stage import StageContext
from teachers.evaluation.protocols import run_sts
from teachers.evaluation.sts import StsPairs, read_sts, sts_metrics
from teachers.settings import StsSettings

ANGLES = {"a": 0, "b": 10, "c": 25, "d": 60, "e": 85, "f": 130}


def encode(sentences: Sequence[str]) -> NDArray[np.float32]:
    """Each letter points somewhere, at any length."""
    turned = np.radians([ANGLES[sentence] for sentence in sentences])
    return (np.stack([np.cos(turned), np.sin(turned)], axis=1) * 3).astype(np.float32)


def table(path: Path, rows: Sequence[Sequence[Any]], **given: Any) -> StsTable:
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [("sentence1", "sentence2", "score"), *rows]))
    return StsTable(path=str(path), **given)


def read(context: StageContext, sts: StsTable, limit: float = 1.0) -> StsPairs:
    with Rejects(context.output / "rejects.jsonl", limit) as rejects:
        return read_sts(sts, context, rejects)


def test_spearman_by_hand_with_ties_at_their_mean_rank() -> None:
    pairs = StsPairs(["a", "a", "a", "b", "a"], ["b", "c", "d", "e", "e"], np.array([5, 4, 4, 1, 2.0]))
    cosines = [np.cos(np.radians(angle)) for angle in (10, 25, 60, 75, 85)]
    ranks = np.stack([rankdata(cosines), [5, 3.5, 3.5, 1, 2]])
    expected = np.corrcoef(ranks)[0, 1]
    metrics = sts_metrics({"toy": pairs}, encode)
    assert metrics["sts/toy/spearman_cosine"] == pytest.approx(expected)
    low, high = (metrics[f"sts/toy/spearman_cosine_{end}"] for end in ("low", "high"))
    assert low is not None and high is not None and low < expected < high


def test_sets_do_not_mix_and_share_one_encoding() -> None:
    calls = []

    def spy(sentences: Sequence[str]) -> NDArray[np.float32]:
        calls.append(list(sentences))
        return encode(sentences)

    up, down = np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0])
    sets = {"up": StsPairs(["a"] * 3, ["b", "c", "d"], up), "down": StsPairs(["b"] * 3, ["c", "d", "f"], down)}
    metrics = sts_metrics(sets, spy, intervals=False)
    assert metrics == {"sts/up/spearman_cosine": pytest.approx(1), "sts/down/spearman_cosine": pytest.approx(-1)}
    assert len(calls) == 1


def test_a_set_of_one_score_has_no_figure_rather_than_0() -> None:
    assert sts_metrics({"flat": StsPairs(["a", "b"], ["c", "d"], np.ones(2))}, encode) == {
        "sts/flat/spearman_cosine": None
    }


def test_pairs_across_two_languages_take_the_second_sentence_from_the_second_file(
    context: StageContext, tmp_path: Path
) -> None:
    table(tmp_path / "de.tsv", [("ein Hund", "eine Katze", 1), ("ein Vogel", "ein Fisch", 4)])
    english = table(
        tmp_path / "en.tsv", [("a dog", "a cat", 1), ("a bird", "a fish", 4)], second=str(tmp_path / "de.tsv")
    )
    pairs = read(context, english)
    assert (pairs.first, pairs.second, pairs.scores.tolist()) == (
        ["a dog", "a bird"], ["eine Katze", "ein Fisch"], [1, 4],
    )  # fmt: skip


@pytest.mark.parametrize("longer", ["en", "de"])
def test_files_that_are_not_aligned_are_told_with_file_and_line(
    context: StageContext, tmp_path: Path, longer: str
) -> None:
    rows = [("a", "b", 1), ("c", "d", 2), ("e", "f", 3)]
    table(tmp_path / "de.tsv", rows[: 3 if longer == "de" else 2])
    english = table(tmp_path / "en.tsv", rows[: 3 if longer == "en" else 2], second=str(tmp_path / "de.tsv"))
    with pytest.raises(RequestError) as raised:
        read(context, english)
    told = str(raised.value)
    assert f"line 4 of {tmp_path / longer}.tsv has no partner" in told
    assert ("the first has 3 rows and the second 2" if longer == "en" else "has 2 rows and the second 3") in told
    assert str(tmp_path / "en.tsv") in told and str(tmp_path / "de.tsv") in told


def test_a_broken_row_of_either_file_takes_its_partner_with_it(context: StageContext, tmp_path: Path) -> None:
    rows = [("a", "b", 1), ("c", "d", 2), ("e", "f", 3), ("b", "c", 4)]
    english = table(tmp_path / "en.tsv", rows, second=str(tmp_path / "de.tsv"))
    table(tmp_path / "de.tsv", [row[:1] if row[0] == "c" else row for row in rows])
    english_text = (tmp_path / "en.tsv").read_text().replace("e\tf\t3", "e\tf\tmany")
    (tmp_path / "en.tsv").write_text(english_text)
    assert read(context, english).first == ["a", "b"]
    listed = (context.output / "rejects.jsonl").read_text()
    assert '"line": 3' in listed and '"line": 4' in listed
    with pytest.raises(WorkError):
        read(context, english, limit=0.4)


def test_a_set_with_two_columns_is_refused(context: StageContext, tmp_path: Path) -> None:
    sts = table(tmp_path / "en.tsv", [("a", "b", 1)], columns=["sentence1", "score"])
    across = sts.model_copy(update={"second": sts.path})
    for each in (sts, across):
        with pytest.raises(RequestError, match=r"3 columns \(sentence1, sentence2, score\), found 2"):
            read(context, each)


def test_the_stage_scores_a_model_as_arithmetic_on_its_vectors_does(
    context: StageContext, tmp_path: Path, tiny_encoder: Callable[..., SentenceEncoder]
) -> None:
    sentences = ["A dog runs.", "Two cats sleep.", "The bird sings.", "A child reads.", "The dog sleeps."]
    tiny_encoder("bert", sentences).save(tmp_path / "model")
    rows = [(sentences[i], sentences[j], (3 * i + 5 * j) % 6) for i in range(5) for j in range(i)]
    sts = table(tmp_path / "sts.tsv", rows)
    settings = StsSettings.model_validate(
        {"model": str(tmp_path / "model"), "sts": {"toy": {"path": sts.path}}, "precision": "fp32"}
    )
    vectors = SentenceEncoder.load(tmp_path / "model").encode(sentences, precision="fp32").astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    cosines = [vectors[i] @ vectors[j] / lengths[i] / lengths[j] for i in range(5) for j in range(i)]
    expected = np.corrcoef(rankdata(cosines), rankdata([score for *_, score in rows]))[0, 1]
    assert run_sts(settings, context)["sts/toy/spearman_cosine"] == pytest.approx(expected)


def test_a_model_whose_vectors_are_none_is_told(
    context: StageContext, tmp_path: Path, tiny_encoder: Callable[..., SentenceEncoder]
) -> None:
    encoder = tiny_encoder("bert", ["a dog", "a cat"])
    encoder.backbone.embeddings.word_embeddings.weight.data.fill_(np.nan)
    encoder.save(tmp_path / "model")
    sts = table(tmp_path / "sts.tsv", [("a dog", "a cat", 1), ("a cat", "a", 2)])
    given = {"model": str(tmp_path / "model"), "sts": {"toy": {"path": sts.path}}}
    with pytest.raises(WorkError, match="expected finite vectors, found 4 of 4 with NaN"):
        run_sts(StsSettings.model_validate(given), context)
