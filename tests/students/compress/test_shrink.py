"""Smaller models by `shrink` and its stage, and the metrics before and after."""

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from bertrelay.data.records import Rejects
from bertrelay.errors import RequestError, WorkError
from bertrelay.model.encoder import SentenceEncoder
from students.compress.coverage import sample_texts
from students.compress.settings import ShrinkSettings
from students.compress.shrink import _read_corpus, run, shrink


@pytest.fixture
def model(tiny_encoder, toy, tmp_path):
    """An XLM-R of 4 layers with a vocabulary of three languages."""
    tiny_encoder("xlm-roberta", [text for row in toy.train for text in row], layers=4, normalize=True).save(
        tmp_path / "large"
    )
    return tmp_path / "large"


@pytest.fixture
def german(toy):
    return [row[1] for row in toy.train]


def stage(context, model, toy, **settings):
    corpus = [{"path": str(toy.train_path), "columns": ["de"]}]
    defaults = {"model": str(model), "corpus": corpus, "precision": "fp32"}
    return run(ShrinkSettings.model_validate({**defaults, **settings}), context)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def vectors(encoder, texts):
    return encoder.encode(texts, precision="fp32")


def test_layers_and_dimensions_are_left_out_and_the_larger_encoder_does_not_change(model, german):
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


def test_vectors_after_a_prompt_choose_and_compare_and_the_prompts_are_those_of_the_model(context, model, toy, german):
    larger = SentenceEncoder.load(model)
    options = {"layers": 2, "dimensions": 6, "precision": "fp32"}
    prompted = shrink(larger, german, prompt="Hund ", **options)
    expected = shrink(larger, [f"Hund {text}" for text in german], **options)
    np.testing.assert_allclose(prompted.axes, expected.axes, atol=1e-6)
    assert len(prompted.encoder.tokenizer) == len(expected.encoder.tokenizer)  # the prompt's subwords stay
    assert dict(prompted.encoder.prompts) == dict(larger.prompts) == {}
    metrics = stage(context, model, toy, parallel=[toy.source("test")], prompt={"text": "Hund "}, dimensions=6)
    before, after = (SentenceEncoder.load(folder) for folder in (model, context.output / "model"))
    prompted_texts = [[f"Hund {row[column]}" for row in toy.test] for column in (0, 1)]
    for name, encoder in (("before", before), ("after", after)):
        english, other = (unit(vectors(encoder, texts)) for texts in prompted_texts)
        accuracy = np.mean((english @ other.T).argmax(axis=1) == np.arange(len(english)))
        assert metrics[f"translation_accuracy/{name}/en-de"] == accuracy
    assert dict(after.prompts) == {}


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["a dog"], {"layers": 0}, "layers: expected 1 or more, found 0$"),
        (["a dog"], {"dimensions": -3}, "dimensions: expected 1 or more, found -3$"),
        ("abc", {"dimensions": 2}, "^texts: expected"),
        ((text for text in ["a"]), {"dimensions": 2}, "^texts: expected"),
    ],
)
def test_invalid_texts_and_options_are_refused(model, texts, options, message):
    with pytest.raises(RequestError, match=message):
        shrink(SentenceEncoder.load(model), texts, **options)


def test_a_sample_has_each_text_once_and_depends_on_neither_order_nor_repeats():
    texts = [f"text {number}" for number in range(100)]
    sample = sample_texts(texts, 10)
    assert len(set(sample)) == 10 and set(sample) <= set(texts)
    assert sample_texts([*texts[::-1], *texts, "", " \t"], 10) == sample
    assert sorted(sample_texts(texts, 1000)) == sorted(texts)
    assert sample_texts(["", " "], 10) == []


