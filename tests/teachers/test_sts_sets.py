"""The official STS files, and their figures against scipy on the same vectors."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import cityblock, cosine, euclidean
from scipy.stats import pearsonr, spearmanr

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from bertrelay.stage import Metrics, StageContext
from teachers.evaluation.official import OfficialFiles
from teachers.evaluation.protocols import read_protocols
from teachers.evaluation.settings import SETS, YEARS, ProtocolSettings
from teachers.evaluation.sts_sets import MEASURES, StsSet, read_sets, set_metrics

CORRELATIONS: dict[str, Any] = {"spearman": spearmanr, "pearson": pearsonr}
DISTANCES = {"cosine": cosine, "euclidean": euclidean, "manhattan": cityblock}


def encode(sentences: Sequence[str]) -> NDArray[np.float32]:
    """A vector of each sentence's own, always the same."""
    drawn = [np.random.default_rng(zlib.crc32(sentence.encode())).normal(size=6) for sentence in sentences]
    return np.array(drawn, np.float32)


def write_year(data: Path, name: str, pairs: int = 12, folder: str = "", blank: int = 0) -> None:
    """The year's files, `pairs` in each subset, of which the first `blank` have no gold score."""
    year = data / (folder or f"{name}-en-test")
    year.mkdir(parents=True)
    prefix = "STS2016" if name == "STS16" else "STS"
    for subset in YEARS[name]:
        rows = [f"{subset} left {n}\t{subset} right {n}\tsource" for n in range(pairs)]
        golds = ["" if n < blank else f"{(7 * n + len(subset)) % 11 / 2}" for n in range(pairs)]
        (year / f"{prefix}.input.{subset}.txt").write_text("\n".join(rows) + "\n")
        (year / f"{prefix}.gs.{subset}.txt").write_text("\n".join(golds) + "\n")


def read(data: Path, *names: str, limit: float = 0.01) -> dict[str, StsSet | None]:
    with Rejects(None, limit) as rejects:
        return read_sets(OfficialFiles(data), names, StageContext(data, data), rejects)


def figures(data: Path, *names: str, intervals: bool = False) -> Metrics:
    return set_metrics({name: each for name, each in read(data, *names).items() if each}, encode, intervals)


def by_scipy(pairs: Sequence[tuple[str, str, float]], correlation: str, similarity: str) -> float:
    near = [-DISTANCES[similarity](*encode([first, second]).astype(float)) for first, second, _ in pairs]
    return float(CORRELATIONS[correlation](near, [score for *_, score in pairs]).statistic)


def pairs_of(each: StsSet | None, subset: str) -> list[tuple[str, str, float]]:
    assert each is not None
    found = each[subset]
    return list(zip(found.first, found.second, found.scores.tolist(), strict=True))


def test_every_figure_of_a_year_is_scipys_on_the_same_vectors(tmp_path: Path) -> None:
    write_year(tmp_path, "STS13")
    [year] = read(tmp_path, "STS13").values()
    metrics = figures(tmp_path, "STS13")
    for measure in MEASURES:
        correlation, similarity = measure.split("_")
        by_subset = [by_scipy(pairs_of(year, subset), correlation, similarity) for subset in YEARS["STS13"]]
        for subset, expected in zip(YEARS["STS13"], by_subset, strict=True):
            assert metrics[f"sts/STS13/{subset}/{measure}"] == pytest.approx(expected, abs=1e-6)
        together = [pair for subset in YEARS["STS13"] for pair in pairs_of(year, subset)]
        assert metrics[f"sts/STS13/{measure}"] == pytest.approx(np.mean(by_subset), abs=1e-6)
        assert metrics[f"sts/STS13/all/{measure}"] == pytest.approx(
            by_scipy(together, correlation, similarity), abs=1e-6
        )


@pytest.mark.parametrize(("name", "folder"), [("STS16", "sts2016-english-with-gs-v1.0"), ("STS15", "STS15-en-test")])
def test_pairs_without_a_gold_score_are_left_out_and_counted(tmp_path: Path, name: str, folder: str) -> None:
    write_year(tmp_path, name, blank=3, folder=folder)
    metrics = figures(tmp_path, name)
    [year] = read(tmp_path, name).values()
    for subset in YEARS[name]:
        assert metrics[f"without_gold/{name}/{subset}"] == 3
        pairs = pairs_of(year, subset)
        assert [first for first, *_ in pairs] == [f"{subset} left {n}" for n in range(3, 12)]
        assert pairs[0][2] == (7 * 3 + len(subset)) % 11 / 2


