"""A linear-chain conditional random field over the tags of words (Lafferty, McCallum & Pereira 2001)."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from domain.biomedical.entities.labels import LabelSet

ILLEGAL = -1e4
"""The score of what may not be: so low that it never is, and finite, so that gradients are."""


class LinearChain(nn.Module):
    """Learnt scores of what begins, follows and ends a sentence's tags, on top of what may.

    Illegal sequences have no probability, in training neither.
    """

    illegal_start: Tensor
    illegal_follow: Tensor
    illegal_end: Tensor

    def __init__(self, labels: LabelSet) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(len(labels)))
        self.follow = nn.Parameter(torch.zeros(len(labels), len(labels)))  # (from, to)
        self.end = nn.Parameter(torch.zeros(len(labels)))
        for name in ("start", "follow", "end"):
            legal = torch.from_numpy(getattr(labels, f"legal_{name}"))
            self.register_buffer(f"illegal_{name}", torch.where(legal, 0.0, ILLEGAL), persistent=False)

    def scores(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """What was learnt of beginning (tags,), following (from, to) and ending (tags,)."""
        start, follow, end = (each.detach().cpu().double().numpy() for each in (self.start, self.follow, self.end))
        return start, follow, end

    def log_likelihood(self, emissions: Tensor, tags: Tensor, lengths: Tensor, opens: Tensor, closes: Tensor) -> Tensor:
        """Log P(tags | emissions) of each stretch of words, (stretches,).

        emissions: (words, tags), tags: (words,), stretch after stretch; lengths: of the stretches, none of them 0.
        opens, closes: whether a stretch begins and ends its sentence, which it does not where windows cut it.
        """
        sizes = lengths.tolist()
        scores = pad_sequence(list(torch.split(emissions, sizes)), batch_first=True)  # (stretches, longest, tags)
        gold = pad_sequence(list(torch.split(tags, sizes)), batch_first=True)  # (stretches, longest)
        mask = torch.arange(gold.shape[1], device=gold.device) < lengths[:, None]
        start = (self.start + self.illegal_start) * opens[:, None]  # (stretches, tags)
        end = (self.end + self.illegal_end) * closes[:, None]
        return self._score(scores, gold, mask, lengths, start, end) - self._partition(scores, mask, start, end)

    def _score(self, scores: Tensor, gold: Tensor, mask: Tensor, lengths: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """The score of the gold tags, (stretches,)."""
        emitted = scores.gather(2, gold[..., None]).squeeze(2)  # (stretches, longest)
        followed = (self.follow + self.illegal_follow)[gold[:, :-1], gold[:, 1:]]
        last = gold.gather(1, lengths[:, None] - 1)  # (stretches, 1)
        ends = start.gather(1, gold[:, :1]).squeeze(1) + end.gather(1, last).squeeze(1)
        return ends + (emitted * mask).sum(1) + (followed * mask[:, 1:]).sum(1)

    def _partition(self, scores: Tensor, mask: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """The logarithm of the summed exponentials of all sequences' scores, (stretches,)."""
        follow = self.follow + self.illegal_follow
        so_far = start + scores[:, 0]  # (stretches, tags)
        for word in range(1, scores.shape[1]):
            further = torch.logsumexp(so_far[:, :, None] + follow, dim=1) + scores[:, word]
            so_far = torch.where(mask[:, word, None], further, so_far)
        return torch.logsumexp(so_far + end, dim=1)
