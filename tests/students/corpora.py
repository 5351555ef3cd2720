"""Parallel corpora of numbered sentences."""

import gzip
import shutil

from bertrelay.cache import Cache
from bertrelay.device import ComputePrecision
from students.distill.settings import DistillSettings
from students.parallel.corpus import build_corpus
from students.parallel.settings import AlignedFiles


def aligned(folder, language, pairs, name="train"):
    """Two line-aligned files, that of the translations packed."""
    folder.mkdir(parents=True, exist_ok=True)
    english, other = folder / f"{name}.{language}.en", folder / f"{name}.{language}.gz"
    english.write_text("".join(f"{pair[0]}\n" for pair in pairs), encoding="utf-8")
    other.write_bytes(gzip.compress("".join(f"{pair[1]}\n" for pair in pairs).encode(), mtime=0))
    return AlignedFiles(english=str(english), other=str(other), language=language)


def settings(*sources, **changes):
    chosen = {"teacher": "./t", "base": "./b", "parallel": list(sources), "seed": 1, **changes}
    return DistillSettings.model_validate(chosen if "dev" in changes else {"dev_sentences": 0, **chosen})


def build(folder, sources, dev_untrained=(), **changes):
    shutil.rmtree(folder / "cache", ignore_errors=True)
    return build_corpus(
        folder / "cache/key",
        settings(*sources, **changes),
        ComputePrecision.FP32,
        Cache(folder),
        dev_untrained=dev_untrained,
    )


def items(corpus):
    """(text, English target, weight) of each item."""
    texts, english = corpus.texts(0, len(corpus)), corpus.english.read(0, len(corpus.english))
    rows = zip(texts, corpus.targets, corpus.weights, strict=True)
    return [(text, english[target], weight) for text, target, weight in rows]


def numbered(language, numbers):
    return [(f"sentence number {n}", f"{language} number {n}") for n in numbers]


def three_languages(folder):
    """The same English in several languages, with other case and spaces, and several times."""
    german = [(f"Sentence  number {n} ", f"de {n} {form}") for n in range(300) for form in "ab"]
    french = [(f"sentence number {n}", f"fr {n}") for n in range(100, 400)]
    finnish = [(f"SENTENCE NUMBER {n}", f"fi {n}") for n in range(0, 400, 7)]
    return [aligned(folder, "de", german), aligned(folder, "fr", french), aligned(folder, "fi", finnish)]
