"""The network that reads a chunk and gives a logit for each label: a BERT and a head on [CLS] or on the mean token.

On disk it is a plain transformers folder that `AutoModelForSequenceClassification` loads, whose head is then on [CLS],
with `outcome.json` beside it for what an admission's probability needs: task, labels, pooling, chunking, aggregation,
recalibration, threshold.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from bertrelay.cache import Cache
from bertrelay.data.vectors import check_finite_rows
from bertrelay.device import ComputePrecision
from bertrelay.errors import RequestError
from bertrelay.files import write_json
from bertrelay.inference.batches import best_batch_tokens, fill_batch, inference_mode, pack_for, sorted_batches
from bertrelay.inference.kernels import Packed, use_packed
from bertrelay.model.files import read_model_file
from bertrelay.model.folder import ModelFolder
from bertrelay.model.graph import BackendChoice
from bertrelay.model.heads import Head, HeadNetwork, check_positions
from bertrelay.model.network import save_network
from bertrelay.model.pooling import Pooling
from bertrelay.model.tokenizer import pad_id_of
from bertrelay.progress import Bar
from bertrelay.sources import model_folder
from domain.clinical.chunks import ChunkTokens
from domain.clinical.settings import ChunkSettings, ModelDescription, OutcomeName, PoolingName

Floats = NDArray[np.float64]

DESCRIPTION = "outcome.json"
HEAD = Head(
    AutoModelForSequenceClassification,
    "classifier",
    "predictor",
    "text classifier",
    "predicts outcomes",
    "train it with domain.readmission or domain.outcome",
    pooler="first",
)


class ChunkClassifier(HeadNetwork):
    """Chunks to a logit for each label of their admission.

    pooling: whether the head of `network` reads the first token or the mean of all.
    """

    def __init__(self, network: PreTrainedModel, pooling: PoolingName = "cls") -> None:
        last: Any = getattr(network, "classifier", None)
        last = getattr(last, "out_proj", last)  # the map that gives the logits
        if not isinstance(last, nn.Linear):
            raise RequestError(f"base: expected a head that ends in a linear map, found {network.config.model_type!r}")
        super().__init__(network, last)
        self.pooling = None if pooling == "cls" else Pooling([pooling])
        if self.pooling and last is network.classifier and getattr(network.base_model, "pooler", None) is None:
            raise RequestError(
                f"pooling: expected a base whose head reads one vector, as BERT's and RoBERTa's do, for {pooling!r}, "
                f'found {network.config.model_type!r}; take "cls"'
            )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Both (chunks, tokens) to logits (chunks, labels), float32."""
        network: Any = self.network
        if self.pooling is None:
            return cast(Tensor, network(input_ids=input_ids, attention_mask=attention_mask).logits.float())
        backbone = self.backbone
        tokens = backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        pooled = self.pooling(tokens, attention_mask).unsqueeze(1)  # (chunks, 1, dim): heads read the first token
        if getattr(backbone, "pooler", None) is not None:
            pooled = network.dropout(backbone.pooler(pooled))  # (chunks, dim)
        return cast(Tensor, network.classifier(pooled).float())


@dataclass(frozen=True)
class OutcomeModel:
    """All that predicts an outcome: a network, its tokenizer, and the description of all else."""

    network: ChunkClassifier
    tokenizer: PreTrainedTokenizerFast
    description: ModelDescription

    @property
    def pad_id(self) -> int:
        return pad_id_of(self.network.network, self.tokenizer)


def start_model(
    source: str | Path,
    description: ModelDescription,
    *,
    dropout: float | None = None,
    seed: int = 0,
    cache: Cache | None = None,
) -> OutcomeModel:
    """A model before its first step: the BERT of `source`, a sentence encoder's among them, and a new head.

    dropout: in every layer and before the head; the BERT's own when left out.
    Raises RequestError for a model that cannot classify, or has not the positions for such chunks.
    """
    # To transformers one label with a sigmoid is a single one of many that may be true.
    is_single = description.outcome.kind == "multi-class"
    config = {
        "num_labels": len(description.labels),
        "problem_type": "single_label_classification" if is_single else "multi_label_classification",
        "id2label": dict(enumerate(description.labels)),
        "label2id": {label: row for row, label in enumerate(description.labels)},
    }
    network, tokenizer = HEAD.start(source, config, dropout=dropout, seed=seed, cache=cache)
    check_positions(network, description.chunking.max_tokens, "chunking.max_tokens")
    return OutcomeModel(ChunkClassifier(network, description.pooling), tokenizer, description)


