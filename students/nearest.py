"""The best neighbours of many rows, gathered from blocks of cosines that serve two sides at once."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass
class Nearest:
    """The best neighbours of each row so far, best first: float32 cosines and int32 row numbers, both (n, keep).

    What is not filled yet has the cosine -inf and the row -1.
    """

    cosines: NDArray[np.float32]
    rows: NDArray[np.int32]

    @classmethod
    def none(cls, count: int, keep: int) -> "Nearest":
        """Of `count` rows, nothing yet."""
        return cls(np.full((count, keep), -np.inf, np.float32), np.full((count, keep), -1, np.int32))

    def offer(self, cosines: Tensor, dim: int, first: int, first_other: int) -> None:
        """Takes in the best of a block of `cosines`, whose rows (`dim` 0) or columns (`dim` 1) are ours.

        first, first_other: the number of our first row in the block, and of the other side's. Of equal cosines the
        first offered stays, so blocks are offered in rising order.
        """
        worst = torch.from_numpy(self.cosines[first : first + cosines.shape[dim], -1]).to(cosines.device)
        hits = _promising(cosines, 1 - dim, worst, self.rows.shape[1])  # (hits,)
        places = np.divmod(hits.cpu().numpy(), cosines.shape[1])  # rows and columns, each (hits,)
        self._take_in(first + places[dim], first_other + places[1 - dim], cosines.flatten()[hits].cpu().numpy())

    def _take_in(self, rows: NDArray[np.int64], others: NDArray[np.int64], cosines: NDArray[np.float32]) -> None:
        """Sorts what is new among what the rows have, and keeps the best of each. All three (hits,)."""
        keep = self.rows.shape[1]
        touched, place = np.unique(rows, return_inverse=True)
        places = np.concatenate([np.repeat(np.arange(len(touched)), keep), place])
        all_cosines = np.concatenate([self.cosines[touched].ravel(), cosines])
        all_others = np.concatenate([self.rows[touched].ravel(), others])
        order = np.lexsort((all_others, -all_cosines, places))
        starts = np.searchsorted(places[order], np.arange(len(touched)))
        best = order[starts[:, None] + np.arange(keep)]  # (touched, keep)
        self.cosines[touched], self.rows[touched] = all_cosines[best], all_others[best]


def _promising(cosines: Tensor, along: int, worst: Tensor, keep: int) -> Tensor:
    """Flat places (hits,) in a block of `cosines` that may be of the `keep` best of their row; rows run `along` a dim.

    They beat `worst` (rows,), the last that the row has so far, and are not below the smallest of `keep` maxima over
    parts of the row, as so many are at least as good. Sorting every row would cost more than the products.
    """
    parts = cosines.tensor_split(min(keep, cosines.shape[along]), dim=along)
    enough = torch.stack([part.amax(dim=along) for part in parts]).amin(dim=0)  # (rows,)
    better = torch.nextafter(worst, torch.full_like(worst, torch.inf))  # (rows,)
    mask = (cosines >= torch.maximum(enough, better).unsqueeze(along)).flatten()
    # On a CPU torch takes five times as long for this as NumPy.
    return torch.nonzero(mask)[:, 0] if mask.is_cuda else torch.from_numpy(np.flatnonzero(mask.numpy()))