def test_subsets_of_one_name_are_those_of_their_own_year(tmp_path: Path) -> None:
    for name in ("STS13", "STS14"):
        write_year(tmp_path, name, pairs=5 if name == "STS13" else 8)
    years = read(tmp_path, "STS13", "STS14")
    assert [len(pairs_of(years[name], "headlines")) for name in years] == [5, 8]


@pytest.mark.parametrize("folder", ["STS12-13/STS13-en-test", "sts2014-copies/STS13", "STS13/gold/all", "2013"])
def test_the_year_is_that_of_the_innermost_folder_that_names_one(tmp_path: Path, folder: str) -> None:
    data = tmp_path / "STS12-en-test"  # the name of the folder that is given says nothing
    write_year(data, "STS13", folder=folder)
    found = read(data, *YEARS)
    assert [name for name, each in found.items() if each] == ["STS13"]


@pytest.mark.parametrize("folder", ["all", "STS12-16", "STS130", "x12013"])
def test_a_folder_that_names_no_year_or_several_holds_none(tmp_path: Path, folder: str) -> None:
    write_year(tmp_path / "STS13", "STS13", folder=folder)
    assert read(tmp_path / "STS13", "STS13") == {"STS13": None}


def test_two_files_of_a_subset_are_told_and_none_is_guessed(tmp_path: Path) -> None:
    write_year(tmp_path, "STS13", folder="STS13-en-test")
    write_year(tmp_path, "STS13", folder="STS2013-train")
    told = r"one FNWN of STS13, found 2: .*STS13-en-test/STS\.input\.FNWN\.txt with .*STS2013-train/STS\.input"
    with pytest.raises(RequestError, match=told):
        read(tmp_path, "STS13")


def test_sentences_and_gold_scores_of_two_folders_are_told(tmp_path: Path) -> None:
    write_year(tmp_path, "STS13")
    (tmp_path / "gold-2013").mkdir()
    for gold in tmp_path.glob("*/STS.gs.*"):
        gold.rename(tmp_path / "gold-2013" / gold.name)
    with pytest.raises(RequestError, match=r"STS13: expected sentences and gold scores in one folder, found .*FNWN"):
        read(tmp_path, "STS13")


def test_two_benchmarks_are_told(tmp_path: Path) -> None:
    for name in ("a/sts-test.csv", "b/stsb-en-test.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("g\tf\ty\t1\t2\ta\tb\n")
    with pytest.raises(RequestError, match=r"found 2: .*a/sts-test\.csv, .*b/stsb-en-test\.csv\. Move away"):
        read(tmp_path, "STSb")


def test_the_benchmark_and_sick_are_read_by_their_own_columns(tmp_path: Path) -> None:
    rows = [("main-news", "x", "2015", f"{n}", f"{n % 6}", f'left "{n}', f"right {n}", "source") for n in range(9)]
    (tmp_path / "sts-test.csv").write_text("".join("\t".join(row[: 7 + n % 2]) + "\n" for n, row in enumerate(rows)))
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    sick = [f"{n}\tleft {n}\tright {n}\t{1 + n % 5}\tNEUTRAL\n" for n in range(9)]
    (tmp_path / "SICK_test_annotated.txt").write_text(head + "".join(sick))
    found = read(tmp_path, "STSb", "SICK-R")
    assert pairs_of(found["STSb"], "")[1] == ('left "1', "right 1", 1.0)
    assert pairs_of(found["SICK-R"], "")[6] == ("left 6", "right 6", 2.0)


def test_the_mean_is_over_all_seven_and_absent_without_one(tmp_path: Path) -> None:
    for name in YEARS:
        write_year(tmp_path / "sts", name)
    lines = [f"g\tf\ty\t{n}\t{n % 4}\ta {n}\tb {n}\n" for n in range(9)]
    (tmp_path / "sts-test.csv").write_text("".join(lines))
    assert "sts/mean/spearman_cosine" not in figures(tmp_path, *SETS["sts"])
    sick = [f"left {n}\tright {n}\t{1 + n % 5}\n" for n in range(9)]
    (tmp_path / "SICK_test_annotated.txt").write_text("sentence_A\tsentence_B\trelatedness_score\n" + "".join(sick))
    metrics = figures(tmp_path, *SETS["sts"])
    each = [metrics[f"sts/{name}/spearman_cosine"] for name in SETS["sts"]]
    assert metrics["sts/mean/spearman_cosine"] == pytest.approx(np.mean(np.array(each, float)))


def test_the_main_figures_have_intervals_around_them(tmp_path: Path) -> None:
    write_year(tmp_path, "STS13", pairs=30)
    metrics = figures(tmp_path, "STS13", intervals=True)
    for name in ("FNWN/spearman_cosine", "spearman_cosine", "all/spearman_cosine"):
        low, figure, high = (metrics[f"sts/STS13/{name}{end}"] for end in ("_low", "", "_high"))
        assert low is not None and figure is not None and high is not None and low < figure < high


def spoil(path: Path, line: int, text: str) -> None:
    lines = path.read_text().split("\n")
    lines[line - 1] = text
    path.write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("STS.input.FNWN.txt", "no tab", r"STS\.input\.FNWN\.txt, line 4: expected two sentences with a tab"),
        ("STS.gs.FNWN.txt", "nan", r"STS\.gs\.FNWN\.txt, line 4: expected a gold score"),
        ("STS.gs.FNWN.txt", "four", r"STS\.gs\.FNWN\.txt, line 4: expected a gold score"),
        ("STS.gs.FNWN.txt", "5.5", r"STS\.gs\.FNWN\.txt, line 4: expected a gold score from 0 to 5, found one outside"),
        ("STS.gs.FNWN.txt", "1\n2", r"has 13 lines and the second 12"),
    ],
)
def test_a_file_of_another_form_is_told_with_its_line(tmp_path: Path, file: str, text: str, told: str) -> None:
    write_year(tmp_path, "STS13")
    spoil(tmp_path / "STS13-en-test" / file, 4, text)
    with pytest.raises(RequestError, match=told):
        read(tmp_path, "STS13")


