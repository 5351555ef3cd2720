"""Made-up abstracts of biomedical papers: each disease, drug, gene and finding in them is invented."""

import gzip
import json
from pathlib import Path
from random import Random

FILE = "papers.jsonl.gz"

SYLLABLES = ("ba", "cor", "del", "fen", "gal", "hy", "ka", "lo", "mer", "nis", "or", "pra", "quo", "ris", "tal", "ver")
DISEASE_ENDINGS = ("itis", "osis", "emia", "opathy", "oma")
DRUG_ENDINGS = ("mab", "pril", "statin", "olol", "azole", "vir", "gliptin")
FIELDS = {
    "liver": ("jaundice", "itching", "fatigue"),
    "kidney": ("swelling", "loss of protein", "thirst"),
    "skin": ("redness", "scaling", "itching"),
    "lung": ("cough", "shortness of breath", "wheezing"),
    "heart": ("chest pain", "palpitations", "fainting"),
    "bone": ("fractures", "back pain", "stiffness"),
    "nerve": ("numbness", "tingling", "burning pain"),
    "eye": ("blurred vision", "dryness", "glare"),
}
"""What an organ is in trouble with."""
FILLERS = {
    "kind": ("chronic", "acute", "early", "severe", "recurrent", "familial"),
    "group": ("adults", "children", "older patients", "women", "men", "outpatients"),
    "design": ("randomised trial", "cohort study", "case-control study", "pilot study", "registry study"),
    "place": ("one centre", "three hospitals", "twelve clinics", "two university hospitals"),
    "harm": ("nausea", "headache", "a mild rash", "dizziness", "dry mouth", "sleeplessness"),
    "change": ("fell", "rose"),
}

SECTIONS = (
    (
        "{Drug} for {outcome} in {kind} {disease} of the {organ}: a {design}.",
        "The gene {gene} and the response of {disease} of the {organ} to {drug}.",
        "{Kind} {disease} and {outcome}: is {drug} better than {rival}?",
    ),
    (
        "{Kind} {disease} is a disease of the {organ} that leads to {outcome}.",
        "Patients with {disease} often suffer from {outcome}, i.e. the {organ} is damaged early.",
        "Little is known about {outcome} in {group} with {disease} of the {organ}.",
    ),
    (
        "{Drug} blocks {gene}, which is expressed in the {organ}.",
        "The protein {gene} is a target of {drug} in the {organ} (Fig. 1).",
        "Dr. {Name} et al. found that {gene} is high in the {organ} in {disease}.",
    ),
    (
        "We compared {drug} with {rival} for {outcome} in {group} with {disease}.",
        "The aim of this {design} was to see whether {drug} lowers {outcome} in {disease}.",
        "We asked whether {gene} predicts {outcome} under {drug}.",
    ),
    (
        "In this {design}, {n} {group} with {outcome} received {dose} mg of {drug} or {rival} for {weeks} weeks.",
        "A total of {n} {group} with {disease} of the {organ} were treated at {place} with {drug} vs. {rival}.",
        "Between week 0 and week {weeks}, {n} {group} of {place} took {drug}, and {m} took {rival}.",
    ),
    (
        "The primary outcome was {outcome} after {weeks} weeks; levels of {gene} were secondary.",
        "{Outcome} was scored from 0 to 10, and {gene} was measured in biopsies of the {organ}.",
    ),
    (
        "After {weeks} weeks {outcome} {change} by {percent} % with {drug} and by {other} % with {rival} (P = 0.0{p}).",
        "Under {drug} {outcome} {change} by {percent} % (95 % CI {low} to {high}), under {rival} by {other} %.",
    ),
    (
        "Levels of {gene} {change} with {outcome} (r = 0.{p}1).",
        "In the {organ}, {gene} was {percent} % lower than before treatment with {drug}.",
        "Of {n} {group}, {m} had high {gene} in the {organ}, and in these {drug} worked best.",
    ),
    (
        "{Harm} was seen in {m} of {n} patients, and {outcome} under {drug} in {other}.",
        "Adverse events, e.g. {harm}, were as frequent with {drug} as with {rival}.",
    ),
    (
        "We conclude that {drug} is to be preferred to {rival} in {kind} {disease} of the {organ}.",
        "{Drug} may help {group} with {disease} and {outcome}, but {harm} has to be watched.",
        "In {disease}, {gene} in the {organ} tells whose {outcome} will respond to {drug}.",
    ),
)
"""The sentences of an abstract, in order; one of each kind is said, and some kinds are left out."""
LEFT_OUT = 0.2


def write_papers(folder: Path, seed: int = 7, documents: int = 1_500) -> dict[str, int]:
    """Writes documents of an `id` and a `text`, a function of `seed` and their number alone; how many, by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    random = Random(seed)
    lines = [json.dumps({"id": f"paper-{number}", "text": _abstract(random)}) + "\n" for number in range(documents)]
    # Without the time in its header, the same lines compress to the same bytes.
    (folder / FILE).write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    return {FILE: documents}


def _abstract(random: Random) -> str:
    names = _names(random)
    kept = [section for section in SECTIONS if random.random() >= LEFT_OUT]
    return " ".join(random.choice(section).format(**names) for section in kept or SECTIONS)


def _names(random: Random) -> dict[str, str | float]:
    """What one paper is about: the same names from its title to its conclusion."""
    words = {kind: random.choice(fillers) for kind, fillers in FILLERS.items()}
    organ, outcomes = random.choice(list(FIELDS.items()))
    words |= {
        "organ": organ,
        "outcome": random.choice(outcomes),
        "disease": _coined(random, DISEASE_ENDINGS),
        "drug": _coined(random, DRUG_ENDINGS),
        "rival": random.choice(("placebo", _coined(random, DRUG_ENDINGS))),
        "gene": "".join(random.choices("BDGJKQWXZ", k=3)) + str(random.randint(1, 19)),
        "name": _coined(random, ("son", "ova", "berg", "ini")),
    }
    patients, percent = random.randint(40, 900), random.randint(8, 60)
    numbers = {
        "n": patients,
        "m": random.randint(5, patients // 3),
        "dose": random.choice((0.5, 2.5, 10, 25, 80)),
        "weeks": random.choice((4, 8, 12, 24, 52)),
        "percent": percent,
        "other": random.randint(1, percent),
        "low": percent - random.randint(2, 7),
        "high": percent + random.randint(2, 7),
        "p": random.randint(1, 9),
    }
    return words | {word.capitalize(): text[0].upper() + text[1:] for word, text in words.items()} | numbers


def _coined(random: Random, endings: tuple[str, ...]) -> str:
    return "".join(random.choices(SYLLABLES, k=2)) + random.choice(endings)
