"""The cards of taggers, answerers, and scorers of pairs."""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from domain.biomedical.ner.model import load_model as load_tagger
from domain.biomedical.qa.model import load_model as load_answerer
from pipelines.cards.content import Subject, literal
from pipelines.cards.results import Result
from pipelines.cards.settings import CardSettings
from teachers.pairs.model import CrossEncoder
from teachers.pairs.rerank import load_scorer

TAGGER = """\
from domain.biomedical import EntityTagger

tagger = EntityTagger.load("{model}")
for entity in tagger("Aspirin helps against fever.").entities:
    print(entity.text, entity.start, entity.end, entity.type, entity.confidence)"""
ANSWERER = """\
from domain.biomedical import QuestionAnswerer

answerer = QuestionAnswerer.load("{model}")
reply = answerer("What helps against fever?", "Aspirin helps against fever.")
print(reply.answer, reply.start, reply.end, reply.probability)"""
CROSS_ENCODER = """\
from sentence_transformers import CrossEncoder

model = CrossEncoder("{model}")
print(model.predict([("A dog barks.", "It is a dog."), ("A dog barks.", "It rains.")]))"""
SCORER = """\
from teachers import load_scorer

scorer = load_scorer("{model}")
print(scorer.predict([("A dog barks.", "It is a dog."), ("A dog barks.", "It rains.")]))"""
OTHER_DATA = "Languages, domains and annotation guidelines other than those of the data above are not measured."
BIASES = "Biases of the base and of the data stay."


def describe_tagger(settings: CardSettings, results: Sequence[Result], folder: Path) -> Subject:  # noqa: ARG001
    """The statements on the tagger in `folder`."""
    model = load_tagger(folder, backend="torch")
    types = [literal(name) for name in model.labels.types]
    decoder = "a linear map" if model.network.crf is None else "a linear map and a CRF"
    return Subject(
        library="transformers",
        task="token-classification",
        tags=["named-entity-recognition"],
        opening=[
            f"A tagger of entities: {', '.join(types)}. It gives each entity with its characters in the text, its type "
            "and a confidence.",
            "`AutoModelForTokenClassification` of transformers loads the network and its tags; windows, legal "
            "sequences of tags and calibrated confidences come from BertRelay.",
        ],
        facts={
            "entity types": ", ".join(types),
            "parameters": _parameters(model.network),
            "head": f"{decoder}, tags in {model.labels.scheme}",
            "windows": f"{model.max_tokens} tokens, which overlap by {model.overlap}",
            "temperature of the confidences": f"{model.temperature:.3f}",
        },
        examples={"With BertRelay:": TAGGER},
        limits=[
            "Entities of other types, and those inside another one, are not found.",
            "A confidence is calibrated on the dev data of the training; on other texts it may be too high.",
            OTHER_DATA,
            BIASES,
        ],
    )


def describe_answerer(settings: CardSettings, results: Sequence[Result], folder: Path) -> Subject:  # noqa: ARG001
    """The statements on the model that answers questions in `folder`."""
    model = load_answerer(folder, backend="torch")
    may_decline = model.threshold is not None
    return Subject(
        library="transformers",
        task="question-answering",
        tags=["extractive-qa"],
        opening=[
            "It answers a question by a span of the text beside it, with a probability"
            f"{', or finds that there is no answer in the text' if may_decline else ''}.",
            "`AutoModelForQuestionAnswering` of transformers loads the network; windows, whole words and calibrated "
            "probabilities come from BertRelay.",
        ],
        facts={
            "parameters": _parameters(model.network),
            "windows": f"{model.max_tokens} tokens, which overlap by {model.overlap}",
            "longest answer": f"{model.max_answer_tokens} tokens",
            "temperature of the probabilities": f"{model.temperature:.3f}",
        },
        examples={"With BertRelay:": ANSWERER},
        limits=[
            "An answer is a span of the text: it is not put into other words, nor joined from several places.",
            "A text without an answer may still get one, with a low probability."
            if may_decline
            else "It was trained on questions with an answer in their text, and always gives one.",
            OTHER_DATA,
            BIASES,
        ],
    )


def describe_scorer(settings: CardSettings, results: Sequence[Result], folder: Path) -> Subject:  # noqa: ARG001
    """The statements on the cross-encoder or poly-encoder in `folder`."""
    model = load_scorer(folder, device="cpu")
    is_cross = isinstance(model, CrossEncoder)
    reads = (
        "A cross-encoder: it reads both sentences of a pair at once"
        if is_cross
        else "A poly-encoder (Humeau et al. 2020): a few learned codes attend to the first sentence of a pair"
    )
    standard = {"With [sentence-transformers](https://www.sbert.net):": CROSS_ENCODER} if is_cross else {}
    return Subject(
        library="sentence-transformers" if is_cross else "bertrelay",
        task="text-ranking",
        tags=["cross-encoder", "reranker"] if is_cross else ["poly-encoder", "reranker"],
        opening=[f"{reads}, and gives a score from 0 to 1, as its training data score pairs."],
        facts={
            "parameters": _parameters(model),
            "longest input": f"{model.max_tokens} tokens" + (", of both sentences together" if is_cross else ""),
        },
        examples={**standard, "With BertRelay:": SCORER},
        limits=[
            f"Longer inputs are cut to {model.max_tokens:,} tokens, special tokens included.",
            "Scores order pairs; they are no probabilities that two sentences mean the same.",
            OTHER_DATA,
            BIASES,
        ],
    )


def _parameters(network: nn.Module) -> str:
    return f"{sum(weights.numel() for weights in network.parameters()):,}"
