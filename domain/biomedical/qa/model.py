"""The network that finds answers: any BERT with a linear map that scores each subword as an answer's first and last.

On disk it is a plain transformers folder that `AutoModelForQuestionAnswering` loads; `qa.json` beside it has the fields
that transformers lacks.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForQuestionAnswering, PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.cache import Cache
from bertrelay.errors import RequestError
from bertrelay.files import write_json
from bertrelay.model.dropout import set_dropout
from bertrelay.model.files import Description, read_model_file
from bertrelay.model.folder import ModelFolder
from bertrelay.model.graph import BackendChoice
from bertrelay.model.heads import Head, HeadNetwork, window_tokens
from bertrelay.model.network import has_types, save_network
from bertrelay.progress import log
from bertrelay.settings import Positive
from bertrelay.sources import model_folder
from domain.biomedical.calibration import Temperature
from domain.biomedical.qa.settings import MAX_TOKENS, QaSettings, default_overlap
from domain.biomedical.qa.subwords import PairSplitter

DESCRIPTION = "qa.json"
HEAD = Head(
    AutoModelForQuestionAnswering,
    "qa_outputs",
    "answerer",
    "network for question answering",
    "answers questions",
    "train it with domain.qa",
    layers=(frozenset({"qa_outputs"}), frozenset({"dropout", "qa_outputs"})),
)


class AnswerFinder(HeadNetwork):
    """A network of transformers that scores subwords as the first and the last one of an answer."""

    def __init__(self, network: PreTrainedModel) -> None:
        super().__init__(network, network.qa_outputs)
        self.has_types = has_types(network)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, choices: Tensor) -> Tensor:
        """All (windows, tokens) to scores as first and last subword, (windows, tokens, 2), float32.

        choices: true where an answer may begin or end; elsewhere the scores are −inf.
        """
        network: Any = self.network
        types = {"token_type_ids": token_type_ids} if self.has_types else {}
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **types).last_hidden_state
        dropped = getattr(network, "dropout", nn.Identity())(hidden)  # (windows, tokens, dim)
        return cast(Tensor, network.qa_outputs(dropped)).masked_fill(~choices[..., None], -torch.inf)


@dataclass(frozen=True)
class AnswerModel:
    """A network that finds answers, with its tokenizer and the settings of its answers.

    max_tokens, overlap: of the windows in which texts are read, in subwords; see QaSettings.
    max_answer_tokens: the longest answer, in subwords.
    threshold: the difference above which no answer is preferred to the best span; None for a model that was trained
        without impossible questions, and always answers.
    temperature: divides scores, so that an answer's probability is calibrated.
    whole_words: true if an answer may neither begin nor end inside a word.
    """

    network: AnswerFinder
    tokenizer: PreTrainedTokenizerFast
    max_tokens: int
    overlap: int
    max_answer_tokens: int = 30
    threshold: float | None = None
    temperature: float = 1.0
    whole_words: bool = True


class _QaDescription(Description):
    """`qa.json`: fields of `AnswerModel`."""

    max_tokens: Positive
    overlap: Positive
    max_answer_tokens: Positive
    threshold: float | None
    temperature: Temperature
    whole_words: bool


def start_model(settings: QaSettings, cache: Cache | None = None) -> AnswerModel:
    """A model before its first step: the BERT of `settings.base`, which may be a sentence encoder, under a new head.

    A model that answers questions already keeps its head. Raises RequestError for a model that cannot answer, or has
    fewer positions than such windows need.
    """
    folder = ModelFolder.find(settings.base, cache=cache)
    config = folder.network_config
    if any(name.endswith("ForQuestionAnswering") for name in (config and config.architectures) or ()):
        network, tokenizer = HEAD.load(folder, "torch")
        if settings.dropout is not None:
            set_dropout(network, settings.dropout)
    else:
        network, tokenizer = HEAD.start(folder, dropout=settings.dropout, seed=settings.seed)
    window = _window(network, settings.max_tokens, settings.overlap)
    finder = AnswerFinder(network)
    return AnswerModel(finder, tokenizer, *window, settings.max_answer_tokens, whole_words=settings.whole_words)


def _window(network: PreTrainedModel, max_tokens: int | None = None, overlap: int | None = None) -> tuple[int, int]:
    """`max_tokens` and `overlap`, or their defaults. Raises RequestError for those that the network cannot read by."""
    size = window_tokens(network, max_tokens, MAX_TOKENS)
    overlap = default_overlap(size) if overlap is None else overlap
    if overlap >= size:
        raise RequestError(f"overlap: expected less than max_tokens, which is {size}, found {overlap}; lower it")
    return size, overlap


def save_model(model: AnswerModel, folder: Path) -> None:
    """Writes the folder that `load_model` and transformers read."""
    save_network(model.network.network, model.tokenizer, folder)
    write_json(folder / DESCRIPTION, {name: getattr(model, name) for name in _QaDescription.model_fields})


def load_model(source: str | Path, cache: Cache | None = None, backend: BackendChoice = None) -> AnswerModel:
    """The model of a folder that `save_model` wrote, or of any BERT of transformers that answers questions.

    backend: as of `SentenceEncoder.load`.
    Raises RequestError for a folder without one, or with a damaged one.
    """
    folder = model_folder(source, cache=cache)
    network, tokenizer = HEAD.load(ModelFolder(folder), backend)
    PairSplitter(tokenizer)  # raises for one that cannot frame a pair of texts
    finder, description = AnswerFinder(network).eval(), read_model_file(folder / DESCRIPTION, _QaDescription)
    if description is None:
        file = folder / DESCRIPTION
        log(f"model: warning: no {file}, which domain.qa writes; windows, threshold and temperature are the defaults")
        return AnswerModel(finder, tokenizer, *_window(network))
    _window(network, description.max_tokens, description.overlap)  # raises for more tokens than positions
    return AnswerModel(finder, tokenizer, **description.model_dump())
