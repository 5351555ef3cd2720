"""Spanish: personal "a" before people and animals, al and del, "le" beside a recipient, adjectives after the noun."""

from typing import Literal, NamedTuple

from pipelines.samples.grammar import Clause, Meaning, Phrase, Place
from pipelines.samples.lexicon import KINDS, LIVING, PEOPLE, Determiner, Link
from pipelines.samples.words import joined, linked, said

Gender = Literal["m", "f"]


class Noun(NamedTuple):
    gender: Gender
    singular: str
    plural: str


class Verb(NamedTuple):
    """Third persons of present, preterite and imperfect, the future's stem; without a gerund the present serves."""

    singular: str
    plural: str
    preterite: str
    preterite_plural: str
    imperfect: str
    future: str
    gerund: str | None = None
    reflexive: bool = False


class Adjective(NamedTuple):
    """`before` is the masculine singular of one that stands before the noun."""

    masculine: str
    feminine: str
    before: str | None = None


NOUNS = {
    "person": Noun("f", "persona", "personas"),
    "man": Noun("m", "hombre", "hombres"),
    "woman": Noun("f", "mujer", "mujeres"),
    "friend": Noun("m", "amigo", "amigos"),
    "teacher": Noun("m", "profesor", "profesores"),
    "doctor": Noun("m", "médico", "médicos"),
    "farmer": Noun("m", "granjero", "granjeros"),
    "student": Noun("m", "estudiante", "estudiantes"),
    "neighbour": Noun("m", "vecino", "vecinos"),
    "nurse": Noun("f", "enfermera", "enfermeras"),
    "boy": Noun("m", "chico", "chicos"),
    "girl": Noun("f", "chica", "chicas"),
    "child": Noun("m", "niño", "niños"),
    "animal": Noun("m", "animal", "animales"),
    "dog": Noun("m", "perro", "perros"),
    "cat": Noun("m", "gato", "gatos"),
    "horse": Noun("m", "caballo", "caballos"),
    "bird": Noun("m", "pájaro", "pájaros"),
    "cow": Noun("f", "vaca", "vacas"),
    "rabbit": Noun("m", "conejo", "conejos"),
    "book": Noun("m", "libro", "libros"),
    "letter": Noun("f", "carta", "cartas"),
    "newspaper": Noun("m", "periódico", "periódicos"),
    "apple": Noun("f", "manzana", "manzanas"),
    "bread": Noun("m", "pan", "panes"),
    "cake": Noun("m", "pastel", "pasteles"),
    "coffee": Noun("m", "café", "cafés"),
    "milk": Noun("f", "leche", "leches"),
    "ball": Noun("f", "pelota", "pelotas"),
    "key": Noun("f", "llave", "llaves"),
    "flower": Noun("f", "flor", "flores"),
    "picture": Noun("m", "cuadro", "cuadros"),
    "door": Noun("f", "puerta", "puertas"),
    "window": Noun("f", "ventana", "ventanas"),
    "car": Noun("m", "coche", "coches"),
    "bicycle": Noun("f", "bicicleta", "bicicletas"),
    "garden": Noun("m", "jardín", "jardines"),
    "park": Noun("m", "parque", "parques"),
    "kitchen": Noun("f", "cocina", "cocinas"),
    "school": Noun("f", "escuela", "escuelas"),
    "station": Noun("f", "estación", "estaciones"),
    "market": Noun("m", "mercado", "mercados"),
    "hospital": Noun("m", "hospital", "hospitales"),
    "forest": Noun("m", "bosque", "bosques"),
    "beach": Noun("f", "playa", "playas"),
}

