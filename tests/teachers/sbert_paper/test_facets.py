"""Argument facets without training: the official files, and correlations by scipy."""

import csv

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from bertrelay.errors import RequestError
from bertrelay.evaluation import statistics
from teachers.sbert_paper.facets import TOPICS, facet_metrics, read_topics
from teachers.sbert_paper.official import OfficialFiles


def angles(sentences):
    """The unit vectors of sentences that are angles in degrees."""
    turned = np.radians([float(sentence) for sentence in sentences])
    return np.stack([np.cos(turned), np.sin(turned)], axis=1).astype(np.float32)


def write_topics(data, pairs=10, spoil=""):
    """Writes the three files; returns the cosines of the arguments and the scores of each topic."""
    expected = {}
    for number, (topic, file) in enumerate(TOPICS.items()):
        apart = [(17 * n + 29 * number) % 90 for n in range(pairs)]
        scores = [4 - angle / 30 + (n % 3) / 2 for n, angle in enumerate(apart)]
        rows = [[score, *"abcdefgh", "0", angle] for score, angle in zip(scores, apart, strict=True)]
        unscored = ["", *"abcdefgh", "0", "90"]
        write_csv(data / file, [["score", *"abcdefgh", "first", "second"], unscored, *rows])
        expected[topic] = ([float(np.cos(np.radians(angle))) for angle in apart], scores)
    with (data / "ArgPairs_GM.csv").open("a") as written:
        written.write(spoil)
    return expected


def write_csv(path, rows):
    with path.open("w", newline="") as written:
        csv.writer(written).writerows(rows)


def test_facets_are_scipys_correlations_by_topic_and_their_mean(tmp_path, monkeypatch):
    monkeypatch.setitem(statistics.with_interval.__kwdefaults__, "resamples", 10)
    expected = write_topics(tmp_path)
    topics = read_topics(OfficialFiles(tmp_path))
    assert np.bincount(topics.part).tolist() == [10] * 3
    metrics = facet_metrics(topics, angles)
    assert {metrics[f"without_gold/AFS/{topic}"] for topic in TOPICS} == {1}
    for correlation, statistic in (("pearson", pearsonr), ("spearman", spearmanr)):
        by_topic = {topic: statistic(*columns).statistic for topic, columns in expected.items()}
        for topic, value in by_topic.items():
            assert metrics[f"facets/{topic}/{correlation}_cosine"] == pytest.approx(value, abs=1e-6)
        assert metrics[f"facets/mean/{correlation}_cosine"] == pytest.approx(np.mean(list(by_topic.values())), abs=1e-6)


ARGUMENT = 'Guns, he said, are "tools".\nNo more.'


@pytest.mark.parametrize(
    "rows",
    [
        [["score", *"abcdefgh", "x", "y"], ["2.5", *"abcdefgh", ARGUMENT, "No."]],
        [["id", "sentence_2", "regression_label", "sentence_1"], ["7", "No.", "2.5", ARGUMENT]],
    ],
)
def test_arguments_are_read_by_name_or_position_with_commas_quotes_and_line_breaks(tmp_path, rows):
    for file in TOPICS.values():
        write_csv(tmp_path / file, rows)
    assert list(read_topics(OfficialFiles(tmp_path)).by_part()["gun-control"].rows()) == [(ARGUMENT, "No.", 2.5)]


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        ("1.0,short\n", r"line 13: .* found 2 columns"),
        ("high" + "," * 8 + ",0,1\n", r"line 13: expected a gold score .*, found no number"),
        ("5.1" + "," * 8 + ",0,1\n", r"line 13: expected a gold score from 0 to 5, found one outside"),
        ("1.0" + "," * 8 + ",0, \n", r"line 13: expected two arguments, found an empty one"),
    ],
)
def test_an_arguments_file_of_another_form_is_refused(tmp_path, spoil, expected):
    write_topics(tmp_path, spoil=spoil)
    with pytest.raises(RequestError, match=rf"ArgPairs_GM\.csv, {expected}"):
        read_topics(OfficialFiles(tmp_path))


def test_a_file_without_a_header_and_a_missing_topic_are_refused_and_no_file_gives_none(tmp_path):
    assert read_topics(OfficialFiles(tmp_path)) is None
    write_topics(tmp_path)
    path = tmp_path / "ArgPairs_DP.csv"
    path.write_text(path.read_text().split("\n", 2)[2])
    with pytest.raises(RequestError, match=r"ArgPairs_DP\.csv, line 1: expected a header .*, found a pair"):
        read_topics(OfficialFiles(tmp_path))
    write_csv(path, [["regression_label", *"abcdefgh", "sentence_1", "other"], ["1", *"abcdefghij"]])
    with pytest.raises(RequestError, match=r"expected a header with regression_label, .* without sentence_2"):
        read_topics(OfficialFiles(tmp_path))
    path.unlink()
    with pytest.raises(RequestError, match=r"facets: expected ArgPairs_GC\.csv and .* found no ArgPairs_DP\.csv below"):
        read_topics(OfficialFiles(tmp_path))
