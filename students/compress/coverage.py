"""The subwords that languages need beyond a corpus, and the fraction of held-out text tokenized as before with them.

A corpus is never all of a language: trimmed to it, a vocabulary splits other text into small subwords, and its vectors
move. So a tenth of each language's text is held out, and subwords of the language's scripts are added until the
requested fraction of its tokens is as before. Subwords whose letters the language's text has come first, and among
these the tokenizer's own order counts: unigram scores are log-probabilities in general text, and WordPiece and BPE
number subwords by frequency. The order is one for all languages: held-out text is of the corpus's domain, and a subword
as frequent in general as the needed ones of another language is kept too.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import regex
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from bertrelay.checks import iterate_texts
from bertrelay.errors import RequestError
from bertrelay.languages import likely_scripts
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.tokenizer import plain_rules
from bertrelay.progress import log
from bertrelay.stage import Metrics
from students.compress.vocabulary import (
    TokenizerJson,
    add_parts,
    build_rules,
    measure_usage,
    permanent_ids,
    tokenizer_json,
)

HELD_OUT_FRACTION = 0.1
HELD_OUT_SENTENCES = 4000  # of a language, at most
SHARED = regex.compile(r"[\p{scx=Common}\p{scx=Inherited}]*")
"""Digits, punctuation and symbols."""
IDEOGRAPH = regex.compile(r"\p{scx=Hani}")
NO_TEXT = regex.compile(r".*\uFFFD.*|[\[<].+[\]>]", regex.DOTALL)
"""A part of a character's bytes, or a name such as [unused1]."""
BYTE = regex.compile("<0x[0-9A-F]{2}>")
NEVER = np.iinfo(np.int64).max


def text_digest(text: str) -> bytes:
    """Computes the sha256 of a text, whose order depends on nothing but the texts themselves."""
    return hashlib.sha256(text.encode()).digest()


def is_held_out(text: str) -> bool:
    """Returns true for the tenth of all texts that is only measured on; equal texts are in one part."""
    return int.from_bytes(text_digest(text)[:8]) < HELD_OUT_FRACTION * 2**64


def sample_texts(texts: Iterable[str], count: int) -> list[str]:
    """Takes at most `count` texts that are not blank, each once: those with the smallest digests.

    Example: a corpus read backwards, or with every line twice, has the same sample.
    """
    by_digest: dict[bytes, str] = {}
    for text in iterate_texts(texts, "texts"):
        if text.strip():
            by_digest[text_digest(text)] = text
        if len(by_digest) >= 4 * count:
            by_digest = dict(sorted(by_digest.items())[:count])
    return [text for _, text in sorted(by_digest.items())[:count]]


def scripts_of(language: str) -> tuple[str, ...]:
    """Returns the Unicode scripts that a language is written in: Latn of de, Cyrl of sr, Latn of sr-Latn.

    Raises RequestError for a language without a known script.
    """
    try:
        scripts = likely_scripts(language)
        _written_in(scripts)
    except (ValueError, regex.error):
        raise RequestError(
            f"languages: expected one whose script is known, found {language!r}; write its script with it, as in "
            "sr-Latn"
        ) from None
    return scripts


def _written_in(scripts: Sequence[str]) -> "regex.Pattern[str]":
    letters = "".join(rf"\p{{scx={script}}}" for script in scripts)
    return regex.compile(
        rf"[{letters}\p{{scx=Common}}\p{{scx=Inherited}}]*[{letters}][{letters}\p{{scx=Common}}\p{{scx=Inherited}}]*"
    )


def subword_texts(rules: Tokenizer) -> dict[int, str]:
    """Returns the text of every subword that has one, by id, without added tokens, which always stay."""
    decoded = rules.decoder.decode if rules.decoder else "".join
    texts = {
        index: decoded([subword]) for subword, index in rules.get_vocab(False).items() if not NO_TEXT.fullmatch(subword)
    }
    return {index: text for index, text in texts.items() if not NO_TEXT.fullmatch(text)}


Rank = tuple[bool, float]
"""Of a candidate: true if it has letters that the language's text lacks, and the tokenizer's order."""


