"""A look at annotated data before training on it: what is good, what is doubtful, and what will not do.

Each file is read as a stream; of a sentence or a document only a number remains, by which equal ones are known.
"""

import statistics
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from pathlib import Path
from typing import Literal, NamedTuple

from bertrelay.data.tables import Unusable
from bertrelay.errors import RequestError
from domain.biomedical.documents import FormatName, document_items, format_of, once
from domain.biomedical.documents.conll import (
    CONLL,
    STRAY_SPACE,
    TOKEN_AND_TAG,
    Columns,
    refuse_columns,
    scheme_of,
    sentence_rows,
)
from domain.biomedical.documents.document import (
    IMPOSSIBLE,
    MISALIGNED,
    Document,
    Entity,
    TaggedSentence,
    numbered,
    place_of,
    told_id,
)
from domain.biomedical.documents.tokens import READ_AS, FileScheme, illegal_places, spans_of, split_tag
from domain.biomedical.ner.examples import of_document

Verdict = Literal["good", "warn", "fail"]
Split = Literal["train", "dev", "test"]
Measure = Callable[[Sequence[Sequence[str]]], list[int]]
"""The number of word pieces of each sentence."""

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
NAMES: tuple[tuple[Split, str], ...] = (("train", "train"), ("dev", "dev"), ("dev", "valid"), ("test", "test"))
VERDICTS: tuple[Verdict, ...] = ("good", "warn", "fail")

FEW = 50  # entities of a type, below which a model hardly learns it
MOST_UNUSABLE = 0.01  # of a file's sentences (CoNLL) or documents; where training stops as well
MOST_LEAKED = 0.01  # of the sentences of dev or test
MOST_UNSAID = 0.05  # of the entities
MOST_LONG = 0.05  # of the sentences
MOST_WORDS = 1000  # in a sentence
UNSOUND_SPANS = (MISALIGNED, IMPOSSIBLE)
SHOWN = 5
AT_ONCE = 1000


class Finding(NamedTuple):
    """What was looked at, how it is, the figures behind it, and words for them that say what to do."""

    check: str
    verdict: Verdict
    told: str
    figures: Mapping[str, float]


@dataclass
class Survey:
    """What is known of a file after one walk through it.

    used: sentences of CoNLL, documents of other formats: what is used or cannot be as a whole, as in training.
    unsaid: entities that tags of words cannot say: nested, discontinuous, of white space, or ending inside a word.
    """

    name: str
    used: int = 0
    entities: Counter[str] = field(default_factory=Counter)
    unsaid: Counter[str] = field(default_factory=Counter)
    unusable: list[Unusable] = field(default_factory=list)
    illegal: list[int] = field(default_factory=list)  # lines
    overlaps: list[str] = field(default_factory=list)  # where entities overlap, in words
    repeated: int = 0
    words: "array[int]" = field(default_factory=lambda: array("Q"))
    pieces: "array[int]" = field(default_factory=lambda: array("Q"))
    sentence_keys: set[int] = field(default_factory=set)
    document_keys: set[int] = field(default_factory=set)

    @property
    def sentences(self) -> int:
        return len(self.words)

    @property
    def records(self) -> int:
        """All of them, usable or not."""
        return self.used + len(self.unusable)


def check(
    files: Mapping[Split, Path],
    format_name: FormatName | None = None,
    model: str | None = None,
    columns: Columns = TOKEN_AND_TAG,
) -> list[Finding]:
    """Looks at the files of one to three splits and tells what it finds, check by check.

    columns: of CoNLL files.
    model: a folder or a hub id; measures lengths in the word pieces of its tokenizer as well.
    Raises RequestError for a file that cannot be read at all, or without a sentence.
    """
    measure, limit = piece_measure(model) if model is not None else (None, None)
    surveys = {split: survey(path, format_name, measure, columns) for split, path in files.items()}
    findings = [_records(surveys), _spans(surveys), _tags(surveys), _types(surveys), _rare(surveys)]
    findings += [_duplicates(surveys), *_leaks(surveys), _lengths(surveys)]
    return [*findings, _pieces(surveys, limit)] if limit is not None else findings


