"""Synthetic texts of plain words with a disease and a chemical in them, one of which a question asks for."""

import json
from typing import Literal, NamedTuple

import numpy as np
import pytest

from bertrelay.errors import Stopped
from bertrelay.training.loop import Training
from domain.biomedical.ner import model as ner
from domain.biomedical.ner.settings import NerSettings
from domain.biomedical.qa import model as qa
from domain.biomedical.qa.data import Answer, Question
from domain.biomedical.qa.predict import answer_blocks
from domain.biomedical.qa.question_files import write_questions
from domain.biomedical.qa.settings import QaSettings
from domain.biomedical.qa.spans import probabilities

Kind = Literal["disease", "chemical"]

PLAIN = ["the", "patient", "was", "after", "a", "course", "of", "and", "with", "no", "sign", "in", "seen"]
MENTIONS = {
    "disease": ["flu", "asthma", "gout", "angina pectoris", "migraine", "type two diabetes"],
    "chemical": ["aspirin", "lithium", "gold salts", "insulin"],
}
ASKED = {"disease": "mild", "chemical": "given"}
WORDS = 64


def random_question(generator, name, words_before=None, mention=None, impossible=False, words=WORDS):
    """A question to a text of `words` plain ones, in which the answer follows `words_before` of them.

    A mention of the other kind comes later, or anywhere when `words_before` is absent. impossible: it comes alone.
    """
    kind = "disease" if mention in MENTIONS["disease"] or generator.random() < 0.5 else "chemical"
    other = "chemical" if kind == "disease" else "disease"
    mention = mention or str(generator.choice(MENTIONS[kind]))
    plain = [str(word) for word in generator.choice(PLAIN, words)]
    at = int(generator.integers(0, words + 1)) if words_before is None else words_before
    later = int(generator.integers(0 if words_before is None else at, words + 1))
    inserted = str(generator.choice(MENTIONS[other]))
    if impossible:
        return Question(name, ASKED[kind], " ".join([*plain[:later], inserted, *plain[later:]]), impossible=True)
    listed = [*plain[:at], mention, *plain[at:]]
    if later != at or words_before is None:
        listed.insert(later if later < at else later + 1, inserted)
    start = sum(len(word) + 1 for word in listed[: at + (later < at)])
    return Question(name, ASKED[kind], " ".join(listed), (Answer(mention, start),), document=f"text {name}")


def many(count, seed, impossible=0.2, **more):
    """`count` questions, of which a fraction has no answer."""
    generator = np.random.default_rng(seed)
    drawn = [bool(generator.random() < impossible) for _ in range(count)]
    return [
        random_question(generator, f"{seed}-{n}", impossible=is_impossible, **more)
        for n, is_impossible in enumerate(drawn)
    ]


def write(path, questions):
    """A file of questions, as settings name it."""
    write_questions(path, questions, overwrite=True)
    return {"path": str(path)}


def start_tagger(base, labels, **more):
    """A model before its first step."""
    settings = NerSettings.model_validate({"base": str(base), "train": [{"path": "none.tsv"}], **more})
    return ner.start_model(settings, labels)


def start_answerer(base, **more):
    """A model before its first step."""
    return qa.start_model(QaSettings.model_validate({"base": str(base), "train": [{"path": "none.jsonl"}], **more}))


def edit(file, **values):
    """Sets keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def remove_padding(folder):
    """From the tokenizer of a model."""
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        edit(folder / name, pad_token=None)


class Found(NamedTuple):
    start: int
    end: int
    score: float
    probability: float


def find_answers(model, questions, *, top=5, **options):
    """The candidates of each question, the best first; none for one that is too long."""
    for block in answer_blocks(model, questions, **options):
        for _, spans in block:
            ranked = spans and spans.with_no_answer(model.threshold)
            columns = (*ranked[1:4], probabilities([ranked], model.temperature)[0].tolist()) if ranked else ()
            yield [Found(*candidate) for candidate in zip(*columns, strict=False)][:top]


def ask(question, context, name=""):
    return Question(name, question, context)


def stopped_and_resumed(learn, folder):
    """The files of `learn(folder)`'s model: without an interruption, and stopped by a signal and resumed."""

    def stop(training, evaluate=Training._evaluate):
        evaluate(training)
        raise Stopped("stopped", 15)

    learn(folder / "whole")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Training, "_evaluate", stop)
        learn(folder / "stopped")
    learn(folder / "stopped")
    return [
        {file.name: file.read_bytes() for file in (folder / name).rglob("model/*") if file.is_file()}
        for name in ("whole", "stopped")
    ]