VERBS = {
    "sleep": Verb("duerme", "duermen", "durmió", "durmieron", "dormía", "dormir", "durmiendo"),
    "work": Verb("trabaja", "trabajan", "trabajó", "trabajaron", "trabajaba", "trabajar", "trabajando"),
    "laugh": Verb("ríe", "ríen", "rio", "rieron", "reía", "reir", "riendo", reflexive=True),
    "sing": Verb("canta", "cantan", "cantó", "cantaron", "cantaba", "cantar", "cantando"),
    "play": Verb("juega", "juegan", "jugó", "jugaron", "jugaba", "jugar", "jugando"),
    "go": Verb("va", "van", "fue", "fueron", "iba", "ir"),
    "run": Verb("corre", "corren", "corrió", "corrieron", "corría", "correr", "corriendo"),
    "come": Verb("viene", "vienen", "vino", "vinieron", "venía", "vendr"),
    "follow": Verb("sigue", "siguen", "siguió", "siguieron", "seguía", "seguir", "siguiendo"),
    "see": Verb("ve", "ven", "vio", "vieron", "veía", "ver"),
    "love": Verb("quiere", "quieren", "quiso", "quisieron", "quería", "querr"),
    "look for": Verb("busca", "buscan", "buscó", "buscaron", "buscaba", "buscar", "buscando"),
    "find": Verb("encuentra", "encuentran", "encontró", "encontraron", "encontraba", "encontrar"),
    "wait for": Verb("espera", "esperan", "esperó", "esperaron", "esperaba", "esperar", "esperando"),
    "help": Verb("ayuda", "ayudan", "ayudó", "ayudaron", "ayudaba", "ayudar", "ayudando"),
    "call": Verb("llama", "llaman", "llamó", "llamaron", "llamaba", "llamar", "llamando"),
    "read": Verb("lee", "leen", "leyó", "leyeron", "leía", "leer", "leyendo"),
    "write": Verb("escribe", "escriben", "escribió", "escribieron", "escribía", "escribir", "escribiendo"),
    "eat": Verb("come", "comen", "comió", "comieron", "comía", "comer", "comiendo"),
    "drink": Verb("bebe", "beben", "bebió", "bebieron", "bebía", "beber", "bebiendo"),
    "buy": Verb("compra", "compran", "compró", "compraron", "compraba", "comprar", "comprando"),
    "open": Verb("abre", "abren", "abrió", "abrieron", "abría", "abrir", "abriendo"),
    "close": Verb("cierra", "cierran", "cerró", "cerraron", "cerraba", "cerrar", "cerrando"),
    "repair": Verb("repara", "reparan", "reparó", "repararon", "reparaba", "reparar", "reparando"),
    "give": Verb("da", "dan", "dio", "dieron", "daba", "dar", "dando"),
    "show": Verb("enseña", "enseñan", "enseñó", "enseñaron", "enseñaba", "enseñar", "enseñando"),
    "send": Verb("envía", "envían", "envió", "enviaron", "enviaba", "enviar", "enviando"),
}
BE = Verb("está", "están", "estuvo", "estuvieron", "estaba", "estar")

ADJECTIVES = {
    "old": Adjective("viejo", "vieja"),
    "aged": Adjective("anciano", "anciana"),
    "young": Adjective("joven", "joven"),
    "good": Adjective("bueno", "buena", before="buen"),
    "kind": Adjective("amable", "amable"),
    "sad": Adjective("triste", "triste"),
    "tired": Adjective("cansado", "cansada"),
    "big": Adjective("grande", "grande"),
    "small": Adjective("pequeño", "pequeña"),
    "white": Adjective("blanco", "blanca"),
    "black": Adjective("negro", "negra"),
    "red": Adjective("rojo", "roja"),
    "new": Adjective("nuevo", "nueva", before="nuevo"),
    "hot": Adjective("caliente", "caliente"),
    "happy": Adjective("contento", "contenta"),
    "ill": Adjective("enfermo", "enferma"),
    "busy": Adjective("ocupado", "ocupada"),
}
IRREGULAR_PLURALS = {"joven": "jóvenes"}
TIMES = {
    "yesterday": "ayer",
    "last night": "anoche",
    "last week": "la semana pasada",
    "on Monday": "el lunes",
    "today": "hoy",
    "now": "ahora",
    "tomorrow": "mañana",
    "next week": "la próxima semana",
    "soon": "pronto",
    "every day": "todos los días",
    "often": "a menudo",
    "always": "siempre",
    "on Sundays": "los domingos",
    "in summer": "en verano",
}
LAST_TIMES = frozenset({"every day"})
MID_TIMES = frozenset({"often", "always", "soon"})
LINKS: dict[Link, str] = {"because": " porque ", "while": " mientras ", "and": " y ", "but": ", pero "}


