"""Parallel corpora: read, filtered, split and written once, as memory-mapped files that students are trained on.

Sentences are kept in Unicode NFC with single spaces. Two English sentences are one target when they are equal so, and
one sentence of the dev split when they are equal but for case.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bertrelay.blocks import blocks_of
from bertrelay.cache import Cache, cached_folder, remove_abandoned
from bertrelay.data.arrow import (
    DIGEST,
    SENTENCE_SCHEMA,
    Mask,
    Sentences,
    mask_of,
    number_distinct,
    open_arrow,
    select_rows,
    text_digest,
    write_arrow,
)
from bertrelay.data.records import Rejects
from bertrelay.data.sentences import clean, sentence_records
from bertrelay.data.tables import BLOCK_ROWS, Table
from bertrelay.data.vectors import write_array
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.files import write_json
from bertrelay.memory import release_memory
from bertrelay.progress import log, spinner
from students.parallel.cleaning import drop_low_margins
from students.parallel.english import ENGLISH_SCHEMA, EnglishCounts, decide_english, read_english
from students.parallel.pairs import (
    DEV,
    TRAIN,
    Pair,
    PairCounts,
    Translations,
    filter_pairs,
    read_pairs,
    read_translations,
)
from students.parallel.settings import ENGLISH, CorpusSettings, ParallelSource
from students.parallel.split import (
    OUTCOMES,
    Outcomes,
    deduplicate,
    select,
    sentence_digest,
    sentence_digests,
    split_pairs,
)

NO_TARGET = -1
DIGESTS = dict.fromkeys(("target", "sentence", "pair"), DIGEST)
"""Columns of digests: of an English sentence; of it but for case, keyed by the seed; of the pair and its language."""

PAIRS, TEXTS, SENTENCES = "pairs.arrow", "texts.arrow", "sentences.arrow"  # while a corpus is written
PAIR_SCHEMA = pa.schema({"stream": pa.int16(), "english": pa.string(), "other": pa.string(), **DIGESTS})
REJECTS = "rejects.jsonl"
ENGLISH_SOURCES = "english_sources.npy"
"""A file of corpora that have English sentences without translations."""
STREAMS = "streams.npy"


@dataclass(frozen=True)
class ParallelCorpus:
    """Items that a student learns from, each a sentence and the row of the teacher's vector that it learns.

    The first items are the distinct English sentences, item i with target i, those without translations last; all the
    translations follow, and then the texts whose vectors are retained:

        English     A dog.     A cat.       A bird.   targets 0 1 2   weights 2 1 1
        German      Ein Hund.  Eine Katze.            targets 0 1     weights 1 1
        French      Un chien.                         targets 0       weights 1

    english: the distinct English training sentences.
    english_sources: number of the source of each English sentence without translations. int16 (of them,)
    streams: position in `facts["sources"]` of the source and language of each translation. int16 (translations,)
    targets: row of `english` whose teacher vector an item learns; NO_TARGET for a retained text. int32 (items,)
    weights: number of translations of an English item that has any, 1 of any other. int32 (items,)
    dev: the sentences held out, by language; no English one of them is in training in any language.
    dev_untrained: the same, of other domains and languages.
    facts: the content of `corpus.json`: counts, and the reasons why pairs and sentences of each source were left out.
    rejects: the file that lists the records that could not be used.
    own_vectors: an item learns the teacher's vector of itself instead; the teacher encodes all texts that are taught.
    """

    english: Sentences
    english_sources: NDArray[np.int16]
    translations: Sentences
    streams: NDArray[np.int16]
    retained: Sentences
    targets: NDArray[np.int32]
    weights: NDArray[np.int32]
    dev: dict[str, Translations]
    dev_untrained: dict[str, Translations]
    facts: dict[str, Any]
    rejects: Path
    own_vectors: bool = False

    @classmethod
    def open(cls, folder: Path) -> "ParallelCorpus":
        """Opens a corpus that `build_corpus` wrote; sentences and arrays stay on disk."""
        return cls(
            **cls.open_items(folder),
            retained=Sentences(folder / "retained.arrow"),
            dev=_read_held_out(folder / "dev.json"),
            dev_untrained=_read_held_out(folder / "dev_untrained.json"),
            facts=json.loads((folder / "corpus.json").read_text(encoding="utf-8")),
            rejects=folder / REJECTS,
        )

    @staticmethod
    def open_items(folder: Path) -> dict[str, Any]:
        """The fields of the items, all but the retained texts, that `folder` has."""
        sources = folder / ENGLISH_SOURCES
        return {
            "english": Sentences(folder / "english.arrow"),
            "english_sources": np.load(sources, mmap_mode="r") if sources.is_file() else np.empty(0, np.int16),
            "translations": Sentences(folder / "translations.arrow"),
            "streams": np.load(folder / STREAMS, mmap_mode="r"),
            "targets": np.load(folder / "targets.npy", mmap_mode="r"),
            "weights": np.load(folder / "weights.npy", mmap_mode="r"),
        }

    def __len__(self) -> int:
        return len(self.targets)

    def __iter__(self) -> Iterator[str]:
        """Streams all sentences in the order of their items, read block by block."""
        return chain.from_iterable(self.blocks(len(self)))

    def blocks(self, stop: int) -> Iterator[list[str]]:
        """Streams the sentences of the items before `stop`, in blocks."""
        return (self.texts(start, min(start + BLOCK_ROWS, stop)) for start in range(0, stop, BLOCK_ROWS))

    def texts(self, start: int, stop: int) -> list[str]:
        """The sentences of items `start` to `stop`, the last one not included."""
        texts, first = [], 0
        for part in (self.english, self.translations, self.retained):
            size = len(part)
            texts += part.read(*(min(max(position - first, 0), size) for position in (start, stop)))
            first += size
        return texts

    def rows(self, items: NDArray[np.integer]) -> NDArray[np.integer]:
        """The rows of the teacher's vectors that `items` learn; NO_TARGET for a retained text."""
        return np.where(items < self.taught, items, NO_TARGET) if self.own_vectors else self.targets[items]

    def weights_of(self, items: NDArray[np.integer]) -> NDArray[np.int32]:
        """The weights of `items`; 1 with `own_vectors`."""
        return np.ones(len(items), np.int32) if self.own_vectors else np.array(self.weights[items])

    @property
    def dev_texts(self) -> list[str]:
        """The distinct sentences of `dev` that the teacher encodes."""
        return self._encoded_texts(self.dev)

    @property
    def dev_untrained_texts(self) -> list[str]:
        """The distinct sentences of `dev_untrained` that the teacher encodes."""
        return self._encoded_texts(self.dev_untrained)

    def _encoded_texts(self, sets: Mapping[str, Translations]) -> list[str]:
        english = [sentence for pairs in sets.values() for sentence in pairs.english]
        other = [sentence for pairs in sets.values() for sentence in pairs.other] if self.own_vectors else []
        return list(dict.fromkeys([*english, *other]))

    @property
    def encoded(self) -> int:
        """Number of the first items, those that the teacher encodes."""
        return self.taught if self.own_vectors else len(self.english)

    @property
    def translated(self) -> int:
        """Number of the first items, English sentences that have translations."""
        return len(self.english) - len(self.english_sources)

    @property
    def taught(self) -> int:
        """Number of items with a target: all but the retained texts, which come last."""
        return len(self.english) + len(self.translations)


