"""Private memory of work on 1,000,000 sentences beside 10,000: a file, documents, and what a student is made of.

The network is a stand-in (one layer of 32 dimensions) with a small vocabulary, or with that of the tokenizer in the
folder TOKENIZER of the environment. Translations are in Latin, Cyrillic and Greek letters in turns. Memory is `RssAnon`
of a fresh process, every 50 ms: what it has for itself, memory-mapped files and code not counted. It is measured after
a warm-up, which fills the caches of compiled kernels and of the allocator. pytest -s prints it.
"""

import os
import time
from itertools import cycle, islice

import pytest
from transformers import AutoTokenizer

from benchmarks.machine import growth_claim, memories, save_stand_in, synthetic_sentences
from bertrelay.cache import Cache
from bertrelay.data.tables import BLOCK_SENTENCES, Table
from bertrelay.device import resolve_precision
from bertrelay.encode_files import encode_file
from bertrelay.fingerprint import Digests
from bertrelay.inference.encode import encode_blocks
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

pytestmark = pytest.mark.slow

SIZES, WARM_UP, MAX_TOKENS = (10_000, 1_000_000), 50_000, 128
READING, READING_TAKES_MB, SEGMENTS_A_SECOND = "read a translation memory", 200, 20_000
FILTERS, DOCUMENT_SENTENCES, FEW = Filters(max_length_ratio=100), 12, 1_000
SCRIPTS = [
    {},
    *(
        dict(zip("bdfgklmnprstvzaeiou", letters, strict=True))
        for letters in ("бдфгклмнпрствзаеиоу", "βδφγκλμνπρστχζαεηου")
    ),
]
SEGMENT = '<tu><tuv xml:lang="en"><seg>{}</seg></tuv>\n<tuv xml:lang="de"><seg>{}</seg></tuv></tu>\n'


def translations(count, seed):
    """`count` sentences of synthetic words, in the letters of several scripts in turn."""
    tables = [str.maketrans(letters) for letters in SCRIPTS]
    return (
        sentence.translate(table)
        for sentence, table in zip(synthetic_sentences(count, seed), cycle(tables), strict=False)
    )


def write_inputs(folder, count):
    """English lines and translations, as files, as a translation memory and as a corpus; English; and documents."""
    lines = {"en.txt": synthetic_sentences(count, 1), "xx.txt": translations(count, 2)}
    lines |= {"few.en.txt": synthetic_sentences(FEW, 1), "few.xx.txt": translations(FEW, 2)}
    for name, sentences in {**lines, "english.txt": synthetic_sentences(count, 3)}.items():
        with (folder / name).open("w") as file:
            file.writelines(f"{sentence}\n" for sentence in sentences)
    with (folder / "memory.tmx").open("w") as file:
        file.write('<tmx version="1.4"><header srclang="en"/><body>\n')
        file.writelines(map(SEGMENT.format, synthetic_sentences(count, 1), translations(count, 2)))
        file.write("</body></tmx>\n")
    with (folder / "documents.txt").open("w") as file:
        for number, sentence in enumerate(synthetic_sentences(count, seed=1)):
            file.write("\n" * (number % DOCUMENT_SENTENCES == 0) + f"{sentence.capitalize()}\n")
    build_corpus(folder / "corpus", settings_of(folder, dev_sentences=0), resolve_precision("auto"))


def settings_of(folder, prefix="", **more):
    model = EncoderSource.parse(str(folder.parent / "model"))
    english, other = (InputFile(folder / f"{prefix}{name}.txt") for name in ("en", "xx"))
    rows = AlignedFiles(english=english, other=other, language="qaa")
    return DistillSettings(teacher=model, base=model, parallel=[rows], filters=FILTERS, **more)


def write_targets(encoder, folder):
    corpus = ParallelCorpus.open(folder / "corpus")
    context = StageContext(folder, Cache(folder / "cache"))
    fill_targets(OpenedTeacher(encoder), corpus, context, resolve_precision("auto"))


def prepare_documents(encoder, folder):
    documents = DocumentSource(path=InputFile(folder / "documents.txt"))
    build_document_corpus([documents], encoder.tokenizer, Cache(folder / "cache"), Digests(), held_out_share=0.1)


def build_pairs(_, folder):
    build_corpus(folder / "another", settings_of(folder, dev_sentences=0), resolve_precision("auto"))


def trim_to_corpus(encoder, folder):
    trim_vocabulary(encoder, ParallelCorpus.open(folder / "corpus"))


def read_memory(_, folder):
    """Segments a second of processor time, so that other work on the machine does not count."""
    source = TranslationFiles(path=InputFile(folder / "memory.tmx"), languages=["de"])
    began = time.process_time()
    segments = sum(1 for _ in read_translation_files(source, None))
    return segments / (time.process_time() - began)


def distil_english(_, folder):
    """English without translations, beside a few pairs."""
    settings = settings_of(folder, "few.", english=[{"path": InputFile(folder / "english.txt")}])
    distill.run(settings, StageContext(folder / "student of English", Cache(folder / "cache")))


WORKS = {
    "encode to a file": lambda encoder, folder: encode_file(
        encoder, Table(path=InputFile(folder / "en.txt")), folder / "vectors.npy", overwrite=True
    ),
    READING: read_memory,
    "build a parallel corpus": build_pairs,
    "trim a vocabulary": trim_to_corpus,
    "fill the targets": write_targets,
    "prepare documents": prepare_documents,
    "distil a student": lambda _, folder: distill.run(  # the stand-in is its own teacher
        settings_of(folder), StageContext(folder / "student", Cache(folder / "cache"))
    ),
    "distil English without translations": distil_english,
}
GROWTH_MB = dict.fromkeys(WORKS, 50) | dict.fromkeys(
    ("build a parallel corpus", "trim a vocabulary", "distil a student", "distil English without translations"), 300
)


def prepare(name, folder):
    """A work, after the warm-up."""
    encoder = SentenceEncoder.load(folder.parent / "model")
    sentences = synthetic_sentences(WARM_UP, seed=3)
    for _ in encode_blocks(encoder, iter(lambda: list(islice(sentences, BLOCK_SENTENCES)), [])):
        pass

    def work():
        result = WORKS[name](encoder, folder)
        return result if name == READING else None  # others may be too large to send

    return work


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """By size: the folder of the inputs, beside the model."""
    root = tmp_path_factory.mktemp("memory")
    if path := os.environ.get("TOKENIZER"):
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    else:
        tokenizer = train_wordpiece(synthetic_sentences(2_000, seed=0), 600, MAX_TOKENS)
    save_stand_in(root / "model", tokenizer, MAX_TOKENS)
    for size in SIZES:
        (root / str(size)).mkdir()
        write_inputs(root / str(size), size)
    return {size: root / str(size) for size in SIZES}


@pytest.mark.promise("From 10,000 to 1,000,000 sentences private memory grows by a fixed amount", about="waiting")
@pytest.mark.parametrize("name", WORKS)
def test_private_memory_grows_by_at_most_a_fixed_amount(name, folders):
    measured = memories(prepare, {f"{name}, {size:,} sentences": (name, folders[size]) for size in SIZES})
    claim = growth_claim(name, GROWTH_MB[name], measured)
    assert claim.holds, f"{claim.text}: {claim.measured}"
    if name == READING:
        assert measured[-1].beyond <= READING_TAKES_MB
        assert measured[-1].result >= SEGMENTS_A_SECOND
