"""An admission's text cut into chunks that a model can read at once, ending with a sentence where possible.

The text is tokenized once, as a whole. Chunks are spans of its characters and slices of its tokens, so nothing is
lost or counted twice: without overlap the spans of an admission, one after the other, are its text.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertrelay.blocks import blocks_of
from bertrelay.cache import cached_folder
from bertrelay.compute.engine import LOCAL_ENGINE, Engine
from bertrelay.compute.work import Compute, Work
from bertrelay.data.shards import ShardFiles, SpanReader, cut_spans
from bertrelay.data.tokens import pad_rows
from bertrelay.errors import RequestError
from bertrelay.files import read_json, write_json
from bertrelay.inference.run_model import connect, fill_shards
from bertrelay.model.tokenizer import before_sentences, plain_rules
from bertrelay.progress import Bar, log
from domain.clinical.settings import ChunkSettings
from domain.text.sentences import sentence_spans
from domain.text.words import UNSPACED

Integers = NDArray[np.int64]

TEXTS_AT_ONCE = 32
"""Tokenized side by side, which bounds the memory whatever the number of admissions."""
SHARD_CHARACTERS = 400_000
"""Characters of notes whose chunks a kill costs at most."""
IDS, CHUNKS, DONE, FORMAT = "ids.bin", "chunks.bin", "done.json", 4
"""Files of stored chunks, and the number to raise where their content changes."""


class Chunk(NamedTuple):
    """A part of an admission's text.

    start, end: in characters of the text; white space after a sentence belongs to it.
    ids: of its tokens, special ones included, int32 (tokens,).
    """

    start: int
    end: int
    ids: NDArray[np.int32]


class Chunks(NamedTuple):
    """The chunks of an admission, and how many `max_chunks` left out."""

    used: list[Chunk]
    lost_chunks: int = 0


class Chunker:
    """Cuts texts into chunks by one tokenizer; made once, called for as many texts as there are.

    Raises RequestError for a `max_tokens` that special tokens alone would fill.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: ChunkSettings) -> None:
        self.settings = settings
        self._rules = plain_rules(tokenizer)
        self._space = before_sentences(self._rules)
        self.unknown_id = tokenizer.unk_token_id
        vocabulary, special = tokenizer.get_vocab(), set(tokenizer.all_special_tokens)
        self.is_word = np.zeros(max(vocabulary.values(), default=0) + 1, bool)  # (vocabulary,)
        for token, number in vocabulary.items():
            is_mark = token in special or (token.startswith("[") and token.endswith("]"))  # [UNK], [DATE]
            self.is_word[number] = not is_mark and any(character.isalnum() for character in token)
        self.begins_word = _word_starts(vocabulary)  # (vocabulary,)
        around = self._rules.encode("a")
        ids, letters = np.array(around.ids, np.int32), np.flatnonzero(np.array(around.special_tokens_mask) == 0)
        self._before, self._after = (ids[: letters[0]], ids[letters[-1] + 1 :]) if len(letters) else (ids, ids[:0])
        self.specials = len(self._before) + len(self._after)
        self.longest = settings.max_tokens - self.specials
        if self.longest <= settings.overlap:
            raise RequestError(
                f"max_tokens: expected more than the overlap of {settings.overlap} besides the tokenizer's "
                f"{self.specials} special tokens, found {settings.max_tokens}"
            )

    def __call__(self, text: str) -> Chunks:
        """The chunks of one text; none of one that is empty, white space alone, or nothing to the tokenizer."""
        return next(self.of_texts([text]))

    def of_texts(self, texts: Iterable[str]) -> Iterator[Chunks]:
        """The chunks of each text, in the order of the texts, which may be a stream."""
        for block in blocks_of(texts, TEXTS_AT_ONCE):
            encodings = self._rules.encode_batch([self._space + text for text in block], add_special_tokens=False)
            for text, encoding in zip(block, encodings, strict=True):
                chunks = list(self._chunks(text, encoding))
                used = chunks[: self.settings.max_chunks]
                yield Chunks(used, len(chunks) - len(used))

    def _chunks(self, text: str, encoding: Encoding) -> Iterator[Chunk]:
        if not encoding.ids or not text.strip():
            return
        ids = np.array(encoding.ids, np.int32)  # (tokens,)
        offsets = np.array(encoding.offsets, np.int64) - len(self._space)  # (tokens, 2)
        starts, ends = np.maximum.accumulate(np.maximum(offsets, 0)).T
        can_begin = starts >= np.concatenate([[0], ends[:-1]])  # where all tokens before have ended
        borders = np.concatenate([[0], starts[1:], [len(text)]])  # what precedes the first token belongs to it
        sentences = np.searchsorted(starts, [start for start, _ in sentence_spans(text)])
        for first, end in token_spans(sentences, can_begin, self.longest, self.settings.overlap):
            with_specials = np.concatenate([self._before, ids[first:end], self._after])
            yield Chunk(int(borders[first]), int(borders[end]), with_specials)

    def words(self, chunk: str) -> tuple[Integers, Integers, Integers]:
        """A chunk's ids, (tokens,), special ones included; the word of each, -1 of those; its characters, (tokens, 2).

        Tokenized without the text around it, which at its borders may give other subwords.
        """
        encoding = self._rules.encode(self._space + chunk)
        encoding.truncate(self.settings.max_tokens)
        words = [-1 if word is None else word for word in encoding.word_ids]
        spans = np.maximum(np.array(encoding.offsets, np.int64).reshape(-1, 2) - len(self._space), 0)
        return np.array(encoding.ids, np.int64), np.array(words, np.int64), spans


