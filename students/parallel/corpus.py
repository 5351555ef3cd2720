"""Parallel corpora: read, filtered, split and written once, as memory-mapped files that students are trained on.

Sentences are kept in Unicode NFC with single spaces. Two English sentences are one target when they are equal so, and
one sentence of the dev split when they are equal but for case.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from filelock import FileLock, Timeout
from numpy.lib import format as npy
from numpy.typing import NDArray

from bertrelay.data.records import Rejects
from bertrelay.files import sync_contents, write_json
from bertrelay.progress import log
from students.parallel.pairs import DEV, TRAIN, DropCounts, Pair, filtered, listed, read_pairs
from students.parallel.split import Mask, PairDigests, number_targets, split_off_given, split_off_sampled
from students.settings import ENGLISH, Filters, ParallelSource

BLOCK_PAIRS = 4096
SPOOL = "pairs.arrow"
REJECTS = "rejects.jsonl"


class Translations(NamedTuple):
    """English sentences and what they are in another language, row by row."""

    english: list[str]
    other: list[str]


DevSplit = dict[str, Translations]
"""The dev pairs by language."""


class Sentences:
    """Sentences of an Arrow file, mapped into memory and read block by block."""

    def __init__(self, path: Path) -> None:
        self._column = pa.ipc.open_file(pa.memory_map(str(path))).read_all().column(0)

    def __len__(self) -> int:
        return len(self._column)

    def read(self, start: int, stop: int) -> list[str]:
        """Sentences `start` to `stop`, the last one not included."""
        found: list[str] = self._column.slice(start, max(stop - start, 0)).to_pylist()
        return found


@dataclass(frozen=True)
class ParallelCorpus:
    """A corpus as a student learns from it: items, each a sentence to encode and the English sentence it should equal.

    The first items are the distinct English sentences, item i with target i; all the translations follow.

    english: the distinct English training sentences, which the teacher encodes.
    targets: row of `english` whose teacher vector an item learns. int32 (items,)
    weights: of an English item the number of its translations, of a translation 1. int32 (items,)
    languages: index into `language_names`, where 0 is English. int16 (items,)
    dev: the sentences held out; no English one of them is in training in any language.
    facts: the content of `corpus.json`: counts, and the drop reasons of each source.
    rejects: the file that lists the records that could not be used.
    """

    english: Sentences
    translations: Sentences
    targets: NDArray[np.int32]
    weights: NDArray[np.int32]
    languages: NDArray[np.int16]
    language_names: list[str]
    dev: DevSplit
    facts: dict[str, Any]
    rejects: Path

    @classmethod
    def open(cls, folder: Path) -> "ParallelCorpus":
        """Opens a corpus that `build_corpus` wrote; sentences and arrays stay on disk."""
        facts = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        dev = json.loads((folder / "dev.json").read_text(encoding="utf-8"))
        return cls(
            english=Sentences(folder / "english.arrow"),
            translations=Sentences(folder / "translations.arrow"),
            targets=np.load(folder / "targets.npy", mmap_mode="r"),
            weights=np.load(folder / "weights.npy", mmap_mode="r"),
            languages=np.load(folder / "languages.npy", mmap_mode="r"),
            language_names=[ENGLISH, *facts["train"]],
            dev={language: Translations(**sides) for language, sides in dev.items()},
            facts=facts,
            rejects=folder / REJECTS,
        )

    def __len__(self) -> int:
        return len(self.targets)

    def texts(self, start: int, stop: int) -> list[str]:
        """The sentences of items `start` to `stop`, the last one not included."""
        border = len(self.english)
        english = self.english.read(min(start, border), min(stop, border))
        return english + self.translations.read(max(start - border, 0), max(stop - border, 0))


@dataclass(frozen=True)
class CorpusPlan:
    """What a corpus is made of.

    dev_sentences: how many distinct English sentences to hold out: those with the smallest hash under `seed`, so that
    more data moves few of them. Not used where there are `dev_sources`.
    dev_sources: held out as they are; every pair whose English is in them is left out of training.
    rejects_limit: the share of unusable records (a broken row, invalid UTF-8) that is borne. A pair that a filter
    leaves out is usable: it is counted with its reason and never stops anything.
    """

    sources: Sequence[ParallelSource]
    seed: int
    filters: Filters = field(default_factory=Filters)
    dev_sentences: int = 0
    dev_sources: Sequence[ParallelSource] = ()
    rejects_limit: float = 0.01


def build_corpus(cache: Path, key: str, plan: CorpusPlan, context_cache: Path | None = None) -> ParallelCorpus:
    """The corpus of `plan` in `cache / key`, built unless it exists; another process that wants it waits.

    key: stands for the content of the files and all of the plan but `rejects_limit`; what lies under an equal key is
        believed.
    context_cache: where data sets of the hub are kept.
    Raises RequestError for input that cannot be a parallel corpus, WorkError for too many unusable records.
    """
    folder, building = cache / key, cache / f"{key}.partial"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{key}.lock"):
        if not folder.is_dir():
            _sweep(cache)
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
            _write_corpus(building, plan, context_cache)
            sync_contents(building)
            building.rename(folder)
    corpus = ParallelCorpus.open(folder)
    _check_rejects(corpus, plan.rejects_limit)
    return corpus


def _sweep(cache: Path) -> None:
    """Removes what runs that were killed have left: half a corpus is of no use, and as large as a whole one."""
    for building in cache.glob("*.partial"):
        try:
            with FileLock(cache / f"{building.stem}.lock", blocking=False):
                shutil.rmtree(building, ignore_errors=True)
        except Timeout:  # somebody lays it down
            continue


def _check_rejects(corpus: ParallelCorpus, limit: float) -> None:
    """Raises WorkError where more records are unusable than `limit`, which may be lower than it was at first."""
    rejects = Rejects(None, limit)  # counts alone: the list is there
    rejects.used(corpus.facts["records"] - sum(corpus.facts["rejects"].values()))
    with corpus.rejects.open(encoding="utf-8") as lines:
        for listed in map(json.loads, lines):
            rejects.add(**listed)
    rejects.path = corpus.rejects
    rejects.check()


def _write_corpus(folder: Path, plan: CorpusPlan, context_cache: Path | None) -> None:
    counts, dev_counts = DropCounts(plan.sources), DropCounts(plan.dev_sources)
    with PairDigests(folder, plan.seed) as seen, Rejects(folder / REJECTS, plan.rejects_limit) as rejects:
        given = _given_dev(read_pairs(plan.dev_sources, context_cache, rejects), dev_counts)
        kept = filtered(read_pairs(plan.sources, context_cache, rejects), plan.filters, counts)
        _write_spool(folder / SPOOL, _with_digests(kept, seen, counts))
    outcomes = _split(seen, plan, counts, given)
    for outcome, mask in outcomes.items():
        counts.add(outcome, seen.streams[mask])
    counts.check_trained()
    dev = given if plan.dev_sources else _drawn_dev(folder / SPOOL, outcomes[DEV], seen, counts)
    english_count = _write_items(folder, outcomes[TRAIN], seen, counts)
    (folder / SPOOL).unlink()
    seen.forget()
    write_json(folder / "dev.json", {language: sides._asdict() for language, sides in dev.items()})
    facts = _facts(english_count, counts, dev_counts, dev, rejects)
    write_json(folder / "corpus.json", facts)
    _log_summary(facts, counts)


def _with_digests(pairs: Iterable[Pair], seen: PairDigests, counts: DropCounts) -> Iterator[Pair]:
    for pair in pairs:
        seen.note(pair, counts.language_of(pair.stream))
        yield pair


def _split(seen: PairDigests, plan: CorpusPlan, counts: DropCounts, given: DevSplit) -> dict[str, Mask]:
    if plan.dev_sources:
        english = [sentence for sides in given.values() for sentence in sides.english]
        return split_off_given(seen, english, plan.filters.drop_duplicates)
    languages = [language for _, language in counts.streams]
    return split_off_sampled(seen, languages, plan.dev_sentences, plan.filters.drop_duplicates)


def _given_dev(pairs: Iterable[Pair], counts: DropCounts) -> DevSplit:
    """The dev pairs as their sources give them; only those with an empty side are left out."""
    dev = {language: Translations([], []) for language in counts.languages}
    for stream, english, other in pairs:
        usable = bool(english and other)
        counts.outcomes[stream][DEV if usable else "empty side"] += 1
        if usable:
            sides = dev[counts.language_of(stream)]
            sides.english.append(english)
            sides.other.append(other)
    return dev


def _drawn_dev(spool: Path, drawn: Mask, seen: PairDigests, counts: DropCounts) -> DevSplit:
    english, other = (list(_spooled(spool, side, drawn)) for side in Translations._fields)
    dev: DevSplit = {}
    for stream, *pair in zip(seen.streams[drawn].tolist(), english, other, strict=True):
        sides = dev.setdefault(counts.language_of(stream), Translations([], []))
        sides.english.append(pair[0])
        sides.other.append(pair[1])
    return dev


# On disk


def _write_spool(path: Path, pairs: Iterator[Pair]) -> None:
    """Both sides of all pairs that passed the filters, until it is known which ones stay."""
    schema = pa.schema([(side, pa.string()) for side in Translations._fields])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        while block := list(islice(pairs, BLOCK_PAIRS)):
            _, english, other = zip(*block, strict=True)
            writer.write_batch(pa.record_batch([pa.array(english), pa.array(other)], schema=schema))


def _spooled_batches(spool: Path, side: str, wanted: Mask) -> Iterator[pa.Array]:
    with pa.memory_map(str(spool)) as source:
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            start = number * BLOCK_PAIRS
            yield reader.get_batch(number).column(side).filter(pa.array(wanted[start : start + BLOCK_PAIRS]))


def _spooled(spool: Path, side: str, wanted: Mask) -> Iterator[str]:
    for batch in _spooled_batches(spool, side, wanted):
        yield from batch.to_pylist()


def _write_sentences(path: Path, batches: Iterator[pa.Array]) -> None:
    schema = pa.schema([("sentence", pa.string())])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(pa.record_batch([batch], schema=schema))


def _write_items(folder: Path, train: Mask, seen: PairDigests, counts: DropCounts) -> int:
    """Writes the training items and returns how many of them are English."""
    places = np.flatnonzero(train)
    targets, first = number_targets(seen.digests("targets")[places])
    is_first = np.zeros(len(train), bool)
    is_first[places[first]] = True
    _write_sentences(folder / "english.arrow", _spooled_batches(folder / SPOOL, "english", is_first))
    _write_sentences(folder / "translations.arrow", _spooled_batches(folder / SPOOL, "other", train))
    codes = np.array([1 + counts.languages.index(language) for _, language in counts.streams], np.int16)
    english = np.arange(len(first), dtype=np.int32)
    weights = np.bincount(targets, minlength=len(first)).astype(np.int32)
    _write_array(folder / "targets.npy", np.concatenate([english, targets]))
    _write_array(folder / "weights.npy", np.concatenate([weights, np.ones_like(targets)]))
    languages = np.concatenate([np.zeros(len(first), np.int16), codes[seen.streams[places]]])
    _write_array(folder / "languages.npy", languages)
    return len(first)


def _write_array(path: Path, array: NDArray[np.integer]) -> None:
    """As `np.save` does, which hides that it was the disk that was full."""
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(array))
        file.write(array.data)


def _facts(
    english_count: int, counts: DropCounts, dev_counts: DropCounts, dev: DevSplit, rejects: Rejects
) -> dict[str, Any]:
    train = {language: counts.total(language)[TRAIN] for language in counts.languages}
    return {
        "english": english_count,
        "items": english_count + sum(train.values()),
        "train": train,
        "dev": {language: len(sides.english) for language, sides in dev.items()},
        "records": rejects.records,
        "rejects": dict(sorted(rejects.counts.items())),
        "sources": counts.by_source(),
        "dev_sources": dev_counts.by_source(),
    }


def _log_summary(facts: dict[str, Any], counts: DropCounts) -> None:
    dropped = {outcome: count for outcome, count in counts.total().items() if outcome not in (TRAIN, DEV)}
    log(
        f"parallel corpus: {facts['english']:,} English sentences to train on, translations {_named(facts['train'])}; "
        f"held out {_named(facts['dev']) or 'none'}; left out {listed(dropped) or 'none'}"
    )


def _named(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {language}" for language, count in counts.items())
