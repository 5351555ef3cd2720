"""Files of sample sentences, copied out of packs: of teachers and students, and in the forms of the SBERT paper's data.

A pack has the columns of its files, the lines of each below `# POSITION FILE`. `scripts/sample_sentences` made them.
"""

import bz2
from collections import defaultdict
from pathlib import Path
from random import Random

from bertrelay.stage import Metrics, StageContext
from pipelines.samples.grammar import DATA, write_lines
from pipelines.samples.settings import SampleSettings, SbertPaperSettings

FOLDER = "sbert-paper"
SIZES = {
    "parallel.train.tsv.gz": ("parallel_train", 1),
    "parallel.test.tsv": ("parallel_test", 1),
    "nli.train.tsv": ("nli", 1),
    "nli.dev.tsv": ("nli", 12),
    "sts.train.tsv": ("sts", 1),
    "sts.dev.tsv": ("sts", 12),
    "sts.test.tsv": ("sts", 6),
    "sts.multilingual.test.tsv": ("sts", 6),
    "triplets.train.tsv": ("triplets", 1),
    "triplets.dev.tsv": ("triplets", 10),
}
"""The setting that says how many rows a file has, and what it is divided by."""
PLAIN_FILES = {"english.txt": "en", "german.txt": "de", "korean.txt": "ko"}
PLAIN_SENTENCES, QUERIES = 200, 20
GLOVE_SEED, GLOVE_DIM = 1, 50


def run(settings: SampleSettings, context: StageContext) -> Metrics:
    """The stage `samples.write`: writes the sample files; the rows of each part, as `sentences/nli.train`."""
    counts = write_samples(context.output, settings) if context.process_group.is_main else {}
    return {f"sentences/{name.removesuffix('.gz').removesuffix('.tsv')}": n for name, n in counts.items()}


def run_sbert_paper(settings: SbertPaperSettings, context: StageContext) -> Metrics:  # noqa: ARG001
    """The stage `samples.sbert-paper`: number of files it writes, and of their lines."""
    counts = write_sbert_paper(context.output) if context.process_group.is_main else {}
    return {"files": len(counts), "lines": sum(counts.values())}


def _read_pack(name: str) -> dict[str, list[str]]:
    """The lines of each file in a pack."""
    files: defaultdict[str, dict[int, list[str]]] = defaultdict(dict)
    for line in bz2.decompress((DATA / f"{name}.txt.bz2").read_bytes()).decode().splitlines():
        if line.startswith("# "):
            position, file = line.removeprefix("# ").split(" ", 1)
            column = files[file][int(position)] = []
        else:
            column.append(line)
    return {
        file: ["\t".join(cells) for cells in zip(*(columns[n] for n in range(len(columns))), strict=True)]
        for file, columns in files.items()
    }


def write_samples(folder: Path, settings: SampleSettings) -> dict[str, int]:
    """Writes the first rows of each sample file into `folder`; rows by file name.

    No sentence of a test or development part, in any language, is in a training part.
    """
    files, counts = _read_pack("sentences"), dict[str, int]()
    for name, (setting, divisor) in SIZES.items():
        counts[name] = getattr(settings, setting) // divisor
        write_lines(folder / name, files[name][: 1 + counts[name]])
    return counts


def write_plain_files(folder: Path, sentences: int = PLAIN_SENTENCES) -> dict[str, int]:
    """Writes sentences line by line in three languages, queries, and the lines that are translations; rows by name."""
    header, *rows = (line.split("\t") for line in _read_pack("sentences")["parallel.test.tsv"][: 1 + sentences])
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    lines = {name: list(columns[language]) for name, language in PLAIN_FILES.items()}
    lines["questions.txt"] = lines["english.txt"][:QUERIES]
    counts = {name: len(listed) for name, listed in lines.items()} | {"pairs.tsv": sentences}
    lines["pairs.tsv"] = ["source_line\ttarget_line", *(f"{row}\t{row}" for row in range(1, sentences + 1))]
    for name, listed in lines.items():
        write_lines(folder / name, listed)
    return counts


def write_sbert_paper(folder: Path) -> dict[str, int]:
    """Writes files of the SBERT paper's data sets below `folder`; lines by file."""
    files = _read_pack("sbert-paper")
    # A random vector for each word of all sentences, so that words have nothing in common.
    words = {word.strip('.,"') for lines in files.values() for line in lines for word in line.lower().split()}
    random = Random(GLOVE_SEED)
    files["glove.txt"] = [
        " ".join([word, *(f"{random.gauss(0, 1):.4f}" for _ in range(GLOVE_DIM))])
        for word in sorted(words)
        if word.isalpha()
    ]
    for name, lines in files.items():
        write_lines(folder / name, lines)
    return {name: len(lines) for name, lines in files.items()}
