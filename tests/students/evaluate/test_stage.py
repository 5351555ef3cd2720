import json
from itertools import permutations
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.sparse import csr_matrix
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import TranslationEvaluator

from bertrelay.errors import RequestError, WorkError
from bertrelay.evaluation.similarity import METRICS
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.settings import Metric
from students import shrink, similarity
from students.evaluate.settings import EvaluateSettings
from students.evaluate.stage import best_by_dice, lookup_metrics, run
from students.evaluate.translation import save_variance, translation_metrics
from students.parallel.pairs import Translations
from teachers.pairs.model import start_cross_encoder


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

    def spy(self, sentences, **given):
        calls.append((self.backbone.config.model_type, list(sentences)))
        return encode(self, sentences, **given)

    monkeypatch.setattr(SentenceEncoder, "encode", spy)
    return calls


def evaluate(context, **given):
    return run(EvaluateSettings.model_validate({"precision": "fp32", **given}), context)


def sts_file(path, sentences, pairs=12):
    rows = [f"{sentences[i]}\t{sentences[i + 1]}\t{i * 7 % 5}" for i in range(pairs)]
    path.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n", encoding="utf-8")
    return {"path": str(path)}


def figures(*names):
    return {f"{name}{end}" for name in names for end in ("", "_low", "_high")}


def test_one_encoding_serves_all_figures_and_they_have_the_designs_names(context, models, toy, tmp_path, encoded):
    english, german, french = zip(*toy.test, strict=True)
    de, en = sts_file(tmp_path / "de.tsv", german), sts_file(tmp_path / "en.tsv", english)
    sts = {"de": de, "en-de": {**en, "second": de["path"]}}
    metrics = evaluate(context, **models, parallel=[toy.source("test")], sts=sts, lookup=[toy.source()])
    directions = ("en-de", "de-en", "en-fr", "fr-en")
    sizes = {name: metrics.pop(name) for name in ("sentences/de", "sentences/fr", "sts/de/pairs", "sts/en-de/pairs")}
    assert [*sizes.values()] == [len(english), len(english), 12, 12]
    assert set(metrics) == figures(
        *(f"{name}/{direction}" for name in ("translation_accuracy", "lookup_accuracy") for direction in directions),
        *(f"sts/{name}/spearman_cosine" for name in sts),
    ) | {"mse/en", "mse/de", "mse/fr"}
    assert [kind for kind, _ in encoded] == ["xlm-roberta", "bert"]
    seen, taught = (sentences for _, sentences in encoded)
    assert sorted(seen) == sorted({*english, *german, *french})
    assert sorted(taught) == sorted(english)


def test_figures_are_those_of_arithmetic_on_the_vectors(context, models, toy, tmp_path):
    english, german, french = zip(*toy.test, strict=True)
    save_variance(2.5, Path(models["model"]))
    en = sts_file(tmp_path / "en.tsv", english)
    en["second"] = sts_file(tmp_path / "fr.tsv", french)["path"]
    metrics = evaluate(context, **models, parallel=[toy.source("test")], sts={"en-fr": en}, dimensions=[3])
    student, teacher = (SentenceEncoder.load(folder) for folder in models.values())
    vectors = {name: student.encode(side, precision="fp32").astype(np.float64) for name, side in
               (("en", english), ("de", german), ("fr", french))}  # fmt: skip
    wanted = teacher.encode(english, precision="fp32").astype(np.float64)
    for language in ("en", "de", "fr"):
        squares = (vectors[language] - wanted) ** 2
        assert metrics[f"mse/{language}"] == pytest.approx(squares.mean(), rel=1e-4)
        assert metrics[f"mse_relative/{language}"] == pytest.approx(squares.sum(axis=1).mean() / 2.5, rel=1e-4)
    for place, dim in (("", 16), ("3-dimensions/", 3)):
        kept = {name: each[:, :dim] for name, each in vectors.items()}
        units = {name: each / np.linalg.norm(each, axis=1, keepdims=True) for name, each in kept.items()}
        for language in ("de", "fr"):
            table = units["en"] @ units[language].T
            for direction, rows in ((f"en-{language}", table.argmax(1)), (f"{language}-en", table.argmax(0))):
                assert metrics[f"translation_accuracy/{place}{direction}"] == np.mean(rows == np.arange(50))
        cosines = np.sum(units["en"][:12] * units["fr"][1:13], axis=1)
        scores = np.array([i * 7 % 5 for i in range(12)])
        assert metrics[f"sts/en-fr/{place}spearman_cosine"] == pytest.approx(spearmanr(cosines, scores).statistic)