def restrict_corpus(
    corpus: ParallelCorpus, english: Mask, folder: Path, *, with_retained: bool = True
) -> ParallelCorpus:
    """The corpus of the English sentences of `english`, (English,), their translations, and all retained texts or none.

    folder: takes its files; those of a complete corpus are used as they are, so its name must change with `english`.
    """

    def write(building: Path) -> None:
        targets = corpus.targets[len(corpus.english) : corpus.taught]
        translated = english[targets]
        write_arrow(building / "english.arrow", SENTENCE_SCHEMA, corpus.english.select(english))
        write_arrow(building / "translations.arrow", SENTENCE_SCHEMA, corpus.translations.select(translated))
        write_array(building / STREAMS, corpus.streams[translated])
        sources = corpus.english_sources[english[corpus.translated :]]
        write_array(building / ENGLISH_SOURCES, sources)
        rows = (np.cumsum(english) - 1).astype(np.int32)[targets[translated]]
        count = int(english[: corpus.translated].sum())
        write_targets(building, rows, count, len(sources), len(corpus.retained) if with_retained else 0)
        if not with_retained:
            write_arrow(building / "retained.arrow", SENTENCE_SCHEMA, [])

    folder = cached_folder(folder, write)
    retained = corpus.retained if with_retained else Sentences(folder / "retained.arrow")
    return replace(corpus, **ParallelCorpus.open_items(folder), retained=retained)


