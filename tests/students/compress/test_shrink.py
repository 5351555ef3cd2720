"""The stage that makes models smaller, and the figures before and after."""

import json

import numpy as np
import pytest
from scipy.stats import spearmanr
from torch import nn

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.pooling import Projection
from students.compress.coverage import sample_of
from students.compress.settings import ShrinkSettings
from students.compress.shrink import _labelled, cosines_to_original, principal_axes, projection_onto, run, shrink


@pytest.fixture
def model(tiny_encoder, toy, tmp_path):
    """An XLM-R of 4 layers whose vocabulary knows three languages."""
    tiny_encoder("xlm-roberta", [text for row in toy.train for text in row], layers=4, normalize=True).save(
        tmp_path / "large"
    )
    return tmp_path / "large"


@pytest.fixture
def german(toy):
    return [row[1] for row in toy.train]


def stage(context, model, toy, **given):
    corpus = [{"path": str(toy.train_path), "columns": ["de"]}]
    settings = {"model": str(model), "corpus": corpus, "precision": "fp32", **given}
    return run(ShrinkSettings.model_validate(settings), context)


def vectors(encoder, texts):
    return encoder.encode(texts, precision="fp32")


# In Python


def test_what_is_asked_for_is_done_and_the_larger_encoder_stays(model, german):
    larger = SentenceEncoder.load(model)
    before = vectors(larger, german)
    shrunk = shrink(larger, german, trim=False, layers=2, dimensions=6, precision="fp32")
    assert (shrunk.encoder.backbone.config.num_hidden_layers, shrunk.encoder.dim) == (2, 6)
    assert len(shrunk.encoder.tokenizer) == len(larger.tokenizer)
    assert shrunk.axes is not None and shrunk.axes.shape == (16, 6)
    np.testing.assert_array_equal(vectors(larger, german), before)
    shorter = shrink(larger, german, trim=False, layers=2)
    assert shorter.axes is None
    expected = unit(vectors(shorter.encoder, german) @ shrunk.axes)  # the axes are those of fewer layers
    np.testing.assert_allclose(vectors(shrunk.encoder, german), expected, atol=1e-5)


def test_vectors_after_a_prompt_decide_and_are_compared_and_the_smaller_model_has_the_models_prompts(
    context, model, toy, german
):
    larger = SentenceEncoder.load(model)
    options = {"layers": 2, "dimensions": 6, "precision": "fp32"}
    found = shrink(larger, german, prompt="Hund ", **options)
    wanted = shrink(larger, [f"Hund {text}" for text in german], **options)
    np.testing.assert_allclose(found.axes, wanted.axes, atol=1e-6)
    assert len(found.encoder.tokenizer) == len(wanted.encoder.tokenizer)  # the prompt's pieces stay
    assert dict(found.encoder.prompts) == dict(larger.prompts) == {}
    metrics = stage(context, model, toy, parallel=[toy.source("test")], prompt={"text": "Hund "}, dimensions=6)
    before, after = (SentenceEncoder.load(folder) for folder in (model, context.output / "model"))
    sides = [[f"Hund {row[place]}" for row in toy.test] for place in (0, 1)]
    for name, encoder in (("before", before), ("after", after)):
        english, other = (unit(vectors(encoder, side)) for side in sides)
        accuracy = np.mean((english @ other.T).argmax(axis=1) == np.arange(len(english)))
        assert metrics[f"translation_accuracy/{name}/en-de"] == accuracy
    assert dict(after.prompts) == {}


@pytest.mark.parametrize(
    ("texts", "asked", "message"),
    [
        (["a dog"], {"layers": 0}, "layers: expected 1 or more, found 0$"),
        (["a dog"], {"dimensions": -3}, "dimensions: expected 1 or more, found -3$"),
        ("abc", {"dimensions": 2}, "^texts: expected"),
        ((text for text in ["a"]), {"dimensions": 2}, "^texts: expected"),
    ],
)
def test_what_cannot_be_shrunk_is_refused(model, texts, asked, message):
    with pytest.raises(RequestError, match=message):
        shrink(SentenceEncoder.load(model), texts, **asked)


def test_a_sample_has_each_text_once_and_depends_on_neither_order_nor_repeats():
    texts = [f"text {number}" for number in range(100)]
    sample = sample_of(texts, 10)
    assert len(set(sample)) == 10 and set(sample) <= set(texts)
    assert sample_of([*texts[::-1], *texts, "", " \t"], 10) == sample
    assert sorted(sample_of(texts, 1000)) == sorted(texts)
    assert sample_of(["", " "], 10) == []


# The stage


