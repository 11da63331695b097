"""A loss with a temperature that is learnt, for tests of whatever optimises it."""

import math

import torch
from torch import nn

from aurank.losses import PairLoss, Pairs


class Learnt(PairLoss):
    """Decoupled contrastive loss; it remembers where training stood at each step."""

    def __init__(self, *, temperature: float = 0.5, distributed: bool = False) -> None:
        super().__init__(distributed=distributed)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.progress: list[dict[str, float]] = []

    def set_progress(self, *, step: int, steps: int, epoch: int, epochs: float) -> None:
        self.progress.append({"step": step, "steps": steps, "epoch": epoch, "epochs": epochs})

    def per_query(self, pairs: Pairs) -> torch.Tensor:
        scores = pairs.similarity / self.log_temperature.exp()
        positive = (scores * pairs.positive).sum(1) / pairs.positive.sum(1).clamp(min=1)
        return scores.masked_fill(~pairs.negative, -50.0).logsumexp(1) - positive
