"""Private memory of work on many sentences: writing vectors, a student's targets, its distillation, documents.

Claim: from 10,000 to 1,000,000 sentences it grows by at most 50 MB; that of a distillation by at most 300 MB.

    python -m benchmarks.memory                                                    about half an hour
    python -m benchmarks.memory --works "distil a student" --sizes 10000 1000000   half of it

The network is a stand-in (a BERT of one layer, 32 dimensions and a tiny vocabulary), because what is claimed is about
the way of the sentences and vectors, not about the weights. Sentences are drawn with a seed: words by Zipf's law,
lengths log-normal around 11 words with a tail up to 80.

Each figure is `RssAnon` of a fresh process, read from /proc every 50 ms by another one: what the process has for
itself. It counts Python's and torch's own objects, the libraries' working memory and what the allocator keeps for
later. It does not count memory-mapped files (the corpus and the vectors, which the system takes back at will) nor the
code of the libraries, and it may miss a peak shorter than 50 ms. Needs Linux.

`loaded` is with all libraries and the model; `ready` is after a warm-up of 50,000 sentences through the same blocks;
`peak` is the highest while the work itself is done. The warm-up is there because the first blocks of a process fill
what stays full ever after: oneDNN keeps some of the kernels that it compiles for each shape of batch, and the
allocator keeps what the threads of tokenizer and network gave back. That is some 40 MB, whatever the corpus; without
the warm-up (`--warm-up 0`) a corpus of 10,000 sentences ends before it is reached, and one of 100,000 does not.
Documents are prepared in shards of 65,536 sentences, one in memory at a time; 10,000 sentences do not fill one.
A distillation is the whole stage with its defaults: corpus, targets, tokens and one epoch of training, whose kernels
for each shape of batch need some 300 steps, as many as there are for 10,000 pairs, until all are there.
"""

import multiprocessing
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel

from benchmarks.contenders import Claim, judge
from benchmarks.machine import machine
from benchmarks.private import SECONDS_BETWEEN_LOOKS, private_memory_mb
from bertrelay.data.tables import Table
from bertrelay.encoder import SentenceEncoder
from bertrelay.encoding import BLOCK_SENTENCES, encode_blocks
from bertrelay.fingerprint import Digests
from bertrelay.settings import InputFile, ModelSource
from bertrelay.stage import StageContext
from bertrelay.vector_files import encode_file
from bertrelay.vocabulary import train_wordpiece
from domain.pretraining.corpus import build_corpus as build_document_corpus
from domain.pretraining.settings import DocumentSource
from students import distill
from students.parallel.corpus import CorpusPlan, ParallelCorpus, build_corpus
from students.settings import AlignedFiles, DistillSettings, Filters
from students.targets import fill_targets

