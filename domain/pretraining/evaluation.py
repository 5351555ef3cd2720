"""How well masked words and next sentences are told on held-out documents, with the same masks and pairs every time."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from bertrelay.evaluation.statistics import with_interval
from bertrelay.hardware import autocast, resolve_precision
from bertrelay.stage import Metrics
from bertrelay.training.batches import micro_batches
from domain.pretraining.items import Items
from domain.pretraining.objective import LABELS, Pretraining, losses
from domain.pretraining.sequences import Sequences
from domain.pretraining.settings import Objective, PretrainSettings

Floats = NDArray[np.floating]
Sums = dict[Objective, NDArray[np.float64]]

SEED = 0  # whatever seed a training has, its held-out pairs and masks are the same
CRITERION = "log_likelihood"


class HeldOut:
    """Held-out items, and what a model scores on them."""

    def __init__(self, items: Items, sequences: Sequences, settings: PretrainSettings) -> None:
        self.items, self.sequences = items, sequences
        self.precision, self.device_tokens = settings.precision, settings.device_tokens

    def figures(self, model: Pretraining) -> Metrics:
        """Each objective's figures with a 95 % interval over documents (a pair is of its first segment's).

        `mlm_loss` in nats, `mlm_perplexity`, `mlm_accuracy`, `nsp_loss`, `nsp_accuracy`; and `log_likelihood`, minus
        the sum of the losses, which chooses the best weights.
        """
        figures: Metrics = {}
        for name, (loss, hits, count) in self._sums(model).items():
            figures |= with_interval(f"{name}_loss", _mean, loss, count)
            if name == "mlm":
                figures |= with_interval("mlm_perplexity", _perplexity, loss, count)
            figures |= with_interval(f"{name}_accuracy", _mean, hits, count)
        told = [figures[f"{name}_loss"] for name in model.objectives]
        return {**figures, CRITERION: -float(sum(loss for loss in told if loss is not None))}

    @torch.inference_mode()
    def _sums(self, model: Pretraining) -> Sums:
        """By objective and document: summed losses, hits, and how many there were, (3, documents)."""
        documents = np.unique(self.items.documents, return_inverse=True)[1]  # (items,)
        sums: Sums = {name: np.zeros((3, documents.max() + 1)) for name in model.objectives}
        was_training, device = model.training, next(model.parameters()).device
        model.eval()
        lengths = self.items.lengths
        for chosen in micro_batches(np.arange(len(lengths)), lengths, lengths, self.device_tokens):
            batch = self.sequences.batch(self.items, chosen, SEED, epoch=0).to(device)
            with autocast(device, resolve_precision(self.precision, device)):
                logits = model(batch.inputs)
            rows = (batch.inputs["masked"] // batch.inputs["input_ids"].shape[1]).cpu().numpy()
            owners = {"mlm": documents[chosen[rows]], "nsp": documents[chosen]}
            for name, loss in losses(logits, batch.inputs).items():
                hits = logits[name].argmax(dim=-1) == batch.inputs[LABELS[name]]
                told = [loss.double(), hits.double(), torch.ones_like(loss, dtype=torch.float64)]
                for total, values in zip(sums[name], told, strict=True):
                    np.add.at(total, owners[name], values.cpu().numpy())
        model.train(was_training)
        return sums


def _mean(total: Floats, count: Floats) -> float | None:
    return float(total.sum() / count.sum()) if count.any() else None


def _perplexity(loss: Floats, count: Floats) -> float | None:
    mean = _mean(loss, count)
    return None if mean is None else math.exp(mean)
