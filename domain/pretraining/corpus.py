"""A corpus of documents: sentences tokenized once, in shards of some ten thousand, memory-mapped from the run's cache.

A shard is an Arrow file that `datasets` writes and reads, a document a row, and a JSON file that is written after it
and records how far the input was read. A kill costs the shard that was being written, and no more.
"""

import os
import secrets
import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, List, Value
from datasets.arrow_writer import ArrowWriter
from filelock import FileLock
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from bertrelay.data.records import Rejects
from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, read_json, sync_folder, write_json
from bertrelay.fingerprint import Digests, content_parts, fingerprint
from bertrelay.progress import log, progress
from domain.pretraining.documents import NO_TEXT, Item, SkippedDocument, TextDocument
from domain.pretraining.readers import Files, files_of, read_all
from domain.pretraining.settings import DocumentSource
from domain.pretraining.vocabulary import before_sentences, plain_rules
from domain.sentences import sentence_spans

SHARD_SENTENCES = 2**16
BATCH = 2048  # sentences tokenized at once
FEATURES = Features(
    {
        "group": Value("int64"),
        "held_out": Value("bool"),
        "lengths": List(Value("int32")),
        "ids": List(Value("int32")),
    }
)
HASH_KEY = b"bertrelay documents"

Tokenize = Callable[[Sequence[str]], list[list[int]]]


class Position(NamedTuple):
    """How far the input is read: the number of a file, and how many of its items."""

    file: int
    item: int


@dataclass(frozen=True)
class Grouping:
    """Which documents are of one group, a patient's for example, and which groups are held out.

    key: of the hashes of groups in shards. Drawn for a corpus and deleted with its last shard, so that nobody can try
        which patient a hash is of.
    held_out_share: of the groups. A hash without a secret chooses them, in every corpus the same; only its verdict is
        written.
    """

    key: bytes
    held_out_share: float

    def __call__(self, document: TextDocument) -> tuple[int, bool]:
        """A hash that documents of one group share, and whether they are held out.

        A document without a group goes by its own id, or by its text where it has none. Hashes need no list of all
        groups in memory, and choose who is held out whoever else is there.
        """
        kind, name = ("group", document.group) if document.group else ("document", document.id or document.text)
        named = f"{kind}\0{name}".encode()
        place = int.from_bytes(blake2b(named, digest_size=8, key=HASH_KEY).digest(), "little")
        group = int.from_bytes(blake2b(named, digest_size=8, key=self.key).digest(), "little", signed=True)
        return group, place < self.held_out_share * 2.0**64


@dataclass
class Draft:
    """The documents of a shard to be written, as sentences, and the counts of all that was read for it."""

    after: Position
    grouping: Grouping
    groups: list[int] = field(default_factory=list)
    held_out: list[bool] = field(default_factory=list)
    documents: list[list[str]] = field(default_factory=list)
    sentences: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    rejects: list[Unusable] = field(default_factory=list)

    def add(self, item: Item) -> None:
        match item:
            case SkippedDocument():
                self.left_out[item.reason] += 1
            case Unusable():
                self.rejects.append(item)
            case TextDocument():
                group, is_held_out = self.grouping(item)
                self.groups.append(group)
                self.held_out.append(is_held_out)
                self.documents.append(_sentences(item.text))
                self.sentences += len(self.documents[-1])


def drafts(items: Iterator[tuple[Position, Item]], grouping: Grouping) -> Iterator[Draft]:
    """The items in runs of whole documents with `SHARD_SENTENCES` or some more."""
    draft = None
    for position, item in items:
        draft = draft or Draft(position, grouping)
        draft.add(item)
        draft.after = position
        if draft.sentences >= SHARD_SENTENCES:
            yield draft
            draft = None
    if draft:
        yield draft


def _sentences(text: str) -> list[str]:
    return [" ".join(text[start:end].split()) for start, end in sentence_spans(text)]


class Shard(NamedTuple):
    """A shard as it lies on the disk, memory-mapped.

    groups: a hash of each document's group, (documents,). held_out: whether it is held out, (documents,).
    document_starts: number of the first sentence of each document, and after the last one, (documents + 1,).
    lengths: tokens of each sentence, at least 1, (sentences,).
    ids: of all tokens, end to end, (tokens,).
    """

    groups: NDArray[np.int64]
    held_out: NDArray[np.bool_]
    document_starts: NDArray[np.int32]
    lengths: NDArray[np.int32]
    ids: NDArray[np.int32]


