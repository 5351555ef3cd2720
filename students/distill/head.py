"""The map from a base's pooled vectors to the teacher's, fitted before the first step: one linear layer, or two."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu

from bertrelay.device import ComputePrecision, default_device
from bertrelay.errors import RequestError
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.pooling import Projection, linear_projection, projections_of
from bertrelay.progress import spinner
from students.distill.targets import Targets
from students.parallel.corpus import ParallelCorpus

LINEAR_SENTENCES = 32_768
RIDGE = 0.01  # times the mean square of the vectors
UNTRAINED_RIDGE = 1.0  # less would blow up the directions in which vectors of random weights hardly differ
SOFTENING = 0.25
"""Power to which the singular values of a pretrained base's fitted map are raised. 1 is the ridge regression, which
drops the directions that the corpus does not show; 0 an orthogonal map, which keeps all and hardly fits the targets."""
EVENED, FLOOR = 0.2, 0.01
"""Power of the variances of a head's vectors that is taken out of them; and what is added to each, times their mean."""
HIDDEN_SENTENCES = 65_536
"""Sentences that a hidden layer is fitted on: it has more weights than a linear map."""
PASSES, BATCH, LEARNING_RATE, WEIGHT_DECAY, DROPOUT = 8, 512, 2e-3, 0.05, 0.2
"""Of the training of a hidden layer by AdamW."""
BLOCK = 8192  # rows in float64


@dataclass(frozen=True)
class Sample:
    """Sentences of a corpus that a head is fitted on.

    fractions: weight of each in the loss, (sentences,), 1 together.
    pooled: the base's pooled vectors, (sentences, pooled).
    rows: the row of `targets` that each learns, (sentences,).
    """

    fractions: NDArray[np.float64]
    pooled: NDArray[np.float32]
    rows: NDArray[np.integer]
    targets: Targets

    @classmethod
    def encode(
        cls,
        student: SentenceEncoder,
        corpus: ParallelCorpus,
        targets: Targets,
        sentences: int,
        precision: ComputePrecision,
    ) -> "Sample":
        """At most `sentences` sentences, evenly spread over the corpus; they count as they do in the loss."""
        items = np.unique(np.linspace(0, corpus.taught - 1, sentences).astype(np.int64))
        texts = [corpus.texts(item, item + 1)[0] for item in items.tolist()]
        weights = corpus.weights_of(items)
        bare = student.with_parts(projection=None, normalize=False)
        pooled = bare.to(default_device()).encode(texts, precision=precision)
        return cls(weights / weights.sum(), pooled, corpus.rows(items), targets)

    def blocks(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]]:
        """Yields fractions (block,), pooled vectors (block, pooled) and the teacher's (block, dim), in float64."""
        for start in range(0, len(self.rows), BLOCK):
            block = slice(start, start + BLOCK)
            teacher = self.targets.vectors[self.rows[block]].astype(np.float64)
            yield self.fractions[block], self.pooled[block].astype(np.float64), teacher


