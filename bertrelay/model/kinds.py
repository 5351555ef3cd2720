"""What kind of model a folder holds, by its small files alone, so that it is known before anything heavy is loaded."""

from pathlib import Path
from typing import NamedTuple

from bertrelay.errors import RequestError
from bertrelay.model.files import Description, read_model_file


class ModelKind(NamedTuple):
    """name: as in settings. words: what an error calls it. use: what it is for."""

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
CLASSIFIER = ModelKind("classifier", "a classifier of texts", "its network can be the base of a training")
NETWORK = ModelKind("network", "a network without a head", "its network can be the base of a training")
KINDS = {kind.name: kind for kind in (ENCODER, TAGGER, ANSWERER, PREDICTOR, SCORER)}
BY_FILE = {"poly.safetensors": SCORER, "outcome.json": PREDICTOR}
"""Files that only the models of one task have. A table here, and no registration by the tasks: the planner names the
kind of a folder without loading any of them."""
BY_ARCHITECTURE = {
    "ForTokenClassification": TAGGER,
    "ForQuestionAnswering": ANSWERER,
    "ForSequenceClassification": CLASSIFIER,
}
ALSO = {ENCODER: {NETWORK}, SCORER: {CLASSIFIER}}
"""What is read as a kind too: a network with mean pooling; the loader of scorers checks the number of labels."""


class _Heads(Description):
    architectures: list[str] | None = None
    id2label: dict[str, str | int] | None = None


class _Prompts(Description):
    prompts: dict[str, str | None] | None = None


def kind_of_model(folder: Path) -> ModelKind | None:
    """What the files of `folder` say it is; None where they are of no model. Raises RequestError for damaged ones."""
    for file, kind in BY_FILE.items():
        if (folder / file).is_file():
            return kind
    config = read_model_file(folder / "config.json", _Heads)
    names = (config and config.architectures) or ()
    by_head = next(
        (kind for ending, kind in BY_ARCHITECTURE.items() if any(name.endswith(ending) for name in names)), None
    )
    if by_head is CLASSIFIER and config is not None and len(config.id2label or ()) == 1:
        return SCORER
    if (folder / "modules.json").is_file():
        return ENCODER
    return by_head or (None if config is None else NETWORK)


def model_fault(folder: Path, expected: str = "") -> str:
    """What an error says of a folder that holds no model, or none of the kind `expected`; else nothing."""
    found = kind_of_model(folder)
    if found is None:
        inner = folder / "model"
        hint = f"; give {inner}" if kind_of_model(inner) else ""
        return f"expected a model folder with a config.json, found none in {folder}{hint}"
    wanted = KINDS.get(expected, found)
    if found in {wanted, *ALSO.get(wanted, ())}:
        return ""
    return f"expected {wanted.words}, found in {folder} {found.words}; {found.use}"


def prompts_in(folder: Path) -> list[str]:
    """The names of the prompts of the sentence encoder in `folder`."""
    found = read_model_file(folder / "config_sentence_transformers.json", _Prompts)
    return list(found.prompts or ()) if found else []


def check_kind(folder: Path, expected: str) -> None:
    """Raises RequestError for a folder with the head of another kind than `expected`; others are for its reader."""
    if kind_of_model(folder) not in (None, ENCODER, NETWORK) and (fault := model_fault(folder, expected)):
        raise RequestError(f"model: {fault}")
