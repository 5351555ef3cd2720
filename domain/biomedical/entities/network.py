"""The network that tags words: any BERT with a linear map on each word's first piece, and perhaps a CRF over the tags.

On disk it is a plain transformers folder that `AutoModelForTokenClassification` loads, with `ner.json` beside it for
what transformers has no place for, and `crf.safetensors` where there is a CRF.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForTokenClassification, PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.backbone import model_folder
from bertrelay.cpu_kernels import set_dropout, use_cpu_kernels
from bertrelay.errors import RequestError, Stopped
from bertrelay.evaluation.calibration import Temperature
from bertrelay.files import write_json, write_tensors
from bertrelay.model_files import Description, read_model_file
from bertrelay.progress import log
from domain.biomedical.entities.crf import LinearChain
from domain.biomedical.entities.decoding import Chain, legal_chain
from domain.biomedical.entities.labels import LabelSet
from domain.biomedical.entities.pieces import Cutter
from domain.biomedical.networks import (
    has_types,
    load_base,
    load_with_head,
    put_under_head,
    refuse_other_heads,
    save_network,
    window_size,
)
from domain.biomedical.tags import Scheme
from domain.pretraining.vocabulary import lowers_case

DESCRIPTION, CRF_WEIGHTS = "ner.json", "crf.safetensors"
MAX_TOKENS = 256
KIND, HEADS = "token classifier", [{"dropout", "classifier"}]


class _Description(Description):
    """What stands in `ner.json`: what `EntityModel` says of these."""

    scheme: Scheme
    decoder: Literal["softmax", "crf"]
    max_tokens: Annotated[int, Field(ge=1)]
    overlap: Annotated[int, Field(ge=0)]
    temperature: Temperature
    capitals: bool = False


class TokenClassifier(nn.Module):
    """Pieces to a score for each tag of each word.

    network: one of transformers' for token classification.
    crf: what is learnt of tags that follow one another; None for a softmax at each word.
    rate_factors: how many times the learning rate a parameter learns at, by its name.
    """

    def __init__(self, network: PreTrainedModel, crf: LinearChain | None = None) -> None:
        super().__init__()
        self.network, self.crf = network, crf
        self.rate_factors: dict[str, float] = {}
        use_cpu_kernels(network)

    @property
    def device(self) -> torch.device:
        return self.network.device

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, places: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """(windows, tokens) and places in the flattened batch, (words,), to emissions (words, tags), float32."""
        network: Any = self.network
        marks = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        hidden = network.base_model(input_ids=input_ids, attention_mask=attention_mask, **marks).last_hidden_state
        vectors = network.dropout(hidden.flatten(0, 1)[places])  # (words, dim)
        with torch.autocast(hidden.device.type, enabled=False):  # bf16 would round the scores to three digits
            return cast(Tensor, network.classifier(vectors.float()))


@dataclass(frozen=True)
class EntityModel:
    """All that is needed to find entities: a network, its tokenizer and tags, and how sure it may be.

    max_tokens, overlap: of the windows in which long sentences are read, in pieces.
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

    def make_cutter(self) -> Cutter:
        """What cuts words as this model reads them."""
        return Cutter(self.tokenizer, self.capitals)

    @property
    def chain(self) -> Chain:
        """What may follow what, and how gladly, where a CRF has learnt it."""
        legal = legal_chain(self.labels)
        return legal if self.network.crf is None else legal.plus(*self.network.crf.scores())


