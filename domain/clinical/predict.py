"""`OutcomeScorer`: the notes of admissions to the probability of an outcome, and to the chunks and words behind it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import expit

from bertrelay.cache import Cache
from bertrelay.checks import list_texts
from bertrelay.data.records import log_copies
from bertrelay.device import ComputePrecision, as_device, resolve_precision
from bertrelay.errors import RequestError
from bertrelay.evaluation.statistics import none_if_nan
from bertrelay.inference.batches import best_batch_tokens, pack_for
from bertrelay.inference.kernels import Packed
from bertrelay.model.graph import BackendChoice, check_backend
from bertrelay.progress import log
from domain.clinical.aggregation import aggregate, aggregate_labels, contributions
from domain.clinical.chunks import (
    Chunker,
    ChunkTokens,
    chunk_tokens,
    subwords_per_word,
    unknown_shares,
    warn_of_cut,
    warn_of_unknown,
)
from domain.clinical.cleaning import BETWEEN, NAMES, Section, clean, find_sections
from domain.clinical.model import OutcomeModel, chunk_log_odds, load_model
from domain.clinical.note_selection import MARKS, NoteKinds, note_of_row, warn_of_mixed_ids
from domain.clinical.note_store import digest_of
from domain.clinical.settings import READMISSION, ModelDescription, OutcomeName, in_words

Floats = NDArray[np.float64]

NO_TEXT, UNKNOWN_TEXT = "no text", "no known word"
MOST_LABELS = 10
STRENGTHS = 5
"""Shades of a word, from the one that moved the chunk most down to a fifth of it; weaker ones are left plain."""


class ScoredChunk(NamedTuple):
    """A chunk of an admission's text: its characters, its own probability, and its share in the admission's.

    Both are of the label of the score.
    """

    start: int
    end: int
    probability: float
    share: float


class OutcomeScore(NamedTuple):
    """The prediction for an admission; None, and no chunks, where it has no text that the model can read.

    probability: of `label`, the one that the model knows, of several the likeliest; `by_label` has those of all.
    calibrated, alarm: of a binary task; `alarm` is whether `probability` reaches the threshold of the model, None where
        it has none.
    section: of the chunk with the largest share, by its header; None outside known ones.
    unknown_share: of the tokens, how many the vocabulary does not know; None without tokens. subwords_per_word: how
        many a word has on average; None without words. A text in another language has many.
    reason: why there is no probability: `NO_TEXT`, or `UNKNOWN_TEXT` where the vocabulary knows none of the words.
    """

    probability: float | None = None
    calibrated: float | None = None
    alarm: bool | None = None
    section: str | None = None
    chunks: Sequence[ScoredChunk] = ()
    label: str | None = None
    by_label: Sequence[float] = ()
    unknown_share: float | None = None
    subwords_per_word: float | None = None
    reason: str | None = None

    @property
    def top(self) -> ScoredChunk | None:
        """The chunk with the largest share, the first of equals."""
        return max(self.chunks, key=lambda chunk: chunk.share, default=None)


class MaskedWord(NamedTuple):
    """A word of a text, and the loss of its chunk's log-odds and of the admission's probability when it is masked."""

    start: int
    end: int
    lost_log_odds: float
    lost_probability: float


@dataclass(frozen=True)
class Explanation:
    """A text as it was read (cleaned), its score, and the words of its top chunk."""

    text: str
    score: OutcomeScore
    words: list[MaskedWord]


class OutcomeScorer:
    """Predicts the outcome that its model was trained for, from the notes of each admission."""

    only_task: ClassVar[OutcomeName | None] = None

    def __init__(self, model: OutcomeModel) -> None:
        self.model = model
        self._chunker = Chunker(model.tokenizer, model.description.chunking)
        self._packed: dict[str, Packed] = {}

    @classmethod
    def load(
        cls,
        source: str | Path,
        device: str | torch.device | None = None,
        *,
        task: OutcomeName | None = None,
        backend: BackendChoice = None,
        cache: Cache | None = None,
    ) -> Self:
        """The scorer of a folder that `domain.readmission` or `domain.outcome` wrote.

        device, backend: as of `SentenceEncoder.load`.
        Raises RequestError for what is not there, damaged, or a model of another task than `task`, where that is given.
        """
        check_backend(backend, device)
        chosen_device = as_device(device)
        model = load_model(source, task or cls.only_task, cache, backend)
        model.network.to(chosen_device)
        description = model.description
        if description.outcome.early_only:  # nothing in a note says which kind it is
            log("the model is trained on early notes: a discharge summary would leak the outcome, so score early notes")
        elif description.input == "early":
            log("the model is trained on early notes: score early notes, for it has not seen discharge summaries")
        if description.threshold is not None and description.alarms is None:
            log("the model's alarm threshold comes without the number of alarms behind it; train it again to have that")
        return cls(model)

    def score(
        self,
        notes: pd.DataFrame,
        *,
        id_column: str = "hadm_id",
        text_column: str = "text",
        cleaned: bool = False,
        precision: str = "auto",
    ) -> pd.DataFrame:
        """A row for each admission of `notes`, which has a row for each note, in any order, as a file has them.

        Ids may be numbers in one row and text in another. Columns: hadm_id, probability, calibrated, alarm, n_chunks,
        unknown_share, subwords_per_word, top_start, top_end, top_section, top_share, reason; of a model with several
        labels no calibrated and alarm, but label, the likeliest, and `probability/LABEL` of all. They are missing, and
        `reason` says why, where an admission has no text or the vocabulary knows none of its words. Offsets count
        characters of the admission's notes as they are read: each cleaned (unless they are `cleaned` already), in the
        order of the rows, an empty line between them.
        Of a frame with a column category, note_type or iserror, as MIMIC's tables have, the rows are read that the
        model was trained on; the others are counted in the log.
        Raises RequestError for anything but a data frame, a column that is missing or there twice, a row without an id
        or whose note is not text, and where such columns do not say which rows the model was trained on.
        """
        texts = notes_by_admission(notes, id_column, text_column, self.model.description)
        scores = self.score_texts(
            [clean_and_join(notes_of_one, cleaned) for notes_of_one in texts.values()], precision=precision
        )
        description = self.model.description
        shares, subwords = [score.unknown_share for score in scores], [score.subwords_per_word for score in scores]
        warn_of_unknown(np.array(shares, np.float64), np.array(subwords, np.float64), description.subwords_per_word)
        warn_of_cut(np.array([len(score.chunks) for score in scores]), description.chunking.max_chunks)
        rows = [flat(name, score, description) for name, score in zip(texts, scores, strict=True)]
        return pd.DataFrame(rows, columns=columns_of(description))

    def score_texts(
        self, texts: Sequence[str], *, precision: str = "auto", batch_tokens: int | None = None
    ) -> list[OutcomeScore]:
        """The score of each text, which is all notes of an admission, `clean_and_join`; their chunks share batches."""
        texts = list_texts(texts, "score")
        tokens = chunk_tokens(texts, self._chunker)
        log_odds = self._log_odds(tokens, resolve_precision(precision, self.model.network.device), batch_tokens)
        return list(self._scores(texts, tokens, expit(log_odds)))

    def count_tokens(self, text: str) -> int:
        """The tokens that the network reads of a text, with special ones and the overlaps of chunks."""
        return len(chunk_tokens([text], self._chunker).ids)

    def _log_odds(self, tokens: ChunkTokens, precision: ComputePrecision, batch_tokens: int | None = None) -> Floats:
        network = self.model.network
        size = best_batch_tokens(network.device, batch_tokens)
        packed = self._packed.get(precision) or pack_for(len(tokens.ids), network.network.base_model, precision, size)
        self._packed = {precision: packed}
        return chunk_log_odds(self.model, tokens, np.arange(len(tokens)), precision, size, packed)

    def _scores(self, texts: Sequence[str], tokens: ChunkTokens, of_chunks: Floats) -> Iterator[OutcomeScore]:
        """The scores of texts, from the probabilities of their chunks, (chunks, labels)."""
        description, count, owners = self.model.description, len(texts), tokens.admissions
        probabilities = aggregate_labels(of_chunks, owners, count, description)  # (texts, labels)
        label = probabilities.argmax(1)  # (texts,)
        of_label = of_chunks[np.arange(len(owners)), label[owners]]  # (chunks,)
        contributed = contributions(of_label, owners, count, description.aggregation, description.c)
        if description.outcome.kind == "multi-class":  # whose probabilities are divided by their sum
            unscaled = aggregate(of_label, owners, count, description.aggregation, description.c)
            contributed *= probabilities[owners, label[owners]] / unscaled[owners]
        columns = [tokens.spans[:, 0], tokens.spans[:, 1], of_label, contributed]
        rows = [ScoredChunk(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        borders = np.searchsorted(owners, np.arange(count + 1)).tolist()
        unknown, is_unreadable = unknown_shares(tokens, count, self._chunker)
        subwords = subwords_per_word(tokens, count, self._chunker)
        for number, text in enumerate(texts):
            chunks = rows[borders[number] : borders[number + 1]]
            if not chunks:
                yield OutcomeScore(reason=NO_TEXT)
            elif is_unreadable[number]:
                a_word = none_if_nan(subwords[number])
                yield OutcomeScore(unknown_share=float(unknown[number]), subwords_per_word=a_word, reason=UNKNOWN_TEXT)
            else:
                by_label = probabilities[number].tolist()
                name = description.labels[label[number]]
                score = OutcomeScore(max(by_label), label=name, by_label=by_label, chunks=chunks)
                if description.is_binary:
                    recalibrated = float(description.calibrate(probabilities[number, 0]))
                    alarm = None if description.threshold is None else by_label[0] >= description.threshold
                    score = score._replace(calibrated=recalibrated, alarm=alarm)
                score = score._replace(section=section_of(text, score.top), unknown_share=float(unknown[number]))
                yield score._replace(subwords_per_word=none_if_nan(subwords[number]))

    def explain(self, text: str, *, cleaned: bool = False, precision: str = "auto") -> Explanation:
        """The score of a text, and the words of its top chunk, each by what is lost when it is masked (occlusion).

        The text is cleaned as `score` cleans a note, unless it is `cleaned` already.
        """
        (text,) = list_texts([text], "explain")
        text = text if cleaned else clean(text)
        tokens = chunk_tokens([text], self._chunker)
        resolved = resolve_precision(precision, self.model.network.device)
        of_chunks = expit(self._log_odds(tokens, resolved))
        (score,) = self._scores([text], tokens, of_chunks)
        words = [] if score.top is None else list(self._words(text, score, of_chunks, resolved))
        return Explanation(text, score, words)

    def _words(
        self, text: str, score: OutcomeScore, of_chunks: Floats, precision: ComputePrecision
    ) -> Iterator[MaskedWord]:
        """The words of the top chunk; of_chunks: the probabilities of all, (chunks, labels)."""
        top = list(score.chunks).index(score.top or score.chunks[0])
        chunk, label = score.chunks[top], int(np.argmax(score.by_label))
        ids, words, spans = self._chunker.words(text[chunk.start : chunk.end])
        numbers = np.unique(words[words >= 0])
        mask_id = self.model.tokenizer.mask_token_id
        mask_id = self.model.tokenizer.unk_token_id if mask_id is None else mask_id
        variants = np.where(words == np.append(-2, numbers)[:, None], mask_id, ids)  # (1 + words, tokens)
        count, width = variants.shape
        rows, flat_ids = np.arange(count), variants.astype(np.int32).ravel()
        tokens = ChunkTokens(flat_ids, rows * width, np.full(count, width), rows, np.zeros((count, 2), np.int64))
        of_variants = self._log_odds(tokens, precision)  # (1 + words, labels)
        all_chunks = np.tile(of_chunks, (count, 1, 1))  # (1 + words, chunks, labels)
        all_chunks[:, top] = expit(of_variants)  # each variant in the place of the top chunk
        owners = np.repeat(rows, len(of_chunks))
        after = aggregate_labels(all_chunks.reshape(len(owners), -1), owners, count, self.model.description)[:, label]
        for row, number in enumerate(numbers.tolist(), 1):
            start, end = spans[words == number, 0].min(), spans[words == number, 1].max()
            lost = float(of_variants[0, label] - of_variants[row, label]), float(after[0] - after[row])
            yield MaskedWord(chunk.start + int(start), chunk.start + int(end), *lost)


class ReadmissionScorer(OutcomeScorer):
    """Predicts the probability of a readmission, from a DataFrame with a row for each note.

    scorer = ReadmissionScorer.load("runs/clinic/readmission/latest/model")
    scores = scorer.score(pd.DataFrame({"hadm_id": [1, 2], "text": ["...", "..."]}))
    """

    only_task = READMISSION.name


def notes_by_admission(
    notes: pd.DataFrame, id_column: str, text_column: str, description: ModelDescription
) -> dict[str, list[str]]:
    """The texts of a frame by admission that such a model reads, both in the order of its rows; equal ones of an
    admission count once.

    Raises RequestError as `score` does.
    """
    if not isinstance(notes, pd.DataFrame):
        raise RequestError(
            f"score: expected a data frame with a row for each note, found {type(notes).__name__}; score_file scores "
            "the notes of a file"
        )
    for column in (id_column, text_column):
        if (count := notes.columns.tolist().count(column)) > 1:
            raise RequestError(f"score: expected one column {column!r}, found {count}; rename the others")
        if not count:  # names are not shown: those of a file without a header are its first row
            raise RequestError(
                f"score: expected a column {column!r}, found {len(notes.columns)} columns of other names. Name the "
                "columns with id_column and text_column, and give a file without a header its own"
            )
    texts, kinds, seen, copies = dict[str, list[str]](), set[type](), set[tuple[str, bytes]](), 0
    chosen = NoteKinds(description, "the data frame")
    names = [str(name).strip().lower() for name in notes.columns]
    marks = {name: names.index(name) for name in MARKS if name in names}
    marked = [dict(zip(marks, values, strict=True)) for values in notes.iloc[:, [*marks.values()]].to_numpy(object)]
    for row, (identifier, value) in enumerate(zip(notes[id_column], notes[text_column], strict=True)):
        if marks and not chosen.reads(marked[row], identifier):
            continue
        try:
            name, text = note_of_row(identifier, value)
        except ValueError as error:
            raise RequestError(
                f"score: expected an id in {id_column!r} and text in {text_column!r}, found {error} in row {row:,}, "
                "from 0; fix the row or leave it out"
            ) from None
        kinds.add(type(identifier))
        of_one, note = texts.setdefault(name, []), (name, digest_of(text))
        if text.strip() and note in seen:
            copies += 1
        else:
            seen.add(note)
            of_one.append(text)
    log_copies(copies, len(notes), "notes", "of one admission")
    chosen.check(len(notes) - chosen.left_out.total(), texts)
    warn_of_mixed_ids(id_column, kinds)
    return texts


def columns_of(description: ModelDescription) -> list[str]:
    """The columns of scores by such a model."""
    return list(flat("", OutcomeScore(), description))


def flat(name: str, score: OutcomeScore, description: ModelDescription) -> dict[str, Any]:
    """A score as a row of a table; `top_share` is the top chunk's contribution to `probability`."""
    top, is_binary = score.top, description.is_binary
    row: dict[str, Any] = {"hadm_id": name} if is_binary else {"hadm_id": name, "label": score.label}
    row["probability"] = score.probability
    if is_binary:
        row |= {"calibrated": score.calibrated, "alarm": score.alarm}
    row |= {"n_chunks": len(score.chunks), "unknown_share": score.unknown_share}
    row["subwords_per_word"] = score.subwords_per_word
    row |= {"top_start": top.start, "top_end": top.end} if top else {"top_start": None, "top_end": None}
    row |= {"top_section": score.section, "top_share": top.share if top else None, "reason": score.reason}
    of_labels = zip_longest(description.labels, score.by_label)  # without text there is none
    return row if is_binary else row | {f"probability/{label}": of_label for label, of_label in of_labels}


