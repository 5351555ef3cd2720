"""Argument facets and Wikipedia sections: their official files, and figures by hand."""

import csv
import gzip
import zlib

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold, cross_val_score

from bertrelay.cache import Cache
from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from bertrelay.evaluation import statistics
from bertrelay.stage import StageContext
from teachers.sbert_paper import protocols
from teachers.sbert_paper.encoders import tfidf
from teachers.sbert_paper.facets import facet_metrics, read_topics
from teachers.sbert_paper.official import OfficialFiles
from teachers.sbert_paper.protocols import read_sections, section_metrics
from teachers.sbert_paper.senteval import read_sets, transfer_metrics
from teachers.sbert_paper.settings import FOLDED, SPLIT, TOPICS

PLACES = {"a": (0, 0), "b": (1, 0), "c": (0, 3), "d": (4, 4), "e": (1, 1)}


def encode(sentences):
    return np.array([PLACES[sentence] for sentence in sentences], np.float32)


def angles(sentences):
    """A sentence is an angle in degrees."""
    turned = np.radians([float(sentence) for sentence in sentences])
    return np.stack([np.cos(turned), np.sin(turned)], axis=1).astype(np.float32)


def write_topics(data, pairs=10, spoil=""):
    """The three files; by topic the angles between the two arguments, and the scores."""
    expected = {}
    for number, (topic, file) in enumerate(TOPICS.items()):
        apart = [(17 * n + 29 * number) % 90 for n in range(pairs)]
        scores = [4 - each / 30 + (n % 3) / 2 for n, each in enumerate(apart)]
        rows = [[score, *"abcdefgh", "0", each] for score, each in zip(scores, apart, strict=True)]
        unscored = ["", *"abcdefgh", "0", "90"]
        write_csv(data / file, [["score", *"abcdefgh", "first", "second"], unscored, *rows])
        expected[topic] = ([float(np.cos(np.radians(each))) for each in apart], scores)
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
    found = facet_metrics(topics, angles)
    assert {found[f"without_gold/AFS/{topic}"] for topic in TOPICS} == {1}
    for correlation, statistic in (("pearson", pearsonr), ("spearman", spearmanr)):
        each = {topic: statistic(*columns).statistic for topic, columns in expected.items()}
        for topic, value in each.items():
            assert found[f"facets/{topic}/{correlation}_cosine"] == pytest.approx(value, abs=1e-6)
        assert found[f"facets/mean/{correlation}_cosine"] == pytest.approx(np.mean(list(each.values())), abs=1e-6)


ARGUMENT = 'Guns, he said, are "tools".\nNo more.'


@pytest.mark.parametrize(
    "rows",
    [
        [["score", *"abcdefgh", "x", "y"], ["2.5", *"abcdefgh", ARGUMENT, "No."]],
        [["id", "sentence_2", "regression_label", "sentence_1"], ["7", "No.", "2.5", ARGUMENT]],
    ],
)
def test_arguments_are_read_by_name_or_place_with_their_commas_quotes_and_line_breaks(tmp_path, rows):
    for file in TOPICS.values():
        write_csv(tmp_path / file, rows)
    assert list(read_topics(OfficialFiles(tmp_path)).by_part()["gun-control"].rows()) == [(ARGUMENT, "No.", 2.5)]


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        ("1.0,short\n", r"line 13: .* found 2 columns"),
        ("high" + "," * 8 + ",0,1\n", r"line 13: expected a gold score .*, found what is no number"),
        ("5.1" + "," * 8 + ",0,1\n", r"line 13: expected a gold score from 0 to 5, found one outside"),
        ("1.0" + "," * 8 + ",0, \n", r"line 13: expected two arguments, found an empty one"),
    ],
)
def test_an_arguments_file_of_another_form_is_refused(tmp_path, spoil, expected):
    write_topics(tmp_path, spoil=spoil)
    with pytest.raises(RequestError, match=rf"ArgPairs_GM\.csv, {expected}"):
        read_topics(OfficialFiles(tmp_path))


def test_arguments_without_a_header_or_a_topic_are_refused_and_none_at_all_is_none(tmp_path):
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


def sections(data, *lines, header="Sentence1,Sentence2,Sentence3"):
    write(data, "wikipedia-sections/test.csv", [header, *lines])
    with Rejects(None) as rejects:
        return read_sections(OfficialFiles(data), StageContext(data, Cache(data)), rejects)


