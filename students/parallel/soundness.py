"""Signs in a training corpus that a student will fail: one template, repeated pairs, languages that seem swapped."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bertrelay.stage import Metrics
from students.parallel.corpus import ParallelCorpus
from students.parallel.split import DUPLICATE

CountSubwords = Callable[[Sequence[str]], int]
"""Sentences → the subwords of all of them."""

SENTENCES = 2_000
"""Sentences from which anything is concluded, evenly spread over a corpus."""
FEWEST = 50
"""Fewer sentences of a language show nothing."""
FREQUENT = 0.05
"""A word that at least this fraction of the sentences have belongs to their template; others are its gaps."""
FIXED_WORDS = 3
"""Fewest frequent words of a template."""
WORD = re.compile(r"[^\W\d_]+|\d+")


def soundness_metrics(corpus: ParallelCorpus, count_subwords: CountSubwords | None) -> Metrics:
    """Measures a corpus before the training.

    `corpus/template`: fraction of the English sentences that differ in rare words only.
    `corpus/repeated/<language>`: fraction of its pairs that equal earlier ones, left out of the training or not.
    `corpus/english_fit/<language>`: characters of a subword in the English texts, divided by those in their
        translations. It is above 1 where a tokenizer of English reads the English, and below where sides are swapped.

    count_subwords: by the teacher's tokenizer; None without one.
    """
    english = [corpus.texts(item, item + 1)[0] for item in _spread(0, corpus.translated)]
    metrics: Metrics = {"corpus/template": template_fraction(english)} if len(english) >= FEWEST else {}
    languages = [source["language"] for source in corpus.facts["sources"]]
    for language in dict.fromkeys(languages):
        streams = [number for number, other in enumerate(languages) if other == language]
        sources = [corpus.facts["sources"][number] for number in streams]
        rows = np.flatnonzero(np.isin(corpus.streams, streams))
        pairs, left_out = (sum(source.get(key, 0) for source in sources) for key in ("pairs", DUPLICATE))
        if len(rows) + left_out < FEWEST:
            continue
        items = len(corpus.english) + rows[_spread(0, len(rows))]
        others = [corpus.texts(item, item + 1)[0] for item in items.tolist()]
        targets = corpus.targets[items].tolist()
        in_training = 1 - len(set(zip(targets, others, strict=True))) / len(others)
        metrics[f"corpus/repeated/{language}"] = max(left_out / pairs, in_training)
        if count_subwords and len(others) >= FEWEST:
            texts = [corpus.english.read(target, target + 1)[0] for target in targets]
            fits = [sum(map(len, side)) / max(1, count_subwords(side)) for side in (texts, others)]
            metrics[f"corpus/english_fit/{language}"] = fits[0] / fits[1]
    return metrics


def _spread(start: int, stop: int) -> list[int]:
    """At most SENTENCES numbers from `start` to `stop`, the last not included, evenly spread."""
    return np.unique(np.linspace(start, stop - 1, SENTENCES).astype(np.int64)).tolist() if stop > start else []


def template_fraction(sentences: Sequence[str]) -> float:
    """Fraction of `sentences` of the most frequent template: the same frequent words in the same order, with gaps.

    1. A word is frequent if FREQUENT of the sentences have it; all numbers are one word.
    2. In each sentence the words between frequent ones become one gap.
    3. The most frequent result with FIXED_WORDS frequent words and a gap is the template.

    `Add Anna to the list`, `Add Mr Brown to the list`, `Rain.` have the template `Add … to the list`, 2 of 3.
    """
    words = [["0" if word.isdigit() else word for word in WORD.findall(text.casefold())] for text in sentences]
    occurrences = Counter(word for of_text in words for word in set(of_text))
    frequent = {word for word, count in occurrences.items() if count >= max(2, FREQUENT * len(words))} | {"0"}
    counts = Counter(tuple(_with_gaps(of_text, frequent)) for of_text in words)
    templates = [count for shape, count in counts.items() if _is_template(shape)]
    return max(templates, default=0) / len(words)


def _with_gaps(words: Iterable[str], frequent: set[str]) -> list[str]:
    shape: list[str] = []
    for word in words:
        part = word if word in frequent else ""
        if part or shape[-1:] != [""]:
            shape.append(part)
    return shape


def _is_template(shape: Sequence[str]) -> bool:
    fixed = [word for word in shape if word not in ("", "0")]
    return len(fixed) >= FIXED_WORDS and len(fixed) < len(shape)
