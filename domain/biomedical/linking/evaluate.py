"""The stage `domain.linking-evaluate`: the concepts that a linker gives to annotated mentions, beside their own.

A composite mention is right only as a whole. Mentions without a concept count for precision and recall alone, where
an identifier of theirs is wrong.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.records import Rejects
from bertrelay.evaluation.statistics import ratio, share, with_intervals
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.linking.data import Mention, check_identifiers, read_mentions
from domain.biomedical.linking.dictionary import without_prefix
from domain.biomedical.linking.model import TOP_CONCEPTS, Linker
from domain.biomedical.linking.predict import Link, candidates_of, links_of
from domain.biomedical.linking.settings import LinkEvaluateSettings


def is_right(link: Link, gold: frozenset[str], identifiers: Callable[[int], frozenset[str]], k: int) -> bool:
    """Returns true if each part has one of the gold concepts among its first `k`, and each gold concept is met.

    identifiers: those of a concept.
    """
    parts = [frozenset(chain.from_iterable(identifiers(one.concept) for one in part[:k])) for part in link.parts]
    return all(part & gold for part in parts) and gold <= frozenset(chain.from_iterable(parts))


@dataclass(frozen=True)
class Judged:
    """Mentions and what they were linked to; arrays are of (mentions,).

    has_concept: true where the gold data have one. right, right_of_five: by the first concept, and by five.
    in_dictionary: true where the dictionary has all gold concepts. scores: of the links.
    """

    documents: NDArray[np.int64]
    has_concept: NDArray[np.bool_]
    right: NDArray[np.bool_]
    right_of_five: NDArray[np.bool_]
    in_dictionary: NDArray[np.bool_]
    is_composite: NDArray[np.bool_]
    scores: NDArray[np.float64]

    @classmethod
    def of(cls, linker: Linker, mentions: Sequence[Mention], links: Sequence[Link]) -> "Judged":
        plain = [
            frozenset(without_prefix(one, linker.ignored_prefixes) for one in identifiers)
            for identifiers in linker.dictionary.identifiers
        ]
        in_dictionary = frozenset(chain.from_iterable(plain))
        gold = [mention.identifiers for mention in mentions]

        def which_are_right(k: int) -> NDArray[np.bool_]:
            rights = (
                is_right(link, annotated, plain.__getitem__, k) for link, annotated in zip(links, gold, strict=True)
            )
            return np.array([bool(annotated) and right for annotated, right in zip(gold, rights, strict=True)])

        return cls(
            documents=np.unique([mention.document for mention in mentions], return_inverse=True)[1],
            has_concept=np.array([bool(annotated) for annotated in gold]),
            right=which_are_right(1),
            right_of_five=which_are_right(TOP_CONCEPTS),
            in_dictionary=np.array([annotated <= in_dictionary for annotated in gold]),
            is_composite=np.array([len(annotated) > 1 for annotated in gold]),
            scores=np.array([link.score for link in links]),
        )

    def metrics(self, threshold: float, weights: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Accuracy over mentions with a concept; precision, recall and F1 of links from `threshold` on over all.

        weights: how often each mention counts, (…, mentions). Metrics are (…,), nan where not defined.
        """
        is_linked = self.scores >= threshold
        gold, linked, right = (weights @ flags for flags in (self.has_concept, is_linked, is_linked & self.right))
        return {
            "accuracy_at_1": ratio(weights @ self.right, gold),
            "accuracy_at_5": ratio(weights @ self.right_of_five, gold),
            "precision": ratio(right, linked),
            "recall": ratio(right, gold),
            "f1": ratio(2 * right, linked + gold),
        }


def judge(
    linker: Linker, mentions: Sequence[Mention], precision: str = "auto", batch_tokens: int | None = None
) -> tuple[Judged, list[Link]]:
    links = links_of(linker, candidates_of(linker, mentions, precision, batch_tokens))
    return Judged.of(linker, mentions, links), links


def run(settings: LinkEvaluateSettings, context: StageContext) -> Metrics:
    """Writes `mentions.json` with each mention, its gold identifiers and its links; only in the main process."""
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    linker = Linker.load(settings.model)
    rejects = Rejects(context.output / "rejects.jsonl", settings.max_rejects)
    mentions = read_mentions(settings.test, settings.types, linker.ignored_prefixes, rejects)
    check_identifiers(mentions, "test")
    judged, _ = judge(linker, mentions, precision, settings.batch_tokens)
    metrics = with_intervals(lambda weights: judged.metrics(linker.threshold, weights), judged.documents)
    composite = judged.is_composite
    return {
        **metrics,
        "accuracy_at_1/composite": share(judged.right[composite].astype(float)),
        "mentions": len(mentions),
        "composite_mentions": int(composite.sum()),
        "mentions_without_concept": int((~judged.has_concept).sum()),
        "mentions_beyond_dictionary": int((judged.has_concept & ~judged.in_dictionary).sum()),
        "threshold": linker.threshold,
        "letters": linker.letters,
    }
