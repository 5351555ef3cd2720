"""Fewer dimensions: a model's vectors on their principal axes, as the last linear map of the model itself.

The axes are those of the vectors as they are, without subtracting the mean. That keeps dot products, and so cosines, as
near as so many dimensions can (Eckart & Young, 1936), and rotating before or after a normalisation is the same. With
the mean subtracted STS scores hardly change, and cosines move away from the model's.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertrelay.data.vectors import Vectors
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import cosine_metrics
from bertrelay.model.encoder import SentenceEncoder
from bertrelay.model.pooling import Projection, linear_projection, projection_of, projections_of
from bertrelay.stage import Metrics

Axes = NDArray[np.float64]
"""(dim, dimensions), orthonormal columns, the one along which vectors are longest first."""


def principal_axes(vectors: Vectors, dimensions: int) -> Axes:
    """Computes the axes that keep most of the squared length of `vectors` (n, dim).

    Raises RequestError for fewer vectors than axes, and unless there are fewer axes than dimensions.
    """
    count, dim = vectors.shape
    if dimensions >= dim:
        raise RequestError(f"dimensions: expected fewer than the model's {dim}, found {dimensions}")
    if count < dimensions:
        raise RequestError(
            f"dimensions: expected at least as many sentences in the corpus as dimensions, found {count:,} for "
            f"{dimensions}; give more text, or fewer dimensions"
        )
    exact = vectors.astype(np.float64)
    _, axes = np.linalg.eigh(exact.T @ exact)  # (dim, dim), the shortest first
    return np.ascontiguousarray(axes[:, ::-1][:, :dimensions])


def projection_onto(axes: Axes, encoder: SentenceEncoder) -> Projection | nn.Sequential | None:
    """Appends the axes to the encoder's projections; a linear map at the end and the axes become one map.

    Example: a model that ends in W x + b and axes A ends in (Aᵀ W) x + Aᵀ b.
    """
    rotation = torch.from_numpy(axes.T)  # (dimensions, dim)
    projections = projections_of(encoder.projection)
    if not projections or not isinstance(projections[-1].activation, nn.Identity):
        return projection_of([*projections, linear_projection(rotation, None)])
    weight, bias = projections[-1].linear.weight.detach().cpu().double(), projections[-1].linear.bias
    last = linear_projection(rotation @ weight, None if bias is None else rotation @ bias.detach().cpu().double())
    last.normalized = projections[-1].normalized
    return projection_of([*projections[:-1], last])


def cosines_to_original(before: Vectors, after: Vectors, axes: Axes | None) -> Metrics:
    """Computes the mean and the lowest cosine of vectors (n, dim) to those before.

    axes: with fewer dimensions, vectors are projected back onto the dimensions before, and then compared.
    """
    if axes is not None:
        after = (after @ axes.T).astype(np.float32)  # (n, dim before)
    return cosine_metrics(before, after)
