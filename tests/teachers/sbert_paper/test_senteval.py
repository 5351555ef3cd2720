"""SentEval against scikit-learn's cross-validation, and its official files."""

import gzip
import zlib

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold, cross_val_score

from bertrelay.errors import RequestError
from teachers.sbert_paper.official import OfficialFiles
from teachers.sbert_paper.senteval import FOLDED, SPLIT, read_sets, transfer_metrics

GOOD = ["fine", "lovely", "splendid", "warm"]
BAD = ["dull", "tedious", "cold", "wrong"]


def encode_words(sentences):
    """Counts of good and bad words, and noise that depends on the sentence only."""
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
    """Writes a set without a test part; returns its sentences, those of the first class first."""
    parts = [reviews(GOOD, good), reviews(BAD, bad)]
    for file, lines in zip(FOLDED["MR"].values(), parts, strict=True):
        write(data, f"MR/{file}", lines)
    return parts[0] + parts[1]


def read(data, *names, folds=10):
    return {name: part for name, part in read_sets(OfficialFiles(data), names, folds).items() if part}


def test_ten_folds_are_those_of_scikit_learns_cross_validation(tmp_path):
    sentences = write_folded(tmp_path)
    metrics = transfer_metrics(read(tmp_path, "MR"), encode_words, seed=3)
    labels = np.array(["first"] * 43 + ["second"] * 57)
    folds = StratifiedKFold(10, shuffle=True, random_state=3)
    scores = cross_val_score(LogisticRegression(max_iter=1000), encode_words(sentences), labels, cv=folds)
    accuracy, low, high = (metrics[f"senteval/MR/accuracy{end}"] for end in ("", "_low", "_high"))
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
        lines = [
            template.format(text) for template, of_class in zip((good, bad), texts, strict=True) for text in of_class
        ]
        write(tmp_path, f"{name}/binary/{file}", lines, encoding)
        written = [*texts[0], *(text + " é" * (name == "TREC") for text in texts[1])]
        parts.append((encode_words(written), np.repeat([1, 0], count)))
    fitted = LogisticRegression(max_iter=1000).fit(*parts[0])
    metrics = transfer_metrics(read(tmp_path, name), encode_words)
    assert metrics[f"senteval/{name}/accuracy"] == pytest.approx(fitted.score(*parts[1]))


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [0, 3, 4, 1, 2]])
def test_paraphrases_are_classified_by_difference_and_product_in_any_order_of_columns(tmp_path, order):
    parts = []
    for file, count in zip(SPLIT["MRPC"], (60, 40), strict=True):
        first = [f"a {(GOOD + BAD)[n % 8]} film {n}" for n in range(count)]
        second = [f"a {(GOOD + BAD)[(n + 4 * (n % 2)) % 8]} play {n}" for n in range(count)]
        rows = [("\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String")]
        rows += [(str(1 - n % 2), "1", "2", u, v) for n, (u, v) in enumerate(zip(first, second, strict=True))]
        write(tmp_path, file, ["\t".join(row[column] for column in order) for row in rows])
        u, v = encode_words(first), encode_words(second)
        parts.append((np.hstack([np.abs(u - v), u * v]), 1 - np.arange(count) % 2))
    fitted = LogisticRegression(max_iter=1000).fit(*parts[0])
    metrics = transfer_metrics(read(tmp_path, "MRPC"), encode_words)
    assert metrics["senteval/MRPC/accuracy"] == pytest.approx(fitted.score(*parts[1]))
    assert metrics["senteval/MRPC/f1"] == pytest.approx(f1_score(parts[1][1], fitted.predict(parts[1][0])))


def test_an_incomplete_set_is_refused_and_a_missing_one_left_out(tmp_path):
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


def test_classes_only_in_the_test_part_are_refused(tmp_path):
    write(tmp_path, SPLIT["TREC"][0], ["NUM:date When?", "HUM:ind Who?"] * 4)
    write(tmp_path, SPLIT["TREC"][1], ["NUM:date When?", "LOC:city Where?"])
    with pytest.raises(RequestError, match=r"TREC: expected the classes of its test part .*, found no LOC there"):
        read(tmp_path, "TREC")


def test_blank_lines_are_no_sentences_and_a_truncated_gzip_file_is_refused(tmp_path, capsys):
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
