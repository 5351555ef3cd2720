import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import TranslationEvaluator

from bertrelay.errors import RequestError, WorkError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.report import read_report
from students import shrink
from students.evaluate.settings import EvaluateSettings
from students.evaluate.stage import run
from students.evaluate.translation import save_variance, translation_metrics
from teachers.pairs.model import start_cross_encoder

MEASURES = ("cosine", "agreement", "error", "unrelated")


@pytest.fixture
def models(tiny_encoder, toy, tmp_path):
    """A student and a teacher on disk."""
    rows = [*toy.train, *toy.test]
    tiny_encoder("xlm-roberta", [text for row in rows for text in row]).save(tmp_path / "student")
    tiny_encoder("bert", [row[0] for row in rows]).save(tmp_path / "teacher")
    return {"model": str(tmp_path / "student"), "teacher": str(tmp_path / "teacher")}


@pytest.fixture
def encoded(monkeypatch):
    """Every call of `encode`: the kind of network, and the sentences."""
    calls = []
    encode = SentenceEncoder.encode

    def spy(self, sentences, **options):
        calls.append((self.backbone.config.model_type, list(sentences)))
        return encode(self, sentences, **options)

    monkeypatch.setattr(SentenceEncoder, "encode", spy)
    return calls


def evaluate(context, **settings):
    return run(EvaluateSettings.model_validate({"precision": "fp32", **settings}), context)


def sts_file(path, sentences, pairs=12):
    rows = [f"{sentences[i]}\t{sentences[i + 1]}\t{i * 7 % 5}" for i in range(pairs)]
    path.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n", encoding="utf-8")
    return {"path": str(path)}


def with_intervals(*names):
    return {f"{name}{end}" for name in names for end in ("", "_low", "_high")}


def test_one_encoding_serves_all_metrics_and_they_have_the_names_of_the_docs(context, models, toy, tmp_path, encoded):
    english, german, french = zip(*toy.test, strict=True)
    de, en = sts_file(tmp_path / "de.tsv", german), sts_file(tmp_path / "en.tsv", english)
    sts = {"de": de, "en-de": {**en, "second": de["path"]}}
    metrics = evaluate(context, **models, parallel=[toy.source("test")], sts=sts, lookup=[toy.source()])
    directions = ("en-de", "de-en", "en-fr", "fr-en")
    sizes = {name: metrics.pop(name) for name in ("sentences/de", "sentences/fr", "sts/de/pairs", "sts/en-de/pairs")}
    assert [*sizes.values()] == [len(english), len(english), 12, 12]
    assert set(metrics) == with_intervals(
        *(f"{name}/{direction}" for name in ("translation_accuracy", "lookup_accuracy") for direction in directions),
        *(f"sts/{name}/spearman_cosine" for name in sts),
        *(f"nearness/{measure}/{language}" for measure in MEASURES for language in ("en", "de", "fr")),
    ) | {"mse/en", "mse/de", "mse/fr", *(f"nearness/{measure}/mean" for measure in MEASURES)} | {
        f"spread/{measure}/{name}" for measure in ("cosine", "dimensions") for name in ("en", "de", "fr", "teacher")
    }
    assert [kind for kind, _ in encoded] == ["xlm-roberta", "bert"]
    by_student, by_teacher = (sentences for _, sentences in encoded)
    assert sorted(by_student) == sorted({*english, *german, *french})
    assert sorted(by_teacher) == sorted(english)