@dataclass(frozen=True)
class Regression:
    """A ridge regression of the teacher's vectors on the pooled ones, W = (C + λI)⁻¹ D.

    weight: W, (pooled, dim). pooled_mean, teacher_mean: of the vectors, (pooled,) and (dim,).
    covariance: C of the pooled vectors, (pooled, pooled). cross: D, with the teacher's, (pooled, dim).
    """

    weight: NDArray[np.float64]
    pooled_mean: NDArray[np.float64]
    teacher_mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    cross: NDArray[np.float64]

    @classmethod
    def fit(cls, sample: Sample, ridge: float) -> "Regression":
        """The regression on the sample; λ is `ridge` times the mean variance of a pooled dimension."""
        pooled_mean = sum(fractions @ pooled for fractions, pooled, _ in sample.blocks())
        teacher_mean = sum(fractions @ teacher for fractions, _, teacher in sample.blocks())
        covariance = cross = np.zeros(())
        for fractions, pooled, teacher in sample.blocks():
            weighted = fractions[:, None] * (pooled - pooled_mean)  # (block, pooled)
            covariance = covariance + weighted.T @ (pooled - pooled_mean)
            cross = cross + weighted.T @ (teacher - teacher_mean)
        penalty = ridge * np.trace(covariance) / len(covariance)
        weight = np.linalg.solve(covariance + penalty * np.eye(len(covariance)), cross)
        return cls(weight, np.asarray(pooled_mean), np.asarray(teacher_mean), covariance, cross)

    @property
    def softened(self) -> NDArray[np.float64]:
        """Step 3 of `fit_linear_head`: `weight` with singular values that are less unequal, (pooled, dim)."""
        left, singular_values, right = np.linalg.svd(self.weight, full_matrices=False)
        return self.scaled((left * singular_values**SOFTENING) @ right)

    def scaled(self, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """`weight` (pooled, dim), times the number with which its squared error is least."""
        scale = (weight * self.cross).sum() / (weight * (self.covariance @ weight)).sum()
        return np.asarray(weight * scale)


@spinner("fitting the start")
def fit_linear_head(
    student: SentenceEncoder, corpus: ParallelCorpus, targets: Targets, *, is_pretrained: bool
) -> Projection:
    """A linear map from the student's pooled vectors before its first step to the teacher's vectors.

    1. LINEAR_SENTENCES sentences, evenly spread over the corpus, are encoded; they count as they do in the loss.
    2. Ridge regression of the teacher's vectors on the pooled ones: W = (C + λI)⁻¹ D, with the covariance C of the
       pooled vectors and their covariance D with the teacher's.
    3. For a pretrained base the singular values of W are raised to the power SOFTENING and scaled to the least error.
       The base keeps more of its differences between sentences that are unlike the corpus, and sentences of the
       corpus are nearly as close to their targets.

    Example of 3: two pooled dimensions with C = I, of which the corpus shows the second little, D = diag(16, 1), and
    λ ≈ 0. The regression is W = diag(16, 1), and a difference in the second dimension nearly gets lost. Its singular
    values become 16^¼ = 2 and 1, and the scale of least error is (2·16 + 1·1) / (2² + 1²) = 6.6: the map is
    diag(13.2, 6.6), in which the second dimension counts half as much as the first, not a sixteenth.
    """
    sample = Sample.encode(student, corpus, targets, LINEAR_SENTENCES, ComputePrecision.FP32)
    fit = Regression.fit(sample, RIDGE if is_pretrained else UNTRAINED_RIDGE)
    weight = fit.softened if is_pretrained else fit.weight
    return linear_projection(torch.from_numpy(weight.T), torch.from_numpy(fit.teacher_mean - fit.pooled_mean @ weight))


def heads_with_kept_directions(
    student: SentenceEncoder,
    corpus: ParallelCorpus,
    targets: Targets,
    precision: ComputePrecision,
    weights: Sequence[float],
) -> dict[float, Projection | nn.Sequential]:
    """By weight, the head of a trained student with a linear map that keeps all directions of its pooled vectors.

    1. The map is the softened regression of `fit_linear_head` from the pooled vectors of the trained student, without
       the teacher's mean, times the mean length of the student's vectors before their normalisation: with the weight 1
       it counts about as much as the head.
    2. Times the weight it is added to the head, see `add_linear_map`.
    3. The vectors of the sum are evened, see `even_vectors`.

    Raises RequestError for a head of the base's own.
    """
    sample = Sample.encode(student, corpus, targets, LINEAR_SENTENCES, precision)
    fit, head = Regression.fit(sample, RIDGE), cast(Projection | nn.Sequential, student.projection)
    length = float(np.linalg.norm(_apply(head, sample.pooled[:BLOCK]), axis=1).mean()) if student.normalize else 1.0
    weight = torch.from_numpy(length * fit.softened.T).float().to(student.device)  # (dim, pooled)
    bias = -weight @ torch.from_numpy(fit.pooled_mean).float().to(student.device)
    return {factor: even_vectors(add_linear_map(head, factor * weight, factor * bias), sample) for factor in weights}


def even_vectors(head: Projection | nn.Sequential, sample: Sample) -> Projection | nn.Sequential:
    """The head with a last layer after which the directions of its vectors differ less in their variance.

    With the covariance C of the sample's vectors v and their mean m, they become s (v - m) C^(-EVENED/2) plus the mean
    of the teacher's vectors, with the scale s of the least squared error to these. So directions in which sentences
    differ little count more in a cosine: a regression has shrunk them most.

    Example: where two directions have the variances 1 and 1/1024, their standard deviations 1 and 1/32 become, with
    EVENED = 0.2, 1 and 1/16.
    """
    *hidden, last = (layer.linear for layer in projections_of(head))
    fit = Regression.fit(replace(sample, pooled=_apply(head, sample.pooled)), RIDGE)
    variances, directions = np.linalg.eigh(fit.covariance)
    powers = (variances + FLOOR * variances.mean()) ** (-EVENED / 2)
    even = fit.scaled((directions * powers) @ directions.T)  # (dim, dim)
    weight, bias = (parameter.detach().cpu().double().numpy() for parameter in (last.weight, last.bias))
    evened = linear_projection(
        torch.from_numpy(even @ weight), torch.from_numpy((bias - fit.pooled_mean) @ even + fit.teacher_mean)
    ).to(last.weight.device)
    return nn.Sequential(projections_of(head)[0], evened) if hidden else evened


@torch.no_grad()
def _apply(head: nn.Module, pooled: NDArray[np.float32]) -> NDArray[np.float32]:
    device = next(head.parameters()).device
    blocks = (pooled[start : start + BLOCK] for start in range(0, len(pooled), BLOCK))
    return np.concatenate([head(torch.from_numpy(block).to(device)).cpu().numpy() for block in blocks])


def add_linear_map(head: Projection | nn.Sequential, weight: Tensor, bias: Tensor) -> Projection | nn.Sequential:
    """A head of the form of `head` that gives its vectors + weight · x + bias. weight: (dim, pooled); bias: (dim,).

    head: one linear layer, or two with a GELU between them. A hidden layer gets 2 · pooled more neurons, see
    `fit_hidden_head`.
    Raises RequestError for a head of another form, which a base may have of its own.
    """
    layers = projections_of(head)
    forms = [nn.Identity] if len(layers) == 1 else [nn.GELU, nn.Identity]
    if [type(layer.activation) for layer in layers] != forms or any(layer.normalized for layer in layers):
        raise RequestError(
            "keep_directions: expected a head that the stage has fitted, found the base's own. Leave it out, or give "
            "head_neurons."
        )
    *hidden, last = (layer.linear for layer in layers)
    last_weight, last_bias = last.weight.detach(), bias if last.bias is None else last.bias.detach() + bias
    if not hidden:
        return linear_projection(last_weight + weight, last_bias)
    (first,) = hidden
    identity, zeros = torch.eye(weight.shape[1]).to(weight), torch.zeros(2 * weight.shape[1]).to(weight)
    wider = linear_projection(
        torch.cat([first.weight.detach(), identity, -identity]), torch.cat([first.bias.detach(), zeros])
    )
    wider.activation = nn.GELU()
    return nn.Sequential(wider, linear_projection(torch.cat([last_weight, weight, -weight], dim=1), last_bias))


@spinner("fitting the head")
def fit_hidden_head(
    student: SentenceEncoder,
    corpus: ParallelCorpus,
    targets: Targets,
    neurons: int,
    precision: ComputePrecision,
    seed: int,
) -> nn.Sequential:
    """A head with a hidden layer, from the student's pooled vectors x to A x + W₂ gelu(W₁ x + b₁) + b₂.

    1. HIDDEN_SENTENCES sentences are encoded as for `fit_linear_head`.
    2. A and b₂ start as the ridge regression, W₁ at random, W₂ at 0.
    3. PASSES passes of AdamW over the sentences minimise 1 − cosine where the student ends in unit vectors, else the
       squared distance.
    4. The sum becomes two projections, which sentence-transformers loads as Dense modules: as gelu(x) − gelu(−x) = x,
       the linear part is 2 · pooled more neurons of the hidden layer.
    """
    sample = Sample.encode(student, corpus, targets, HIDDEN_SENTENCES, precision)
    fit = Regression.fit(sample, RIDGE)
    scale: NDArray[np.float64] = np.sqrt(np.diag(fit.covariance)) + float(np.finfo(np.float32).tiny)  # (pooled,)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = HiddenHead(fit.weight * scale[:, None], fit.teacher_mean, neurons).to(default_device())
        _train(head, sample, fit.pooled_mean, scale, is_unit=student.normalize)
    return head.as_projections(torch.from_numpy(fit.pooled_mean), torch.from_numpy(scale))


class HiddenHead(nn.Module):
    """A x + W₂ gelu(W₁ x + b₁) + b₂. weight: Aᵀ at the start, (pooled, dim); bias: b₂, (dim,)."""

    def __init__(self, weight: NDArray[np.float64], bias: NDArray[np.float64], neurons: int) -> None:
        super().__init__()
        pooled, dim = weight.shape
        self.linear = nn.Linear(pooled, dim)
        self.inner, self.outer = nn.Linear(pooled, neurons), nn.Linear(neurons, dim, bias=False)
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(weight.T))
            self.linear.bias.copy_(torch.from_numpy(bias))
            self.outer.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, pooled) → (batch, dim)."""
        hidden = dropout(gelu(self.inner(x)), DROPOUT, self.training)  # (batch, neurons)
        vectors: Tensor = self.linear(x) + self.outer(hidden)
        return vectors

    @torch.no_grad()
    def as_projections(self, mean: Tensor, scale: Tensor) -> nn.Sequential:
        """The function of x · scale + mean that equals this one of x, as two projections. mean, scale: (pooled,)."""
        linear, bias, inner, inner_bias, outer = (
            parameter.cpu().double()
            for parameter in (
                *(self.linear.weight, self.linear.bias),
                *(self.inner.weight, self.inner.bias, self.outer.weight),
            )
        )
        linear, inner = linear / scale, inner / scale
        hidden = linear_projection(inner, inner_bias - inner @ mean)
        hidden.activation = nn.GELU()
        curved = nn.Sequential(hidden, linear_projection(outer, torch.zeros(len(outer))))
        return cast(nn.Sequential, add_linear_map(curved, linear.float(), (bias - linear @ mean).float()))


def _train(
    head: HiddenHead, sample: Sample, mean: NDArray[np.float64], scale: NDArray[np.float64], *, is_unit: bool
) -> None:
    """Step 3 of `fit_hidden_head`, on pooled vectors less `mean` over `scale`, (pooled,) each."""
    device, count = head.linear.weight.device, len(sample.rows)
    optimizer = torch.optim.AdamW(head.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    batches = [rows for _ in range(PASSES) for rows in torch.randperm(count).split(BATCH)]
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, len(batches))
    for batch in batches:
        rows = batch.numpy()
        inputs, expected, weights = (
            torch.from_numpy(values.astype(np.float32)).to(device)
            for values in (
                (sample.pooled[rows] - mean) / scale,
                sample.targets.vectors[sample.rows[rows]],
                sample.fractions[rows] * count,
            )
        )
        vectors = head(inputs)  # (batch, dim)
        if is_unit:
            losses = 1 - torch.cosine_similarity(vectors, expected)  # (batch,)
        else:
            losses = (vectors - expected).square().sum(dim=1) / sample.targets.variance
        optimizer.zero_grad()
        (losses * weights).mean().backward()
        optimizer.step()
        schedule.step()
    head.eval()
