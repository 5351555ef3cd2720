"""Evaluation of a student on held-out sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from bertrelay.checks import check_dimensions
from bertrelay.data.records import Rejects
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.evaluation.encode import Encode, metrics_at
from bertrelay.evaluation.similarity import matrix
from bertrelay.files import write_json
from bertrelay.model.encoder import SentenceEncoder, open_encoder
from bertrelay.progress import log, spinner
from bertrelay.report import write_report
from bertrelay.stage import Metrics, StageContext
from students.evaluate.bitext import mining_metrics
from students.evaluate.judgements import read_retrieval
from students.evaluate.lookup import lookup_metrics
from students.evaluate.nearness import nearness_metrics
from students.evaluate.ranking import encode_data, grades_at, rank_by_modes, ranking_values, retrieval_metrics
from students.evaluate.report import evaluation_report
from students.evaluate.retrieval import search_metrics
from students.evaluate.settings import EvaluateSettings
from students.evaluate.spread import spread_metrics
from students.evaluate.translation import encode_once, english_of, parallel_metrics, read_variance
from students.evaluate.xsim import rows_by_language, xsim_metrics
from students.parallel.pairs import Translations, read_translations
from students.parallel.settings import ENGLISH, ParallelSource
from students.searching.faiss import load_faiss
from students.teacher import open_teacher, resolve_prompt
from teachers.evaluation.sts import StsPairs, read_sts, sts_metrics
from teachers.settings import StsTable

PICTURE = "similarity.json"


@dataclass(frozen=True)
class EvaluationSets:
    """Test sets, and the metrics of an encoder on them.

    parallel: pairs by language. sts: pairs by name of the set. xsim: n-way sets by name, pairs by language in each.
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
        """Reads all sets. Raises RequestError, with the name of the set, where it has no pair."""

        def read_pairs(name: str, sources: Sequence[ParallelSource]) -> dict[str, Translations]:
            try:
                pairs = read_translations(sources, context.cache, rejects)
            except RequestError as error:
                error.args = (f"{name}: {error}",)
                raise
            if sources and not pairs:
                raise RequestError(f"{name}: expected pairs with text in both languages, found none; check the sources")
            return pairs

        sts_pairs = {name: read_sts(table, context, rejects) for name, table in sts.items()}
        n_way = {name: read_pairs(f"xsim.{name}", sources) for name, sources in (xsim or {}).items()}
        return cls(read_pairs("parallel", parallel), sts_pairs, n_way)

    def encode(self, encoder: SentenceEncoder, precision: ComputePrecision, progress: bool = False) -> Encode:
        """Encodes every sentence of the sets once, and returns a function that looks the vectors up."""
        translations = [pairs for by_language in (self.parallel, *self.xsim.values()) for pairs in by_language.values()]
        parallel = [sentence for pairs in translations for texts in pairs for sentence in texts]
        scored = [sentence for pairs in self.sts.values() for sentence in (*pairs.first, *pairs.second)]
        return encode_once(encoder, parallel + scored, precision, progress)

    def sizes(self) -> Metrics:
        """Numbers of sentences of each language, of pairs of each STS set, of sentences of each n-way set."""
        sizes: Metrics = {f"sentences/{language}": len(pairs.other) for language, pairs in self.parallel.items()}
        sizes |= {f"sts/{name}/pairs": len(pairs.scores) for name, pairs in self.sts.items()}
        for name, pairs in self.xsim.items():
            languages = rows_by_language(pairs).items()
            sizes |= {f"xsim_sentences/{name}/{language}": len(sentences) for language, sentences in languages}
        return sizes

    def metrics(self, encode: Encode, teacher: Encode | None = None, variance: float | None = None) -> Metrics:
        scores = parallel_metrics(self.parallel, encode, teacher, variance, with_intervals=True)
        if teacher is not None:
            scores |= nearness_metrics(self.parallel, encode, teacher, with_intervals=True)
        return scores | (sts_metrics(self.sts, encode) if self.sts else {})


