"""Private memory of work on many sentences: encoding a file, a student's targets, documents, a distillation.

Claim: from 10,000 to 1,000,000 sentences it grows by at most 50 MB; that of a distillation by at most 300 MB.

    python -m benchmarks.memory                                                    about half an hour
    python -m benchmarks.memory --works "distil a student" --sizes 10000 1000000   half of it

The network is a stand-in (one layer of 32 dimensions); sentences are drawn with a seed, words by Zipf's law, lengths
log-normal around 11 words. A figure is `RssAnon` of a fresh process, every 50 ms: what it has for itself, memory-mapped
files and code not counted: `loaded` with libraries and model, `ready` after a warm-up, which fills the caches of
compiled kernels and of the allocator, `peak` the highest while the work is done.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Claim, main
from benchmarks.machine import growth_claim, memories, save_stand_in
from bertrelay.data.tables import Table
from bertrelay.encode_files import encode_file
from bertrelay.encoder import SentenceEncoder
from bertrelay.encoding import BLOCK_SENTENCES, encode_blocks
from bertrelay.fingerprint import Digests
from bertrelay.hardware import private_memory_mb
from bertrelay.settings import InputFile, ModelSource
from bertrelay.stage import StageContext
from domain.pretraining.corpus import build_corpus as build_document_corpus
from domain.pretraining.settings import DocumentSource
from students import distill
from students.build import fill_targets
from students.corpus import ParallelCorpus, build_corpus
from students.settings import AlignedFiles, DistillSettings, Filters

DISTILLING, DISTILLING_GROWS_BY, GROWS_BY = "distil a student", 300, 50
WORDS, SYLLABLES = 3_000, [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
MEDIAN_WORDS, DEVIATION, MOST_WORDS, DRAWN_AT_ONCE = 11, 0.5, 80, 10_000
FILTERS, DOCUMENT_SENTENCES = Filters(max_length_ratio=100), 12


def sentences(count: int, seed: int) -> Iterator[str]:
    """`count` sentences of made-up words."""
    generator = np.random.default_rng(seed)
    words = np.array(["".join(generator.choice(SYLLABLES, generator.integers(1, 5))) for _ in range(WORDS)])
    share = 1 / np.arange(1, WORDS + 1)
    for begin in range(0, count, DRAWN_AT_ONCE):
        block = min(DRAWN_AT_ONCE, count - begin)
        lengths = generator.lognormal(np.log(MEDIAN_WORDS), DEVIATION, block).round().astype(int).clip(3, MOST_WORDS)
        drawn = words[generator.choice(WORDS, lengths.sum(), p=share / share.sum())]
        yield from (" ".join(sentence) + "." for sentence in np.split(drawn, np.cumsum(lengths)[:-1]))


def write_inputs(folder: Path, count: int) -> None:
    """English lines, the corpus in which each has a translation, and documents."""
    for seed, name in enumerate(("en.txt", "xx.txt"), start=1):
        with (folder / name).open("w") as file:
            file.writelines(f"{sentence}\n" for sentence in sentences(count, seed))
    with (folder / "documents.txt").open("w") as file:
        for number, sentence in enumerate(sentences(count, seed=1)):
            file.write("\n" * (number % DOCUMENT_SENTENCES == 0) + f"{sentence.capitalize()}\n")
    build_corpus(folder / "corpus", settings_of(folder, dev_sentences=0))


def settings_of(folder: Path, **more: int) -> DistillSettings:
    model = ModelSource.parse(str(folder.parent / "model"))
    rows = AlignedFiles(english=InputFile(folder / "en.txt"), other=InputFile(folder / "xx.txt"), language="xx")
    return DistillSettings(teacher=model, base=model, parallel=[rows], filters=FILTERS, **more)


def write_targets(encoder: SentenceEncoder, folder: Path) -> None:
    corpus = ParallelCorpus.open(folder / "corpus")
    fill_targets(encoder, corpus, StageContext(folder, folder / "cache"), "key", "auto")


def prepare_documents(encoder: SentenceEncoder, folder: Path) -> None:
    documents = DocumentSource(path=InputFile(folder / "documents.txt"))
    build_document_corpus([documents], encoder.tokenizer, folder / "cache", Digests(), held_out_share=0.1)


WORKS: dict[str, Callable[[SentenceEncoder, Path], object]] = {
    "encode to a file": lambda encoder, folder: encode_file(
        encoder, Table(path=InputFile(folder / "en.txt")), folder / "vectors.npy"
    ),
    "fill the targets": write_targets,
    "prepare documents": prepare_documents,
    DISTILLING: lambda _, folder: distill.run(  # the stand-in is its own teacher
        settings_of(folder), StageContext(folder / "student", folder / "cache")
    ),
}


def prepare(name: str, folder: Path, warm_up: int) -> Callable[[], float | None]:
    """A work after the warm-up; it returns the memory in MB with libraries and model alone."""
    encoder = SentenceEncoder.load(folder.parent / "model")
    loaded = private_memory_mb()
    drawn = sentences(warm_up, seed=3)
    for _ in encode_blocks(encoder, iter(lambda: list(islice(drawn, BLOCK_SENTENCES)), [])):
        pass

    def work() -> float | None:
        WORKS[name](encoder, folder)
        return loaded

    return work


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    save_stand_in(options.scratch / "model", sentences(2_000, seed=0), vocabulary=600, max_tokens=128)
    folders = {size: options.scratch / str(size) for size in options.sizes}
    for size, folder in folders.items():
        folder.mkdir()
        write_inputs(folder, size)
    claims, measured = [], {}
    for name in options.works:
        cases = {f"{name}, {size:,} sentences": (name, folders[size], options.warm_up) for size in options.sizes}
        measured[name] = memories(prepare, cases)
        print(f"loaded {measured[name][-1].result:.0f} MB", flush=True)
        claims.append(growth_claim(name, DISTILLING_GROWS_BY if name == DISTILLING else GROWS_BY, measured[name]))
    return claims, {"memory": measured}


if __name__ == "__main__":
    main(measure, __doc__, sizes=[10_000, 100_000, 1_000_000], warm_up=50_000, works=list(WORKS))
