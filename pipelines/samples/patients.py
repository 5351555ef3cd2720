"""The patients of the made-up hospital: who comes when, why, for how long, and with which risk of return.

Four conditions raise the risk, and nothing else does. Whether a patient returns is drawn from it, so the best AUROC
that anyone can reach is a matter of arithmetic. The oddities of the real tables never bend the risk: what is dropped,
joined or counted in another way is chosen without regard to whether the patient returns.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from math import exp
from random import Random
from typing import Literal, NamedTuple

from pipelines.samples.templates import load

WEIGHTS = (2.1, 2.2, 2.3, 2.4)
"""What each condition adds to the log-odds of an unplanned return within 30 days."""
INTERCEPT = -4.4
SHARE = 0.35
"""Of stays that a condition is present in; the conditions are independent of each other."""

Kind = Literal["unplanned", "planned", "observation", "newborn", "donor"]

FIRST_YEAR = 2105
WINDOW = timedelta(days=30)
MOST_STAYS = 20
MOST_DIAGNOSES = 4
STAYS_OF_IDS = 64
ID_PRIME = 2**31 - 1
ID_STEP = 950_706_376
"""Stay n is number n · step modulo a prime: no two are the same, and a number does not reveal the order of stays."""

NEWBORN = 0.08
OVER_89 = 0.05
FIRST_IS_PLANNED = 0.15
PLANNED_BETWEEN = 0.10
SEEN_LATER = 0.30
"""Of patients who do not return in time, those who are seen again later."""
OBSERVED = 0.10
EXACTLY_THE_WINDOW = 0.02
SAME_DAY = 0.05
TRANSFERRED, OVERLAPPING = 0.04, 0.03
DEATHS = (0.02, 0.05, 0.15)
"""In hospital, by how ill the patient came."""
DONORS = 0.08
DIES_SOON, DIES_LATER = 0.05, 0.10
"""After the last stay: within the window, and some time after it."""


class Prognosis(NamedTuple):
    """Which conditions a patient leaves with, the risk that follows from them, and the outcome."""

    present: tuple[bool, ...]
    risk: float
    returns: bool


def draw_prognosis(random: Random) -> Prognosis:
    """A patient's conditions, and a return drawn from their risk."""
    present = tuple(random.random() < SHARE for _ in WEIGHTS)
    risk = risk_of(present)
    return Prognosis(present, risk, random.random() < risk)


def draw_given(random: Random, returns: bool) -> Prognosis:
    """A patient's conditions, given whether the patient returns: the risk is as true as it is for all."""
    while True:
        drawn = draw_prognosis(random)
        if drawn.returns == returns:
            return drawn


def risk_of(present: tuple[bool, ...]) -> float:
    """The probability of an unplanned return within 30 days."""
    log_odds = INTERCEPT + sum(weight for weight, is_present in zip(WEIGHTS, present, strict=True) if is_present)
    return 1 / (1 + exp(-log_odds))


class Diagnosis(NamedTuple):
    """In words, and as ICD-9 and ICD-10 codes, which are text: some begin with zeros.

    complaint, finding, treatment: of why a patient comes, what the patient, the examination and the report say.
    """

    name: str
    icd9: str
    icd10: str
    complaint: str = ""
    finding: str = ""
    treatment: str = ""


@cache
def problems() -> tuple[Diagnosis, ...]:
    """Why patients come."""
    return tuple(Diagnosis(**row) for row in load("hospital")["problems"])


@cache
def other_diagnoses() -> tuple[Diagnosis, ...]:
    """What patients have besides."""
    return tuple(Diagnosis(**row) for row in load("hospital")["diagnoses"])


@dataclass(frozen=True)
class Stay:
    """One admission.

    prognosis: None where nobody is to come back: a newborn, a death, a donor.
    severity: 0 to 2, how ill the patient came; it affects death and length, and not the risk of return.
    besides: other diagnoses, which affect nothing.
    """

    hadm_id: int
    kind: Kind
    admitted: datetime
    discharged: datetime
    problem: Diagnosis
    severity: int
    prognosis: Prognosis | None
    died: bool = False
    transferred: bool = False
    besides: tuple[Diagnosis, ...] = ()


@dataclass(frozen=True)
class Subject:
    """A patient with all stays, in the order of admission. `born` is the true day of birth, whatever a table says."""

    subject_id: int
    sex: str
    born: datetime
    died: datetime | None
    stays: tuple[Stay, ...]

    @property
    def age(self) -> int:
        """In years, at the first stay."""
        return int((self.stays[0].admitted - self.born).days / 365.25)


def draw_subject(seed: int, number: int) -> tuple[Subject, Random]:
    """Patient `number` of the hospital, and the generator for what is written of this one."""
    random = Random(f"{seed} {number}")
    start = datetime(FIRST_YEAR, 1, 1) + timedelta(minutes=random.randrange(80 * 365 * 24 * 60))
    is_newborn = random.random() < NEWBORN
    stays = (_newborn(random, number, start),) if is_newborn else tuple(_stays(random, number, start))
    others = Random(f"{seed} {number} besides")
    stays = tuple(
        replace(stay, besides=tuple(others.sample(other_diagnoses(), others.randint(1, MOST_DIAGNOSES))))
        for stay in stays
    )
    years = random.uniform(90, 99) if random.random() < OVER_89 else random.uniform(19, 89)
    born = stays[0].admitted if is_newborn else start - timedelta(days=years * 365.25)
    return Subject(10_000 + number, random.choice("FM"), born, _death(random, stays), stays), random