def rank_candidates(
    language: str, letters: set[str], texts: Mapping[int, str], document: TokenizerJson
) -> dict[int, Rank]:
    """Ranks the ids of subwords in the scripts of `language` among all candidates.

    letters: of the language's text, in lower case. No text has all ideographs, so none of them is unfamiliar.

    Example: German text has the letters of `hund` but not the ø of `øre`; with unigram scores −7 and −6 their ranks are
    (False, 7) and (True, 6), so `hund` comes first.
    """
    written, model = _written_in(scripts_of(language)), document["model"]

    def rank(index: int) -> Rank:
        unfamiliar = any(
            letter.isalpha() and letter not in letters and not IDEOGRAPH.match(letter)
            for letter in texts[index].casefold()
        )
        return unfamiliar, -model["vocab"][index][1] if model["type"] == "Unigram" else index

    return {index: rank(index) for index, text in texts.items() if written.fullmatch(text)}


@dataclass(frozen=True)
class Coverage:
    """Tokens of held-out text with fewer subwords, compared with those before.

    same: fraction of the tokens before that are the same, at the same position. same_sentences: fraction of sentences
    in which all are. unknown: fraction of the new tokens that are unknown, or single bytes. tokens: number before.
    """

    same: float
    same_sentences: float
    unknown: float
    tokens: int

    def metrics(self, language: str) -> Metrics:
        return {
            f"coverage/{language}": self.same,
            f"coverage_sentences/{language}": self.same_sentences,
            f"coverage_unknown/{language}": self.unknown,
            f"coverage_tokens/{language}": self.tokens,
        }

    @classmethod
    def measure(cls, before: Tokenizer, after: Tokenizer, texts: Sequence[str]) -> "Coverage":
        """Compares the tokens of `texts` by the tokenizer before and after.

        Example: `houses` was `house s` and is `ho use s`; one of two tokens is the same, and same is 0.5.
        """
        same = whole = unknown = tokens = count = 0
        unknown_token = _unknown_token(after)
        old, new = (rules.encode_batch(list(texts), add_special_tokens=False) for rules in (before, after))
        for first, second in zip(old, new, strict=True):
            cut = _positioned(first)
            common = (cut & _positioned(second)).total()
            same, tokens, count = same + common, tokens + cut.total(), count + len(second)
            whole += common == cut.total() == len(second)
            unknown += sum(token == unknown_token or BYTE.fullmatch(token) is not None for token in second.tokens)
        return cls(same / max(tokens, 1), whole / max(len(texts), 1), unknown / max(count, 1), tokens)


def _positioned(encoding: Encoding) -> Counter[tuple[str, tuple[int, int]]]:
    return Counter(zip(encoding.tokens, encoding.offsets, strict=True))


def _unknown_token(rules: Tokenizer) -> str | None:
    model = tokenizer_json(rules)["model"]
    if model["type"] == "Unigram":
        return None if model["unk_id"] is None else str(model["vocab"][model["unk_id"]][0])
    unknown: str | None = model["unk_token"]
    return unknown


@dataclass(frozen=True)
class LanguageSubwords:
    """The ids that languages need, and the coverage of held-out text with them, as metrics."""

    ids: set[int]
    metrics: Metrics


