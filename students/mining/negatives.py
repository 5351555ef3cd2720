"""Hard negatives: for each anchor of a table of pairs the nearest candidates that are none of its positives.

Which of them are taken is settled as in sentence-transformers' `mine_hard_negatives`, after NV-Retriever (Moreira et
al. 2024): a candidate nearly as near as the positive is often one that nobody marked. Killed anywhere, the same call
resumes: from the first block of vectors or of anchors that is missing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertrelay.cache import Cache
from bertrelay.compute.local import LocalExecutor
from bertrelay.compute.work import Work, whole_span
from bertrelay.data.arrow import Mask
from bertrelay.data.records import Rejects
from bertrelay.data.sentences import as_table
from bertrelay.data.shards import ShardFiles, Span, even_spans, work_folder
from bertrelay.data.tables import Table
from bertrelay.data.vectors import Vectors, open_vectors
from bertrelay.data.writing import json_line, write_lines, write_table
from bertrelay.encode_files import fill_vectors
from bertrelay.errors import RequestError
from bertrelay.files import check_output
from bertrelay.fingerprint import fingerprint
from bertrelay.inference.run_model import fill_shards
from bertrelay.inputs import unchanged_inputs
from bertrelay.model.encoder import SentenceEncoder, encoder_digest, open_encoder
from bertrelay.process_group import SINGLE_PROCESS, ProcessGroup, on_main
from bertrelay.progress import Bar, log
from bertrelay.settings import InputFile, settings_of
from bertrelay.stage import Metrics, StageContext
from students.mining.settings import MINED_SUFFIXES, NegativeOptions, NegativeSettings
from students.mining.training_pairs import CANDIDATES, EMPTY, PAIR, TrainingPairs
from students.searching.equal_vectors import Rows
from students.searching.faiss import at_unit_length, load_faiss
from students.searching.index import SearchIndex, build_index
from students.searching.settings import IndexKind

ANCHOR_BLOCK = 4096
ANCHORS, SHARDS = "anchors.npy", "negatives"
DIGITS = 6  # of a score that is written
LEFT_OUT = {
    "positive": "candidates left out as positives of their anchor",
    "anchor": "candidates left out as equal to their anchor",
    **{
        rule: f"candidates left out by {rule}"
        for rule in ("absolute_margin", "relative_margin", "max_score", "min_score", "range_min")
    },
    "too_few_negatives": "pairs left out with fewer negatives than num_negatives",
    "duplicate_pair": "pairs left out as given twice",
    EMPTY: "pairs left out with an empty side",
    "blank_candidate": "blank candidates left out",
}
"""What a reason of `NegativeMining.dropped` is in words, after its count."""


@dataclass(frozen=True)
class NegativeMining:
    """What `mine_negatives` did.

    pairs: distinct ones; anchors, candidates: distinct texts. rows: written.
    anchors_with_fewer: those with fewer negatives than `num_negatives`.
    dropped: counts by reason: of records, of pairs, and of candidates among the nearest of an anchor; see `LEFT_OUT`.
    positive_score, negative_score: mean cosines of the rows.
    """

    pairs: int
    anchors: int
    candidates: int
    rows: int
    anchors_with_fewer: int
    dropped: dict[str, int]
    positive_score: float
    negative_score: float


@unchanged_inputs()
def mine_negatives(
    model: SentenceEncoder | str | Path,
    pairs: Table | str | Path,
    output: str | Path,
    *,
    corpus: Table | str | Path | None = None,
    work: Path | None = None,
    cache: Cache | None = None,
    rejects: Rejects | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
    num_negatives: int = 3,
    range_min: int = 0,
    range_max: int | None = None,
    max_score: float | None = None,
    min_score: float | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    sampling: Literal["top", "random"] = "top",
    seed: int = 0,
    layout: Literal["triplet", "n-tuple"] = "triplet",
    scores: bool = False,
    kind: IndexKind = "auto",
    query_prompt: str | None = None,
    prompt: str | None = None,
    precision: str = "auto",
    batch_tokens: int | None = None,
) -> NegativeMining:
    """Writes the pairs of a table with hard negatives, in the columns anchor, positive, negative (negative_1, …).

    Candidates are the positives of all pairs and the texts of `corpus`. No negative of an anchor is the anchor, one of
    its positives, or equal to one but for case and white space.

    output: `.tsv`, `.csv`, `.jsonl` or `.parquet`.
    work: a folder to keep vectors, index and neighbours in, so that another call with other options costs little;
        without one, next to `output` until it is written.
    cache: where a model or data set of the hub is kept.
    rejects: entered while the tables are read; without it the first record that cannot be used raises.
    process_group: all processes encode and search, each its share of the blocks; the main one does the rest.
    Others as in `students.mining.settings.NegativeSettings`.
    Raises RequestError for files that cannot be what they should be, before anything is encoded, and where no anchor
    has a negative.
    """
    options, output = settings_of(NegativeOptions, locals()), Path(output)
    load_faiss()  # where it is missing, say so before hours of encoding
    table, others = as_table(pairs), None if corpus is None else as_table(corpus)
    check_output(output, MINED_SUFFIXES, *(each.path for each in (table, others) if each))
    with work_folder(output, process_group, work) as folder:
        training_pairs = on_main(lambda: TrainingPairs.read(table, others, folder, cache, rejects), process_group)
        miner = _prepared(open_encoder(model, cache), training_pairs, options, cache, process_group)
        shards = miner.fill(process_group)
        return on_main(lambda: _write(output, miner, shards), process_group)


def run(settings: NegativeSettings, context: StageContext) -> Metrics:
    """The stage `students.mine-negatives`: the rows in `negatives.jsonl`, or another kind of file."""
    options = {name: getattr(settings, name) for name in NegativeOptions.model_fields}
    mining = mine_negatives(
        settings.model,
        settings.pairs,
        context.output / f"negatives.{settings.output}",
        corpus=settings.corpus,
        work=context.work,
        cache=context.cache,
        rejects=Rejects(context.output / "rejects.jsonl", settings.max_rejects),
        process_group=context.process_group,
        **options | {"precision": context.precision(settings.precision)},
    )
    counts = {name: value for name, value in vars(mining).items() if name != "dropped"}
    return counts | {f"dropped/{reason}": count for reason, count in mining.dropped.items()}


@dataclass(frozen=True)
class Miner:
    """Pairs, the index of the candidates, and the unit vectors of the anchors, (anchors, dim)."""

    pairs: TrainingPairs
    index: SearchIndex
    anchors: Vectors
    options: NegativeOptions
    key: str

    def fill(self, process_group: ProcessGroup) -> ShardFiles:
        """The shards, in which all processes have written what they found for each pair."""
        count, asked = len(self.anchors), self.options.model_dump(exclude={"scores", "batch_tokens"})
        spans = even_spans(count, ANCHOR_BLOCK)
        manifest: dict[str, object] = {"key": fingerprint({"vectors": self.key, **asked})}
        work = Work(whole_span, lambda: self._lines, "mining", "anchors")
        output, executor = self.pairs.folder / SHARDS, LocalExecutor(process_group)
        return fill_shards(output, spans, manifest, work, suffix=".jsonl", write=write_lines, executor=executor)

    def _lines(self, spans: Iterable[Span], bar: Bar) -> Iterator[list[str]]:
        for first, end, size in spans:
            yield list(map(json_line, self._block(first, end)))
            bar.advance(size)

    def _block(self, first: int, end: int) -> Iterator[dict[str, Any]]:
        """For each pair of anchors `first` to `end` its score and its negatives, and last what was dropped."""
        start, stop = np.searchsorted(self.pairs.anchor_of, [first, end])
        anchor_of, positive_of = self.pairs.anchor_of[start:stop] - first, self.pairs.positive_of[start:stop]
        vectors = np.asarray(self.anchors[first:end])
        positive_scores = np.einsum("nd,nd->n", vectors[anchor_of], self.index.vectors[positive_of])  # (pairs,)
        least = np.minimum.reduceat(positive_scores, np.searchsorted(anchor_of, np.arange(end - first)))  # (anchors,)
        k = self.options.window + int(np.bincount(anchor_of).max()) + 1  # its positives and itself are among them
        scores, rows = self.index.neighbours(vectors, k)
        positives = np.isin(
            rows + self.pairs.candidates * np.arange(end - first)[:, None],
            positive_of + self.pairs.candidates * anchor_of,
        )  # (anchors, k)
        own = (rows == self.pairs.anchor_row[first:end, None]) & ~positives
        excluded = {"positive": positives, "anchor": own}
        eligible, dropped = eligible_negatives(scores, rows >= 0, excluded, least, self.options)
        negatives = [self._chosen(np.flatnonzero(row), first + place) for place, row in enumerate(eligible)]
        rounded = scores.astype(np.float64).round(DIGITS)
        needed = self.options.num_negatives if self.options.layout == "n-tuple" else 1
        for place, anchor in enumerate(anchor_of.tolist()):
            chosen = negatives[anchor]
            if len(chosen) < needed:
                dropped["too_few_negatives"] += 1
                continue
            found = zip(rows[anchor, chosen].tolist(), rounded[anchor, chosen].tolist(), strict=True)
            score = round(float(positive_scores[place]), DIGITS)
            yield {"row": int(self.pairs.rows[start + place]), "score": score, "negatives": list(found)}
        yield {"dropped": dropped, "fewer": sum(len(chosen) < self.options.num_negatives for chosen in negatives)}

    def _chosen(self, places: Rows, anchor: int) -> Rows:
        """The places of the negatives among those that are left, nearest first."""
        count = self.options.num_negatives
        if self.options.sampling == "top" or len(places) <= count:
            return places[:count]
        generator = np.random.default_rng([self.options.seed, anchor])
        return np.sort(generator.choice(places, count, replace=False))


def eligible_negatives(
    scores: Vectors, found: Mask, no_candidates: Mapping[str, Mask], least: Vectors, options: NegativeOptions
) -> tuple[Mask, Counter[str]]:
    """Which candidates may be negatives, and how many are dropped, each under the first reason that it has.

    scores: of the nearest candidates, best first, and which of them were found, (anchors, k).
    no_candidates: by reason which of them are none and take no place among the nearest, (anchors, k).
    least: the lowest score of a positive of each anchor, (anchors,).
    """
    bars = least[:, None]  # (anchors, 1)
    taken = np.logical_or.reduce(list(no_candidates.values()))
    others = found & ~taken
    left = found & (np.cumsum(others, axis=1) - others < options.window)
    rules = dict(no_candidates)
    if options.absolute_margin is not None:
        rules["absolute_margin"] = scores > bars - options.absolute_margin
    if options.relative_margin is not None:
        rules["relative_margin"] = scores > bars - abs(bars) * options.relative_margin
    if options.max_score is not None:
        rules["max_score"] = scores > options.max_score
    if options.min_score is not None:
        rules["min_score"] = scores < options.min_score
    dropped: Counter[str] = Counter()
    for reason, rule in rules.items():
        dropped[reason] = int((left & rule).sum())
        left &= ~rule
    skipped = left & (np.cumsum(left, axis=1) <= options.range_min)
    return left & ~skipped, dropped + Counter(range_min=int(skipped.sum()))


def _prepared(
    encoder: SentenceEncoder,
    pairs: TrainingPairs,
    options: NegativeOptions,
    cache: Cache | None,
    process_group: ProcessGroup,
) -> Miner:
    """Builds the index of the candidates and encodes the anchors, with all processes."""
    given = (options.query_prompt, options.prompt)
    names = (own if name is None else name or None for name, own in zip(given, encoder.retrieval_prompts, strict=True))
    options = options.model_copy(update=dict(zip(("query_prompt", "prompt"), names, strict=True)))
    precision = LocalExecutor(process_group).precision(options.precision, encoder.device)
    key = fingerprint({"model": encoder_digest(encoder), "texts": pairs.digest, "precision": precision})
    index = build_index(
        encoder,
        Table(path=InputFile(pairs.folder / CANDIDATES)),
        pairs.folder / f"index-{fingerprint({'vectors': key, 'prompt': options.prompt})[:16]}",
        kind=options.kind,
        prompt_name=options.prompt,
        query_prompt_name=options.query_prompt,
        precision=precision,
        batch_tokens=options.batch_tokens,
        cache=cache,
        process_group=process_group,
    )
    path = pairs.folder / ANCHORS
    fill_vectors(
        at_unit_length(encoder),
        pairs.anchors,
        len(pairs.first),
        path,
        key,
        prompt_name=options.query_prompt,
        description="encoding anchors",
        name_row=lambda anchor: f"anchor {anchor + 1:,}",
        precision=precision,
        batch_tokens=options.batch_tokens,
        executor=LocalExecutor(process_group),
    )
    return Miner(pairs, index, open_vectors(path), options, key)


# Output


def _write(output: Path, miner: Miner, shards: ShardFiles) -> NegativeMining:
    """Writes the rows of all shards with their texts, and removes the shards."""
    pairs, options, dropped = miner.pairs, miner.options, Counter(miner.pairs.dropped)
    columns, texts_of = _columns(options), miner.index.sentences["text"]
    sums: Counter[str] = Counter()

    def rows() -> Iterator[list[Any]]:
        for found in shards.rows():
            if "dropped" in found:
                dropped.update(found["dropped"])
                sums["fewer"] += found["fewer"]
                continue
            pair = [pairs.table[name][found["row"]].as_py() for name in PAIR]
            negatives = [(texts_of[row].as_py(), score) for row, score in found["negatives"]]
            for together in [negatives] if options.layout == "n-tuple" else [[each] for each in negatives]:
                texts, scores = zip(*together, strict=True)
                sums.update(rows=1, positive_score=found["score"], negative_score=sum(scores) / len(scores))
                yield [*pair, *texts, found["score"], *scores][: len(columns)]
        if not sums["rows"]:
            raise RequestError(
                f"{output}: expected negatives, found none for {len(pairs.first):,} anchors among {pairs.candidates:,} "
                f"candidates: {in_words(dropped)}. {MORE}"
            )

    write_table(output, columns, rows())
    shards.remove()
    if sums["fewer"]:
        log(
            f"{sums['fewer']:,} of {len(pairs.first):,} anchors have fewer than the {options.num_negatives} negatives "
            f"asked for, among {pairs.candidates:,} candidates: {in_words(dropped)}. {MORE}"
        )
    counts = len(pairs.rows), len(pairs.first), pairs.candidates, sums["rows"], sums["fewer"]
    means = [sums[name] / sums["rows"] for name in ("positive_score", "negative_score")]
    return NegativeMining(*counts, dict(+dropped), *means)


MORE = "Give more candidates (corpus), or loosen the options that leave them out, such as range_max or a margin"


def in_words(dropped: Mapping[str, int]) -> str:
    """`2 candidates left out as positives of their anchor, …`."""
    return ", ".join(f"{count:,} {LEFT_OUT[reason]}" for reason, count in dropped.items() if count) or "none left out"


def _columns(options: NegativeOptions) -> dict[str, str]:
    """The names and types of the columns that are written."""
    places = range(1, options.num_negatives + 1)
    numbers = [""] if options.layout == "triplet" else [f"_{place}" for place in places]
    texts = [*PAIR, *(f"negative{number}" for number in numbers)]
    scores = ["positive_score", *(f"negative_score{number}" for number in numbers)] if options.scores else []
    return dict.fromkeys(texts, "string") | dict.fromkeys(scores, "double")
