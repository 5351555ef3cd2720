"""The notes of the synthetic hospital: which are written, when, by whom, and with which oddities of the real ones.

One must read who has what to know the risk. Numbers of statements and denials carry no information about it, for
harmless findings fill them up; a condition that is absent is sometimes denied, and relatives may have it. So words
counted without their order are misleading at times.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate, cycle, islice
from random import Random
from typing import Any

from pipelines.samples.grammar import Scope, grammar, load
from pipelines.samples.patients import Stay, Subject, chance, draw_prognosis

SUMMARY = "Discharge summary"
STATEMENTS, DENIALS = 4, 3
AUTHORS = ("Nursing", "Nursing/other", "Physician ", "Respiratory ", "Case Management ", "General")
"""Categories of care notes, with blanks as in the real tables. Early ones of the first three state the conditions."""
MOST_CARE_NOTES = 7
LATE_ROW_ID = 10_000_000_000  # above all others, so that late notes change no number of another row
ESSENTIAL_WORDS, WORDS_OF_FILLING = 160, 8.3
SPREAD = 0.25  # standard deviation of the filling, relative to it
SPOKEN = ("presenting", "social", "course", "condition")  # the sections that state the patient's conditions
LINE = 76
MASK = re.compile(r"\[\*\*[^*]*\*\*\]")


@dataclass(frozen=True)
class HospitalNote:
    """One note; without a stay, `hadm_id` is None, and without `has_time` its table knows only the day."""

    hadm_id: int | None
    kind: str  # report, addendum, radiology, tracing or care
    category: str
    description: str
    charted: datetime
    text: str
    has_time: bool = True
    is_error: bool = False
    row_id: int | None = None  # None for the number of its row in its table


def wordings(name: str) -> Any:
    """The findings, statements or sentences of this name in `data/hospital.toml`."""
    return load("hospital")["wordings"][name]


def notes_of(random: Random, subject: Subject, words: int, early: bool) -> list[HospitalNote]:
    """All notes of a patient in no order; `early` ones beside reports and radiology, where MIMIC-III has them."""
    notes = [note for stay in subject.stays for note in _of_stay(random, subject, stay, words, early)]
    if random.random() < chance("no_stay"):  # between stays, or of a stay that nobody wrote down
        charted = subject.stays[-1].admitted + timedelta(hours=random.randint(-900, 900))
        text = _sampled(random, "radiology", 3, charted)
        notes.append(HospitalNote(None, "radiology", "Radiology", "CHEST (PA & LAT)", charted, f"{text}\n"))
    random.shuffle(notes)
    return notes


def late_notes_of(random: Random, subject: Subject) -> Iterator[HospitalNote]:
    """Reports and addenda that give the outcome away: from three days after the discharge on, or after the next stay.

    Nobody has them at the discharge, so a model that reads them scores better than it can in use.
    """
    ends = accumulate((stay.discharged for stay in subject.stays), max)
    begins = (*(stay.admitted for stay in subject.stays[1:]), None)
    for stay, end, begin in zip(subject.stays, ends, begins, strict=True):
        overlaps = begin is not None and begin <= end
        if overlaps or stay.prognosis is None or random.random() >= chance("late"):
            continue
        until = (begin or end + timedelta(days=30)) - timedelta(days=2)
        first = end + timedelta(days=3)
        if begin is None or (first < until and random.random() < 0.5):
            day = first + (until - first) * random.random()
        else:
            day = begin + timedelta(days=1)
        text = f"Addendum:\n{wordings('returned' if stay.prognosis.returns else 'stayed_away')}\n"
        note = _report(stay, day, text, "report" if random.random() < 0.5 else "addendum")
        yield replace(note, row_id=LATE_ROW_ID + stay.hadm_id)


def _of_stay(random: Random, subject: Subject, stay: Stay, words: int, early: bool) -> Iterator[HospitalNote]:
    if stay.kind == "donor":
        return
    if stay.kind == "newborn":
        yield _report(stay, stay.discharged, f"Newborn Care:\n{_sampled(random, 'newborn', 4, stay.discharged)}\n")
        for _ in range(2):
            text = _sampled(random, "newborn", 2, stay.discharged)
            yield _care_note(random, stay, "Nursing/other", random.uniform(0, 24), f"{text}\n")
        return
    # Who dies had conditions too, of which nothing came.
    present = (stay.prognosis or draw_prognosis(random)).present
    yield from _reports(random, subject, stay, statements(random, present), words)
    if random.random() < chance("radiology"):
        charted = stay.admitted + (stay.discharged - stay.admitted) * random.random()
        findings = _sampled(random, "radiology", 3, charted)
        text = f"CHEST, PORTABLE\nREASON: {stay.problem['complaint']}\nFINDINGS: {findings}\n"
        yield HospitalNote(stay.hadm_id, "radiology", "Radiology", "CHEST (PORTABLE AP)", charted, text)
    if early:
        yield from _care(random, stay, statements(random, present))
        if random.random() < chance("tracing"):
            category = random.choice(("ECG", "Echo"))
            text = prose(_filled(random, wordings("ecg"), stay.admitted))
            yield HospitalNote(stay.hadm_id, "tracing", category, "Report", stay.admitted, f"{text}\n", has_time=False)


def _reports(random: Random, subject: Subject, stay: Stay, stated: Sequence[str], words: int) -> Iterator[HospitalNote]:
    """One discharge report; or two, or one and an addendum, which then share the statements among them."""
    drawn, second = random.random(), chance("second_report")
    shared = drawn < second + chance("addendum")
    first, rest = (stated[:-2], stated[-2:]) if shared else (stated, [])
    reported = stay.discharged + timedelta(hours=random.randint(0, 30))
    yield _report(stay, reported, _summary(random, subject, stay, first, words))
    if drawn < second:
        yield _report(stay, reported + timedelta(days=1), _summary(random, subject, stay, rest, words))
    elif shared:
        day = reported + timedelta(days=-1 if random.random() < chance("addendum_before") else random.randint(0, 5))
        begin, end = wordings("addendum")
        text = prose(_filled(random, [begin, *rest, end], stay.discharged))
        yield _report(stay, day, f"Addendum:\n{text}\n", "addendum")


def _report(stay: Stay, charted: datetime, text: str, kind: str = "report") -> HospitalNote:
    return HospitalNote(stay.hadm_id, kind, SUMMARY, kind.capitalize(), charted, text, has_time=False)


def _care(random: Random, stay: Stay, stated: Sequence[str]) -> Iterator[HospitalNote]:
    """Notes of nurses and physicians: those of the first day share all statements among them."""
    days = (stay.discharged - stay.admitted) / timedelta(days=1)
    early = random.randint(1, 3)
    for number in range(early):
        hours = min(random.uniform(1, 22), days * 20)
        text = _care_text(random, stay, stated[number::early], opening=number == 0)
        yield _care_note(random, stay, random.choice(AUTHORS[:3]), hours, text)
    for _ in range(min(int(days), MOST_CARE_NOTES - early)):
        text = _care_text(random, stay)
        yield _care_note(random, stay, random.choice(AUTHORS), random.uniform(0, 24 * days), text)
    if random.random() < chance("error"):  # written into the chart of the wrong patient
        text = _care_text(random, stay, statements(random, draw_prognosis(random).present), opening=True)
        yield replace(_care_note(random, stay, "Nursing", random.uniform(1, 10), text), is_error=True)


def _care_note(random: Random, stay: Stay, category: str, hours: float, text: str) -> HospitalNote:
    has_time = hours < 23 or random.random() >= chance("no_time")
    charted = stay.admitted + timedelta(minutes=int(hours * 60))
    description = "Report" if category == "Nursing/other" else f"{category.strip()} Progress Note"
    return HospitalNote(stay.hadm_id, "care", category, description, charted, text, has_time)


def _care_text(random: Random, stay: Stay, stated: Sequence[str] = (), opening: bool = False) -> str:
    """A care note; its `opening` states why the patient came, how ill, and each diagnosis."""
    nursing = _filled(random, random.sample(wordings("nursing"), 2), stay.discharged)
    body = [*stated, *nursing, random.choice(wordings("other"))]
    random.shuffle(body)
    besides, severity = ", ".join(each["name"] for each in stay.besides), wordings("severity")[stay.severity]
    admitted = f"Admitted with {stay.problem['name']}. {severity}\nKnown besides: {besides}.\n"
    return f"{admitted if opening else ''}{_filled(random, ['{vitals}'], stay.discharged)[0]}\n{prose(body)}\n"


def statements(random: Random, present: Sequence[bool]) -> list[str]:
    """All that is written of the patient's conditions, in any order; every present one is stated."""
    harmless = cycle(random.sample(wordings("harmless"), len(wordings("harmless"))))
    conditions = list(zip(wordings("conditions"), present, strict=True))
    there = [random.choice(condition) for condition, is_present in conditions if is_present]
    there += [next(harmless) for _ in range(STATEMENTS - len(there))]
    absent = [condition for condition, is_present in conditions if not is_present]
    random.shuffle(absent)
    denied = [
        random.choice(absent.pop()) if absent and random.random() < chance("denied") else next(harmless)
        for _ in range(DENIALS)
    ]
    random.shuffle(there)
    sentences = []
    if random.random() < chance("mixed"):
        sentences.append(wordings("mixed").format(there.pop(), denied.pop()))
    sentences += [random.choice(wordings("asserted")).format(finding) for finding in there]
    sentences += [random.choice(wordings("negated")).format(finding) for finding in denied]
    random.shuffle(sentences)
    return sentences