def run(settings: EvaluateSettings, context: StageContext) -> Metrics:
    """Scores the model, in the main process only."""
    settings.log_missing_languages()
    precision = context.precision(settings.precision)
    if not context.process_group.is_main:
        return {}
    if settings.xsim or settings.mining:
        load_faiss()  # raises where it is missing, before anything is encoded
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        tests = EvaluationSets.read(settings.parallel, settings.sts, context, rejects, xsim=settings.xsim)
        dictionaries = read_translations(settings.lookup, context.cache, rejects)
        searches = {name: read_retrieval(test, name, context, rejects) for name, test in settings.retrieval.items()}
    student, teacher, encode_teacher = open_encoder(settings.model, context.cache), None, None
    student = student.with_default_prompt(resolve_prompt(settings.prompt, student, "prompt"))
    check_dimensions(settings.dimensions, student.dim)
    if settings.teacher is not None:
        teacher = open_teacher(settings.teacher, settings.teacher_prompt, context.cache)
        if teacher.dim != student.dim:
            sizes = f"{student.dim} dimensions of the model and {teacher.dim} of the teacher"
            if settings.recall_at is not None:
                raise RequestError(f"recall_at: expected vectors of one size to search, found {sizes}; leave it out")
            log(f"{sizes}: only the agreement of similarities is measured, as other vectors cannot be compared")
    encode = tests.encode(student, precision, progress=True)
    if teacher is not None:
        encode_teacher = encode_once(teacher, english_of(tests.parallel), precision, progress=True)
    metrics = tests.metrics(encode, encode_teacher, read_variance(settings.model))
    metrics |= spread_metrics(tests.parallel, encode, encode_teacher)
    metrics |= metrics_at(settings.dimensions, tests.metrics, encode)
    if encode_teacher is not None and settings.recall_at is not None:
        metrics |= search_metrics(tests.parallel, encode, encode_teacher, settings.recall_at)
    for name, pairs in tests.xsim.items():
        metrics |= xsim_metrics(name, pairs, encode, settings.xsim_pairs)
    for name, mined in settings.mining.items():
        metrics |= mining_metrics(name, mined, student, context, precision, settings.max_rejects)
    for name, (data, dev) in searches.items():
        test_of, encoded = (
            settings.retrieval[name],
            data if dev is None else data._replace(queries=data.queries + dev.queries),
        )
        rankings, weight = rank_by_modes(data, encode_data(encoded, student, precision), test_of.modes, dev)
        for mode in test_of.modes:
            values = ranking_values(grades_at(rankings[mode], data), data.grades, test_of.recall_at)
            metrics |= retrieval_metrics(name if mode == "dense" else f"{name}-{mode}", data, values)
        if dev is not None:
            metrics[f"retrieval/{name}-hybrid/lexical_weight"] = weight
    for language, test in tests.parallel.items():
        if language in dictionaries:
            metrics |= lookup_metrics(language, dictionaries[language], test)
    picture = similarity_examples(tests.parallel, encode, settings.picture_sentences)
    if picture is not None:
        write_json(context.output / PICTURE, picture)
    write_report(
        evaluation_report(
            metrics, tests.parallel, tests.sts, {name: data for name, (data, _) in searches.items()}, picture
        ),
        context,
    )
    return metrics | tests.sizes()


def similarity_examples(tests: dict[str, Translations], encode: Encode, count: int) -> dict[str, object] | None:
    """The cosines among the first `count` English sentences that all languages translate, and their translations."""
    translations = [dict(zip(*sentences, strict=True)) for sentences in tests.values()]
    first = translations[0] if translations else {}
    shared = [english for english in first if all(english in other for other in translations)][:count]
    if not shared:
        return None
    texts = [text for english in shared for text in (english, *(other[english] for other in translations))]
    labels = [f"{language}: {text}" for language, text in zip([ENGLISH, *tests] * len(shared), texts, strict=True)]
    return {"labels": labels, "rows": labels, "matrix": matrix(encode(texts), encode(texts)).tolist()}
