"""The patients of the synthetic hospital: who comes when, why, for how long, and with which risk of return.

Four conditions raise the risk, and nothing else does. Whether a patient returns is drawn from it, so the best AUROC
that anyone can reach is a matter of arithmetic. The oddities of the real tables never bend the risk: what is dropped,
joined or counted in another way is chosen without regard to whether the patient returns.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import exp
from random import Random
from typing import NamedTuple

from pipelines.samples.grammar import load

WEIGHTS = (2.1, 2.2, 2.3, 2.4)  # what each condition adds to the log-odds of an unplanned return within 30 days
INTERCEPT = -4.4
SHARE = 0.35  # of stays that a condition is present in, whatever the others

FIRST_YEAR = 2105
DAY_MINUTES = 24 * 60
WINDOW = timedelta(days=30)
MOST_STAYS = 20
MOST_DIAGNOSES = 4
STAYS_OF_IDS = 64
ID_PRIME, ID_STEP = 2**31 - 1, 950_706_376
"""Stay n is number n · step modulo a prime: no two are the same, and a number does not reveal the order of stays."""
DEATHS = (0.02, 0.05, 0.15)  # in hospital, by how ill the patient came


def chance(name: str) -> float:
    """A probability from `data/hospital.toml`."""
    probability: float = load("hospital")["chances"][name]
    return probability


class Prognosis(NamedTuple):
    """The conditions that a patient leaves with, the risk that follows from them, and the outcome."""

    present: tuple[bool, ...]
    risk: float
    returns: bool


def draw_prognosis(random: Random) -> Prognosis:
    """A patient's conditions, and a return drawn from their risk."""
    present = tuple(random.random() < SHARE for _ in WEIGHTS)
    return Prognosis(present, risk_of(present), random.random() < risk_of(present))


def risk_of(present: tuple[bool, ...]) -> float:
    """The probability of an unplanned return within 30 days."""
    log_odds = INTERCEPT + sum(weight for weight, is_present in zip(WEIGHTS, present, strict=True) if is_present)
    return 1 / (1 + exp(-log_odds))


@dataclass(frozen=True)
class Stay:
    """One admission.

    kind: unplanned, planned, observation, newborn or donor.
    prognosis: None where no return is foreseen: a newborn, a death, a donor.
    severity: 0 to 2, how ill the patient came; it affects death and length, and not the risk of return.
    problem, besides: diagnoses of `data/hospital.toml`; those besides affect nothing.
    """

    hadm_id: int
    kind: str
    admitted: datetime
    discharged: datetime
    problem: dict[str, str]
    severity: int
    prognosis: Prognosis | None
    died: bool = False
    transferred: bool = False
    besides: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True)
class Subject:
    """A patient with all stays, in the order of admission. `born` is the true day of birth, whatever a table has."""

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
    random, others = Random(f"{seed} {number}"), Random(f"{seed} {number} besides")
    start = datetime(FIRST_YEAR, 1, 1) + timedelta(minutes=random.randrange(80 * 365 * DAY_MINUTES))
    data, is_newborn = load("hospital"), random.random() < chance("newborn")
    if is_newborn:
        end = start + timedelta(minutes=random.randint(DAY_MINUTES, 9 * DAY_MINUTES))
        drawn = [Stay(_hadm_id(number, 0), "newborn", start, end, random.choice(data["problems"]), 0, None)]
    else:
        drawn = list(_stays(random, number, start))
    stays = tuple(
        replace(stay, besides=tuple(others.sample(data["diagnoses"], others.randint(1, MOST_DIAGNOSES))))
        for stay in drawn
    )
    years = random.uniform(90, 99) if random.random() < chance("over_89") else random.uniform(19, 89)
    born = stays[0].admitted if is_newborn else start - timedelta(days=years * 365.25)
    return Subject(10_000 + number, random.choice("FM"), born, _death(random, stays), stays), random


def _stays(random: Random, number: int, start: datetime) -> Iterator[Stay]:
    """Stays until one is not followed by another; each return is the outcome of the prognosis before it."""
    ids = (_hadm_id(number, order) for order in range(STAYS_OF_IDS))
    kind: str = "planned" if random.random() < chance("first_is_planned") else _unplanned(random)
    for order in range(MOST_STAYS):
        prognosis = draw_prognosis(random)
        stay = _stay(random, next(ids), kind, start, prognosis)
        if order == MOST_STAYS - 1 or random.random() < DEATHS[stay.severity]:
            yield from _last(random, stay, ids)
            return
        yield from _parts(random, stay, ids)
        start = _next_start(random, stay.discharged, prognosis.returns)
        if random.random() < chance("planned_between"):
            between = _between(random, next(ids), stay, start)
            yield between
            start = start if prognosis.returns else _next_start(random, between.discharged, False)
        if not prognosis.returns and random.random() >= chance("seen_later"):
            return
        kind = "unplanned" if prognosis.returns else _unplanned(random)


