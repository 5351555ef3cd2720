"""The network that tags words: any BERT with a linear map on each word's first subword, and optionally a CRF.

Its folder is one of transformers, which `AutoModelForTokenClassification` loads, with `ner.json` beside it for the
settings that transformers does not have, and `crf.safetensors` for a CRF.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForTokenClassification, PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.cache import Cache
from bertrelay.data.tokens import pad_rows
from bertrelay.errors import RequestError
from bertrelay.files import write_json, write_tensors
from bertrelay.model.files import Description, explain_unreadable, read_model_file
from bertrelay.model.folder import ModelFolder
from bertrelay.model.graph import BackendChoice
from bertrelay.model.heads import Head, HeadNetwork, window_tokens
from bertrelay.model.network import has_types, save_network
from bertrelay.model.tokenizer import lowers_case
from bertrelay.progress import log
from bertrelay.sources import model_folder
from domain.biomedical.calibration import Temperature
from domain.biomedical.documents.tags import OUTSIDE, Scheme, split_tag
from domain.biomedical.ner.decoding import Chain, LabelSet
from domain.biomedical.ner.settings import NerSettings
from domain.biomedical.ner.subwords import SPECIALS, WordSplitter
from domain.text.windows import Integers

ILLEGAL = -1e4
"""The score of an illegal tag: low enough never to be chosen, and finite, for finite gradients."""


class WordSequences(NamedTuple):
    """Sequences of neighbouring words of a batch, none of them empty.

    words: the indices of a sequence's words in the batch, padded, (sequences, longest). mask: true for words.
    opens, closes: true where a sequence begins or ends its sentence; windows may cut one, (sequences,).
    """

    words: Tensor
    mask: Tensor
    opens: Tensor
    closes: Tensor

    @classmethod
    def of(cls, lengths: Integers, opens: NDArray[np.bool_], closes: NDArray[np.bool_]) -> "WordSequences":
        """Sequences of `lengths` words, (sequences,), one after the other; empty ones are left out.

        Lengths [2, 0, 1] give the words [[0, 1], [2, 0]] with the mask [[true, true], [true, false]].
        """
        is_filled, starts = lengths > 0, np.cumsum(lengths) - lengths
        longest = int(lengths.max(initial=1))
        words, mask = pad_rows(np.arange(lengths.sum()), starts[is_filled], lengths[is_filled], longest, 0)
        return cls(*map(torch.from_numpy, (words, mask, opens[is_filled], closes[is_filled])))


class LinearChain(nn.Module):
    """A linear-chain CRF: learned scores of the tags that begin a sentence, follow one another, and end it.

    Illegal sequences have the probability 0, in training too.
    """

    illegal_start: Tensor
    illegal_follow: Tensor
    illegal_end: Tensor

    def __init__(self, labels: LabelSet) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(len(labels)))
        self.follow = nn.Parameter(torch.zeros(len(labels), len(labels)))  # (from, to)
        self.end = nn.Parameter(torch.zeros(len(labels)))
        for name, scores in labels.legal_chain._asdict().items():
            finite = torch.from_numpy(scores).float().clamp(min=ILLEGAL)
            self.register_buffer(f"illegal_{name}", finite, persistent=False)

    def log_likelihood(
        self, emissions: Tensor, tags: Tensor, sequences: WordSequences, possible: Tensor | None = None
    ) -> Tensor:
        """Log P(tags | emissions) of each sequence of words, (sequences,).

        emissions: (words, tags), tags: (words,).
        possible: tags that a word may have, (words, tags); then P of all sequences of these tags together, in place of
            `tags`.
        """
        if possible is not None:
            possible_mass = self._log_mass(emissions.masked_fill(~possible, ILLEGAL), sequences)
            return possible_mass - self._log_mass(emissions, sequences)
        scores, gold = emissions[sequences.words], tags[sequences.words]  # (sequences, longest, tags) and without tags
        start, follow, end = self._transitions(sequences)
        mask = sequences.mask

        emitted = scores.gather(2, gold[..., None]).squeeze(2)  # (sequences, longest)
        followed = follow[gold[:, :-1], gold[:, 1:]]
        last = gold.gather(1, mask.sum(1, keepdim=True) - 1)  # (sequences, 1)
        borders = start.gather(1, gold[:, :1]).squeeze(1) + end.gather(1, last).squeeze(1)
        gold_score = borders + (emitted * mask).sum(1) + (followed * mask[:, 1:]).sum(1)  # (sequences,)
        return gold_score - self._log_mass(emissions, sequences)

    def _transitions(self, sequences: WordSequences) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the first tags, (sequences, tags), of following ones, (from, to), and of the last, as the first."""
        start = (self.start + self.illegal_start) * sequences.opens[:, None]
        end = (self.end + self.illegal_end) * sequences.closes[:, None]
        return start, self.follow + self.illegal_follow, end

    def _log_mass(self, emissions: Tensor, sequences: WordSequences) -> Tensor:
        """The logarithm of the summed exp(score) of all sequences of tags, (sequences,)."""
        start, follow, end = self._transitions(sequences)
        scores = emissions[sequences.words]  # (sequences, longest, tags)
        log_alpha = start + scores[:, 0]  # (sequences, tags): log of the forward variables α
        for word in range(1, scores.shape[1]):
            further = torch.logsumexp(log_alpha[:, :, None] + follow, dim=1) + scores[:, word]
            log_alpha = torch.where(sequences.mask[:, word, None], further, log_alpha)
        return torch.logsumexp(log_alpha + end, dim=1)


