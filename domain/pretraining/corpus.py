"""A corpus of documents: sentences tokenized once, memory-mapped from the run's cache ever after."""

import os
import secrets
import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
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
from domain.pretraining.documents import Item
from domain.pretraining.readers import Files, files_of, read_all
from domain.pretraining.shards import Grouping, Position, Shard, drafts, open_shard, read_facts, write_shard
from domain.pretraining.sources import DocumentSource
from domain.pretraining.vocabulary import before_sentences, plain_rules

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
    facts: what `corpus.json` tells: documents, sentences, tokens, and what was left out, by reason.
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
    """The corpus of `sources`, prepared unless it stands in the cache; killed, it goes on at the shard it was at.

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
    _tell(corpus.facts)
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
            log(f"preparing documents: going on after {sum(shard['sentences'] for shard in facts):,} sentences")
        with progress("preparing documents", len(files), "files", at.file) as bar:
            for draft in drafts(_items(files, at, rejects), grouping):
                facts.append(write_shard(folder / _name(len(facts)), draft, tokenize, unknown_id))
                bar.advance(draft.after.file - at.file, f"{sum(shard['sentences'] for shard in facts):,} sentences")
                at = draft.after
            bar.advance(len(files) - at.file)
    _finish(folder, facts, rejects)


def _done_before(folder: Path, rejects: Rejects) -> list[dict[str, Any]]:
    """The facts of the shards that stand, in order; `rejects` is told what they were told."""
    facts: list[dict[str, Any]] = []
    while (shard := read_facts(folder / _name(len(facts)))) is not None:
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
    return [open_shard(folder / _name(number)) for number in range(count)]


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


def _name(number: int) -> str:
    return f"{number:06}.arrow"


def _tell(facts: dict[str, Any]) -> None:
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