def clean_and_join(notes: Sequence[str], cleaned: bool = False) -> str:
    """The notes of an admission as one text, each cleaned as the training notes were."""
    return BETWEEN.join(text for note in notes if (text := note if cleaned else clean(note)))


def section_of(text: str, chunk: ScoredChunk | None) -> str | None:
    """The section that most of `chunk` is in. Only known headers are shown: what else looks like one may be a name."""
    if chunk is None:
        return None

    def shared(section: Section) -> int:
        return min(section.end, chunk.end) - max(section.start, chunk.start)

    nearest = max(find_sections(text), key=shared, default=None)
    return nearest.name if nearest and shared(nearest) > 0 and nearest.name in NAMES else None


def admission_page(explanation: Explanation, description: ModelDescription) -> str:
    """The text of an admission as HTML: chunks with their contributions, and the words of the top chunk that moved it.

    The page needs no network and no scripts.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, **options)
    environment.filters["in_words"] = in_words
    text, score, top = explanation.text, explanation.score, explanation.score.top
    whole = score.probability or 0.0
    is_binary = description.is_binary

    def percent(probability: float) -> float:
        """On the one scale of the page, which is that of the calibrated probability where there is one."""
        return 100 * float(description.calibrate(np.array(probability)) if is_binary else probability)

    most = max((abs(word.lost_log_odds) for word in explanation.words), default=0.0)

    def parts(chunk: ScoredChunk) -> Iterator[tuple[str, str, str]]:
        """Its characters in parts, each with the class and title of its mark, empty where it has none."""
        end = chunk.start
        for word in explanation.words if chunk == top and most else ():
            if strength := round(STRENGTHS * abs(word.lost_log_odds) / most):
                direction = "up" if word.lost_log_odds > 0 else "down"
                points = percent(whole) - percent(whole - word.lost_probability)
                title = f"{word.lost_log_odds:+.2f} log-odds of the chunk, {points:+.1f} percentage points"
                yield text[end : word.start], "", ""
                yield text[word.start : word.end], f"{direction} s{strength}", title
                end = word.end
        yield text[end : chunk.end], "", ""

    chunks = [(number, chunk, chunk == top, parts(chunk)) for number, chunk in enumerate(score.chunks, 1)]
    by_label = zip(description.labels, score.by_label, strict=False)  # without text there is none
    likeliest = sorted(by_label, key=lambda labelled: -labelled[1])[:MOST_LABELS]
    template = environment.get_template("admission.html.jinja")
    return template.render(score=score, description=description, chunks=chunks, likeliest=likeliest, percent=percent)
