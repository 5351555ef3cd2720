"""The network that tags words: any BERT with a linear map on each word's first subword, and optionally a CRF.

On disk it is a plain transformers folder that `AutoModelForTokenClassification` loads, with `ner.json` beside it for
what transformers has no place for, and `crf.safetensors` where there is a CRF.
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
"""The score of what may not be: so low that it never is, and finite, so that gradients are."""


class WordSequences(NamedTuple):
    """Neighbouring words of a batch, none of the sequences empty.

    words: those of each sequence, by their number in the batch, (sequences, longest), where `mask`, likewise, is true.
    opens, closes: whether one begins and ends its sentence, which it does not where windows cut it, (sequences,).
    """

    words: Tensor
    mask: Tensor
    opens: Tensor
    closes: Tensor

    @classmethod
    def of(cls, lengths: Integers, opens: NDArray[np.bool_], closes: NDArray[np.bool_]) -> "WordSequences":
        """Sequences of so many words each, (sequences,), which follow each other; empty ones are left out."""
        own, starts = lengths > 0, np.cumsum(lengths) - lengths
        words, mask = pad_rows(np.arange(lengths.sum()), starts[own], lengths[own], int(lengths.max(initial=1)), 0)
        return cls(*map(torch.from_numpy, (words, mask, opens[own], closes[own])))


class LinearChain(nn.Module):
    """Learned scores of what begins, follows and ends a sentence's tags, on top of what may.

    Illegal sequences have no probability, in training neither.
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

    def log_likelihood(self, emissions: Tensor, tags: Tensor, sequences: WordSequences) -> Tensor:
        """Log P(tags | emissions) of each sequence of words, (sequences,).

        emissions: (words, tags), tags: (words,).
        """
        mask, opens, closes = sequences.mask, sequences.opens, sequences.closes
        scores = emissions[sequences.words]  # (sequences, longest, tags)
        gold = tags[sequences.words]  # (sequences, longest)
        start = (self.start + self.illegal_start) * opens[:, None]  # (sequences, tags)
        end = (self.end + self.illegal_end) * closes[:, None]
        follow = self.follow + self.illegal_follow

        emitted = scores.gather(2, gold[..., None]).squeeze(2)  # (sequences, longest)
        followed = follow[gold[:, :-1], gold[:, 1:]]
        last = gold.gather(1, mask.sum(1, keepdim=True) - 1)  # (sequences, 1)
        borders = start.gather(1, gold[:, :1]).squeeze(1) + end.gather(1, last).squeeze(1)
        of_gold = borders + (emitted * mask).sum(1) + (followed * mask[:, 1:]).sum(1)  # (sequences,)

        so_far = start + scores[:, 0]  # (sequences, tags): the log of the summed exponentials of all sequences' scores
        for word in range(1, scores.shape[1]):
            further = torch.logsumexp(so_far[:, :, None] + follow, dim=1) + scores[:, word]
            so_far = torch.where(mask[:, word, None], further, so_far)
        return of_gold - torch.logsumexp(so_far + end, dim=1)


class TokenClassifier(HeadNetwork):
    """Subwords to a score for each tag of each word.

    network: one of transformers' for token classification.
    crf: learned scores of neighbouring tags; None for a softmax at each word.
    """

    def __init__(self, network: PreTrainedModel, crf: LinearChain | None = None) -> None:
        super().__init__(network, network.classifier)
        self.crf = crf

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, places: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """(windows, tokens) and places in the flattened batch, (words,), to emissions (words, tags), float32."""
        network: Any = self.network
        marks = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **marks).last_hidden_state
        vectors = network.dropout(hidden.flatten(0, 1)[places])  # (words, dim)
        return cast(Tensor, network.classifier(vectors))


# The model and its folder

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
    """All that is needed to find entities: a network, its tokenizer and tags, and how sure it may be.

    max_tokens, overlap: of the windows in which long sentences are read, in subwords.
    temperature: what scores are divided by, so that an entity's probability is a good confidence.
    capitals: whether words with two capitals or more get the second token type, which transformers would not give them.
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
        """Which tags may follow which, with the scores of the CRF where there is one."""
        legal, crf = self.labels.legal_chain, self.network.crf
        if crf is None:
            return legal
        trained = (each.detach().cpu().double().numpy() for each in (crf.start, crf.follow, crf.end))
        return Chain(*(scores + more for scores, more in zip(legal, trained, strict=True)))


def start_model(settings: NerSettings, labels: LabelSet, cache: Cache | None = None) -> EntityModel:
    """A model before its first step: the BERT of `settings.base`, a sentence encoder's among them, and a new head.

    The token type of capitals begins as the first one is. Raises RequestError for a model that cannot tag, or has not
    the positions for such windows.
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
    """Whether a second token type is there for it, and needed; logs why not."""
    if not lowers_case(tokenizer):
        why = "base's vocabulary has capitals"
    elif not has_types(network):
        why = f"base, {network.config.model_type}, has no second token type"
    else:
        return True
    log(f"capitals: the {why}, so they are not marked")
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
    (folder / CRF_WEIGHTS).unlink(missing_ok=True)  # of a model that was here before
    if crf is not None:
        write_tensors(folder / CRF_WEIGHTS, crf.state_dict())
    kinds = {"scheme": model.labels.scheme, "decoder": "softmax" if crf is None else "crf"}
    windows = {name: getattr(model, name) for name in ("max_tokens", "overlap", "temperature", "capitals")}
    write_json(folder / DESCRIPTION, {**kinds, **windows})


def load_model(source: str | Path, cache: Cache | None = None, backend: BackendChoice = None) -> EntityModel:
    """The model of a folder that a training here wrote, or of any token classifier whose tags are IOB2 or IOBES.

    Tags of no entity, such as `X` and `PAD`, count as O, which is logged.
    backend: as of `SentenceEncoder.load`.
    Raises RequestError for a folder that has none, or one that is damaged.
    """
    folder = model_folder(source, cache=cache)
    network, tokenizer = HEAD.load(ModelFolder(folder), backend)
    file = folder / DESCRIPTION
    found = read_model_file(file, _NerDescription)
    has_crf = found is not None and found.decoder == "crf"
    if (folder / CRF_WEIGHTS).exists() and not has_crf:
        raise RequestError(
            f"model: expected {file} to name the decoder crf, for {CRF_WEIGHTS} is beside it, found "
            f"{found.decoder if found else 'no such file'}; copy the folder again, whole and into a new one"
        )
    labels = _labels(network, found.scheme if found else None, folder)
    crf = LinearChain(labels) if has_crf else None
    if crf is not None:
        with explain_unreadable(folder / CRF_WEIGHTS, f"the CRF of {len(labels)} tags"):
            crf.load_state_dict(load_file(folder / CRF_WEIGHTS))
    classifier = TokenClassifier(network, crf).eval()
    if found is None:
        log(f"model: warning: no {file}, which domain.ner writes; windows and temperature are the usual")
        model = EntityModel(classifier, tokenizer, labels, *_window(network))
    else:
        window = _window(network, found.max_tokens, found.overlap)
        model = EntityModel(classifier, tokenizer, labels, *window, found.temperature, found.capitals)
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
