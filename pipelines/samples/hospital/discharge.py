"""Discharge summaries: sections with headers, lists, check boxes, and what is said of the patient spread over them."""

from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice
from random import Random

from pipelines.samples.hospital import phrases
from pipelines.samples.hospital.facts import any_condition, sentences_about_relatives
from pipelines.samples.hospital.stays import Stay, Subject
from pipelines.samples.hospital.wording import date_mark, filled, numbered, prose, vitals

ESSENTIAL_WORDS = 160
WORDS_OF_FILLING = 8.3
SPREAD = 0.25
"""Standard deviation of the filling, relative to it."""

FILLINGS = {
    "presenting": phrases.PRESENTING,
    "past": phrases.PAST,
    "social": phrases.SOCIAL,
    "examined": phrases.EXAMINED,
    "labs": phrases.LABS,
    "course": phrases.COURSE,
    "medications": phrases.MEDICATIONS,
    "instructions": phrases.INSTRUCTIONS,
}
SHARES = (4, 2, 1, 2, 3, 6, 4, 2)
"""How much of the filling goes to each."""
BRIEF = (
    "History of Present Illness",
    "Social History",
    "Family History",
    "Brief Hospital Course",
    "Discharge Condition",
)
"""The sections of a report that is to be shorter than all that is essential: those that speak of conditions."""
SPOKEN = ("presenting", "social", "course", "condition")
"""Where the patient's conditions are spoken of."""


def summary(random: Random, subject: Subject, stay: Stay, said: Sequence[str], words: int) -> str:
    """A discharge summary of about `words` words that says what is in `said`."""
    parts = _dealt(random, said)
    for name, templates in _filling(random, words).items():
        lines = filled(random, templates, stay.discharged)
        parts[name] = _mixed(random, parts.get(name, []), lines)
    sections = _sections(random, stay, parts)
    if words < ESSENTIAL_WORDS:
        return "\n\n".join(_section(header, text) for header, text in sections if header in BRIEF) + "\n"
    return "\n\n".join((_head(random, subject, stay), *(_section(*each) for each in sections))) + "\n"


def addendum(random: Random, stay: Stay, said: Sequence[str]) -> str:
    """What was found out after the report was written."""
    lines = filled(random, ["Dictated on {date} after the report.", *said, "Signed by Dr. {name}."], stay.discharged)
    return f"Addendum:\n{prose(lines)}\n"


def _dealt(random: Random, said: Sequence[str]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    for sentence in said:
        parts.setdefault(random.choice(SPOKEN), []).append(sentence)
    return parts


def _filling(random: Random, words: int) -> dict[str, list[str]]:
    """Which sentences without meaning for the risk stand in which section; none again before all were said."""
    wanted = max(words - ESSENTIAL_WORDS, 0) / WORDS_OF_FILLING
    count = max(round(random.gauss(wanted, SPREAD * wanted)), 0)
    lengths = Counter(random.choices(tuple(FILLINGS), SHARES, k=count))
    return {name: list(islice(cycle(_shuffled(random, FILLINGS[name])), length)) for name, length in lengths.items()}


def _shuffled(random: Random, sentences: Sequence[str]) -> list[str]:
    return random.sample(sentences, len(sentences))


def _mixed(random: Random, said: list[str], filling: list[str]) -> list[str]:
    return _shuffled(random, [*said, *filling]) if said else filling


def _head(random: Random, subject: Subject, stay: Stay) -> str:
    return (
        f"Admission Date:  {date_mark(stay.admitted)}              Discharge Date:   {date_mark(stay.discharged)}\n\n"
        f"Name:  [**Known lastname {random.randrange(9999)}**]             Sex:   {subject.sex}\n\n"
        f"Service: {'SURGERY' if stay.kind == 'planned' else 'MEDICINE'}"
    )


def _sections(random: Random, stay: Stay, parts: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Headers and texts in their order, sections without a word left out."""
    problem = stay.problem
    warning = phrases.WARNING.format(any_condition(random))
    home, away = (" ", "x") if stay.severity == 2 or stay.died else ("x", " ")
    written = (
        ("Chief Complaint", problem.complaint),
        ("History of Present Illness", prose([phrases.SEVERITY[stay.severity], *parts.get("presenting", [])])),
        ("Past Medical History", numbered(parts.get("past", []))),
        ("Social History", prose(parts.get("social", []))),
        ("Family History", prose(sentences_about_relatives(random))),
        ("Physical Exam", "\n".join((vitals(random), problem.finding, *parts.get("examined", [])))),
        ("Pertinent Results", "\n".join(parts.get("labs", []))),
        ("Brief Hospital Course", prose([problem.treatment, *parts.get("course", [])])),
        ("Discharge Medications", numbered(parts.get("medications", []))),
        ("Discharge Disposition", "Expired" if stay.died else f"[{home}] Home  [{away}] Extended care"),
        ("Discharge Diagnosis", problem.name.capitalize()),
        ("Discharge Condition", prose(parts.get("condition", []))),
        ("Discharge Instructions", "" if stay.died else prose([warning, *parts.get("instructions", [])])),
    )
    return [(header, text) for header, text in written if text]


def _section(header: str, text: str) -> str:
    return f"{header}:\n{text}"