def token_spans(
    sentences: Integers, can_begin: NDArray[np.bool_], longest: int, overlap: int
) -> Iterator[tuple[int, int]]:
    """(first, end) of each chunk, in tokens, of at most `longest` of them.

    sentences: the tokens that sentences begin with, rising.
    can_begin: whether a chunk may begin with a token and tear no character apart, (tokens,).
    A chunk has as many whole sentences as fit. A sentence longer than that is cut: at a token, and where a character is
    several tokens, before it. What a chunk repeats never makes it too short for a sentence that would fit.
    """
    tokens = len(can_begin)
    borders = np.append(sentences, tokens)
    first, end = 0, 0
    while end < tokens:
        last = min(first + longest, tokens)
        fitting = int(borders[np.searchsorted(borders, first + longest, side="right") - 1])
        if fitting <= end:  # the sentence is too long
            cuts = np.flatnonzero(can_begin[end + 1 : last + 1])
            fitting = end + 1 + int(cuts[-1]) if last < tokens and len(cuts) else last
        end = fitting
        yield first, end
        sentence = int(borders[np.searchsorted(borders, end, side="right")]) - end if end < tokens else 0
        repeated = min(overlap, longest - sentence) if sentence <= longest else overlap
        earliest = max(end - repeated, first + 1)
        # The next chunk begins with a sentence where one begins early enough, else with the first token that may.
        begins = sentences[np.searchsorted(sentences, earliest) :][:1]
        if not len(begins) or begins[0] >= end:
            begins = earliest + np.flatnonzero(can_begin[earliest:end])
        first = int(begins[0]) if len(begins) else end


MARKERS = ("##", "Ġ", "▁")
"""How vocabularies mark subwords: WordPiece those inside a word, BPE of bytes and SentencePiece at its start."""
WITHOUT_SPACES = re.compile(f"[{UNSPACED}]")


def _word_starts(vocabulary: Mapping[str, int]) -> NDArray[np.bool_]:
    """Marks tokens that begin a word, (vocabulary,): in a script without spaces all, and all but letters and digits."""
    starts = np.ones(max(vocabulary.values(), default=0) + 1, bool)
    marker = next((marker for marker in MARKERS if any(token.startswith(marker) for token in vocabulary)), "")
    for token, number in vocabulary.items():
        bare, is_marked = token.removeprefix(marker), token.startswith(marker)
        inside = marker != "" and is_marked == (marker == MARKERS[0])
        starts[number] = not inside or not bare[:1].isalnum() or WITHOUT_SPACES.match(bare) is not None
    return starts