def test_metrics_are_those_of_arithmetic_on_the_vectors(context, models, toy, tmp_path):
    english, german, french = zip(*toy.test, strict=True)
    save_variance(2.5, Path(models["model"]))
    en = sts_file(tmp_path / "en.tsv", english)
    en["second"] = sts_file(tmp_path / "fr.tsv", french)["path"]
    metrics = evaluate(context, **models, parallel=[toy.source("test")], sts={"en-fr": en}, dimensions=[3])
    student, teacher = (SentenceEncoder.load(folder) for folder in models.values())
    vectors = {name: student.encode(side, precision="fp32").astype(np.float64) for name, side in
               (("en", english), ("de", german), ("fr", french))}  # fmt: skip
    targets = teacher.encode(english, precision="fp32").astype(np.float64)
    for language in ("en", "de", "fr"):
        squares = (vectors[language] - targets) ** 2
        assert metrics[f"mse/{language}"] == pytest.approx(squares.mean(), rel=1e-4)
        assert metrics[f"mse_relative/{language}"] == pytest.approx(squares.sum(axis=1).mean() / 2.5, rel=1e-4)
        similarities = [1 - pdist(rows, "cosine") for rows in (vectors[language], targets)]
        assert metrics[f"nearness/agreement/{language}"] == pytest.approx(spearmanr(*similarities).statistic, abs=1e-3)
    for prefix, dim in (("", 16), ("3-dimensions/", 3)):
        cut = {name: rows[:, :dim] for name, rows in vectors.items()}
        units = {name: rows / np.linalg.norm(rows, axis=1, keepdims=True) for name, rows in cut.items()}
        for language in ("de", "fr"):
            table = units["en"] @ units[language].T
            for direction, rows in ((f"en-{language}", table.argmax(1)), (f"{language}-en", table.argmax(0))):
                assert metrics[f"translation_accuracy/{prefix}{direction}"] == np.mean(rows == np.arange(50))
        cosines = np.sum(units["en"][:12] * units["fr"][1:13], axis=1)
        scores = np.array([i * 7 % 5 for i in range(12)])
        assert metrics[f"sts/en-fr/{prefix}spearman_cosine"] == pytest.approx(spearmanr(cosines, scores).statistic)


def test_a_prompt_precedes_each_sentence_of_every_set(context, models, toy, tmp_path):
    """Compares with files that have the prompt in them, by a model that pools its tokens too."""
    (tmp_path / "en.tsv").write_text(
        "sentence1\tsentence2\tscore\n"
        + "".join(f"{row[0]}\t{row[1]}\t{number * 7 % 5}\n" for number, row in enumerate(toy.test[:12]))
    )
    (tmp_path / "prompted.tsv").write_text(
        "sentence1\tsentence2\tscore\n"
        + "".join(f"Katze {row[0]}\tKatze {row[1]}\t{number * 7 % 5}\n" for number, row in enumerate(toy.test[:12]))
    )
    lines = [f"Katze {row[0]}\tKatze {row[1]}\tKatze {row[2]}" for row in toy.test]
    (tmp_path / "all.tsv").write_text("\n".join(["en\tde\tfr", *lines]))
    prompted = {"path": str(tmp_path / "all.tsv"), "others": {"de": "de", "fr": "fr"}}
    model, picture = models["model"], {"picture_sentences": 2}
    plain, expected = (
        evaluate(context, model=model, parallel=[source], sts={"s": {"path": str(tmp_path / name)}}, **picture)
        for source, name in ((toy.source("test"), "en.tsv"), (prompted, "prompted.tsv"))
    )
    sets = {"parallel": [toy.source("test")], "sts": {"s": {"path": str(tmp_path / "en.tsv")}}}
    metrics = evaluate(context, model=model, prompt={"text": "Katze "}, **sets, **picture)
    assert metrics == pytest.approx(expected, abs=1e-6) and metrics != pytest.approx(plain, abs=1e-6)
    with pytest.raises(RequestError, match=r"prompt: expected no name, as the model has no prompts, found .query."):
        evaluate(context, model=model, prompt="query", **sets)


def test_the_accuracy_of_repeated_sentences_is_that_of_sentence_transformers(context, models, toy, tmp_path):
    english = [row[0] for row in toy.test[:40]]
    german = [row[1].replace("Hund", "Katze").replace("Vogel", "Katze") for row in toy.test[:40]]
    assert len(set(german)) < 40
    source = {"path": str(tmp_path / "repeated.tsv"), "others": {"de": "de"}}
    (tmp_path / "repeated.tsv").write_text("en\tde\n" + "".join(map("{}\t{}\n".format, english, german)))
    metrics = evaluate(context, model=models["model"], parallel=[source])
    peer = TranslationEvaluator(english, german, write_csv=False)(SentenceTransformer(models["model"], device="cpu"))
    assert metrics["translation_accuracy/en-de"] == peer["src2trg_accuracy"]
    assert metrics["translation_accuracy/de-en"] == peer["trg2src_accuracy"]