def statement_of_a_relative(random: Random) -> str:
    """A disease of someone of the family, which carries no information about the patient."""
    condition, sentence = random.choice(wordings("conditions")), random.choice(wordings("of_relatives"))
    stated: str = sentence.format(random.choice(condition))
    return stated


def _summary(random: Random, subject: Subject, stay: Stay, stated: Sequence[str], words: int) -> str:
    """A discharge summary of about `words` words, with the sentences of `stated` spread over its sections."""
    parts: dict[str, list[str]] = {}
    for sentence in stated:
        parts.setdefault(random.choice(SPOKEN), []).append(sentence)
    # What means nothing for the risk fills the sections; no sentence repeats before all were used.
    shares, wanted = load("hospital")["shares"], max(words - ESSENTIAL_WORDS, 0) / WORDS_OF_FILLING
    count = max(round(random.gauss(wanted, SPREAD * wanted)), 0)
    lengths = Counter(random.choices(tuple(shares), tuple(shares.values()), k=count))
    orders = {name: random.sample(wordings(name), len(wordings(name))) for name in lengths}
    for name, length in lengths.items():
        lines = _filled(random, islice(cycle(orders[name]), length), stay.discharged)
        mixed = [*parts.get(name, ()), *lines]
        parts[name] = random.sample(mixed, len(mixed)) if name in parts else lines
    is_brief = words < ESSENTIAL_WORDS
    sections = list(_sections(random, stay, parts, is_brief))
    if not is_brief:
        service = "SURGERY" if stay.kind == "planned" else "MEDICINE"
        features: dict[str, Any] = {"sex": subject.sex, "service": service}
        features |= {"admitted": date_mask(stay.admitted), "discharged": date_mask(stay.discharged)}
        sections.insert(0, Scope(grammar("hospital"), random, features).fill("{head}"))
    return "\n\n".join(sections) + "\n"