def subwords_of_languages(
    encoder: SentenceEncoder, texts: Iterable[str], languages: Mapping[str, Iterable[str]], coverage: float
) -> LanguageSubwords:
    """Selects the subwords of `texts`, and as many of all languages as each needs to reach `coverage`.

    1. The base is all that the corpus without held-out text uses, and everything common to all scripts.
    2. Candidates are the other subwords of the languages' scripts, in one order for all languages.
    3. Of each language's held-out tokens the fraction `coverage` must have its subword: as many candidates are added as
       the neediest language takes.
    4. Tokens are measured. Where more are missing, as a text without one subword is tokenized in another way, a smaller
       fraction may be missing in step 3, until all languages reach `coverage` or no candidate helps.

    languages: code to text in it; read several times, never held in memory. coverage: fraction of held-out tokens to be
    as before. Languages that do not reach it are logged with what they reached.
    Raises RequestError for a language without text, or without a known script.
    """
    rules = plain_rules(encoder.tokenizer)
    document, text_of = tokenizer_json(rules), subword_texts(rules)
    learnt = (text for text in iterate_texts(texts, "texts") if not is_held_out(text))
    shared = {index for index, text in text_of.items() if SHARED.fullmatch(text)}
    base = add_parts(document, measure_usage(rules, document, learnt).ids | permanent_ids(document, rules) | shared)
    letters, held_out = {}, {}
    for code, sentences in languages.items():
        letters[code], held_out[code] = _read(code, sentences, rules)
    candidates = _order_candidates(letters, text_of, document, base)
    order = dict.fromkeys(base, 0) | {index: number for number, index in enumerate(candidates, 1)}
    needed = {code: _needed(rules, sentences, order) for code, sentences in held_out.items()}
    missing = 1 - coverage
    while True:
        added = max(_count_added(numbers, missing) for numbers in needed.values())
        ids = add_parts(document, base.union(candidates[:added]))
        smaller = build_rules(document, ids)
        reached = {code: Coverage.measure(rules, smaller, sentences) for code, sentences in held_out.items()}
        behind = [code for code, measured in reached.items() if measured.same < coverage]
        if not any(added < _count_added(needed[code], 0) for code in behind):
            break
        missing /= 2
    listed = ", ".join(f"{code} {measured.same:.4f}" for code, measured in reached.items())
    log(f"vocabulary: of held-out tokens are cut as before {listed}")
    if behind:
        log(
            f"vocabulary: {coverage} is not reached in {', '.join(behind)}, and no more subwords of their scripts "
            "help. More text in them, or text that is less mixed, does."
        )
    metrics = (measured.metrics(code).items() for code, measured in reached.items())
    return LanguageSubwords(ids, dict(chain.from_iterable(metrics)))


def _order_candidates(
    letters: Mapping[str, set[str]], text_of: Mapping[int, str], document: TokenizerJson, base: set[int]
) -> list[int]:
    """Sorts the ids outside `base` by their best rank in any of the languages."""
    ranks: dict[int, Rank] = {}
    for code, of_language in letters.items():
        for index, rank in rank_candidates(code, of_language, text_of, document).items():
            ranks[index] = min(rank, ranks.get(index, rank))
    return sorted(ranks.keys() - base, key=ranks.__getitem__)


def _read(code: str, texts: Iterable[str], rules: Tokenizer) -> tuple[set[str], list[str]]:
    """Reads the letters of a language's text, and a sample of its held-out part."""
    letters: set[str] = set()
    normalize = rules.normalizer.normalize_str if rules.normalizer else str
    for text in iterate_texts(texts, f"languages: {code}"):
        if not is_held_out(text):
            letters.update(normalize(text).casefold())  # as subwords have them: without accents, for example
    held_out = sample_texts((text for text in texts if is_held_out(text)), HELD_OUT_SENTENCES)
    if not held_out:
        raise RequestError(
            f"languages: expected text in {code}, a tenth of which is held out to measure on, found none that is; "
            "give some hundred sentences"
        )
    return letters, held_out


def _needed(rules: Tokenizer, texts: list[str], order: Mapping[int, int]) -> NDArray[np.int64]:
    """Returns for each token of `texts` the number of candidates up to its subword, (tokens,), ascending.

    0 for a subword of the base, NEVER for one that is no candidate.
    """
    encodings = rules.encode_batch_fast(texts, add_special_tokens=False)
    return np.sort(np.array([order.get(index, NEVER) for encoding in encodings for index in encoding.ids], np.int64))


def _count_added(needed: NDArray[np.int64], missing: float) -> int:
    """Counts the candidates without which more than the fraction `missing` of tokens would lack their subword.

    Example: needed [0, 0, 3, 7] and missing 0.25: with 3 candidates one of four tokens lacks its subword.
    """
    last = math.ceil((1 - missing) * len(needed)) - 1
    return int(needed[needed < NEVER][: last + 1].max(initial=0))
