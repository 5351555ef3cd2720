"""What the readers of all formats give, and what makes a question sound."""

import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bertrelay.data.readers import open_input
from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from domain.biomedical.annotations import Unfit
from domain.biomedical.answers.placing import placed
from domain.biomedical.answers.questions import Answer, Question
from domain.biomedical.formats.items import LeftOut
from domain.biomedical.formats.json_window import JsonWindow

Item = Question | Unusable | LeftOut
"""What a format's reader gives: questions, those that cannot be used, and what it reads over."""

NOWHERE = "an answer that does not stand in its context where it should, nor a few characters beside it"
NO_CONTEXT = "a question without a context"
NO_QUESTION = "an empty question"
NO_ANSWER = "an empty answer"
CONTRADICTION = "an impossible question with an answer"
DUPLICATE = "an id that another question has"


@contextmanager
def json_window(path: Path) -> Iterator[JsonWindow]:
    """A JSON file, unpacked where it is gzip. Raises RequestError for one that is cut off, damaged or not UTF-8."""
    with open_input(str(path)) as stream:
        window = JsonWindow(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""), str(path))
        try:
            yield window
        except (UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
            raise RequestError(
                f"{path}, after line {window.line:,}: cut off, damaged or not UTF-8 ({type(error).__name__}). "
                "Fetch or write it again."
            ) from None


def name_of(contexts: Iterable[str]) -> str:
    """A name for an article that has none, made of its text."""
    digest = hashlib.blake2b("\0".join(contexts).encode(errors="surrogatepass"), digest_size=8)
    return f"article-{digest.hexdigest()}"


def placed_answers(context: str, told: Sequence[Answer]) -> tuple[tuple[Answer, ...], tuple[str, ...], tuple[str, ...]]:
    """The answers where they stand, the texts of those that stand nowhere, and how each one was placed.

    Raises Unfit when none of several can be placed, and for an empty one.
    """
    if any(not answer.text.strip() for answer in told):
        raise Unfit(NO_ANSWER, "give it its text, or leave it out")
    found = [placed(context, *answer) for answer in told]
    answers = tuple(answer for answer, _ in found if answer is not None)
    lost = tuple(gold.text for gold, (answer, _) in zip(told, found, strict=True) if answer is None)
    if told and not answers:
        starts = ", ".join(f"{answer.start:,}" for answer in told[:3])
        raise Unfit(NOWHERE, f"expected it at {starts} of {len(context):,} characters; mend the text or the offset")
    return answers, lost, tuple(note for _, note in found)


def checked(question: Question) -> Question:
    """The question. Raises Unfit for one that cannot be asked or contradicts itself."""
    if not question.question.strip():
        raise Unfit(NO_QUESTION, "write the question, or remove its record")
    if not question.context.strip():
        raise Unfit(NO_CONTEXT, "give the text that it is asked of")
    if question.impossible and (question.answers or question.golds):
        raise Unfit(CONTRADICTION, "remove the answers, or say that it is possible")
    texts = [question.id, question.question, question.context, question.document, question.pool, *question.golds]
    try:
        "".join([*texts, *(text for wordings in question.synonyms for text in wordings)]).encode()
    except UnicodeEncodeError:
        raise Unfit("not valid Unicode", "half of a surrogate pair") from None
    return question
