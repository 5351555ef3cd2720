"""The stage `domain.synonym-pairs`: names of one concept, and the nearest name of another, to train an encoder on.

Pairs of the names of a concept are those of Liu et al. (2021), "Self-alignment pretraining for biomedical entity
representations" (SapBERT).
"""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from bertrelay.data.records import Rejects
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.linking.data import concepts_of, read_mentions
from domain.biomedical.linking.dictionary import Dictionary, read_dictionary
from domain.biomedical.linking.model import NEAREST, encode_names, nearest_rows
from domain.biomedical.linking.settings import SynonymPairsSettings

TRAIN, DEV = "train.jsonl", "dev.jsonl"


class SynonymPair(NamedTuple):
    """Two names of a concept, as rows of the dictionary, and that of a near name of another; None without one."""

    anchor: int
    positive: int
    negative: int | None = None


def run(settings: SynonymPairsSettings, context: StageContext) -> Metrics:
    """Writes `train.jsonl` and `dev.jsonl` with anchor, positive and negative; only in the main process."""
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        concepts = [*read_dictionary(settings.dictionary, rejects, context.cache)]
        mentions = read_mentions(settings.mentions, settings.types, settings.ignored_prefixes, rejects)
    dictionary = Dictionary.of([*concepts, *concepts_of(mentions)], settings.ignored_prefixes)
    pairs = draw_pairs(dictionary, settings.pairs_per_concept, settings.seed)
    if not pairs:
        raise RequestError("dictionary: expected a concept with two names, found none")
    if settings.encoder:
        encoder = SentenceEncoder.load(settings.encoder, cache=context.cache)
        pairs = with_negatives(dictionary, pairs, encoder, precision, settings.batch_tokens)
    chance = random.Random(settings.seed)
    held_out = {concept for concept in range(len(dictionary.identifiers)) if chance.random() < settings.dev_share}
    counts = {}
    for name, is_dev in ((TRAIN, False), (DEV, True)):
        chosen = [pair for pair in pairs if (dictionary.concepts[pair.anchor] in held_out) == is_dev]
        counts[name] = len(chosen)
        with atomic_write(context.output / name) as building, building.open("w", encoding="utf-8") as file:
            file.writelines(_lines(dictionary, chosen))
    return {"train_pairs": counts[TRAIN], "dev_pairs": counts[DEV], "concepts": len(dictionary.identifiers)}


def draw_pairs(dictionary: Dictionary, most: int, seed: int) -> list[SynonymPair]:
    """All pairs of names of each concept, or `most` of them drawn with a seed; in an order drawn with it."""
    chance = random.Random(seed)
    ends = np.searchsorted(dictionary.concepts, np.arange(len(dictionary.identifiers)), side="right").tolist()
    pairs, first = list[SynonymPair](), 0
    for end in ends:
        pairs += [SynonymPair(*rows) for rows in _some_pairs(range(first, end), most, chance)]
        first = end
    chance.shuffle(pairs)
    return pairs


def _some_pairs(rows: Sequence[int], most: int, chance: random.Random) -> list[tuple[int, int]]:
    if len(rows) * (len(rows) - 1) // 2 <= most:
        return list(combinations(rows, 2))
    drawn = dict[tuple[int, int], None]()
    while len(drawn) < most:
        first, second = sorted(chance.sample(rows, 2))
        drawn[first, second] = None
    return list(drawn)


def with_negatives(
    dictionary: Dictionary,
    pairs: Sequence[SynonymPair],
    encoder: SentenceEncoder,
    precision: ComputePrecision,
    batch_tokens: int | None = None,
) -> list[SynonymPair]:
    """The pairs with the name nearest to their anchor that no concept of the anchor's name has."""
    vectors = encode_names(encoder, dictionary.names, precision, batch_tokens)
    anchors = sorted({pair.anchor for pair in pairs})
    nearest, _ = nearest_rows(vectors[anchors], vectors, min(NEAREST, len(vectors)))
    concepts_of_name = dict[str, set[int]]()
    for name, concept in zip(dictionary.names, dictionary.concepts.tolist(), strict=True):
        concepts_of_name.setdefault(name, set()).add(concept)
    negatives = {}
    for anchor, rows in zip(anchors, nearest.tolist(), strict=True):
        same = concepts_of_name[dictionary.names[anchor]]
        others = (row for row in rows if not same & concepts_of_name[dictionary.names[row]])
        negatives[anchor] = next(others, None)
    return [pair._replace(negative=negatives[pair.anchor]) for pair in pairs]


def _lines(dictionary: Dictionary, pairs: Sequence[SynonymPair]) -> Iterator[str]:
    for pair in pairs:
        rows = {"anchor": pair.anchor, "positive": pair.positive, "negative": pair.negative}
        values = {column: dictionary.names[row] for column, row in rows.items() if row is not None}
        yield json.dumps(values, ensure_ascii=False) + "\n"