def worst(findings: Sequence[Finding]) -> Verdict:
    """The verdict on all of it."""
    return max((finding.verdict for finding in findings), key=VERDICTS.index, default="good")


def splits_of(files: Sequence[Path]) -> dict[Split, Path]:
    """Which split each file is: by its name where all names tell, else train, dev and test in this order.

    Raises RequestError for none and for more than three.
    """
    if not 1 <= len(files) <= len(SPLITS):
        raise RequestError(f"expected one to three files (train, dev and test), found {len(files)}")
    told = [{split for split, word in NAMES if word in file.name.lower()} for file in files]
    named = [split for splits in told for split in splits if len(splits) == 1]
    return dict(zip(named if len(set(named)) == len(files) else SPLITS, files, strict=False))


# Walking through a file


def survey(
    path: Path,
    format_name: FormatName | None = None,
    measure: Measure | None = None,
    columns: Columns = TOKEN_AND_TAG,
) -> Survey:
    """Walks through a file of any format."""
    name = format_name or format_of(path)
    found = Survey(str(path))
    if name not in CONLL:
        refuse_columns(path, columns)
    walked = _tagged(path, name, columns, found) if name in CONLL else _documents(path, name, found)
    while sentences := list(islice(walked, AT_ONCE)):
        for tokens in sentences:
            _count(tokens, found)
        if measure is not None:
            found.pieces.extend(measure(sentences))
    if not found.sentences and not found.unusable:
        raise RequestError(f"{path}: expected sentences, found none. Check that it is the right file and complete.")
    return found


def _tagged(path: Path, name: FormatName, columns: Columns, found: Survey) -> Iterator[Sequence[str]]:
    file_scheme: FileScheme = "IOBES" if name == "conll-iobes" else scheme_of(path, columns)
    scheme = READ_AS[file_scheme]
    for row in sentence_rows(path, file_scheme, columns):
        if isinstance(row, TaggedSentence):
            found.used += 1
            found.illegal += [row.line + place for place in illegal_places(row.tags, scheme)]
            found.entities.update(span.type for span in spans_of(row.tags, scheme))
            yield row.tokens
        elif isinstance(row, Unusable):
            found.unusable.append(row)


def _documents(path: Path, name: FormatName, found: Survey) -> Iterator[Sequence[str]]:
    for item in numbered(once(document_items(path, name))):
        if isinstance(item, Unusable):
            found.unusable.append(item)
        elif isinstance(item, Document):
            found.used += 1
            found.document_keys |= {hash(item.text)} if item.text.strip() else set()
            found.overlaps += _overlaps(item)
            for example in of_document(item):
                found.unsaid.update(example.beyond)
                found.entities.update(split_tag(tag)[1] for tag in example.tags if tag.startswith("B"))
                found.entities.update(example.beyond)
                if example.tokens:
                    yield example.tokens


def _overlaps(document: Document) -> Iterator[str]:
    """Where each entity stands that begins before one before it has ended."""
    longest: Entity | None = None
    for entity in sorted(document.entities, key=lambda each: (each.start, -each.end)):
        if longest is not None and entity.start < longest.end:
            how = "in" if entity.end <= longest.end else "and"
            yield (
                f"{document.file}, line {document.line:,}, document {told_id(document.id)} "
                f"({entity.start:,} to {entity.end:,} {how} {longest.start:,} to {longest.end:,})"
            )
        if longest is None or entity.end > longest.end:
            longest = entity


def _count(tokens: Sequence[str], found: Survey) -> None:
    key = hash(tuple(tokens))
    found.repeated += key in found.sentence_keys
    found.sentence_keys.add(key)
    found.words.append(len(tokens))


# Findings

Surveys = Mapping[Split, Survey]


def _records(surveys: Surveys) -> Finding:
    """What the readers cannot use, but for misaligned entities. The worst file decides: it is where training stops."""
    unusable: list[Unusable] = []
    verdicts: list[Verdict] = []
    for found in surveys.values():
        rows = [row for row in found.unusable if row.reason not in UNSOUND_SPANS]
        unusable += rows
        verdicts.append(by_share(len(rows), found.records, MOST_UNUSABLE))
    records = sum(found.records for found in surveys.values())
    told = f"{records:,} records read"
    if unusable:
        told = f"{len(unusable):,} of {records:,} records cannot be used: {_reasons(unusable)}"
    return Finding("records", max(verdicts, key=VERDICTS.index), told, {"unusable": len(unusable)})