class TokenClassifier(HeadNetwork):
    """Subwords to a score for each tag of each word.

    network: a token classifier of transformers.
    crf: scores of neighbouring tags; None for a softmax at each word.
    """

    def __init__(self, network: PreTrainedModel, crf: LinearChain | None = None) -> None:
        super().__init__(network, network.classifier)
        self.crf = crf

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, first_subwords: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Emissions of words, (words, tags), float32, from inputs (windows, tokens).

        first_subwords: indices of the words' first subwords in the flattened batch, (words,).
        """
        network: Any = self.network
        marks = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **marks).last_hidden_state
        vectors = network.dropout(hidden.flatten(0, 1)[first_subwords])  # (words, dim)
        return cast(Tensor, network.classifier(vectors))


DESCRIPTION, CRF_WEIGHTS = "ner.json", "crf.safetensors"
MAX_TOKENS = 256
HEAD = Head(
    AutoModelForTokenClassification,
    "classifier",
    "tagger",
    "token classifier",
    "tags entities",
    "train it with domain.ner",
    layers=(frozenset({"dropout", "classifier"}),),
)


class _NerDescription(Description):
    """`ner.json`: fields of `EntityModel`."""

    scheme: Scheme
    decoder: Literal["softmax", "crf"]
    max_tokens: Annotated[int, Field(ge=SPECIALS + 1)]
    overlap: Annotated[int, Field(ge=0)]
    temperature: Temperature
    capitals: bool


@dataclass(frozen=True)
class EntityModel:
    """A network that finds entities, with its tokenizer, tags and calibration.

    max_tokens, overlap: of the windows in which long sentences are read, in subwords.
    temperature: divides scores, so that the probability of an entity is a calibrated confidence.
    capitals: words with two capitals or more have the second token type, which transformers does not give them.
    """

    network: TokenClassifier
    tokenizer: PreTrainedTokenizerFast
    labels: LabelSet
    max_tokens: int
    overlap: int
    temperature: float = 1.0
    capitals: bool = False

    @cached_property
    def splitter(self) -> WordSplitter:
        return WordSplitter(self.tokenizer, self.capitals)

    @property
    def chain(self) -> Chain:
        """Scores of neighbouring tags: the legal ones, plus the scores of the CRF if there is one."""
        legal, crf = self.labels.legal_chain, self.network.crf
        if crf is None:
            return legal
        trained = (scores.detach().cpu().double().numpy() for scores in (crf.start, crf.follow, crf.end))
        return Chain(*(scores + learned for scores, learned in zip(legal, trained, strict=True)))


def start_model(settings: NerSettings, labels: LabelSet, cache: Cache | None = None) -> EntityModel:
    """A model before its first step: the BERT of `settings.base`, also that of a sentence encoder, and a new head.

    The embedding of the token type of capitals starts as a copy of the first type's.
    Raises RequestError for a base that cannot tag, or has too few positions for the windows.
    """
    tags = {"id2label": dict(enumerate(labels.tags)), "label2id": dict(labels.number)}
    network, tokenizer = HEAD.start(settings.base, tags, dropout=settings.dropout, seed=settings.seed, cache=cache)
    capitals = settings.capitals and _can_mark_capitals(network, tokenizer)
    if capitals:
        token_types = network.base_model.get_parameter("embeddings.token_type_embeddings.weight").data  # (types, dim)
        token_types[1] = token_types[0]
    window = _window(network, settings.max_tokens, settings.overlap)
    classifier = TokenClassifier(network, LinearChain(labels) if settings.decoder == "crf" else None)
    return EntityModel(classifier, tokenizer, labels, *window, capitals=capitals)


def _can_mark_capitals(network: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> bool:
    """True if the base has a second token type for capitals and a lower-cased vocabulary; logs the reason if not."""
    if not lowers_case(tokenizer):
        reason = "base's vocabulary has capitals"
    elif not has_types(network):
        reason = f"base, {network.config.model_type}, has no second token type"
    else:
        return True
    log(f"capitals: the {reason}, so they are not marked")
    return False


def _window(network: PreTrainedModel, max_tokens: int | None = None, overlap: int | None = None) -> tuple[int, int]:
    size = window_tokens(network, max_tokens, MAX_TOKENS)
    overlap = size // 4 if overlap is None else overlap
    if overlap > size // 2:
        raise RequestError(f"overlap: expected at most half of max_tokens, which is {size}, found {overlap}; lower it")
    return size, overlap


def save_model(model: EntityModel, folder: Path) -> None:
    """Writes the folder that `load_model` and transformers read."""
    save_network(model.network.network, model.tokenizer, folder)
    crf = model.network.crf
    (folder / CRF_WEIGHTS).unlink(missing_ok=True)  # of an earlier model
    if crf is not None:
        write_tensors(folder / CRF_WEIGHTS, crf.state_dict())
    kinds = {"scheme": model.labels.scheme, "decoder": "softmax" if crf is None else "crf"}
    windows = {name: getattr(model, name) for name in ("max_tokens", "overlap", "temperature", "capitals")}
    write_json(folder / DESCRIPTION, {**kinds, **windows})


def load_model(source: str | Path, cache: Cache | None = None, backend: BackendChoice = None) -> EntityModel:
    """Loads a model that domain.ner trained, or any token classifier whose tags are IOB2 or IOBES.

    Tags of no entity, such as `X` and `PAD`, count as O, which is logged.
    backend: as in `SentenceEncoder.load`.
    Raises RequestError for a folder without such a model, or a damaged one.
    """
    folder = model_folder(source, cache=cache)
    network, tokenizer = HEAD.load(ModelFolder(folder), backend)
    file = folder / DESCRIPTION
    description = read_model_file(file, _NerDescription)
    has_crf = description is not None and description.decoder == "crf"
    if (folder / CRF_WEIGHTS).exists() and not has_crf:
        raise RequestError(
            f"model: expected {file} to name the decoder crf, for {CRF_WEIGHTS} is beside it, found "
            f"{description.decoder if description else 'no such file'}; copy the whole folder again into a new one"
        )
    labels = _labels(network, description.scheme if description else None, folder)
    crf = LinearChain(labels) if has_crf else None
    if crf is not None:
        with explain_unreadable(folder / CRF_WEIGHTS, f"the CRF of {len(labels)} tags"):
            crf.load_state_dict(load_file(folder / CRF_WEIGHTS))
    classifier = TokenClassifier(network, crf).eval()
    if description is None:
        log(f"model: warning: no {file}, which domain.ner writes; the default windows and no temperature are used")
        model = EntityModel(classifier, tokenizer, labels, *_window(network))
    else:
        window = _window(network, description.max_tokens, description.overlap)
        model = EntityModel(classifier, tokenizer, labels, *window, description.temperature, description.capitals)
    _ = model.splitter  # raises for a tokenizer without the special tokens
    return model


def _labels(network: PreTrainedModel, scheme: Scheme | None, folder: Path) -> LabelSet:
    names = {int(number): str(name) for number, name in (network.config.id2label or {}).items()}
    tags = tuple(names[number] for number in sorted(names))
    if scheme is None:
        scheme = "IOBES" if any(split_tag(tag)[0] in ("E", "S") for tag in tags) else "IOB2"
    if others := [tag for tag in tags if OUTSIDE in tags and tag not in {*"BILOUES"} and "-" not in tag]:
        tags = tuple(OUTSIDE if tag in others else tag for tag in tags)  # of padding and parts of words
        log(f"model: the tags {', '.join(others)} are of no entity, and count as {OUTSIDE}")
    try:
        return LabelSet(tags, scheme)
    except ValueError as error:
        raise RequestError(f"model: {folder / 'config.json'}: id2label: {error}") from error
