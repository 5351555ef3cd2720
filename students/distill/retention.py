"""Ways to keep what a base knows: frozen layers, texts whose vectors stay, weights averaged with the start's."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from bertrelay.compute.local import LocalExecutor
from bertrelay.data.vectors import open_vectors
from bertrelay.device import ComputePrecision
from bertrelay.encode_files import fill_vectors
from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.process_group import ProcessGroup, broadcast_from_main, on_main
from bertrelay.progress import progress
from bertrelay.stage import Metrics, StageContext
from bertrelay.training.checkpoint import unique_tensors
from students.compress.pruning import layer_stack
from students.distill.head import heads_with_kept_directions
from students.distill.start import START
from students.distill.targets import Targets, targets_of
from students.evaluate.verdicts import MEAN
from students.parallel.corpus import ParallelCorpus
from students.parallel.settings import ENGLISH

FRACTIONS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Fractions of the way from the start's weights to the trained ones."""

KEPT_WEIGHTS = (0.0, 0.4, 0.8, 1.2, 1.6, 2.4)
"""Weights of a linear map that keeps all directions, beside the trained head; 0 is this head as it is."""

TOLERANCE = 0.002
"""A difference of accuracies that is chance, as they are measured on some thousand sentences."""

ACCURACY, NEARNESS = "translation_accuracy", "dev/nearness/cosine/untrained/"


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
    student: SentenceEncoder,
    start_metrics: Metrics,
    evaluate: Callable[[ProcessGroup], Metrics],
    context: StageContext,
) -> Metrics:
    """Leaves in `student` the best weights on the line from the start's to its own (`nearest_to_best`).

    Training on narrow text makes a network forget other text. Going back on this line undoes that faster than it
    undoes what was learnt (Wortsman et al. 2022, "Robust fine-tuning of zero-shot models").

    1. The weights at each of FRACTIONS are evaluated.
    2. Accuracies are averaged over trained sets and over untrained ones, and cosines to the teacher's vectors over the
       untrained ones.
    3. `nearest_to_best` chooses, of equal fractions the largest: the student gets
       start + fraction · (trained − start).

    Example: a weight is 1.0 in the start and 2.0 after training.

        fraction                0.2    0.4    0.6    0.8    1.0
        weight                  1.2    1.4    1.6    1.8    2.0
        accuracy, trained       .910   .940   .950   .960   .960
        accuracy, untrained     .810   .830   .8185  .780   .700
        nearness                .580   .600   .625   .630   .610
        below the best by       .050   .030   .0115  .050   .130   the largest of the three differences

    0.6 is chosen, the weight is 1.6.

    start_metrics: those of the start.
    evaluate: computes those of the weights that `student` has; every process calls it.
    Returns the metrics of the chosen weights, `trained_share` (the fraction), and the means at all fractions.
    """
    start = unique_tensors(SentenceEncoder.load(context.work / START, student.device))
    trained = {name: tensor.clone() for name, tensor in unique_tensors(student).items()}

    metrics = {0.0: start_metrics}
    with progress("averaging with the start", len(FRACTIONS), "evaluations") as bar:
        for fraction in FRACTIONS:
            _load_between(student, start, trained, fraction)
            metrics[fraction] = broadcast_from_main(evaluate(context.process_group), context.process_group)
            bar.advance()
    means = {fraction: held_out_means(at_fraction) for fraction, at_fraction in metrics.items()}
    best = max(nearest_to_best({fraction: means[fraction] for fraction in FRACTIONS}))
    _load_between(student, start, trained, best)
    averages = {f"average/{fraction}/{kind}": mean for fraction, kinds in means.items() for kind, mean in kinds.items()}
    return {**metrics[best], **averages, "trained_share": best}