def test_a_trimmed_model_gives_the_vectors_of_all_columns_that_are_named(context, model, toy, german):
    metrics = stage(context, model, toy, corpus=[{"path": str(toy.train_path), "columns": ["de", "fr"]}])
    smaller, larger = SentenceEncoder.load(context.output / "model"), SentenceEncoder.load(model)
    texts = [*german, *(row[2] for row in toy.train)]
    np.testing.assert_array_equal(vectors(smaller, texts), vectors(larger, texts))
    assert smaller.tokenize(german) != larger.tokenize(german)  # other ids for the same pieces
    assert metrics["vocabulary/after"] == len(smaller.tokenizer) < len(larger.tokenizer) == metrics["vocabulary/before"]
    assert metrics["cosine_min"] == pytest.approx(1, abs=1e-6)
    left_out = len(larger.tokenizer) - len(smaller.tokenizer)
    assert metrics["parameters/before"] - metrics["parameters/after"] == left_out * 16


def test_text_of_a_region_is_text_of_its_language(context, model, toy):
    corpus = {"path": str(toy.train_path), "columns": ["de"], "language": "de-AT"}
    assert stage(context, model, toy, corpus=[corpus], languages=["de"])["coverage_tokens/de"] > 0


def test_metrics_are_those_of_the_two_models_files_networks_and_vectors(context, model, toy, german, tmp_path):
    first, de, second = zip(*toy.test, strict=True)
    scores = [number % 5 for number in range(len(first))]
    rows = ["\t".join(map(str, row)) for row in zip(first, second, scores, strict=True)]
    (tmp_path / "sts.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]), encoding="utf-8")
    tests = {
        "sts": {"pairs": {"path": str(tmp_path / "sts.tsv")}},
        "parallel": [{"path": str(toy.test_path), "others": {"de": "de"}}],
    }
    metrics = stage(context, model, toy, layers=2, trim_vocabulary=False, **tests)
    encoders = []
    for side, folder in (("before", model), ("after", context.output / "model")):
        encoder = SentenceEncoder.load(folder)  # which ends in a normalisation
        encoders.append(encoder)
        files = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        assert metrics[f"size_mb/{side}"] == pytest.approx(files / 1e6)
        assert metrics[f"parameters/{side}"] == sum(weight.numel() for weight in encoder.state_dict().values())
        assert metrics[f"layers/{side}"] == encoder.backbone.config.num_hidden_layers
        assert metrics[f"sentences_per_second/{side}"] > 0
        u, v, w = (vectors(encoder, texts).astype(np.float64) for texts in (first, second, de))
        spearman = spearmanr(np.sum(u * v, axis=1), scores).statistic
        assert metrics[f"sts/pairs/{side}/spearman_cosine"] == pytest.approx(spearman, abs=1e-4)
        hits = np.argmax(w @ u.T, axis=1) == np.arange(len(rows))
        assert metrics[f"translation_accuracy/{side}/de-en"] == pytest.approx(hits.mean())
        assert f"translation_accuracy/{side}/en-de_low" in metrics
    before, after = (vectors(encoder, sorted(set(german))) for encoder in encoders)
    cosines = np.sum(before * after, axis=1)
    assert metrics["cosine_mean"] == pytest.approx(cosines.mean(), abs=1e-5)
    assert metrics["cosine_min"] == pytest.approx(cosines.min(), abs=1e-5)
    assert metrics["cosine_min"] < 0.99


def test_records_that_cannot_be_used_are_listed_once_and_too_many_stop_the_work(context, model, toy, tmp_path, capsys):
    path = tmp_path / "corpus.jsonl"
    lines = ['{"text": "ein Hund"}', '{"text": 3}', '{"text": "zwei Katzen"}', '{"text": "drei"}']
    path.write_text("\n".join(lines), encoding="utf-8")
    stage(context, model, toy, corpus=[{"path": str(path)}], max_rejects=0.5)
    listed = [json.loads(line) for line in (context.output / "rejects.jsonl").read_text().splitlines()]
    assert listed == [{"file": str(path), "line": 2, "reason": "not text"}]
    assert capsys.readouterr().err.count("not text") == 1
    with pytest.raises(WorkError, match="1 of 4 records"):
        stage(context, model, toy, corpus=[{"path": str(path)}], max_rejects=0.01)
    path.write_text('{"text": " "}\n')
    with pytest.raises(RequestError, match="found blank lines alone"):
        stage(context, model, toy, corpus=[{"path": str(path)}])


@pytest.mark.parametrize("asked", [{"layers": 3, "dimensions": 6}, {}])
def test_sentence_transformers_loads_the_smaller_model_and_gives_our_vectors(context, model, toy, german, asked):
    peer = pytest.importorskip("sentence_transformers")
    stage(context, model, toy, **asked)
    theirs = peer.SentenceTransformer(str(context.output / "model"), device="cpu")
    ours = SentenceEncoder.load(context.output / "model")
    texts = [*german[:20], toy.train[0][0], "Ω unseen ß"]
    assert [theirs.tokenize([text])["input_ids"][0].tolist() for text in texts] == ours.tokenize(texts)
    np.testing.assert_allclose(vectors(ours, texts), theirs.encode(texts, show_progress_bar=False), atol=1e-5)


# Side by side


def test_cosines_are_taken_where_the_axes_lead_back_to():
    before = np.array([[3.0, 4.0], [0.0, 2.0], [5.0, 0.0]], np.float32)
    along_first = np.array([[1.0], [0.0]])
    assert cosines_to_original(before, before, None) == {
        "cosine_mean": pytest.approx(1),
        "cosine_min": pytest.approx(1),
    }
    after = before @ along_first.astype(np.float32)
    metrics = cosines_to_original(before, after, along_first)
    assert metrics["cosine_min"] == 0
    assert metrics["cosine_mean"] == pytest.approx((3 / 5 + 0 + 1) / 3)


SENTENCES = [
    f"{count} {animal} {verb} {place}"
    for count in ("one", "no")
    for animal in ("dog", "cat", "bird")
    for verb in ("runs", "sleeps", "sings")
    for place in ("here", "there")
]


def drawn(count=200, dim=12):
    generator = np.random.default_rng(0)
    return (generator.normal(size=(count, dim)) * np.arange(dim, 0, -1) + 2).astype(np.float32)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def reduced(encoder, dimensions):
    """The encoder on the axes of its own vectors, and these axes."""
    axes = principal_axes(encoder.encode(SENTENCES, precision="fp32"), dimensions)
    projection = projection_onto(axes, encoder)
    return SentenceEncoder(
        encoder.backbone, encoder.tokenizer, projection=projection, normalize=encoder.normalize
    ).eval(), axes


def test_axes_are_the_first_right_singular_vectors_of_the_vectors_as_they_are():
    vectors = drawn()
    axes = principal_axes(vectors, 5)
    _, _, singular = np.linalg.svd(vectors.astype(np.float64))
    assert axes.shape == (12, 5)
    np.testing.assert_allclose(axes.T @ axes, np.eye(5), atol=1e-12)
    np.testing.assert_allclose(np.abs(np.sum(axes * singular[:5].T, axis=0)), 1, atol=1e-9)  # signs are free


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("bias", [None, False, True])
def test_a_model_gives_its_vectors_on_the_axes_whatever_it_ended_in(tiny_encoder, tmp_path, normalize, bias):
    own = None if bias is None else Projection(16, 20, bias=bias)
    encoder = tiny_encoder("bert", SENTENCES, projection=own, normalize=normalize)
    smaller, axes = reduced(encoder, 6)
    expected = encoder.encode(SENTENCES, precision="fp32") @ axes
    vectors = smaller.encode(SENTENCES, precision="fp32")
    np.testing.assert_allclose(vectors, unit(expected) if normalize else expected, atol=1e-5)
    smaller.save(tmp_path / "model")
    loaded = SentenceEncoder.load(tmp_path / "model")
    assert loaded.dim == 6
    np.testing.assert_array_equal(loaded.encode(SENTENCES, precision="fp32"), vectors)


@pytest.mark.parametrize("activation", [nn.Identity(), nn.Tanh()])
def test_of_several_projections_and_of_one_that_bends_the_vectors_are_turned_too(tiny_encoder, tmp_path, activation):
    own = nn.Sequential(Projection(16, 24, activation=nn.ReLU()), Projection(24, 12, True, activation, normalized=True))
    encoder = tiny_encoder("bert", SENTENCES, projection=own, normalize=True)
    smaller, axes = reduced(encoder, 6)
    expected = unit(encoder.encode(SENTENCES, precision="fp32") @ axes)
    np.testing.assert_allclose(smaller.encode(SENTENCES, precision="fp32"), expected, atol=1e-5)
    assert len(smaller.projection) == (2 if isinstance(activation, nn.Identity) else 3)
    smaller.save(tmp_path)
    np.testing.assert_allclose(SentenceEncoder.load(tmp_path).encode(SENTENCES, precision="fp32"), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("count", "dimensions", "message"),
    [
        (50, 12, "fewer than the model's 12, found 12"),
        (3, 4, "at least as many sentences in the corpus as dimensions, found 3 for 4"),
    ],
)
def test_too_many_dimensions_and_too_few_sentences_are_reported(count, dimensions, message):
    with pytest.raises(RequestError, match=message):
        principal_axes(drawn(count), dimensions)


def test_text_in_another_script_than_its_language_has_is_refused(tmp_path):
    (tmp_path / "ko.txt").write_text("Two men play football.\n" * 30)
    source = {"path": str(tmp_path / "ko.txt"), "language": "ko"}

    def labelled(**more):
        settings = ShrinkSettings.model_validate({"model": "./m", "corpus": [source | more], "languages": ["ko"]})
        return list(_labelled(settings, tmp_path, Rejects(None)))

    with pytest.raises(RequestError, match=r"ko\.txt: 100\.0% of 30 texts in ko .* Hang; theirs is Latin"):
        labelled()
    assert len(labelled(max_misplaced=1.0)) == 30
