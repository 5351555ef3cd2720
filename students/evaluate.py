"""How similar sentences are, in one call; `bertrelay.evaluation.similarity` does it in blocks where memory is short."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertrelay.data.records import Rejects
from bertrelay.data.sentences import texts_of
from bertrelay.encoder import SentenceEncoder, as_encoder
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import Metric, Vectors, compare_all, compare_pairs, matrix
from bertrelay.files import write_json
from bertrelay.stage import Metrics, StageContext
from students.metrics import Encoded, english_of, parallel_metrics, translation_metrics
from students.parallel.pairs import Translations, read_translations
from students.settings import ENGLISH, EvaluateSettings
from students.targets import read_variance
from teachers.evaluation.sts import StsPairs, read_sts, sts_metrics

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


def similarity(
    model: SentenceEncoder | str | Path,
    first: Iterable[str],
    second: Iterable[str] | None = None,
    metric: Metric = "cosine",
    *,
    matrix: bool = False,
    prompt_name: str | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
) -> Vectors:
    """The similarity (n,) of each of `first` with the one of `second` beside it; distances are negative.

    matrix: all with all instead, (n, m); without `second`, `first` with itself, (n, n).
    Raises RequestError for sides that are no lists of sentences, or cannot be paired, and for an unknown metric;
    WorkError for a vector that is not finite.
    """
    sides = [texts_of(first, "similarity"), *([] if second is None else [texts_of(second, "similarity")])]
    counts = [len(side) for side in sides]
    if 0 in counts or (not matrix and (len(counts) < 2 or counts[0] != counts[1])):
        raise RequestError(
            f"similarity: expected two lists of one length, found {' and '.join(map(str, counts))} sentences. For all "
            "with all, of one list or two that are not empty: matrix=True"
        )
    encoder = as_encoder(model)
    computing: dict[str, Any] = {"prompt_name": prompt_name, "precision": precision, "batch_tokens": batch_tokens}
    if matrix:
        blocks = compare_all(encoder, sides[0], sides[1] if second is not None else None, metric, **computing)
    else:
        blocks = compare_pairs(encoder, zip(*sides, strict=True), metric, **computing)
    return np.concatenate([block.similarity for block in blocks])


WORDS = r"(?u)\w+"


class Lookup:
    """Word-for-word lookup, a baseline: what a dictionary alone finds of a test set.

    Trained on parallel sentences: a word's translation is the English word of the highest Dice coefficient,
    2·n(both) / (n(word) + n(English word)), counted in sentences. A sentence becomes its words looked up, and its
    translation is the English sentence of the nearest TF-IDF vector.
    """

    def __init__(self, pairs: Translations) -> None:
        from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer  # slow to load, seldom needed

        self.english = CountVectorizer(token_pattern=WORDS, binary=True)
        self.other = CountVectorizer(token_pattern=WORDS, binary=True)
        english_in = self.english.fit_transform(pairs.english)  # (pairs, English words)
        other_in = self.other.fit_transform(pairs.other)  # (pairs, words)
        self.translation = _best_by_dice(other_in, english_in)  # (words, English words), one 1 in a row
        self.weights = TfidfTransformer().fit(english_in)

    def metrics(self, language: str, test: Translations) -> Metrics:
        """`lookup_accuracy/en-<language>` and back, on held-out pairs."""
        english = self.weights.transform(self.english.transform(test.english))
        looked_up = self.weights.transform(self.other.transform(test.other) @ self.translation)
        return translation_metrics(language, _dense(english), _dense(looked_up), name="lookup_accuracy")


def _best_by_dice(other_in: "csr_matrix", english_in: "csr_matrix") -> "csr_matrix":
    from scipy.sparse import csr_matrix

    together = (other_in.T @ english_in).tocoo()  # (words, English words)
    counts = np.asarray(other_in.sum(axis=0)).ravel(), np.asarray(english_in.sum(axis=0)).ravel()
    dice = 2 * together.data / (counts[0][together.row] + counts[1][together.col])
    order = np.lexsort((together.col, -dice, together.row))  # by word, best first, ties by the alphabet
    _, first = np.unique(together.row[order], return_index=True)
    best = order[first]
    shape = (other_in.shape[1], english_in.shape[1])
    return csr_matrix((np.ones(len(best)), (together.row[best], together.col[best])), shape=shape)


def _dense(vectors: "csr_matrix") -> NDArray[np.float32]:
    return np.asarray(vectors.todense(), dtype=np.float32)


PICTURE = "similarity.json"


def run(settings: EvaluateSettings, context: StageContext) -> Metrics:
    """Scores the model; the main process does it, as others have nothing to add."""
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        tests = read_translations(settings.parallel, context.cache, rejects)
        sts = {name: read_sts(table, context, rejects) for name, table in settings.sts.items()}
        lookups = read_translations(settings.lookup, context.cache, rejects)
    student, teacher = _models(settings, context)
    vectors = Encoded.of(student, all_sentences(tests, sts), settings.precision, progress=True)
    targets = None if teacher is None else Encoded.of(teacher, english_of(tests), settings.precision, progress=True)
    metrics = parallel_metrics(tests, vectors, targets, read_variance(settings.model))
    metrics |= _lookup(lookups, tests) | (sts_metrics(sts, vectors) if sts else {})
    picture = similarity_examples(tests, vectors, settings.picture_sentences)
    if picture is not None:
        write_json(context.output / PICTURE, picture)
    return metrics


def _models(settings: EvaluateSettings, context: StageContext) -> tuple[SentenceEncoder, SentenceEncoder | None]:
    """Student and teacher; raises RequestError when their vectors cannot be compared."""
    hub = context.cache / "hub"
    student = SentenceEncoder.load(settings.model, cache_dir=hub)
    if settings.teacher is None:
        return student, None
    teacher = SentenceEncoder.load(settings.teacher, cache_dir=hub)
    if teacher.dim != student.dim:
        raise RequestError(
            f"teacher: expected vectors of the model's {student.dim} dimensions, found {teacher.dim}; "
            "leave `teacher` out when the model is no student of it"
        )
    return student, teacher


def all_sentences(tests: Mapping[str, Translations], sts: Mapping[str, StsPairs]) -> list[str]:
    """Every sentence of the tests, translations first."""
    translated = [sentence for sides in tests.values() for side in sides for sentence in side]
    scored = [sentence for pairs in sts.values() for side in (pairs.first, pairs.second) for sentence in side]
    return translated + scored


def _lookup(lookups: Mapping[str, Translations], tests: Mapping[str, Translations]) -> Metrics:

    metrics: Metrics = {}
    for language, sides in tests.items():
        if language in lookups:
            metrics |= Lookup(lookups[language]).metrics(language, sides)
    return metrics


def similarity_examples(tests: Mapping[str, Translations], vectors: Encoded, count: int) -> dict[str, object] | None:
    """Cosines among the first `count` English sentences that all languages translate, and their translations."""
    translations = {language: dict(zip(sides.english, sides.other, strict=True)) for language, sides in tests.items()}
    if not translations or count == 0:
        return None
    first, *rest = translations.values()
    shared = [english for english in first if all(english in other for other in rest)][:count]
    groups = [[english, *(of[english] for of in translations.values())] for english in shared]
    texts = [text for group in groups for text in group]
    labels = [f"{language}: {text}" for language, text in zip([ENGLISH, *tests] * len(groups), texts, strict=True)]
    shown = vectors(texts)
    return {"labels": labels, "rows": labels, "matrix": matrix(shown, shown).tolist()} if shared else None