def render(meaning: Meaning) -> str:
    """`meaning` as a Spanish sentence."""
    return linked(meaning, _clause, LINKS)


def _clause(clause: Clause) -> str:
    time = TIMES[clause.time] if clause.time else None
    mid, last = clause.time in MID_TIMES, clause.time in LAST_TIMES
    return joined(
        None if mid or last else time,
        _phrase(clause.subject),
        "no" if clause.negated else None,
        time if mid else None,
        _clitic(clause),
        _verb(clause),
        clause.state and _agreeing(ADJECTIVES[clause.state], clause.subject),
        said(_object, clause.object),
        said(lambda phrase: _to(_phrase(phrase)), clause.recipient),
        said(lambda place: _place(place, clause.verb), clause.place),
        time if last else None,
    )


def _clitic(clause: Clause) -> str | None:
    """The unstressed pronoun before the verb: "se" of a reflexive one, "le" and "les" for a recipient."""
    if clause.recipient is not None:
        return "les" if clause.recipient.plural else "le"
    return "se" if clause.verb != "be" and VERBS[clause.verb].reflexive else None


def _verb(clause: Clause) -> str:
    verb = BE if clause.verb == "be" else VERBS[clause.verb]
    plural = clause.subject.plural
    if clause.tense == "future":
        return verb.future + ("án" if plural else "á")
    if clause.tense == "background" or (clause.tense == "past" and clause.verb == "be"):
        return f"{verb.imperfect}n" if plural else verb.imperfect
    if clause.tense == "past":
        return verb.preterite_plural if plural else verb.preterite
    if clause.tense == "present" and verb.gerund is not None:
        return f"{BE.plural if plural else BE.singular} {verb.gerund}"
    return verb.plural if plural else verb.singular


def _object(phrase: Phrase) -> str:
    """An object; people and animals take the personal "a"."""
    return _to(_phrase(phrase)) if KINDS[phrase.noun] in LIVING else _phrase(phrase)


def _phrase(phrase: Phrase) -> str:
    noun = NOUNS[phrase.noun]
    word = noun.plural if phrase.plural else noun.singular
    if phrase.adjective is not None:
        aged = phrase.adjective == "old" and KINDS[phrase.noun] in PEOPLE
        adjective = ADJECTIVES["aged" if aged else phrase.adjective]
        agreeing = _agreeing(adjective, phrase)
        if adjective.before is None:
            word = f"{word} {agreeing}"
        else:
            shortened = noun.gender == "m" and not phrase.plural
            word = f"{adjective.before if shortened else agreeing} {word}"
    return f"{_determiner(phrase.determiner, noun.gender, phrase.plural)} {word}"


def _agreeing(adjective: Adjective, phrase: Phrase) -> str:
    form = adjective.masculine if NOUNS[phrase.noun].gender == "m" else adjective.feminine
    return IRREGULAR_PLURALS.get(form, f"{form}s") if phrase.plural else form


def _determiner(determiner: Determiner, gender: Gender, plural: bool) -> str:
    feminine = gender == "f"
    if determiner == "the":
        return ("las" if feminine else "los") if plural else "la" if feminine else "el"
    if determiner == "this":
        return "esta" if feminine else "este"
    many = "muchas" if feminine else "muchos"
    return {"my": "mi", "two": "dos", "three": "tres", "many": many}[determiner]


def _to(phrase: str) -> str:
    return f"al {phrase[3:]}" if phrase.startswith("el ") else f"a {phrase}"


def _of(phrase: str) -> str:
    return f"del {phrase[3:]}" if phrase.startswith("el ") else f"de {phrase}"


def _place(place: Place, verb: str) -> str:
    phrase = _phrase(Phrase(place.noun))
    if verb == "run":
        return f"hacia {phrase}"
    if place.relation == "to":
        return _to(phrase)
    if place.relation == "from":
        return _of(phrase)
    return f"cerca {_of(phrase)}" if place.relation == "near" else f"en {phrase}"