def keep_directions(
    student: SentenceEncoder,
    corpus: ParallelCorpus,
    targets: Targets,
    evaluate: Callable[[ProcessGroup], Metrics],
    base_accuracy: float,
    context: StageContext,
    precision: ComputePrecision,
) -> Metrics:
    """Adds to the head of `student` a linear map that keeps all directions of its network's vectors.

    A head that is fitted to the teacher drops what the training text does not need, and with it differences between
    other sentences and between their translations.

    1. The head is made with each weight of KEPT_WEIGHTS, see `heads_with_kept_directions`.
    2. The student with it is evaluated, and so it is with the head as it was trained, weight 0.
    3. The weight is chosen as the fraction of `average_with_start` is, of equal ones the smallest; but where some heads
       find untrained translations as often as the base's own vectors do, only among these.

    evaluate: computes the metrics of the head that `student` has; every process calls it.
    base_accuracy: of the base, the mean on the untrained sets.
    Returns the metrics with the chosen weight, `kept_weight`, and the means with all weights.
    """
    trained = student.projection
    if trained is None:
        raise RequestError("keep_directions: expected a student with a head, which has other dimensions than its base")
    with_map = on_main(
        lambda: heads_with_kept_directions(student, corpus, targets, precision, KEPT_WEIGHTS[1:]), context.process_group
    )
    heads = {KEPT_WEIGHTS[0]: trained, **with_map}
    metrics = {}
    with progress("keeping directions", len(heads), "evaluations") as bar:
        for weight, head in heads.items():
            student.projection = head.to(student.device)
            metrics[weight] = broadcast_from_main(evaluate(context.process_group), context.process_group)
            bar.advance()
    means = {weight: held_out_means(with_head) for weight, with_head in metrics.items()}
    no_worse = {weight: of_head for weight, of_head in means.items() if of_head.get("untrained", 0) >= base_accuracy}
    best = min(nearest_to_best(no_worse or means))
    student.projection = heads[best].to(student.device)
    by_weight = {f"kept/{weight}/{kind}": mean for weight, kinds in means.items() for kind, mean in kinds.items()}
    return {**metrics[best], **by_weight, "kept_weight": best, "base/untrained": base_accuracy}


def held_out_means(metrics: Metrics) -> dict[str, float]:
    """The mean translation accuracy of the `trained` sets and of the `untrained` ones, over both directions.

    And `nearness`: the mean cosine to the teacher's vectors over the untrained languages, where it is measured.
    """
    kinds: dict[str, list[float]] = {}
    for name, value in metrics.items():
        if value is not None and name.startswith(f"dev/{ACCURACY}/"):
            kinds.setdefault("untrained" if "/untrained/" in name else "trained", []).append(float(value))
        elif value is not None and name.startswith(NEARNESS) and name.removeprefix(NEARNESS) not in (ENGLISH, MEAN):
            kinds.setdefault("nearness", []).append(float(value))
    return {kind: float(np.mean(values)) for kind, values in kinds.items()}


def nearest_to_best(means: Mapping[float, Mapping[str, float]]) -> list[float]:
    """The choices whose worst mean is nearest to the best of that kind, within TOLERANCE.

    means: by choice and by kind, as `held_out_means` gives them.

    A choice counts by the kind in which it is farthest below the best of all choices: a gain in one does not pay for a
    loss in another. See `average_with_start` for an example.
    """
    kinds = next(iter(means.values())).keys()
    best = {kind: max(of_choice[kind] for of_choice in means.values()) for kind in kinds}
    below = {choice: max(best[kind] - of_choice[kind] for kind in kinds) for choice, of_choice in means.items()}
    return [choice for choice in means if below[choice] <= min(below.values()) + TOLERANCE]


def _load_between(
    student: SentenceEncoder, start: Mapping[str, Tensor], trained: Mapping[str, Tensor], fraction: float
) -> None:
    """Sets the weights to start + fraction · (trained − start)."""
    between = {
        name: torch.lerp(start[name], tensor, fraction) if tensor.is_floating_point() else tensor
        for name, tensor in trained.items()
    }
    student.load_state_dict(between, strict=False)