SIZES = [10_000, 100_000, 1_000_000]
WARM_UP = 50_000
DISTILLING, DISTILLING_GROWS_BY, GROWS_BY = "distil a student", 300, 50
LOADING, WARMING_UP, WORKING = range(3)
WORDS, SYLLABLES = 3_000, [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
MEDIAN_WORDS, SPREAD, MOST_WORDS = 11, 0.5, 80
DRAWN_AT_ONCE = 10_000
FILTERS = Filters(max_length_ratio=100)
ENGLISH, OTHER, DOCUMENTS, MODEL = "en.txt", "xx.txt", "documents.txt", "model"
DOCUMENT_SENTENCES = 12


@dataclass(frozen=True)
class Seen:
    """Private memory of one process in MB, and how long it worked."""

    loaded: float
    ready: float
    peak: float
    seconds: float


def sentences(count: int, seed: int) -> Iterator[str]:
    """`count` sentences of made-up words."""
    generator = np.random.default_rng(seed)
    words = np.array([_word(generator) for _ in range(WORDS)])
    share = 1 / np.arange(1, WORDS + 1)
    for start in range(0, count, DRAWN_AT_ONCE):
        block = min(DRAWN_AT_ONCE, count - start)
        lengths = generator.lognormal(np.log(MEDIAN_WORDS), SPREAD, block).round().astype(int).clip(3, MOST_WORDS)
        drawn = words[generator.choice(WORDS, lengths.sum(), p=share / share.sum())]
        yield from (" ".join(piece) + "." for piece in np.split(drawn, np.cumsum(lengths)[:-1]))


def _word(generator: np.random.Generator) -> str:
    return "".join(generator.choice(SYLLABLES, generator.integers(1, 5)))


def save_stand_in(folder: Path) -> None:
    tokenizer = train_wordpiece(sentences(2_000, seed=0), 600, max_tokens=128)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    torch.manual_seed(0)
    SentenceEncoder(BertModel(config), tokenizer).save(folder)


def write_corpus(folder: Path, count: int) -> None:
    """The English lines, and the corpus in which each has a translation."""
    for seed, name in enumerate((ENGLISH, OTHER), start=1):
        with (folder / name).open("w") as file:
            file.writelines(f"{sentence}\n" for sentence in sentences(count, seed))
    build_corpus(folder, "corpus", CorpusPlan([translations(folder)], seed=0, filters=FILTERS))


def translations(folder: Path) -> AlignedFiles:
    return AlignedFiles(english=InputFile(folder / ENGLISH), other=InputFile(folder / OTHER), language="xx")


def write_documents(folder: Path, count: int) -> None:
    with (folder / DOCUMENTS).open("w") as file:
        for number, sentence in enumerate(sentences(count, seed=1)):
            file.write("\n" * (number % DOCUMENT_SENTENCES == 0) + f"{sentence.capitalize()}\n")


def write_vectors(encoder: SentenceEncoder, folder: Path) -> None:
    encode_file(encoder, Table(path=InputFile(folder / ENGLISH)), folder / "vectors.npy")


def write_targets(encoder: SentenceEncoder, folder: Path) -> None:
    corpus = ParallelCorpus.open(folder / "corpus")
    fill_targets(encoder, corpus, StageContext(folder, folder / "cache"), "key", "auto")


def prepare_documents(encoder: SentenceEncoder, folder: Path) -> None:
    documents = DocumentSource(path=InputFile(folder / DOCUMENTS))
    build_document_corpus([documents], encoder.tokenizer, folder / "cache", Digests(), held_out_share=0.1)


def distil(encoder: SentenceEncoder, folder: Path) -> None:  # noqa: ARG001 (the stage loads it itself)
    """The whole stage, from text to the trained student, the stand-in being its own teacher."""
    model = ModelSource.parse(str(folder.parent / MODEL))
    settings = DistillSettings(teacher=model, base=model, parallel=[translations(folder)], filters=FILTERS)
    distill.run(settings, StageContext(folder / "student", folder / "cache"))


WORKS: dict[str, Callable[[SentenceEncoder, Path], None]] = {
    "encode to a file": write_vectors,
    "fill the targets": write_targets,
    "prepare documents": prepare_documents,
    DISTILLING: distil,
}
INPUTS = dict.fromkeys(WORKS, write_corpus) | {"prepare documents": write_documents}


def work(name: str, folder: Path, model: Path, warm_up: int, phase: Any) -> None:
    """What the watched process does; `phase` tells the watcher how far it is."""
    encoder = SentenceEncoder.load(model)
    phase.value = WARMING_UP
    time.sleep(2 * SECONDS_BETWEEN_LOOKS)  # so that the watcher sees it resting
    drawn = sentences(warm_up, seed=3)
    blocks = iter(lambda: list(islice(drawn, BLOCK_SENTENCES)), [])
    for _ in encode_blocks(encoder, blocks):
        pass
    phase.value = WORKING
    time.sleep(2 * SECONDS_BETWEEN_LOOKS)
    WORKS[name](encoder, folder)


def watch(name: str, folder: Path, model: Path, warm_up: int) -> Seen:
    """Runs a work in a process of its own and looks at its memory until it ends."""
    fresh = multiprocessing.get_context("spawn")
    phase = fresh.Value("i", LOADING)
    process = fresh.Process(target=work, args=(name, folder, model, warm_up, phase))
    process.start()
    looks: list[list[float]] = [[], [], []]
    began = time.monotonic()
    while process.is_alive():
        if phase.value != WORKING:
            began = time.monotonic()
        looks[phase.value] += private_memory_mb(process.pid)
        time.sleep(SECONDS_BETWEEN_LOOKS)
    if process.exitcode != 0:
        sys.exit(f"{name}: the process ended with {process.exitcode}; its own words stand above")
    return Seen(looks[WARMING_UP][0], looks[WORKING][0], max(looks[WORKING]), time.monotonic() - began)


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.memory", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="SENTENCES")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS), metavar="WORK")
    parser.add_argument("--warm-up", type=int, default=WARM_UP, metavar="SENTENCES")
    options = parser.parse_args()
    sizes = options.sizes
    print(machine())
    print(f"{'work':18} {'sentences':>10} {'loaded MB':>10} {'ready MB':>9} {'peak MB':>8} {'seconds':>8}", flush=True)
    seen: dict[tuple[str, int], Seen] = {}
    with tempfile.TemporaryDirectory() as scratch:
        save_stand_in(Path(scratch, MODEL))
        for size in sizes:
            folder = Path(scratch, str(size))
            folder.mkdir()
            for write_input in {INPUTS[name] for name in options.works}:
                write_input(folder, size)
            for name in options.works:
                seen[name, size] = now = watch(name, folder, Path(scratch, MODEL), options.warm_up)
                memory = f"{now.loaded:>10.0f} {now.ready:>9.0f} {now.peak:>8.0f}"
                print(f"{name:18} {size:>10,} {memory} {now.seconds:>8.1f}", flush=True)
    growth = {name: seen[name, sizes[-1]].peak - seen[name, sizes[0]].peak for name in options.works}
    sys.exit(0 if judge(claims(growth)) else 1)


def claims(growth: dict[str, float]) -> list[Claim]:
    """growth: MB of each work's peak, from the first size to the last."""
    most = {name: DISTILLING_GROWS_BY if name == DISTILLING else GROWS_BY for name in growth}
    return [
        Claim(f"{name}: {most[name]} MB more at most", f"{mb:+.0f} MB", mb <= most[name]) for name, mb in growth.items()
    ]


if __name__ == "__main__":
    main()
