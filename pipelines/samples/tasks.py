"""The sample data sets: rows for natural language inference, similarity, triplets and parallel sentences.

Test meanings are drawn first, development ones next; what comes later avoids every sentence of theirs, in every language.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from pipelines.samples import edits, english, french, german, korean, spanish
from pipelines.samples.drawing import draw_meaning
from pipelines.samples.grammar import Meaning
from pipelines.samples.scores import similarity

LANGUAGES: dict[str, Callable[[Meaning], str]] = {
    "en": english.render,
    "de": german.render,
    "fr": french.render,
    "es": spanish.render,
    "ko": korean.render,
}
LABELS = ("entailment", "neutral", "contradiction")
MINIMAL_PAIRS = 0.2
"""How many drawn meanings are followed by a twin that differs in roles, negation or tense alone."""

Row = tuple[str, ...]


@dataclass(frozen=True)
class Sizes:
    """Rows to write. Development parts are a twelfth of NLI and STS and a tenth of the triplets; STS tests, a sixth."""

    parallel_train: int = 11_000
    parallel_test: int = 1_200
    nli: int = 6_000
    sts: int = 6_000
    triplets: int = 3_000


@dataclass
class Source:
    """Gives every meaning once, and none whose sentence, in any language, is held out."""

    random: Random
    seen: set[str] = field(default_factory=set)
    held_out: set[str] = field(default_factory=set)

    def meanings(self) -> Iterator[Meaning]:
        """New meanings without end, some followed by their minimal pair."""
        while True:
            meaning = draw_meaning(self.random)
            twin = None
            if self.random.random() < MINIMAL_PAIRS:
                twin = edits.pick(self.random, edits.minimal_pairs(meaning), unlike=meaning)
            for drawn in (meaning, twin):
                if drawn is not None and self.is_new(drawn):
                    yield drawn

    def is_new(self, meaning: Meaning) -> bool:
        sentences = translations(meaning)
        new = self.seen.isdisjoint(sentences) and self.held_out.isdisjoint(sentences)
        self.seen.update(sentences if new else ())
        return new
