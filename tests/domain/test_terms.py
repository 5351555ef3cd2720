"""Medical terms: vectors against transformers, neighbours against brute force, correlations against scipy, pictures."""

import csv
import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy import stats
from transformers import AutoModel, BertForSequenceClassification

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from bertrelay.model.network import save_backbone
from bertrelay.model.tokenizer import load_tokenizer, save_tokenizer
from domain.terms import (
    TermsSettings,
    describe_terms,
    draw_terms,
    group_metrics,
    nearest_terms,
    read_ratings,
    read_terms,
    term_vectors,
)

TERMS = [
    "heart failure",
    "pneumonia",
    "acute kidney injury",
    "metoprolol tartrate",
    "fever",
    "bleeding of unknown origin",
    "gout",
    "atrial fibrillation",
]
GROUPS = ["heart", "lungs", "kidney", "medicine", "finding", "finding", "finding", "heart"]


@pytest.fixture(scope="module")
def encoder(tiny_encoder):
    return tiny_encoder("bert", TERMS, layers=5)


@pytest.fixture(scope="module")
def model(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    save_backbone(encoder.backbone, folder)
    save_tokenizer(encoder.tokenizer, folder, encoder.max_tokens, has_types=True)
    return folder


def by_hand(folder, term, layers):
    """The sum of the last `layers` hidden states, its mean over what stands between the special tokens."""
    network, tokenizer = AutoModel.from_pretrained(folder).eval(), load_tokenizer(folder)
    pieces = tokenizer.tokenize(term)
    ids = torch.tensor([tokenizer(term)["input_ids"]])
    assert ids.shape[1] == len(pieces) + 2
    with torch.inference_mode():
        states = network(ids, output_hidden_states=True).hidden_states
    return sum(states[-layer][0, 1:-1] for layer in range(1, layers + 1)).mean(dim=0).numpy()


def write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def settings(model, terms, **others):
    others = {key: {"path": str(value)} if key == "ratings" else value for key, value in others.items()}
    return TermsSettings.model_validate(
        {"model": str(model), "terms": {"path": str(terms)}, "precision": "fp32", **others}
    )


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    return write(tmp_path_factory.mktemp("terms") / "terms.csv", [("term", "group"), *zip(TERMS, GROUPS, strict=True)])


PAIRS = [(first, second) for first in range(8) for second in range(first) if (first + second) % 2]
SCORES = np.random.default_rng(2).integers(0, 5, len(PAIRS)).tolist()


@pytest.fixture(scope="module")
def described(model, listed, tmp_path_factory):
    """The metrics of the listed terms with ratings, and the folder that they were written to."""
    output = tmp_path_factory.mktemp("described")
    rated = [(TERMS[first], TERMS[second], score) for (first, second), score in zip(PAIRS, SCORES, strict=True)]
    ratings = write(output.with_name("ratings.csv"), [("term1", "term2", "score"), *rated])
    return describe_terms(settings(model, listed, k=3, ratings=ratings), output), output


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("kind", "has", "layers", "summed"),
    [("bert", 5, "last_four", 4), ("xlm-roberta", 5, "last", 1), ("bert", 2, "last_four", 2)],
)
def test_vectors_are_the_sum_of_the_last_hidden_states_and_its_mean_over_the_pieces(
    tiny_encoder, tmp_path, capsys, kind, has, layers, summed
):
    tiny_encoder(kind, TERMS, layers=has, pooling=["cls"], normalize=True).save(tmp_path)
    vectors = term_vectors(tmp_path, TERMS, layers=layers, precision="fp32", batch_tokens=24)
    assert vectors.dtype == np.float32
    expected = np.stack([by_hand(tmp_path, term, summed) for term in TERMS])
    np.testing.assert_allclose(vectors, expected, atol=2e-5)
    assert ("2 layers" in capsys.readouterr().err) == (has == 2)


