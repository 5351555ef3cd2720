"""Made-up sentences in the official file formats of every data set of the SBERT paper."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bertrelay.stage import Metrics, StageContext
from pipelines.samples.meanings import Meaning, kinds, render, verbs
from pipelines.samples.sentences import Meanings, draw_labelled, draw_scored, draw_triplets
from pipelines.samples.settings import SbertPaperSettings
from teachers.evaluation.settings import ARGUMENT_COLUMNS, FOLDED, SPLIT, TOPICS, TRIPLET, YEARS

FOLDER = "sbert-paper"
QUESTIONS = ("ABBR:exp", "DESC:manner", "ENTY:animal", "HUM:ind", "LOC:city", "NUM:date")
UNSCORED = 5
"""In STS15, STS16 and the arguments, one pair of so many has no gold score."""
PARAPHRASE = 3.0
RELATEDNESS = {"entailment": 4.5, "neutral": 3.5, "contradiction": 2.5}
WORD_DIM = 50

Rows = Iterable[Sequence[object]]
File = tuple[str, Rows, str]
"""Name, rows and what separates their cells."""

CLASSES: dict[str, Callable[[Meaning], bool]] = {
    "MR": lambda meaning: not meaning.main.negated,
    "CR": lambda meaning: meaning.main.place is not None,
    "SUBJ": lambda meaning: meaning.second is None,
    "MPQA": lambda meaning: kinds()[meaning.main.subject.noun] == "animal",
    "SST": lambda meaning: meaning.main.tense == "past",
}
"""What decides between the two classes of a classification."""


def run(settings: SbertPaperSettings, context: StageContext) -> Metrics:
    """The stage `samples.sbert-paper`: how many files it writes, and how many lines."""
    counts = write_sbert_paper(context.output, settings) if context.process_group.is_main else {}
    return {"files": len(counts), "lines": sum(counts.values())}


def write_sbert_paper(folder: Path, settings: SbertPaperSettings) -> dict[str, int]:
    """Writes all files below `folder`, a function of `settings` alone; rows by file."""
    source, counts = Meanings(settings.seed), dict[str, int]()
    for groups in ((_years, _similarity, _classification, _arguments), (_sections, _inference)):
        files = [file for group in groups for file in group(source, settings)]
        # Rows that a generator yields are drawn only now.
        counts |= {name: _write(folder / name, rows, separator) for name, rows, separator in files}
    return counts | {"glove.txt": _write_word_vectors(folder, settings.seed)}


def _years(source: Meanings, settings: SbertPaperSettings) -> Iterator[File]:
    """For each subset of a year a file of sentences and a file of gold scores, line by line."""
    for year, subsets in YEARS.items():
        for subset in subsets:
            pairs = _scored(source, settings.sts)
            sparse = year in ("STS15", "STS16")
            golds = ["" if sparse and line % UNSCORED == 0 else score for line, (*_, score) in enumerate(pairs)]
            prefix = "STS2016" if year == "STS16" else "STS"
            yield f"STS/{year}-en-test/{prefix}.input.{subset}.txt", [pair[:2] for pair in pairs], "\t"
            yield f"STS/{year}-en-test/{prefix}.gs.{subset}.txt", [(gold,) for gold in golds], "\t"


def _similarity(source: Meanings, settings: SbertPaperSettings) -> Iterator[File]:
    """The STS benchmark and SICK, with their parts."""
    sizes = {"test": settings.sts, "dev": settings.sts, "train": settings.train}
    for part, size in sizes.items():
        pairs = enumerate(_scored(source, size))
        rows = [("main", "sample", "2026", f"{n:04}", score, *pair) for n, (*pair, score) in pairs]
        yield f"STS/STSBenchmark/sts-{part}.csv", rows, "\t"
    for part, like in (("test_annotated", "test"), ("trial", "dev"), ("train", "train")):
        yield f"SICK/SICK_{part}.txt", _sick(source, sizes[like]), "\t"


def _sick(source: Meanings, count: int) -> Rows:
    yield "pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment"
    for number, (first, second, label) in enumerate(draw_labelled(source, count), 1):
        yield number, render(first, "en"), render(second, "en"), RELATEDNESS[label], label.upper()


def _classification(source: Meanings, settings: SbertPaperSettings) -> Iterator[File]:
    for name, files in FOLDED.items():
        for file, rows in zip(files.values(), _by_class(source, name, settings.classes), strict=True):
            yield f"{name}/{file}", rows, "\t"
    for part in ("train", "dev", "test"):
        classes = zip("10", _by_class(source, "SST", settings.classes), strict=True)
        yield f"SST/binary/sentiment-{part}", [(*row, label) for label, rows in classes for row in rows], "\t"
    for file in SPLIT["TREC"]:
        yield f"TREC/{file}", [_question(source.new()) for _ in range(3 * settings.classes)], " "
    for file in SPLIT["MRPC"]:
        yield f"MRPC/{file}", _paraphrases(source, 2 * settings.classes), "\t"


def _by_class(source: Meanings, name: str, count: int) -> tuple[list[tuple[str]], list[tuple[str]]]:
    """`count` sentences of each class of the classification `name`, the one that its condition holds for first."""
    found: dict[bool, list[tuple[str]]] = {True: [], False: []}
    while min(map(len, found.values())) < count:
        meaning = source.new()
        found[CLASSES[name](meaning)].append((render(meaning, "en"),))
    return found[True][:count], found[False][:count]


def _question(meaning: Meaning) -> tuple[str, str]:
    """A class that the verb decides, and a sentence."""
    return QUESTIONS[list(verbs()).index(meaning.main.verb) % len(QUESTIONS)], render(meaning, "en")


def _paraphrases(source: Meanings, count: int) -> Rows:
    yield "Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"
    for number, (first, second, score) in enumerate(_scored(source, count)):
        yield int(score >= PARAPHRASE), 2 * number, 2 * number + 1, first, second


def _arguments(source: Meanings, settings: SbertPaperSettings) -> Iterator[File]:
    for file in TOPICS.values():
        yield f"AFS/{file}", _facets(source, settings.sts), ","


def _facets(source: Meanings, count: int) -> Rows:
    named = {place: name for name, place in ARGUMENT_COLUMNS.items()}
    places = range(max(named) + 1)
    yield [named.get(place, f"column_{place}") for place in places]
    for number, (first, second, score) in enumerate(_scored(source, count)):
        gold = "" if number % UNSCORED == 0 else str(score)
        values = dict(zip(ARGUMENT_COLUMNS, (gold, first, second), strict=True))
        yield [values.get(named.get(place, ""), "") for place in places]


def _sections(source: Meanings, settings: SbertPaperSettings) -> Iterator[File]:
    for part, count in {"test": settings.sts, "validation": settings.sts, "train": settings.train}.items():
        rows = [[render(meaning, "en") for meaning in triplet] for triplet in draw_triplets(source, count)]
        yield f"wikipedia-sections/{part}.csv", [TRIPLET, *rows], ","


def _inference(source: Meanings, settings: SbertPaperSettings) -> Iterator[File]:
    """SNLI and MultiNLI, whose two dev parts are of the genres of the training part and of others."""
    for corpus, part in (
        ("snli", "dev"),
        ("snli", "train"),
        ("multinli", "dev_matched"),
        ("multinli", "dev_mismatched"),
        ("multinli", "train"),
    ):
        genre = {"genre": "sample"} if corpus == "multinli" else {}
        items = draw_labelled(source, settings.train if part == "train" else settings.sts)
        rows = [(json.dumps({"gold_label": label, **genre, **_sentences(*pair)}),) for *pair, label in items]
        yield f"{corpus}_1.0/{corpus}_1.0_{part}.jsonl", rows, "\n"


def _sentences(first: Any, second: Any) -> dict[str, str]:
    return {"sentence1": render(first, "en"), "sentence2": render(second, "en")}


def _scored(source: Meanings, count: int) -> list[tuple[str, str, float]]:
    return [(render(first, "en"), render(second, "en"), score) for first, second, score in draw_scored(source, count)]


def _write_word_vectors(folder: Path, seed: int) -> int:
    """A random vector for each word of all sentences, so that words have nothing in common; how many."""
    texts = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "glove.txt")
    words = {word.strip('.,"') for path in texts for word in path.read_text(encoding="utf-8").lower().split()}
    random = Random(seed)
    rows = [[word, *(f"{random.gauss(0, 1):.4f}" for _ in range(WORD_DIM))] for word in sorted(words) if word.isalpha()]
    return _write(folder / "glove.txt", rows, " ")


def _write(path: Path, rows: Rows, separator: str) -> int:
    """Writes the rows, with quoting where the separator is a comma; how many."""
    listed = [[str(value) for value in row] for row in rows]
    text = io.StringIO()
    if separator == ",":
        csv.writer(text, lineterminator="\n").writerows(listed)
    else:
        text.writelines(separator.join(row) + "\n" for row in listed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.getvalue().encode())
    return len(listed)
