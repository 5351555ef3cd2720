"""The notes of a patient: which are written, when, by whom, and with which of the oddities of the real ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate
from random import Random
from typing import Literal

from pipelines.samples.hospital import phrases
from pipelines.samples.hospital.discharge import addendum, summary
from pipelines.samples.hospital.facts import sentences_about
from pipelines.samples.hospital.risk import draw_prognosis
from pipelines.samples.hospital.stays import Stay, Subject
from pipelines.samples.hospital.wording import filled, prose, vitals

NoteKind = Literal["report", "addendum", "radiology", "tracing", "care"]

SECOND_REPORT, ADDENDUM, ADDENDUM_BEFORE = 0.03, 0.06, 0.1
CARERS = ("Nursing", "Nursing/other", "Physician ", "Respiratory ", "Case Management ", "General")
"""The blanks at the end are in the real tables too."""
TALKERS = ("Nursing", "Nursing/other", "Physician ")
"""Whose early notes tell of the patient's conditions."""
MOST_CARE_NOTES = 7
RADIOLOGY, TRACING = 0.6, 0.3
NO_TIME, ERROR, NO_STAY = 0.03, 0.02, 0.08
LATE = 0.1
"""Of stays that a return can follow, those of which a discharge note from afterwards tells what came of them."""
LATE_ROW_ID = 10_000_000_000
"""Above all others, so that late notes change no number of another row."""


@dataclass(frozen=True)
class Note:
    """One note.

    hadm_id: None for a note that belongs to no stay.
    charted: when; has_time: whether its table knows more than the day.
    row_id: in its table; None for the number of its row there.
    """

    hadm_id: int | None
    kind: NoteKind
    category: str
    description: str
    charted: datetime
    text: str
    has_time: bool = True
    is_error: bool = False
    row_id: int | None = None


def notes_of(random: Random, subject: Subject, words: int, early: bool) -> list[Note]:
    """All notes of a patient in no order; `early` ones beside reports and radiology, where MIMIC-III has them."""
    notes = [note for stay in subject.stays for note in _of_stay(random, subject, stay, words, early)]
    if random.random() < NO_STAY:
        notes.append(_of_no_stay(random, subject.stays[-1]))
    random.shuffle(notes)
    return notes


def late_notes_of(random: Random, subject: Subject) -> Iterator[Note]:
    """Reports and addenda that give the outcome away: from three days after the discharge on, or after the next stay.

    Nobody has them at the discharge, so a model that reads them is wrong by as much as they tell.
    """
    ends = accumulate((stay.discharged for stay in subject.stays), max)
    begins = (*(stay.admitted for stay in subject.stays[1:]), None)
    for stay, end, begin in zip(subject.stays, ends, begins, strict=True):
        goes_on = begin is not None and begin <= end
        if goes_on or stay.prognosis is None or random.random() >= LATE:
            continue
        until = (begin or end + timedelta(days=30)) - timedelta(days=2)
        first = end + timedelta(days=3)
        if begin is None or (first < until and random.random() < 0.5):
            day = first + (until - first) * random.random()
        else:
            day = begin + timedelta(days=1)
        text = f"Addendum:\n{phrases.OUTCOMES[stay.prognosis.returns]}\n"
        note = _report(stay, day, text) if random.random() < 0.5 else _addendum(stay, day, text)
        yield replace(note, row_id=LATE_ROW_ID + stay.hadm_id)


def _of_stay(random: Random, subject: Subject, stay: Stay, words: int, early: bool) -> Iterator[Note]:
    if stay.kind == "donor":
        return
    if stay.kind == "newborn":
        yield from _of_newborn(random, stay)
        return
    # Who dies had conditions too, of which nothing came.
    present = (stay.prognosis or draw_prognosis(random)).present
    yield from _reports(random, subject, stay, sentences_about(random, present), words)
    if random.random() < RADIOLOGY:
        yield _radiology(random, stay)
    if early:
        yield from _care(random, stay, sentences_about(random, present))
        if random.random() < TRACING:
            yield _tracing(random, stay)


def _reports(random: Random, subject: Subject, stay: Stay, said: Sequence[str], words: int) -> Iterator[Note]:
    """One discharge report; or two, or one and an addendum, which then share what is said among them."""
    chance = random.random()
    shared = chance < SECOND_REPORT + ADDENDUM
    first, rest = (said[:-2], said[-2:]) if shared else (said, [])
    reported = stay.discharged + timedelta(hours=random.randint(0, 30))
    yield _report(stay, reported, summary(random, subject, stay, first, words))
    if chance < SECOND_REPORT:
        yield _report(stay, reported + timedelta(days=1), summary(random, subject, stay, rest, words))
    elif shared:
        day = reported + timedelta(days=-1 if random.random() < ADDENDUM_BEFORE else random.randint(0, 5))
        yield _addendum(stay, day, addendum(random, stay, rest))


