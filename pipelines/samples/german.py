"""German: the verb is second in a main clause and last in a subordinate one; articles and adjectives show the case."""

from typing import Literal, NamedTuple

from pipelines.samples.grammar import COUNTED, Clause, Meaning, Phrase
from pipelines.samples.lexicon import KINDS, Determiner
from pipelines.samples.words import joined, said, sentence

Case = Literal["nom", "acc", "dat"]
Slot = Literal["m", "f", "n", "p"]
"""A gender, or the plural, which has none."""


class Noun(NamedTuple):
    """`oblique` is the singular of the accusative and dative, where a weak noun has one of its own."""

    gender: Slot
    singular: str
    plural: str
    oblique: str | None = None


class Verb(NamedTuple):
    """`plural` is the infinitive too; `past` is the first stem of the preterite; `takes` the object's case."""

    third: str
    plural: str
    past: str
    participle: str
    auxiliary: Literal["haben", "sein"] = "haben"
    takes: Case = "acc"
    preposition: str | None = None
    prefix: str = ""


NOUNS = {
    "person": Noun("f", "Person", "Personen"),
    "man": Noun("m", "Mann", "Männer"),
    "woman": Noun("f", "Frau", "Frauen"),
    "friend": Noun("m", "Freund", "Freunde"),
    "teacher": Noun("m", "Lehrer", "Lehrer"),
    "doctor": Noun("m", "Arzt", "Ärzte"),
    "farmer": Noun("m", "Bauer", "Bauern", "Bauern"),
    "student": Noun("m", "Student", "Studenten", "Studenten"),
    "neighbour": Noun("m", "Nachbar", "Nachbarn", "Nachbarn"),
    "nurse": Noun("f", "Krankenschwester", "Krankenschwestern"),
    "boy": Noun("m", "Junge", "Jungen", "Jungen"),
    "girl": Noun("n", "Mädchen", "Mädchen"),
    "child": Noun("n", "Kind", "Kinder"),
    "animal": Noun("n", "Tier", "Tiere"),
    "dog": Noun("m", "Hund", "Hunde"),
    "cat": Noun("f", "Katze", "Katzen"),
    "horse": Noun("n", "Pferd", "Pferde"),
    "bird": Noun("m", "Vogel", "Vögel"),
    "cow": Noun("f", "Kuh", "Kühe"),
    "rabbit": Noun("n", "Kaninchen", "Kaninchen"),
    "book": Noun("n", "Buch", "Bücher"),
    "letter": Noun("m", "Brief", "Briefe"),
    "newspaper": Noun("f", "Zeitung", "Zeitungen"),
    "apple": Noun("m", "Apfel", "Äpfel"),
    "bread": Noun("n", "Brot", "Brote"),
    "cake": Noun("m", "Kuchen", "Kuchen"),
    "coffee": Noun("m", "Kaffee", "Kaffees"),
    "milk": Noun("f", "Milch", "Milch"),
    "ball": Noun("m", "Ball", "Bälle"),
    "key": Noun("m", "Schlüssel", "Schlüssel"),
    "flower": Noun("f", "Blume", "Blumen"),
    "picture": Noun("n", "Bild", "Bilder"),
    "door": Noun("f", "Tür", "Türen"),
    "window": Noun("n", "Fenster", "Fenster"),
    "car": Noun("n", "Auto", "Autos"),
    "bicycle": Noun("n", "Fahrrad", "Fahrräder"),
}

PLACES = {
    "garden": {"at": "im Garten", "near": "nahe dem Garten", "to": "in den Garten", "from": "aus dem Garten"},
    "park": {"at": "im Park", "near": "nahe dem Park", "to": "in den Park", "from": "aus dem Park"},
    "kitchen": {"at": "in der Küche", "near": "nahe der Küche", "to": "in die Küche", "from": "aus der Küche"},
    "school": {"at": "in der Schule", "near": "nahe der Schule", "to": "zur Schule", "from": "von der Schule"},
    "station": {"at": "am Bahnhof", "near": "nahe dem Bahnhof", "to": "zum Bahnhof", "from": "vom Bahnhof"},
    "market": {"at": "auf dem Markt", "near": "nahe dem Markt", "to": "zum Markt", "from": "vom Markt"},
    "hospital": {
        "at": "im Krankenhaus",
        "near": "nahe dem Krankenhaus",
        "to": "zum Krankenhaus",
        "from": "vom Krankenhaus",
    },
    "forest": {"at": "im Wald", "near": "nahe dem Wald", "to": "in den Wald", "from": "aus dem Wald"},
    "beach": {"at": "am Strand", "near": "nahe dem Strand", "to": "zum Strand", "from": "vom Strand"},
}