def _spans(surveys: Surveys) -> Finding:
    """Entities that do not stand where their offsets say, and those that no tags can say."""
    wrong = [row for found in surveys.values() for row in found.unusable if row.reason in UNSOUND_SPANS]
    unsaid = sum(found.unsaid.total() for found in surveys.values())
    entities = sum(found.entities.total() for found in surveys.values())
    told = [f"{len(wrong):,} documents cannot be used: {_reasons(wrong)}"] if wrong else []
    if unsaid:
        told.append(
            f"{unsaid:,} of {entities:,} entities are nested, discontinuous, of white space or end inside a word: tags "
            "cannot say them, so they are not learnt, and count as missed in a score"
        )
    overlaps = [place for found in surveys.values() for place in found.overlaps]
    if overlaps:
        told.append(f"{len(overlaps):,} are nested or overlap: {_shown(overlaps)}")
    verdict: Verdict = "fail" if wrong else by_share(unsaid, entities, MOST_UNSAID)
    figures = {"misaligned": len(wrong), "unsaid": unsaid}
    return Finding(
        "spans", verdict, "; ".join(told) or f"all {entities:,} entities fit the words of their text", figures
    )


def _tags(surveys: Surveys) -> Finding:
    """Illegal tag sequences and stray spaces; these are of CoNLL files alone."""
    illegal = [f"{found.name}, line {line:,}" for found in surveys.values() for line in found.illegal]
    rows = [row for found in surveys.values() for row in found.unusable if row.reason == STRAY_SPACE]
    figures = {"illegal": len(illegal), "stray_spaces": len(rows)}
    told = []
    if illegal:
        expected = "an I- must follow a B- or I- of its type"
        told.append(f"{len(illegal):,} tags may not stand where they do ({expected}): {_shown(illegal)}")
    if rows:
        places = _shown([place_of(row) for row in rows])
        told.append(f"{len(rows):,} sentences have a tag with a stray space, and cannot be used: {places}")
    return Finding("tags", "fail" if told else "good", "; ".join(told) or "every tag sequence is legal", figures)


def _shown(places: Sequence[str]) -> str:
    return "; ".join([*places[:SHOWN], *(["…"] if len(places) > SHOWN else [])])


def _types(surveys: Surveys) -> Finding:
    """Which types there are; those of dev and test must occur in train, and train must have some."""
    types = {split: {name for name, count in found.entities.items() if count} for split, found in surveys.items()}
    known = types.get("train", set[str]().union(*types.values()))
    strange = {split: sorted(names - known) for split, names in types.items() if names - known}
    unscored = sorted(known - types["test"]) if "test" in types else []
    told = [f"{split} has {', '.join(names)}, which train lacks" for split, names in strange.items()]
    told += [f"train has {', '.join(unscored)}, which test lacks: never scored"] if unscored else []
    if not known:
        told = ["there is no entity to learn"]
    verdict: Verdict = "fail" if strange or not known else "warn" if unscored else "good"
    counts = "; ".join(f"{split}: {_counts(found.entities)}" for split, found in surveys.items())
    return Finding("types", verdict, "; ".join([*told, counts]), {"types": len(known)})


def _rare(surveys: Surveys) -> Finding:
    """Types with few examples to learn from."""
    learnt = surveys.get("train", next(iter(surveys.values()))).entities
    rare = {name or "entity": count for name, count in sorted(learnt.items()) if count < FEW}
    if not rare:
        return Finding("rare types", "good", f"every type has at least {FEW} entities to learn from", {"rare": 0})
    listed = ", ".join(f"{name} {count:,}" for name, count in rare.items())
    told = f"fewer than {FEW} entities to learn from: {listed}; annotate more, join types, or leave them out"
    return Finding("rare types", "warn", told, {"rare": len(rare)})


