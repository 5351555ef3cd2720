"""The network that reads a chunk and gives a logit for each label: a BERT and a head on [CLS] or on the mean token.

On disk it is a plain transformers folder that `AutoModelForSequenceClassification` loads, whose head is then on [CLS],
with `outcome.json` beside it for what an admission's probability needs: task, labels, pooling, chunking, aggregation,
recalibration, threshold.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.backbone import (
    load_network,
    load_tokenizer,
    model_folder,
    pad_id_of,
    position_limit,
    refuse_missing,
    save_backbone,
    save_tokenizer,
)
from bertrelay.cpu_kernels import set_dropout, use_cpu_kernels
from bertrelay.errors import RequestError
from bertrelay.files import write_json
from bertrelay.layout import read_layout
from bertrelay.model_files import read_model_file
from bertrelay.pooling import Pooling
from domain.clinical.outcomes.outcome import Kind, OutcomeName
from domain.clinical.outcomes.outcome_settings import OutcomeModelSettings, PoolingName
from domain.pretraining.vocabulary import check_vocabulary

DESCRIPTION = "outcome.json"
LATER = {"input", "pooling", "alarm_precision", "alarms", "alarms_right"}
"""Keys that folders of the first edition lack. In the place of slope and intercept they have a temperature."""
PROBLEMS: dict[Kind, Literal["single_label_classification", "multi_label_classification"]] = {
    "binary": "multi_label_classification",
    "multi-class": "single_label_classification",
    "multi-label": "multi_label_classification",
}
"""What transformers calls them; one label with a sigmoid is a single one of many that may be true."""


class _FullPrecision(nn.Linear):
    """A linear map that autocast leaves alone: bf16 would round log-odds to three digits and make ties."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        with torch.autocast(input.device.type, enabled=False):
            return linear(input.float(), self.weight, self.bias)


