"""Made-up sentences in the official file formats of every data set of the SBERT paper."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

from bertrelay.stage import Metrics, StageContext
from pipelines.samples.grammar import write_lines
from pipelines.samples.meanings import Features, render, world
from pipelines.samples.sentences import Meanings, labelled, scored, triplets
from pipelines.samples.settings import SbertPaperSettings
from teachers.evaluation.settings import ARGUMENT_COLUMNS, FOLDED, SPLIT, TOPICS, TRIPLET, YEARS

FOLDER = "sbert-paper"
QUESTIONS = ("ABBR:exp", "DESC:manner", "ENTY:animal", "HUM:ind", "LOC:city", "NUM:date")
UNSCORED = 5
"""In STS15, STS16 and the arguments, one pair of so many has no gold score."""
PARAPHRASE = 3.0
RELATEDNESS = {"entailment": 4.5, "neutral": 3.5, "contradiction": 2.5}
WORD_DIM = 50

File = tuple[str, list[str]]
"""Name and lines."""

CLASSES: dict[str, Callable[[Features], bool]] = {
    "MR": lambda meaning: not meaning["main"]["negated"],
    "CR": lambda meaning: bool(meaning["main"]["place"]),
    "SUBJ": lambda meaning: not meaning["second"],
    "MPQA": lambda meaning: meaning["main"]["subject"]["kind"] == "animal",
    "SST": lambda meaning: meaning["main"]["tense"] == "past",
}
"""What decides between the two classes of a classification."""


def run(settings: SbertPaperSettings, context: StageContext) -> Metrics:
    """The stage `samples.sbert-paper`: how many files it writes, and how many lines."""
    counts = write_sbert_paper(context.output, settings) if context.process_group.is_main else {}
    return {"files": len(counts), "lines": sum(counts.values())}


def write_sbert_paper(folder: Path, settings: SbertPaperSettings) -> dict[str, int]:
    """Writes all files below `folder`, a function of `settings` alone; lines by file."""
    source, counts, words = Meanings(settings.seed), dict[str, int](), set[str]()
    for files in (_similarity, _classes, _relatedness, _arguments, _inference):
        for name, lines in files(source, settings):
            write_lines(folder / name, lines)
            counts[name] = len(lines)
            words |= {word.strip('.,"') for line in lines for word in line.lower().split()}
    # A random vector for each word of all sentences, so that words have nothing in common.
    random = Random(settings.seed)
    vectors = [
        " ".join([word, *(f"{random.gauss(0, 1):.4f}" for _ in range(WORD_DIM))])
        for word in sorted(words)
        if word.isalpha()
    ]
    write_lines(folder / "glove.txt", vectors)
    return counts | {"glove.txt": len(vectors)}


def _similarity(source: Meanings, settings: SbertPaperSettings) -> Iterator[File]:
    """For each subset of a year a file of sentences and a file of gold scores, line by line; and the STS benchmark."""
    for year, subsets in YEARS.items():
        prefix = "STS2016" if year == "STS16" else "STS"
        unscored = UNSCORED if year in ("STS15", "STS16") else None
        for subset in subsets:
            pairs = _scored(source, settings.sts, unscored)
            yield f"STS/{year}-en-test/{prefix}.input.{subset}.txt", [_row(*pair) for *pair, _ in pairs]
            yield f"STS/{year}-en-test/{prefix}.gs.{subset}.txt", [gold for *_, gold in pairs]
    for part, size in {"test": settings.sts, "dev": settings.sts, "train": settings.train}.items():
        numbered = enumerate(_scored(source, size))
        rows = [_row("main", "sample", "2026", f"{number:04}", gold, *pair) for number, (*pair, gold) in numbered]
        yield f"STS/STSBenchmark/sts-{part}.csv", rows


def _classes(source: Meanings, settings: SbertPaperSettings) -> Iterator[File]:
    for name, files in FOLDED.items():
        yield from zip([f"{name}/{file}" for file in files.values()], _by_class(source, name, settings), strict=True)
    for part in ("train", "dev", "test"):
        classes = zip("10", _by_class(source, "SST", settings), strict=True)
        yield f"SST/binary/sentiment-{part}", [_row(line, label) for label, lines in classes for line in lines]
    verbs = list(world("verbs"))
    for file in SPLIT["TREC"]:
        meanings = [source.new() for _ in range(3 * settings.classes)]
        classes_of_verbs = [QUESTIONS[verbs.index(each["main"]["verb"]) % len(QUESTIONS)] for each in meanings]
        yield (
            f"TREC/{file}",
            [f"{name} {_english(each)}" for name, each in zip(classes_of_verbs, meanings, strict=True)],
        )


def _by_class(source: Meanings, name: str, settings: SbertPaperSettings) -> list[list[str]]:
    """Sentences of both classes of the classification `name`, first of the one that its condition is true for."""
    found: dict[bool, list[str]] = {True: [], False: []}
    while min(map(len, found.values())) < settings.classes:
        meaning = source.new()
        found[CLASSES[name](meaning)].append(_english(meaning))
    return [lines[: settings.classes] for lines in found.values()]


def _relatedness(source: Meanings, settings: SbertPaperSettings) -> Iterator[File]:
    """SICK, with scores and labels, and the paraphrases of MRPC."""
    for part, size in {"test_annotated": settings.sts, "trial": settings.sts, "train": settings.train}.items():
        rows = [_row("pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment")]
        for number, (*pair, label) in enumerate(islice(labelled(source), size), 1):
            rows.append(_row(number, *map(_english, pair), RELATEDNESS[label], label.upper()))
        yield f"SICK/SICK_{part}.txt", rows
    for file in SPLIT["MRPC"]:
        rows = [_row("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")]
        for number, (first, second, score) in enumerate(_scored(source, 2 * settings.classes)):
            rows.append(_row(int(float(score) >= PARAPHRASE), 2 * number, 2 * number + 1, first, second))
        yield f"MRPC/{file}", rows


def _arguments(source: Meanings, settings: SbertPaperSettings) -> Iterator[File]:
    """Arguments by topic, and sections of Wikipedia: both with commas between the columns."""
    named = {place: name for name, place in ARGUMENT_COLUMNS.items()}
    places = range(max(named) + 1)
    for file in TOPICS.values():
        rows = [_csv(named.get(place, f"column_{place}") for place in places)]
        for first, second, gold in _scored(source, settings.sts, UNSCORED):
            values = dict(zip(named, (gold, first, second), strict=True))
            rows.append(_csv(values.get(place, "") for place in places))
        yield f"AFS/{file}", rows
    for part, size in {"test": settings.sts, "validation": settings.sts, "train": settings.train}.items():
        rows = [_csv(map(_english, each)) for each in islice(triplets(source), size)]
        yield f"wikipedia-sections/{part}.csv", [_csv(TRIPLET), *rows]


def _inference(source: Meanings, settings: SbertPaperSettings) -> Iterator[File]:
    """SNLI and MultiNLI, whose two dev parts are of the genres of the training part and of others."""
    parts = {"snli": ("dev", "train"), "multinli": ("dev_matched", "dev_mismatched", "train")}
    for corpus, part in ((corpus, part) for corpus, listed in parts.items() for part in listed):
        genre = {"genre": "sample"} if corpus == "multinli" else {}
        pairs = islice(labelled(source), settings.train if part == "train" else settings.sts)
        rows = [
            {"gold_label": label, **genre, "sentence1": _english(first), "sentence2": _english(second)}
            for first, second, label in pairs
        ]
        yield f"{corpus}_1.0/{corpus}_1.0_{part}.jsonl", [json.dumps(row) for row in rows]


def _scored(source: Meanings, count: int, unscored: int | None = None) -> list[tuple[str, str, str]]:
    """Pairs with a score; every so many has none."""
    return [
        (_english(first), _english(second), "" if unscored and number % unscored == 0 else str(score))
        for number, (first, second, score) in enumerate(islice(scored(source), count))
    ]


def _english(meaning: Features) -> str:
    return render(meaning, "en")


def _row(*cells: object) -> str:
    return "\t".join(map(str, cells))


def _csv(cells: Iterable[str]) -> str:
    return ",".join(f'"{cell}"' if "," in cell else cell for cell in cells)