def test_of_two_sentences_with_one_vector_either_is_right():
    """An uncased model has one vector for both; as sentences among others each finds its translation."""
    vectors = np.eye(3, dtype=np.float32)[[0, 1, 2, 1]]
    accuracies = translation_metrics("de", (vectors, vectors))
    assert accuracies == {"translation_accuracy/en-de": 1, "translation_accuracy/de-en": 1}
    collapsed = np.ones((4, 3), np.float32)
    assert set(translation_metrics("de", (collapsed, collapsed)).values()) == {0}, "a model with one vector for all"


def test_a_model_without_finite_vectors_and_one_that_scores_pairs_have_no_scores(context, models, toy, tmp_path):
    start_cross_encoder(models["model"]).save(tmp_path / "pairs")
    path = Path(models["model"], "model.safetensors")
    weights = load_file(path)
    next(tensor for name, tensor in weights.items() if name.endswith("output.dense.weight"))[0, 0] = torch.nan
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(WorkError, match="a vector that is not finite for sentence 1"):
        evaluate(context, model=models["model"], parallel=[toy.source("test")])
    for model, error, message in (
        (models["model"], WorkError, "a vector that is not finite for sentence 1"),
        (tmp_path / "pairs", RequestError, "a network that scores pairs"),
    ):
        for size in ({"layers": 1}, {"intermediate_size": 8}, {"dimensions": 8}):
            with pytest.raises(error, match=message):
                shrink(model, [row[0] for row in toy.test], **size)
    for folders in ({"model": "pairs"}, {"model": "teacher", "teacher": "pairs"}):
        paths = {key: str(tmp_path / name) for key, name in folders.items()}
        with pytest.raises(RequestError, match="a network that scores pairs"):
            evaluate(context, **paths, parallel=[toy.source("test")])


def test_a_set_without_a_pair_and_a_dictionary_without_words_are_refused(context, models, toy, tmp_path):
    (tmp_path / "empty.tsv").write_text("en\tde\n\t\n")
    (tmp_path / "marks.tsv").write_text("en\tde\n!\t?\n")
    empty, marks = ({"path": str(tmp_path / name), "others": {"de": "de"}} for name in ("empty.tsv", "marks.tsv"))
    for sets in ({"parallel": [empty]}, {"parallel": [toy.source("test")], "xsim": {"parallel": [empty]}}):
        with pytest.raises(RequestError, match=r"parallel: .*: expected pairs of en and de, found none"):
            evaluate(context, model=models["model"], **sets)
    with pytest.raises(RequestError, match="lookup: expected words in en and de"):
        evaluate(context, model=models["model"], parallel=[toy.source("test")], lookup=[marks])


@pytest.mark.promise("A metric that is not requested is absent and not 0", about="counted")
def test_metrics_that_are_not_requested_are_absent_and_not_0(context, models, toy):
    metrics = evaluate(context, model=models["model"], parallel=[toy.source("test")])
    assert not [name for name in metrics if name.startswith(("mse", "sts", "lookup"))]


def test_a_student_searches_its_teachers_index_in_every_language(context, models, toy, encoded):
    metrics = evaluate(context, **models, parallel=[toy.source("test")], recall_at=3)
    english, *others = zip(*toy.test, strict=True)
    student, teacher = (SentenceEncoder.load(folder) for folder in models.values())
    index = teacher.encode(english, precision="fp32", normalize_embeddings=True)
    for language, queries in zip(("en", "de", "fr"), (english, *others), strict=True):
        cosines = student.encode(queries, precision="fp32", normalize_embeddings=True) @ index.T
        hits = [row in np.argsort(-cosines[row])[:3] for row in range(len(english))]
        assert metrics[f"recall_at_3/{language}"] == np.mean(hits)
    assert with_intervals("recall_at_3/en", "recall_at_3/de", "recall_at_3_ratio/fr") <= set(metrics)
    assert {metrics[f"queries/{language}"] for language in ("en", "de", "fr")} == {len(english)}
    assert len(encoded) == 2 + 4  # once for all metrics


