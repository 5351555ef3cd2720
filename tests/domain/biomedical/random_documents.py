"""Random documents with characters that formats treat in their own ways, and entities of all kinds."""

from dataclasses import replace
from itertools import combinations

from domain.biomedical.documents.document import Document, Entity

SUFFIXES = {
    "conll": ".tsv",
    "conll-iobes": ".iobes",
    "pubtator": ".pubtator",
    "bioc": ".json",
    "bioc-xml": ".xml",
    "brat": "",
    "jsonl": ".jsonl",
}

ALPHABET = [
    "a", "B", "7", " ", "  ", "-", ".", ",", "|", "\"", "<b>", "&", "\\", "'", "{", "é", "e\u0301", "\u0300", "\u200d",
    "\u202e", "\ufeff", "\u2028", "\u0085", "\u00a0", "\x00", "\x07", "\x1b", "\x0b", "\x0c", "\x1f", "\x7f", "\t",
    "\n", "\r\n", "\r", "𝒜", "😀", "👩‍🔬", "漢", "한", "א", "ש", "हि", "\U000e0041", "\uffff",
    "T1\t", "\nT1\tX 0 1\ta\n", "1|t|", "-DOCSTART-",
]  # fmt: skip
PLAIN = [sign for sign in ALPHABET if not set(sign) & set("\0\t\r\n") and sign != "-DOCSTART-"]


def random_entities(draw, text):
    """Nested, overlapping and discontinuous entities, often at the start and the end of `text`."""
    entities = []
    borders = sorted({0, len(text), *(draw.randint(0, len(text)) for _ in range(5))})
    for start, end in combinations(borders, 2):
        if draw.random() < 0.6:
            fragments = ((start, start + 1), (end - 1, end)) if end - start > 2 else ()
            confidence, identifier = draw.choice([None, draw.random()]), draw.choice([None, "MESH:D1"])
            entities.append(Entity(start, end, draw.choice("XY"), confidence, identifier, fragments))
    draw.shuffle(entities)
    return tuple(entities)


def random_document(draw, name, alphabet=ALPHABET, broken=True):
    text = "".join(draw.choices(alphabet, k=draw.randint(0, 30)))
    entities = random_entities(draw, text)
    return Document(name, text, entities if broken else tuple(replace(entity, fragments=()) for entity in entities))
