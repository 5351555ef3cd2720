"""Two encoders on the same held-out translations and questions, with the differences of their metrics."""

import numpy as np

from bertrelay.data.records import Rejects
from bertrelay.data.vectors import Vectors
from bertrelay.evaluation.encode import Encode
from bertrelay.evaluation.similarity import is_among_nearest
from bertrelay.evaluation.statistics import Floats, share, with_interval
from bertrelay.model.encoder import open_encoder
from bertrelay.stage import Metrics, StageContext
from students.evaluate.judgements import RetrievalData, read_faq
from students.evaluate.ranking import encode_data, first_ranks, grades_at, rank
from students.evaluate.settings import CompareSettings
from students.evaluate.translation import encode_once
from students.parallel.pairs import Translations, read_translations
from students.parallel.settings import ENGLISH
from students.teacher import resolve_prompt

HITS = (1, 10)


def run(settings: CompareSettings, context: StageContext) -> Metrics:
    """Scores both encoders, in the main process only.

    `model/<metric>` and `base/<metric>` are the scores, `gain/<metric>` is the mean over sentences or questions of the
    difference, each with a 95 % interval. The metrics are `translation_accuracy/<from>-<into>` and, of questions with
    an answer, `faq/hit_at_1` and `faq/hit_at_10`, the fraction with a right entry among so many nearest, and
    `faq/mrr`, the mean of 1 / the rank of the nearest right entry.
    """
    settings.log_missing_languages()
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        pairs = read_translations(settings.parallel, context.cache, rejects)
        faq = read_faq(settings.faq, context, rejects) if settings.faq else None
    texts = [sentence for translations in pairs.values() for part in translations for sentence in part]
    values = []
    for key, source, prompt in (
        ("prompt", settings.model, settings.prompt),
        ("base_prompt", settings.base, settings.base_prompt),
    ):
        encoder = open_encoder(source, context.cache)
        encoder = encoder.with_default_prompt(resolve_prompt(prompt, encoder, key))
        values.append(measure(pairs, encode_once(encoder, texts, precision, progress=True)))
        if faq:
            values[-1] |= measure_faq(faq, *encode_data(faq, encoder, precision))
    metrics: Metrics = {f"sentences/{language}": len(translations.other) for language, translations in pairs.items()}
    if faq:
        metrics |= {"faq/questions": len(faq.queries), "faq/entries": len(faq.documents)}
    model, base = values
    for name in model:
        for title, column in (("model", model[name]), ("base", base[name]), ("gain", model[name] - base[name])):
            metrics |= with_interval(f"{title}/{name}", share, column)
    return metrics


def measure(pairs: dict[str, Translations], encode: Encode) -> dict[str, Floats]:
    """Computes the values of all sentences by metric, whose mean is the metric."""
    values: dict[str, Floats] = {}
    for language, translations in pairs.items():
        english, other = encode(translations.english), encode(translations.other)
        values[f"translation_accuracy/{ENGLISH}-{language}"] = is_among_nearest(english, other).astype(np.float64)
        values[f"translation_accuracy/{language}-{ENGLISH}"] = is_among_nearest(other, english).astype(np.float64)
    return values


def measure_faq(faq: RetrievalData, questions: Vectors, entries: Vectors) -> dict[str, Floats]:
    """Computes the values of all questions by metric; entries as near as a right one count as nearer."""
    ranks = first_ranks(grades_at(rank(faq, questions, entries, len(faq.documents), relevant_last=True), faq))
    values: dict[str, Floats] = {"faq/mrr": 1 / ranks}
    for top_k in HITS:
        values[f"faq/hit_at_{top_k}"] = (ranks <= top_k).astype(np.float64)
    return values
