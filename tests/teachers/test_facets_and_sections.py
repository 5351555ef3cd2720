"""Argument facets and Wikipedia sections: their official files, and figures by hand."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from bertrelay.stage import StageContext
from teachers.baselines.encoders import tfidf
from teachers.evaluation import protocols as sections_room
from teachers.evaluation.facets import facet_metrics, read_topics
from teachers.evaluation.official import OfficialFiles
from teachers.evaluation.protocols import Triplets, read_sections, section_metrics
from teachers.evaluation.settings import TOPICS
from teachers.evaluation.sts import Encode

PLACES = {"a": (0, 0), "b": (1, 0), "c": (0, 3), "d": (4, 4), "e": (1, 1)}


def encode(sentences: Sequence[str]) -> NDArray[np.float32]:
    return np.array([PLACES[sentence] for sentence in sentences], np.float32)


def angles(sentences: Sequence[str]) -> NDArray[np.float32]:
    """A sentence is an angle in degrees."""
    turned = np.radians([float(sentence) for sentence in sentences])
    return np.stack([np.cos(turned), np.sin(turned)], axis=1).astype(np.float32)


def write_topics(data: Path, pairs: int = 10, spoil: str = "") -> dict[str, tuple[list[float], list[float]]]:
    """The three files; by topic the angles between the two arguments, and the scores."""
    expected = {}
    for number, (topic, file) in enumerate(TOPICS.items()):
        apart = [(17 * n + 29 * number) % 90 for n in range(pairs)]
        scores = [4 - each / 30 + (n % 3) / 2 for n, each in enumerate(apart)]
        with (data / file).open("w", newline="") as written:
            rows = csv.writer(written)
            rows.writerow(["score", *"abcdefgh", "first", "second"])
            rows.writerow(["", *"abcdefgh", "0", "90"])  # nobody has scored it
            rows.writerows([score, *"abcdefgh", "0", each] for score, each in zip(scores, apart, strict=True))
            if spoil and number == 1:
                written.write(spoil)
        expected[topic] = ([float(np.cos(np.radians(each))) for each in apart], scores)
    return expected


def test_facets_are_scipys_correlations_by_topic_and_their_mean(tmp_path: Path) -> None:
    expected = write_topics(tmp_path)
    topics = read_topics(OfficialFiles(tmp_path))
    assert topics is not None and [len(pairs.scores) for pairs in topics.subsets.values()] == [10] * 3
    found = facet_metrics(topics, angles)
    assert {found[f"without_gold/AFS/{topic}"] for topic in TOPICS} == {1}
    for correlation, statistic in (("pearson", pearsonr), ("spearman", spearmanr)):
        each = {topic: statistic(*columns).statistic for topic, columns in expected.items()}
        for topic, figure in each.items():
            assert found[f"facets/{topic}/{correlation}_cosine"] == pytest.approx(figure, abs=1e-6)
        assert found[f"facets/mean/{correlation}_cosine"] == pytest.approx(np.mean(list(each.values())), abs=1e-6)


def test_arguments_keep_their_commas_quotes_and_line_breaks(tmp_path: Path) -> None:
    argument = 'Guns, he said, are "tools".\nNo more.'
    for file in TOPICS.values():
        with (tmp_path / file).open("w", newline="") as written:
            csv.writer(written).writerows([["score", *"abcdefgh", "x", "y"], ["2.5", *"abcdefgh", argument, "No."]])
    topics = read_topics(OfficialFiles(tmp_path))
    assert topics is not None
    pairs = topics.subsets["gun-control"]
    assert (pairs.first, pairs.second) == ([argument], ["No."])


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        ("1.0,short\n", r"ArgPairs_GM\.csv, line 13: .* found 2 columns"),
        ("high" + "," * 8 + ",0,1\n", r"ArgPairs_GM\.csv, line 13: expected a gold score .*, found what is no number"),
        (
            "5.1" + "," * 8 + ",0,1\n",
            r"ArgPairs_GM\.csv, line 13: expected a gold score from 0 to 5, found one outside",
        ),
        ("1.0" + "," * 8 + ",0, \n", r"ArgPairs_GM\.csv, line 13: expected two arguments, found an empty one"),
    ],
)
def test_an_arguments_file_of_another_form_is_told(tmp_path: Path, spoil: str, told: str) -> None:
    write_topics(tmp_path, spoil=spoil)
    with pytest.raises(RequestError, match=told):
        read_topics(OfficialFiles(tmp_path))


def test_a_missing_topic_is_told_and_none_at_all_is_none(tmp_path: Path) -> None:
    assert read_topics(OfficialFiles(tmp_path)) is None
    write_topics(tmp_path)
    (tmp_path / "ArgPairs_DP.csv").unlink()
    with pytest.raises(RequestError, match="expected the three topics, found no ArgPairs_DP"):
        read_topics(OfficialFiles(tmp_path))


def sections(data: Path, rows: Sequence[Sequence[str]], header: str = "Sentence1,Sentence2,Sentence3") -> Triplets:
    folder = data / "wikipedia-sections"
    folder.mkdir()
    (folder / "test.csv").write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
    with Rejects(None) as rejects:
        found = read_sections(OfficialFiles(data), StageContext(data, data), rejects)
    assert found is not None
    return found


def test_sections_by_hand_and_equally_near_is_no_hit(tmp_path: Path) -> None:
    # from a: b at 1, e at √2, c at 3, d at √32
    triplets = sections(tmp_path, [("a", "b", "c"), ("a", "c", "e"), ("a", "e", "d"), ("a", "b", "b")])
    found = section_metrics(triplets, lambda _: encode)
    assert found["sections/accuracy"] == 2 / 4
    # by cosine: e and d point the same way, c straight up; a points nowhere
    by_cosine = section_metrics([("e", "d", "c"), ("c", "b", "e"), ("b", "e", "c")], lambda _: encode)
    assert by_cosine["sections/accuracy_cosine"] == pytest.approx(2 / 3)


def test_sections_are_encoded_block_by_block_by_what_all_of_them_taught(monkeypatch: pytest.MonkeyPatch) -> None:
    triplets = [(f"dog {n}", f"the dog {n % 3}", f"the cat {n}") for n in range(11)]
    whole = section_metrics(triplets, tfidf)
    monkeypatch.setattr(sections_room, "BLOCK", 4)
    sizes = []

    def fit(sentences: Sequence[str]) -> Encode:
        encode = tfidf(sentences)
        return lambda block: sizes.append(len(block)) or encode(block)

    assert section_metrics(triplets, fit) == whole
    assert sizes == [12, 12, 9]


def test_a_triplet_cut_short_is_counted(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match="too few fields"):
        sections(tmp_path, [("a", "b", "c"), ("a", "b")])
