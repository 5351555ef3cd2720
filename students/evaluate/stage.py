"""Scores of a student on held-out sentences, and how similar sentences are, in one call."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

import numpy as np

from bertrelay.checks import check_dimensions, list_texts
from bertrelay.data.records import Rejects
from bertrelay.data.vectors import Vectors
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.evaluation.encode import Encode, metrics_at
from bertrelay.evaluation.similarity import matrix
from bertrelay.files import write_json
from bertrelay.inference.compare import compare_all, compare_pairs
from bertrelay.inference.encode import EncodingOptions
from bertrelay.model.encoder import SentenceEncoder, open_encoder
from bertrelay.progress import spinner
from bertrelay.settings import Metric
from bertrelay.stage import Metrics, StageContext
from students.evaluate.retrieval import mining_metrics, rows_by_language, search_metrics, xsim_metrics
from students.evaluate.settings import EvaluateSettings
from students.evaluate.translation import encoded_by, english_of, parallel_metrics, read_variance, translation_metrics
from students.parallel.pairs import Translations, read_translations
from students.parallel.settings import ENGLISH, ParallelSource
from students.searching.faiss import load_faiss
from students.teacher import open_teacher, resolve_prompt
from teachers.evaluation.sts import StsPairs, read_sts, sts_metrics
from teachers.settings import StsTable

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


def similarity(
    model: SentenceEncoder | str | Path,
    first: Iterable[str],
    second: Iterable[str] | None = None,
    metric: Metric = "cosine",
    *,
    matrix: bool = False,
    **options: Unpack[EncodingOptions],
) -> Vectors:
    """The similarity (n,) of each of `first` with the one of `second` beside it; distances are negative.

    matrix: all with all instead, (n, m); without `second`, `first` with itself, (n, n). Where memory is short,
        `bertrelay.inference.compare` does it in blocks.
    options: see `EncodingOptions`.
    Raises RequestError for what are no lists of sentences, or cannot be paired, and for an unknown metric;
    WorkError for a vector that is not finite.
    """
    lists = [list_texts(given, "similarity") for given in (first, second) if given is not None]
    counts = [len(texts) for texts in lists]
    if 0 in counts or (not matrix and (len(counts) < 2 or counts[0] != counts[1])):
        raise RequestError(
            f"similarity: expected two lists of one length, found {' and '.join(map(str, counts))} sentences. For all "
            "with all, of one list or two that are not empty: matrix=True"
        )
    encoder = open_encoder(model)
    if matrix:
        blocks = compare_all(encoder, lists[0], lists[1] if second is not None else None, metric, **options)
    else:
        blocks = compare_pairs(encoder, zip(*lists, strict=True), metric, **options)
    return np.concatenate([block.similarity for block in blocks])


@dataclass(frozen=True)
class EvaluationSets:
    """Test sets, and what an encoder scores on them: parallel sentences by language, STS pairs by name of the set.

    xsim: n-way sets by name, each parallel sentences by language.
    """

    parallel: dict[str, Translations]
    sts: dict[str, StsPairs]
    xsim: dict[str, dict[str, Translations]]

    @classmethod
    @spinner("reading the test sets")
    def read(
        cls,
        parallel: Sequence[ParallelSource],
        sts: Mapping[str, StsTable],
        context: StageContext,
        rejects: Rejects,
        *,
        xsim: Mapping[str, Sequence[ParallelSource]] | None = None,
    ) -> Self:
        def pairs_of(name: str, sources: Sequence[ParallelSource]) -> dict[str, Translations]:
            try:
                found = read_translations(sources, context.cache, rejects)
            except RequestError as error:
                error.args = (f"{name}: {error}",)
                raise
            if sources and not found:
                raise RequestError(f"{name}: expected pairs with text in both languages, found none; check the sources")
            return found

        pairs_of_sts = {name: read_sts(table, context, rejects) for name, table in sts.items()}
        n_way = {name: pairs_of(f"xsim.{name}", sources) for name, sources in (xsim or {}).items()}
        return cls(pairs_of("parallel", parallel), pairs_of_sts, n_way)

    def encoded(self, encoder: SentenceEncoder, precision: ComputePrecision, progress: bool = False) -> Encode:
        """Every sentence of the sets, encoded once."""
        sets = (self.parallel, *self.xsim.values())
        parallel = [sentence for pairs in sets for sides in pairs.values() for side in sides for sentence in side]
        scored = [sentence for pairs in self.sts.values() for sentence in (*pairs.first, *pairs.second)]
        return encoded_by(encoder, parallel + scored, precision, progress)

    def sizes(self) -> Metrics:
        """How many sentences of a language, pairs of an STS set and sentences of an n-way set there are."""
        sizes: Metrics = {f"sentences/{language}": len(pairs.other) for language, pairs in self.parallel.items()}
        sizes |= {f"sts/{name}/pairs": len(pairs.scores) for name, pairs in self.sts.items()}
        for name, pairs in self.xsim.items():
            rows = rows_by_language(pairs)
            sizes |= {f"xsim_sentences/{name}/{language}": len(of_language) for language, of_language in rows.items()}
        return sizes

    def metrics(self, encode: Encode, teacher: Encode | None = None, variance: float | None = None) -> Metrics:
        scores = parallel_metrics(self.parallel, encode, teacher, variance, with_intervals=True)
        return scores | (sts_metrics(self.sts, encode) if self.sts else {})


PICTURE = "similarity.json"


def run(settings: EvaluateSettings, context: StageContext) -> Metrics:
    """Scores the model; the main process does it, as others have nothing to add."""
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    if settings.recall_at is not None or settings.xsim or settings.mining:
        load_faiss()  # where it is missing, say so before anything is encoded
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        tests = EvaluationSets.read(settings.parallel, settings.sts, context, rejects, xsim=settings.xsim)
        dictionaries = read_translations(settings.lookup, context.cache, rejects)
    student, teacher, encode_teacher = open_encoder(settings.model, context.cache), None, None
    student = student.with_default_prompt(resolve_prompt(settings.prompt, student, "prompt"))
    check_dimensions(settings.dimensions, student.dim)
    if settings.teacher is not None:
        teacher = open_teacher(settings.teacher, settings.teacher_prompt, context.cache)
        if teacher.dim != student.dim:
            raise RequestError(
                f"teacher: expected vectors of the model's {student.dim} dimensions, found {teacher.dim}; "
                "leave `teacher` out when the model is no student of it"
            )
    encode = tests.encoded(student, precision, progress=True)
    if teacher is not None:
        encode_teacher = encoded_by(teacher, english_of(tests.parallel), precision, progress=True)
    metrics = tests.metrics(encode, encode_teacher, read_variance(settings.model))
    metrics |= metrics_at(settings.dimensions, tests.metrics, encode)
    if encode_teacher is not None and settings.recall_at is not None:
        metrics |= search_metrics(tests.parallel, encode, encode_teacher, settings.recall_at)
    for name, pairs in tests.xsim.items():
        metrics |= xsim_metrics(name, pairs, encode, settings.xsim_pairs)
    for name, mined in settings.mining.items():
        metrics |= mining_metrics(name, mined, student, context, precision, settings.max_rejects)
    for language, test in tests.parallel.items():
        if language in dictionaries:
            metrics |= lookup_metrics(language, dictionaries[language], test)
    picture = similarity_examples(tests.parallel, encode, settings.picture_sentences)
    if picture is not None:
        write_json(context.output / PICTURE, picture)
    return metrics | tests.sizes()


def similarity_examples(tests: dict[str, Translations], encode: Encode, count: int) -> dict[str, object] | None:
    """Cosines among the first `count` English sentences that all languages translate, and their translations."""
    translations = [dict(zip(*sentences, strict=True)) for sentences in tests.values()]
    first = translations[0] if translations else {}
    shared = [english for english in first if all(english in other for other in translations)][:count]
    if not shared:
        return None
    texts = [text for english in shared for text in (english, *(of[english] for of in translations))]
    labels = [f"{language}: {text}" for language, text in zip([ENGLISH, *tests] * len(shared), texts, strict=True)]
    return {"labels": labels, "rows": labels, "matrix": matrix(encode(texts), encode(texts)).tolist()}


WORDS = r"(?u)\w+"


def lookup_metrics(language: str, train: Translations, test: Translations) -> Metrics:
    """`lookup_accuracy/en-<language>` and back of word-for-word lookup, a baseline: what a dictionary alone finds.

    Trained on parallel sentences: a word's translation is the English word of the highest Dice coefficient,
    2·n(both) / (n(word) + n(English word)), counted in sentences. A sentence becomes its words looked up, and its
    translation is the English sentence of the nearest TF-IDF vector.
    Raises RequestError where the sentences of a language to train on have no words.
    """
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer  # slow to load, seldom needed

    english, other = (CountVectorizer(token_pattern=WORDS, binary=True) for _ in range(2))
    try:
        english_in, other_in = english.fit_transform(train.english), other.fit_transform(train.other)  # (pairs, words)
    except ValueError:  # an empty vocabulary
        raise RequestError(
            f"lookup: expected words in {ENGLISH} and {language}, found none in one of them; check the sources"
        ) from None
    dictionary = best_by_dice(other_in, english_in)
    weights = TfidfTransformer().fit(english_in)
    counts = english.transform(test.english), other.transform(test.other) @ dictionary  # (sentences, English words)
    of_english, looked_up = (np.asarray(weights.transform(words).todense(), np.float32) for words in counts)
    vectors = of_english, looked_up
    return translation_metrics(language, vectors, "lookup_accuracy", with_intervals=True, drawn_from=test)


def best_by_dice(other_in: "csr_matrix", english_in: "csr_matrix") -> "csr_matrix":
    """A dictionary (words, English words) with one 1 in a row, from the words of sentence pairs, (pairs, words)."""
    from scipy.sparse import csr_matrix

    together = (other_in.T @ english_in).tocoo()  # (words, English words)
    counts = np.asarray(other_in.sum(axis=0)).ravel(), np.asarray(english_in.sum(axis=0)).ravel()
    dice = 2 * together.data / (counts[0][together.row] + counts[1][together.col])
    order = np.lexsort((together.col, -dice, together.row))  # by word, best first, ties by the alphabet
    _, first = np.unique(together.row[order], return_index=True)
    best = order[first]
    shape = (other_in.shape[1], english_in.shape[1])
    return csr_matrix((np.ones(len(best)), (together.row[best], together.col[best])), shape=shape)