VERBS = {
    "sleep": Verb("schläft", "schlafen", "schlief", "geschlafen"),
    "work": Verb("arbeitet", "arbeiten", "arbeitete", "gearbeitet"),
    "laugh": Verb("lacht", "lachen", "lachte", "gelacht"),
    "sing": Verb("singt", "singen", "sang", "gesungen"),
    "play": Verb("spielt", "spielen", "spielte", "gespielt"),
    "go": Verb("geht", "gehen", "ging", "gegangen", "sein"),
    "run": Verb("rennt", "rennen", "rannte", "gerannt", "sein"),
    "come": Verb("kommt", "kommen", "kam", "gekommen", "sein"),
    "follow": Verb("folgt", "folgen", "folgte", "gefolgt", "sein", takes="dat"),
    "see": Verb("sieht", "sehen", "sah", "gesehen"),
    "love": Verb("liebt", "lieben", "liebte", "geliebt"),
    "look for": Verb("sucht", "suchen", "suchte", "gesucht"),
    "find": Verb("findet", "finden", "fand", "gefunden"),
    "wait for": Verb("wartet", "warten", "wartete", "gewartet", preposition="auf"),
    "help": Verb("hilft", "helfen", "half", "geholfen", takes="dat"),
    "call": Verb("ruft", "rufen", "rief", "angerufen", prefix="an"),
    "read": Verb("liest", "lesen", "las", "gelesen"),
    "write": Verb("schreibt", "schreiben", "schrieb", "geschrieben"),
    "eat": Verb("isst", "essen", "aß", "gegessen"),
    "drink": Verb("trinkt", "trinken", "trank", "getrunken"),
    "buy": Verb("kauft", "kaufen", "kaufte", "gekauft"),
    "open": Verb("öffnet", "öffnen", "öffnete", "geöffnet"),
    "close": Verb("schließt", "schließen", "schloss", "geschlossen"),
    "repair": Verb("repariert", "reparieren", "reparierte", "repariert"),
    "give": Verb("gibt", "geben", "gab", "gegeben"),
    "show": Verb("zeigt", "zeigen", "zeigte", "gezeigt"),
    "send": Verb("schickt", "schicken", "schickte", "geschickt"),
}
BE = Verb("ist", "sind", "war", "gewesen", "sein")
EATS_AS_ANIMAL = Verb("frisst", "fressen", "fraß", "gefressen")

ADJECTIVES = {  # stems, before the ending
    "old": "alt",
    "young": "jung",
    "good": "gut",
    "kind": "freundlich",
    "sad": "traurig",
    "tired": "müd",
    "big": "groß",
    "small": "klein",
    "white": "weiß",
    "black": "schwarz",
    "red": "rot",
    "new": "neu",
    "hot": "heiß",
}
STATES = {"tired": "müde", "sad": "traurig", "happy": "glücklich", "ill": "krank", "busy": "beschäftigt"}
TIMES = {
    "yesterday": "gestern",
    "last night": "letzte Nacht",
    "last week": "letzte Woche",
    "on Monday": "am Montag",
    "today": "heute",
    "now": "jetzt",
    "tomorrow": "morgen",
    "next week": "nächste Woche",
    "soon": "bald",
    "every day": "jeden Tag",
    "often": "oft",
    "always": "immer",
    "on Sundays": "sonntags",
    "in summer": "im Sommer",
}
MID_TIMES = frozenset({"today", "now", "soon", "every day", "often", "always"})
"""Times that follow the finite verb; the others stand first and send the subject behind it."""

LINKS = {"because": ", weil ", "while": ", während ", "and": " und ", "but": ", aber "}

ENDINGS: dict[Case, dict[Slot, str]] = {
    "nom": {"m": "er", "f": "e", "n": "es", "p": "e"},
    "acc": {"m": "en", "f": "e", "n": "es", "p": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "p": "en"},
}
ARTICLES: dict[Case, dict[Slot, str]] = {
    "nom": {"m": "der", "f": "die", "n": "das", "p": "die"},
    "acc": {"m": "den", "f": "die", "n": "das", "p": "die"},
    "dat": {"m": "dem", "f": "der", "n": "dem", "p": "den"},
}
BARE_POSSESSIVES = {("nom", "m"), ("nom", "n"), ("acc", "n")}
"""Where "mein" has no ending, so that the adjective must show the gender."""


