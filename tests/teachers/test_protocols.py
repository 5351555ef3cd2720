"""Argument facets and Wikipedia sections: their official files, and figures by hand."""

import csv
import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold, cross_val_score

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from bertrelay.stage import StageContext
from teachers.baselines.encoders import tfidf
from teachers.evaluation import protocols as sections_room
from teachers.evaluation.facets import facet_metrics, read_topics
from teachers.evaluation.official import OfficialFiles
from teachers.evaluation.protocols import Triplets, read_sections, section_metrics
from teachers.evaluation.senteval import TransferSet, read_sets, transfer_metrics
from teachers.evaluation.settings import FOLDED, TOPICS
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
    assert topics is not None and [len(pairs.scores) for pairs in topics.values()] == [10] * 3
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
    pairs = topics["gun-control"]
    assert (pairs.first, pairs.second) == ([argument], ["No."])


def test_an_arguments_file_without_its_header_is_told(tmp_path: Path) -> None:
    write_topics(tmp_path)
    path = tmp_path / "ArgPairs_DP.csv"
    path.write_text(path.read_text().split("\n", 2)[2])
    with pytest.raises(RequestError, match=r"ArgPairs_DP\.csv, line 1: expected a header .*, found a pair"):
        read_topics(OfficialFiles(tmp_path))


def test_columns_of_arguments_go_by_their_names_where_they_have_them(tmp_path: Path) -> None:
    for file in TOPICS.values():
        with (tmp_path / file).open("w", newline="") as written:
            rows = [["id", "sentence_2", "regression_label", "sentence_1"], ["7", "second", "2.5", "first"]]
            csv.writer(written).writerows(rows)
    topics = read_topics(OfficialFiles(tmp_path))
    assert topics is not None
    pairs = topics["gun-control"]
    assert (pairs.first, pairs.second, pairs.scores.tolist()) == (["first"], ["second"], [2.5])
    with (tmp_path / "ArgPairs_GC.csv").open("w", newline="") as written:
        csv.writer(written).writerows([["regression_label", *"abcdefgh", "sentence_1", "other"], ["1", *"abcdefghij"]])
    with pytest.raises(RequestError, match=r"expected a header with regression_label, .* without sentence_2"):
        read_topics(OfficialFiles(tmp_path))


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
    with pytest.raises(RequestError, match=r"facets: expected ArgPairs_GC\.csv and .* found no ArgPairs_DP\.csv below"):
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


def test_sections_without_their_columns_are_told(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="Sentence3"):
        sections(tmp_path, [("a", "b", "c")], header="Sentence1,Sentence2,Other")


def test_a_triplet_cut_short_is_counted(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match="too few fields"):
        sections(tmp_path, [("a", "b", "c"), ("a", "b")])


def test_a_triplet_with_a_blank_sentence_is_counted(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=r"1 × an empty sentence in .*test\.csv.* line 3"):
        sections(tmp_path, [("a", "b", "c"), ("a", "", "c")])


GOOD = ["fine", "lovely", "splendid", "warm"]
BAD = ["dull", "tedious", "cold", "wrong"]


def encode_words(sentences: Sequence[str]) -> NDArray[np.float32]:
    """What words of a sentence are good and bad, and noise of its own."""
    drawn = [np.random.default_rng(zlib.crc32(sentence.encode())).normal(size=5) for sentence in sentences]
    vectors = np.array(drawn, np.float32)
    vectors[:, 0] += [sum(word in GOOD for word in sentence.split()) for sentence in sentences]
    vectors[:, 1] += [sum(word in BAD for word in sentence.split()) for sentence in sentences]
    return vectors


def write(data: Path, file: str, lines: Sequence[str], encoding: str = "utf-8") -> None:
    path = data / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))


def reviews(words: Sequence[str], count: int, name: str = "") -> list[str]:
    return [f"a {words[n % 4]} film {name}{n}" for n in range(count)]


def write_folded(data: Path, name: str = "MR", good: int = 43, bad: int = 57) -> list[str]:
    """A set without a test part; its sentences, those of the first class first."""
    parts = [reviews(GOOD, good), reviews(BAD, bad)]
    for file, lines in zip(FOLDED[name].values(), parts, strict=True):
        write(data, f"{name}/{file}", lines)
    return parts[0] + parts[1]


def read(data: Path, *names: str, folds: int = 10) -> dict[str, TransferSet]:
    return {name: each for name, each in read_sets(OfficialFiles(data), names, folds).items() if each}