def test_a_year_in_part_is_told_and_one_that_is_not_there_is_none(tmp_path: Path) -> None:
    write_year(tmp_path, "STS13")
    assert read(tmp_path, "STS12") == {"STS12": None}
    (tmp_path / "STS13-en-test" / "STS.gs.OnWN.txt").unlink()
    with pytest.raises(RequestError, match="STS13: expected its 3 subsets, found none of OnWN"):
        read(tmp_path, "STS13")


def test_a_benchmark_of_other_columns_is_told(tmp_path: Path) -> None:
    (tmp_path / "sts-test.csv").write_text("one\ttwo\n" * 3)
    with pytest.raises(RequestError, match=r"sts-test\.csv has no column 5: it has 2"):
        read(tmp_path, "STSb")


GLUE = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"


def glue(first: int) -> str:
    rows = [f"{n}\tmain\tnews\t2015\t{first + n}\tnone\tnone\ta {n}\tb {n}\t{n % 5}\n" for n in range(9)]
    return "".join(rows)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GLUE + glue(0), "line 1: expected a gold score from 0 to 5, found what is no number. Is it a header"),
        (glue(0), "line 7: expected a gold score from 0 to 5, found one outside"),
        ("g\tf\ty\t1\t2\ta\tb\ng\tf\ty\t1\tfour\ta\tb\n", "line 2: .* found what is no number"),
    ],
)
def test_a_benchmark_whose_scores_stand_elsewhere_is_told(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "sts-test.csv").write_text(text)
    with pytest.raises(RequestError, match=rf"sts-test\.csv, {told}"):
        read(tmp_path, "STSb")


def write_sick(data: Path, *rows: str) -> None:
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n"
    sick = [f"{n}\tleft {n}\tright {n}\t{1 + n % 5}\n" for n in range(9)]
    (data / "SICK_test_annotated.txt").write_text(head + "".join(sick) + "".join(f"{row}\n" for row in rows))


@pytest.mark.parametrize("score", ["900", "0.5", "-1"])
def test_sick_is_scored_from_1_to_5(tmp_path: Path, score: str) -> None:
    write_sick(tmp_path, f"10\ta\tb\t{score}")
    with pytest.raises(RequestError, match=r"SICK_test_annotated\.txt, line 11: expected a gold score from 1 to 5"):
        read(tmp_path, "SICK-R")


