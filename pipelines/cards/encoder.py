"""The card of a sentence encoder."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from langcodes import Language

from bertrelay.model.encoder import SentenceEncoder
from pipelines.cards.content import Subject
from pipelines.cards.results import Result, measured_names, model_verdicts
from pipelines.cards.settings import CardSettings
from students.evaluate.verdicts import of_nearness, worst_of
from students.parallel.settings import ENGLISH

SENTENCE_TRANSFORMERS = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{model}")
vectors = model.encode(["A dog barks.", "It rains."])
print(model.similarity(vectors, vectors))"""
BERTRELAY = """\
from bertrelay import SentenceEncoder

encoder = SentenceEncoder.load("{model}")
vectors = encoder.encode(["A dog barks.", "It rains."])"""


def describe(settings: CardSettings, results: Sequence[Result], folder: Path) -> Subject:
    """The statements on the encoder in `folder`."""
    encoder = SentenceEncoder.load(folder, "cpu", backend="torch")
    trained = (tag for result in results if result.corpus for tag in result.corpus["train"])
    languages = settings.languages or list(dict.fromkeys([ENGLISH, *trained]))
    maps = "was trained to map" if any(verdict.level == "fail" for _, verdict in model_verdicts(results)) else "maps"
    whichever = ", in whatever of these languages they are" if len(languages) > 1 else ""
    facts = {
        "dimensions": f"{encoder.dim}",
        "parameters": f"{sum(weights.numel() for weights in encoder.parameters()):,}",
        "longest input": f"{encoder.max_tokens} tokens",
        "similarity": encoder.similarity_fn_name,
        "pooling": ", ".join(encoder.pooling.modes),
    }
    if encoder.prompts.texts:
        facts["prompts"] = "; ".join(f"{name}: `{text}`" for name, text in encoder.prompts.texts.items())
    return Subject(
        library="sentence-transformers",
        task="sentence-similarity",
        tags=[
            *("sentence-transformers", "sentence-similarity", "feature-extraction"),
            *(["multilingual"] if len(languages) > 1 else []),
        ],
        opening=[
            f"A sentence encoder for {', '.join(languages)}. It {maps} sentences to vectors of {encoder.dim} "
            f"dimensions, in which sentences of like meaning are near one another{whichever}.",
            *_nearness(results, languages),
        ],
        facts=facts,
        examples={
            "With [sentence-transformers](https://www.sbert.net):": SENTENCE_TRANSFORMERS,
            "With BertRelay:": BERTRELAY,
        },
        limits=list(_limits(encoder, languages, results)),
        languages=list(dict.fromkeys(str(Language.get(tag).language) for tag in languages)),
    )


def _nearness(results: Sequence[Result], languages: Sequence[str]) -> Iterator[str]:
    """Yields the relation of the vectors to the teacher's, as far as it was measured."""
    nearness = of_nearness(worst_of(result.done.metrics for result in results if result.is_of_model), languages)
    if nearness is None:
        return
    if nearness.is_one_space:
        yield (
            "The model and its teacher share one vector space on the sentences they were compared on: "
            f"{nearness.text}. So the vectors of one can be compared with the other's, and an index of the teacher's "
            "searched with this model."
        )
    elif nearness.is_one_space is None:
        yield (
            f"Beside the teacher, on the sentences they were compared on: {nearness.text}. Search in an index of the "
            "teacher's vectors was not measured."
        )
    else:
        yield (
            f"This is not the teacher's vector space. On the sentences they were compared on: {nearness.text}. Compare "
            "this model's vectors with each other, and not with the teacher's unless the search that you need was "
            "measured."
        )


def _limits(encoder: SentenceEncoder, languages: Sequence[str], results: Sequence[Result]) -> Iterator[str]:
    """Yields the recorded limits of the model's use."""
    yield f"Longer inputs are cut to {encoder.max_tokens:,} tokens, special tokens included."
    if untested := [tag for tag in languages if tag not in measured_names(results)]:
        yield f"No test above is in {', '.join(untested)}."
    yield "Languages and domains other than those of the training data and tests above are not measured."
    yield (
        "Biases of the models it was made from and of their data stay; vectors compare meaning as these data show it, "
        "and are no proof that two texts say the same."
    )