def test_a_classifier_a_sentence_encoder_and_a_plain_folder_of_one_network_give_the_same_vectors(
    encoder, model, tmp_path
):
    encoder.save(tmp_path / "sentences")
    classifier = BertForSequenceClassification(encoder.backbone.config)
    classifier.bert.load_state_dict(encoder.backbone.state_dict())
    classifier.save_pretrained(tmp_path / "classifier")
    save_tokenizer(encoder.tokenizer, tmp_path / "classifier", 40, has_types=True)
    expected = term_vectors(model, TERMS, precision="fp32")
    for folder in tmp_path.iterdir():
        vectors = term_vectors(folder, TERMS, precision="fp32")
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        (["fever", "\u200b"], "without a subword .* position 1"),
        (["fever", "gout " * 60], "more than the 32 .* position 1"),
    ],
)
def test_terms_without_vectors_are_refused_by_their_place_and_never_by_their_text(encoder, terms, expected):
    with pytest.raises(RequestError, match=expected) as error:
        term_vectors(encoder, terms)
    assert "gout gout" not in str(error.value)
    with pytest.raises(RequestError, match="layers: expected last_four or last, found 'first'"):
        term_vectors(encoder, TERMS, layers="first")


def test_vectors_that_are_not_finite_are_an_error(tiny_encoder):
    broken = tiny_encoder("bert", TERMS)
    with torch.no_grad():
        broken.backbone.embeddings.LayerNorm.bias[0] = torch.nan
    with pytest.raises(WorkError, match="not finite for term 1"):
        term_vectors(broken, TERMS)


def test_neighbours_are_those_of_brute_force():
    vectors = np.random.default_rng(1).normal(size=(37, 6)).astype(np.float32)
    rows, cosines_of = nearest_terms(vectors, 4)
    for row in range(37):
        lengths = np.linalg.norm(vectors[row]) * np.linalg.norm(vectors, axis=1)
        cosines = vectors @ vectors[row] / lengths
        best = [other for other in np.argsort(-cosines).tolist() if other != row][:4]
        assert rows[row].tolist() == best
        np.testing.assert_allclose(cosines_of[row], [cosines[other] for other in best], atol=1e-6)
    assert nearest_terms(np.eye(3, dtype=np.float32), 9)[0].tolist() == [[1, 2], [0, 2], [0, 1]]  # all others


def test_the_share_of_neighbours_of_the_same_group_is_that_by_hand():
    angles = np.array([0, 0.1, 0.25, 2.0, 2.1, 3.0])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    groups = ["a", "a", "b", "b", "b", ""]
    neighbours, _ = nearest_terms(vectors, 1)
    metrics = group_metrics(groups, neighbours, seed=1)
    assert metrics["terms/same_group"] == pytest.approx(4 / 5)  # of b, the one at 0.25 has an a beside it
    assert metrics["terms/same_group_by_chance"] == pytest.approx((2 * 1 / 5 + 3 * 2 / 5) / 5)
    assert group_metrics(["a"] * 6, neighbours, seed=1) == {}


def test_a_term_is_read_once_without_blanks_and_what_is_left_out_is_listed_by_line(tmp_path):
    path = tmp_path / "terms.jsonl"
    pairs = [("gout", "a"), (" gout ", "b"), ("", "a"), ("fever", None), (7, "a"), ("cough", "a"), ("fever", None)]
    path.write_text("".join(json.dumps({"group": group, "term": term}) + "\n" for term, group in pairs))
    with Rejects(tmp_path / "rejects.jsonl", limit=1) as rejects:
        terms = read_terms(settings("/m", path).terms, rejects)
    assert [(*term[:2], term.line) for term in terms] == [("gout", "a", 1), ("fever", "", 4), ("cough", "a", 6)]
    listed = map(json.loads, (tmp_path / "rejects.jsonl").read_text().splitlines())
    assert [(reject["line"], reject["reason"]) for reject in listed] == [
        (2, "a term that is there already, in another group"),
        (3, "an empty term"),
        (5, "a term that is no text"),
        (7, "a term that is there already"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "columns", "expected"),
    [
        ("t.txt", "gout\nfever\n", None, [("gout", ""), ("fever", "")]),
        ("t.csv", "term\ngout\n", None, [("gout", "")]),
        ("t.tsv", "GROUP\tterm\nx\tgout\n", None, [("gout", "x")]),
        ("t.jsonl", '{"term": "a"}\n{"term": "b", "group": 0}', None, [("a", ""), ("b", "0")]),
        ("t.csv", "name,kind,group\ngout,k,g\n", ["name"], [("gout", "g")]),
        ("t.csv", "name,kind,group\ngout,k,g\n", ["name", "kind"], [("gout", "k")]),
    ],
)
def test_term_and_group_are_found_in_every_file(tmp_path, name, text, columns, expected):
    (tmp_path / name).write_text(text)
    values = {"model": "/m", "terms": {"path": str(tmp_path / name), "columns": columns}}
    table = TermsSettings.model_validate(values).terms
    with Rejects(None) as rejects:
        assert [(term.text, term.group) for term in read_terms(table, rejects)] == expected


