"""French: gender and number everywhere, most adjectives after the noun, "ne … pas" around the verb, elision."""

from typing import Literal, NamedTuple

from pipelines.samples.grammar import Clause, Meaning, Phrase, Place
from pipelines.samples.lexicon import Determiner, Link
from pipelines.samples.words import joined, linked, said

Gender = Literal["m", "f"]
VOWELS = "aeiouyhâàéèêëîïôœù"
"""First letters before which words elide; no word here begins with an aspirated h."""


class Noun(NamedTuple):
    gender: Gender
    singular: str
    plural: str | None = None


class Verb(NamedTuple):
    """Third persons of the present, stems of the imperfect and future, and the participle."""

    singular: str
    plural: str
    imperfect: str
    future: str
    participle: str
    auxiliary: Literal["avoir", "être"] = "avoir"


class Adjective(NamedTuple):
    """`liaison` is the masculine singular before a vowel."""

    masculine: str
    feminine: str
    before: bool = False
    liaison: str | None = None


NOUNS = {
    "person": Noun("f", "personne"),
    "man": Noun("m", "homme"),
    "woman": Noun("f", "femme"),
    "friend": Noun("m", "ami"),
    "teacher": Noun("m", "professeur"),
    "doctor": Noun("m", "médecin"),
    "farmer": Noun("m", "fermier"),
    "student": Noun("m", "étudiant"),
    "neighbour": Noun("m", "voisin"),
    "nurse": Noun("f", "infirmière"),
    "boy": Noun("m", "garçon"),
    "girl": Noun("f", "fille"),
    "child": Noun("m", "enfant"),
    "animal": Noun("m", "animal", "animaux"),
    "dog": Noun("m", "chien"),
    "cat": Noun("m", "chat"),
    "horse": Noun("m", "cheval", "chevaux"),
    "bird": Noun("m", "oiseau", "oiseaux"),
    "cow": Noun("f", "vache"),
    "rabbit": Noun("m", "lapin"),
    "book": Noun("m", "livre"),
    "letter": Noun("f", "lettre"),
    "newspaper": Noun("m", "journal", "journaux"),
    "apple": Noun("f", "pomme"),
    "bread": Noun("m", "pain"),
    "cake": Noun("m", "gâteau", "gâteaux"),
    "coffee": Noun("m", "café"),
    "milk": Noun("m", "lait"),
    "ball": Noun("m", "ballon"),
    "key": Noun("f", "clé"),
    "flower": Noun("f", "fleur"),
    "picture": Noun("m", "tableau", "tableaux"),
    "door": Noun("f", "porte"),
    "window": Noun("f", "fenêtre"),
    "car": Noun("f", "voiture"),
    "bicycle": Noun("m", "vélo"),
    "garden": Noun("m", "jardin"),
    "park": Noun("m", "parc"),
    "kitchen": Noun("f", "cuisine"),
    "school": Noun("f", "école"),
    "station": Noun("f", "gare"),
    "market": Noun("m", "marché"),
    "hospital": Noun("m", "hôpital"),
    "forest": Noun("f", "forêt"),
    "beach": Noun("f", "plage"),
}

