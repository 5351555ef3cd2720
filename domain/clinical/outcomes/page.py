"""A page of one admission: its text, each chunk with its share in P, and the words of the top chunk that moved it."""

from collections.abc import Iterator
from pathlib import Path

from markupsafe import Markup, escape

from domain.clinical.outcomes.outcome import in_words
from domain.clinical.outcomes.outcome_settings import OutcomeModelSettings
from domain.clinical.outcomes.scorer import Explanation, ScoredChunk, Word

MOST_LABELS = 10
ROOM = Path(__file__).parent
STRENGTHS = 5
"""Shades of a word, from the one that moved the chunk most down to a fifth of it; weaker ones are left plain."""


def page(found: Explanation, how: OutcomeModelSettings) -> str:
    """The page as HTML, which needs no network and no scripts."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(ROOM), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["in_words"] = in_words
    top = found.score.top
    chunks = [
        (number, chunk, chunk == top, _marked(found, chunk) if chunk == top else found.text[chunk.start : chunk.end])
        for number, chunk in enumerate(found.score.chunks, 1)
    ]
    return environment.get_template("admission.html.jinja").render(
        score=found.score, how=how, chunks=chunks, likeliest=_likeliest(found, how)
    )


def _likeliest(found: Explanation, how: OutcomeModelSettings) -> list[tuple[str, float]]:
    """The labels with the highest probabilities."""
    by_label = zip(how.labels, found.score.by_label, strict=False)  # without text there is none
    return sorted(by_label, key=lambda each: -each[1])[:MOST_LABELS]


def _marked(found: Explanation, top: ScoredChunk) -> Markup:
    """The characters of the top chunk, with those words marked that moved its log-odds."""
    most = max((abs(word.lost_log_odds) for word in found.words), default=0.0)
    return Markup().join(_pieces(found, top, most))


def _pieces(found: Explanation, top: ScoredChunk, most: float) -> Iterator[Markup]:
    place = top.start
    for word in found.words:
        strength = round(STRENGTHS * abs(word.lost_log_odds) / most) if most else 0
        if strength:
            yield escape(found.text[place : word.start])
            yield _mark(found.text[word.start : word.end], word, strength)
            place = word.end
    yield escape(found.text[place : top.end])


def _mark(text: str, word: Word, strength: int) -> Markup:
    direction = "up" if word.lost_log_odds > 0 else "down"
    told = f"{word.lost_log_odds:+.2f} log-odds of the chunk, {word.lost_probability:+.4f} in P"
    return Markup('<mark class="{} s{}" title="{}">{}</mark>').format(direction, strength, told, text)