def _duplicates(surveys: Surveys) -> Finding:
    """Sentences that a split has more than once."""
    counts: dict[str, float] = {split: found.repeated for split, found in surveys.items()}
    told = ", ".join(f"{split} {found.repeated:,} of {found.sentences:,}" for split, found in surveys.items())
    verdict: Verdict = "warn" if any(counts.values()) else "good"
    return Finding("duplicates", verdict, f"sentences that stood there before: {told}", counts)


def _leaks(surveys: Surveys) -> Iterator[Finding]:
    """Sentences and documents that two splits share."""
    for first, second in combinations(surveys, 2):
        one, other = surveys[first], surveys[second]
        shared = len(one.sentence_keys & other.sentence_keys)
        documents = len(one.document_keys & other.document_keys)
        least = min(len(one.sentence_keys), len(other.sentence_keys))
        told = f"sentences that {first} and {second} share: {shared:,} of {least:,}"
        if documents:
            told += f"; whole documents: {documents:,}. Take them out of {first}"
        verdict: Verdict = "fail" if documents else by_share(shared, least, MOST_LEAKED)
        yield Finding(f"leaks {first}/{second}", verdict, told, {"sentences": shared, "documents": documents})


def _lengths(surveys: Surveys) -> Finding:
    """Words in a sentence."""
    told = "; ".join(f"{split}: {spread(found.words)}" for split, found in surveys.items() if found.words)
    longest = max((max(found.words) for found in surveys.values() if found.words), default=0)
    is_split = longest < MOST_WORDS
    told += "" if is_split else f"; more than {MOST_WORDS:,} words are hardly one sentence: are blank lines missing?"
    return Finding("words in a sentence", "good" if is_split else "warn", told, {"longest": longest})


def _pieces(surveys: Surveys, limit: int) -> Finding:
    """Word pieces in a sentence, against what the model reads at once."""
    pieces = [count for found in surveys.values() for count in found.pieces]
    long = sum(count > limit for count in pieces)
    spreads = "; ".join(f"{split}: {spread(found.pieces)}" for split, found in surveys.items() if found.pieces)
    told = f"{spreads}; longer than the {limit:,} that the model reads at once: {long:,} (read in windows)"
    verdict: Verdict = "warn" if long > MOST_LONG * len(pieces) else "good"
    return Finding("tokens in a sentence", verdict, told, {"longest": max(pieces, default=0), "long": long})


def by_share(count: int, whole: int, most: float) -> Verdict:
    """Nothing is good; more than a share `most` of the whole will not do."""
    return "good" if not count else "fail" if count > most * whole else "warn"


def _reasons(rows: Sequence[Unusable]) -> str:
    counted = Counter(row.reason for row in rows).most_common()
    first = rows[0]
    detail = f" ({first.detail})" if first.detail else ""
    listed = ", ".join(f"{count:,} × {reason}" for reason, count in counted)
    return f"{listed}; the first is {place_of(first)}{detail}"


def _counts(entities: Counter[str]) -> str:
    return ", ".join(f"{name or 'entity'} {count:,}" for name, count in sorted(entities.items())) or "none"


def spread(lengths: Sequence[int]) -> str:
    """Median, 95th percentile and maximum, in words."""
    ordered = sorted(lengths)
    most = ordered[int(0.95 * (len(ordered) - 1))]
    return f"median {statistics.median_low(ordered):,}, 95 % up to {most:,}, longest {ordered[-1]:,}"


def piece_measure(model: str) -> tuple[Measure, int]:
    """How many word pieces a model's tokenizer cuts sentences into, and how many the model reads at once."""
    from bertrelay.backbone import load_tokenizer, model_folder, read_network_config
    from bertrelay.layout import read_layout
    from domain.biomedical.ner.model import SPECIALS, Cutter

    folder = model_folder(model)
    layout = read_layout(folder)
    transformer = folder / layout.transformer_folder
    cutter = Cutter(load_tokenizer(transformer, layout.lower_case))
    config = read_network_config(transformer)
    positions = (config and config.max_position_embeddings) or 512
    return lambda sentences: cutter(sentences).lengths.tolist(), positions - SPECIALS
