"""English: auxiliaries carry tense and negation, "often" and "soon" stand in the middle, other times at the end."""

from typing import NamedTuple

from pipelines.samples.grammar import Clause, Meaning, Phrase, Place
from pipelines.samples.lexicon import Link
from pipelines.samples.words import joined, linked, said

IRREGULAR_PLURALS = {
    "person": "people",
    "man": "men",
    "woman": "women",
    "child": "children",
}

LOCATIVES = {"school": "at", "station": "at", "market": "at", "beach": "on"}
MID_TIMES = frozenset({"often", "always", "soon"})
LINKS: dict[Link, str] = {"because": " because ", "while": " while ", "and": " and ", "but": ", but "}


class Verb(NamedTuple):
    base: str
    third: str
    ing: str
    past: str
    particle: str = ""


VERBS = {
    "sleep": Verb("sleep", "sleeps", "sleeping", "slept"),
    "work": Verb("work", "works", "working", "worked"),
    "laugh": Verb("laugh", "laughs", "laughing", "laughed"),
    "sing": Verb("sing", "sings", "singing", "sang"),
    "play": Verb("play", "plays", "playing", "played"),
    "go": Verb("go", "goes", "going", "went"),
    "run": Verb("run", "runs", "running", "ran"),
    "come": Verb("come", "comes", "coming", "came"),
    "follow": Verb("follow", "follows", "following", "followed"),
    "see": Verb("see", "sees", "seeing", "saw"),
    "love": Verb("love", "loves", "loving", "loved"),
    "look for": Verb("look", "looks", "looking", "looked", "for"),
    "find": Verb("find", "finds", "finding", "found"),
    "wait for": Verb("wait", "waits", "waiting", "waited", "for"),
    "help": Verb("help", "helps", "helping", "helped"),
    "call": Verb("call", "calls", "calling", "called"),
    "read": Verb("read", "reads", "reading", "read"),
    "write": Verb("write", "writes", "writing", "wrote"),
    "eat": Verb("eat", "eats", "eating", "ate"),
    "drink": Verb("drink", "drinks", "drinking", "drank"),
    "buy": Verb("buy", "buys", "buying", "bought"),
    "open": Verb("open", "opens", "opening", "opened"),
    "close": Verb("close", "closes", "closing", "closed"),
    "repair": Verb("repair", "repairs", "repairing", "repaired"),
    "give": Verb("give", "gives", "giving", "gave"),
    "show": Verb("show", "shows", "showing", "showed"),
    "send": Verb("send", "sends", "sending", "sent"),
}


def render(meaning: Meaning) -> str:
    """`meaning` as an English sentence."""
    return linked(meaning, _clause, LINKS)


def _clause(clause: Clause) -> str:
    mid = clause.time if clause.time in MID_TIMES else None
    return joined(
        _phrase(clause.subject),
        _predicate(clause, mid),
        clause.state,
        VERBS[clause.verb].particle if clause.verb != "be" else None,
        said(_phrase, clause.object),
        said(lambda phrase: f"to {_phrase(phrase)}", clause.recipient),
        said(_place, clause.place),
        None if mid else clause.time,
    )


def _predicate(clause: Clause, mid: str | None) -> str:
    """The auxiliaries, a time that stands among them, and the verb."""
    plural, no = clause.subject.plural, "not" if clause.negated else None
    be = ("were" if plural else "was") if clause.tense in ("past", "background") else ("are" if plural else "is")
    if clause.tense == "future":
        return joined("will", no, mid, "be" if clause.verb == "be" else VERBS[clause.verb].base)
    if clause.verb == "be":
        return joined(be, no, mid)
    verb = VERBS[clause.verb]
    if clause.tense in ("present", "background"):
        return joined(be, no, mid, verb.ing)
    do = "did" if clause.tense == "past" else "do" if plural else "does"
    finite = verb.past if clause.tense == "past" else verb.base if plural else verb.third
    return joined(do, no, verb.base) if no else joined(mid, finite)


def _phrase(phrase: Phrase) -> str:
    noun = phrase.noun
    if phrase.plural:
        noun = IRREGULAR_PLURALS.get(noun, f"{noun}s")
    return joined(phrase.determiner, phrase.adjective, noun)


def _place(place: Place) -> str:
    preposition = LOCATIVES.get(place.noun, "in") if place.relation == "at" else place.relation
    return f"{preposition} the {place.noun}"
