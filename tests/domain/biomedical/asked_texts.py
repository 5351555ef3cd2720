"""Made-up texts of plain words with a disease and a chemical in them, one of which a question asks for."""

from pathlib import Path
from typing import Literal

import numpy as np

from domain.biomedical.qa.question_files import write_questions
from domain.biomedical.qa.questions import Answer, Question

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