def test_blank_sentences_are_rejected_and_counted(tmp_path: Path) -> None:
    write_sick(tmp_path, "10\ta\t \t3")
    with pytest.raises(WorkError, match=r"1 of 10 records .*1 × an empty sentence in .*SICK.*The first is .*line 11"):
        read(tmp_path, "SICK-R")
    assert len(pairs_of(read(tmp_path, "SICK-R", limit=0.2)["SICK-R"], "")) == 9


def test_blank_sentences_of_a_year_are_rejected_and_counted(tmp_path: Path) -> None:
    write_year(tmp_path, "STS13", blank=1)
    for line, text in ((1, "\tnobody scored it"), (5, " \tright")):
        spoil(tmp_path / "STS13-en-test/STS.input.OnWN.txt", line, text)
    with pytest.raises(WorkError, match=r"1 of 33 records .*1 × an empty sentence in .*input\.OnWN.* line 5"):
        read(tmp_path, "STS13")
    year = read(tmp_path, "STS13", limit=0.1)["STS13"]
    assert year is not None and {subset: pairs.without_gold for subset, pairs in year.items()} == {
        "FNWN": 1,
        "headlines": 1,
        "OnWN": 1,
    }
    assert [first for first, *_ in pairs_of(year, "OnWN")] == [f"OnWN left {n}" for n in range(1, 12) if n != 4]


def test_the_benchmark_and_sick_count_pairs_without_a_gold_score(tmp_path: Path) -> None:
    write_sick(tmp_path, "10\ta\tb\t", "11\tc\td\t ")
    golds = [3, "", 1, 5]
    (tmp_path / "sts-test.csv").write_text("".join(f"g\tf\ty\t1\t{gold}\ta {gold}\tb\n" for gold in golds))
    metrics = figures(tmp_path, "STSb", "SICK-R")
    assert (metrics["without_gold/STSb"], metrics["without_gold/SICK-R"]) == (1, 2)
    found = read(tmp_path, "STSb", "SICK-R")
    assert [score for *_, score in pairs_of(found["STSb"], "")] == [3, 1, 5]
    assert len(pairs_of(found["SICK-R"], "")) == 9


def test_linked_folders_are_followed_but_never_back(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    write_year(elsewhere, "STS13", folder="raw")
    write_sick(elsewhere)
    data.mkdir()
    (data / "STS13").symlink_to(elsewhere / "raw")
    (data / "sick").symlink_to(elsewhere)  # the year's files stand in it too, but in a folder without its year
    (elsewhere / "raw/back").symlink_to(data)
    (elsewhere / "itself").symlink_to(elsewhere / "itself")
    found = read(data, "STS13", "SICK-R")
    assert len(pairs_of(found["STS13"], "FNWN")) == 12
    assert len(pairs_of(found["SICK-R"], "")) == 9


def test_a_file_that_links_lead_to_twice_is_one(tmp_path: Path) -> None:
    write_year(tmp_path, "STS13")
    write_sick(tmp_path)
    (tmp_path / "latest").mkdir()
    (tmp_path / "latest/STS2013").symlink_to(tmp_path / "STS13-en-test")
    (tmp_path / "latest/SICK_test_annotated.txt").symlink_to(tmp_path / "SICK_test_annotated.txt")
    assert None not in read(tmp_path, "STS13", "SICK-R").values()


@pytest.mark.parametrize("folder", ["all", "STS2012-STS2013"])
def test_files_of_a_year_in_a_folder_without_it_are_named(tmp_path: Path, folder: str) -> None:
    write_year(tmp_path, "STS13", folder=folder)
    write_sick(tmp_path)
    told = rf"{folder}/STS\.gs\.FNWN\.txt is a file of an STS year, but no folder below DIR names one year"
    given = {"protocols": ["sts"], "data": str(tmp_path), "tfidf": True}
    settings = ProtocolSettings.model_validate({**given, "sets": ["STS13"]})
    with Rejects(None) as rejects, pytest.raises(RequestError, match=told):
        read_protocols(settings, StageContext(tmp_path, tmp_path), rejects)


def test_what_is_left_out_for_its_folder_is_told_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_year(tmp_path, "STS13", folder="all")
    write_sick(tmp_path)
    settings = ProtocolSettings.model_validate({"protocols": ["sts"], "data": str(tmp_path), "tfidf": True})
    with Rejects(None) as rejects:
        read_protocols(settings, StageContext(tmp_path, tmp_path), rejects)
    told = capsys.readouterr().err
    assert "left out: STS12, STS13, " in told and "all/STS.gs.FNWN.txt is a file of an STS year" in told
