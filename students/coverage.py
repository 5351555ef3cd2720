"""The pieces that languages need beyond a corpus, and how much of held-out text is cut as before with them.

A corpus is never all of a language: trimmed to it alone, other text falls into small pieces, and its vectors move. So
a tenth of each language's text is held out, and pieces of the language's scripts are added until so much of that text
is cut as before as was asked for. Those whose letters its text has come first, each in the tokenizer's own order:
unigram scores are log-probabilities in general text, and WordPiece and BPE count ids by frequency.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import regex
from langcodes import Language as Tag
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from bertrelay.encoder import SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.progress import log
from bertrelay.stage import Metrics
from bertrelay.texts import each_text
from students.translation_files import language_tag
from students.vocabulary import Document, always_kept, document_of, rules_of, rules_of_encoder, used_ids, with_parts

HELD_OUT_SHARE = 0.1
HELD_OUT_SENTENCES = 4000  # of a language, at most
SCRIPTS = {"Jpan": ("Hira", "Kana", "Hani"), "Kore": ("Hang",), "Hans": ("Hani",), "Hant": ("Hani", "Bopo")}
"""The scripts of Unicode behind those of ISO 15924 that are several, or parts of one."""
SHARED = regex.compile(r"[\p{scx=Common}\p{scx=Inherited}]*")
"""Digits, punctuation and symbols."""
IDEOGRAPH = regex.compile(r"\p{scx=Hani}")
NO_TEXT = regex.compile(r".*\uFFFD.*|[\[<].+[\]>]", regex.DOTALL)
"""A part of a character's bytes, or a name such as [unused1]."""
BYTE = regex.compile("<0x[0-9A-F]{2}>")
NEVER = np.iinfo(np.int64).max

Ranks = NDArray[np.int64]


def place_of(text: str) -> bytes:
    """Where a text stands in an order that depends on nothing but the texts themselves."""
    return hashlib.sha256(text.encode()).digest()


def is_held_out(text: str) -> bool:
    """Whether a text is in the tenth that is only measured on; equal texts are on the same side."""
    return int.from_bytes(place_of(text)[:8]) < HELD_OUT_SHARE * 2**64


def sample_of(texts: Iterable[str], count: int) -> list[str]:
    """At most `count` texts that are not blank, each once: those of the smallest digests, whatever their order."""
    by_place: dict[bytes, str] = {}
    for text in each_text(texts, "texts"):
        if text.strip():
            by_place[place_of(text)] = text
        if len(by_place) >= 4 * count:
            by_place = dict(sorted(by_place.items())[:count])
    return [text for _, text in sorted(by_place.items())[:count]]


def scripts_of(language: str) -> tuple[str, ...]:
    """The scripts of Unicode that a language is written in: Latn of de, Cyrl of sr, Latn of sr-Latn.

    Raises RequestError for a language whose script is not known.
    """
    try:
        script = Tag.get(language_tag(language)).maximize().script or ""
        scripts = SCRIPTS.get(script, (script,))
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
    """The text of every piece that is one, by id."""
    decoded = rules.decoder.decode if rules.decoder else "".join
    texts = {index: decoded([piece]) for piece, index in rules.get_vocab().items() if not NO_TEXT.fullmatch(piece)}
    return {index: text for index, text in texts.items() if not NO_TEXT.fullmatch(text)}


def candidates_of(language: str, letters: set[str], texts: Mapping[int, str], document: Document) -> list[int]:
    """The ids of pieces in the scripts of `language`, the most useful first.

    letters: of the language's text, in lower case. Of ideographs no text has all, so none of them is unfamiliar.
    """
    written, model = _written_in(scripts_of(language)), document["model"]

    def place(index: int) -> tuple[bool, float]:
        unfamiliar = any(
            letter.isalpha() and letter not in letters and not IDEOGRAPH.match(letter)
            for letter in texts[index].casefold()
        )
        return unfamiliar, -model["vocab"][index][1] if model["type"] == "Unigram" else index

    return sorted((index for index, text in texts.items() if written.fullmatch(text)), key=place)


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
class Language:
    """A language's held-out text, its candidates, and for each held-out token how many of them must be added.

    ranks: 0 for a piece that is there anyway, NEVER for one that is no candidate. int64 (tokens,), ascending
    """

    held_out: list[str]
    candidates: list[int]
    ranks: Ranks

    def needed(self, missing: float) -> int:
        """How many candidates leave at most the share `missing` of tokens without their piece, as far as they can."""
        place = math.ceil((1 - missing) * len(self.ranks)) - 1
        return int(self.ranks[self.ranks < NEVER][: place + 1].max(initial=0))


