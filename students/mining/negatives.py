"""Hard negatives: for each anchor of a table of pairs the nearest candidates that are not among its positives.

They are selected as by sentence-transformers' `mine_hard_negatives`, after NV-Retriever (Moreira et al. 2024): a
candidate nearly as near as the positive is often an unmarked positive. Killed anywhere, the same call resumes at the
first block of vectors or of anchors that is missing.
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
from bertrelay.settings import InputFile, common_values, settings_of
from bertrelay.stage import Metrics, StageContext
from students.mining.settings import MINED_SUFFIXES, NegativeOptions, NegativeSettings
from students.mining.training_pairs import CANDIDATES, EMPTY, PAIR, TrainingPairs
from students.searching.equal_vectors import Rows
from students.searching.faiss import at_unit_length, load_faiss
from students.searching.index import SearchIndex, build_index, prompt_or_default
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
    EMPTY: "pairs left out with an empty text",
    "blank_candidate": "blank candidates left out",
}
"""Reasons of `NegativeMining.dropped` in words, after their counts."""
MORE = "Give more candidates (corpus), or loosen the options that leave them out, such as range_max or a margin"


@dataclass(frozen=True)
class NegativeMining:
    """Counts of `mine_negatives`.

    pairs: distinct ones. anchors, candidates: distinct texts. rows: written.
    anchors_with_fewer: anchors with fewer negatives than `num_negatives`.
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
    overwrite: bool = False,
) -> NegativeMining:
    """Writes the pairs of a table with hard negatives, in the columns anchor, positive, negative (negative_1, …).

    Candidates are the positives of all pairs and the texts of `corpus`. No negative of an anchor is the anchor, one of
    its positives, or equal to one but for case and white space.

    output: `.tsv`, `.csv`, `.jsonl` or `.parquet`.
    work: a folder for vectors, index and neighbours, so that another call with other options costs little; without
        one they are next to `output` until it is written.
    cache: of models and data sets of the hub.
    rejects: entered while the tables are read; without it the first unusable record raises.
    process_group: all processes encode and search, each a part of the blocks; only the main one does the rest.
    overwrite: replace an existing file, which is an error otherwise.
    Others as in `students.mining.settings.NegativeSettings`.
    Raises RequestError for unusable files before anything is encoded, and if no anchor has a negative.
    """
    options, output = settings_of(NegativeOptions, locals()), Path(output)
    load_faiss()  # a missing package is an error before hours of encoding
    pair_table, corpus_table = as_table(pairs), None if corpus is None else as_table(corpus)
    inputs = [table.path for table in (pair_table, corpus_table) if table]
    check_output(output, MINED_SUFFIXES, *inputs, overwrite=overwrite)
    with work_folder(output, process_group, work) as folder:
        training_pairs = on_main(
            lambda: TrainingPairs.read(pair_table, corpus_table, folder, cache, rejects), process_group
        )
        miner = _prepare(open_encoder(model, cache), training_pairs, options, cache, process_group)
        shards = miner.fill(process_group)
        return on_main(lambda: _write(output, miner, shards), process_group)


