"""Models with a head, and linkers, as they are served, each with an engine of its own."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch

from bertrelay.inference.batches import best_batch_tokens
from bertrelay.model.tokenizer import plain_rules
from domain.biomedical.documents.document import Document, Entity
from domain.biomedical.linking.predict import EntityLinker
from domain.biomedical.ner.predict import EntityTagger
from domain.biomedical.qa.data import Question, Reply
from domain.biomedical.qa.predict import QuestionAnswerer, too_long
from domain.biomedical.qa.settings import CANDIDATES
from domain.biomedical.relations.predict import RelationExtractor
from domain.clinical.predict import OutcomeScore, OutcomeScorer, clean_and_join
from pipelines.serve.embedding import in_thread
from pipelines.serve.engine import Compute, Engine, first_only, like_lengths
from pipelines.serve.requests import Refusal, Usage
from pipelines.serve.settings import ServeSettings
from teachers.pairs.model import PairScorer

LONGEST_INPUT = 1 << 20  # tokens, of a model that reads in windows
CHARACTERS_OF_A_TOKEN = 4  # about, where a limit of the queue is all that depends on it

Pair = tuple[str, str]
Text = TypeVar("Text", str, Pair)


def engine_of(compute: Compute, device: torch.device, settings: ServeSettings) -> Engine:
    """The engine of a model whose inputs may be of any length."""
    budget = best_batch_tokens(device, settings.batch_tokens)
    choose = first_only if settings.invariant else like_lengths
    return Engine(compute, budget, LONGEST_INPUT, settings.queue_tokens, choose)


async def count_tokens(texts: Sequence[Text], count: Callable[[Text], int], usage: Usage) -> list[int]:
    """The tokens of each text or pair, at least 1, which `usage` counts."""
    characters = sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts)
    tokens = await in_thread(characters, lambda: [max(1, count(text)) for text in texts])
    usage.tokens += sum(tokens)
    return tokens


class ServedScorer:
    """A cross-encoder or poly-encoder of a server: pairs to scores."""

    kind = "scorer"
    example = ("a question", "a text")

    def __init__(self, name: str, scorer: PairScorer, settings: ServeSettings) -> None:
        self.name, self.scorer, self.settings = name, scorer, settings
        tokenizer = getattr(scorer, "tokenizer", None)
        self._rules = None if tokenizer is None else plain_rules(tokenizer)
        self.engine = engine_of(self._compute, scorer.device, settings)

    @property
    def description(self) -> dict[str, Any]:
        """Facts about the scorer, for lists and the page."""
        return {"max_tokens": self.scorer.max_tokens}

    def _compute(self, pairs: Sequence[Pair]) -> list[float]:
        """The logits of pairs."""
        size, precision = self.settings.batch_tokens, self.settings.precision
        identity = torch.nn.Identity()
        scores = self.scorer.predict(list(pairs), activation_fn=identity, precision=precision, batch_tokens=size)
        return cast(list[float], scores.tolist())

    async def score(
        self, pairs: Sequence[Pair], usage: Usage, *, raw: bool = False, truncate: bool | None = None
    ) -> list[float]:
        """The scores of pairs, from 0 to 1, or the logits if `raw`.

        truncate: cut pairs beyond the longest input, as the settings have it when absent. Raises Refusal otherwise.
        """
        characters = sum(len(first) + len(second) for first, second in pairs)
        tokens = await in_thread(characters, lambda: self._lengths(pairs))
        usage.tokens += sum(tokens)
        cut = await in_thread(characters, lambda: self._cut(pairs, tokens))
        if cut and not (self.settings.truncate if truncate is None else truncate):
            raise Refusal(
                f"expected at most {self.scorer.max_tokens:,} tokens in query and text, found more in text {cut[0]}; "
                "cut it, or set truncate to true",
                "over_limit",
                code="context_length_exceeded",
            )
        usage.cut += len(cut)
        logits = await usage.compute(self.engine, pairs, tokens)
        return logits if raw else cast(list[float], torch.tensor(logits).sigmoid().tolist())

    def _lengths(self, pairs: Sequence[Pair]) -> list[int]:
        return cast(list[int], self.scorer.tokenize(list(pairs)).lengths.tolist())

    def _cut(self, pairs: Sequence[Pair], tokens: Sequence[int]) -> list[int]:
        """The rows of the pairs that are cut, of a scorer that reads both texts in one row."""
        longest, rules = self.scorer.max_tokens, self._rules
        if rules is None:
            return []
        full = [row for row, length in enumerate(tokens) if length >= longest]
        return [row for row in full if len(rules.encode(*pairs[row]).ids) > longest]


class ServedTagger:
    """A tagger of entities of a server."""

    kind = "tagger"
    example = "A text."

    def __init__(self, name: str, tagger: EntityTagger, settings: ServeSettings) -> None:
        self.name, self.tagger, self.settings = name, tagger, settings
        self.engine = engine_of(self._compute, tagger.model.network.device, settings)

    @property
    def description(self) -> dict[str, Any]:
        """Facts about the tagger, for lists and the page."""
        model = self.tagger.model
        return {"types": list(model.labels.types), "max_tokens": model.max_tokens, "overlap": model.overlap}

    def _compute(self, texts: Sequence[str]) -> list[Document]:
        size, precision = self.settings.batch_tokens, self.settings.precision
        return list(self.tagger.pipe(iter(texts), precision=precision, batch_tokens=size))

    async def tag(self, texts: Sequence[str], usage: Usage) -> list[Document]:
        """The documents of texts, with their entities; long texts are read in windows, and nothing is cut."""
        tokens = await count_tokens(texts, self.tagger.count_tokens, usage)
        return await usage.compute(self.engine, texts, tokens)


class ServedLinker:
    """A linker of a server: documents with entities to the same ones with identifiers."""

    kind = "linker"
    example = Document("", "gout", (Entity(0, 4, "Disease"),))

    def __init__(self, name: str, linker: EntityLinker, settings: ServeSettings) -> None:
        self.name, self.linker, self.settings = name, linker, settings
        self.engine = engine_of(self._compute, linker.linker.encoder.device, settings)

    @property
    def description(self) -> dict[str, Any]:
        """Facts about the linker, for lists and the page."""
        dictionary, threshold = self.linker.linker.dictionary, self.linker.linker.threshold
        return {"concepts": len(dictionary.identifiers), "names": len(dictionary.names), "threshold": threshold}

    def _compute(self, documents: Sequence[Document]) -> list[Document]:
        size, precision = self.settings.batch_tokens, self.settings.precision
        return list(self.linker.link_documents(documents, precision=precision, batch_tokens=size))

    async def link(self, documents: Sequence[Document], usage: Usage) -> list[Document]:
        """The documents, whose entities have identifiers in place of their own."""
        characters = [sum(len(entity.text) for entity in document.entities) for document in documents]
        return await usage.compute(self.engine, documents, [1 + size // CHARACTERS_OF_A_TOKEN for size in characters])


class ServedExtractor:
    """A model of a server that finds relations between the entities of documents."""

    kind = "extractor"
    example = Document("", "gout", (Entity(0, 4, "Disease", None, "1"),))

    def __init__(self, name: str, extractor: RelationExtractor, settings: ServeSettings) -> None:
        self.name, self.extractor, self.settings = name, extractor, settings
        self.engine = engine_of(self._compute, extractor.model.network.device, settings)

    @property
    def description(self) -> dict[str, Any]:
        """Facts about the model, for lists and the page."""
        model = self.extractor.model
        facts = {"types": list(model.scheme.types), "level": model.scheme.level, "within": model.scheme.within}
        return {**facts, "max_tokens": model.max_tokens, "overlap": model.overlap}

    def _compute(self, documents: Sequence[Document]) -> list[Document]:
        size, precision = self.settings.batch_tokens, self.settings.precision
        return list(self.extractor.relate_documents(documents, precision=precision, batch_tokens=size))

    async def relate(self, documents: Sequence[Document], usage: Usage) -> list[Document]:
        """The documents with the relations of their entities."""
        tokens = [1 + len(document.text) // CHARACTERS_OF_A_TOKEN for document in documents]
        return await usage.compute(self.engine, documents, tokens)


class ServedAnswerer:
    """A model of a server that answers questions."""

    kind = "answerer"
    example = ("Which?", "A text.")

    def __init__(self, name: str, answerer: QuestionAnswerer, settings: ServeSettings) -> None:
        self.name, self.answerer, self.settings = name, answerer, settings
        self.engine = engine_of(self._compute, answerer.model.network.device, settings)

    @property
    def description(self) -> dict[str, Any]:
        """Facts about the answerer, for lists and the page."""
        model = self.answerer.model
        return {"max_tokens": model.max_tokens, "overlap": model.overlap}

    def _compute(self, pairs: Sequence[Pair]) -> list[Reply | None]:
        questions = [Question(str(row), question, context) for row, (question, context) in enumerate(pairs)]
        size, precision = self.settings.batch_tokens, self.settings.precision
        replies = self.answerer.replies(questions, top=CANDIDATES, precision=precision, batch_tokens=size)
        return [reply for _, reply in replies]

    async def answer(self, pairs: Sequence[Pair], usage: Usage) -> list[Reply]:
        """The replies to pairs of question and context, with all candidates. Raises Refusal for a long question."""
        for question, context in pairs:
            if not question.strip() or not context.strip():
                raise Refusal("expected a question and a context, found an empty one", "empty")
        tokens = await count_tokens(pairs, lambda pair: self.answerer.count_tokens(Question("", *pair)), usage)
        replies = await usage.compute(self.engine, pairs, tokens)
        if None in replies:
            raise Refusal(f"question: {too_long(self.answerer.model)}", param="question")
        return replies


class ServedPredictor:
    """A predictor of patients' outcomes of a server: the notes of an admission to a probability."""

    kind = "predictor"
    example = "A text."

    def __init__(self, name: str, scorer: OutcomeScorer, settings: ServeSettings) -> None:
        self.name, self.scorer, self.settings = name, scorer, settings
        self.engine = engine_of(self._compute, scorer.model.network.device, settings)

    @property
    def task(self) -> str:
        return self.scorer.model.description.task

    @property
    def description(self) -> dict[str, Any]:
        """Facts about the predictor, for lists and the page."""
        stated = self.scorer.model.description
        facts = {"task": stated.task, "labels": stated.labels, "meaning": stated.meaning, "input": stated.input}
        return {**facts, "prevalence": stated.prevalence, "threshold": stated.threshold, "binary": stated.is_binary}

    def _compute(self, texts: Sequence[str]) -> list[OutcomeScore]:
        precision, size = self.settings.precision, self.settings.batch_tokens
        return self.scorer.score_texts(list(texts), precision=precision, batch_tokens=size)

    async def predict(self, notes: Sequence[Sequence[str]], usage: Usage) -> list[tuple[str, OutcomeScore]]:
        """The text that is read of the notes of each admission, and its score; chunks are characters of the text."""
        characters = sum(len(note) for of_one in notes for note in of_one)
        texts = await in_thread(characters, lambda: [clean_and_join(of_one) for of_one in notes])
        tokens = await count_tokens(texts, self.scorer.count_tokens, usage)
        return list(zip(texts, await usage.compute(self.engine, texts, tokens), strict=True))
