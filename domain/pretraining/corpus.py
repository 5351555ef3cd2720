"""A corpus of documents: sentences tokenized once, in shards that are memory-mapped from the run's cache.

The input is read once to find the ends of shards and the unusable documents, and again for the text of missing shards.
A shard is an Arrow file with a row for each document.
"""

import secrets
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from bertrelay.blocks import blocks_of
from bertrelay.cache import Cache, cached_folder
from bertrelay.compute.engine import LOCAL_ENGINE, Engine
from bertrelay.compute.work import Compute, Executor, Work
from bertrelay.data.records import Rejects, log_copies
from bertrelay.data.shards import MANIFEST, ShardFiles, Span, SpanReader, cut_spans
from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from bertrelay.files import read_json, write_json
from bertrelay.fingerprint import Digests, content_parts, fingerprint
from bertrelay.inference.run_model import connect, fill
from bertrelay.model.tokenizer import before_sentences, plain_rules
from bertrelay.progress import Bar, log
from domain.pretraining.documents import COPY, files_of, read_all
from domain.pretraining.pubmed import outdated
from domain.pretraining.settings import DocumentSource, Files
from domain.reading import NO_TEXT, TextDocument, TextItem
from domain.text.sentences import sentence_spans

VERSION = 7  # raised when the same documents begin to give other sentences, tokens or shards
SHARD_CHARACTERS = 2**23  # of text, in some 65,000 sentences
BATCH = 2048  # sentences tokenized at once
SCHEMA = pa.schema(
    {"group": pa.int64(), "held_out": pa.bool_(), "lengths": pa.list_(pa.int32()), "ids": pa.list_(pa.int32())}
)
HASH_KEY = b"bertrelay documents"
KEY_BYTES = 32
FACTS, REJECTS, KEY = "corpus.json", "rejects.jsonl", "key"

Tokenize = Callable[[list[str]], Iterator[list[int]]]
GroupedText = tuple[str, int, bool]
"""The text of a document and the two values of `hash_group`: all that a worker sees of it."""


def hash_group(document: TextDocument, key: bytes, held_out_share: float) -> tuple[int, bool]:
    """A hash that documents of one group (a patient's, for example) share, and true where they are held out.

    A document without a group has that of its id, or of its text where it has none. Hashes need no list of all groups
    in memory, and a group is held out whatever other groups exist. A hash without a secret chooses them, the same in
    every corpus; only its result is written. The hash of the group has a `key` that is drawn for a corpus and deleted
    when it is complete, so that nobody can try which patient a hash is of.
    """
    kind, name = ("group", document.group) if document.group else ("document", document.id or document.text)
    content = f"{kind}\0{name}".encode()
    position = int.from_bytes(blake2b(content, digest_size=8, key=HASH_KEY).digest(), "little")
    group = int.from_bytes(blake2b(content, digest_size=8, key=key).digest(), "little", signed=True)
    return group, position < held_out_share * 2.0**64


def _start(rules: Tokenizer) -> Compute[list[GroupedText], pa.RecordBatch]:
    """Cuts documents into sentences and tokenizes them: a list of `GroupedText` becomes a batch of `SCHEMA`."""
    space = before_sentences(rules)

    def tokenize(sentences: list[str]) -> Iterator[list[int]]:
        for block in blocks_of(sentences, BATCH):
            texts = [space + sentence for sentence in block]
            yield from (row.ids for row in rules.encode_batch_fast(texts, add_special_tokens=False))

    def batches(spans: Iterable[list[GroupedText]], bar: Bar) -> Iterator[pa.RecordBatch]:
        for documents in spans:
            yield pa.RecordBatch.from_pylist(list(_rows(documents, tokenize)), SCHEMA)
            bar.advance(sum(len(text) for text, *_ in documents))

    return batches


