"""How a patient's conditions are put into sentences, so that one must read who has what to know the risk.

Numbers of statements and denials say nothing of the risk, for harmless findings fill them up; a condition that is
absent is sometimes denied, and relatives may have it. So words counted without their order are fooled at times.
"""

from collections.abc import Sequence
from itertools import cycle
from random import Random

from pipelines.samples.hospital.phrases import ASSERTED, CONDITIONS, HARMLESS, MIXED, NEGATED, OF_RELATIVES

STATEMENTS, DENIALS, RELATIVES = 4, 3, 1
DENIED = 0.4
"""Of denials, those of a condition that could have been there; the others are of something harmless."""
MIXED_UP = 0.3


def sentences_about(random: Random, present: Sequence[bool]) -> list[str]:
    """All that is said of the patient's and the relatives' conditions, in any order; every present one is stated."""
    harmless = cycle(random.sample(HARMLESS, len(HARMLESS)))
    there = [_said(random, number) for number, is_present in enumerate(present) if is_present]
    there += [next(harmless) for _ in range(STATEMENTS - len(there))]
    absent = [number for number, is_present in enumerate(present) if not is_present]
    random.shuffle(absent)
    denied = [
        _said(random, absent.pop()) if absent and random.random() < DENIED else next(harmless) for _ in range(DENIALS)
    ]
    random.shuffle(there)
    sentences = []
    if random.random() < MIXED_UP:
        sentences.append(MIXED.format(there.pop(), denied.pop()))
    sentences += [random.choice(ASSERTED).format(finding) for finding in there]
    sentences += [random.choice(NEGATED).format(finding) for finding in denied]
    random.shuffle(sentences)
    return sentences


def sentences_about_relatives(random: Random) -> list[str]:
    """What the family has, which tells nothing of the patient."""
    numbers = random.sample(range(len(CONDITIONS)), RELATIVES)
    return [random.choice(OF_RELATIVES).format(_said(random, number)) for number in numbers]


def any_condition(random: Random) -> str:
    """One of the conditions, whether the patient has it or not."""
    return _said(random, random.randrange(len(CONDITIONS)))


def _said(random: Random, number: int) -> str:
    return random.choice(CONDITIONS[number])
