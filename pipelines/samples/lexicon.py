"""what the sample world holds, before any language: its nouns and verbs, and what goes sensibly with what.

A concept is named by its English word. How it is said in a language stands in that language's room.
"""

from typing import Literal, NamedTuple, get_args

Kind = Literal["adult", "child", "animal", "text", "food", "drink", "object", "opening", "vehicle", "place"]
Tense = Literal["past", "present", "habit", "future", "background"]
"""Of an action, `present` goes on now ("is reading"), `habit` recurs; `background` went on ("was reading")."""
Determiner = Literal["the", "this", "my", "two", "three", "many"]
Relation = Literal["at", "near", "to", "from"]
Link = Literal["because", "while", "and", "but"]

PEOPLE = frozenset({"adult", "child"})
LIVING = PEOPLE | {"animal"}
THINGS = frozenset(get_args(Kind)) - LIVING - {"place"}

KINDS: dict[str, Kind] = {
    **dict.fromkeys(("person", "man", "woman", "friend", "teacher", "doctor"), "adult"),
    **dict.fromkeys(("farmer", "student", "neighbour", "nurse"), "adult"),
    **dict.fromkeys(("boy", "girl", "child"), "child"),
    **dict.fromkeys(("animal", "dog", "cat", "horse", "bird", "cow", "rabbit"), "animal"),
    **dict.fromkeys(("book", "letter", "newspaper"), "text"),
    **dict.fromkeys(("apple", "bread", "cake"), "food"),
    **dict.fromkeys(("coffee", "milk"), "drink"),
    **dict.fromkeys(("ball", "key", "flower", "picture"), "object"),
    **dict.fromkeys(("door", "window"), "opening"),
    **dict.fromkeys(("car", "bicycle"), "vehicle"),
    **dict.fromkeys(("garden", "park", "kitchen", "school", "station"), "place"),
    **dict.fromkeys(("market", "hospital", "forest", "beach"), "place"),
}

OWNED = frozenset({"friend", "neighbour", "dog", "cat", "horse"})
"""Living beings that "my" goes with; "my girl" would be a daughter in French. Things may all be mine."""

INDOORS = frozenset({"kitchen", "school", "station", "hospital"})
NO_ANIMALS = frozenset({"school", "hospital"})

UNCOUNTED = frozenset({"bread", "coffee", "milk", "door", "window"})
"""Things that nobody counts here: they stand in the singular."""

ADJECTIVES: dict[Kind, tuple[str, ...]] = {
    "adult": ("old", "young", "good", "kind", "sad", "tired"),
    "child": ("small", "good", "kind", "sad", "tired"),
    "animal": ("old", "young", "big", "small", "white", "black"),
    "text": ("old", "new"),
    "food": ("good",),
    "drink": ("hot", "good"),
    "object": ("new", "big", "small", "red", "white"),
    "opening": ("old", "new", "big", "small", "white"),
    "vehicle": ("old", "new", "big", "small", "red", "black"),
    "place": (),
}

UNLIKELY = frozenset(
    {
        ("friend", "old"),  # in Spanish another thing before and after the noun
        ("woman", "good"),  # "bonne femme" is no praise
        ("man", "good"),
        ("person", "good"),
        ("friend", "kind"),
        ("student", "old"),
        ("milk", "good"),
        ("bird", "go"),
        ("bird", "run"),
    }
)
"""Nouns that an adjective or a verb does not suit in one of the languages."""

DAILY = frozenset({"bread", "coffee", "milk", "newspaper"})
USED_UP = frozenset({"eat", "write", "buy", "send"})
"""What is done once to a thing: as a habit only to so many of them, or to what is there anew each day."""

STATES = ("tired", "sad", "happy", "ill", "busy")
ANTONYMS = {"old": "young", "big": "small", "white": "black", "new": "old", "happy": "sad", "open": "close"}
ABOVE: dict[Kind, str] = {"adult": "person", "child": "person", "animal": "animal"}
"""The word for all of a kind, which a noun entails."""


class Verb(NamedTuple):
    """Who may do it, to what, to whom or in which direction, in which tenses, and where.

    stative: said without a time ("loves"). inside: only in a building.
    """

    subjects: frozenset[str]
    objects: frozenset[str] = frozenset()
    recipients: frozenset[str] = frozenset()
    direction: Relation | None = None
    tenses: tuple[Tense, ...] = ("past", "present", "habit", "future", "background")
    stative: bool = False
    places: tuple[Relation, ...] = ("at", "near")
    inside: bool = False


SUDDEN: tuple[Tense, ...] = ("past", "habit", "future")
CARRIED = frozenset({"text", "food", "drink", "object"})

VERBS: dict[str, Verb] = {
    "be": Verb(LIVING, tenses=("past", "present", "habit", "future"), places=()),
    "sleep": Verb(LIVING),
    "work": Verb(frozenset({"adult"})),
    "laugh": Verb(PEOPLE),
    "sing": Verb(PEOPLE),
    "play": Verb(frozenset({"child", "animal"})),
    "go": Verb(LIVING, direction="to"),
    "run": Verb(LIVING, direction="to"),
    "come": Verb(LIVING, direction="from"),
    "follow": Verb(LIVING, LIVING),
    "see": Verb(LIVING, LIVING | {"object", "vehicle"}, tenses=SUDDEN, stative=True),
    "love": Verb(LIVING, LIVING, tenses=("habit",), stative=True, places=()),
    "look for": Verb(LIVING, LIVING | {"text", "object"}),
    "find": Verb(LIVING, LIVING | {"text", "object"}, tenses=SUDDEN),
    "wait for": Verb(LIVING, LIVING),
    "help": Verb(PEOPLE, LIVING),
    "call": Verb(PEOPLE, PEOPLE),
    "read": Verb(PEOPLE, frozenset({"text"})),
    "write": Verb(PEOPLE, frozenset({"letter", "book"})),
    "eat": Verb(LIVING, frozenset({"food"})),
    "drink": Verb(PEOPLE, frozenset({"drink"})),
    "buy": Verb(PEOPLE, CARRIED | {"vehicle"}),
    "open": Verb(PEOPLE, frozenset({"opening"}), places=("at",), inside=True),
    "close": Verb(PEOPLE, frozenset({"opening"}), places=("at",), inside=True),
    "repair": Verb(PEOPLE, frozenset({"vehicle"})),
    "give": Verb(PEOPLE, CARRIED, PEOPLE),
    "show": Verb(PEOPLE, frozenset({"text", "object", "vehicle"}), PEOPLE),
    "send": Verb(PEOPLE, frozenset({"text", "object"}), PEOPLE, places=()),
}

TIMES: dict[str, tuple[Tense, ...]] = {
    "yesterday": ("past",),
    "last night": ("past",),
    "last week": ("past",),
    "on Monday": ("past", "future"),
    "today": ("past", "present", "future"),
    "now": ("present",),
    "tomorrow": ("future",),
    "next week": ("future",),
    "soon": ("future",),
    "every day": ("habit",),
    "often": ("habit",),
    "always": ("habit",),
    "on Sundays": ("habit",),
    "in summer": ("habit",),
}

NEVER_NEGATED = frozenset({"soon", "every day", "often", "always"})
"""Times under which "not" would be ambiguous: not always, or always not?"""


def fits(noun: str, allowed: frozenset[str]) -> bool:
    """Whether `noun` is one of the allowed kinds, or allowed by name."""
    return KINDS[noun] in allowed or noun in allowed