def build_corpus(
    folder: Path,
    settings: CorpusSettings,
    precision: ComputePrecision,
    cache: Cache | None = None,
    dev_untrained: Sequence[ParallelSource] = (),
) -> ParallelCorpus:
    """Opens the corpus of `settings` in `folder`, and builds it before unless it exists; a second process waits.

    folder: its name identifies the content of the files and the settings; a corpus in it is used as it is.
    precision: of the model of a margin filter.
    cache: stores data sets of the hub.
    dev_untrained: held-out corpora of other domains and languages.
    Raises RequestError for input that cannot be a parallel corpus, WorkError for too many unusable records (a broken
    row, invalid UTF-8). A pair that a filter leaves out is usable: it is counted with its reason.
    """

    def build(building: Path) -> None:
        remove_abandoned(folder.parent)
        _write_corpus(building, settings, cache, precision, dev_untrained)
        pa.default_memory_pool().release_unused()  # digests and masks of all pairs
        release_memory()

    corpus = replace(ParallelCorpus.open(cached_folder(folder, build)), own_vectors=settings.own_vectors)
    rejects = Rejects(None, settings.max_rejects)  # the limit may be lower than it was when the list was written
    rejects.used(corpus.facts["records"] - sum(corpus.facts["rejects"].values()))
    for line in corpus.rejects.read_text(encoding="utf-8").splitlines():
        rejects.add(**json.loads(line))
    rejects.path = corpus.rejects
    rejects.check()
    return corpus


@dataclass(frozen=True)
class _Sources:
    """Contents of all sources: pairs and sentences that passed the filters, texts to retain, and held-out pairs.

    pairs, sentences, texts: tables that stay on disk.
    counts, dev_counts: outcomes of the pairs by stream, of the training and of the dev sources.
    english_counts: outcomes of the English sentences without translations by source.
    """

    pairs: pa.Table
    sentences: pa.Table
    texts: pa.Table
    dev: dict[str, Translations]
    dev_untrained: dict[str, Translations]
    counts: PairCounts
    dev_counts: PairCounts
    english_counts: EnglishCounts
    rejects: Rejects

    @property
    def held_out(self) -> list[Translations]:
        return [*self.dev.values(), *self.dev_untrained.values()]


@spinner("reading parallel text")
def _write_corpus(
    folder: Path,
    settings: CorpusSettings,
    cache: Cache | None,
    precision: ComputePrecision,
    dev_untrained: Sequence[ParallelSource],
) -> None:
    sources = _read(folder, settings, cache, dev_untrained)
    outcomes = deduplicate(sources.pairs, settings.filters.drop_duplicates)
    outcomes, facts = _clean(sources, outcomes, settings, cache or Cache(folder.parent), precision)
    outcomes = split_pairs(sources.pairs, outcomes, sources.counts.languages, settings, sources.held_out)
    _count_outcomes(sources.pairs, outcomes, sources.counts)
    dev = sources.dev if settings.dev else _drawn_dev(sources, outcomes)
    held_out = _HeldOut(dev, sources.dev_untrained)
    english = _decide_english(sources, outcomes, settings, held_out.texts)
    _write(folder, sources, outcomes, english, held_out, facts)


def _read(
    folder: Path, settings: CorpusSettings, cache: Cache | None, dev_untrained: Sequence[ParallelSource]
) -> _Sources:
    """Reads and filters all sources; pairs and texts go to Arrow files in `folder`."""
    counts, dev_counts = PairCounts(settings.parallel), PairCounts(settings.dev)
    english_counts = EnglishCounts(settings.english)
    with Rejects(folder / REJECTS, settings.max_rejects) as rejects:
        dev = read_translations(settings.dev, cache, rejects, dev_counts)
        untrained = read_translations(dev_untrained, cache, rejects)
        pairs = filter_pairs(read_pairs(settings.parallel, cache, rejects, counts), settings.filters, counts)
        write_arrow(folder / PAIRS, PAIR_SCHEMA, _pair_blocks(pairs, counts.languages, settings.seed))
        english = read_english(settings.english, cache, rejects, settings.filters, settings.seed, english_counts)
        write_arrow(folder / SENTENCES, ENGLISH_SCHEMA, english)
        write_arrow(folder / TEXTS, SENTENCE_SCHEMA, _distinct_texts(settings.retained, cache, rejects))
    tables = open_arrow(folder / PAIRS), open_arrow(folder / SENTENCES), open_arrow(folder / TEXTS)
    return _Sources(*tables, dev, untrained, counts, dev_counts, english_counts, rejects)