def run(settings: NegativeSettings, context: StageContext) -> Metrics:
    """Runs the stage `students.mine-negatives`: writes rows to `negatives.jsonl`, or a file of another format."""
    options = common_values(settings, NegativeOptions)
    mining = mine_negatives(
        settings.model,
        settings.pairs,
        context.output / f"negatives.{settings.output}",
        corpus=settings.corpus,
        work=context.work,
        cache=context.cache,
        rejects=Rejects(context.output / "rejects.jsonl", settings.max_rejects),
        process_group=context.process_group,
        overwrite=True,
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
        """Writes the negatives of each pair to shards, with all processes."""
        spans = even_spans(len(self.anchors), ANCHOR_BLOCK)
        decisive = self.options.model_dump(exclude={"scores", "batch_tokens"})
        manifest: dict[str, object] = {"key": fingerprint({"vectors": self.key, **decisive})}
        work = Work(whole_span, lambda: self._lines, "mining", "anchors")
        output, executor = self.pairs.folder / SHARDS, LocalExecutor(process_group)
        return fill_shards(output, spans, manifest, work, suffix=".jsonl", write=write_lines, executor=executor)

    def _lines(self, spans: Iterable[Span], bar: Bar) -> Iterator[list[str]]:
        for first, end, size in spans:
            yield list(map(json_line, self._block(first, end)))
            bar.advance(size)

    def _block(self, first: int, end: int) -> Iterator[dict[str, Any]]:
        """Yields the score and the negatives of each pair of anchors `first` to `end`, and last the dropped ones.

        Example: anchor 0 has the positive 2, and its nearest candidates are 5, 2 and 7. Candidate 2 is dropped as a
        positive; 5 and 7 stay. Two are enough for `num_negatives` = 2:

            {"row": 0, "score": 0.8, "negatives": [(5, 0.9), (7, 0.6)]}
            {"dropped": {"positive": 1}, "fewer": 0}
        """
        start, stop = np.searchsorted(self.pairs.anchor_of, [first, end])
        anchor_of, positive_of = self.pairs.anchor_of[start:stop] - first, self.pairs.positive_of[start:stop]
        vectors = np.asarray(self.anchors[first:end])
        positive_scores = np.einsum("nd,nd->n", vectors[anchor_of], self.index.vectors[positive_of])  # (pairs,)
        lowest = np.minimum.reduceat(positive_scores, np.searchsorted(anchor_of, np.arange(end - first)))  # (anchors,)
        most_positives = int(np.bincount(anchor_of).max())
        top_k = self.options.window + most_positives + 1  # an anchor's nearest include its positives and itself
        scores, rows = self.index.neighbours(vectors, top_k)
        is_positive = np.isin(
            rows + self.pairs.candidates * np.arange(end - first)[:, None],
            positive_of + self.pairs.candidates * anchor_of,
        )  # (anchors, top_k)
        is_anchor = (rows == self.pairs.anchor_row[first:end, None]) & ~is_positive
        excluded = {"positive": is_positive, "anchor": is_anchor}
        eligible, dropped = eligible_negatives(scores, rows >= 0, excluded, lowest, self.options)
        negatives = [self._select(np.flatnonzero(row), first + number) for number, row in enumerate(eligible)]
        rounded = scores.astype(np.float64).round(DIGITS)
        needed = self.options.num_negatives if self.options.layout == "n-tuple" else 1
        for pair, anchor in enumerate(anchor_of.tolist()):
            selected = negatives[anchor]
            if len(selected) < needed:
                dropped["too_few_negatives"] += 1
                continue
            scored = zip(rows[anchor, selected].tolist(), rounded[anchor, selected].tolist(), strict=True)
            score = round(float(positive_scores[pair]), DIGITS)
            yield {"row": int(self.pairs.rows[start + pair]), "score": score, "negatives": list(scored)}
        yield {"dropped": dropped, "fewer": sum(len(row) < self.options.num_negatives for row in negatives)}

    def _select(self, eligible: Rows, anchor: int) -> Rows:
        """Takes an anchor's negatives from the positions of eligible candidates, nearest first."""
        count = self.options.num_negatives
        if self.options.sampling == "top" or len(eligible) <= count:
            return eligible[:count]
        generator = np.random.default_rng([self.options.seed, anchor])
        return np.sort(generator.choice(eligible, count, replace=False))


def eligible_negatives(
    scores: Vectors, exists: Mask, excluded: Mapping[str, Mask], lowest: Vectors, options: NegativeOptions
) -> tuple[Mask, Counter[str]]:
    """Marks the candidates that may be negatives, and counts the others by the first reason that applies.

    1. Of the nearest candidates, without `excluded` ones, `options.window` are considered.
    2. Each rule of the options drops those that it applies to.
    3. The first `range_min` of the remaining ones are skipped.

    scores: of the nearest candidates, best first, (anchors, k). exists: false where the index has fewer, (anchors, k).
    excluded: by reason candidates that do not count among the nearest, (anchors, k).
    lowest: the lowest score of a positive of each anchor, (anchors,).

    Example: scores 0.9, 0.8, 0.7, 0.6 and a positive with 0.75. absolute_margin 0 drops the first two and range_min 1
    skips the third, so only the fourth is eligible; the counts are {"absolute_margin": 2, "range_min": 1}.
    """
    bars = lowest[:, None]  # (anchors, 1)
    others = exists & ~np.logical_or.reduce(list(excluded.values()))
    left = exists & (np.cumsum(others, axis=1) - others < options.window)
    rules = dict(excluded)
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


def _prepare(
    encoder: SentenceEncoder,
    pairs: TrainingPairs,
    options: NegativeOptions,
    cache: Cache | None,
    process_group: ProcessGroup,
) -> Miner:
    """Builds the index of the candidates and encodes the anchors, with all processes."""
    query_prompt, prompt = map(prompt_or_default, (options.query_prompt, options.prompt), encoder.retrieval_prompts)
    options = options.model_copy(update={"query_prompt": query_prompt, "prompt": prompt})
    precision = LocalExecutor(process_group).precision(options.precision, encoder.device)
    queries = encoder.for_prompt(options.query_prompt)
    models = [encoder_digest(one) for one in dict.fromkeys((encoder, queries))]
    key = fingerprint({"model": models, "texts": pairs.digest, "precision": precision})
    index = build_index(
        encoder,
        Table(path=InputFile(pairs.folder / CANDIDATES)),
        pairs.folder / f"index-{fingerprint({'vectors': key, 'prompt': options.prompt})[:16]}",
        kind=options.kind,
        prompt_name=options.prompt or "",  # resolved
        query_prompt_name=options.query_prompt,
        precision=precision,
        batch_tokens=options.batch_tokens,
        cache=cache,
        process_group=process_group,
    )
    path = pairs.folder / ANCHORS
    fill_vectors(
        at_unit_length(queries),
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


def _write(output: Path, miner: Miner, shards: ShardFiles) -> NegativeMining:
    """Writes the rows of all shards with their texts, and removes the shards."""
    pairs, options, dropped = miner.pairs, miner.options, Counter(miner.pairs.dropped)
    columns, texts_of = _columns(options), miner.index.sentences["text"]
    sums: Counter[str] = Counter()

    def rows() -> Iterator[list[Any]]:
        for mined in shards.rows():
            if "dropped" in mined:
                dropped.update(mined["dropped"])
                sums["fewer"] += mined["fewer"]
                continue
            pair = [pairs.table[name][mined["row"]].as_py() for name in PAIR]
            negatives = [(texts_of[row].as_py(), score) for row, score in mined["negatives"]]
            for in_row in [negatives] if options.layout == "n-tuple" else [[negative] for negative in negatives]:
                texts, scores = zip(*in_row, strict=True)
                sums.update(rows=1, positive_score=mined["score"], negative_score=sum(scores) / len(scores))
                yield [*pair, *texts, mined["score"], *scores][: len(columns)]
        if not sums["rows"]:
            raise RequestError(
                f"{output}: expected negatives, found none for {len(pairs.first):,} anchors among {pairs.candidates:,} "
                f"candidates: {describe_dropped(dropped)}. {MORE}"
            )

    write_table(output, columns, rows())
    shards.remove()
    if sums["fewer"]:
        log(
            f"{sums['fewer']:,} of {len(pairs.first):,} anchors have fewer than the {options.num_negatives} negatives "
            f"requested, among {pairs.candidates:,} candidates: {describe_dropped(dropped)}. {MORE}"
        )
    counts = len(pairs.rows), len(pairs.first), pairs.candidates, sums["rows"], sums["fewer"]
    means = [sums[name] / sums["rows"] for name in ("positive_score", "negative_score")]
    return NegativeMining(*counts, dict(+dropped), *means)


def describe_dropped(dropped: Mapping[str, int]) -> str:
    """Words the counts: `2 candidates left out as positives of their anchor, …`."""
    return ", ".join(f"{count:,} {LEFT_OUT[reason]}" for reason, count in dropped.items() if count) or "none left out"


def _columns(options: NegativeOptions) -> dict[str, str]:
    """Returns the names and types of the columns that are written."""
    suffixes = [""]
    if options.layout == "n-tuple":
        suffixes = [f"_{number}" for number in range(1, options.num_negatives + 1)]
    texts = [*PAIR, *(f"negative{suffix}" for suffix in suffixes)]
    scores = ["positive_score", *(f"negative_score{suffix}" for suffix in suffixes)] if options.scores else []
    return dict.fromkeys(texts, "string") | dict.fromkeys(scores, "double")
