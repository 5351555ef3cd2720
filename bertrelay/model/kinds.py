"""The kinds of model that a folder may hold, and by which files or heads each is known."""

from typing import NamedTuple


class ModelKind(NamedTuple):
    """name: in settings. words: in errors. use: advice on using one."""

    name: str
    words: str
    use: str


ENCODER = ModelKind("encoder", "a sentence encoder", "use it by `bertrelay encode`")
TAGGER = ModelKind("tagger", "a tagger of entities", "use it by `bertrelay ner tag`")
ANSWERER = ModelKind("answerer", "a model that answers questions", "use it by `bertrelay qa answer`")
PREDICTOR = ModelKind("predictor", "a model that predicts outcomes of patients", "use it by `bertrelay outcome score`")
SCORER = ModelKind(
    "scorer",
    "a network that scores pairs of sentences",
    "use it by `bertrelay rerank`, in recipes by teachers.rerank",
)
LINKER = ModelKind("linker", "a linker of entities", "use it by `bertrelay ner tag --link`")
EXTRACTOR = ModelKind("extractor", "a model that finds relations", "use it by `bertrelay ner tag --relate`")
CLASSIFIER = ModelKind("classifier", "a classifier of texts", "its network can be the base of a training")
NETWORK = ModelKind("network", "a network without a head", "its network can be the base of a training")
KINDS = {kind.name: kind for kind in (ENCODER, TAGGER, LINKER, EXTRACTOR, ANSWERER, PREDICTOR, SCORER)}
BY_FILE = {
    "poly.safetensors": SCORER,
    "outcome.json": PREDICTOR,
    "linker.json": LINKER,
    "relations.json": EXTRACTOR,
}
"""Files that only the models of one task have. A table, and no registration by the tasks: the planner names the kind of
a folder without loading any of them."""
BY_ARCHITECTURE = {
    "ForTokenClassification": TAGGER,
    "ForQuestionAnswering": ANSWERER,
    "ForSequenceClassification": CLASSIFIER,
}
ALSO = {ENCODER: {NETWORK}, SCORER: {CLASSIFIER}}
"""Kinds accepted as another: a network is pooled by the mean; the loader of scorers checks the number of labels."""
