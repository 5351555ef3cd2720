"""Hard negatives, against sentence-transformers' `mine_hard_negatives` and arithmetic in float64."""

import json
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from bertrelay.data.records import Rejects
from bertrelay.data.shards import ShardFiles
from bertrelay.errors import RequestError
from bertrelay.model.layout import Prompts
from students import mine_negatives
from students.mining import negatives
from students.mining.negatives import run
from students.mining.settings import NegativeSettings
from teachers.settings import TrainSettings
from teachers.train import TeacherData

SUBJECTS = ["the dog", "two cats", "ein Hund", "le chat", "eine Maus", "a bird"]
VERBS = ["runs", "sleeps", "bellt", "dort", "waits", "singt"]
WHERE = ["here", "im Haus", "dehors"]


@pytest.fixture(scope="module")
def texts():
    return [f"{subject} {verb} {where}" for subject in SUBJECTS for verb in VERBS for where in WHERE]


@pytest.fixture(scope="module")
def encoder(tiny_encoder, texts):
    return tiny_encoder("bert", texts)


@pytest.fixture(scope="module")
def rows(texts):
    """Forty pairs of thirty-five anchors, which differ from their positives in the last words; five have two."""
    here, house, outside = texts[::3][:35], texts[1::3][:5], texts[2::3][:35]
    return [*zip(here, outside, strict=True), *zip(here[:5], house, strict=True)]


@pytest.fixture
def pairs(rows, tmp_path):
    return write_pairs(tmp_path / "pairs.tsv", rows)


def write_pairs(path, rows):
    path.write_text("".join(f"{a}\t{p}\n" for a, p in [("anchor", "positive"), *rows]), encoding="utf-8")
    return path


def read_rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def mined(encoder, pairs, output, **options):
    mining = mine_negatives(encoder, pairs, output, precision="fp32", **options)
    return mining, read_rows(output)


def cosines(encoder, anchors, candidates):
    vectors = [encoder.encode(list(texts), precision="fp32").astype(np.float64) for texts in (anchors, candidates)]
    first, second = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in vectors)
    return first @ second.T


@pytest.mark.promise("Hard negatives are those of sentence-transformers' `mine_hard_negatives`", about="exact")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_negatives": 1, "layout": "n-tuple"},
        {"num_negatives": 4, "range_min": 3, "layout": "n-tuple"},
        {"relative_margin": 0.05},
        {"absolute_margin": 0.05, "num_negatives": 5},
        {"max_score": 0.8, "min_score": 0.3, "range_min": 2, "num_negatives": 6},
        {"relative_margin": 0.03, "max_score": 0.9, "num_negatives": 7, "layout": "n-tuple"},
    ],
)
def test_negatives_are_those_of_sentence_transformers(encoder, rows, pairs, texts, tmp_path, options):
    """Compares over the whole corpus: in a smaller window the peer's result depends on other anchors' positives."""
    library = pytest.importorskip("sentence_transformers")
    datasets = pytest.importorskip("datasets")
    encoder.save(tmp_path / "model")
    anchors = {anchor for anchor, _ in rows}
    candidates = [text for text in texts[1:] if text not in anchors]  # the peer takes an anchor as its own negative
    (tmp_path / "more.txt").write_text("\n".join(candidates) + "\n", encoding="utf-8")
    peer_options = {**options, "range_max": 200}
    theirs = library.util.mine_hard_negatives(
        datasets.Dataset.from_dict({"anchor": [a for a, _ in rows], "positive": [p for _, p in rows]}),
        library.SentenceTransformer(str(tmp_path / "model"), device="cpu"),
        corpus=candidates,
        output_format=peer_options.pop("layout", "triplet"),
        output_scores=True,
        verbose=False,
        **peer_options,
    )
    mining, ours = mined(
        encoder, pairs, tmp_path / "n.jsonl", corpus=tmp_path / "more.txt", range_max=200, scores=True, **options
    )
    columns = [name for name in ours[0] if "score" not in name]
    assert Counter(tuple(row[name] for name in columns) for row in ours) == Counter(
        zip(*(theirs[name] for name in columns), strict=True)
    )
    assert mining.rows == len(ours) == len(theirs) > 20
    scores_of = {tuple(row[name] for name in columns): [row[name] for name in row if "score" in name] for row in ours}
    assert all(score == round(score, 6) for scores in scores_of.values() for score in scores)
    for row in theirs:
        assert scores_of[tuple(row[name] for name in columns)] == pytest.approx(row["scores"], abs=2e-5)