VERBS = {
    "sleep": Verb("dort", "dorment", "dorm", "dormir", "dormi"),
    "work": Verb("travaille", "travaillent", "travaill", "travailler", "travaillé"),
    "laugh": Verb("rit", "rient", "ri", "rir", "ri"),
    "sing": Verb("chante", "chantent", "chant", "chanter", "chanté"),
    "play": Verb("joue", "jouent", "jou", "jouer", "joué"),
    "go": Verb("va", "vont", "all", "ir", "allé", "être"),
    "run": Verb("court", "courent", "cour", "courr", "couru"),
    "come": Verb("vient", "viennent", "ven", "viendr", "venu", "être"),
    "follow": Verb("suit", "suivent", "suiv", "suivr", "suivi"),
    "see": Verb("voit", "voient", "voy", "verr", "vu"),
    "love": Verb("aime", "aiment", "aim", "aimer", "aimé"),
    "look for": Verb("cherche", "cherchent", "cherch", "chercher", "cherché"),
    "find": Verb("trouve", "trouvent", "trouv", "trouver", "trouvé"),
    "wait for": Verb("attend", "attendent", "attend", "attendr", "attendu"),
    "help": Verb("aide", "aident", "aid", "aider", "aidé"),
    "call": Verb("appelle", "appellent", "appel", "appeller", "appelé"),
    "read": Verb("lit", "lisent", "lis", "lir", "lu"),
    "write": Verb("écrit", "écrivent", "écriv", "écrir", "écrit"),
    "eat": Verb("mange", "mangent", "mange", "manger", "mangé"),
    "drink": Verb("boit", "boivent", "buv", "boir", "bu"),
    "buy": Verb("achète", "achètent", "achet", "achèter", "acheté"),
    "open": Verb("ouvre", "ouvrent", "ouvr", "ouvrir", "ouvert"),
    "close": Verb("ferme", "ferment", "ferm", "fermer", "fermé"),
    "repair": Verb("répare", "réparent", "répar", "réparer", "réparé"),
    "give": Verb("donne", "donnent", "donn", "donner", "donné"),
    "show": Verb("montre", "montrent", "montr", "montrer", "montré"),
    "send": Verb("envoie", "envoient", "envoy", "enverr", "envoyé"),
}
BE = Verb("est", "sont", "ét", "ser", "été")

ADJECTIVES = {
    "old": Adjective("vieux", "vieille", before=True, liaison="vieil"),
    "young": Adjective("jeune", "jeune", before=True),
    "good": Adjective("bon", "bonne", before=True),
    "kind": Adjective("gentil", "gentille"),
    "sad": Adjective("triste", "triste"),
    "tired": Adjective("fatigué", "fatiguée"),
    "big": Adjective("grand", "grande", before=True),
    "small": Adjective("petit", "petite", before=True),
    "white": Adjective("blanc", "blanche"),
    "black": Adjective("noir", "noire"),
    "red": Adjective("rouge", "rouge"),
    "new": Adjective("nouveau", "nouvelle", before=True, liaison="nouvel"),
    "hot": Adjective("chaud", "chaude"),
    "happy": Adjective("heureux", "heureuse"),
    "ill": Adjective("malade", "malade"),
    "busy": Adjective("occupé", "occupée"),
}
TIMES = {
    "yesterday": "hier",
    "last night": "la nuit dernière",
    "last week": "la semaine dernière",
    "on Monday": "lundi",
    "today": "aujourd'hui",
    "now": "maintenant",
    "tomorrow": "demain",
    "next week": "la semaine prochaine",
    "soon": "bientôt",
    "every day": "tous les jours",
    "often": "souvent",
    "always": "toujours",
    "on Sundays": "le dimanche",
    "in summer": "en été",
}
LAST_TIMES = frozenset({"today", "now", "every day"})
MID_TIMES = frozenset({"often", "always", "soon"})
LINKS: dict[Link, str] = {"because": " parce que ", "while": " pendant que ", "and": " et ", "but": ", mais "}
INSIDE = {"at": frozenset({"garden", "park", "kitchen", "forest"}), "to": frozenset({"kitchen", "forest"})}
"""Places with "dans"; the others take "à"."""


def render(meaning: Meaning) -> str:
    """`meaning` as a French sentence."""
    return linked(meaning, _clause, LINKS)


def _clause(clause: Clause) -> str:
    time = TIMES[clause.time] if clause.time else None
    mid, last = clause.time in MID_TIMES, clause.time in LAST_TIMES
    return joined(
        f"{time}," if time and not mid and not last else None,
        _phrase(clause.subject),
        _predicate(clause, time if mid else None),
        clause.state and _agreeing(ADJECTIVES[clause.state], clause.subject),
        said(_phrase, clause.object),
        said(lambda phrase: _to(_phrase(phrase)), clause.recipient),
        said(lambda place: _place(place, clause.verb), clause.place),
        time if last else None,
    )


