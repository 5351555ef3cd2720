"""Made-up texts of plain words with a disease and a chemical in them, one of which a question asks for."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from bertrelay.errors import Stopped
from domain.biomedical.ner import model as ner
from domain.biomedical.ner.decoding import LabelSet
from domain.biomedical.ner.settings import NerSettings
from domain.biomedical.qa import model as qa
from domain.biomedical.qa.answerer import answered_blocks
from domain.biomedical.qa.question_files import write_questions
from domain.biomedical.qa.questions import Answer, Question
from domain.biomedical.qa.settings import QaSettings

Kind = Literal["disease", "chemical"]

PLAIN = ["the", "patient", "was", "after", "a", "course", "of", "and", "with", "no", "sign", "in", "seen"]
MENTIONS: dict[Kind, list[str]] = {
    "disease": ["flu", "asthma", "gout", "angina pectoris", "migraine", "type two diabetes"],
    "chemical": ["aspirin", "lithium", "gold salts", "insulin"],
}
ASKED: dict[Kind, str] = {"disease": "mild", "chemical": "given"}
WORDS = 64


def asked(
    generator: np.random.Generator,
    name: str,
    place: int | None = None,
    mention: str | None = None,
    impossible: bool = False,
    words: int = WORDS,
) -> Question:
    """A question to a text of `words` plain ones, in which one mention of the kind asked for follows `place` of them.

    The mention of the other kind comes later, or anywhere when `place` is not given. impossible: it comes alone.
    """
    kind: Kind = "disease" if mention in MENTIONS["disease"] or generator.random() < 0.5 else "chemical"
    other: Kind = "chemical" if kind == "disease" else "disease"
    mention = mention or str(generator.choice(MENTIONS[kind]))
    plain = [str(word) for word in generator.choice(PLAIN, words)]
    at = int(generator.integers(0, words + 1)) if place is None else place
    later = int(generator.integers(0 if place is None else at, words + 1))
    before, after = " ".join(plain[:at]), " ".join(plain[at:])
    inserted = str(generator.choice(MENTIONS[other]))
    if impossible:
        return Question(name, ASKED[kind], " ".join([*plain[:later], inserted, *plain[later:]]), impossible=True)
    if later < at:
        before = " ".join([*plain[:later], inserted, *plain[later:at]])
    elif later > at or place is None:
        after = " ".join([*plain[at:later], inserted, *plain[later:]])
    context = " ".join(part for part in (before, mention, after) if part)
    start = len(before) + bool(before)
    return Question(name, ASKED[kind], context, (Answer(mention, start),), document=f"text {name}")


def many(count: int, seed: int, impossible: float = 0.2, **more: int) -> list[Question]:
    """So many of them, a share of which has no answer."""
    generator = np.random.default_rng(seed)
    drawn = [bool(generator.random() < impossible) for _ in range(count)]
    return [asked(generator, f"{seed}-{n}", impossible=each, **more) for n, each in enumerate(drawn)]


def write(path: Path, questions: list[Question]) -> dict[str, str]:
    """A file of questions, as settings name it."""
    write_questions(path, questions)
    return {"path": str(path)}


def start_tagger(base: Path, labels: LabelSet, **more: Any) -> ner.EntityModel:
    """A model before its first step."""
    settings = NerSettings.model_validate({"base": str(base), "train": [{"path": "none.tsv"}], **more})
    return ner.start_model(settings, labels)


def start_answerer(base: Path, **more: Any) -> qa.AnswerModel:
    """A model before its first step."""
    return qa.start_model(QaSettings.model_validate({"base": str(base), "train": [{"path": "none.jsonl"}], **more}))


def edit(file: Path, **values: object) -> None:
    """Sets keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def remove_padding(folder: Path) -> None:
    """From the tokenizer of a model."""
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        edit(folder / name, pad_token=None)


class Found(NamedTuple):
    start: int
    end: int
    score: float
    probability: float


def find_answers(
    model: qa.AnswerModel, questions: Iterable[Question], *, top: int = 5, **options: Any
) -> Iterator[list[Found]]:
    """The choices of each question, the best first; none for one that is too long."""
    for _, is_too_long, nbest in answered_blocks(model, questions, **options):
        ranked = nbest.with_no_answer(model.threshold).ranked(model.temperature, top)
        for is_out, choices in zip(is_too_long, ranked, strict=True):
            yield [] if is_out else [Found(*each[1:]) for each in choices]


def ask(question: str, context: str, name: str = "") -> Question:
    return Question(name, question, context)


def stopping_after(evaluate: Any) -> Any:
    """The evaluation in training, after which a signal arrives."""

    def stop(self: Any, criterion: str) -> None:
        evaluate(self, criterion)
        self._save()
        raise Stopped("stopped", 15)

    return stop