def test_n_way_sets_give_errors_between_languages_other_than_english(context, models, toy, tmp_path, encoded):
    for code, side in zip(("eng_Latn", "deu_Latn", "fra_Latn"), zip(*toy.test, strict=True), strict=True):
        (tmp_path / f"{code}.devtest").write_text("\n".join(side) + "\n")
    folder = {"path": str(tmp_path), "languages": ["de", "fr"]}
    metrics = evaluate(
        context, model=models["model"], xsim={"a": [folder], "b": [toy.source("test")]}, xsim_pairs="all"
    )
    directions = ("en/de", "de/en", "en/fr", "fr/en", "de/fr", "fr/de")
    sizes = {f"xsim_sentences/{name}/{language}" for name in "ab" for language in ("en", "de", "fr")}
    assert {metrics.pop(name) for name in sizes} == {len(toy.test)}
    assert set(metrics) == with_intervals(*(f"xsim_error/{name}/{pair}" for name in "ab" for pair in directions))
    assert [metrics[f"xsim_error/a/{pair}"] for pair in directions] == [
        metrics[f"xsim_error/b/{pair}"] for pair in directions
    ]
    assert len(encoded) == 1


def test_the_picture_shows_each_sentence_in_every_language(context, models, toy):
    evaluate(context, model=models["model"], parallel=[toy.source("test")], picture_sentences=2)
    picture = json.loads((context.output / "similarity.json").read_text(encoding="utf-8"))
    texts = [text for row in toy.test[:2] for text in row]
    labels = [f"{language}: {text}" for language, text in zip(["en", "de", "fr"] * 2, texts, strict=True)]
    assert picture.keys() == {"labels", "rows", "matrix"}
    assert picture["labels"] == picture["rows"] == labels
    vectors = SentenceEncoder.load(models["model"]).encode(texts, precision="fp32").astype(np.float64)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(picture["matrix"], units @ units.T, atol=1e-5)


def test_the_headlines_of_the_report_are_means_of_the_metrics(context, models, toy, tmp_path):
    sts = {"a": sts_file(tmp_path / "a.tsv", [row[0] for row in toy.test])}
    metrics = evaluate(context, **models, parallel=[toy.source("test")], sts=sts, recall_at=3)
    accuracy, correlation, recall = read_report(context.output).headlines
    for headline, names in (
        (accuracy, ["translation_accuracy/de-en", "translation_accuracy/fr-en"]),
        (correlation, ["sts/a/spearman_cosine"]),
        (recall, ["recall_at_3/de", "recall_at_3/fr"]),
    ):
        for field, end in (("value", ""), ("low", "_low"), ("high", "_high")):
            assert getattr(headline.measure, field) == pytest.approx(np.mean([metrics[name + end] for name in names]))
    assert recall.beside[0].value == metrics["recall_at_3/en"]
    assert {row: measures[0].value for row, measures in accuracy.chart.rows.items()} == {
        language: metrics[f"translation_accuracy/{language}-en"] for language in ("de", "fr")
    }


def test_with_a_teacher_of_another_size_similarities_are_compared_only_and_nothing_is_searched(
    context, models, toy, tiny_encoder, tmp_path, encoded, capfd
):
    tiny_encoder("bert", ["a dog"], pooling=["cls", "mean"]).save(tmp_path / "wide")
    sets = {"model": models["model"], "teacher": str(tmp_path / "wide"), "parallel": [toy.source("test")]}
    with pytest.raises(RequestError, match=r"recall_at: expected vectors of one size .* 16 dimensions .* 32 of the"):
        evaluate(context, **sets, recall_at=3)
    assert not encoded
    metrics = evaluate(context, **sets)
    assert "only the agreement of similarities is measured" in capfd.readouterr().err
    measured = {name.rpartition("/")[0] for name in metrics if name.startswith(("nearness", "mse", "recall"))}
    assert measured == {"nearness/agreement"}
