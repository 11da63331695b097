"""Low temperatures, where exponentials overflow and vanish, on batches whose positives are opposite and then alike."""

from collections.abc import Callable

import pytest
import torch

from aurank.losses import DCLLoss, EMC2Loss, FastCLIPLoss, FlatNCELoss, ISogCLRLoss, NeuCLIPLoss, PairLoss, SogCLRLoss

# FastCLIP's default leaves none in an easy batch.
# Without ε: a query that is right by much gets a gradient without it alone.
ALONE = {"epsilon": 0.0, "learn_temperature": False, "two_way": False, "num_prototypes": 64}
LOSSES: dict[str, Callable[[], PairLoss]] = {
    "dcl": lambda: DCLLoss(0.005),
    "dcl weighted": lambda: DCLLoss(0.005, 0.5),
    "emc2": lambda: EMC2Loss(8, temperature=0.005),
    "emc2 official": lambda: EMC2Loss(8, temperature=0.005, official=True),
    "flat_nce": lambda: FlatNCELoss(0.005),
    "isogclr": lambda: ISogCLRLoss(8, temperature=0.005, temperature_bounds=(0.005, 0.05)),
    "neuclip": lambda: NeuCLIPLoss(6, temperature=0.005, **ALONE),
    "neuclip through alpha": lambda: NeuCLIPLoss(6, temperature=0.005, detach_alpha=False, **ALONE),
    "sogclr": lambda: SogCLRLoss(8, temperature=0.005),
    "sogclr previous": lambda: SogCLRLoss(8, temperature=0.005, previous_normalizer=True),
}
for _version, _given in (("v0", {}), ("v1", {}), ("v2", {"rho": 0.3}), ("v3", {"rho": 0.3})):
    LOSSES[f"fastclip {_version}"] = lambda version=_version, given=_given: FastCLIPLoss(
        8, version, temperature=0.011, gamma_schedule="constant", two_way=False, weighted_pull=False, **given
    )


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_hard_and_easy_batches_stay_finite_and_leave_a_gradient_at_a_low_temperature(name: str, autocast: bool) -> None:
    loss, labels = LOSSES[name](), torch.arange(5).repeat(2)
    first, noise = (torch.randn(rows, 6, generator=torch.Generator().manual_seed(rows)) for rows in (5, 10))
    hard, easy = (torch.cat([first, sign * first]) + 0.1 * noise for sign in (-1, 1))
    for batch in (hard, easy, easy, hard):
        rows = batch.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            value = loss(rows, labels)
        (gradient,) = torch.autograd.grad(value, rows)
        assert value.dtype == torch.float32
        assert value.isfinite()
        assert gradient.isfinite().all()
        assert gradient.any()
    assert all(state.isfinite().all() for state in loss.buffers())