def write_shard(path: Path, draft: Draft, tokenize: Tokenize, unknown_id: int | None) -> dict[str, Any]:
    """Tokenizes and writes a shard, and returns its facts; both are on the disk then, the facts as JSON beside it."""
    shard = _tokenized(draft, tokenize)
    with path.open("wb") as file:
        with ArrowWriter(stream=file, features=FEATURES) as writer:
            writer.write_table(_table(shard), max(len(shard.groups), 1))
            writer.finalize(close_stream=False)
        os.fsync(file.fileno())
    without_text = len(draft.groups) - len(shard.groups)
    facts = {
        "after": draft.after,
        "documents": len(shard.groups),
        "documents_of_one_sentence": int(np.count_nonzero(np.diff(shard.document_starts) == 1)),
        "sentences": len(shard.lengths),
        "tokens": len(shard.ids),
        "unknown_tokens": int(np.count_nonzero(shard.ids == unknown_id)),
        "left_out": dict(draft.left_out + Counter({NO_TEXT: without_text})),
        "rejects": [(found.file, found.line, found.reason) for found in draft.rejects],
    }
    write_json(path.with_suffix(".json"), facts, compact=True)
    return facts


def read_facts(path: Path) -> dict[str, Any] | None:
    """The facts of a shard that is done, else None."""
    return read_json(path.with_suffix(".json"))


def open_shard(path: Path) -> Shard:
    """Maps a shard into memory."""
    columns = Dataset.from_file(str(path)).data
    groups, held_out, lengths, ids = (_only_chunk(columns.column(name)) for name in FEATURES)
    return Shard(
        groups.to_numpy(),
        held_out.to_numpy(zero_copy_only=False),
        lengths.offsets.to_numpy(),
        lengths.values.to_numpy(),
        ids.values.to_numpy(),
    )


def _only_chunk(column: pa.ChunkedArray) -> pa.Array:
    """All of a column without copying it; an Arrow file of no rows has no chunk."""
    return column.chunk(0) if column.num_chunks else column.combine_chunks()


def _tokenized(draft: Draft, tokenize: Tokenize) -> Shard:
    """Sentences without a token (control characters and the like) go, and documents of such sentences alone."""
    texts = list(chain.from_iterable(draft.documents))
    batches = [_flat(tokenize(texts[start : start + BATCH])) for start in range(0, len(texts), BATCH)]
    ids, lengths = (np.concatenate([np.empty(0, np.int32), *(batch[part] for batch in batches)]) for part in (0, 1))
    document = np.repeat(np.arange(len(draft.documents)), [len(sentences) for sentences in draft.documents])
    sentences = np.bincount(document[lengths > 0], minlength=len(draft.documents))
    document_starts = _starts(sentences[sentences > 0])
    groups, held_out = np.array(draft.groups, np.int64), np.array(draft.held_out, bool)
    kept = sentences > 0
    return Shard(groups[kept], held_out[kept], document_starts, lengths[lengths > 0], ids)