UNKNOWN_LIMIT = 0.1
"""The fraction of unknown tokens above which an admission is warned of; BERT's vocabulary knows all but some 0.1 %."""
SUBWORDS_LIMIT, SUBWORDS_RATIO = 2.0, 1.4
"""Subwords a word above which an admission is warned of, and how many times those of the training notes, where they are
known. Of BERT's English vocabulary, English reports have 1.2, up to 1.5; German 1.9, Czech 2.1, Russian 3.7, and
French, with 1.5, is too near to English."""


@dataclass(frozen=True)
class ChunkTokens:
    """Chunks, those of an admission in order, and the admissions that they are of.

    ids: of all tokens, end to end. starts, lengths: of each chunk in `ids`, (chunks,).
    admissions: whose each chunk is, by its place among the texts. spans: the characters of it, (chunks, 2).
    lost_chunks: how many `max_chunks` left out.
    """

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    admissions: NDArray[np.int64]
    spans: NDArray[np.int64]
    lost_chunks: int = 0

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, chunks: NDArray[np.integer], width: int, pad_id: int) -> tuple[Tensor, Tensor]:
        """Ids and attention mask of `chunks`, both (chunks, width), int64."""
        ids, mask = pad_rows(self.ids, self.starts[chunks], self.lengths[chunks], width, pad_id)
        return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))