def test_a_trimmed_model_gives_the_vectors_of_all_named_columns(context, model, toy, german):
    metrics = stage(context, model, toy, corpus=[{"path": str(toy.train_path), "columns": ["de", "fr"]}])
    smaller, larger = SentenceEncoder.load(context.output / "model"), SentenceEncoder.load(model)
    texts = [*german, *(row[2] for row in toy.train)]
    np.testing.assert_array_equal(vectors(smaller, texts), vectors(larger, texts))
    assert smaller.tokenize(german) != larger.tokenize(german)  # other ids of the same subwords
    assert metrics["vocabulary/after"] == len(smaller.tokenizer) < len(larger.tokenizer) == metrics["vocabulary/before"]
    assert metrics["cosine_min"] == pytest.approx(1, abs=1e-6)
    left_out = len(larger.tokenizer) - len(smaller.tokenizer)
    assert metrics["parameters/before"] - metrics["parameters/after"] == left_out * 16


def test_text_of_a_region_is_text_of_its_language(context, model, toy):
    corpus = {"path": str(toy.train_path), "columns": ["de"], "language": "de-AT"}
    assert stage(context, model, toy, corpus=[corpus], languages=["de"])["coverage_tokens/de"] > 0


def test_metrics_are_those_of_the_files_networks_and_vectors_of_both_models(context, model, toy, german, tmp_path):
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
    for moment, folder in (("before", model), ("after", context.output / "model")):
        encoder = SentenceEncoder.load(folder)  # which ends in a normalisation
        encoders.append(encoder)
        files = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        assert metrics[f"size_mb/{moment}"] == pytest.approx(files / 1e6)
        assert metrics[f"parameters/{moment}"] == sum(weight.numel() for weight in encoder.state_dict().values())
        assert metrics[f"layers/{moment}"] == encoder.backbone.config.num_hidden_layers
        assert metrics[f"sentences_per_second/{moment}"] > 0
        u, v, w = (vectors(encoder, texts).astype(np.float64) for texts in (first, second, de))
        spearman = spearmanr(np.sum(u * v, axis=1), scores).statistic
        assert metrics[f"sts/pairs/{moment}/spearman_cosine"] == pytest.approx(spearman, abs=1e-4)
        hits = np.argmax(w @ u.T, axis=1) == np.arange(len(rows))
        assert metrics[f"translation_accuracy/{moment}/de-en"] == pytest.approx(hits.mean())
        assert f"translation_accuracy/{moment}/en-de_low" in metrics
    before, after = (vectors(encoder, sorted(set(german))) for encoder in encoders)
    cosines = np.sum(before * after, axis=1)
    assert metrics["cosine_mean"] == pytest.approx(cosines.mean(), abs=1e-5)
    assert metrics["cosine_min"] == pytest.approx(cosines.min(), abs=1e-5)
    assert metrics["cosine_min"] < 0.99


def test_unusable_records_are_listed_once_and_too_many_are_an_error(context, model, toy, tmp_path, capsys):
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
    with pytest.raises(RequestError, match="found only blank lines"):
        stage(context, model, toy, corpus=[{"path": str(path)}])


@pytest.mark.parametrize("options", [{"layers": 3, "dimensions": 6}, {}])
def test_sentence_transformers_loads_the_smaller_model_and_gives_our_vectors(context, model, toy, german, options):
    peer = pytest.importorskip("sentence_transformers")
    stage(context, model, toy, **options)
    theirs = peer.SentenceTransformer(str(context.output / "model"), device="cpu")
    ours = SentenceEncoder.load(context.output / "model")
    texts = [*german[:20], toy.train[0][0], "Ω unseen ß"]
    assert [theirs.tokenize([text])["input_ids"][0].tolist() for text in texts] == ours.tokenize(texts)
    np.testing.assert_allclose(vectors(ours, texts), theirs.encode(texts, show_progress_bar=False), atol=1e-5)


def test_text_in_another_script_than_its_language_is_refused(tmp_path):
    (tmp_path / "ko.txt").write_text("Two men play football.\n" * 30)
    source = {"path": str(tmp_path / "ko.txt"), "language": "ko"}

    def read(**more):
        settings = ShrinkSettings.model_validate({"model": "./m", "corpus": [source | more], "languages": ["ko"]})
        return list(_read_corpus(settings, tmp_path, Rejects(None)))

    with pytest.raises(RequestError, match=r"ko\.txt: 100\.0% of 30 texts in ko .* Hang; theirs is Latin"):
        read()
    assert len(read(max_misplaced=1.0)) == 30