def _newborn(random: Random, number: int, start: datetime) -> Stay:
    discharged = start + timedelta(minutes=random.randint(1 * 1440, 9 * 1440))
    return Stay(_hadm_id(number, 0), "newborn", start, discharged, random.choice(problems()), 0, None)


def _stays(random: Random, number: int, start: datetime) -> Iterator[Stay]:
    """Stays until one is not followed by another; each return is the outcome of the prognosis before it."""
    ids = (_hadm_id(number, order) for order in range(STAYS_OF_IDS))
    kind: Kind = "planned" if random.random() < FIRST_IS_PLANNED else _unplanned(random)
    for order in range(MOST_STAYS):
        prognosis = draw_prognosis(random)
        stay = _stay(random, next(ids), kind, start, prognosis)
        if order == MOST_STAYS - 1 or random.random() < DEATHS[stay.severity]:
            yield from _last(random, stay, ids)
            return
        yield from _parts(random, stay, ids)
        start = _next_start(random, stay.discharged, prognosis.returns)
        if random.random() < PLANNED_BETWEEN:
            between = _between(random, next(ids), stay, start)
            yield between
            start = start if prognosis.returns else _next_start(random, between.discharged, False)
        if not prognosis.returns and random.random() >= SEEN_LATER:
            return
        kind = "unplanned" if prognosis.returns else _unplanned(random)


def _hadm_id(number: int, order: int) -> int:
    return (STAYS_OF_IDS * (number + 1) + order) * ID_STEP % ID_PRIME


def _unplanned(random: Random) -> Kind:
    """Of a stay that is no return: one for observation may then be counted or not."""
    return "observation" if random.random() < OBSERVED else "unplanned"


def _stay(random: Random, hadm_id: int, kind: Kind, start: datetime, prognosis: Prognosis) -> Stay:
    severity = random.choices((0, 1, 2), (5, 3, 2))[0]
    days = min(random.lognormvariate(0.9 + 0.35 * severity, 0.6), 40)
    end = start + timedelta(minutes=max(int(days * 1440), 600))
    return Stay(hadm_id, kind, start, end, random.choice(problems()), severity, prognosis)


def _next_start(random: Random, discharged: datetime, returns: bool) -> datetime:
    if not returns:
        return discharged + WINDOW + timedelta(minutes=1 + int(random.expovariate(1 / (120 * 1440))))
    chance = random.random()
    if chance < EXACTLY_THE_WINDOW:
        return discharged + WINDOW
    if chance < EXACTLY_THE_WINDOW + SAME_DAY and discharged.hour < 20:
        return discharged.replace(hour=23, minute=random.randrange(60))
    return discharged + timedelta(minutes=random.randint(1440, 30 * 1440 - 1))


def _between(random: Random, hadm_id: int, before: Stay, following: datetime) -> Stay:
    """A planned stay between `before` and the next unplanned one, which then is the return from both or from neither.

    Its conditions are drawn given that outcome, and it is as likely after either, so its risk is a true one too.
    """
    gap = following - before.discharged
    admitted = _whole_minutes(before.discharged + gap * random.uniform(0.2, 0.5))
    prognosis = draw_given(random, before.prognosis is not None and before.prognosis.returns)
    stay = _stay(random, hadm_id, "planned", admitted, prognosis)
    return replace(stay, discharged=_whole_minutes(min(stay.discharged, admitted + gap * 0.4)))


def _parts(random: Random, stay: Stay, ids: Iterator[int]) -> Iterator[Stay]:
    """`stay` as it is, or in two admissions that touch (a transfer), overlap, or lie one inside the other."""
    chance = random.random()
    if stay.kind != "unplanned" or chance >= TRANSFERRED + OVERLAPPING:
        yield stay
        return
    length = stay.discharged - stay.admitted
    middle = _whole_minutes(stay.admitted + length * random.uniform(0.3, 0.7))
    if chance < TRANSFERRED:
        yield replace(stay, discharged=middle, transferred=True)
        yield replace(stay, hadm_id=next(ids), admitted=middle)
    elif random.random() < 0.7:
        yield replace(stay, discharged=_whole_minutes(middle + length * 0.1))
        yield replace(stay, hadm_id=next(ids), admitted=middle)
    else:
        yield stay
        yield replace(stay, hadm_id=next(ids), admitted=middle, discharged=_whole_minutes(middle + length * 0.1))


def _last(random: Random, stay: Stay, ids: Iterator[int]) -> Iterator[Stay]:
    """A stay that ends in death, sometimes with the account of an organ donor after it."""
    dead = replace(stay, died=True, prognosis=None)
    yield dead
    if random.random() < DONORS:
        admitted = dead.discharged + timedelta(minutes=random.randint(0, 60))
        # Accounts are opened when all is over: about half of them end before they begin.
        discharged = admitted + timedelta(minutes=random.randint(-600, 600))
        yield replace(dead, hadm_id=next(ids), kind="donor", admitted=admitted, discharged=discharged)


def _death(random: Random, stays: tuple[Stay, ...]) -> datetime | None:
    """When the patient dies, if the tables record it; a death at home is the end of no stay."""
    chance = random.random()
    last = stays[-1]
    if last.died:
        return next(stay.discharged for stay in stays if stay.died)
    if chance < DIES_SOON:
        return max(stay.discharged for stay in stays) + timedelta(days=random.uniform(1, 29))
    if chance < DIES_SOON + DIES_LATER:
        return max(stay.discharged for stay in stays) + timedelta(days=random.uniform(31, 2000))
    return None


def _whole_minutes(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)