def _report(stay: Stay, charted: datetime, text: str) -> Note:
    return Note(stay.hadm_id, "report", "Discharge summary", "Report", charted, text, has_time=False)


def _addendum(stay: Stay, charted: datetime, text: str) -> Note:
    return Note(stay.hadm_id, "addendum", "Discharge summary", "Addendum", charted, text, has_time=False)


def _care(random: Random, stay: Stay, said: Sequence[str]) -> Iterator[Note]:
    """Notes of nurses and physicians: those of the first day tell all that is said, among them."""
    days = (stay.discharged - stay.admitted) / timedelta(days=1)
    early = random.randint(1, 3)
    for number in range(early):
        hours = min(random.uniform(1, 22), days * 20)
        text = _care_text(random, stay, said[number::early], opening=number == 0)
        yield _care_note(random, stay, random.choice(TALKERS), hours, text)
    for _ in range(min(int(days), MOST_CARE_NOTES - early)):
        text = _care_text(random, stay, [], opening=False)
        yield _care_note(random, stay, random.choice(CARERS), random.uniform(0, 24 * days), text)
    if random.random() < ERROR:  # written into the chart of the wrong patient
        text = _care_text(random, stay, sentences_about(random, draw_prognosis(random).present), opening=True)
        yield _care_note(random, stay, "Nursing", random.uniform(1, 10), text, is_error=True)


def _care_note(random: Random, stay: Stay, category: str, hours: float, text: str, is_error: bool = False) -> Note:
    has_time = hours < 23 or random.random() >= NO_TIME
    charted = stay.admitted + timedelta(minutes=int(hours * 60))
    description = "Report" if category == "Nursing/other" else f"{category.strip()} Progress Note"
    return Note(stay.hadm_id, "care", category, description, charted, text, has_time, is_error)


def _care_text(random: Random, stay: Stay, said: Sequence[str], opening: bool) -> str:
    body = [*said, *filled(random, random.sample(phrases.NURSING, 2), stay.discharged), random.choice(phrases.OTHER)]
    random.shuffle(body)
    return f"{_opening(stay) if opening else ''}{vitals(random)}\n{prose(body)}\n"


def _opening(stay: Stay) -> str:
    """Why the patient came, how ill, and what else there is: what tells death, length and diagnoses early."""
    besides = ", ".join(each.name for each in stay.besides)
    return f"Admitted with {stay.problem.name}. {phrases.SEVERITY[stay.severity]}\nKnown besides: {besides}.\n"


def _radiology(random: Random, stay: Stay) -> Note:
    charted = stay.admitted + (stay.discharged - stay.admitted) * random.random()
    lines = filled(random, random.sample(phrases.RADIOLOGY, 3), charted)
    text = f"CHEST, PORTABLE\nREASON: {stay.problem.complaint}\nFINDINGS: {prose(lines)}\n"
    return Note(stay.hadm_id, "radiology", "Radiology", "CHEST (PORTABLE AP)", charted, text)


def _tracing(random: Random, stay: Stay) -> Note:
    category = random.choice(("ECG", "Echo"))
    text = prose(filled(random, phrases.ECG, stay.admitted)) + "\n"
    return Note(stay.hadm_id, "tracing", category, "Report", stay.admitted, text, has_time=False)


def _of_no_stay(random: Random, last: Stay) -> Note:
    """A note between stays, or one whose stay nobody wrote down."""
    charted = last.admitted + timedelta(hours=random.randint(-900, 900))
    text = prose(filled(random, random.sample(phrases.RADIOLOGY, 3), charted)) + "\n"
    return Note(None, "radiology", "Radiology", "CHEST (PA & LAT)", charted, text)


def _of_newborn(random: Random, stay: Stay) -> Iterator[Note]:
    lines = filled(random, random.sample(phrases.NEWBORN, 4), stay.discharged)
    yield _report(stay, stay.discharged, f"Newborn Care:\n{prose(lines)}\n")
    for _ in range(2):
        text = prose(filled(random, random.sample(phrases.NEWBORN, 2), stay.discharged)) + "\n"
        yield _care_note(random, stay, "Nursing/other", random.uniform(0, 24), text)