def _hadm_id(number: int, order: int) -> int:
    return (STAYS_OF_IDS * (number + 1) + order) * ID_STEP % ID_PRIME


def _unplanned(random: Random) -> str:
    """The kind of a stay that is no return: one for observation may be counted or not."""
    return "observation" if random.random() < chance("observed") else "unplanned"


def _stay(random: Random, hadm_id: int, kind: str, start: datetime, prognosis: Prognosis) -> Stay:
    severity = random.choices((0, 1, 2), (5, 3, 2))[0]
    days = min(random.lognormvariate(0.9 + 0.35 * severity, 0.6), 40)
    end = start + timedelta(minutes=max(int(days * DAY_MINUTES), 600))
    return Stay(hadm_id, kind, start, end, random.choice(load("hospital")["problems"]), severity, prognosis)


def _next_start(random: Random, discharged: datetime, returns: bool) -> datetime:
    if not returns:
        return discharged + WINDOW + timedelta(minutes=1 + int(random.expovariate(1 / (120 * DAY_MINUTES))))
    drawn, exactly = random.random(), chance("exactly_the_window")
    if drawn < exactly:
        return discharged + WINDOW
    if drawn < exactly + chance("same_day") and discharged.hour < 20:
        return discharged.replace(hour=23, minute=random.randrange(60))
    return discharged + timedelta(minutes=random.randint(DAY_MINUTES, 30 * DAY_MINUTES - 1))


def _between(random: Random, hadm_id: int, before: Stay, following: datetime) -> Stay:
    """A planned stay between `before` and the next unplanned one, which then is the return from both or from neither.

    Its conditions are drawn given that outcome, and it is as likely after either, so its risk is a true one too.
    """
    gap = following - before.discharged
    admitted = _whole_minutes(before.discharged + gap * random.uniform(0.2, 0.5))
    while (prognosis := draw_prognosis(random)).returns != (before.prognosis is not None and before.prognosis.returns):
        pass
    stay = _stay(random, hadm_id, "planned", admitted, prognosis)
    return replace(stay, discharged=_whole_minutes(min(stay.discharged, admitted + gap * 0.4)))


def _parts(random: Random, stay: Stay, ids: Iterator[int]) -> tuple[Stay, ...]:
    """`stay` as it is, or in two admissions that touch (a transfer), overlap, or lie one inside the other."""
    drawn = random.random()
    if stay.kind != "unplanned" or drawn >= chance("transferred") + chance("overlapping"):
        return (stay,)
    length = stay.discharged - stay.admitted
    middle = _whole_minutes(stay.admitted + length * random.uniform(0.3, 0.7))
    second = replace(stay, hadm_id=next(ids), admitted=middle)
    if drawn < chance("transferred"):
        return replace(stay, discharged=middle, transferred=True), second
    end = _whole_minutes(middle + length * 0.1)
    return (replace(stay, discharged=end), second) if random.random() < 0.7 else (stay, replace(second, discharged=end))


def _last(random: Random, stay: Stay, ids: Iterator[int]) -> Iterator[Stay]:
    """A stay that ends in death, sometimes with the account of an organ donor after it."""
    dead = replace(stay, died=True, prognosis=None)
    yield dead
    if random.random() < chance("donors"):
        begin = dead.discharged + timedelta(minutes=random.randint(0, 60))
        # Accounts are opened when all is over: about half of them end before they begin.
        end = begin + timedelta(minutes=random.randint(-600, 600))
        yield replace(dead, hadm_id=next(ids), kind="donor", admitted=begin, discharged=end)


def _death(random: Random, stays: tuple[Stay, ...]) -> datetime | None:
    """The time of death, if the tables record it; a death at home is the end of no stay."""
    drawn, end = random.random(), max(stay.discharged for stay in stays)
    if stays[-1].died:
        return next(stay.discharged for stay in stays if stay.died)
    if drawn < chance("dies_soon"):
        return end + timedelta(days=random.uniform(1, 29))
    if drawn < chance("dies_soon") + chance("dies_later"):
        return end + timedelta(days=random.uniform(31, 2000))
    return None


def _whole_minutes(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)