def render(meaning: Meaning) -> str:
    """`meaning` as a German sentence."""
    text = _main_clause(meaning.main)
    if meaning.link is not None and meaning.second is not None:
        subordinate = meaning.link in ("because", "while")
        second = _subordinate_clause(meaning.second) if subordinate else _main_clause(meaning.second)
        text += LINKS[meaning.link] + second
    return sentence(text)


def _main_clause(clause: Clause) -> str:
    finite, rest = _verb_group(clause)
    subject, middle = _phrase(clause.subject, "nom"), _middle(clause)
    if clause.time is None or clause.time in MID_TIMES:
        return joined(subject, finite, *middle, rest)
    return joined(TIMES[clause.time], finite, subject, *middle, rest)


def _subordinate_clause(clause: Clause) -> str:
    finite, rest = _verb_group(clause)
    together = rest + finite if rest == _verb(clause).prefix else joined(rest, finite)
    return joined(_phrase(clause.subject, "nom"), *_middle(clause), together)


def _verb(clause: Clause) -> Verb:
    if clause.verb == "be":
        return BE
    if clause.verb == "eat" and KINDS[clause.subject.noun] == "animal":
        return EATS_AS_ANIMAL
    return VERBS[clause.verb]


def _verb_group(clause: Clause) -> tuple[str, str]:
    """The finite verb, and what stands at the end of a main clause: participle, infinitive or separated prefix."""
    verb, plural = _verb(clause), clause.subject.plural
    if clause.tense == "future":
        infinitive = "sein" if clause.verb == "be" else verb.prefix + verb.plural
        return ("werden" if plural else "wird"), infinitive
    if clause.tense == "past" and clause.verb != "be":
        auxiliary = {"haben": ("hat", "haben"), "sein": ("ist", "sind")}[verb.auxiliary]
        return auxiliary[plural], verb.participle
    if clause.tense in ("past", "background"):
        ending = ("n" if verb.past.endswith("e") else "en") if plural else ""
        return verb.past + ending, verb.prefix
    return (verb.plural if plural else verb.third), verb.prefix


def _middle(clause: Clause) -> list[str | None]:
    """What stands between the verb's two places: "not" follows an object, and precedes a place or a state."""
    verb = _verb(clause)
    time = TIMES[clause.time] if clause.time in MID_TIMES else None
    place = PLACES[clause.place.noun][clause.place.relation] if clause.place else None
    thing = said(lambda phrase: _phrase(phrase, verb.takes), clause.object)
    no = "nicht" if clause.negated else None
    if clause.recipient is not None:
        return [_phrase(clause.recipient, "dat"), time, place, thing, no]
    if clause.object is None:
        return [time, no, place, STATES[clause.state] if clause.state else None]
    if verb.preposition is not None:
        return [time, no, place, joined(verb.preposition, thing)]
    return [thing, time, place, no] if clause.negated else [time, thing, place]


def _phrase(phrase: Phrase, case: Case) -> str:
    noun = NOUNS[phrase.noun]
    slot: Slot = "p" if phrase.plural else noun.gender
    adjective = phrase.adjective and ADJECTIVES[phrase.adjective] + _adjective_ending(phrase.determiner, case, slot)
    return joined(_determiner(phrase.determiner, case, slot), adjective, _declined(noun, case, slot))


def _determiner(determiner: Determiner, case: Case, slot: Slot) -> str:
    ending = ENDINGS[case][slot]
    if determiner == "the":
        return ARTICLES[case][slot]
    if determiner == "my":
        return "mein" if (case, slot) in BARE_POSSESSIVES else f"mein{ending}"
    return {"this": f"dies{ending}", "two": "zwei", "three": "drei", "many": f"viel{ending}"}[determiner]


def _adjective_ending(determiner: Determiner, case: Case, slot: Slot) -> str:
    bare = determiner == "my" and (case, slot) in BARE_POSSESSIVES
    if bare or determiner in COUNTED:
        return ENDINGS[case][slot]
    weak = slot != "p" and case != "dat" and (case, slot) != ("acc", "m")
    return "e" if weak else "en"


def _declined(noun: Noun, case: Case, slot: Slot) -> str:
    if slot != "p":
        return noun.singular if case == "nom" else noun.oblique or noun.singular
    return noun.plural if case != "dat" or noun.plural.endswith(("n", "s")) else f"{noun.plural}n"
