"""The stage `domain.linker`: encodes the names of a dictionary, and fits the score on annotated dev files."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from bertrelay.data.records import Rejects
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.progress import log
from bertrelay.stage import Metrics, StageContext
from domain.biomedical.linking.data import Mention, check_identifiers, concepts_of, read_mentions
from domain.biomedical.linking.dictionary import Dictionary, read_dictionary
from domain.biomedical.linking.evaluate import Judged
from domain.biomedical.linking.model import Linker
from domain.biomedical.linking.predict import candidates_of, links_of
from domain.biomedical.linking.settings import LinkerSettings

SHARES_OF_LETTERS = [tenth / 10 for tenth in range(11)]
MODEL = "model"


def run(settings: LinkerSettings, context: StageContext) -> Metrics:
    """Writes the linker to `model`; only in the main process."""
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        concepts = read_dictionary(settings.dictionary, rejects, context.cache)
        mentions = read_mentions(settings.mentions, settings.types, settings.ignored_prefixes, rejects)
        dictionary = Dictionary.of(chain(concepts, concepts_of(mentions)), settings.ignored_prefixes)
        dev = read_mentions(settings.dev, settings.types, settings.ignored_prefixes, rejects)
    if settings.dev:
        check_identifiers(dev, "dev")
    log(f"{len(dictionary.names):,} names of {len(dictionary.identifiers):,} concepts")
    linker = Linker.create(
        dictionary,
        SentenceEncoder.load(settings.encoder, cache=context.cache),
        ignored_prefixes=settings.ignored_prefixes,
        precision=precision,
        batch_tokens=settings.batch_tokens,
    )
    chosen = {name: value for name in ("letters", "threshold") if (value := getattr(settings, name)) is not None}
    linker, metrics = replace(linker, **chosen), Metrics()
    if dev:
        linker, metrics = fit(linker, dev, settings, precision)
    linker.save(context.output / MODEL)
    return {
        **metrics,
        "names": len(dictionary.names),
        "concepts": len(dictionary.identifiers),
        "letters": linker.letters,
        "threshold": linker.threshold,
    }


def fit(
    linker: Linker, dev: Sequence[Mention], settings: LinkerSettings, precision: ComputePrecision
) -> tuple[Linker, Metrics]:
    """Chooses what `settings` leave open: the share of letters by accuracy, then the threshold by F1; and dev metrics.

    Of equal shares the smallest is chosen, and of equal thresholds too.
    Raises RequestError for a threshold of `settings` that no link reaches.
    """
    candidates = candidates_of(linker, dev, precision, settings.batch_tokens)
    weights = np.ones(len(dev))
    shares = SHARES_OF_LETTERS if settings.letters is None else [settings.letters]
    judged = {letters: Judged.of(linker, dev, links_of(linker, candidates, letters)) for letters in shares}
    accuracies = {letters: float(one.metrics(0.0, weights)["accuracy_at_1"]) for letters, one in judged.items()}
    letters = max(accuracies, key=lambda share: accuracies[share])
    chosen = judged[letters]
    if settings.threshold is not None and settings.threshold > chosen.scores.max():
        raise RequestError(
            f"threshold: expected one that a link of dev reaches, found {settings.threshold:g}, and the highest score "
            f"is {chosen.scores.max():.3f}. Lower it, or leave it out."
        )
    thresholds = [0.0, *np.unique(chosen.scores)] if settings.threshold is None else [settings.threshold]
    threshold = float(max(thresholds, key=lambda least: chosen.metrics(least, weights)["f1"]))
    log(f"letters {letters:g}, threshold {threshold:.3f}: accuracy {accuracies[letters]:.3f} on dev")
    fitted = replace(linker, letters=letters, threshold=threshold)
    return fitted, {f"dev/{name}": float(value) for name, value in chosen.metrics(threshold, weights).items()}
