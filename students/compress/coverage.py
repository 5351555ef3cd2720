"""The pieces that languages need beyond a corpus, and how much of held-out text is cut as before with them.

A corpus is never all of a language: trimmed to it alone, other text falls into small pieces, and its vectors move. So
a tenth of each language's text is held out, and pieces of the language's scripts are added until so much of that text
is cut as before as was asked for. Those whose letters its text has come first, each in the tokenizer's own order:
unigram scores are log-probabilities in general text, and WordPiece and BPE count ids by frequency. The order is one for
all languages: held-out text is of the corpus's domain, and a piece as frequent in general as those of another language
that are needed is kept too.
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
from students.compress.vocabulary import Document, always_kept, document_of, rules_of, usage, with_parts

HELD_OUT_SHARE = 0.1
HELD_OUT_SENTENCES = 4000  # of a language, at most
SHARED = regex.compile(r"[\p{scx=Common}\p{scx=Inherited}]*")
"""Digits, punctuation and symbols."""
IDEOGRAPH = regex.compile(r"\p{scx=Hani}")
NO_TEXT = regex.compile(r".*\uFFFD.*|[\[<].+[\]>]", regex.DOTALL)
"""A part of a character's bytes, or a name such as [unused1]."""
BYTE = regex.compile("<0x[0-9A-F]{2}>")
NEVER = np.iinfo(np.int64).max


def digest_of_text(text: str) -> bytes:
    """The sha256 of a text: an order that depends on nothing but the texts themselves."""
    return hashlib.sha256(text.encode()).digest()


def is_held_out(text: str) -> bool:
    """Whether a text is in the tenth that is only measured on; equal texts are on the same side."""
    return int.from_bytes(digest_of_text(text)[:8]) < HELD_OUT_SHARE * 2**64


def sample_of(texts: Iterable[str], count: int) -> list[str]:
    """At most `count` texts that are not blank, each once: those of the smallest digests, whatever their order."""
    by_digest: dict[bytes, str] = {}
    for text in iterate_texts(texts, "texts"):
        if text.strip():
            by_digest[digest_of_text(text)] = text
        if len(by_digest) >= 4 * count:
            by_digest = dict(sorted(by_digest.items())[:count])
    return [text for _, text in sorted(by_digest.items())[:count]]