def _rows(documents: list[GroupedText], tokenize: Tokenize) -> Iterator[dict[str, Any]]:
    """Rows of `SCHEMA`, without sentences that have no token (control characters …) and documents of only such ones."""
    cut = [[" ".join(text[start:end].split()) for start, end in sentence_spans(text)] for text, *_ in documents]
    tokenized = tokenize(list(chain.from_iterable(cut)))
    for (_, group, held_out), sentences in zip(documents, cut, strict=True):
        if rows := [ids for ids in islice(tokenized, len(sentences)) if ids]:
            ids = np.fromiter(chain.from_iterable(rows), np.int32)
            yield {"group": group, "held_out": held_out, "lengths": list(map(len, rows)), "ids": ids}


def _write_shard(path: Path, batch: pa.RecordBatch) -> None:
    with path.open("wb") as file, pa.ipc.new_stream(file, SCHEMA) as writer:
        writer.write_batch(batch)


def _open_shard(path: Path) -> pa.Table:
    return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()


class Corpus:
    """Token ids of sentences, without special tokens, in the order of their documents; the ids stay on disk.

    sentence_starts: position of the first token of each sentence, and after the last one. int64 (sentences + 1,)
    document_starts: number of the first sentence of each document, and after the last one. int64 (documents + 1,)
    groups: equal for documents of one group (a patient), numbered in the order in which they occur; a document without
        one is its own. int64 (documents,)
    held_out: documents that are not trained on, whole groups of them, as their hash decides. bool (documents,)
    facts: contents of `corpus.json`: counts of documents, sentences and tokens, and of what was left out, by reason.
    rejects: the file that lists unusable documents by file and line.
    """

    def __init__(self, folder: Path) -> None:
        self.facts: dict[str, Any] = read_json(folder / FACTS) or {}
        self.rejects = folder / REJECTS
        paths = [folder / f"{number:06}.arrow" for number in range(self.facts["shards"])]
        shards = pa.concat_tables(map(_open_shard, paths))
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
        """The ids at positions `start` to `stop`, without the last one; inside a document a view, read-only."""
        shard = bisect_right(self._id_starts, start, hi=len(self._ids)) - 1
        first, end = self._id_starts[shard : shard + 2]
        ids = self._ids[shard][start - first : stop - first]
        return ids if stop <= end else np.concatenate([ids, self.tokens(end, stop)])


