import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertrelay.data.records import Rejects
from bertrelay.distributed import ProcessGroup
from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.stage import Metrics, StageContext
from students.evaluate import read_translations, run
from students.settings import AlignedFiles, EvaluateSettings
from students.targets import save_variance

MakeEncoder = Callable[..., SentenceEncoder]
Calls = list[tuple[str, list[str]]]


@pytest.fixture
def models(tiny_encoder: MakeEncoder, toy: Any, tmp_path: Path) -> dict[str, str]:
    """A student and a teacher on disk."""
    rows = [*toy.train, *toy.test]
    tiny_encoder("xlm-roberta", [text for row in rows for text in row]).save(tmp_path / "student")
    tiny_encoder("bert", [row[0] for row in rows]).save(tmp_path / "teacher")
    return {"model": str(tmp_path / "student"), "teacher": str(tmp_path / "teacher")}


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Every call of `encode`: the kind of network, and the sentences."""
    calls: Calls = []
    encode = SentenceEncoder.encode

    def spy(self: SentenceEncoder, sentences: Sequence[str], **given: Any) -> np.ndarray:
        calls.append((self.backbone.config.model_type, list(sentences)))
        return encode(self, sentences, **given)

    monkeypatch.setattr(SentenceEncoder, "encode", spy)
    return calls


def evaluate(context: StageContext, **given: Any) -> Metrics:
    return run(EvaluateSettings.model_validate({"precision": "fp32", **given}), context)


def sts_file(path: Path, sentences: Sequence[str], pairs: int = 12) -> dict[str, Any]:
    rows = [f"{sentences[i]}\t{sentences[i + 1]}\t{i * 7 % 5}" for i in range(pairs)]
    path.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n", encoding="utf-8")
    return {"path": str(path)}


def figures(*names: str) -> set[str]:
    return {f"{name}{end}" for name in names for end in ("", "_low", "_high")}


def test_one_encoding_serves_all_figures_and_they_have_the_designs_names(
    context: StageContext, models: dict[str, str], toy: Any, tmp_path: Path, encoded: Calls
) -> None:
    english, german, french = zip(*toy.test, strict=True)
    de, en = sts_file(tmp_path / "de.tsv", german), sts_file(tmp_path / "en.tsv", english)
    sts = {"de": de, "en-de": {**en, "second": de["path"]}}
    metrics = evaluate(context, **models, parallel=[toy.source("test")], sts=sts, lookup=[toy.source()])
    directions = ("en-de", "de-en", "en-fr", "fr-en")
    assert set(metrics) == figures(
        *(f"{name}/{direction}" for name in ("translation_accuracy", "lookup_accuracy") for direction in directions),
        *(f"sts/{name}/spearman_cosine" for name in sts),
    ) | {"mse/en", "mse/de", "mse/fr"}
    assert [kind for kind, _ in encoded] == ["xlm-roberta", "bert"]
    seen, taught = (sentences for _, sentences in encoded)
    assert sorted(seen) == sorted({*english, *german, *french})
    assert sorted(taught) == sorted(english)


def test_figures_are_those_of_arithmetic_on_the_vectors(
    context: StageContext, models: dict[str, str], toy: Any, tmp_path: Path
) -> None:
    english, german, french = zip(*toy.test, strict=True)
    save_variance(2.5, Path(models["model"]))
    en = sts_file(tmp_path / "en.tsv", english)
    en["second"] = sts_file(tmp_path / "fr.tsv", french)["path"]
    metrics = evaluate(context, **models, parallel=[toy.source("test")], sts={"en-fr": en})
    student, teacher = (SentenceEncoder.load(folder) for folder in models.values())
    vectors = {name: student.encode(side, precision="fp32").astype(np.float64) for name, side in
               (("en", english), ("de", german), ("fr", french))}  # fmt: skip
    wanted = teacher.encode(english, precision="fp32").astype(np.float64)
    units = {name: each / np.linalg.norm(each, axis=1, keepdims=True) for name, each in vectors.items()}
    for language in ("en", "de", "fr"):
        squares = (vectors[language] - wanted) ** 2
        assert metrics[f"mse/{language}"] == pytest.approx(squares.mean(), rel=1e-4)
        assert metrics[f"mse_relative/{language}"] == pytest.approx(squares.sum(axis=1).mean() / 2.5, rel=1e-4)
    for language in ("de", "fr"):
        table = units["en"] @ units[language].T
        for direction, rows in ((f"en-{language}", table.argmax(1)), (f"{language}-en", table.argmax(0))):
            assert metrics[f"translation_accuracy/{direction}"] == np.mean(rows == np.arange(50))
    cosines = np.sum(units["en"][:12] * units["fr"][1:13], axis=1)
    scores = np.array([i * 7 % 5 for i in range(12)])
    from scipy.stats import spearmanr

    assert metrics["sts/en-fr/spearman_cosine"] == pytest.approx(spearmanr(cosines, scores).statistic)


def test_what_was_not_asked_for_is_absent_and_not_0(context: StageContext, models: dict[str, str], toy: Any) -> None:
    metrics = evaluate(context, model=models["model"], parallel=[toy.source("test")])
    assert not [name for name in metrics if name.startswith(("mse", "sts", "lookup"))]
    assert evaluate(context, **models, parallel=[toy.source("test")]).keys() - metrics.keys() == {
        "mse/en", "mse/de", "mse/fr",
    }  # fmt: skip


def test_the_picture_shows_each_sentence_in_every_language(
    context: StageContext, models: dict[str, str], toy: Any
) -> None:
    evaluate(context, model=models["model"], parallel=[toy.source("test")], picture_sentences=2)
    picture = json.loads((context.output / "similarity.json").read_text(encoding="utf-8"))
    texts = [text for row in toy.test[:2] for text in row]
    labels = [f"{language}: {text}" for language, text in zip(["en", "de", "fr"] * 2, texts, strict=True)]
    assert picture.keys() == {"labels", "rows", "matrix"}
    assert picture["labels"] == picture["rows"] == labels
    vectors = SentenceEncoder.load(models["model"]).encode(texts, precision="fp32").astype(np.float64)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(picture["matrix"], units @ units.T, atol=1e-5)


def test_no_picture_when_none_is_asked_for(context: StageContext, models: dict[str, str], toy: Any) -> None:
    evaluate(context, model=models["model"], parallel=[toy.source("test")], picture_sentences=0)
    assert not (context.output / "similarity.json").exists()


def test_pairs_with_an_empty_side_are_left_out_and_told(
    context: StageContext, models: dict[str, str], toy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    english, german, _ = zip(*toy.test, strict=True)
    (tmp_path / "x.en").write_text("\n".join(english) + "\n")
    (tmp_path / "x.de").write_text("\n".join(["", *german[1:30], " ", *german[31:]]) + "\n", encoding="utf-8")
    files = {"english": str(tmp_path / "x.en"), "other": str(tmp_path / "x.de"), "language": "de"}
    evaluate(context, model=models["model"], parallel=[files])
    assert "left out 2 pairs with an empty side" in capsys.readouterr().err
    left = read_translations([AlignedFiles(**files)], context, Rejects(None))["de"]
    whole = [row for row in range(50) if row not in (0, 30)]
    assert left == ([english[row] for row in whole], [german[row] for row in whole])


def test_files_that_are_not_aligned_are_told_with_lines(
    context: StageContext, models: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "x.en").write_text("one\ntwo\nthree\n")
    (tmp_path / "x.de").write_text("eins\nzwei\n")
    files = {"english": str(tmp_path / "x.en"), "other": str(tmp_path / "x.de"), "language": "de"}
    with pytest.raises(RequestError, match=r"has 3 rows and the second 2: line 3 of .*x\.en has no partner"):
        evaluate(context, model=models["model"], parallel=[files])


def test_a_teacher_of_another_size_is_refused_before_anything_is_encoded(
    context: StageContext, models: dict[str, str], toy: Any, tiny_encoder: MakeEncoder, tmp_path: Path, encoded: Calls
) -> None:
    tiny_encoder("bert", ["a dog"], pooling=["cls", "mean"]).save(tmp_path / "wide")
    with pytest.raises(RequestError, match="the model's 16 dimensions, found 32"):
        evaluate(context, model=models["model"], teacher=str(tmp_path / "wide"), parallel=[toy.source("test")])
    assert not encoded


def test_only_the_main_process_scores(context: StageContext, models: dict[str, str], toy: Any, encoded: Calls) -> None:
    second = StageContext(context.output, context.cache, ProcessGroup(rank=1, size=2))
    assert evaluate(second, **models, parallel=[toy.source("test")]) == {}
    assert not encoded