def scripts_of(language: str) -> tuple[str, ...]:
    """The scripts of Unicode that a language is written in: Latn of de, Cyrl of sr, Latn of sr-Latn.

    Raises RequestError for a language whose script is not known.
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
    own = "".join(rf"\p{{scx={script}}}" for script in scripts)
    return regex.compile(
        rf"[{own}\p{{scx=Common}}\p{{scx=Inherited}}]*[{own}][{own}\p{{scx=Common}}\p{{scx=Inherited}}]*"
    )


def piece_texts(rules: Tokenizer) -> dict[int, str]:
    """The text of every piece that is one, by id; added tokens, which always stay, are none."""
    decoded = rules.decoder.decode if rules.decoder else "".join
    texts = {index: decoded([piece]) for piece, index in rules.get_vocab(False).items() if not NO_TEXT.fullmatch(piece)}
    return {index: text for index, text in texts.items() if not NO_TEXT.fullmatch(text)}


Rank = tuple[bool, float]
"""Of a piece in the order of usefulness: whether the language's text lacks letters of it, and the tokenizer's order."""


def candidates_of(language: str, letters: set[str], texts: Mapping[int, str], document: Document) -> dict[int, Rank]:
    """The ids of pieces in the scripts of `language`, with their rank among all candidates.

    letters: of the language's text, in lower case. Of ideographs no text has all, so none of them is unfamiliar.
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
    """How held-out text is cut with fewer pieces.

    same: share of its tokens that are the same, at the same place. same_sentences: share of sentences all of whose
    tokens are. unknown: share of the new tokens that are unknown, or single bytes. tokens: how many there were before.
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
    def of(cls, before: Tokenizer, after: Tokenizer, texts: Sequence[str]) -> "Coverage":
        """Of `texts`, cut by the tokenizer as it was and as it is."""
        same = whole = unknown = tokens = count = 0
        name = _unknown_piece(after)
        old, new = (rules.encode_batch(list(texts), add_special_tokens=False) for rules in (before, after))
        for first, second in zip(old, new, strict=True):
            cut, shared = _cut(first), (_cut(first) & _cut(second)).total()
            same, tokens, count = same + shared, tokens + cut.total(), count + len(second)
            whole += shared == cut.total() == len(second)
            unknown += sum(token == name or BYTE.fullmatch(token) is not None for token in second.tokens)
        return cls(same / max(tokens, 1), whole / max(len(texts), 1), unknown / max(count, 1), tokens)


def _cut(encoding: Encoding) -> Counter[tuple[str, tuple[int, int]]]:
    return Counter(zip(encoding.tokens, encoding.offsets, strict=True))


def _unknown_piece(rules: Tokenizer) -> str | None:
    model = document_of(rules)["model"]
    if model["type"] == "Unigram":
        return None if model["unk_id"] is None else str(model["vocab"][model["unk_id"]][0])
    unknown: str | None = model["unk_token"]
    return unknown


@dataclass(frozen=True)
class LanguagePieces:
    """The ids that languages need, and what is reached with them on held-out text, as metrics."""

    ids: set[int]
    metrics: Metrics


def pieces_of_languages(
    encoder: SentenceEncoder, texts: Iterable[str], languages: Mapping[str, Iterable[str]], coverage: float
) -> LanguagePieces:
    """The pieces of `texts` that are not held out, and so many of all languages that each reaches `coverage`.

    languages: code to text in it; read several times, never held. coverage: the share of held-out tokens to be cut as
    before. Where no more pieces of its scripts help, that is logged with what was reached.
    Raises RequestError for a language without text, or whose script is not known.
    """
    rules = plain_rules(encoder.tokenizer)
    document, by_id = document_of(rules), piece_texts(rules)
    learnt = (text for text in iterate_texts(texts, "texts") if not is_held_out(text))
    shared = {index for index, text in by_id.items() if SHARED.fullmatch(text)}
    base = with_parts(document, usage(rules, document, learnt)[0] | always_kept(document, rules) | shared)
    read = {code: _read(code, of, rules) for code, of in languages.items()}
    rank_of: dict[int, Rank] = {}
    for code, (letters, _) in read.items():
        for index, rank in candidates_of(code, letters, by_id, document).items():
            rank_of[index] = min(rank, rank_of.get(index, rank))
    candidates = sorted(rank_of.keys() - base, key=rank_of.__getitem__)
    ranks = dict.fromkeys(base, 0) | {index: rank for rank, index in enumerate(candidates, 1)}
    needed = {code: _ranks(rules, held_out, ranks) for code, (_, held_out) in read.items()}
    missing = 1 - coverage
    while True:
        added = max(_added(of_tokens, missing) for of_tokens in needed.values())
        ids = with_parts(document, base.union(candidates[:added]))
        smaller = rules_of(document, ids)
        reached = {code: Coverage.of(rules, smaller, held_out) for code, (_, held_out) in read.items()}
        behind = [code for code, found in reached.items() if found.same < coverage]
        if not any(added < _added(needed[code], 0) for code in behind):
            break
        missing /= 2
    listed = ", ".join(f"{code} {found.same:.4f}" for code, found in reached.items())
    log(f"vocabulary: of held-out tokens are cut as before {listed}")
    if behind:
        log(
            f"vocabulary: {coverage} is not reached in {', '.join(behind)}, and no more pieces of their scripts help. "
            "More text in them, or text that is less mixed, does."
        )
    metrics = (found.metrics(code).items() for code, found in reached.items())
    return LanguagePieces(ids, dict(chain.from_iterable(metrics)))


def _read(code: str, texts: Iterable[str], rules: Tokenizer) -> tuple[set[str], list[str]]:
    """The letters of a language's text, and the part of it that is held out."""
    letters: set[str] = set()
    normalize = rules.normalizer.normalize_str if rules.normalizer else str
    for text in iterate_texts(texts, f"languages: {code}"):
        if not is_held_out(text):
            letters.update(normalize(text).casefold())  # as pieces have them: without accents, for example
    held_out = sample_of((text for text in texts if is_held_out(text)), HELD_OUT_SENTENCES)
    if not held_out:
        raise RequestError(
            f"languages: expected text in {code}, a tenth of which is held out to measure on, found none that is; "
            "give some hundred sentences"
        )
    return letters, held_out


def _ranks(rules: Tokenizer, texts: list[str], ranks: Mapping[int, int]) -> NDArray[np.int64]:
    """For each token of `texts` how many candidates must be added until its piece is there, (tokens,), ascending.

    0 for a piece that is there anyway, NEVER for one that is no candidate.
    """
    cut = rules.encode_batch_fast(texts, add_special_tokens=False)
    return np.sort(np.array([ranks.get(index, NEVER) for encoding in cut for index in encoding.ids], np.int64))


def _added(needed: NDArray[np.int64], missing: float) -> int:
    """How many candidates leave at most the share `missing` of tokens without their piece, as far as they can."""
    place = math.ceil((1 - missing) * len(needed)) - 1
    return int(needed[needed < NEVER][: place + 1].max(initial=0))
