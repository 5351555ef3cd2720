"""The network that finds answers: any BERT with a linear map that scores each subword as an answer's first and last.

A second linear map, of the first subword's vector, may say yes or no. On disk it is a plain transformers folder that
`AutoModelForQuestionAnswering` loads; `qa.json` and `yesno.safetensors` beside it have what transformers lacks.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import torch
from pydantic import Field
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForQuestionAnswering, PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.cache import Cache
from bertrelay.errors import RequestError
from bertrelay.files import write_json, write_tensors
from bertrelay.model.dropout import set_dropout
from bertrelay.model.files import Description, explain_unreadable, read_model_file
from bertrelay.model.folder import ModelFolder
from bertrelay.model.graph import BackendChoice
from bertrelay.model.heads import FullPrecision, Head, HeadNetwork, window_tokens
from bertrelay.model.network import has_types, save_network
from bertrelay.progress import log
from bertrelay.settings import Positive
from bertrelay.sources import model_folder
from domain.biomedical.calibration import Temperature
from domain.biomedical.qa.settings import LIST_MARGIN, MAX_TOKENS, QaSettings, default_overlap
from domain.biomedical.qa.subwords import PairSplitter

DESCRIPTION, YESNO_WEIGHTS = "qa.json", "yesno.safetensors"
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
    """A network of transformers that scores subwords as the first and the last one of an answer.

    yesno: gives the log-odds of yes from the vector of a window's first subword; None without yes/no questions.
    """

    def __init__(self, network: PreTrainedModel, yesno: nn.Linear | None = None) -> None:
        super().__init__(network, network.qa_outputs)
        self.has_types, self.yesno = has_types(network), yesno

    def add_yesno(self, seed: int) -> None:
        """Adds a new head for yes/no questions, drawn from `seed`, to a network without one."""
        if self.yesno is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                self.yesno = FullPrecision(self.network.config.hidden_size, 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, choices: Tensor) -> Tensor:
        """All (windows, tokens) to scores as first and last subword, (windows, tokens, 2), float32.

        With a yes/no head (windows, tokens, 3): the third number of the first token is the log-odds of yes.
        choices: true where an answer may begin or end; elsewhere the scores are −inf.
        """
        network: Any = self.network
        types = {"token_type_ids": token_type_ids} if self.has_types else {}
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **types).last_hidden_state
        dropped = getattr(network, "dropout", nn.Identity())(hidden)  # (windows, tokens, dim)
        scores = cast(Tensor, network.qa_outputs(dropped)).masked_fill(~choices[..., None], -torch.inf)
        return scores if self.yesno is None else torch.cat([scores, self.yesno(dropped)], dim=-1)


@dataclass(frozen=True)
class AnswerModel:
    """A network that finds answers, with its tokenizer and the settings of its answers.

    max_tokens, overlap: of the windows in which texts are read, in subwords; see QaSettings.
    max_answer_tokens: the longest answer, in subwords.
    threshold: the difference above which no answer is preferred to the best span; None for a model that was trained
        without impossible questions, and always answers.
    temperature: divides scores, so that an answer's probability is calibrated.
    list_margin: how far the score of an entry of a list may be below that of its best one.
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
    list_margin: float = LIST_MARGIN


class _QaDescription(Description):
    """`qa.json`: fields of `AnswerModel`."""

    max_tokens: Positive
    overlap: Positive
    max_answer_tokens: Positive
    threshold: float | None
    temperature: Temperature
    whole_words: bool
    list_margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] = LIST_MARGIN


def start_model(settings: QaSettings, cache: Cache | None = None) -> AnswerModel:
    """A model before its first step: the BERT of `settings.base`, which may be a sentence encoder, under a new head.

    A model that answers questions already keeps its head. Raises RequestError for a model that cannot answer, or has
    fewer positions than such windows need.
    """
    folder = ModelFolder.find(settings.base, cache=cache)
    config = folder.network_config
    yesno = None
    if any(name.endswith("ForQuestionAnswering") for name in (config and config.architectures) or ()):
        network, tokenizer = HEAD.load(folder, "torch")
        yesno = _load_yesno(network, folder.path)
        if settings.dropout is not None:
            set_dropout(network, settings.dropout)
    else:
        network, tokenizer = HEAD.start(folder, dropout=settings.dropout, seed=settings.seed)
    window = _window(network, settings.max_tokens, settings.overlap)
    finder = AnswerFinder(network, yesno)
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
    (folder / YESNO_WEIGHTS).unlink(missing_ok=True)  # of an earlier model
    if model.network.yesno is not None:
        write_tensors(folder / YESNO_WEIGHTS, model.network.yesno.state_dict())
    write_json(folder / DESCRIPTION, {name: getattr(model, name) for name in _QaDescription.model_fields})


def _load_yesno(network: PreTrainedModel, folder: Path) -> nn.Linear | None:
    """The head for yes/no questions, if the folder has one. Raises RequestError for a damaged one."""
    if not (file := folder / YESNO_WEIGHTS).exists():
        return None
    head = FullPrecision(network.config.hidden_size, 1)
    with explain_unreadable(file, "the head of yes/no questions"):
        head.load_state_dict(load_file(file))
    return head


def load_model(source: str | Path, cache: Cache | None = None, backend: BackendChoice = None) -> AnswerModel:
    """The model of a folder that `save_model` wrote, or of any BERT of transformers that answers questions.

    backend: as of `SentenceEncoder.load`.
    Raises RequestError for a folder without one, or with a damaged one.
    """
    folder = model_folder(source, cache=cache)
    network, tokenizer = HEAD.load(ModelFolder(folder), backend)
    PairSplitter(tokenizer)  # raises for one that cannot frame a pair of texts
    finder = AnswerFinder(network, _load_yesno(network, folder)).eval()
    description = read_model_file(folder / DESCRIPTION, _QaDescription)
    if description is None:
        file = folder / DESCRIPTION
        log(f"model: warning: no {file}, which domain.qa writes; windows, threshold and temperature are the defaults")
        return AnswerModel(finder, tokenizer, *_window(network))
    _window(network, description.max_tokens, description.overlap)  # raises for more tokens than positions
    return AnswerModel(finder, tokenizer, **description.model_dump())