def test_a_pair_rated_twice_has_the_mean_and_ratings_of_other_terms_are_counted(tmp_path):
    rated = [("a", "b", 1), ("b", "a", 4), ("a", "x", 2), ("b", "c", "3.5"), (" c", "a ", 0), ("y", "x", 1)]
    path = write(tmp_path / "r.csv", [("term1", "term2", "score"), *rated, ("a", "b", "?")])
    table = settings("/m", path, ratings=path).ratings
    with Rejects(None, limit=1) as rejects:
        means, counts = read_ratings(table, {"a": 0, "b": 1, "c": 2}, rejects)
    assert means == {(0, 1): 2.5, (1, 2): 3.5, (0, 2): 0.0}
    assert counts == {"terms/rated_pairs": 3, "terms/ratings_missing": 2, "terms/ratings_repeated": 1}
    assert dict(rejects.counts) == {"no score": 1}
    with Rejects(None, limit=1) as rejects, pytest.raises(RequestError, match=r"found 0 in .* and 6 ratings of other"):
        read_ratings(table, {"z": 0}, rejects)


def test_each_term_has_a_label_beside_its_mark_and_each_group_its_colour_and_shape():
    texts = ["gout", "심부전", "a term of many words that is longer than a label", "$x$", "_y"]
    groups = ["_x", "_x", "$y$", "", "z"]
    positions = np.random.default_rng(0).normal(size=(5, 2))
    figure = draw_terms([*texts, "not drawn"], [*groups, "z"], np.vstack([positions, [np.nan, np.nan]]), "note")
    axes = figure.axes[0]
    labels = [text for text in axes.texts if hasattr(text, "xyann")]
    np.testing.assert_array_equal([text.xy for text in labels], positions)
    assert [text.get_text()[:20] for text in labels] == [text[:20] for text in texts]
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert shown == ["2 _x", "1 $y$", "1 no group", "1 z"]
    assert axes.get_title(loc="left") == "5 of 6 terms by t-SNE"
    styles = {(str(marks.get_facecolor()), len(marks.get_paths()[0].vertices)) for marks in axes.collections}
    assert len(styles) == 4


def test_the_stage_writes_vectors_tables_pictures_and_metrics_that_agree(model, described):
    metrics, output = described
    vectors = np.load(output / "vectors.npy")
    np.testing.assert_array_equal(vectors, term_vectors(model, TERMS, precision="fp32"))
    terms = rows_of(output / "terms.csv")
    assert [(row["term"], row["group"]) for row in terms] == list(zip(TERMS, GROUPS, strict=True))
    assert all(float(row["x"]) or float(row["y"]) for row in terms)
    (rows, cosines), near = nearest_terms(vectors, 3), rows_of(output / "neighbours.csv")
    assert [row["neighbour"] for row in near] == [TERMS[row] for row in rows.ravel()]
    assert [float(row["cosine"]) for row in near] == pytest.approx(cosines.ravel().tolist(), abs=6e-5)
    assert json.loads((output / "metrics.json").read_text()) == metrics
    assert metrics["terms/perplexity"] == pytest.approx(7 / 3)
    assert (metrics["terms/count"], metrics["terms/dim"], metrics["terms/layers"]) == (8, 16, 4)
    svg = (output / "tsne.svg").read_text()
    assert all(term in svg or term[:20] in svg for term in TERMS)
    assert "no meaning" in svg and "Perplexity 2.33, seed 7" in svg
    assert (output / "tsne.png").read_bytes().startswith(b"\x89PNG")
    written = {"metrics.json", "neighbours.csv", "rejects.jsonl", "terms.csv", "tsne.png", "tsne.svg", "vectors.npy"}
    assert {path.name for path in output.iterdir()} == written