def _sections(random: Random, stay: Stay, parts: dict[str, list[str]], is_brief: bool) -> Iterator[str]:
    """The sections in their order, each with its header, without empty ones."""
    problem = stay.problem
    home, away = (" ", "x") if stay.severity == 2 or stay.died else ("x", " ")
    lines = parts | {
        "complaint": [problem["complaint"]],
        "severity": [wordings("severity")[stay.severity]],
        "warning": [wordings("warning").format(random.choice(random.choice(wordings("conditions"))))],
        "relatives": [statement_of_a_relative(random)],
        "vitals": _filled(random, ["{vitals}"], stay.discharged),
        "finding": [problem["finding"]],
        "treatment": [problem["treatment"]],
        "disposition": ["Expired" if stay.died else f"[{home}] Home  [{away}] Extended care"],
        "diagnosis": [problem["name"].capitalize()],
    }
    if stay.died:
        lines |= {"warning": [], "instructions": []}
    for section in load("hospital")["sections"]:
        listed = [line for name in section["parts"] for line in lines.get(name, ())]
        if section["layout"] == "numbered":
            listed = [f"{number}. {line}" for number, line in enumerate(listed, start=1)]
        if listed and (section.get("brief") or not is_brief):
            text = prose(listed) if section["layout"] == "prose" else "\n".join(listed)
            yield f"{section['header']}:\n{text}"


def _sampled(random: Random, name: str, count: int, day: datetime) -> str:
    return prose(_filled(random, random.sample(wordings(name), count), day))


def _filled(random: Random, templates: Iterable[str], day: datetime) -> list[str]:
    """`templates` with dates shortly before `day`, names and numbers in them, masked as in MIMIC-III."""
    draws = {"date": lambda: date_mask(day - timedelta(days=random.randrange(20)))}
    return [*map(Scope(grammar("hospital"), random, {}, draws).fill, templates)]


def date_mask(day: datetime) -> str:
    return f"[**{day.year}-{day.month}-{day.day}**]"


def prose(sentences: Sequence[str]) -> str:
    """A paragraph, its lines broken where they are full."""
    text = " ".join(sentences)
    lines, start = [], 0
    while len(text) - start > LINE:
        end = text.rindex(" ", start, start + LINE)
        lines.append(text[start:end])
        start = end + 1
    return "\n".join((*lines, text[start:]))