def test_prompts_of_queries_and_documents_are_used_as_sentence_transformers_does(tiny_encoder, texts, rows, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    datasets = pytest.importorskip("datasets")
    prompts = Prompts({"query": "dehors ein Hund ", "document": "le chat singt "})
    encoder = tiny_encoder("bert", texts, prompts=prompts)
    encoder.save(tmp_path / "model")
    theirs = library.util.mine_hard_negatives(
        datasets.Dataset.from_dict({"anchor": [a for a, _ in rows], "positive": [p for _, p in rows]}),
        library.SentenceTransformer(str(tmp_path / "model"), device="cpu"),
        range_max=200,
        verbose=False,
    )
    pairs = write_pairs(tmp_path / "pairs.tsv", rows)
    _, ours = mined(encoder, pairs, tmp_path / "n.jsonl", range_max=200)
    assert Counter(tuple(row.values()) for row in ours) == Counter(tuple(row.values()) for row in theirs)
    named = {"query_prompt": "query", "prompt": "document"}
    assert mined(encoder, pairs, tmp_path / "named.jsonl", range_max=200, **named)[1] == ours
    without = mined(tiny_encoder("bert", texts), pairs, tmp_path / "without.jsonl", range_max=200)[1]
    assert (
        mined(encoder, pairs, tmp_path / "none.jsonl", range_max=200, query_prompt="", prompt="")[1] == without != ours
    )
    default = tiny_encoder("bert", texts, prompts=Prompts(prompts.texts, "query"))
    assert mined(default, pairs, tmp_path / "default.jsonl", range_max=200)[1] != ours


def test_only_candidates_that_are_no_positives_count_in_the_window(encoder, rows, pairs, tmp_path):
    """By hand: a window of six, the first two of those within the margin skipped, three taken."""
    options = {"range_min": 2, "range_max": 6, "num_negatives": 3, "absolute_margin": 0.01}
    mining, ours = mined(encoder, pairs, tmp_path / "n.jsonl", **options)
    candidates = list(dict.fromkeys(positive for _, positive in rows))
    positives = {anchor: [p for a, p in rows if a == anchor] for anchor, _ in rows}
    expected, dropped = set(), Counter()
    for anchor, positive_texts in positives.items():
        scores = dict(zip(candidates, cosines(encoder, [anchor], candidates)[0], strict=True))
        lowest = min(scores[text] for text in positive_texts)
        order = sorted(candidates, key=lambda text: -scores[text])
        window = [text for text in order if text not in positive_texts][:6]
        dropped["positive"] += sum(scores[text] > scores[window[-1]] for text in positive_texts)
        left = [text for text in window if scores[text] <= lowest - 0.01]
        dropped["absolute_margin"] += 6 - len(left)
        dropped["range_min"] += min(2, len(left))
        dropped["too_few_negatives"] += len(positive_texts) * (len(left) <= 2)
        expected |= {(anchor, positive, text) for positive in positive_texts for text in left[2:5]}
    assert {tuple(row.values()) for row in ours} == expected
    assert len(expected) > 20
    assert mining.dropped == dict(+dropped)
    assert (mining.pairs, mining.anchors, mining.candidates, mining.rows) == (40, 35, 40, len(expected))
    negative = np.mean([cosines(encoder, [row["anchor"]], [row["negative"]]).item() for row in ours])
    assert mining.negative_score == pytest.approx(negative, abs=1e-5)


def test_neither_the_anchor_nor_a_positive_in_other_case_or_spacing_is_a_negative(encoder, tmp_path):
    rows = [
        ("the dog runs", "le chat dort"),
        ("the dog runs", "LE  CHAT dort"),
        ("ein Hund", "The Dog Runs"),
        ("a", " "),
    ]
    (tmp_path / "more.txt").write_text("the  dog RUNS\nein hund\n \ntwo cats\n", encoding="utf-8")
    pairs = write_pairs(tmp_path / "pairs.tsv", rows)
    mining, ours = mined(encoder, pairs, tmp_path / "n.jsonl", corpus=tmp_path / "more.txt")
    assert {(row["anchor"], row["negative"]) for row in ours} == {
        *(("the dog runs", text) for text in ("ein hund", "two cats")),
        *(("ein Hund", text) for text in ("le chat dort", "two cats")),
    }
    assert (mining.pairs, mining.anchors, mining.candidates) == (2, 2, 4)
    counts = {"duplicate_pair": 1, "empty_side": 1, "blank_candidate": 1, "positive": 2, "anchor": 2}
    assert mining.dropped == counts


def test_random_negatives_are_eligible_ones_and_depend_on_the_seed_only(encoder, pairs, tmp_path, monkeypatch):
    options = {"num_negatives": 2, "range_min": 1, "range_max": 9}
    drawn = {}
    for name, seed in {"a": 1, "b": 1, "c": 2}.items():
        monkeypatch.setattr(negatives, "ANCHOR_BLOCK", 7 if name == "b" else 4096)
        _, rows = mined(encoder, pairs, tmp_path / f"{name}.jsonl", sampling="random", seed=seed, **options)
        drawn[name] = [tuple(row.values()) for row in rows]
    _, whole = mined(encoder, pairs, tmp_path / "all.jsonl", **{**options, "num_negatives": 8})
    assert drawn["a"] == drawn["b"] != drawn["c"]
    assert set(drawn["a"]) | set(drawn["c"]) < {tuple(row.values()) for row in whole}
    assert set(Counter(row[:2] for row in drawn["a"]).values()) == {2}


@pytest.mark.promise("Mining hard negatives resumes to the same bytes", about="resume")
@pytest.mark.parametrize("call", [2, 9], ids=["vectors", "negatives"])
def test_a_killed_call_resumes_to_the_same_bytes(encoder, pairs, tmp_path, monkeypatch, kill_at, call):
    monkeypatch.setattr(negatives, "ANCHOR_BLOCK", 4)
    mined(encoder, pairs, tmp_path / "whole.jsonl")
    output = tmp_path / "n.jsonl"
    kill_at(ShardFiles, "write", call, lambda: mined(encoder, pairs, output))
    assert not output.exists()
    mined(encoder, pairs, output)
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"pairs.tsv", "whole.jsonl", "n.jsonl"}