def _clean(
    sources: _Sources,
    outcomes: Outcomes,
    settings: CorpusSettings,
    cache: Cache,
    precision: ComputePrecision,
) -> tuple[Outcomes, dict[str, Any]]:
    """Leaves out pairs with a low margin, if there is such a filter; returns facts about the margins too."""
    if (margin := settings.filters.margin) is None:
        return outcomes, {}
    languages = sources.counts.languages
    outcomes, facts = drop_low_margins(sources.pairs, outcomes, languages, margin, precision, cache)
    return outcomes, {"margin": facts}


@dataclass(frozen=True)
class _HeldOut:
    """The held-out pairs of a corpus by language: of its domains, and of others."""

    dev: dict[str, Translations]
    untrained: dict[str, Translations]

    @property
    def texts(self) -> list[str]:
        """The sentences of all languages."""
        sets = (*self.dev.values(), *self.untrained.values())
        return [text for pairs in sets for texts in pairs for text in texts]


def _decide_english(sources: _Sources, outcomes: Outcomes, settings: CorpusSettings, held_out: list[str]) -> Outcomes:
    """Decides and counts the English sentences without translations."""
    translated = pc.unique(sources.pairs["target"].filter(pa.array(select(outcomes, TRAIN))))
    digests = sentence_digests(held_out, settings.seed)
    english = decide_english(sources.sentences, translated, digests, settings.english)
    sources.english_counts.add(sources.sentences["source"].to_numpy(), english)
    return english


def _write(
    folder: Path,
    sources: _Sources,
    outcomes: Outcomes,
    english_outcomes: Outcomes,
    held_out: _HeldOut,
    cleaning: dict[str, Any],
) -> None:
    """Writes items, held-out pairs and facts, and removes the files of `_read`."""
    counts = sources.counts
    for name, pairs in (("dev.json", held_out.dev), ("dev_untrained.json", held_out.untrained)):
        write_json(folder / name, {language: sentences._asdict() for language, sentences in pairs.items()})
    retained = ~pc.is_in(sources.texts["sentence"], value_set=pa.array(held_out.texts, pa.string())).to_numpy()
    blocks = select_rows(sources.texts, retained, {"sentence": "sentence"})
    write_arrow(folder / "retained.arrow", SENTENCE_SCHEMA, blocks)
    retained_count = int(retained.sum())
    english = select(english_outcomes, TRAIN)
    translated_count = _write_items(folder, sources, select(outcomes, TRAIN), english, retained_count)
    for name in (PAIRS, SENTENCES, TEXTS):
        (folder / name).unlink()
    train = {language: counts.total(language)[TRAIN] for language in dict.fromkeys(counts.languages)}
    without = int(english.sum())
    facts: dict[str, Any] = {
        "english": translated_count,
        "items": translated_count + without + sum(train.values()) + retained_count,
        "train": train,
        "retained": retained_count,
        "dev": {language: len(sentences.english) for language, sentences in held_out.dev.items()},
        "dev_untrained": {language: len(sentences.english) for language, sentences in held_out.untrained.items()},
        "records": sources.rejects.records,
        "rejects": dict(sorted(sources.rejects.counts.items())),
        "sources": counts.by_source(),
        "dev_sources": sources.dev_counts.by_source(),
        **cleaning,
    }
    if by_source := sources.english_counts.by_source():
        facts |= {"english_without_translations": without, "english_sources": by_source}
    write_json(folder / "corpus.json", facts)
    trained, held = (", ".join(f"{n:,} {language}" for language, n in facts[part].items()) for part in ("train", "dev"))
    dropped = {outcome: count for outcome, count in counts.total().items() if outcome not in (TRAIN, DEV)}
    log(
        f"parallel corpus: {translated_count:,} English sentences to train on, translations {trained}; "
        f"held out {held or 'none'}; left out {_listed(dropped) or 'none'}"
    )
    for source in by_source:
        dropped = {name: count for name, count in source.items() if name not in (TRAIN, "source", "sentences")}
        log(
            f"{source['source']}: {source.get(TRAIN, 0):,} English sentences without translations to train on; "
            f"left out {_listed(dropped) or 'none'}"
        )


