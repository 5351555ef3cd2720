"""Fewer dimensions: a model's vectors on their principal axes, as the last linear map of the model itself.

The axes are those of the vectors as they are, without taking the mean away. That keeps dot products, and so cosines,
as near as so many dimensions can (Eckart & Young, 1936), and turning before or after a normalisation is the same. With
the mean taken away STS scores hardly change, and cosines move away from the model's own.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertrelay.encoder import Projection, SentenceEncoder
from bertrelay.errors import RequestError
from bertrelay.evaluation.similarity import Vectors

Axes = NDArray[np.float64]
"""(dim, dimensions), orthonormal columns, the one along which vectors are longest first."""


def principal_axes(vectors: Vectors, dimensions: int) -> Axes:
    """The axes that keep most of the squared length of `vectors` (n, dim).

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


def projection_onto(axes: Axes, encoder: SentenceEncoder) -> Projection:
    """The encoder's own projection, if it has one, and the axes after it, as one linear map.

    Raises RequestError for a projection that bends what it projects, as one with a Tanh does.
    """
    turn = torch.from_numpy(axes.T)  # (dimensions, dim)
    own = encoder.projection
    if own is None:
        return _linear(turn, None)
    if not isinstance(own.activation, nn.Identity):
        raise RequestError(
            f"dimensions: expected a model that ends in a linear map, found {type(own.activation).__name__} after it; "
            "leave its dimensions as they are"
        )
    weight, bias = own.linear.weight.detach().cpu().double(), own.linear.bias
    return _linear(turn @ weight, None if bias is None else turn @ bias.detach().cpu().double())


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Projection:
    """A projection of `weight` (out, in) and `bias` (out,)."""
    projection = Projection(weight.shape[1], weight.shape[0], bias=bias is not None)
    with torch.no_grad():
        projection.linear.weight.copy_(weight)
        if bias is not None:
            projection.linear.bias.copy_(bias)
    return projection