def save_model(model: OutcomeModel, folder: Path) -> None:
    """Writes the folder that `load_model` and transformers read."""
    save_network(model.network.network, model.tokenizer, folder)
    write_json(folder / DESCRIPTION, model.description.model_dump())


def load_model(
    source: str | Path,
    task: OutcomeName | None = None,
    cache: Cache | None = None,
    backend: BackendChoice = None,
) -> OutcomeModel:
    """The model of a folder that a stage wrote. Raises RequestError for any other, a damaged one, or another task.

    backend: as of `SentenceEncoder.load`.
    """
    folder = model_folder(source, cache=cache)
    description = read_description(folder, task)
    network, tokenizer = HEAD.load(ModelFolder(folder), backend)
    if network.config.num_labels != len(description.labels):
        raise RequestError(
            f"model: expected the {len(description.labels)} labels of {DESCRIPTION} in {folder / 'config.json'}, found "
            f"{network.config.num_labels}; copy the folder again"
        )
    check_positions(network, description.chunking.max_tokens, "chunking.max_tokens")
    return OutcomeModel(ChunkClassifier(network, description.pooling).eval(), tokenizer, description)


def read_description(folder: Path, task: OutcomeName | None = None) -> ModelDescription:
    """The description of the model in a folder. Raises RequestError for one of another task than `task`."""
    description = read_model_file(folder / DESCRIPTION, ModelDescription)
    if description is None:
        raise RequestError(
            f"model: expected one that predicts {task or 'an outcome of patients'}, found no {DESCRIPTION} in "
            f"{folder}; train it with domain.readmission or domain.outcome"
        )
    # Every key is written, so the default of a missing one would be that of another model.
    lacking = type(description).model_fields.keys() - description.model_fields_set
    if "chunking" not in lacking:
        stated = description.chunking.model_fields_set
        lacking |= {f"chunking.{name}" for name in ChunkSettings.model_fields.keys() - stated}
    if lacking:
        listed = ", ".join(sorted(lacking))
        raise RequestError(f"model: expected {listed} in {folder / DESCRIPTION}, found none; copy the folder again")
    if task not in (None, description.task):
        raise RequestError(
            f"model: expected one that predicts {task}, found one that predicts {description.task} in {folder}; take "
            "another, or score with `bertrelay outcome score`"
        )
    return description


def chunk_log_odds(
    model: OutcomeModel,
    tokens: ChunkTokens,
    chunks: NDArray[np.integer],
    precision: ComputePrecision,
    batch_tokens: int | None = None,
    packed: Packed | None = None,
    bar: Bar | None = None,
) -> Floats:
    """The log-odds of each label of `chunks`, in their order, (chunks, labels).

    packed: weights laid out before (`pack_for`); found here when not given.
    Raises WorkError where they are not finite: no comparison holds of such ones, and so there would be no alarm.
    """
    network, bar = model.network, bar or Bar()
    size = best_batch_tokens(network.device, batch_tokens)
    packed = pack_for(len(tokens.ids), network.network.base_model, precision, size) if packed is None else packed
    labels, lengths = len(model.description.labels), tokens.lengths[chunks]
    log_odds = np.empty((len(chunks), labels))
    with inference_mode(network, precision), use_packed(packed):
        for positions, width, height in sorted_batches(lengths, size, model.description.chunking.max_tokens):
            rows = chunks[fill_batch(positions, height)]
            logits = network(*(tensor.to(network.device) for tensor in tokens.batch(rows, width, model.pad_id)))
            log_odds[positions] = logits[: len(positions)].float().cpu().numpy()
            bar.advance(len(positions))
    check_finite_rows(
        log_odds, network.network.name_or_path, lambda row: f"chunk {row + 1:,} of {len(chunks):,}", "a row of log-odds"
    )
    return one_vs_rest_log_odds(log_odds) if model.description.outcome.kind == "multi-class" else log_odds


def one_vs_rest_log_odds(logits: Floats) -> Floats:
    """The log-odds of each label where exactly one is true, (chunks, labels): their logistic is the softmax."""
    others = [logsumexp(np.delete(logits, label, axis=1), axis=1) for label in range(logits.shape[1])]
    log_odds: Floats = logits - np.stack(others, axis=1)
    return log_odds