def test_a_work_folder_serves_other_options_without_encoding(encoder, pairs, tmp_path, monkeypatch):
    mined(encoder, pairs, tmp_path / "a.jsonl", work=tmp_path / "work")
    fresh, rows = mined(encoder, pairs, tmp_path / "b.jsonl", max_score=0.9, layout="n-tuple", num_negatives=1)
    monkeypatch.setattr(type(encoder), "tokenize", None)
    from_work = mined(
        encoder, pairs, tmp_path / "c.jsonl", work=tmp_path / "work", max_score=0.9, layout="n-tuple", num_negatives=1
    )
    assert from_work == (fresh, rows)
    assert fresh.dropped["max_score"] > 0


def test_the_stage_writes_a_table_that_the_contrastive_objective_reads(encoder, rows, context, tmp_path):
    encoder.save(tmp_path / "model")
    lines = [json.dumps({"anchor": a, "positive": p}) for a, p in rows]
    (tmp_path / "pairs.jsonl").write_text("\n".join([*lines, '{"anchor": "a"}']) + "\n", encoding="utf-8")
    source = {"model": str(tmp_path / "model"), "pairs": {"path": str(tmp_path / "pairs.jsonl")}, "precision": "fp32"}
    options = {"num_negatives": 2, "layout": "n-tuple", "output": "parquet", "max_rejects": 0.1, "scores": True}
    metrics = run(NegativeSettings.model_validate(source | options), context)
    assert (metrics["rows"], metrics["dropped/positive"] > 0) == (40, True)
    output = context.output / "negatives.parquet"
    names = ["anchor", "positive", "negative_1", "negative_2"]
    assert pq.read_table(output).column_names == [*names, "positive_score", "negative_score_1", "negative_score_2"]
    assert '"reason": "a missing value"' in (context.output / "rejects.jsonl").read_text()
    train = [{"path": str(output), "columns": names}]
    settings = TrainSettings.model_validate({"base": "./base", "objective": "contrastive", "train": train})
    assert TeacherData.read(settings, context).train.indices.shape == (40, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"range_min": 5, "range_max": 7}, "range_max: expected at least range_min and num_negatives, 8, found 7"),
        ({"min_score": 0.5, "max_score": 0.1}, "min_score: expected at most max_score, 0.1, found 0.5"),
        ({"seed": 3}, "seed: without effect, because sampling is top"),
        ({"layout": "pairs"}, "layout: expected 'triplet' or 'n-tuple'"),
    ],
)
def test_invalid_options_are_refused(pairs, tmp_path, options, message):
    with pytest.raises(RequestError, match=message):
        mine_negatives("/no/such/model", pairs, tmp_path / "n.jsonl", **options)


