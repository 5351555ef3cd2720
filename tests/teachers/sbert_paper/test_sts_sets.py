"""The official STS files, and their metrics against scipy on the same vectors."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import cityblock, cosine, euclidean
from scipy.stats import pearsonr, spearmanr

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from bertrelay.evaluation import statistics
from bertrelay.stage import StageContext
from teachers.sbert_paper.official import OfficialFiles
from teachers.sbert_paper.protocols import read_protocols
from teachers.sbert_paper.settings import SETS, ProtocolSettings
from teachers.sbert_paper.sts_sets import MEASURES, YEARS, read_sets, set_metrics

CORRELATIONS = {"spearman": spearmanr, "pearson": pearsonr}
DISTANCES = {"cosine": cosine, "euclidean": euclidean, "manhattan": cityblock}


def encode(sentences):
    """Random vectors that depend on the sentence only."""
    drawn = [np.random.default_rng(zlib.crc32(sentence.encode())).normal(size=6) for sentence in sentences]
    return np.array(drawn, np.float32)


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def write_year(data, name, pairs=12, folder="", blank=0):
    """Writes the files of a year, `pairs` in each subset, of which the first `blank` have no gold score."""
    year, prefix = data / (folder or f"{name}-en-test"), "STS2016" if name == "STS16" else "STS"
    for subset in YEARS[name]:
        golds = ["" if n < blank else f"{(7 * n + len(subset)) % 11 / 2}" for n in range(pairs)]
        rows = [f"{subset} left {n}\t{subset} right {n}\tsource" for n in range(pairs)]
        write_lines(year / f"{prefix}.input.{subset}.txt", rows)
        write_lines(year / f"{prefix}.gs.{subset}.txt", golds)


def write_sick(data, *rows):
    sick = [f"{n}\tleft {n}\tright {n}\t{1 + n % 5}" for n in range(9)]
    write_lines(data / "SICK_test_annotated.txt", ["pair_ID\tsentence_A\tsentence_B\trelatedness_score", *sick, *rows])


def change(path, line, text):
    lines = path.read_text().split("\n")
    lines[line - 1] = text
    path.write_text("\n".join(lines))


def read(data, *names, limit=0.01):
    with Rejects(None, limit) as rejects:
        return read_sets(OfficialFiles(data), names, StageContext(data, Cache(data)), rejects)


def scores_of(data, *names, intervals=False):
    return set_metrics({name: pairs for name, pairs in read(data, *names).items() if pairs}, encode, intervals)


def by_scipy(pairs, correlation, similarity):
    """The correlation of similarities with the scores of (first, second, score) rows."""
    pairs = list(pairs)
    near = [-DISTANCES[similarity](*encode([u, v]).astype(float)) for u, v, _ in pairs]
    return float(CORRELATIONS[correlation](near, [score for *_, score in pairs]).statistic)


def test_every_metric_of_a_year_is_scipys_on_the_same_vectors(tmp_path, monkeypatch):
    monkeypatch.setitem(statistics.with_interval.__kwdefaults__, "resamples", 50)
    write_year(tmp_path, "STS13")
    [year] = read(tmp_path, "STS13").values()
    metrics = scores_of(tmp_path, "STS13")
    for measure in MEASURES:
        correlation, similarity = measure.split("_")
        by_subset = {
            subset: by_scipy(pairs.rows(), correlation, similarity) for subset, pairs in year.by_part().items()
        }
        for subset, expected in by_subset.items():
            assert metrics[f"sts/STS13/{subset}/{measure}"] == pytest.approx(expected, abs=1e-6)
        assert metrics[f"sts/STS13/{measure}"] == pytest.approx(np.mean(list(by_subset.values())), abs=1e-6)
        of_all = by_scipy(year.rows(), correlation, similarity)
        assert metrics[f"sts/STS13/all/{measure}"] == pytest.approx(of_all, abs=1e-6)
    with_intervals = scores_of(tmp_path, "STS13", intervals=True)
    for name in ("FNWN/spearman_cosine", "spearman_cosine", "all/spearman_cosine"):
        low, value, high = (with_intervals[f"sts/STS13/{name}{end}"] for end in ("_low", "", "_high"))
        assert low < value < high


@pytest.mark.parametrize(("name", "folder"), [("STS16", "sts2016-english-with-gs-v1.0"), ("STS15", "STS15-en-test")])
def test_pairs_without_a_gold_score_are_left_out_and_counted(tmp_path, name, folder):
    write_year(tmp_path, name, blank=3, folder=folder)
    metrics = scores_of(tmp_path, name)
    [year] = read(tmp_path, name).values()
    for subset, pairs in year.by_part().items():
        assert metrics[f"without_gold/{name}/{subset}"] == 3
        assert pairs.first == [f"{subset} left {n}" for n in range(3, 12)]
        assert pairs.scores[0] == (7 * 3 + len(subset)) % 11 / 2


@pytest.mark.parametrize("folder", ["STS12-13/STS13-en-test", "sts2014-copies/STS13", "STS13/gold/all", "2013"])
def test_the_year_is_that_of_the_innermost_folder_that_names_one(tmp_path, folder):
    data = tmp_path / "STS12-en-test"  # the name of the data folder does not count
    write_year(data, "STS13", folder=folder, pairs=5)
    write_year(data, "STS14")
    by_year = {name: pairs.by_part()["headlines"] for name, pairs in read(data, *YEARS).items() if pairs}
    assert {name: len(headlines.scores) for name, headlines in by_year.items()} == {"STS13": 5, "STS14": 12}


@pytest.mark.parametrize("folder", ["all", "STS2012-STS2013", "STS130", "x12013"])
def test_files_of_a_year_in_a_folder_that_names_none_or_several_are_named(tmp_path, folder, capsys):
    write_year(tmp_path / "STS13", "STS13", folder=folder)
    write_sick(tmp_path / "STS13")
    expected = rf"{folder}/STS\.gs\.FNWN\.txt is a file of an STS year, but no folder below DIR names one year"
    fields = {"protocols": ["sts"], "data": str(tmp_path / "STS13"), "tfidf": True}
    context = StageContext(tmp_path, Cache(tmp_path))
    with Rejects(None) as rejects:
        with pytest.raises(RequestError, match=expected):
            read_protocols(ProtocolSettings.model_validate({**fields, "sets": ["STS13"]}), context, rejects)
        read_protocols(ProtocolSettings.model_validate(fields), context, rejects)
    logged = capsys.readouterr().err
    assert "left out: STS12, STS13, " in logged and f"{folder}/STS.gs.FNWN.txt is a file of an STS year" in logged


def test_several_files_of_one_name_are_refused(tmp_path):
    write_year(tmp_path, "STS13", folder="STS13-en-test")
    write_year(tmp_path, "STS13", folder="STS2013-train")
    expected = r"one FNWN of STS13, found 2: .*STS13-en-test/STS\.input\.FNWN\.txt with .*STS2013-train/STS\.input"
    with pytest.raises(RequestError, match=expected):
        read(tmp_path, "STS13")
    for name in ("a/sts-test.csv", "b/stsb-en-test.csv"):
        write_lines(tmp_path / name, ["g\tf\ty\t1\t2\ta\tb"])
    with pytest.raises(RequestError, match=r"found 2: .*a/sts-test\.csv, .*b/stsb-en-test\.csv\. Move the others away"):
        read(tmp_path, "STSb")


def test_an_incomplete_year_and_one_in_two_folders_are_refused_and_a_missing_one_is_none(tmp_path):
    write_year(tmp_path, "STS13")
    assert read(tmp_path, "STS12") == {"STS12": None}
    gold = tmp_path / "STS13-en-test/STS.gs.OnWN.txt"
    lines = gold.read_text()
    gold.unlink()
    with pytest.raises(RequestError, match="STS13: expected its 3 subsets, found none of OnWN"):
        read(tmp_path, "STS13")
    write_lines(tmp_path / "gold-2013" / gold.name, lines.splitlines())
    with pytest.raises(RequestError, match=r"STS13: expected sentences and gold scores in one folder, found .*OnWN"):
        read(tmp_path, "STS13")


def test_links_to_folders_are_followed_without_circles_and_a_file_counts_once(tmp_path):
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    write_year(elsewhere, "STS13", folder="raw")
    write_sick(elsewhere)
    (data / "latest").mkdir(parents=True)
    (data / "STS13").symlink_to(elsewhere / "raw")
    (data / "latest/STS2013").symlink_to(data / "STS13")
    (data / "sick").symlink_to(elsewhere)  # the year's files are in it too, but in a folder without its year
    (elsewhere / "raw/back").symlink_to(data)
    (elsewhere / "itself").symlink_to(elsewhere / "itself")
    sets = read(data, "STS13", "SICK-R")
    assert len(sets["STS13"].scores) == 3 * 12 and len(sets["SICK-R"].scores) == 9


def test_the_benchmark_and_sick_are_read_by_their_official_columns(tmp_path):
    rows = [f'g\tf\ty\t1\t{gold}\tleft "{gold}\tb' + "\tmore" * (gold == 1) for gold in (3, "", 1, 5)]
    write_lines(tmp_path / "sts-test.csv", rows)
    write_sick(tmp_path, "10\ta\tb\t", "11\tc\td\t ")
    sets, metrics = read(tmp_path, "STSb", "SICK-R"), scores_of(tmp_path, "STSb", "SICK-R")
    assert list(sets["STSb"].rows()) == [('left "3', "b", 3.0), ('left "1', "b", 1.0), ('left "5', "b", 5.0)]
    assert list(sets["SICK-R"].rows())[6] == ("left 6", "right 6", 2.0)
    assert (metrics["without_gold/STSb"], metrics["without_gold/SICK-R"]) == (1, 2)


def test_the_mean_is_over_all_seven_and_absent_without_one(tmp_path):
    for name in YEARS:
        write_year(tmp_path / "sts", name)
    write_lines(tmp_path / "sts-test.csv", [f"g\tf\ty\t{n}\t{n % 4}\ta {n}\tb {n}" for n in range(9)])
    assert "sts/mean/spearman_cosine" not in scores_of(tmp_path, *SETS["sts"])
    write_sick(tmp_path)
    metrics = scores_of(tmp_path, *SETS["sts"])
    by_set = [metrics[f"sts/{name}/spearman_cosine"] for name in SETS["sts"]]
    assert metrics["sts/mean/spearman_cosine"] == pytest.approx(np.mean(by_set))


GLUE = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
NO_GOLD, OUTSIDE = "expected a gold score", "expected a gold score from 0 to 5, found one outside"
SENTENCES, GOLDS = "STS13-en-test/STS.input.FNWN.txt", "STS13-en-test/STS.gs.FNWN.txt"
BENCHMARK, SICK = "sts-test.csv", "SICK_test_annotated.txt"


@pytest.mark.parametrize(
    ("name", "file", "text", "expected"),
    [
        ("STS13", SENTENCES, "no tab", ", line 4: expected two sentences with a tab"),
        ("STS13", GOLDS, "nan", f", line 4: {NO_GOLD}"),
        ("STS13", GOLDS, "four", f", line 4: {NO_GOLD}"),
        ("STS13", GOLDS, "5.5", f", line 4: {OUTSIDE}"),
        ("STS13", GOLDS, "1\n2", " .* has 13 lines and the second 12"),
        ("STSb", BENCHMARK, GLUE, f", line 4: {NO_GOLD} from 0 to 5, found no number. Is it a header"),
        ("STSb", BENCHMARK, "7\tmain\tnews\t2015\t7\tnone\tnone\ta\tb\t2", f", line 4: {OUTSIDE}"),
        ("STSb", BENCHMARK, "g\tf\ty\t1\tfour\ta\tb", ", line 4: .* found no number"),
        *(("SICK-R", SICK, f"3\ta\tb\t{score}", f", line 4: {NO_GOLD} from 1 to 5") for score in ("900", "0.5", "-1")),
    ],
)
def test_a_file_of_another_form_is_refused_with_its_line(tmp_path, name, file, text, expected):
    write_year(tmp_path, "STS13")
    write_sick(tmp_path)
    write_lines(tmp_path / BENCHMARK, ["g\tf\ty\t1\t2\ta\tb"] * 6)
    change(tmp_path / file, 4, text)
    with pytest.raises(RequestError, match=rf"{Path(file).name}{expected}"):
        read(tmp_path, name)


def test_a_benchmark_of_other_columns_is_refused(tmp_path):
    write_lines(tmp_path / BENCHMARK, ["one\ttwo"] * 3)
    with pytest.raises(RequestError, match=r"sts-test\.csv has no column 5: it has 2"):
        read(tmp_path, "STSb")


def test_blank_sentences_are_rejected_and_counted(tmp_path):
    write_sick(tmp_path, "10\ta\t \t3")
    with pytest.raises(WorkError, match=r"1 of 10 records .*1 × an empty sentence in .*SICK.*The first is .*line 11"):
        read(tmp_path, "SICK-R")
    assert len(read(tmp_path, "SICK-R", limit=0.2)["SICK-R"].scores) == 9
    write_year(tmp_path, "STS13", blank=1)
    for line, text in ((1, "\tnobody scored it"), (5, " \tright")):
        change(tmp_path / "STS13-en-test/STS.input.OnWN.txt", line, text)
    with pytest.raises(WorkError, match=r"1 of 33 records .*1 × an empty sentence in .*input\.OnWN.* line 5"):
        read(tmp_path, "STS13")
    year = read(tmp_path, "STS13", limit=0.1)["STS13"]
    assert set(year.without_gold.values()) == {1}
    assert year.by_part()["OnWN"].first == [f"OnWN left {n}" for n in range(1, 12) if n != 4]