class ChunkClassifier(nn.Module):
    """Chunks to a logit for each label of their admission.

    pooling: whether the head of `network` reads the first token or the mean of all.
    """

    def __init__(self, network: PreTrainedModel, pooling: PoolingName = "cls") -> None:
        super().__init__()
        self.network = network
        self.pooling = None if pooling == "cls" else Pooling([pooling])
        head: Any = network.classifier
        if self.pooling and _last_map(head) is head and getattr(network.base_model, "pooler", None) is None:
            raise RequestError(
                f"pooling: expected a base whose head reads one vector, as BERT's and RoBERTa's do, for {pooling!r}, "
                f'found {network.config.model_type!r}; take "cls"'
            )
        _last_map(head).__class__ = _FullPrecision  # in place, so that names in the weights' file stay
        use_cpu_kernels(network)

    @property
    def device(self) -> torch.device:
        return self.network.device

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Both (chunks, tokens) to logits (chunks, labels), float32."""
        network: Any = self.network
        if self.pooling is None:
            return cast(Tensor, network(input_ids=input_ids, attention_mask=attention_mask).logits.float())
        backbone: Any = network.base_model
        tokens = backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        pooled = self.pooling(tokens, attention_mask).unsqueeze(1)  # (chunks, 1, dim): heads read the first token
        if getattr(backbone, "pooler", None) is not None:
            pooled = network.dropout(backbone.pooler(pooled))  # (chunks, dim)
        return cast(Tensor, network.classifier(pooled).float())


@dataclass(frozen=True)
class OutcomeModel:
    """All that is needed to tell an outcome: a network, its tokenizer, and how its chunks are used."""

    network: ChunkClassifier
    tokenizer: PreTrainedTokenizerFast
    settings: OutcomeModelSettings

    @property
    def pad_id(self) -> int:
        return pad_id_of(self.network.network, self.tokenizer)


def start_model(
    source: str | Path,
    settings: OutcomeModelSettings,
    *,
    dropout: float | None = None,
    seed: int = 0,
    cache_dir: Path | None = None,
) -> OutcomeModel:
    """A model before its first step: the BERT of `source`, a sentence encoder's among them, and a new head.

    dropout: in every layer and before the head; the BERT's own when left out.
    Raises RequestError for a model that cannot classify, or has not the positions for such chunks.
    """
    folder = model_folder(source, cache_dir=cache_dir)
    layout = read_layout(folder)
    folder = folder / layout.transformer_folder
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone, missing = load_network(folder)
        refuse_missing(folder, missing)
        network = _with_head(backbone, settings, dropout)
    tokenizer = load_tokenizer(folder, layout.lower_case)
    check_vocabulary(tokenizer, backbone.config.vocab_size)
    _check_positions(network, settings)
    return OutcomeModel(ChunkClassifier(network, settings.pooling), tokenizer, settings)


def _with_head(backbone: PreTrainedModel, settings: OutcomeModelSettings, dropout: float | None) -> PreTrainedModel:
    """`backbone` under a new head for the labels; its pooler, where the head has no use for it, goes."""
    config, labels = backbone.config, settings.labels
    config.num_labels, config.problem_type = len(labels), PROBLEMS[settings.outcome.kind]
    config.id2label, config.label2id = dict(enumerate(labels)), {label: row for row, label in enumerate(labels)}
    try:
        network = AutoModelForSequenceClassification.from_config(config)
        _last_map(network.classifier)
    except (ValueError, AttributeError) as error:
        raise RequestError(f"base: no classifier of texts is known here for {config.model_type!r}") from error
    _fit_pooler(backbone, wanted=getattr(network.base_model, "pooler", None))
    setattr(network, network.base_model_prefix, backbone)
    if dropout is not None:
        set_dropout(network, dropout)
    return cast(PreTrainedModel, network)


def _fit_pooler(backbone: Any, wanted: nn.Module | None) -> None:
    """Takes the fresh pooler for one that is zeros, which stand in a folder for one that there never was."""
    own = getattr(backbone, "pooler", None)
    if own is not None and (wanted is None or not any(weight.any() for weight in own.parameters())):
        backbone.pooler = wanted


def _last_map(head: Any) -> nn.Linear:
    """The linear map that gives the logits."""
    found = getattr(head, "out_proj", head)
    if not isinstance(found, nn.Linear):
        raise AttributeError("the head does not end in a linear map")
    return found


def _check_positions(network: PreTrainedModel, settings: OutcomeModelSettings) -> None:
    positions, asked = position_limit(network), settings.chunking.max_tokens
    if positions is not None and asked > positions:
        raise RequestError(
            f"chunking.max_tokens: the base has {positions} positions, and {asked} are asked for; lower it"
        )


def save_model(model: OutcomeModel, folder: Path) -> None:
    """Writes the folder that `load_model` and transformers read."""
    folder.mkdir(parents=True, exist_ok=True)
    network = model.network.network
    save_backbone(network, folder)
    has_types = getattr(network.config, "type_vocab_size", 0) > 1
    save_tokenizer(model.tokenizer, folder, position_limit(network) or model.tokenizer.model_max_length, has_types)
    write_json(folder / DESCRIPTION, model.settings.model_dump())


def load_model(source: str | Path, task: OutcomeName | None = None, cache_dir: Path | None = None) -> OutcomeModel:
    """The model of a folder that a stage wrote. Raises RequestError for any other, a damaged one, or another task."""
    folder = model_folder(source, cache_dir=cache_dir)
    settings = read_description(folder, task)
    network, missing = load_network(folder, AutoModelForSequenceClassification)
    if missing:
        raise RequestError(
            f"model: the weights in {folder} lack {len(missing)} that its config.json asks for; copy the folder again"
        )
    if network.config.num_labels != len(settings.labels):
        raise RequestError(
            f"model: expected the {len(settings.labels)} labels of {DESCRIPTION} in {folder / 'config.json'}, found "
            f"{network.config.num_labels}; copy the folder again"
        )
    tokenizer = load_tokenizer(folder)
    check_vocabulary(tokenizer, network.config.vocab_size)
    _check_positions(network, settings)
    return OutcomeModel(ChunkClassifier(network, settings.pooling).eval(), tokenizer, settings)


def read_description(folder: Path, task: OutcomeName | None = None) -> OutcomeModelSettings:
    """What the folder says of how chunks are used. Raises RequestError for one of another task than `task`."""
    found = read_model_file(folder / DESCRIPTION, OutcomeModelSettings)
    if found is None:
        raise RequestError(
            f"model: expected one that tells {task or 'what becomes of patients'}, found no {DESCRIPTION} in "
            f"{folder}; train it with domain.readmission or domain.outcome"
        )
    if lacking := sorted(_lacking(found)):
        raise RequestError(
            f"model: expected {', '.join(lacking)} in {folder / DESCRIPTION}, found none; copy the folder again"
        )
    if task not in (None, found.task):
        raise RequestError(
            f"model: expected one that tells {task}, found one that tells {found.task} in {folder}; take another, or "
            "ask it what it tells with `bertrelay outcome score`"
        )
    return found


def _lacking(found: OutcomeModelSettings) -> set[str]:
    """The keys that every edition writes and this folder has not: their defaults would be those of another model."""
    inner = found.chunking
    chunking = {f"chunking.{name}" for name in type(inner).model_fields.keys() - inner.model_fields_set}
    own = type(found).model_fields.keys() - found.model_fields_set - LATER
    return own if "chunking" in own else own | chunking