def test_correlations_with_ratings_are_those_of_scipy(described):
    metrics, output = described
    vectors = np.load(output / "vectors.npy").astype(np.float64)
    cosines = [vectors[a] @ vectors[b] / np.linalg.norm(vectors[a]) / np.linalg.norm(vectors[b]) for a, b in PAIRS]
    assert metrics["terms/pearson_cosine"] == pytest.approx(stats.pearsonr(cosines, SCORES).statistic, abs=1e-5)
    assert metrics["terms/spearman_cosine"] == pytest.approx(stats.spearmanr(cosines, SCORES).statistic, abs=1e-5)
    for name in ("pearson_cosine", "spearman_cosine"):
        low, high = (metrics[f"terms/{name}_{end}"] for end in ("low", "high"))
        assert low < metrics[f"terms/{name}"] < high
    assert metrics["terms/rated_pairs"] == len(PAIRS)


def test_the_same_seed_gives_the_same_picture_and_another_one_another(model, listed, described, tmp_path):
    _, output = described
    describe_terms(settings(model, listed), tmp_path)
    for name in ("terms.csv", "tsne.svg", "tsne.png"):
        assert (tmp_path / name).read_bytes() == (output / name).read_bytes()
    describe_terms(settings(model, listed, seed=8), tmp_path / "other")
    first, other = (
        {(row["x"], row["y"]) for row in rows_of(folder / "terms.csv")} for folder in (output, tmp_path / "other")
    )
    assert len(first) == 8 and not first & other


def test_two_terms_have_no_picture_and_what_an_earlier_run_left_is_gone(model, described, tmp_path, capsys):
    output = tmp_path / "out"
    shutil.copytree(described[1], output)
    two = write(tmp_path / "two.csv", [("term",), *((term,) for term in TERMS[:2])])
    metrics = describe_terms(settings(model, two, output="parquet"), output, overwrite=True)
    table = pq.read_table(output / "vectors.parquet")
    assert table["text"].to_pylist() == TERMS[:2]
    expected = term_vectors(model, TERMS[:2], precision="fp32")
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), np.float32), expected)
    assert not [path for path in output.iterdir() if path.name.startswith(("tsne", "vectors.npy"))]
    assert metrics["terms/perplexity"] is None
    assert "no picture: t-SNE needs 5 terms at least, found 2" in capsys.readouterr().err
    assert len(rows_of(output / "neighbours.csv")) == 2


def test_of_more_terms_than_can_be_seen_a_seeded_part_is_drawn_and_reported(
    model, listed, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("domain.terms.MOST_DRAWN", 6)
    describe_terms(settings(model, listed), tmp_path / "out")
    assert sum(row["x"] != "" for row in rows_of(tmp_path / "out" / "terms.csv")) == 6
    assert "6 of 8 terms" in (tmp_path / "out" / "tsne.svg").read_text()
    assert "6 of 8 terms, drawn at random" in capsys.readouterr().err


def test_terms_without_known_subwords_are_counted_those_without_any_left_out_and_too_many_stop(model, tmp_path, capsys):
    odd = write(tmp_path / "odd.csv", [("term",), *((term,) for term in [*TERMS, "\u200b", "\u2603 fever", "\u2603"])])
    metrics = describe_terms(settings(model, odd, max_rejects=0.2), tmp_path / "out")
    assert (metrics["terms/count"], metrics["terms/rejected"], metrics["terms/unknown"]) == (10, 1, 1)
    listed = rows_of(tmp_path / "out" / "terms.csv")[-2:]
    assert [int(row["pieces"]) - int(row["known_pieces"]) for row in listed] == [1, 1]
    assert '"line": 10' in (tmp_path / "out" / "rejects.jsonl").read_text()
    logged = capsys.readouterr().err
    assert "1 of 10 terms have no subword" in logged
    assert "1 × a term without a subword in the model's vocabulary" in logged
    with pytest.raises(WorkError, match=r"odd\.csv, line 10"):
        describe_terms(settings(model, odd, max_rejects=0.05), tmp_path / "stopped")


@pytest.mark.parametrize(
    ("terms", "options", "expected"),
    [
        (["gout", "gout"], {}, r"two terms at least, found 1; left out were 1 × a term that is there"),
        (TERMS, {"perplexity": 8}, "less than the 8 terms"),
    ],
)
def test_too_few_terms_and_too_much_perplexity_are_refused(model, tmp_path, terms, options, expected):
    path = write(tmp_path / "terms.csv", [("term",), *((term,) for term in terms)])
    with pytest.raises(RequestError, match=expected):
        describe_terms(settings(model, path, **options), tmp_path / "out")
