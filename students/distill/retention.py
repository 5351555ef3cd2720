"""What a student keeps of its base: frozen layers, texts whose vectors stay, weights averaged with the start's."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from bertrelay.compute.local import LocalExecutor
from bertrelay.data.vectors import open_vectors
from bertrelay.encode_files import fill_vectors
from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.process_group import ProcessGroup, broadcast_from_main
from bertrelay.progress import progress
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.checkpoint import unique_tensors
from students.compress.pruning import layer_stack
from students.distill.start import START
from students.distill.targets import Targets, targets_of
from students.parallel.corpus import ParallelCorpus

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Of the way from the start's weights to the trained ones."""

TOLERANCE = 0.002
"""A difference of accuracies that is chance, as they are of some thousand sentences."""

ACCURACY = "translation_accuracy"


def freeze_layers(encoder: SentenceEncoder, frozen_layers: int | None) -> None:
    """Freezes the embeddings and the lowest `frozen_layers` layers; None freezes nothing.

    Raises RequestError when the network has fewer layers, or its layers share their weights.
    """
    if frozen_layers is None:
        return
    levels = _levels(encoder)
    depth = max(levels.values())
    if frozen_layers > depth:
        raise RequestError(f"frozen_layers: expected at most the {depth} layers of the base, found {frozen_layers}")
    for name, parameter in encoder.named_parameters():
        if levels[name] <= frozen_layers:
            parameter.requires_grad = False


def _levels(encoder: SentenceEncoder) -> dict[str, int]:
    """The level of each parameter: 0 before the layers, n in the nth layer, the last one's after the layers.

    Relative positions that all layers share, as in MPNet and T5, are on level 0, as the embeddings are.
    """
    stack = f"backbone.{layer_stack(encoder.backbone, 'frozen_layers')}."
    levels, highest = {}, 0
    for name, _ in encoder.named_parameters():
        if name.startswith(stack):
            highest = int(name.removeprefix(stack).split(".")[0]) + 1
        levels[name] = 0 if "relative_attention_bias" in name else highest
    return levels


def retained_targets(student: SentenceEncoder, corpus: ParallelCorpus, context: StageContext) -> Targets | None:
    """The vectors of the retained texts by the student before its first step; None without such texts."""
    if not len(corpus.retained):
        return None
    path = context.work / "retained.npy"
    fill_vectors(
        student,
        corpus.retained.read,
        len(corpus.retained),
        path,
        START,
        precision="fp32",
        executor=LocalExecutor(context.process_group),
        description="vectors to retain",
    )
    return targets_of(open_vectors(path), np.ones(len(corpus.retained), np.int32), "retained")


def average_with_start(
    student: SentenceEncoder, evaluate: Callable[[ProcessGroup], Metrics], context: StageContext
) -> Metrics:
    """Leaves in `student` weights on the line from the start's to its own, see `farthest_of_the_best`.

    On this line what training on narrow text makes a network forget comes back sooner than what it learns is lost
    (Wortsman et al. 2022, "Robust fine-tuning of zero-shot models").

    evaluate: metrics of the weights that `student` has, computed by all processes.
    Returns the metrics of the chosen weights, `trained_share`, and the mean accuracies of all shares.
    """
    start = unique_tensors(SentenceEncoder.load(context.work / START, student.device))
    trained = {name: tensor.clone() for name, tensor in unique_tensors(student).items()}

    metrics = {}
    with progress("averaging with the start", 1 + len(SHARES), "evaluations") as bar:
        for share in (0.0, *SHARES):
            _load_between(student, start, trained, share)
            metrics[share] = broadcast_from_main(evaluate(context.process_group), context.process_group)
            bar.advance()
    accuracies = {share: mean_accuracies(found) for share, found in metrics.items()}
    best = farthest_of_the_best(accuracies)
    _load_between(student, start, trained, best)
    means = {f"average/{share}/{kind}": mean for share, by_kind in accuracies.items() for kind, mean in by_kind.items()}
    return {**metrics[best], **means, "trained_share": best}


def mean_accuracies(metrics: Metrics) -> dict[str, float]:
    """The means of translation accuracy over trained sets and over untrained ones, both directions alike."""
    kinds: dict[str, list[float]] = {}
    for name, value in metrics.items():
        if value is not None and name.startswith(f"dev/{ACCURACY}/"):
            kinds.setdefault("untrained" if "/untrained/" in name else "trained", []).append(float(value))
    return {kind: float(np.mean(values)) for kind, values in kinds.items()}


def farthest_of_the_best(accuracies: Mapping[float, Mapping[str, float]]) -> float:
    """The largest share that falls least short of the best accuracies, but for TOLERANCE.

    What counts of a share is the kind of sets, trained or untrained, in which it falls short the most: what is gained
    in one does not pay for what is lost in the other.
    """
    best = {kind: max(accuracies[share][kind] for share in SHARES) for kind in accuracies[SHARES[0]]}
    short = {share: max(best[kind] - accuracies[share][kind] for kind in best) for share in SHARES}
    return max(share for share in SHARES if short[share] <= min(short.values()) + TOLERANCE)


def _load_between(
    student: SentenceEncoder, start: Mapping[str, Tensor], trained: Mapping[str, Tensor], share: float
) -> None:
    """Sets the weights to those of `start` and, for a share of it, the way from there to `trained`."""
    between = {
        name: torch.lerp(start[name], tensor, share) if tensor.is_floating_point() else tensor
        for name, tensor in trained.items()
    }
    student.load_state_dict(between, strict=False)
