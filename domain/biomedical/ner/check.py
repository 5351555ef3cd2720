"""Checks annotated files before training on them; each check passes, warns or fails.

Each file is read as a stream; of a sentence or a document only a hash, a file and a line stay in memory.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from bertrelay.blocks import blocks_of
from bertrelay.data.sanity import MAX_LEAKED, MAX_SWAPPED, MIN_RECORDS
from bertrelay.data.tables import Rejected
from bertrelay.errors import RequestError
from bertrelay.privacy import is_sensitive
from domain.biomedical.documents.conll import TOKEN_AND_TAG, Columns
from domain.biomedical.documents.document import Document, Entity, Reading, RepeatedIds
from domain.biomedical.documents.formats import PUBTATOR, FormatName, check_repeated_ids, format_of
from domain.biomedical.documents.soundness import MISPLACED, STRAY_SPACE
from domain.biomedical.ner.data import (
    BEYOND_TAGS,
    REPEATED,
    TRIMMED,
    AnnotatedRecord,
    Doubtful,
    annotated_records,
    divided_summary,
    divided_tokens,
)
from domain.checks import (
    MAX_UNUSABLE,
    MOST_PLACES,
    Finding,
    Occurrences,
    Place,
    Severity,
    Split,
    by_fraction,
    duplicates,
    row_places,
    shown,
    summarize_lengths,
    worst,
)
from domain.reading import count_reasons, shown_id

MIN_ENTITIES = 50  # of a type; with fewer a model is hardly trained on it
MAX_UNTAGGABLE = 0.05  # of the entities
MAX_LONG = 0.05  # of the sentences
MAX_WORDS = 1000  # in a sentence
AT_ONCE = 1000


@dataclass
class EntitySurvey:
    """Counts of one pass over a file.

    used: sentences of CoNLL, documents of other formats, which are used or rejected as a whole, as in training.
    untaggable: entities that tags of words cannot represent (see `Example`).
    in_entities: tokens of entities; divided: those that raw text divides.
    """

    used: int = 0
    entities: Counter[str] = field(default_factory=Counter)
    untaggable: int = 0
    in_entities: int = 0
    divided: list[str] = field(default_factory=list)
    unusable: list[Rejected] = field(default_factory=list)
    illegal: list[Place] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)  # of entities at wrong offsets and of doubtful ones
    faults: list[Place] = field(default_factory=list)  # places of these
    words: list[int] = field(default_factory=list)
    subwords: list[int] = field(default_factory=list)

    def add(self, document: Document, doubtful: Iterable[Doubtful]) -> bool:
        """Counts the misplaced and doubtful entities of a document; returns true for a usable document."""
        for wrong in document.misplaced:
            self.note(wrong.reason, wrong.entity, document, wrong.file, wrong.line)
        if document.misplaced:
            self.unusable.append(document.as_unusable())
            return False
        for reason, entity in doubtful:
            self.note(reason, entity, document)
        return True

    def note(self, kind: str, entity: Entity, document: Document, file: str = "", line: int = 0) -> None:
        """Counts an entity of one kind, and notes its place."""
        self.kinds[kind] += 1
        if self.kinds[kind] <= MOST_PLACES:
            text = "" if is_sensitive() else shown_id(document.text[max(entity.start, 0) : max(entity.end, 0)])
            where = (file or document.file, line or document.line, shown_id(document.id))
            self.faults.append(Place(kind, *where, entity.start, entity.end, text))


Surveys = Mapping[Split, EntitySurvey]


def check(
    files: Mapping[Split, Path],
    format_name: FormatName | None = None,
    model: str | None = None,
    columns: Columns = TOKEN_AND_TAG,
    repeated_ids: RepeatedIds = "error",
) -> list[Finding]:
    """Checks the files of one to three splits.

    columns: of CoNLL files.
    model: a folder or a hub id; measures lengths in the subwords of its tokenizer as well.
    repeated_ids: of files of PubTator, as in `EntitySource`.
    Raises RequestError for a file that cannot be read at all, or without a sentence, and for an option without effect.
    """
    splitter, limit = None, 0
    if model is not None:
        from bertrelay.model.heads import read_tokenizer, window_size
        from domain.biomedical.ner.model import MAX_TOKENS
        from domain.biomedical.ner.subwords import SPECIALS, WordSplitter

        tokenizer, positions = read_tokenizer(model)
        splitter, limit = WordSplitter(tokenizer), window_size(positions, MAX_TOKENS) - SPECIALS
    sentences, documents = Occurrences("a sentence"), Occurrences("a document")

    formats = {path: format_name or format_of(path) for path in files.values()}
    if PUBTATOR not in formats.values():
        for path, name in formats.items():
            check_repeated_ids(path, name, Reading(repeated_ids=repeated_ids))

    def survey_file(split: Split, path: Path) -> EntitySurvey:
        reading = Reading(misplaced="keep", repeated_ids=repeated_ids if formats[path] == PUBTATOR else "error")
        records = annotated_records(path, format_name, columns, reading=reading)
        survey = EntitySurvey()
        for block in blocks_of(_sentences(records, split, survey, documents), AT_ONCE):
            survey.words += [len(tokens) for tokens, _, _ in block]
            for tokens, file, line in block:
                sentences.add(split, tuple(tokens), file, line)
            if splitter is not None:
                survey.subwords += splitter([tokens for tokens, _, _ in block]).lengths.tolist()
        if not survey.words and not survey.unusable:
            raise RequestError(f"{path}: expected sentences, found none. Check that it is the right file and complete.")
        return survey

    surveys = {split: survey_file(split, path) for split, path in files.items()}
    return [
        _records(surveys),
        _spans(surveys),
        _raw_text(surveys),
        _tags(surveys),
        _types(surveys),
        _rare(surveys),
        duplicates(sentences, surveys, "sentences that occur again"),
        *_leaks(surveys, sentences, documents),
        _lengths(surveys),
        *([_subwords(surveys, limit)] if splitter else []),
    ]


def _sentences(
    records: Iterable[AnnotatedRecord | Rejected], split: Split, survey: EntitySurvey, documents: Occurrences
) -> Iterator[tuple[Sequence[str], str, int]]:
    """Yields the tokens, file and line of each sentence; the rest is counted in `survey`, documents in `documents`."""
    for record in records:
        if isinstance(record, Rejected) and record.is_fault:
            survey.unusable.append(record)
        elif isinstance(record, AnnotatedRecord):
            if isinstance(record.origin, Document):
                if not survey.add(record.origin, record.doubtful):
                    continue
                if record.origin.text.strip():
                    documents.add(split, record.origin.text, record.origin.file, record.origin.line)
            else:
                lines = (record.origin.line + at for at in record.origin.illegal)
                survey.illegal += [Place("a tag that is not allowed there", record.origin.file, line) for line in lines]
            survey.used += 1
            for example in record.examples:
                survey.untaggable += len(example.untaggable)
                survey.entities.update(example.untaggable)
                survey.entities.update(span.type for span in example.entities)
                survey.in_entities += len(example.entity_tokens)
                survey.divided += divided_tokens([example])
                if example.tokens:
                    yield example.tokens, record.origin.file, record.origin.line


def _records(surveys: Surveys) -> Finding:
    """Rejected records, except for misaligned entities. The worst file decides: there training stops."""
    rows, whole, severities = list[Rejected](), 0, list[Severity]()
    for survey in surveys.values():
        unusable = [row for row in survey.unusable if row.reason not in MISPLACED]
        records = survey.used + len(survey.unusable)
        severities.append(by_fraction(len(unusable), records, MAX_UNUSABLE))
        rows, whole = rows + unusable, whole + records
    summary = f"{len(rows):,} of {whole:,} records cannot be used: {count_reasons(rows)}" if rows else f"{whole:,} read"
    return Finding("records", worst(severities), summary, {"unusable": len(rows)}, places=row_places(rows))


def _spans(surveys: Surveys) -> Finding:
    """Entities whose offsets are wrong, those that tags cannot represent, and those that reading changes."""
    wrong = [row for survey in surveys.values() for row in survey.unusable if row.reason in MISPLACED]
    untaggable = sum(survey.untaggable for survey in surveys.values())
    entities = sum(survey.entities.total() for survey in surveys.values())
    kinds = sum((survey.kinds for survey in surveys.values()), Counter[str]())
    dropped = "; `drop_misplaced` of a training leaves out these entities alone"
    summary = [f"{len(wrong):,} documents cannot be used: {count_reasons(wrong)}{dropped}"] if wrong else []
    if untaggable:
        listed = ", ".join(f"{kinds[kind]:,} × {kind}" for kind in BEYOND_TAGS if kinds[kind])
        summary.append(
            f"{untaggable:,} of {entities:,} entities are beyond tags ({listed}): "
            "they are not trained on, and count as missed in a score"
        )
    changed = [kind for kind in (TRIMMED, REPEATED) if kinds[kind]]
    summary += [f"{kinds[kind]:,} × {kind}" for kind in changed]
    severity: Severity = "fail" if wrong else by_fraction(untaggable, entities, MAX_UNTAGGABLE)
    severity = worst([severity, "warn" if changed else "good"])
    counts = {"misaligned": len(wrong), "untaggable": untaggable}
    counts |= {"trimmed": kinds[TRIMMED], "repeated": kinds[REPEATED]}
    faults = [fault for survey in surveys.values() for fault in survey.faults]
    faults += row_places([row for row in wrong if not kinds[row.reason]])
    good = f"all {entities:,} entities fit the words"
    return Finding("spans", severity, "; ".join(summary) or good, counts, places=faults)


def _raw_text(surveys: Surveys) -> Finding:
    """Tokens of the training data that raw text, split into words, does not have."""
    trained = surveys.get("train", next(iter(surveys.values())))
    summary = divided_summary(trained.divided, trained.in_entities)
    good = "entities consist of words as raw text is split into them"
    return Finding("raw text", "warn" if summary else "good", summary or good, {"divided": len(trained.divided)})


def _tags(surveys: Surveys) -> Finding:
    illegal = [tag for survey in surveys.values() for tag in survey.illegal]
    rows = [row for survey in surveys.values() for row in survey.unusable if row.reason == STRAY_SPACE]
    summary = []
    if illegal:
        expected = "an I- must follow a B- or I- of its type"
        examples = shown(list(map(str, illegal)))
        summary.append(f"{len(illegal):,} tags are not allowed where they are ({expected}): {examples}")
    if rows:
        examples = shown([row.place for row in rows])
        summary.append(f"{len(rows):,} records have a tag or type with a stray space, and cannot be used: {examples}")
    counts = {"illegal": len(illegal), "stray_spaces": len(rows)}
    text = "; ".join(summary) or "every tag sequence is legal"
    return Finding("tags", "fail" if summary else "good", text, counts, places=[*illegal, *row_places(rows)])


def _types(surveys: Surveys) -> Finding:
    """Types of each split; those of dev and test must occur in train, and train and dev must have some."""
    types = {split: set(survey.entities) for split, survey in surveys.items()}
    trained = types.get("train", set[str]().union(*types.values()))
    unknown = {split: sorted(names - trained) for split, names in types.items() if names - trained}
    unscored = sorted(trained - types["test"]) if "test" in types else []
    lacks_dev = "dev" in types and not types["dev"]
    summary = [f"{split} has {', '.join(names)}, which train lacks" for split, names in unknown.items()]
    summary += [f"train has {', '.join(unscored)}, which test lacks: never scored"] if unscored else []
    if not trained:
        summary = ["there is no entity to train on"]
    elif lacks_dev:
        summary.append("dev has no entity: no evaluation could choose the best weights")
    entities = sum(survey.entities.total() for survey in surveys.values())
    if are_swapped := len(trained) >= MIN_RECORDS and len(trained) > MAX_SWAPPED * entities:
        summary.append(f"{len(trained):,} types of {entities:,} entities: mentions seem to stand in the place of types")
    severity: Severity = "warn" if unscored else "good"
    if unknown or not trained or lacks_dev or are_swapped:
        severity = "fail"
    for split, survey in surveys.items():
        listed = ", ".join(f"{name or 'entity'} {count:,}" for name, count in sorted(survey.entities.items()))
        summary.append(f"{split}: {listed or 'none'}")
    return Finding("types", severity, "; ".join(summary), {"types": len(trained)})


def _rare(surveys: Surveys) -> Finding:
    trained = surveys.get("train", next(iter(surveys.values()))).entities
    rare = {name or "entity": count for name, count in sorted(trained.items()) if count < MIN_ENTITIES}
    summary = f"every type has at least {MIN_ENTITIES} entities"
    if rare:
        listed = ", ".join(f"{name} {count:,}" for name, count in rare.items())
        summary = f"fewer than {MIN_ENTITIES} entities: {listed}; annotate more, merge types, or leave them out"
    return Finding("rare types", "warn" if rare else "good", summary, {"rare": len(rare)})


def _leaks(surveys: Surveys, sentences: Occurrences, documents: Occurrences) -> Iterator[Finding]:
    for first, second in combinations(surveys, 2):
        shared, whole = sentences.shared(first, second), documents.shared(first, second)
        fewest = min(sentences.distinct(first), sentences.distinct(second))
        summary = f"sentences that {first} and {second} share: {shared.count:,} of {fewest:,}"
        summary += f"; whole documents: {whole.count:,}. Remove them from {first}" if whole.count else ""
        severity: Severity = "fail" if whole.count else by_fraction(shared.count, fewest, MAX_LEAKED)
        counts = {"sentences": shared.count, "documents": whole.count}
        yield Finding(f"leaks {first}/{second}", severity, summary, counts, [*shared.places, *whole.places])


def _lengths(surveys: Surveys) -> Finding:
    summary, counts = summarize_lengths({split: survey.words for split, survey in surveys.items()})
    longest = counts["longest"]
    if longest >= MAX_WORDS:
        summary += f"; more than {MAX_WORDS:,} words are hardly one sentence: are blank lines missing?"
    severity: Severity = "warn" if longest >= MAX_WORDS else "good"
    return Finding("words in a sentence", severity, summary, {"longest": longest})


def _subwords(surveys: Surveys, limit: int) -> Finding:
    """Subwords in a sentence, against what the model reads at once."""
    listed, counts = summarize_lengths({split: survey.subwords for split, survey in surveys.items()}, limit)
    long, sentences = counts["long"], sum(len(survey.subwords) for survey in surveys.values())
    summary = f"{listed}; longer than the {limit:,} that the model reads at once: {long:,} (read in windows)"
    severity: Severity = "warn" if long > MAX_LONG * sentences else "good"
    return Finding("tokens in a sentence", severity, summary, counts)