def test_tables_without_pairs_are_refused_and_leave_nothing(encoder, tmp_path):
    empty = write_pairs(tmp_path / "pairs.tsv", [("a", ""), (" ", "b")])
    with pytest.raises(
        RequestError, match="expected pairs of an anchor and a positive, found none that can be used: 2"
    ):
        mined(encoder, empty, tmp_path / "n.jsonl")
    (tmp_path / "numbers.jsonl").write_text('{"anchor": "secret", "positive": 3}\n')
    with pytest.raises(RequestError, match=r"numbers\.jsonl, line 1: expected text, found something else") as error:
        mined(encoder, tmp_path / "numbers.jsonl", tmp_path / "n.jsonl")
    assert "secret" not in str(error.value)
    with pytest.raises(RequestError, match="found none that can be used"):
        mined(encoder, tmp_path / "numbers.jsonl", tmp_path / "n.jsonl", rejects=Rejects(None, limit=1.0))
    assert {path.name for path in tmp_path.iterdir()} == {"pairs.tsv", "numbers.jsonl"}


def test_fewer_negatives_than_requested_are_counted_and_logged(encoder, tmp_path, capsys):
    pairs = write_pairs(tmp_path / "pairs.tsv", [("the dog runs here", "le chat dort"), ("a bird singt", "two cats")])
    mining, rows = mined(encoder, pairs, tmp_path / "m.jsonl", num_negatives=5)
    assert (mining.rows, len(rows), mining.anchors_with_fewer) == (2, 2, 2)
    logged = capsys.readouterr().err
    assert "2 of 2 anchors have fewer than the 5 negatives requested, among 2 candidates: " in logged
    assert "2 candidates left out as positives of their anchor" in logged


def test_no_negative_at_all_is_an_error_that_leaves_no_file(encoder, pairs, tmp_path):
    message = r"expected negatives, found none for 35 anchors .*candidates left out by max_score.* Give more candidates"
    with pytest.raises(RequestError, match=message):
        mine_negatives(encoder, pairs, tmp_path / "m.jsonl", max_score=-1.0, precision="fp32")
    assert not (tmp_path / "m.jsonl").exists()
    mining, _ = mined(encoder, pairs, tmp_path / "m.jsonl")
    assert mining.rows > 0 and sorted(path.name for path in tmp_path.iterdir()) == ["m.jsonl", "pairs.tsv"]