def start_model(
    source: str | Path,
    labels: LabelSet,
    *,
    crf: bool = False,
    max_tokens: int | None = None,
    overlap: int | None = None,
    dropout: float | None = None,
    capitals: bool = False,
    seed: int = 0,
    cache_dir: Path | None = None,
) -> EntityModel:
    """A model before its first step: the BERT of `source`, a sentence encoder's among them, and a new head.

    max_tokens, overlap: of windows; at most 256, and a quarter of that, when left out.
    dropout: in every layer and before the head; the BERT's own when left out.
    capitals: whether words with two capitals or more get the second token type, where the vocabulary is lower-cased and
        the BERT has one; it begins as the first one is, whatever it was.
    Raises RequestError for a model that cannot tag, or has not the positions for such windows.
    """
    backbone, tokenizer = load_base(source, cache_dir)
    max_tokens, overlap = _window(backbone, max_tokens, overlap)
    capitals = capitals and _can_mark_capitals(backbone, tokenizer)
    if capitals:
        token_types = backbone.get_parameter("embeddings.token_type_embeddings.weight").data  # (types, dim)
        token_types[1] = token_types[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _with_head(backbone, labels, dropout)
    classifier = TokenClassifier(network, LinearChain(labels) if crf else None)
    return EntityModel(classifier, tokenizer, labels, max_tokens, overlap, capitals=capitals)


def _can_mark_capitals(backbone: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether a second token type is there for it, and needed. Says why not."""
    if not lowers_case(tokenizer):
        log("capitals: the base's vocabulary tells capitals from small letters, so they are not marked")
        return False
    if not has_types(backbone):
        log(f"capitals: the base, {backbone.config.model_type}, has no second token type, so they are not marked")
        return False
    return True


def _window(network: PreTrainedModel, max_tokens: int | None, overlap: int | None) -> tuple[int, int]:
    """The size and overlap of windows that `network` has positions for."""
    size = window_size(network, max_tokens, MAX_TOKENS)
    shared = size // 4 if overlap is None else overlap
    if shared > size // 2:
        raise RequestError(f"overlap: expected at most half of max_tokens, which is {size}, found {shared}; lower it")
    return size, shared


def _with_head(backbone: PreTrainedModel, labels: LabelSet, dropout: float | None) -> PreTrainedModel:
    """`backbone` under a new linear map. Its pooler, which no word's tag uses, goes."""
    config = backbone.config
    config.id2label = dict(enumerate(labels.tags))
    config.label2id = dict(labels.number)
    network: Any = put_under_head(backbone, AutoModelForTokenClassification, HEADS, KIND)
    if dropout is not None:
        set_dropout(network, dropout)
    return cast(PreTrainedModel, network)


def save_model(model: EntityModel, folder: Path) -> None:
    """Writes the folder that `load_model` and transformers read."""
    save_network(model.network.network, model.tokenizer, folder)
    crf = model.network.crf
    if crf is not None:
        write_tensors(folder / CRF_WEIGHTS, crf.state_dict())
    else:
        (folder / CRF_WEIGHTS).unlink(missing_ok=True)  # of a model that stood here before
    description = _Description(
        scheme=model.labels.scheme,
        decoder="softmax" if crf is None else "crf",
        max_tokens=model.max_tokens,
        overlap=model.overlap,
        temperature=model.temperature,
        capitals=model.capitals,
    )
    write_json(folder / DESCRIPTION, description.model_dump())


def load_model(source: str | Path, cache_dir: Path | None = None) -> EntityModel:
    """The model of a folder that a training here wrote, or of any token classifier whose tags are IOB2 or IOBES.

    Raises RequestError for a folder that holds none, or one that is damaged.
    """
    folder = model_folder(source, cache_dir=cache_dir)
    kind = AutoModelForTokenClassification
    network, tokenizer = load_with_head(folder, kind, "classifier", "tags entities", "domain.ner")
    refuse_other_heads(network, HEADS, KIND)
    Cutter(tokenizer)  # raises for one without the special tokens
    told = _description(folder)
    if told is None:
        log(
            f"model: warning: no {folder / DESCRIPTION}, which domain.ner writes; windows and temperature are the usual"
        )
        labels, window = _labels(network, None, folder), _window(network, None, None)
        return EntityModel(TokenClassifier(network).eval(), tokenizer, labels, *window)
    labels, window = _labels(network, told.scheme, folder), _window(network, told.max_tokens, told.overlap)
    crf = _load_crf(labels, folder) if told.decoder == "crf" else None
    classifier = TokenClassifier(network, crf).eval()
    return EntityModel(classifier, tokenizer, labels, *window, told.temperature, told.capitals)


def _description(folder: Path) -> _Description | None:
    """What `ner.json` says; None for a folder of transformers without one. Raises RequestError where it is damaged."""
    file = folder / DESCRIPTION
    told = read_model_file(file, _Description)
    if (folder / CRF_WEIGHTS).exists() and (told is None or told.decoder != "crf"):
        raise RequestError(
            f"model: expected {file} to name the decoder crf, for {CRF_WEIGHTS} is beside it, found "
            f"{told.decoder if told else 'no such file'}; copy the folder again, whole and into a new one"
        )
    return told


def _labels(network: PreTrainedModel, scheme: Scheme | None, folder: Path) -> LabelSet:
    names = {int(number): str(name) for number, name in (network.config.id2label or {}).items()}
    tags = tuple(names[number] for number in sorted(names))
    if scheme is None:
        scheme = "IOBES" if any(tag[:1] in ("E", "S") for tag in tags) else "IOB2"
    try:
        return LabelSet(tags, scheme)
    except ValueError as error:
        raise RequestError(f"model: {folder / 'config.json'}: id2label: {error}") from error


def _load_crf(labels: LabelSet, folder: Path) -> LinearChain:
    crf = LinearChain(labels)
    try:
        crf.load_state_dict(load_file(folder / CRF_WEIGHTS))
    except Stopped:
        raise
    except Exception as error:  # absent, damaged, of other shapes: each fails in its own way
        raise RequestError(
            f"model: expected the CRF of {len(labels)} tags in {folder / CRF_WEIGHTS}, found none that can be read "
            f"({type(error).__name__}); copy the folder again"
        ) from error
    return crf