def test_a_prompt_precedes_each_sentence_of_every_set(context, models, toy, tmp_path):
    """As if it stood in the files, for a model that does not leave its tokens out of the pooling."""
    (tmp_path / "en.tsv").write_text(
        "sentence1\tsentence2\tscore\n"
        + "".join(f"{row[0]}\t{row[1]}\t{place * 7 % 5}\n" for place, row in enumerate(toy.test[:12]))
    )
    (tmp_path / "prompted.tsv").write_text(
        "sentence1\tsentence2\tscore\n"
        + "".join(f"Katze {row[0]}\tKatze {row[1]}\t{place * 7 % 5}\n" for place, row in enumerate(toy.test[:12]))
    )
    lines = [f"Katze {row[0]}\tKatze {row[1]}\tKatze {row[2]}" for row in toy.test]
    (tmp_path / "all.tsv").write_text("\n".join(["en\tde\tfr", *lines]))
    prompted = {"path": str(tmp_path / "all.tsv"), "others": {"de": "de", "fr": "fr"}}
    model, kept = models["model"], {"picture_sentences": 2}
    plain, wanted = (
        evaluate(context, model=model, parallel=[source], sts={"s": {"path": str(tmp_path / name)}}, **kept)
        for source, name in ((toy.source("test"), "en.tsv"), (prompted, "prompted.tsv"))
    )
    given = {"parallel": [toy.source("test")], "sts": {"s": {"path": str(tmp_path / "en.tsv")}}}
    found = evaluate(context, model=model, prompt={"text": "Katze "}, **given, **kept)
    assert found == pytest.approx(wanted, abs=1e-6) and found != pytest.approx(plain, abs=1e-6)
    with pytest.raises(RequestError, match=r"prompt: expected no name, as the model has no prompts, found .query."):
        evaluate(context, model=model, prompt="query", **given)


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


def test_two_sentences_that_a_model_does_not_tell_apart_are_either_right():
    """An uncased model has one vector for both; as sentences among others each finds its translation."""
    vectors = np.eye(3, dtype=np.float32)[[0, 1, 2, 1]]
    accuracies = translation_metrics("de", (vectors, vectors))
    assert accuracies == {"translation_accuracy/en-de": 1, "translation_accuracy/de-en": 1}
    collapsed = np.ones((4, 3), np.float32)
    assert set(translation_metrics("de", (collapsed, collapsed)).values()) == {0}, "a model that tells nothing apart"


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
        for asked in ({"layers": 1}, {"intermediate_size": 8}, {"dimensions": 8}):
            with pytest.raises(error, match=message):
                shrink(model, [row[0] for row in toy.test], **asked)
    for asked in ({"model": "pairs"}, {"model": "teacher", "teacher": "pairs"}):
        given = {key: str(tmp_path / name) for key, name in asked.items()}
        with pytest.raises(RequestError, match="a network that scores pairs"):
            evaluate(context, **given, parallel=[toy.source("test")])


def test_a_set_without_a_pair_and_a_dictionary_without_words_are_refused(context, models, toy, tmp_path):
    (tmp_path / "empty.tsv").write_text("en\tde\n\t\n")
    (tmp_path / "marks.tsv").write_text("en\tde\n!\t?\n")
    empty, marks = ({"path": str(tmp_path / name), "others": {"de": "de"}} for name in ("empty.tsv", "marks.tsv"))
    for given in ({"parallel": [empty]}, {"parallel": [toy.source("test")], "xsim": {"parallel": [empty]}}):
        with pytest.raises(RequestError, match=r"parallel: .*: expected pairs of en and de, found none"):
            evaluate(context, model=models["model"], **given)
    with pytest.raises(RequestError, match="lookup: expected words in en and de"):
        evaluate(context, model=models["model"], parallel=[toy.source("test")], lookup=[marks])


def test_what_was_not_asked_for_is_absent_and_not_0(context, models, toy):
    metrics = evaluate(context, model=models["model"], parallel=[toy.source("test")])
    assert not [name for name in metrics if name.startswith(("mse", "sts", "lookup"))]


def test_a_student_searches_its_teachers_index_in_every_language(context, models, toy, encoded):
    metrics = evaluate(context, **models, parallel=[toy.source("test")], recall_at=3)
    english, *others = zip(*toy.test, strict=True)
    student, teacher = (SentenceEncoder.load(folder) for folder in models.values())
    found = teacher.encode(english, precision="fp32", normalize_embeddings=True)
    for language, queries in zip(("en", "de", "fr"), (english, *others), strict=True):
        cosines = student.encode(queries, precision="fp32", normalize_embeddings=True) @ found.T
        hits = [row in np.argsort(-cosines[row])[:3] for row in range(len(english))]
        assert metrics[f"recall_at_3/{language}"] == np.mean(hits)
    assert figures("recall_at_3/en", "recall_at_3/de", "recall_at_3_ratio/fr") <= set(metrics)
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
    assert set(metrics) == figures(*(f"xsim_error/{name}/{pair}" for name in "ab" for pair in directions))
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