def _predicate(clause: Clause, mid: str | None) -> str:
    """The finite verb between "ne" and "pas", a time that follows it, and the participle."""
    finite, participle = _verb_group(clause)
    if not clause.negated:
        return joined(finite, mid, participle)
    ne = f"n'{finite}" if finite[0] in VOWELS else f"ne {finite}"
    return joined(ne, "pas", mid, participle)


def _verb_group(clause: Clause) -> tuple[str, str | None]:
    verb = BE if clause.verb == "be" else VERBS[clause.verb]
    plural = clause.subject.plural
    if clause.tense == "future":
        return verb.future + ("ont" if plural else "a"), None
    if clause.tense == "background" or (clause.tense == "past" and clause.verb == "be"):
        return verb.imperfect + ("aient" if plural else "ait"), None
    if clause.tense != "past":
        return (verb.plural if plural else verb.singular), None
    if verb.auxiliary == "avoir":
        return ("ont" if plural else "a"), verb.participle
    feminine = NOUNS[clause.subject.noun].gender == "f"
    return ("sont" if plural else "est"), verb.participle + "e" * feminine + "s" * plural


def _phrase(phrase: Phrase) -> str:
    noun = NOUNS[phrase.noun]
    word = (noun.plural or f"{noun.singular}s") if phrase.plural else noun.singular
    if phrase.adjective is not None:
        adjective = ADJECTIVES[phrase.adjective]
        liaison = adjective.liaison if word[0] in VOWELS and not phrase.plural and noun.gender == "m" else None
        agreeing = liaison or _agreeing(adjective, phrase)
        word = f"{agreeing} {word}" if adjective.before else f"{word} {agreeing}"
    return _determined(phrase.determiner, noun.gender, phrase.plural, word)


def _agreeing(adjective: Adjective, phrase: Phrase) -> str:
    feminine = NOUNS[phrase.noun].gender == "f"
    form = adjective.feminine if feminine else adjective.masculine
    if not phrase.plural or form.endswith(("s", "x")):
        return form
    return f"{form}x" if form.endswith("eau") else f"{form}s"


def _determined(determiner: Determiner, gender: Gender, plural: bool, word: str) -> str:
    """`word` behind its determiner, whose form may depend on the first letter of `word`."""
    vowel, feminine = word[0] in VOWELS, gender == "f"
    if determiner in ("two", "three"):
        return f"{'deux' if determiner == 'two' else 'trois'} {word}"
    if determiner == "many":
        return f"beaucoup d'{word}" if vowel else f"beaucoup de {word}"
    if determiner == "this":
        return f"{'cette' if feminine else 'cet' if vowel else 'ce'} {word}"
    if determiner == "my":
        return f"{'ma' if feminine and not vowel else 'mon'} {word}"
    if plural:
        return f"les {word}"
    return f"l'{word}" if vowel else f"{'la' if feminine else 'le'} {word}"


def _to(phrase: str) -> str:
    return _contracted("à", phrase, "au", "aux")


def _of(phrase: str) -> str:
    return _contracted("de", phrase, "du", "des")


def _contracted(preposition: str, phrase: str, with_le: str, with_les: str) -> str:
    if phrase.startswith("le "):
        return f"{with_le} {phrase[3:]}"
    return f"{with_les} {phrase[4:]}" if phrase.startswith("les ") else f"{preposition} {phrase}"


def _place(place: Place, verb: str) -> str:
    phrase = _phrase(Phrase(place.noun))
    if place.relation == "near":
        return f"près {_of(phrase)}"
    if place.relation == "from":
        return _of(phrase)
    if verb == "run":
        return f"vers {phrase}"
    if place.relation == "at" and place.noun == "beach":
        return f"sur {phrase}"
    return f"dans {phrase}" if place.noun in INSIDE[place.relation] else _to(phrase)