def _count_outcomes(pairs: pa.Table, outcomes: Outcomes, counts: PairCounts) -> None:
    """Counts each pair. Raises RequestError for a language without a pair to train on."""
    streams = pairs["stream"].to_numpy()
    for outcome in OUTCOMES:
        counts.add(outcome, streams[select(outcomes, outcome)])
    for language in counts.languages:
        total = counts.total(language)
        if TRAIN not in total:
            raise RequestError(
                f"no pair of {ENGLISH} and {language} is left to train on; of those read, "
                f"{_listed(total) or 'none was usable'}. Check the sources, the filters and dev_sentences."
            )


def _drawn_dev(sources: _Sources, outcomes: Outcomes) -> dict[str, Translations]:
    rows = sources.pairs.select(Pair._fields).filter(pa.array(select(outcomes, DEV))).to_pylist()
    return sources.counts.by_language(Pair(**row) for row in rows)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} × {outcome}" for outcome, count in counts.items())


def _pair_blocks(pairs: Iterator[Pair], languages: list[str], seed: int) -> Iterator[dict[str, Any]]:
    """Streams blocks of pairs with their digests, the columns of PAIR_SCHEMA."""
    for block in blocks_of(pairs, BLOCK_ROWS):
        columns: dict[str, Any] = dict(zip(Pair._fields, zip(*block, strict=True), strict=True))
        keys = ("\n".join((languages[stream], english, other)) for stream, english, other in block)
        columns["target"] = list(map(text_digest, columns["english"]))
        columns["sentence"] = [sentence_digest(english, seed) for english in columns["english"]]
        yield {**columns, "pair": list(map(text_digest, keys))}


def _distinct_texts(tables: Sequence[Table], cache: Cache | None, rejects: Rejects) -> Iterator[dict[str, Any]]:
    """Streams blocks of the texts of `tables`, clean; blank ones and repetitions are left out."""
    seen: set[bytes] = set()
    for table in tables:
        records = sentence_records(table, cache, rejects)
        for block in blocks_of(records, BLOCK_ROWS):
            rejects.used(len(block))
            texts = filter(None, (clean(record.values[0]) for record in block))
            new = {digest: text for text in texts if (digest := text_digest(text)) not in seen}
            seen.update(new)
            yield {"sentence": list(new.values())}


def _read_held_out(path: Path) -> dict[str, Translations]:
    by_language = json.loads(path.read_text(encoding="utf-8"))
    return {language: Translations(**sentences) for language, sentences in by_language.items()}


def _write_items(folder: Path, sources: _Sources, train: Mask, english: Mask, retained: int) -> int:
    """Writes the training items, the last of them retained texts; returns how many English ones have translations.

    train, english: the pairs and the English sentences without translations to train on.
    """
    pairs = sources.pairs
    targets, first = number_distinct(pairs["target"].filter(pa.array(train)).combine_chunks())
    is_first = mask_of(np.flatnonzero(train)[first], len(train))
    blocks = (
        select_rows(table, mask, {"sentence": "english"})
        for table, mask in ((pairs, is_first), (sources.sentences, english))
    )
    write_arrow(folder / "english.arrow", SENTENCE_SCHEMA, chain.from_iterable(blocks))
    write_arrow(folder / "translations.arrow", SENTENCE_SCHEMA, select_rows(pairs, train, {"sentence": "other"}))
    write_array(folder / STREAMS, pairs["stream"].to_numpy()[train])
    count, without = len(first), int(english.sum())
    if without:
        write_array(folder / ENGLISH_SOURCES, sources.sentences["source"].to_numpy()[english])
    write_targets(folder, targets, count, without, retained)
    return count


def write_targets(folder: Path, targets: NDArray[np.int32], translated: int, without: int, retained: int) -> None:
    """Writes the targets and weights of all items.

    targets: row of the English of each translation, (translations,). translated, without: English sentences with and
    without translations. retained: texts to retain.
    """
    english, no_targets = np.arange(translated + without, dtype=np.int32), np.full(retained, NO_TARGET, np.int32)
    write_array(folder / "targets.npy", np.concatenate([english, targets, no_targets]))
    weights = np.bincount(targets, minlength=translated).astype(np.int32)
    write_array(folder / "weights.npy", np.concatenate([weights, np.ones(without + len(targets) + retained, np.int32)]))
