"""What goes wrong where entities are found: gold and predicted ones in pairs, and which are taken for which."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from domain.biomedical.documents.tokens import TokenSpan


@dataclass(frozen=True)
class Pairing:
    """A gold entity and what was predicted there; None where there is none."""

    gold: TokenSpan | None
    predicted: TokenSpan | None

    @property
    def kind(self) -> str:
        """`right`, `wrong_type`, `wrong_span`, `wrong_both`, `missed` or `spurious`."""
        if self.gold is None or self.predicted is None:
            return "missed" if self.predicted is None else "spurious"
        if self.gold[:2] == self.predicted[:2]:
            return "right" if self.gold == self.predicted else "wrong_type"
        return "wrong_span" if self.gold.type == self.predicted.type else "wrong_both"


KINDS = ("right", "wrong_span", "wrong_type", "wrong_both", "missed", "spurious")


def pairings(gold: Sequence[TokenSpan], predicted: Sequence[TokenSpan]) -> Iterator[Pairing]:
    """Each gold entity of a sentence with the prediction that is nearest to it, and predictions that share no word.

    Nearest is the same entity, then one of its type that shares words with it, then any that does; of several the one
    that shares most. So each gold entity occurs once, in the order of `gold`, and its kind is the same by words and by
    characters.
    """
    for wanted in gold:
        near = [found for found in predicted if _shared(wanted, found)]
        best = max(
            near, key=lambda found: (found == wanted, found.type == wanted.type, _shared(wanted, found)), default=None
        )
        yield Pairing(wanted, best)
    for found in predicted:
        if not any(_shared(wanted, found) for wanted in gold):
            yield Pairing(None, found)


def _shared(first: TokenSpan, second: TokenSpan) -> int:
    return max(0, min(first.end, second.end) - max(first.start, second.start))


def confusions(
    tokens: Sequence[Sequence[str]], found: Sequence[Sequence[Pairing]], most: int = 25
) -> dict[str, list[dict[str, object]]]:
    """The commonest confusions: of types, by kind, and of mentions in words, each with how often it occurred."""
    wrong = [
        (words, pair) for words, pairs in zip(tokens, found, strict=True) for pair in pairs if pair.kind != "right"
    ]

    def listed(name: Callable[[TokenSpan, Sequence[str]], str]) -> list[dict[str, object]]:
        counted = Counter(
            (pair.kind, *(span and name(span, words) for span in (pair.gold, pair.predicted))) for words, pair in wrong
        )
        return [
            {"kind": kind, "gold": gold, "predicted": predicted, "count": count}
            for (kind, gold, predicted), count in counted.most_common(most)
        ]

    return {
        "types": listed(lambda span, _: span.type),
        "mentions": listed(lambda span, words: " ".join(words[span.start : span.end])),
    }