def _starts(counts: NDArray[np.integer] | list[int]) -> NDArray[np.int64]:
    """The start of each of some runs of these sizes, and the end of the last one: 2, 3 → 0, 2, 5."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def build_corpus(
    sources: Sequence[DocumentSource],
    tokenizer: PreTrainedTokenizerBase,
    cache: Cache,
    digests: Digests,
    held_out_share: float = 0.0,
    rejects_limit: float = 0.01,
    engine: Engine = LOCAL_ENGINE,
) -> Corpus:
    """The corpus of `sources`, prepared unless it is in the cache; a killed build resumes at the missing shards.

    held_out_share: fraction of documents, or of groups, to hold out.
    rejects_limit: the fraction of documents that may be unusable; those without text only count.
    engine: executor that cuts and tokenizes sentences; this process reads the documents and sends their text.
    Raises RequestError for input that cannot be read or holds no text, and where nothing or all would be held out;
    WorkError for too many unusable documents, and for input that changes meanwhile.
    """
    files = [(source, file) for source in sources for file in files_of(source)]
    decisive = {
        "version": VERSION,
        "sources": [content_parts(source, type(source).model_fields, digests) for source in sources],
        "rules": plain_rules(tokenizer).to_str(),
        "held_out_share": held_out_share,
    }
    key = fingerprint(decisive)[:32]
    folder = cache.folder / "documents" / key

    def prepare(building: Path) -> None:
        if not (building / FACTS).is_file():
            with connect(engine) as executor:
                _prepare(folder, files, tokenizer, held_out_share, rejects_limit, executor)
        (building / MANIFEST).unlink(missing_ok=True)  # and the key of the groups with it

    corpus = Corpus(cached_folder(folder, prepare, resume=True))
    facts, held_out, documents = corpus.facts, int(corpus.held_out.sum()), len(corpus.held_out)
    log(
        f"documents: {facts['documents']:,}, with {facts['sentences']:,} sentences and {facts['tokens']:,} tokens, "
        f"{facts['unknown_tokens'] / facts['tokens']:.2%} of them unknown to the vocabulary; "
        f"{facts['documents_of_one_sentence']:,} have one sentence, which begins no pair of sentences; left out "
        f"{_listed(facts['left_out'])}"
    )
    copies = facts["left_out"].get(COPY, 0)
    log_copies(copies, documents + copies, "documents", "of one group", "and are read once")
    if held_out_share > 0 and held_out in (0, documents):
        raise RequestError(
            f"held_out_share: {held_out_share:g} of {documents:,} documents holds {'all' if held_out else 'none'} of "
            "them out, because a hash chooses whole groups. Give another fraction, or more documents."
        )
    return corpus


def _prepare(
    output: Path,
    files: Files,
    tokenizer: PreTrainedTokenizerBase,
    held_out_share: float,
    rejects_limit: float,
    executor: Executor,
) -> None:
    """Fills the shards of `output`, and writes their counts to `corpus.json` beside them."""
    reasons, left_out = outdated(files), Counter[str]()
    listed = output.with_name(f"{output.name}.{REJECTS}")
    with Rejects(listed, rejects_limit) as rejects:
        sizes = _sizes(read_all(files, reasons, shown=True), rejects, left_out)
        spans = cut_spans(((size, size) for size in sizes), SHARD_CHARACTERS)
    shards = ShardFiles(output, spans, suffix=".arrow", write=_write_shard)
    key = (read_json(shards.folder / MANIFEST) or {}).get(KEY) or secrets.token_hex(KEY_BYTES)
    shards.begin({"block": SHARD_CHARACTERS, KEY: key})
    group = partial(hash_group, key=bytes.fromhex(key), held_out_share=held_out_share)

    def texts() -> Iterator[TextDocument]:
        return (item for item in read_all(files, reasons) if isinstance(item, TextDocument))

    reader = SpanReader(texts, "documents: the input", lambda document: len(document.text))

    def read(span: Span) -> list[GroupedText]:
        return [(document.text, *group(document)) for document in reader.read(span)]

    start = partial(_start, plain_rules(tokenizer))
    fill(shards, Work(read, start, "preparing documents", "characters"), executor)
    counts = Counter[str]()
    for path in shards.complete():
        counts.update(_counts(path, tokenizer.unk_token_id))
    left_out += Counter({NO_TEXT: sum(span.end - span.first for span in spans) - counts["documents"]})
    if not counts["documents"]:
        raise RequestError(
            f"documents: no document with text was found (left out {_listed(left_out)}). Check files and columns."
        )
    listed.replace(shards.folder / REJECTS)
    facts = {**counts, "left_out": left_out, "rejects": rejects.counts, "shards": len(spans)}
    write_json(shards.folder / FACTS, facts)  # last: its existence means that the corpus is complete


def _sizes(items: Iterable[TextItem], rejects: Rejects, left_out: Counter[str]) -> Iterator[int]:
    """Yields the number of characters of each text; counts the other documents."""
    for item in items:
        if isinstance(item, Rejected) and item.is_fault:
            rejects.add(item.file, item.line, item.reason)
            continue
        rejects.used()
        if isinstance(item, Rejected):
            left_out[item.reason] += 1
        else:
            yield len(item.text)


def _counts(path: Path, unknown_id: int | None) -> dict[str, int]:
    """Counts of a shard, for `corpus.json`."""
    shard = _open_shard(path)
    sentences = pc.list_value_length(shard["lengths"]).to_numpy()  # (documents,)
    ids = pc.list_flatten(shard["ids"]).to_numpy()  # (tokens,)
    return {
        "documents": len(sentences),
        "documents_of_one_sentence": int(np.count_nonzero(sentences == 1)),
        "sentences": int(sentences.sum()),
        "tokens": len(ids),
        "unknown_tokens": int(np.count_nonzero(ids == unknown_id)),
    }


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} × {reason}" for reason, count in sorted(counts.items())) or "none"
