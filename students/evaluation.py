"""The stage `students.evaluate`: a student on held-out sentences, in every language, from one encoding."""

from collections.abc import Mapping, Sequence

from bertrelay.data.records import Rejects
from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import matrix
from bertrelay.files import write_json
from bertrelay.progress import log
from bertrelay.stage import Metrics, StageContext
from students.corpus import Translations
from students.parallel import read_pairs
from students.scores import Encoded, english_of, parallel_metrics
from students.settings import EvaluateSettings
from students.sources import ENGLISH, ParallelSource
from students.targets import read_variance
from teachers.evaluation.sts import StsPairs, read_sts, sts_metrics

PICTURE = "similarity.json"


def run(settings: EvaluateSettings, context: StageContext) -> Metrics:
    """Scores the model; the main process does it, as others have nothing to add."""
    if not context.process_group.is_main:
        return {}
    with Rejects(context.output / "rejects.jsonl", settings.max_rejects) as rejects:
        tests = read_translations(settings.parallel, context, rejects)
        sts = {name: read_sts(table, context, rejects) for name, table in settings.sts.items()}
        lookups = read_translations(settings.lookup, context, rejects)
    student, teacher = _models(settings, context)
    vectors = Encoded.of(student, all_sentences(tests, sts), settings.precision, progress=True)
    targets = None if teacher is None else Encoded.of(teacher, english_of(tests), settings.precision, progress=True)
    metrics = parallel_metrics(tests, vectors, targets, read_variance(settings.model))
    metrics |= _lookup(lookups, tests) | (sts_metrics(sts, vectors) if sts else {})
    picture = similarity_picture(tests, vectors, settings.picture_sentences)
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


def read_translations(
    sources: Sequence[ParallelSource], context: StageContext, rejects: Rejects
) -> dict[str, Translations]:
    """The pairs of `sources` by language; those with an empty side are left out and told, as in training."""
    languages = [language for source in sources for language in source.languages]
    found: dict[str, Translations] = {}
    empty = 0
    for pair in read_pairs(sources, context.cache, rejects):
        language = languages[pair.stream]
        if not (pair.english and pair.other):
            empty += 1
            continue
        sides = found.setdefault(language, Translations([], []))
        sides.english.append(pair.english)
        sides.other.append(pair.other)
    if empty:
        log(f"left out {empty:,} pairs with an empty side")
    return found


def all_sentences(tests: Mapping[str, Translations], sts: Mapping[str, StsPairs]) -> list[str]:
    """Every sentence of the tests, translations first."""
    translated = [sentence for sides in tests.values() for side in sides for sentence in side]
    scored = [sentence for pairs in sts.values() for side in (pairs.first, pairs.second) for sentence in side]
    return translated + scored


def _lookup(lookups: Mapping[str, Translations], tests: Mapping[str, Translations]) -> Metrics:
    from students.lookup import Lookup  # scikit-learn is slow to load, and seldom asked for

    metrics: Metrics = {}
    for language, sides in tests.items():
        if language in lookups:
            metrics |= Lookup(lookups[language]).metrics(language, sides)
    return metrics


def similarity_picture(tests: Mapping[str, Translations], vectors: Encoded, count: int) -> dict[str, object] | None:
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