@dataclass(frozen=True)
class LanguagePieces:
    """The ids that languages need, and what is reached with them on held-out text, as metrics."""

    ids: set[int]
    metrics: Metrics


def pieces_of_languages(
    encoder: SentenceEncoder, texts: Iterable[str], languages: Mapping[str, Iterable[str]], coverage: float
) -> LanguagePieces:
    """The pieces of `texts` that are not held out, and of each language so many that `coverage` is reached.

    languages: code to text in it; read several times, never held. coverage: the share of held-out tokens to be cut as
    before. Where no more pieces of its scripts help, that is logged with what was reached.
    Raises RequestError for a language without text, or whose script is not known.
    """
    rules = rules_of_encoder(encoder)
    document, by_id = document_of(rules), piece_texts(rules)
    learnt = (text for text in each_text(texts, "texts") if not is_held_out(text))
    shared = {index for index, text in by_id.items() if SHARED.fullmatch(text)}
    base = with_parts(document, used_ids(rules, document, learnt) | always_kept(document, rules) | shared)
    read = {code: _language(code, of, rules, document, by_id, base) for code, of in languages.items()}
    missing = dict.fromkeys(read, 1 - coverage)
    while True:
        added = {code: language.needed(missing[code]) for code, language in read.items()}
        more = chain.from_iterable(language.candidates[: added[code]] for code, language in read.items())
        ids = with_parts(document, base.union(more))
        smaller = rules_of(document, ids)
        reached = {code: Coverage.of(rules, smaller, language.held_out) for code, language in read.items()}
        behind = [code for code in read if reached[code].same < coverage]
        growing = [code for code in behind if added[code] < read[code].needed(0)]
        if not growing:
            break
        missing |= {code: missing[code] / 2 for code in growing}
    _log(reached, behind, coverage)
    return LanguagePieces(ids, _metrics(reached))


def _language(
    code: str, texts: Iterable[str], rules: Tokenizer, document: Document, by_id: Mapping[int, str], base: set[int]
) -> Language:
    letters: set[str] = set()
    for text in each_text(texts, f"languages: {code}"):
        if not is_held_out(text):
            letters.update(text.casefold())
    held_out = sample_of((text for text in texts if is_held_out(text)), HELD_OUT_SENTENCES)
    if not held_out:
        raise RequestError(
            f"languages: expected text in {code}, a tenth of which is held out to measure on, found none that is; "
            "give some hundred sentences"
        )
    candidates = [index for index in candidates_of(code, letters, by_id, document) if index not in base]
    ranks = dict.fromkeys(base, 0) | {index: rank for rank, index in enumerate(candidates, 1)}
    cut = rules.encode_batch_fast(held_out, add_special_tokens=False)
    needed = [ranks.get(index, NEVER) for encoding in cut for index in encoding.ids]
    return Language(held_out, candidates, np.sort(np.array(needed, np.int64)))


def _log(reached: Mapping[str, Coverage], behind: Sequence[str], coverage: float) -> None:
    listed = ", ".join(f"{code} {found.same:.4f}" for code, found in reached.items())
    log(f"vocabulary: of held-out tokens are cut as before {listed}")
    if behind:
        log(
            f"vocabulary: {coverage} is not reached in {', '.join(behind)}, and no more pieces of their scripts help. "
            "More text in them, or text that is less mixed, does."
        )


def _metrics(reached: Mapping[str, Coverage]) -> Metrics:
    metrics: Metrics = {}
    for code, found in reached.items():
        metrics |= {
            f"coverage/{code}": found.same,
            f"coverage_sentences/{code}": found.same_sentences,
            f"coverage_unknown/{code}": found.unknown,
            f"coverage_tokens/{code}": found.tokens,
        }
    return metrics
