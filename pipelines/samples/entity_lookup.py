"""How far a list of names gets: what a model has to be better than, for it to have learnt more than names."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from domain.biomedical.documents.document import Document, Span

Found = tuple[int, int, str]
Names = dict[tuple[str, ...], str]


def lookup_figures(train: Sequence[Document], test: Sequence[Document]) -> dict[str, float]:
    """Strict precision, recall and F1 on `test` of marking every name that `train` has, the longest first.

    Case does not count; a name of several types is taken for the most frequent one.
    """
    names = names_of(train)
    longest = max(map(len, names), default=0)
    gold = found = right = 0
    for document in test:
        marked = set(marked_by(names, longest, document))
        expected = {(entity.start, entity.end, entity.type) for entity in document.entities}
        gold, found, right = gold + len(expected), found + len(marked), right + len(marked & expected)
    precision, recall = right / max(found, 1), right / max(gold, 1)
    return {"precision": precision, "recall": recall, "f1": 2 * right / max(gold + found, 1)}


def names_of(documents: Sequence[Document]) -> Names:
    """Each name, in words, and its type."""
    types: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for document in documents:
        for entity in document.entities:
            words = [span for sentence in document.sentences for span in sentence]
            inside = [span for span in words if entity.start <= span[0] and span[1] <= entity.end]
            types[_lowered(document, inside)][entity.type] += 1
    return {name: counts.most_common(1)[0][0] for name, counts in types.items()}


def marked_by(names: Names, longest: int, document: Document) -> Iterator[Found]:
    """The spans of `document` that are one of `names`, of at most `longest` words."""
    for sentence in document.sentences:
        place = 0
        while place < len(sentence):
            lengths = range(min(longest, len(sentence) - place), 0, -1)
            tried = ((length, _lowered(document, sentence[place : place + length])) for length in lengths)
            length, name = next(((length, name) for length, name in tried if name in names), (1, ()))
            if name:
                yield sentence[place][0], sentence[place + length - 1][1], names[name]
            place += length


def _lowered(document: Document, spans: Sequence[Span]) -> tuple[str, ...]:
    return tuple(document.text[start:end].lower() for start, end in spans)
