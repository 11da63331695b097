"""Compiles `per_query` of the losses of ranking sums as one graph; prints their names if all is as in eager mode."""

import copy
import json

import torch
from pytorch_metric_learning.distances import CosineSimilarity

from aurank.losses import AUROCLoss, Pairs, PNPLoss, RecallAtKLoss, SmoothAPLoss, SOPRCLoss, SupAPLoss, make_pairs
from aurank.losses.core.pairs import read_inputs

LABELS = torch.tensor([0] * 5 + [1] * 2 + [2] * 6 + [3] + [4] * 3 + [5])


def batch(seed: int) -> tuple[torch.Tensor, Pairs]:
    rows = torch.randn(18, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)
    return rows, make_pairs(read_inputs(rows, LABELS), distance=CosineSimilarity())


def main() -> None:
    names = []
    for loss in (SmoothAPLoss(), SOPRCLoss([6] * 6).double(), AUROCLoss(), RecallAtKLoss(), PNPLoss(), SupAPLoss()):
        eager = copy.deepcopy(loss)
        compiled = torch.compile(loss.per_query, fullgraph=True, backend="aot_eager")
        for seed in range(2):
            results = []
            for per_query in (compiled, eager.per_query):
                rows, pairs = batch(seed)
                values = per_query(pairs)
                results.append((values.detach(), *torch.autograd.grad(values.sum(), rows)))
            torch.testing.assert_close(*results, rtol=0, atol=1e-12)
            torch.testing.assert_close(list(loss.buffers()), list(eager.buffers()), rtol=0, atol=0)
        names.append(type(loss).__name__)
    print(json.dumps(names))


if __name__ == "__main__":
    main()
