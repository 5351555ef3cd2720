"""Made-up sentences in the official file formats of every data set of the SBERT paper."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

from pipelines.samples import english
from pipelines.samples.grammar import Meaning
from pipelines.samples.lexicon import KINDS, VERBS
from pipelines.samples.settings import SbertPaperSettings
from pipelines.samples.tasks import Source, draw_labelled, draw_scored, draw_triplets
from teachers.evaluation.settings import ARGUMENT_COLUMNS, FOLDED, SPLIT, TOPICS, TRIPLET, YEARS

FOLDER = "sbert-paper"
QUESTIONS = ("ABBR:exp", "DESC:manner", "ENTY:animal", "HUM:ind", "LOC:city", "NUM:date")
UNSCORED = 5
"""In STS15, STS16 and the arguments, one pair of so many has no gold score."""
PARAPHRASE = 3.0
WORD_DIM = 50

Rows = Iterable[Sequence[object]]
Tells = Callable[[Meaning], bool]
"""What tells one class of the classifications from the other."""

TELLS: dict[str, Tells] = {
    "MR": lambda meaning: not meaning.main.negated,
    "CR": lambda meaning: meaning.main.place is not None,
    "SUBJ": lambda meaning: meaning.second is None,
    "MPQA": lambda meaning: KINDS[meaning.main.subject.noun] == "animal",
    "SST": lambda meaning: meaning.main.tense == "past",
}


def write_sbert_paper(folder: Path, settings: SbertPaperSettings) -> dict[str, int]:
    """Writes all files below `folder`, a function of `settings` alone; rows by file."""
    source, counts = Source(settings.seed), dict[str, int]()
    for name, rows, separator in (
        *_years(source, settings),
        *_similarity(source, settings),
        *_classification(source, settings),
        *_arguments(source, settings),
    ):
        counts[name] = _write(folder / name, rows, separator)
    counts |= _write_csv(folder, source, settings) | _write_nli(folder, source, settings)
    return counts | _write_word_vectors(folder, settings.seed)


def _years(source: Source, settings: SbertPaperSettings) -> Iterable[tuple[str, Rows, str]]:
    """For each subset of a year a file of sentences and a file of gold scores, line by line."""
    for year, subsets in YEARS.items():
        for subset in subsets:
            pairs = _scored(source, settings.sts)
            sparse = year in ("STS15", "STS16")
            golds = ["" if sparse and line % UNSCORED == 0 else score for line, (*_, score) in enumerate(pairs)]
            prefix = "STS2016" if year == "STS16" else "STS"
            yield f"STS/{year}-en-test/{prefix}.input.{subset}.txt", [pair[:2] for pair in pairs], "\t"
            yield f"STS/{year}-en-test/{prefix}.gs.{subset}.txt", [(gold,) for gold in golds], "\t"


def _similarity(source: Source, settings: SbertPaperSettings) -> Iterable[tuple[str, Rows, str]]:
    """The STS benchmark and SICK, with their parts."""
    sizes = {"test": settings.sts, "dev": settings.sts, "train": settings.train}
    for part, count in sizes.items():
        rows = [("main", "sample", "2026", f"{n:04}", pair[2], *pair[:2]) for n, pair in _numbered(source, count)]
        yield f"STS/STSBenchmark/sts-{part}.csv", rows, "\t"
    for part, size in (("test_annotated", "test"), ("trial", "dev"), ("train", "train")):
        yield f"SICK/SICK_{part}.txt", _sick(source, sizes[size]), "\t"


def _sick(source: Source, count: int) -> Rows:
    yield "pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment"
    for number, (first, second, label) in enumerate(draw_labelled(source, count), 1):
        score = {"entailment": 4.5, "neutral": 3.5, "contradiction": 2.5}[label]
        yield number, english.render(first), english.render(second), score, label.upper()


def _classification(source: Source, settings: SbertPaperSettings) -> Iterable[tuple[str, Rows, str]]:
    for name, files in FOLDED.items():
        for file, rows in zip(files.values(), _by_class(source, TELLS[name], settings.classes), strict=True):
            yield f"{name}/{file}", rows, "\t"
    for part in ("train", "dev", "test"):
        classes = zip("10", _by_class(source, TELLS["SST"], settings.classes), strict=True)
        yield f"SST/binary/sentiment-{part}", [(*row, label) for label, rows in classes for row in rows], "\t"
    for file in SPLIT["TREC"]:
        yield f"TREC/{file}", [_question(source.new()) for _ in range(3 * settings.classes)], " "
    for file in SPLIT["MRPC"]:
        yield f"MRPC/{file}", _paraphrases(source, 2 * settings.classes), "\t"


def _by_class(source: Source, tells: Tells, count: int) -> tuple[list[tuple[str]], list[tuple[str]]]:
    """`count` sentences of each class, the one that `tells` says yes to first."""
    found: dict[bool, list[tuple[str]]] = {True: [], False: []}
    while min(map(len, found.values())) < count:
        meaning = source.new()
        found[tells(meaning)].append((english.render(meaning),))
    return found[True][:count], found[False][:count]


def _question(meaning: Meaning) -> tuple[str, str]:
    """A class that the verb decides, and a sentence."""
    return QUESTIONS[list(VERBS).index(meaning.main.verb) % len(QUESTIONS)], english.render(meaning)


def _paraphrases(source: Source, count: int) -> Rows:
    yield "Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"
    for number, (first, second, score) in _numbered(source, count):
        yield int(score >= PARAPHRASE), 2 * number, 2 * number + 1, first, second


def _arguments(source: Source, settings: SbertPaperSettings) -> Iterable[tuple[str, Rows, str]]:
    for file in TOPICS.values():
        yield f"AFS/{file}", _facets(source, settings.sts), ","


def _facets(source: Source, count: int) -> Rows:
    named = {place: name for name, place in ARGUMENT_COLUMNS.items()}
    places = range(max(named) + 1)
    yield [named.get(place, f"column_{place}") for place in places]
    for number, (first, second, score) in _numbered(source, count):
        told = "" if number % UNSCORED == 0 else str(score)
        values = dict(zip(ARGUMENT_COLUMNS, (told, first, second), strict=True))
        yield [values.get(named.get(place, ""), "") for place in places]


def _write_csv(folder: Path, source: Source, settings: SbertPaperSettings) -> dict[str, int]:
    """Sections, quoted as the official files are."""
    counts = {}
    for part, count in {"test": settings.sts, "validation": settings.sts, "train": settings.train}.items():
        rows = [[english.render(meaning) for meaning in triplet] for triplet in draw_triplets(source, count)]
        counts[f"wikipedia-sections/{part}.csv"] = _write(
            folder / f"wikipedia-sections/{part}.csv", [TRIPLET, *rows], ","
        )
    return counts


def _write_nli(folder: Path, source: Source, settings: SbertPaperSettings) -> dict[str, int]:
    """SNLI and MultiNLI, whose two dev parts are of the genres of the training part and of others."""
    counts = {}
    for name, count in (
        ("snli_1.0/snli_1.0_dev.jsonl", settings.sts),
        ("snli_1.0/snli_1.0_train.jsonl", settings.train),
        ("multinli_1.0/multinli_1.0_dev_matched.jsonl", settings.sts),
        ("multinli_1.0/multinli_1.0_dev_mismatched.jsonl", settings.sts),
        ("multinli_1.0/multinli_1.0_train.jsonl", settings.train),
    ):
        genre = {"genre": "sample"} if name.startswith("multinli") else {}
        items = [
            {"gold_label": label, **genre, "sentence1": english.render(first), "sentence2": english.render(second)}
            for first, second, label in draw_labelled(source, count)
        ]
        _write_text(folder / name, "".join(json.dumps(item) + "\n" for item in items))
        counts[name] = len(items)
    return counts


def _write_word_vectors(folder: Path, seed: int) -> dict[str, int]:
    """A vector for each word of all sentences: drawn, so that words have nothing in common but themselves."""
    texts = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "glove.txt")
    words = {word for path in texts for word in path.read_text(encoding="utf-8").lower().split()}
    known = sorted({word.strip('.,"') for word in words if word.strip('.,"').isalpha()})
    random = Random(seed)
    lines = [" ".join([word, *(f"{random.gauss(0, 1):.4f}" for _ in range(WORD_DIM))]) for word in known]
    _write_text(folder / "glove.txt", "".join(f"{line}\n" for line in lines))
    return {"glove.txt": len(lines)}


def _scored(source: Source, count: int) -> list[tuple[str, str, float]]:
    return [
        (english.render(first), english.render(second), score) for first, second, score in draw_scored(source, count)
    ]


def _numbered(source: Source, count: int) -> Iterable[tuple[int, tuple[str, str, float]]]:
    return enumerate(_scored(source, count))


def _write(path: Path, rows: Rows, separator: str) -> int:
    """Writes the rows, with quoting where the separator is a comma; how many."""
    listed = [[str(value) for value in row] for row in rows]
    if separator == ",":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(listed)
        _write_text(path, text.getvalue())
    else:
        _write_text(path, "".join(separator.join(row) + "\n" for row in listed))
    return len(listed)


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