def test_sections_by_hand_and_equally_near_is_no_hit(tmp_path):
    # from a: b at 1, e at √2, c at 3, d at √32
    triplets = sections(tmp_path, "a,b,c", "a,c,e", "a,e,d", "a,b,b")
    found = section_metrics(triplets, lambda _: encode)
    assert found["sections/accuracy"] == 2 / 4
    # by cosine: e and d point the same way, c straight up; a points nowhere
    by_cosine = section_metrics([("e", "d", "c"), ("c", "b", "e"), ("b", "e", "c")], lambda _: encode)
    assert by_cosine["sections/accuracy_cosine"] == pytest.approx(2 / 3)


def test_sections_are_encoded_block_by_block_by_what_all_of_them_taught(monkeypatch):
    triplets = [(f"dog {n}", f"the dog {n % 3}", f"the cat {n}") for n in range(11)]
    whole = section_metrics(triplets, tfidf)
    monkeypatch.setattr(protocols, "BLOCK", 4)
    sizes = []

    def fit(sentences):
        encode = tfidf(sentences)
        return lambda block: sizes.append(len(block)) or encode(block)

    assert section_metrics(triplets, fit) == whole
    assert sizes == [12, 12, 9]


def test_sections_of_another_form_are_refused(tmp_path):
    with pytest.raises(RequestError, match="Sentence3"):
        sections(tmp_path, "a,b,c", header="Sentence1,Sentence2,Other")
    with pytest.raises(WorkError, match="too few fields"):
        sections(tmp_path, "a,b,c", "a,b")
    with pytest.raises(WorkError, match=r"1 × an empty sentence in .*test\.csv.* line 3"):
        sections(tmp_path, "a,b,c", "a,,c")


GOOD = ["fine", "lovely", "splendid", "warm"]
BAD = ["dull", "tedious", "cold", "wrong"]


def encode_words(sentences):
    """What words of a sentence are good and bad, and noise of its own."""
    drawn = [np.random.default_rng(zlib.crc32(sentence.encode())).normal(size=5) for sentence in sentences]
    vectors = np.array(drawn, np.float32)
    vectors[:, 0] += [sum(word in GOOD for word in sentence.split()) for sentence in sentences]
    vectors[:, 1] += [sum(word in BAD for word in sentence.split()) for sentence in sentences]
    return vectors


def write(data, file, lines, encoding="utf-8"):
    path = data / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))


def reviews(words, count, name=""):
    return [f"a {words[n % 4]} film {name}{n}" for n in range(count)]


def write_folded(data, good=43, bad=57):
    """A set without a test part; its sentences, those of the first class first."""
    parts = [reviews(GOOD, good), reviews(BAD, bad)]
    for file, lines in zip(FOLDED["MR"].values(), parts, strict=True):
        write(data, f"MR/{file}", lines)
    return parts[0] + parts[1]


def read(data, *names, folds=10):
    return {name: each for name, each in read_sets(OfficialFiles(data), names, folds).items() if each}


def test_ten_folds_are_those_of_scikit_learns_cross_validation(tmp_path):
    sentences = write_folded(tmp_path)
    found = transfer_metrics(read(tmp_path, "MR"), encode_words, seed=3)
    labels = np.array(["first"] * 43 + ["second"] * 57)
    folds = StratifiedKFold(10, shuffle=True, random_state=3)
    scores = cross_val_score(LogisticRegression(max_iter=1000), encode_words(sentences), labels, cv=folds)
    accuracy, low, high = (found[f"senteval/MR/accuracy{end}"] for end in ("", "_low", "_high"))
    assert accuracy == pytest.approx(scores.mean())  # all folds have ten sentences
    assert 0.6 < low < accuracy < high <= 1


