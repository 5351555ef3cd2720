"""Private memory of work on many sentences: encoding a file, documents, and all that a student is made from.

Claim: from 10,000 to 1,000,000 sentences it grows by at most 50 MB; that of a parallel corpus, of a vocabulary trimmed
to it and of a distillation by at most 300 MB. A translation memory is read at 20,000 segments a second of processor
time, or more, and at no size takes more than 200 MB.

    python -m benchmarks.memory                                                    about 45 minutes
    python -m benchmarks.memory --works "distil a student" --sizes 10000 1000000   a third of it
    python -m benchmarks.memory --works "trim a vocabulary" --tokenizer DIR        of XLM-R, for example

The network is a stand-in (one layer of 32 dimensions) with a small vocabulary, or with that of --tokenizer. Sentences
are drawn with a seed, words by Zipf's law, lengths log-normal around 11 words; translations are in Latin, Cyrillic and
Greek letters in turns. A figure is `RssAnon` of a fresh process, every 50 ms: what it has for itself, memory-mapped
files and code not counted: `loaded` with libraries and model, `ready` after a warm-up, which fills the caches of
compiled kernels and of the allocator, `peak` the highest while the work is done.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from benchmarks.harness import Claim, main
from benchmarks.machine import Memory, growth_claim, memories, save_stand_in
from bertrelay.cache import Cache
from bertrelay.data.tables import BLOCK_SENTENCES, Table
from bertrelay.device import resolve_precision
from bertrelay.encode_files import encode_file
from bertrelay.fingerprint import Digests
from bertrelay.inference.encode import encode_blocks
from bertrelay.memory import private_memory_mb
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.new import train_wordpiece
from bertrelay.settings import EncoderSource, InputFile
from bertrelay.stage import StageContext
from domain.pretraining.corpus import build_corpus as build_document_corpus
from domain.pretraining.settings import DocumentSource
from students.compress.vocabulary import trim_vocabulary
from students.distill import train as distill
from students.distill.settings import DistillSettings
from students.distill.targets import fill_targets
from students.parallel.corpus import ParallelCorpus, build_corpus
from students.parallel.files import read_translation_files
from students.parallel.settings import AlignedFiles, Filters, TranslationFiles
from students.teacher import OpenedTeacher

DISTILLING, TRIMMING, BUILDING = "distil a student", "trim a vocabulary", "build a parallel corpus"
READING, SEGMENTS_A_SECOND, READING_TAKES = "read a translation memory", 20_000, 200
GROWS_BY, CORPORA_GROW_BY = 50, 300
WORDS, SYLLABLES = 3_000, [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
MEDIAN_WORDS, DEVIATION, MOST_WORDS, DRAWN_AT_ONCE, MAX_TOKENS = 11, 0.5, 80, 10_000, 128
FILTERS, DOCUMENT_SENTENCES = Filters(max_length_ratio=100), 12
SCRIPTS = [
    {},
    *(
        dict(zip("bdfgklmnprstvzaeiou", letters, strict=True))
        for letters in ("бдфгклмнпрствзаеиоу", "βδφγκλμνπρστχζαεηου")
    ),
]
SEGMENT = '<tu><tuv xml:lang="en"><seg>{}</seg></tuv>\n<tuv xml:lang="de"><seg>{}</seg></tuv></tu>\n'


def sentences(count: int, seed: int) -> Iterator[str]:
    """`count` sentences of synthetic words."""
    generator = np.random.default_rng(seed)
    words = np.array(["".join(generator.choice(SYLLABLES, generator.integers(1, 5))) for _ in range(WORDS)])
    share = 1 / np.arange(1, WORDS + 1)
    for begin in range(0, count, DRAWN_AT_ONCE):
        block = min(DRAWN_AT_ONCE, count - begin)
        lengths = generator.lognormal(np.log(MEDIAN_WORDS), DEVIATION, block).round().astype(int).clip(3, MOST_WORDS)
        drawn = words[generator.choice(WORDS, lengths.sum(), p=share / share.sum())]
        yield from (" ".join(sentence) + "." for sentence in np.split(drawn, np.cumsum(lengths)[:-1]))


def translations(count: int, seed: int) -> Iterator[str]:
    """`count` sentences of synthetic words, in the letters of several scripts in turn."""
    tables = [str.maketrans(letters) for letters in SCRIPTS]
    return (sentence.translate(table) for sentence, table in zip(sentences(count, seed), cycle(tables), strict=False))


def write_inputs(folder: Path, count: int) -> None:
    """English lines and translations, as files, as a translation memory and as a corpus; and documents."""
    for seed, name in enumerate(("en.txt", "xx.txt"), start=1):
        with (folder / name).open("w") as file:
            file.writelines(f"{sentence}\n" for sentence in (sentences, translations)[seed - 1](count, seed))
    with (folder / "memory.tmx").open("w") as file:
        file.write('<tmx version="1.4"><header srclang="en"/><body>\n')
        file.writelines(map(SEGMENT.format, sentences(count, 1), translations(count, 2)))
        file.write("</body></tmx>\n")
    with (folder / "documents.txt").open("w") as file:
        for number, sentence in enumerate(sentences(count, seed=1)):
            file.write("\n" * (number % DOCUMENT_SENTENCES == 0) + f"{sentence.capitalize()}\n")
    build_corpus(folder / "corpus", settings_of(folder, dev_sentences=0), resolve_precision("auto"))


def settings_of(folder: Path, **more: Any) -> DistillSettings:
    model = EncoderSource.parse(str(folder.parent / "model"))
    rows = AlignedFiles(english=InputFile(folder / "en.txt"), other=InputFile(folder / "xx.txt"), language="qaa")
    return DistillSettings(teacher=model, base=model, parallel=[rows], filters=FILTERS, **more)


def write_targets(encoder: SentenceEncoder, folder: Path) -> None:
    corpus = ParallelCorpus.open(folder / "corpus")
    context = StageContext(folder, Cache(folder / "cache"))
    fill_targets(OpenedTeacher(encoder), corpus, context, resolve_precision("auto"))


def prepare_documents(encoder: SentenceEncoder, folder: Path) -> None:
    documents = DocumentSource(path=InputFile(folder / "documents.txt"))
    build_document_corpus([documents], encoder.tokenizer, Cache(folder / "cache"), Digests(), held_out_share=0.1)


def build_pairs(_: SentenceEncoder, folder: Path) -> None:
    build_corpus(folder / "another", settings_of(folder, dev_sentences=0), resolve_precision("auto"))


def trim_to_corpus(encoder: SentenceEncoder, folder: Path) -> None:
    trim_vocabulary(encoder, ParallelCorpus.open(folder / "corpus"))


def read_memory(_: SentenceEncoder, folder: Path) -> float:
    """Segments a second of processor time, so that other work on the machine does not count."""
    source = TranslationFiles(path=InputFile(folder / "memory.tmx"), languages=["de"])
    began = time.process_time()
    segments = sum(1 for _ in read_translation_files(source, None))
    return segments / (time.process_time() - began)


WORKS: dict[str, Callable[[SentenceEncoder, Path], object]] = {
    "encode to a file": lambda encoder, folder: encode_file(
        encoder, Table(path=InputFile(folder / "en.txt")), folder / "vectors.npy", overwrite=True
    ),
    READING: read_memory,
    BUILDING: build_pairs,
    TRIMMING: trim_to_corpus,
    "fill the targets": write_targets,
    "prepare documents": prepare_documents,
    DISTILLING: lambda _, folder: distill.run(  # the stand-in is its own teacher
        settings_of(folder), StageContext(folder / "student", Cache(folder / "cache"))
    ),
}


GROWTH = dict.fromkeys((BUILDING, TRIMMING, DISTILLING), CORPORA_GROW_BY)


def prepare(name: str, folder: Path, warm_up: int) -> Callable[[], tuple[float | None, object]]:
    """A work after the warm-up; it returns the memory in MB with libraries and model alone, and its own result."""
    encoder = SentenceEncoder.load(folder.parent / "model")
    loaded = private_memory_mb()
    drawn = sentences(warm_up, seed=3)
    for _ in encode_blocks(encoder, iter(lambda: list(islice(drawn, BLOCK_SENTENCES)), [])):
        pass

    def work() -> tuple[float | None, object]:
        result = WORKS[name](encoder, folder)
        return loaded, result if name == READING else None  # others may be too large to send

    return work


def reading_claims(memory: Memory, rate: float) -> list[Claim]:
    return [
        Claim(f"{READING}: at most {READING_TAKES} MB", f"{memory.beyond:.1f} MB", memory.beyond <= READING_TAKES),
        Claim(f"{READING}: {SEGMENTS_A_SECOND:,} segments/s", f"{rate:,.0f}", rate >= SEGMENTS_A_SECOND),
    ]


def measure(options: Namespace) -> tuple[list[Claim], dict[str, Any]]:
    tokenizer: Any = train_wordpiece(sentences(2_000, seed=0), 600, MAX_TOKENS)
    if options.tokenizer:
        tokenizer = AutoTokenizer.from_pretrained(options.tokenizer, local_files_only=True)
    save_stand_in(options.scratch / "model", tokenizer, MAX_TOKENS)
    folders = {size: options.scratch / str(size) for size in options.sizes}
    for size, folder in folders.items():
        folder.mkdir()
        write_inputs(folder, size)
    claims, measured = [], {}
    for name in options.works:
        cases = {f"{name}, {size:,} sentences": (name, folders[size], options.warm_up) for size in options.sizes}
        measured[name] = memories(prepare, cases)
        loaded, result = measured[name][-1].result
        print(f"loaded {loaded:.0f} MB", flush=True)
        claims.append(growth_claim(name, GROWTH.get(name, GROWS_BY), measured[name]))
        claims += reading_claims(measured[name][-1], result) if name == READING else []
    return claims, {"memory": measured}


if __name__ == "__main__":
    main(measure, __doc__, sizes=[10_000, 100_000, 1_000_000], warm_up=50_000, tokenizer=Path, works=list(WORKS))
