"""A corpus of documents: sentences tokenized once, in shards of some ten thousand, memory-mapped from the run's cache.

A shard is an Arrow file, a document a row, and a JSON file that is written after it and records how far the input was
read. A kill costs the shard that was being written, and no more.
"""

import secrets
import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from filelock import FileLock
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from bertrelay.data.records import Rejects
from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from bertrelay.files import atomic_write, read_json, sync, write_json
from bertrelay.fingerprint import Digests, fingerprint
from bertrelay.leaves import content_parts
from bertrelay.progress import log, progress
from bertrelay.tokenizer import before_sentences, plain_rules
from domain.pretraining.readers import NO_TEXT, Files, SkippedDocument, TextDocument, files_of, read_all
from domain.pretraining.settings import DocumentSource
from domain.sentences import sentence_spans

VERSION = 2  # raised when the same documents begin to give other sentences or tokens
SHARD_SENTENCES = 2**16
BATCH = 2048  # sentences tokenized at once
SCHEMA = pa.schema(
    {"group": pa.int64(), "held_out": pa.bool_(), "lengths": pa.list_(pa.int32()), "ids": pa.list_(pa.int32())}
)
HASH_KEY = b"bertrelay documents"
KEY_BYTES = 32
FACTS, REJECTS, KEY = "corpus.json", "rejects.jsonl", "groups.key"

Tokenize = Callable[[list[str]], Iterator[list[int]]]
Group = Callable[[TextDocument], tuple[int, bool]]


# Shards


def grouped(document: TextDocument, key: bytes, held_out_share: float) -> tuple[int, bool]:
    """A hash that documents of one group (a patient's, for example) share, and whether they are held out.

    A document without a group goes by its own id, or by its text where it has none. Hashes need no list of all groups
    in memory, and choose who is held out whoever else is there: one without a secret chooses, in every corpus the same,
    and only its verdict is written. The other one has a `key` that is drawn for a corpus and deleted with its last
    shard, so that nobody can try which patient it is of.
    """
    kind, name = ("group", document.group) if document.group else ("document", document.id or document.text)
    named = f"{kind}\0{name}".encode()
    place = int.from_bytes(blake2b(named, digest_size=8, key=HASH_KEY).digest(), "little")
    group = int.from_bytes(blake2b(named, digest_size=8, key=key).digest(), "little", signed=True)
    return group, place < held_out_share * 2.0**64


@dataclass
class Draft:
    """The documents of a shard to be written, each with its sentences, and all else that was read for it.

    after: file and number of the last item.
    """

    after: tuple[int, int] = (0, 0)
    documents: list[tuple[TextDocument, list[str]]] = field(default_factory=list)
    sentences: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    rejects: list[Unusable] = field(default_factory=list)


def drafts(files: Files, start: tuple[int, int], rejects: Rejects) -> Iterator[Draft]:
    """What the files give after `start`, in runs of whole documents with `SHARD_SENTENCES` or some more."""
    draft = Draft(start)
    for file, number, item in read_all(files, *start):
        match item:
            case Unusable():
                rejects.add(item.file, item.line, item.reason)
                draft.rejects.append(item)
            case SkippedDocument():
                rejects.used()
                draft.left_out[item.reason] += 1
            case TextDocument(text):
                rejects.used()
                sentences = [" ".join(text[start:end].split()) for start, end in sentence_spans(text)]
                draft.documents.append((item, sentences))
                draft.sentences += len(sentences)
        draft.after = (file, number)
        if draft.sentences >= SHARD_SENTENCES:
            yield draft
            draft = Draft(draft.after)
    if draft.documents or draft.left_out or draft.rejects:
        yield draft


def write_shard(path: Path, draft: Draft, tokenize: Tokenize, group: Group, unknown_id: int | None) -> dict[str, Any]:
    """Tokenizes and writes a shard, and returns its facts; both are on the disk then, the facts as JSON beside it.

    Sentences without a token (control characters and the like) go, and documents of such sentences alone.
    """
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    tokenized = tokenize(list(chain.from_iterable(sentences for _, sentences in draft.documents)))
    for document, sentences in draft.documents:
        rows = [ids for ids in islice(tokenized, len(sentences)) if ids]
        if rows:
            ids = np.fromiter(chain.from_iterable(rows), np.int32)
            for column, value in zip(columns.values(), (*group(document), list(map(len, rows)), ids), strict=True):
                column.append(value)
    with path.open("wb") as file, pa.ipc.new_stream(file, SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_pydict(columns, SCHEMA))
    sync(path)
    facts = {
        "after": draft.after,
        "documents": len(columns["ids"]),
        "documents_of_one_sentence": sum(len(lengths) == 1 for lengths in columns["lengths"]),
        "sentences": sum(map(len, columns["lengths"])),
        "tokens": sum(map(len, columns["ids"])),
        "unknown_tokens": sum(int(np.count_nonzero(ids == unknown_id)) for ids in columns["ids"]),
        "left_out": dict(draft.left_out + Counter({NO_TEXT: len(draft.documents) - len(columns["ids"])})),
        "rejects": [(item.file, item.line, item.reason) for item in draft.rejects],
    }
    write_json(path.with_suffix(".json"), facts, compact=True)
    return facts


# The corpus