@pytest.mark.parametrize("name", ["MR", "CR", "SUBJ", "MPQA"])
def test_ten_folds_are_those_of_scikit_learns_cross_validation(tmp_path: Path, name: str) -> None:
    sentences = write_folded(tmp_path, name)
    found = transfer_metrics(read(tmp_path, name), encode_words, seed=3)
    labels = np.array(["first"] * 43 + ["second"] * 57)
    folds = StratifiedKFold(10, shuffle=True, random_state=3)
    scores = cross_val_score(LogisticRegression(max_iter=1000), encode_words(sentences), labels, cv=folds)
    accuracy, low, high = (found[f"senteval/{name}/accuracy{end}"] for end in ("", "_low", "_high"))
    assert accuracy == pytest.approx(scores.mean())  # all folds have ten sentences
    assert accuracy is not None and low is not None and high is not None and 0.6 < low < accuracy < high <= 1


def test_sets_with_a_test_part_are_tested_on_it(tmp_path: Path) -> None:
    for part, count in (("train", 40), ("dev", 10), ("test", 21)):
        good, bad = reviews(GOOD, count, part), reviews(BAD, count, part)
        write(tmp_path, f"SST/binary/sentiment-{part}", [f"{s}\t1" for s in good] + [f"{s}\t0" for s in bad])
    write(tmp_path, "SST/fine/sentiment-train", ["nothing\t4"] * 3)
    questions = {"train_5500.label": 40, "TREC_10.label": 15}
    for file, count in questions.items():
        lines = [f"DESC:manner {s}" for s in reviews(GOOD, count, file)]
        write(tmp_path, f"TREC/{file}", lines + [f"NUM:date {s} é" for s in reviews(BAD, count, file)], "latin-1")
    found = transfer_metrics(read(tmp_path, "SST", "TREC"), encode_words)
    for name, train, test in (("SST", "train", "test"), ("TREC", *questions)):
        sizes = (40, 21) if name == "SST" else (40, 15)
        end = "" if name == "SST" else " é"
        texts = [
            reviews(GOOD, size, part) + [s + end for s in reviews(BAD, size, part)]
            for part, size in zip((train, test), sizes, strict=True)
        ]
        classes = [np.repeat([1, 0], size) for size in sizes]
        fitted = LogisticRegression(max_iter=1000).fit(encode_words(texts[0]), classes[0])
        assert found[f"senteval/{name}/accuracy"] == pytest.approx(fitted.score(encode_words(texts[1]), classes[1]))


def test_paraphrases_are_told_by_difference_and_product(tmp_path: Path) -> None:
    sides = {}
    for part, count in (("train", 60), ("test", 40)):
        first = [f"a {(GOOD + BAD)[n % 8]} film {n}" for n in range(count)]
        second = [f"a {(GOOD + BAD)[(n + 4 * (n % 2)) % 8]} play {n}" for n in range(count)]
        rows = [f"{1 - n % 2}\t1\t2\t{u}\t{v}" for n, (u, v) in enumerate(zip(first, second, strict=True))]
        write(
            tmp_path / "asis",
            f"msr_paraphrase_{part}.txt",
            ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows],
        )
        turned = ["\t".join([*row.split("\t")[:1], *row.split("\t")[3:], *row.split("\t")[1:3]]) for row in rows]
        write(
            tmp_path / "turned", f"msr_paraphrase_{part}.txt", ["Quality\t#1 String\t#2 String\t#1 ID\t#2 ID", *turned]
        )
        u, v = encode_words(first), encode_words(second)
        sides[part] = np.hstack([np.abs(u - v), u * v]), 1 - np.arange(count) % 2
    fitted = LogisticRegression(max_iter=1000).fit(*sides["train"])
    assert transfer_metrics(read(tmp_path / "turned", "MRPC"), encode_words) == transfer_metrics(
        read(tmp_path / "asis", "MRPC"), encode_words
    )
    found = transfer_metrics(read(tmp_path / "asis", "MRPC"), encode_words)
    assert found["senteval/MRPC/accuracy"] == pytest.approx(fitted.score(*sides["test"]))
    assert found["senteval/MRPC/f1"] == pytest.approx(f1_score(sides["test"][1], fitted.predict(sides["test"][0])))


def test_a_set_in_part_is_told_and_one_that_is_not_there_left_out(tmp_path: Path) -> None:
    write(tmp_path, "MR/rt-polarity.pos", reviews(GOOD, 20))
    assert read(tmp_path, "CR") == {}
    with pytest.raises(RequestError, match=r"MR: expected .* found no rt-polarity\.neg below"):
        read(tmp_path, "MR")