@pytest.mark.parametrize(
    ("name", "good", "bad", "encoding"),
    [("SST", "{}\t1", "{}\t0", "utf-8"), ("TREC", "DESC:manner {}", "NUM:date {} é", "latin-1")],
)
def test_sets_with_a_test_part_are_tested_on_it(tmp_path, name, good, bad, encoding):
    write(tmp_path, "SST/fine/sentiment-train", ["nothing\t4"] * 3)
    parts = []
    for file, count in zip(SPLIT[name], (40, 21), strict=True):
        texts = reviews(GOOD, count, file), reviews(BAD, count, file)
        lines = [template.format(text) for template, each in zip((good, bad), texts, strict=True) for text in each]
        write(tmp_path, f"{name}/binary/{file}", lines, encoding)
        known = [*texts[0], *(text + " é" * (name == "TREC") for text in texts[1])]
        parts.append((encode_words(known), np.repeat([1, 0], count)))
    fitted = LogisticRegression(max_iter=1000).fit(*parts[0])
    found = transfer_metrics(read(tmp_path, name), encode_words)
    assert found[f"senteval/{name}/accuracy"] == pytest.approx(fitted.score(*parts[1]))


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [0, 3, 4, 1, 2]])
def test_paraphrases_are_found_by_difference_and_product_whatever_the_columns_order(tmp_path, order):
    parts = []
    for file, count in zip(SPLIT["MRPC"], (60, 40), strict=True):
        first = [f"a {(GOOD + BAD)[n % 8]} film {n}" for n in range(count)]
        second = [f"a {(GOOD + BAD)[(n + 4 * (n % 2)) % 8]} play {n}" for n in range(count)]
        rows = [("\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String")]
        rows += [(str(1 - n % 2), "1", "2", u, v) for n, (u, v) in enumerate(zip(first, second, strict=True))]
        write(tmp_path, file, ["\t".join(row[place] for place in order) for row in rows])
        u, v = encode_words(first), encode_words(second)
        parts.append((np.hstack([np.abs(u - v), u * v]), 1 - np.arange(count) % 2))
    fitted = LogisticRegression(max_iter=1000).fit(*parts[0])
    found = transfer_metrics(read(tmp_path, "MRPC"), encode_words)
    assert found["senteval/MRPC/accuracy"] == pytest.approx(fitted.score(*parts[1]))
    assert found["senteval/MRPC/f1"] == pytest.approx(f1_score(parts[1][1], fitted.predict(parts[1][0])))


def test_a_set_in_part_is_refused_and_one_that_is_not_there_left_out(tmp_path):
    write(tmp_path, "MR/rt-polarity.pos", reviews(GOOD, 20))
    assert read(tmp_path, "CR") == {}
    with pytest.raises(RequestError, match=r"MR: expected .* found no rt-polarity\.neg below"):
        read(tmp_path, "MR")


def test_a_fold_without_a_class_is_refused(tmp_path):
    write_folded(tmp_path, bad=9)
    with pytest.raises(RequestError, match=r"MR: expected at least 10 sentences of each class, .* found 9 in one"):
        read(tmp_path, "MR")
    assert "MR" in read(tmp_path, "MR", folds=9)


HEADER = "Quality\t1\t2\t#1 String\t#2 String"


@pytest.mark.parametrize(
    ("name", "lines", "expected"),
    [
        ("SST", ["a film\t1", "no class here"], "line 2: expected a sentence and its class"),
        ("TREC", ["NUM:date When?", "NUM:date"], "line 2: expected a class and a question"),
        ("MRPC", [HEADER, "1\t2"], "line 2: expected a class, two ids"),
        ("SST", ["a film\t1", "secret\t4"], "line 2: expected the classes of SST, 0"),
        ("TREC", ["When was secret?"] * 3, "line 1: .* found others in 3 of its"),
        ("MRPC", [HEADER, "1\t1\t2\ta\tb", "secret\t1\t2\ta\tb"], "line 3: .* MRPC, 0, 1, found others in 1 of its"),
        ("MRPC", ["1\t1\t2\tone\tother"] * 3, r"line 1: expected the header, Quality, #1 String, #2 "),
        ("TREC", ["NUM:date When was it?"] * 4, "TREC: expected two classes or more to learn, found 1"),
    ],
)
def test_a_split_set_of_another_form_or_other_classes_is_refused(tmp_path, name, lines, expected):
    for file in SPLIT[name]:
        write(tmp_path / "binary", file, lines)
    with pytest.raises(RequestError, match=expected) as raised:
        read(tmp_path, name)
    assert "secret" not in str(raised.value)


def test_classes_that_the_test_part_alone_has_are_refused(tmp_path):
    write(tmp_path, SPLIT["TREC"][0], ["NUM:date When?", "HUM:ind Who?"] * 4)
    write(tmp_path, SPLIT["TREC"][1], ["NUM:date When?", "LOC:city Where?"])
    with pytest.raises(RequestError, match=r"TREC: expected the classes of its test part .*, found no LOC there"):
        read(tmp_path, "TREC")


def test_blank_lines_are_no_sentences_and_a_packed_file_that_is_cut_off_is_refused(tmp_path, capsys):
    sentences = write_folded(tmp_path)
    path = next(tmp_path.rglob("rt-polarity.neg"))
    path.write_text("\n \n" + path.read_text())
    assert read(tmp_path, "MR")["MR"].train.sentences == [sentences]
    assert f"{path}: left out 2 blank lines of" in capsys.readouterr().err
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    path.with_name("rt-polarity.neg.gz").write_bytes(packed[:-20])
    with pytest.raises(RequestError, match=r"rt-polarity\.neg\.gz is cut off or damaged"):
        read(tmp_path, "MR")
