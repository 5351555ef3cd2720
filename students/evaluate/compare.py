"""Two encoders on the same held-out translations and questions, with the differences of their metrics."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.records import Rejects
from bertrelay.data.tables import Table
from bertrelay.data.vectors import Vectors
from bertrelay.evaluation.encode import Encode
from bertrelay.evaluation.similarity import is_among_nearest, matrix
from bertrelay.evaluation.statistics import Floats, share, with_interval
from bertrelay.model.encoder import open_encoder
from bertrelay.settings import InputFile
from bertrelay.stage import Metrics, StageContext
from students.evaluate.settings import CompareSettings
from students.evaluate.translation import encode_once
from students.mining.gold import read_gold
from students.mining.sentence_files import read_sentences
from students.parallel.pairs import Translations, read_translations
from students.parallel.settings import ENGLISH
from students.teacher import resolve_prompt

HITS = (1, 10)


class Faq(NamedTuple):
    """Questions, the entries that may answer them, and the rows of each question's right entries."""

    questions: list[str]
    entries: list[str]
    answers: dict[int, list[int]]


def run(settings: CompareSettings, context: StageContext) -> Metrics:
    """Scores both encoders, in the main process only.

    `model/<metric>` and `base/<metric>` are the scores, `gain/<metric>` is the mean over sentences or questions of the
    difference, each with a 95 % interval. The metrics are `translation_accuracy/<from>-<into>` and, of questions with
    an answer, `faq/hit_at_1` and `faq/hit_at_10`, the fraction with a right entry among so many nearest, and
    `faq/mrr`, the mean of 1 / the rank of the nearest right entry.
    """
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        pairs = read_translations(settings.parallel, context.cache, rejects)
        faq = read_faq(settings.faq, context, rejects) if settings.faq else None
    texts = [sentence for translations in pairs.values() for part in translations for sentence in part]
    texts += [*faq.questions, *faq.entries] if faq else []
    values = []
    for key, source, prompt in (
        ("prompt", settings.model, settings.prompt),
        ("base_prompt", settings.base, settings.base_prompt),
    ):
        encoder = open_encoder(source, context.cache)
        encoder = encoder.with_default_prompt(resolve_prompt(prompt, encoder, key))
        values.append(measure(pairs, faq, encode_once(encoder, texts, precision, progress=True)))
    metrics: Metrics = {f"sentences/{language}": len(translations.other) for language, translations in pairs.items()}
    if faq:
        metrics |= {"faq/questions": len(faq.answers), "faq/entries": len(faq.entries)}
    model, base = values
    for name in model:
        for title, column in (("model", model[name]), ("base", base[name]), ("gain", model[name] - base[name])):
            metrics |= with_interval(f"{title}/{name}", share, column)
    return metrics


def read_faq(folder: InputFile, context: StageContext, rejects: Rejects) -> Faq:
    """Reads `questions.txt` and `entries.txt`, a text a line, and the lines that belong together from `gold.tsv`.

    Raises RequestError, with file and line, for a line of `gold.tsv` that names no question or no entry.
    """
    work = context.work / "faq"
    work.mkdir(parents=True, exist_ok=True)
    questions, entries = (
        read_sentences(Table(path=InputFile(f"{folder}/{name}.txt")), work / f"{name}.arrow", context.cache, rejects)
        for name in ("questions", "entries")
    )
    gold = read_gold(Table(path=InputFile(f"{folder}/gold.tsv")), questions, entries)
    answers: dict[int, list[int]] = {}
    for question, entry in zip(*divmod(gold, len(entries)), strict=True):
        answers.setdefault(int(question), []).append(int(entry))
    return Faq(questions.read(0, len(questions)), entries.read(0, len(entries)), answers)


def measure(pairs: dict[str, Translations], faq: Faq | None, encode: Encode) -> dict[str, Floats]:
    """The value of each sentence or question by metric, whose mean is the metric."""
    values: dict[str, Floats] = {}
    for language, translations in pairs.items():
        english, other = encode(translations.english), encode(translations.other)
        values[f"translation_accuracy/{ENGLISH}-{language}"] = is_among_nearest(english, other).astype(np.float64)
        values[f"translation_accuracy/{language}-{ENGLISH}"] = is_among_nearest(other, english).astype(np.float64)
    if faq:
        questions = encode([faq.questions[row] for row in faq.answers])
        ranks = ranks_of_answers(questions, encode(faq.entries), list(faq.answers.values()))
        values |= {f"faq/hit_at_{top_k}": (ranks <= top_k).astype(np.float64) for top_k in HITS}
        values["faq/mrr"] = 1 / ranks
    return values


def ranks_of_answers(questions: Vectors, entries: Vectors, answers: list[list[int]]) -> NDArray[np.int64]:
    """The rank of the nearest right entry of each question, from 1, by cosine.

    Wrong entries that are as near come before it, so that equal vectors of all texts find nothing.
    """
    similarities = matrix(questions, entries)
    ranks = []
    for row, right in zip(similarities, answers, strict=True):
        ranks.append(1 + int(np.sum(np.delete(row, right) >= row[right].max())))
    return np.array(ranks)