def test_a_fold_without_a_class_is_told(tmp_path: Path) -> None:
    write_folded(tmp_path, bad=9)
    told = "MR: expected at least 10 sentences of each class, so that each of 10 folds has one, found 9"
    with pytest.raises(RequestError, match=re.escape(told)):
        read(tmp_path, "MR")
    assert "MR" in read(tmp_path, "MR", folds=9)


@pytest.mark.parametrize(
    ("name", "files", "line", "told"),
    [
        ("SST", ["sentiment-train", "sentiment-test"], "no class here", "line 2: expected a sentence and its class"),
        ("TREC", ["train_5500.label", "TREC_10.label"], "NUM:date", "line 2: expected a class and a question"),
        ("MRPC", ["msr_paraphrase_train.txt", "msr_paraphrase_test.txt"], "1\t2", "line 2: expected a class, two ids"),
    ],
)
def test_a_line_of_another_form_is_told(tmp_path: Path, name: str, files: list[str], line: str, told: str) -> None:
    good = {"SST": "a film\t1", "TREC": "NUM:date When?", "MRPC": "1\t1\t2\tone\tother"}[name]
    for file in files:
        write(tmp_path / "binary", file, [good, line])
    with pytest.raises(RequestError, match=told):
        read(tmp_path, name)


@pytest.mark.parametrize(
    ("name", "files", "lines", "told"),
    [
        (
            "SST",
            ["sentiment-train", "sentiment-test"],
            ["a film\t1", "secret\t4"],
            "line 2: expected the classes of SST, 0",
        ),
        (
            "TREC",
            ["train_5500.label", "TREC_10.label"],
            ["When was secret?"] * 3,
            "line 1: .* found others in 3 of its",
        ),
        (
            "MRPC",
            ["msr_paraphrase_train.txt", "msr_paraphrase_test.txt"],
            ["Quality\t1\t2\t#1 String\t#2 String", "1\t1\t2\ta\tb", "secret\t1\t2\ta\tb"],
            "line 3: expected the classes of MRPC, 0, 1, found others in 1 of its lines",
        ),
    ],
)
def test_other_classes_are_told_without_them(
    tmp_path: Path, name: str, files: list[str], lines: list[str], told: str
) -> None:
    for file in files:
        write(tmp_path / "binary", file, lines)
    with pytest.raises(RequestError, match=told) as raised:
        read(tmp_path, name)
    assert "secret" not in str(raised.value)


def test_paraphrases_without_their_header_are_told(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write(tmp_path, f"msr_paraphrase_{part}.txt", ["1\t1\t2\tone\tother"] * 3)
    with pytest.raises(
        RequestError, match=r"msr_paraphrase_train\.txt, line 1: expected the header, Quality, #1 String, #2 "
    ):
        read(tmp_path, "MRPC")


def test_a_class_that_nothing_teaches_is_told(tmp_path: Path) -> None:
    write(tmp_path, "train_5500.label", ["NUM:date When?", "HUM:ind Who?"] * 4)
    write(tmp_path, "TREC_10.label", ["NUM:date When?", "LOC:city Where?"])
    with pytest.raises(RequestError, match=r"TREC: expected the classes of its test part .*, found no LOC there"):
        read(tmp_path, "TREC")


def test_a_training_part_of_one_class_is_told(tmp_path: Path) -> None:
    for file in ("train_5500.label", "TREC_10.label"):
        write(tmp_path, file, ["NUM:date When was it?"] * 4)
    with pytest.raises(RequestError, match="TREC: expected two classes or more to learn, found 1"):
        read(tmp_path, "TREC")


def test_blank_lines_are_no_sentences_and_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folded(tmp_path)
    before = read(tmp_path, "MR")["MR"]
    path = next(tmp_path.rglob("rt-polarity.neg"))
    path.write_text("\n \n" + path.read_text())
    after = read(tmp_path, "MR")["MR"]
    assert before is not None and after is not None
    assert after.train.sentences == before.train.sentences
    assert f"{path}: left out 2 blank lines of" in capsys.readouterr().err


def test_a_packed_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    write_folded(tmp_path)
    path = next(tmp_path.rglob("rt-polarity.neg"))
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    path.with_name("rt-polarity.neg.gz").write_bytes(packed[:-20])
    with pytest.raises(RequestError, match=r"rt-polarity\.neg\.gz is cut off or damaged"):
        read(tmp_path, "MR")
