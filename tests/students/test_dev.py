from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertrelay.encoder import SentenceEncoder
from bertrelay.stage import StageContext
from students.distill import CRITERION, DevData, dev_data, dev_metrics
from students.parallel.corpus import ParallelCorpus
from students.targets import fill_targets

MakeEncoder = Callable[..., SentenceEncoder]


@pytest.fixture
def corpus(toy: Any, tmp_path: Path) -> ParallelCorpus:
    return toy.corpus(tmp_path / "corpora", dev_sentences=30)


@pytest.fixture
def dev(tiny_encoder: MakeEncoder, corpus: ParallelCorpus, context: StageContext) -> DevData:
    teacher = tiny_encoder("bert", corpus.english.read(0, 100))
    return dev_data(corpus, teacher, fill_targets(teacher, corpus, context, "key", "fp32"), "fp32")


@pytest.fixture
def student(tiny_encoder: MakeEncoder, corpus: ParallelCorpus) -> SentenceEncoder:
    return tiny_encoder("xlm-roberta", corpus.texts(0, len(corpus)), seed=4)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return first @ second.T / np.linalg.norm(first, axis=1)[:, None] / np.linalg.norm(second, axis=1)[None, :]


def test_dev_figures_are_those_of_arithmetic_on_the_vectors(student: SentenceEncoder, dev: DevData) -> None:
    figures = dev_metrics(student, dev, "fp32")
    english_sentences = list(dev.teacher.rows)
    assert len(english_sentences) == 30
    teacher_vectors = dict(zip(english_sentences, dev.teacher.matrix.astype(np.float64), strict=True))
    expected: dict[str, float] = {}
    for language, sides in {**dev.pairs, "en": None}.items():
        texts, english = (english_sentences, english_sentences) if sides is None else (sides.other, sides.english)
        vectors = student.encode(texts, precision="fp32").astype(np.float64)
        distances = vectors - np.stack([teacher_vectors[sentence] for sentence in english])
        expected[f"dev/mse/{language}"] = np.mean(distances**2)
        expected[f"dev/mse_relative/{language}"] = np.mean(np.sum(distances**2, axis=1)) / dev.variance
        if sides is not None:
            table = cosines(student.encode(english, precision="fp32"), vectors)
            found = {f"en-{language}": table.argmax(axis=1), f"{language}-en": table.argmax(axis=0)}
            for direction, rows in found.items():
                expected[f"dev/translation_accuracy/{direction}"] = np.mean(rows == np.arange(len(texts)))
    relative = [expected[f"dev/mse_relative/{language}"] for language in ("en", "de", "fr")]
    assert figures == {
        **{name: pytest.approx(value, rel=1e-4) for name, value in expected.items()},
        CRITERION: pytest.approx(1 - np.mean(relative), rel=1e-4),
    }


def test_one_encoding_of_each_sentence_serves_all_figures(
    student: SentenceEncoder, dev: DevData, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    encode = student.encode

    def spy(sentences: list[str], **given: Any) -> np.ndarray:
        calls.append(sentences)
        return encode(sentences, **given)

    monkeypatch.setattr(student, "encode", spy)
    dev_metrics(student, dev, "fp32")
    [sentences] = calls
    assert len(sentences) == len(set(sentences)) == 30 * 3


def test_the_teacher_itself_explains_all_of_its_variance(
    tiny_encoder: MakeEncoder, corpus: ParallelCorpus, dev: DevData
) -> None:
    teacher = tiny_encoder("bert", corpus.english.read(0, 100))
    own = {language: sides._replace(other=sides.english) for language, sides in dev.pairs.items()}
    itself = DevData(own, dev.teacher, dev.variance)
    assert dev_metrics(teacher, itself, "fp32")[CRITERION] == pytest.approx(1, abs=1e-6)