class Corpus:
    """Token ids of sentences, without special tokens, in the order of their documents; the ids lie on disk.

    sentence_starts: place of the first token of each sentence, and after the last one. int64 (sentences + 1,)
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
        files = [pa.memory_map(str(_shard(folder, number))) for number in range(self.facts["shards"])]
        shards = pa.concat_tables([pa.ipc.open_stream(file).read_all() for file in files])
        self.sentence_starts = _starts(pc.list_flatten(shards["lengths"]).to_numpy())
        self.document_starts = _starts(pc.list_value_length(shards["lengths"]).to_numpy())
        self.held_out: NDArray[np.bool_] = shards["held_out"].to_numpy()
        _, first, number = np.unique(shards["group"].to_numpy(), return_index=True, return_inverse=True)
        self.groups: NDArray[np.int64] = np.argsort(np.argsort(first))[number]
        self._ids = [shard.values.to_numpy() for shard in shards["ids"].chunks]  # mapped, and not copied
        self._id_starts = _starts([len(ids) for ids in self._ids]).tolist()

    def __len__(self) -> int:
        """The number of sentences."""
        return len(self.sentence_starts) - 1

    def tokens(self, start: int, stop: int) -> NDArray[np.int32]:
        """The ids at places `start` to `stop`, the last one not included; inside a document a view, read-only."""
        shard = bisect_right(self._id_starts, start, hi=len(self._ids)) - 1
        first, end = self._id_starts[shard : shard + 2]
        here = self._ids[shard][start - first : stop - first]
        return here if stop <= end else np.concatenate([here, self.tokens(end, stop)])


def _starts(counts: NDArray[np.integer] | list[int]) -> NDArray[np.int64]:
    """Where each of some runs of these sizes begins, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


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
    decisive = {
        "version": VERSION,
        "sources": [content_parts(source, type(source).model_fields, digests) for source in sources],
        "rules": plain_rules(tokenizer).to_str(),
        "held_out_share": held_out_share,
    }
    key = fingerprint(decisive)[:32]
    corpora = cache / "documents"
    folder, building = corpora / key, corpora / f"{key}.partial"
    corpora.mkdir(parents=True, exist_ok=True)
    with FileLock(corpora / f"{key}.lock"):
        if not folder.is_dir():
            if not (building / FACTS).is_file():
                _prepare(building, files, tokenizer, held_out_share, rejects_limit)
            (building / KEY).unlink(missing_ok=True)
            building.rename(folder)
            sync(corpora)
    corpus = Corpus(folder)
    facts, held_out, documents = corpus.facts, int(corpus.held_out.sum()), len(corpus.held_out)
    log(
        f"documents: {facts['documents']:,}, with {facts['sentences']:,} sentences and {facts['tokens']:,} tokens, "
        f"{facts['unknown_tokens'] / facts['tokens']:.2%} of them unknown to the vocabulary; "
        f"{facts['documents_of_one_sentence']:,} have one sentence, which begins no pair of sentences; left out "
        f"{_listed(facts['left_out'])}"
    )
    if held_out_share > 0 and held_out in (0, documents):
        raise RequestError(
            f"held_out_share: {held_out_share:g} of {documents:,} documents holds {'all' if held_out else 'none'} of "
            "them out, because whole groups go by a hash. Give another share, or more documents."
        )
    return corpus


def _prepare(
    folder: Path, files: Files, tokenizer: PreTrainedTokenizerBase, held_out_share: float, rejects_limit: float
) -> None:
    """Writes the shards that are not there yet, and what they all hold to `corpus.json`."""
    if not (folder / KEY).is_file():  # shards whose key is gone are made again
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with atomic_write(folder / KEY) as path:
            path.write_bytes(secrets.token_bytes(KEY_BYTES))
    group = partial(grouped, key=(folder / KEY).read_bytes(), held_out_share=held_out_share)
    rules, unknown_id = plain_rules(tokenizer), tokenizer.unk_token_id
    space = before_sentences(rules)

    def tokenize(sentences: list[str]) -> Iterator[list[int]]:
        for start in range(0, len(sentences), BATCH):
            texts = [space + sentence for sentence in sentences[start : start + BATCH]]
            yield from (row.ids for row in rules.encode_batch_fast(texts, add_special_tokens=False))

    shards: list[dict[str, Any]] = []
    with Rejects(folder / REJECTS, rejects_limit) as rejects:
        while (done := read_json(_shard(folder, len(shards)).with_suffix(".json"))) is not None:
            rejects.used(done["documents"] + sum(done["left_out"].values()))
            for file, line, reason in done["rejects"]:
                rejects.add(file, line, reason)
            shards.append(done)
        sentences = sum(shard["sentences"] for shard in shards)
        if shards:
            log(f"preparing documents: resuming after {sentences:,} sentences")
        at = tuple(shards[-1]["after"]) if shards else (0, 0)
        with progress("preparing documents", len(files), "files", at[0]) as bar:
            for draft in drafts(files, at, rejects):
                shards.append(write_shard(_shard(folder, len(shards)), draft, tokenize, group, unknown_id))
                sentences += shards[-1]["sentences"]
                bar.advance(draft.after[0] - at[0], f"{sentences:,} sentences")
                at = draft.after
            bar.advance(len(files) - at[0])
    left_out: Counter[str] = sum((Counter(shard["left_out"]) for shard in shards), Counter())
    counted = ("documents", "documents_of_one_sentence", "sentences", "tokens", "unknown_tokens")
    counts = {name: sum(shard[name] for shard in shards) for name in counted}
    if not counts["documents"]:
        raise RequestError(
            f"documents: no document with text was found (left out {_listed(left_out)}). Check files and columns."
        )
    facts = {**counts, "left_out": left_out, "rejects": rejects.counts, "shards": len(shards)}
    write_json(folder / FACTS, facts)  # last: its presence means all is there


def _shard(folder: Path, number: int) -> Path:
    return folder / f"{number:06}.arrow"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} × {reason}" for reason, count in sorted(counts.items())) or "none"