def _flat(rows: list[list[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The ids of rows, end to end, and the length of each."""
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    return np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths


def _starts(counts: NDArray[np.integer]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _table(shard: Shard) -> pa.Table:
    token_starts = _starts(shard.lengths)[shard.document_starts]
    lists = ((shard.document_starts, shard.lengths), (token_starts, shard.ids))
    columns = [pa.ListArray.from_arrays(pa.array(starts), pa.array(values)) for starts, values in lists]
    return pa.table([pa.array(shard.groups), pa.array(shard.held_out), *columns], schema=FEATURES.arrow_schema)


VERSION = 2  # raised when the same documents begin to give other sentences or tokens
COUNTS = ("documents", "documents_of_one_sentence", "sentences", "tokens", "unknown_tokens")
FACTS, REJECTS, KEY = "corpus.json", "rejects.jsonl", "groups.key"
KEY_BYTES = 32
FLAT_FILES = {"lengths": np.int32, "document_starts": np.int64, "groups": np.int64, "held_out": np.bool_}


class Corpus:
    """Token ids of sentences, without special tokens, in the order of their documents. What is large lies on disk.

    lengths: tokens of each sentence, at least 1. int32 (sentences,)
    document_starts: number of the first sentence of each document, and after the last one. int64 (documents + 1,)
    groups: equal for documents of one group (a patient), else of the document itself; counted as they are first met.
        int64 (documents,)
    held_out: documents kept out of training, whole groups of them, as their hash decides. bool (documents,)
    facts: of `corpus.json`: documents, sentences, tokens, and what was left out, by reason.
    rejects: the file that lists unusable documents by file and line.
    """

    def __init__(self, folder: Path) -> None:
        self.facts: dict[str, Any] = read_json(folder / FACTS) or {}
        self.rejects = folder / REJECTS
        self.lengths, self.document_starts, self.groups, self.held_out = (
            np.memmap(folder / f"{name}.bin", kind, "r").view(np.ndarray) for name, kind in FLAT_FILES.items()
        )
        self._shards = [shard.ids for shard in _open_shards(folder, self.facts["shards"])]
        self._shard_starts = np.cumsum([0, *map(len, self._shards)]).tolist()

    def __len__(self) -> int:
        """The number of sentences."""
        return len(self.lengths)

    def tokens(self, start: int, stop: int) -> NDArray[np.int32]:
        """The ids at places `start` to `stop`, the last one not included; inside a document a view, read-only."""
        shard = bisect_right(self._shard_starts, start, hi=len(self._shards)) - 1
        first, end = self._shard_starts[shard : shard + 2]
        here = self._shards[shard][start - first : stop - first]
        return here if stop <= end else np.concatenate([here, self.tokens(end, stop)])


def build_corpus(
    sources: Sequence[DocumentSource],
    tokenizer: PreTrainedTokenizerBase,
    cache: Path,
    digests: Digests,
    held_out_share: float = 0.0,
    rejects_limit: float = 0.01,
) -> Corpus:
    """The corpus of `sources`, prepared unless it is in the cache; killed, it resumes at the shard it was at.

    held_out_share: of documents, or groups, to hold out.
    rejects_limit: the share of documents that may be unusable; those without text are counted and stop nothing.
    Raises RequestError for input that cannot be read or holds no text, and where nothing or all would be held out;
    WorkError for too many unusable documents.
    """
    files = [(source, file) for source in sources for file in files_of(source)]
    rules = plain_rules(tokenizer)
    key = _key(sources, rules, digests, held_out_share)
    corpora = cache / "documents"
    folder, building = corpora / key, corpora / f"{key}.partial"
    corpora.mkdir(parents=True, exist_ok=True)
    with FileLock(corpora / f"{key}.lock"):
        if not folder.is_dir():
            if not (building / FACTS).is_file():
                grouping = Grouping(_group_key(building), held_out_share)
                _prepare(building, files, rules, tokenizer.unk_token_id, rejects_limit, grouping)
            (building / KEY).unlink(missing_ok=True)
            building.rename(folder)
            sync_folder(corpora)
    corpus = Corpus(folder)
    _log(corpus.facts)
    _check_held_out(corpus, held_out_share)
    return corpus


def _key(sources: Sequence[DocumentSource], rules: Tokenizer, digests: Digests, held_out_share: float) -> str:
    """Stands for all that decides the corpus: content and settings of its sources, and the tokenizer's rules."""
    parts = [content_parts(source, type(source).model_fields, digests) for source in sources]
    decisive = {"version": VERSION, "sources": parts, "rules": rules.to_str(), "held_out_share": held_out_share}
    return fingerprint(decisive)[:32]


def _group_key(building: Path) -> bytes:
    """The secret of a corpus that is being prepared; shards whose key is gone are made again."""
    file = building / KEY
    if not file.is_file():
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        with atomic_write(file) as path:
            path.write_bytes(secrets.token_bytes(KEY_BYTES))
    return file.read_bytes()


def _prepare(
    folder: Path, files: Files, rules: Tokenizer, unknown_id: int | None, rejects_limit: float, grouping: Grouping
) -> None:
    space = before_sentences(rules)

    def tokenize(sentences: Sequence[str]) -> list[list[int]]:
        texts = [space + sentence for sentence in sentences]
        return [row.ids for row in rules.encode_batch_fast(texts, add_special_tokens=False)]

    with Rejects(folder / REJECTS, rejects_limit) as rejects:
        facts = _done_before(folder, rejects)
        at = Position(*facts[-1]["after"]) if facts else Position(0, 0)
        if facts:
            log(f"preparing documents: resuming after {sum(shard['sentences'] for shard in facts):,} sentences")
        with progress("preparing documents", len(files), "files", at.file) as bar:
            for draft in drafts(_items(files, at, rejects), grouping):
                facts.append(write_shard(folder / _shard_name(len(facts)), draft, tokenize, unknown_id))
                bar.advance(draft.after.file - at.file, f"{sum(shard['sentences'] for shard in facts):,} sentences")
                at = draft.after
            bar.advance(len(files) - at.file)
    _finish(folder, facts, rejects)


def _done_before(folder: Path, rejects: Rejects) -> list[dict[str, Any]]:
    """The facts of the shards that are done, in order, with what they rejected."""
    facts: list[dict[str, Any]] = []
    while (shard := read_facts(folder / _shard_name(len(facts)))) is not None:
        rejects.used(shard["documents"] + sum(shard["left_out"].values()))
        for file, line, reason in shard["rejects"]:
            rejects.add(file, line, reason)
        facts.append(shard)
    return facts


def _items(files: Files, start: Position, rejects: Rejects) -> Iterator[tuple[Position, Item]]:
    """What the files give after `start`."""
    for file, number, item in read_all(files, *start):
        if isinstance(item, Unusable):
            rejects.add(item.file, item.line, item.reason)
        else:
            rejects.used()
        yield Position(file, number), item


def _finish(folder: Path, shards: list[dict[str, Any]], rejects: Rejects) -> None:
    """Lays what is looked up for the whole corpus beside the shards, and the facts."""
    counts = {name: sum(shard[name] for shard in shards) for name in COUNTS}
    left_out: Counter[str] = sum((Counter(shard["left_out"]) for shard in shards), Counter())
    if not counts["documents"]:
        raise RequestError(
            f"documents: no document with text was found (left out {_listed(left_out)}). Check files and columns."
        )
    facts = {**counts, "left_out": left_out, "rejects": rejects.counts, "shards": len(shards)}
    _write_flat(folder, _open_shards(folder, len(shards)))
    write_json(folder / FACTS, facts)  # last: its presence means all is there


def _open_shards(folder: Path, count: int) -> list[Shard]:
    return [open_shard(folder / _shard_name(number)) for number in range(count)]


def _write_flat(folder: Path, shards: list[Shard]) -> None:
    """Writes `FLAT_FILES`; the shards are mapped, so all of them at once take no memory."""
    _write(folder / "lengths.bin", (shard.lengths for shard in shards))
    _write(folder / "document_starts.bin", _running_total(np.diff(shard.document_starts) for shard in shards))
    _write(folder / "groups.bin", [_as_first_met(np.concatenate([shard.groups for shard in shards]))])
    _write(folder / "held_out.bin", (shard.held_out for shard in shards))


def _as_first_met(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Hashes as numbers from 0, which the order of the documents alone decides."""
    _, first, number = np.unique(groups, return_index=True, return_inverse=True)
    found: NDArray[np.int64] = np.argsort(np.argsort(first))[number].astype(np.int64)
    return found


def _running_total(parts: Iterable[NDArray[np.int32]]) -> Iterator[NDArray[np.int64]]:
    """0, and the total up to each number."""
    total = np.int64(0)
    yield np.array([total])
    for part in parts:
        totals = total + np.cumsum(part, dtype=np.int64)
        total = totals[-1] if len(totals) else total
        yield totals


def _write(path: Path, parts: Iterable[NDArray[Any]]) -> None:
    with path.open("wb") as file:
        for part in parts:
            file.write(part.data)
        file.flush()
        os.fsync(file.fileno())


def _shard_name(number: int) -> str:
    return f"{number:06}.arrow"


def _log(facts: dict[str, Any]) -> None:
    unknown = facts["unknown_tokens"] / facts["tokens"]
    log(
        f"documents: {facts['documents']:,}, with {facts['sentences']:,} sentences and {facts['tokens']:,} tokens, "
        f"{unknown:.2%} of them unknown to the vocabulary; {facts['documents_of_one_sentence']:,} have one sentence, "
        f"which begins no pair of sentences; left out {_listed(facts['left_out'])}"
    )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} × {reason}" for reason, count in sorted(counts.items())) or "none"


def _check_held_out(corpus: Corpus, share: float) -> None:
    held_out, documents = int(corpus.held_out.sum()), len(corpus.held_out)
    if share > 0 and held_out in (0, documents):
        raise RequestError(
            f"held_out_share: {share:g} of {documents:,} documents holds {'none' if not held_out else 'all'} of them "
            "out, because whole groups go by a hash. Give another share, or more documents."
        )
