"""Names of made-up diseases, chemicals and genes, and of things that only look like one.

All are coined from the same morphemes, so neither a list of names nor a word's ending tells what one is: `talorin` may
be a drug or a protein, `KVR3` a gene or a cell line, `Merson` the name of a disease or of an author.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from pipelines.samples.papers import DISEASE_ENDINGS, DRUG_ENDINGS, SYLLABLES

ORGANS = ("renal", "hepatic", "cardiac", "dermal", "ocular", "pulmonary", "neural", "gastric")
PLACES = ("kidney", "liver", "heart", "skin", "eye", "lung", "nerves", "stomach")
KINDS = ("familial", "juvenile", "chronic", "acquired", "congenital", "infantile", "progressive")
TROUBLES = ("failure", "carcinoma", "dystrophy", "fibrosis", "atrophy")
SURNAME_ENDINGS = ("son", "ova", "berg", "ini", "ander")
SALTS = ("hydrochloride", "sodium", "acetate", "sulfate", "citrate")
GROUPS = ("methyl", "chloro", "ethyl", "fluoro")
ENZYMES = ("kinase", "receptor", "synthase", "ligase", "phosphatase")
LETTERS = "BDKPR"


class Name(NamedTuple):
    """A name in full and, where it has one, its abbreviation. type: None for what is no entity."""

    full: str
    type: str | None = None
    short: str | None = None


def coin_disease(random: Random) -> Name:
    """`corlomitis`, `familial renal corlomitis` (FRC), `Merson-Kabini syndrome`, `KVR3 deficiency`, and their like."""
    one_word = _coined(random, DISEASE_ENDINGS)
    organ, other = random.sample(ORGANS, 2)
    forms: list[Callable[[], str]] = [
        lambda: one_word,
        lambda: f"{organ} {one_word}",
        lambda: f"{random.choice(KINDS)} {organ} {one_word}",
        lambda: f"{organ} and {other} {one_word}",
        lambda: f"{one_word} of the {random.choice(PLACES)}",
        lambda: f"{random.choice(KINDS)} {organ} {random.choice(TROUBLES)}",
        lambda: f"{coin_surname(random)} {random.choice(('disease', 'syndrome'))}",
        lambda: f"{coin_surname(random)}-{coin_surname(random)} {random.choice(('disease', 'syndrome'))}",
        lambda: f"{coin_symbol(random)} deficiency",
    ]
    full = random.choice(forms)()
    return Name(full, "Disease", _initials(full) if full.count(" ") == 2 and " of " not in full else None)


def coin_chemical(random: Random) -> Name:
    """`talormab`, `talorin`, `merlonine acetate`, `3-chlorokabane`, `2,4-dimethylfenol`, `verpric acid` (VA)."""
    stem, group = _coined(random), random.choice(GROUPS)
    first, second = sorted(random.sample(range(1, 9), 2))
    forms: list[Callable[[], str]] = [
        lambda: stem + random.choice(DRUG_ENDINGS),
        lambda: f"{stem}in",
        lambda: f"{stem}ine {random.choice(SALTS)}",
        lambda: f"{first}-{group}{stem}{random.choice(('ol', 'one', 'ane'))}",
        lambda: f"{first},{second}-di{group}{stem}{random.choice(('ol', 'one', 'ane'))}",
        lambda: f"{stem}ic acid",
    ]
    full = random.choice(forms)()
    return Name(full, "Chemical", _initials(full) if full.endswith(" acid") else None)


def coin_gene(random: Random) -> Name:
    """`KVR3`, `p47`, `talorin`, `merlo kinase 3` (MK3), `talorin receptor`, `talormab-binding protein`."""
    stem, enzyme = _coined(random), random.choice(ENZYMES)
    forms: list[Callable[[], str]] = [
        lambda: coin_symbol(random),
        lambda: coin_symbol(random),
        lambda: f"p{random.randint(11, 99)}",
        lambda: f"{stem}in",
        lambda: f"{stem} {enzyme} {random.randint(1, 9)}",
        lambda: f"{stem}in {enzyme}",
        lambda: f"{stem}{random.choice(DRUG_ENDINGS)}-binding protein",
    ]
    full = random.choice(forms)()
    return Name(full, "Gene", _initials(full) if full[-1].isdigit() and " " in full else None)


COIN: dict[str, Callable[[Random], Name]] = {"Disease": coin_disease, "Chemical": coin_chemical, "Gene": coin_gene}


def coin_symbol(random: Random) -> str:
    """Capitals and perhaps a number, as genes, cell lines, trials and scores have them."""
    letters = "".join(random.choices(LETTERS, k=random.choice((2, 3, 3))))
    number: str = random.choice(["", *"123456789"])
    return letters + number


def coin_surname(random: Random) -> str:
    return _coined(random, SURNAME_ENDINGS, syllables=1).capitalize()


def _coined(random: Random, endings: tuple[str, ...] = ("",), syllables: int = 2) -> str:
    return "".join(random.choices(SYLLABLES, k=syllables)) + random.choice(endings)


def _initials(full: str) -> str:
    """`familial renal corlomitis` gives FRC, `merlo kinase 3` MK3."""
    return "".join(word[0] for word in full.split()).upper()