def test_a_teacher_of_another_size_is_refused_before_anything_is_encoded(
    context, models, toy, tiny_encoder, tmp_path, encoded
):
    tiny_encoder("bert", ["a dog"], pooling=["cls", "mean"]).save(tmp_path / "wide")
    with pytest.raises(RequestError, match="the model's 16 dimensions, found 32"):
        evaluate(context, model=models["model"], teacher=str(tmp_path / "wide"), parallel=[toy.source("test")])
    assert not encoded


NOUNS = {"dog": "perro", "cat": "gato", "bird": "pájaro", "horse": "caballo", "mouse": "ratón"}
VERBS = {"sees": "ve", "hears": "oye", "seeks": "busca"}


def pairs(reorder=False):
    """`dog sees cat` and word for word what it is, or with the words in an order that does not tell who sees whom."""
    english, other = [], []
    for subject, object_ in permutations(NOUNS, 2):
        for verb, translated in VERBS.items():
            words = [NOUNS[subject], translated, NOUNS[object_]]
            english.append(f"{subject} {verb} {object_}")
            other.append(" ".join(sorted(words, reverse=True) if reorder else words))
    return Translations(english, other)


def test_dice_chooses_the_translation_by_hand():
    english = csr_matrix([[1, 1, 0], [1, 1, 0], [1, 0, 1]])  # of the sentences "a b", "a b", "a c"
    other = csr_matrix([[1, 0], [1, 0], [0, 1]])  # "x", "x", "y"
    # x with a: 2·2/(2+3), with b: 2·2/(2+2); y with a: 2·1/(1+3), with c: 2·1/(1+1).
    assert best_by_dice(other, english).toarray().tolist() == [[0, 1, 0], [0, 0, 1]]


def test_a_dictionary_solves_reordered_words_and_not_who_does_what_to_whom():
    half = lookup_metrics("es", pairs(), pairs(reorder=True))  # both readings are one Spanish text; one is drawn
    assert half["lookup_accuracy/en-es"] == 1 and half["lookup_accuracy/es-en"] == 0.5
    unseen = Translations(["dog sees cat", "zebra grazes"], ["perro ve gato", "cebra pasta"])
    assert lookup_metrics("es", pairs(), unseen)["lookup_accuracy/es-en"] == 0.5


KNOWN = {"east": (4.0, 3.0), "north": (3.0, 4.0), "west": (-4.0, 3.0), "nowhere": (0.0, 0.0)}
# Of east with north, with west and with nowhere, by hand.
EAST: dict[Metric, list[float]] = {
    "cosine": [24 / 25, -7 / 25, 0],
    "dot": [24, -7, 0],
    "euclidean": [-sqrt(2), -8, -5],
    "manhattan": [-2, -8, -7],
}
WEST_WITH_NORTH: dict[Metric, float] = {"cosine": 0, "dot": 0, "euclidean": -sqrt(50), "manhattan": -8}


@pytest.fixture
def encoder(tiny_encoder, monkeypatch):
    """Gives each word its known vector, and zeros in the other dimensions."""
    made, words = tiny_encoder("bert", list(KNOWN)), list(KNOWN)
    vectors = torch.zeros(len(words), made.dim)
    vectors[:, :2] = torch.tensor(list(KNOWN.values()))
    monkeypatch.setattr(made, "tokenize", lambda texts: [[words.index(text)] for text in texts])
    monkeypatch.setattr(made, "forward", lambda ids, *_: vectors[ids[:, 0]])
    return made


@pytest.mark.parametrize("metric", METRICS)
def test_pairs_and_matrices_are_what_arithmetic_by_hand_gives(metric, encoder):
    others = ["north", "west", "nowhere"]
    pairs = similarity(encoder, ["east"] * 3, others, metric)
    np.testing.assert_allclose(pairs, EAST[metric], rtol=1e-6, atol=1e-6)
    table = similarity(encoder, ["east", "west"], others, metric, matrix=True)
    assert table.shape == (2, 3)
    np.testing.assert_allclose(table[0], EAST[metric], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(table[1, 0], WEST_WITH_NORTH[metric], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("sides", "asked", "message"),
    [
        (["east", "north"], {}, "one string; write"),
        ([["east", None], ["north", "west"]], {}, "NoneType at position 1"),
        ([["east"]], {}, "found 1 sentences.*matrix=True"),
        ([[], []], {}, "found 0 and 0 sentences"),
        ([["east"], []], {"matrix": True}, "found 1 and 0 sentences"),
        ([["east"], ["west"]], {"metric": "cosin"}, "metric: expected cosine, dot"),
    ],
)
def test_what_cannot_be_compared_is_refused(sides, asked, message, encoder):
    with pytest.raises(RequestError, match=message):
        similarity(encoder, *sides, **asked)