def unknown_shares(tokens: ChunkTokens, count: int, chunker: Chunker) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The fraction of unknown tokens in each of `count` texts, special ones left out, nan without tokens; and which of
    them the model cannot read: without tokens, or with unknown ones and no known word. Both (count,).

    Punctuation and marks are no words: a text in another script has the former, too.
    """

    def counted(is_counted: NDArray[np.bool_]) -> NDArray[np.float64]:
        of_chunks = np.add.reduceat(is_counted, tokens.starts, dtype=np.int64) if len(tokens) else np.zeros(0)
        return np.bincount(tokens.admissions, of_chunks, count).astype(np.float64)

    unknown = counted(tokens.ids == (-1 if chunker.unknown_id is None else chunker.unknown_id))
    sizes = np.bincount(tokens.admissions, tokens.lengths - chunker.specials, count)
    shares = np.divide(unknown, sizes, out=np.full(count, np.nan), where=sizes > 0)
    return shares, np.isnan(shares) | (shares > 0) & (counted(chunker.is_word[tokens.ids]) == 0)


def subwords_per_word(tokens: ChunkTokens, count: int, chunker: Chunker) -> NDArray[np.float64]:
    """The mean number of subwords in a word, of each of `count` texts, (count,); nan without words.

    Single letters are in every vocabulary, so that a text in another language may have no unknown token.
    """
    sizes = np.bincount(tokens.admissions, tokens.lengths - chunker.specials, count)
    starts = np.zeros(0, np.int64)
    if len(tokens):
        starts = np.add.reduceat(chunker.begins_word[tokens.ids], tokens.starts, dtype=np.int64)
    words = np.bincount(tokens.admissions, starts - chunker.specials, count)  # special ones begin words
    average: NDArray[np.float64] = np.divide(sizes, words, out=np.full(count, np.nan), where=words > 0)
    return average


def warn_of_unknown(shares: NDArray[np.float64], subwords: NDArray[np.float64], usual: float | None = None) -> None:
    """Logs how many admissions have many unknown tokens, or words of many subwords; both (admissions,), nan without.

    usual: the subwords a word of the training notes; where it is not known, `SUBWORDS_LIMIT` decides.
    """
    limit = SUBWORDS_LIMIT if usual is None else SUBWORDS_RATIO * usual
    beside = "" if usual is None else f" (in the training notes {usual:.1f})"
    for above, what in (
        (shares > UNKNOWN_LIMIT, f"more than {UNKNOWN_LIMIT:.0%} of the tokens are unknown to the model"),
        (subwords > limit, f"words are more than {limit:.1f} subwords on average{beside}"),
    ):
        if count := int(above.sum()):
            log(
                f"warning: {what} in {count:,} of {len(shares):,} admissions, whose probabilities mean little; check "
                "the language, encoding and column of the notes"
            )


def warn_of_cut(chunks: NDArray[np.integer], max_chunks: int | None) -> None:
    """Logs how many admissions have as many chunks, (admissions,), as `max_chunks` leaves them."""
    full = 0 if max_chunks is None else int((chunks == max_chunks).sum())
    if full:
        log(
            f"warning: {full:,} of {len(chunks):,} admissions have {max_chunks:,} chunks, the most that the model "
            "reads (max_chunks); what their text has after these is left out"
        )


def chunk_tokens(texts: Iterable[str], chunker: Chunker) -> ChunkTokens:
    """The chunks of some texts, in memory."""
    of_texts = list(chunker.of_texts(texts))
    chunks = [chunk for of_text in of_texts for chunk in of_text.used]
    lengths = np.array([len(chunk.ids) for chunk in chunks], np.int64)
    return ChunkTokens(
        ids=np.concatenate([np.zeros(0, np.int32), *(chunk.ids for chunk in chunks)]),
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
        admissions=np.repeat(np.arange(len(of_texts)), [len(of_text.used) for of_text in of_texts]),
        spans=np.array([(chunk.start, chunk.end) for chunk in chunks], np.int64).reshape(-1, 2),
        lost_chunks=sum(of_text.lost_chunks for of_text in of_texts),
    )


def stored_chunk_tokens(
    texts: Callable[[], Iterator[str]],
    characters: Sequence[int],
    chunker: Chunker,
    folder: Path,
    engine: Engine = LOCAL_ENGINE,
) -> ChunkTokens:
    """The chunks of some texts, read from `folder` or written there first, by whichever process comes first.

    texts: begins to read them; they have so many `characters` each.
    folder: named by the caller after everything the chunks depend on.
    engine: where they are cut; this process sends the texts.
    Killed, it resumes at the shards that are missing. Raises WorkError for texts that changed.
    """
    spans = cut_spans(((size, size) for size in characters), SHARD_CHARACTERS)

    def cut(building: Path) -> None:
        reader = SpanReader(texts, "notes: the input", len)
        work = Work(reader.read, partial(_start, chunker), "cutting notes into chunks", "characters")
        with connect(engine) as executor:
            shards = fill_shards(
                building / "shards",
                spans,
                {"block": SHARD_CHARACTERS},
                work,
                suffix=".npz",
                write=_write_shard,
                executor=executor,
            )
        _assemble(shards, building)
        shards.remove()

    cached_folder(folder, cut, resume=True)
    admissions, starts, ends, lengths = np.fromfile(folder / CHUNKS, np.int64).reshape(-1, 4).T.copy()
    ids: Any = np.memmap(folder / IDS, np.int32, "r") if len(lengths) else np.zeros(0, np.int32)
    lost, spans_of_chunks = read_json(folder / DONE) or {}, np.stack([starts, ends], axis=1)
    return ChunkTokens(ids, np.cumsum(lengths) - lengths, lengths, admissions, spans_of_chunks, **lost)


def _start(chunker: Chunker) -> Compute[list[str], ChunkTokens]:
    """Cuts the texts of spans into chunks, whose admissions count from the first one of their span."""

    def tokens(spans: Iterable[list[str]], bar: Bar) -> Iterator[ChunkTokens]:
        for texts in spans:
            yield chunk_tokens(texts, chunker)
            bar.advance(sum(map(len, texts)))

    return tokens


def _write_shard(path: Path, tokens: ChunkTokens) -> None:
    chunks = np.column_stack([tokens.admissions, tokens.spans, tokens.lengths])  # (chunks, 4)
    with path.open("wb") as file:
        np.savez(file, ids=tokens.ids, chunks=chunks, lost=tokens.lost_chunks)


def _assemble(shards: ShardFiles, folder: Path) -> None:
    """Writes what all shards hold to `folder`."""
    lost = 0
    with (folder / IDS).open("wb") as ids, (folder / CHUNKS).open("wb") as chunks:
        for path, span in zip(shards.complete(), shards.spans, strict=True):
            with np.load(path) as shard:
                ids.write(shard["ids"].tobytes())
                chunks.write((shard["chunks"] + [span.first, 0, 0, 0]).tobytes())
                lost += int(shard["lost"])
    write_json(folder / DONE, {"lost_chunks": lost})
