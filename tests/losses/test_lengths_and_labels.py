"""What every loss makes of rows of any finite length, of rows that are not finite, of labels of any integer type."""

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.regularizers import LpRegularizer
from testing.cases import OF_LIGHTLY, TABLE
from testing.stateful import EVERY as MAKERS
from torch import Tensor, nn

from aurank.losses import LOSSES, CrossBatchMemory, MultipleLosses, PMLLoss, SmoothAPLoss, contrastive

NAMES = sorted(LOSSES.keys() - OF_LIGHTLY)
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3])
LENGTHS = {torch.float32: 2.0**80, torch.float64: 2.0**600}  # their squares are infinite


def make(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)  # of proxies and centres
    return MAKERS[name]().to(dtype)


def rows(dtype: torch.dtype = torch.float32, *, seed: int = 0) -> Tensor:
    return torch.randn(len(LABELS), 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def huge(plain: Tensor) -> Tensor:
    """Every second row so long that its squares overflow; a power of two, so that its direction stays to the bit."""
    lengths = torch.ones_like(plain[:, :1])
    lengths[::2] = LENGTHS[plain.dtype]
    return plain * lengths


def value_and_gradient(loss: nn.Module, embeddings: Tensor, **given: object) -> tuple[Tensor, Tensor]:
    embeddings = embeddings.clone().requires_grad_()
    value = loss(embeddings, LABELS, **given)
    return value.detach(), torch.autograd.grad(value, embeddings)[0]


@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.float32) for name in NAMES), ("smooth_ap", torch.float64)])
def test_a_row_counts_by_its_direction_however_long_it_is(name: str, dtype: torch.dtype) -> None:
    plain = rows(dtype)
    value, gradient = value_and_gradient(make(name, dtype), plain)
    found, slope = value_and_gradient(make(name, dtype), huge(plain))
    assert found == value
    torch.testing.assert_close(huge(slope), gradient, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["smooth_ap", "clip", "emc2", "neuclip"])
def test_a_reference_counts_by_its_direction_too(name: str) -> None:
    given = {"ref_labels": LABELS.clone(), "ids": torch.arange(9), "ref_ids": torch.arange(9, 18)}
    values = [TABLE[name].make()(rows(), LABELS, ref_emb=each, **given) for each in (rows(seed=1), huge(rows(seed=1)))]
    assert values[0] == values[1]


@pytest.mark.parametrize(
    "make_loss",
    [
        lambda: PMLLoss(ContrastiveLoss()),
        lambda: MultipleLosses([ContrastiveLoss(), SmoothAPLoss()], widths=[4, None]),
        lambda: CrossBatchMemory(ContrastiveLoss(), embedding_size=6, memory_size=20),
        lambda: CrossBatchMemory(SmoothAPLoss(), embedding_size=6, miner=MultiSimilarityMiner()),
    ],
    ids=["PML", "several", "memory", "miner"],
)
def test_wrappers_and_miners_see_directions(make_loss: object) -> None:
    loss, other = make_loss(), make_loss()
    for seed in (0, 1):
        (value, gradient), (found, slope) = (
            value_and_gradient(each, embeddings)
            for each, embeddings in ((loss, rows(seed=seed)), (other, huge(rows(seed=seed))))
        )
        assert found == value
        torch.testing.assert_close(huge(slope), gradient, rtol=1e-5, atol=1e-6)


def test_a_regularizer_sees_lengths_as_they_are() -> None:
    plain = rows() * 2.0**56  # their directions are taken off shorter rows, their squares still fit
    loss = SmoothAPLoss(embedding_regularizer=LpRegularizer())
    torch.testing.assert_close(loss(plain, LABELS), plain.norm(dim=1).mean() + SmoothAPLoss()(rows(), LABELS))


@pytest.mark.parametrize(("name", "wrong"), [*((name, torch.nan) for name in NAMES), ("smooth_ap", torch.inf)])
def test_a_row_that_is_not_finite_gives_a_loss_and_a_gradient_that_are_not(name: str, wrong: float) -> None:
    # training stops at such a loss; where nobody looks, a gradient of zeros would let it go on unnoticed
    spoilt = rows()
    spoilt[3] = wrong
    value, gradient = value_and_gradient(make(name), spoilt)
    assert value.isnan()
    assert gradient[3].isnan().all()


def test_a_mean_over_pairs_above_zero_counts_those_that_are_not_a_number() -> None:
    spoilt = rows()
    spoilt[3] = torch.nan
    value, gradient = value_and_gradient(contrastive(reduction="pml"), spoilt)
    assert value.isnan()
    assert gradient.isnan().any()


@pytest.mark.parametrize("name", NAMES)
def test_labels_of_any_integer_type_are_those_of_int64(name: str) -> None:
    assert make(name)(rows(), LABELS.to(torch.uint8)) == make(name)(rows(), LABELS)
