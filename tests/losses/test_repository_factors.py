"""By which factor gradients differ from those of the authors' repositories, as docs/losses.md says."""

import math

import pytest
import torch
from oracles import repositories as oracles_repositories
from oracles.repositories import Average, Temperatures
from torch import Tensor
from torch.nn.functional import normalize

from aurank.losses import FastCLIPLoss, ISogCLRLoss, SogCLRLoss

SIZE, SAMPLES = 5, 9
STEPS = ([3, 1, 4, 8, 2], [2, 4, 5, 0, 3], [1, 2, 3, 4, 5])  # samples of a batch, some of them seen before


def batch(step: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(step)
    rows = torch.randn(2, SIZE, 4, generator=random, dtype=torch.float64)
    return tuple(normalize(each, dim=1).requires_grad_() for each in rows)


def gradients(loss: Tensor, sides: tuple[Tensor, Tensor]) -> Tensor:
    """The gradient of both sides along the sphere, where embeddings live."""
    found = torch.autograd.grad(loss, sides)
    return torch.cat([g - (g * e).sum(dim=1, keepdim=True) * e for g, e in zip(found, sides, strict=True)]).detach()


def two_way(loss: torch.nn.Module, sides: tuple[Tensor, Tensor], samples: list[int]) -> Tensor:
    rows = torch.tensor(samples)
    return loss(sides[0], rows, ref_emb=sides[1], ref_labels=rows, ids=rows, ref_ids=rows)


FIXED = {"rate": 0.0, "beta": 1.0, "bounds": (0.0, math.inf), "clip": math.inf}  # a temperature that stays


@pytest.mark.parametrize("gamma", [0.3, 0.9])
def test_official_sogclr_has_half_of_libauc_s_gradient_also_where_part_of_a_batch_is_new(gamma: float) -> None:
    loss, table = SogCLRLoss(SAMPLES, temperature=0.5, gamma=gamma, official=True).double(), [0.0] * SAMPLES
    for step, samples in enumerate(STEPS):
        sides = batch(step)
        theirs = oracles_repositories.libauc_one_modality(*sides, samples, table, gamma, Temperatures(0.5, **FIXED))
        ours = loss(torch.cat(sides), torch.tensor(samples * 2))
        torch.testing.assert_close(gradients(ours, sides), gradients(theirs, sides) / 2, rtol=1e-9, atol=1e-12)
        kept = [math.log(u) if u else 0.0 for u in table]
        torch.testing.assert_close(loss.log_u[0], torch.tensor(kept, dtype=torch.float64), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("gamma", [0.3, 0.9])
def test_official_isogclr_has_half_of_libauc_s_gradient_and_its_temperatures(gamma: float, clip: float | None) -> None:
    given = {"temperature": 0.3, "temperature_lr": 0.05, "temperature_beta": 0.8, "temperature_clip": clip}
    loss = ISogCLRLoss(SAMPLES, temperature_bounds=(0.25, 0.7), gamma=gamma, official=True, **given).double()
    table, moved = [0.0] * SAMPLES, {"rate": 0.05, "beta": 0.8, "bounds": (0.25, 0.7), "clip": clip or math.inf}
    theirs = Temperatures(0.3, **moved)
    for step, samples in enumerate(STEPS):
        sides = batch(step)
        value = oracles_repositories.libauc_one_modality(*sides, samples, table, gamma, theirs, rho=0.3)
        ours = loss(torch.cat(sides), torch.tensor(samples * 2))
        # a temperature is float32 at first
        torch.testing.assert_close(gradients(ours, sides), gradients(value, sides) / 2, rtol=1e-5, atol=1e-7)
        expected = torch.tensor([theirs.of(sample) for sample in range(SAMPLES)], dtype=torch.float64)
        torch.testing.assert_close(loss.temperatures, expected, rtol=1e-6, atol=0)
    assert len(set(loss.temperatures.tolist())) > 4


def test_isogclr_s_gradient_of_one_modality_is_half_of_its_repository_s_on_a_first_batch() -> None:
    sides, loss, table = batch(0), ISogCLRLoss(SAMPLES, temperature=0.5).double(), [0.0] * SAMPLES
    temperatures = Temperatures(0.5, **FIXED)
    theirs = oracles_repositories.libauc_one_modality(*sides, STEPS[0], table, 0.9, temperatures)
    ours = loss(torch.cat(sides), torch.tensor(STEPS[0] * 2))
    torch.testing.assert_close(gradients(ours, sides), gradients(theirs, sides) / 2, rtol=1e-9, atol=1e-12)


def test_libauc_s_two_modalities_are_fastclip_v1_with_its_pull_times_half_the_negatives() -> None:
    given = {"temperature": 0.5, "gamma": 0.3, "gamma_schedule": "constant"}
    loss, average = FastCLIPLoss(SAMPLES, "v1", weighted_pull=True, **given).double(), Average(0.3)
    for step, samples in enumerate(STEPS):
        sides = batch(step)
        theirs = oracles_repositories.libauc_two_modalities(sides[0] @ sides[1].T, samples, average, temperature=0.5)
        wanted = gradients(theirs, sides) * 2 / (SIZE - 1)
        torch.testing.assert_close(gradients(two_way(loss, sides, samples), sides), wanted, rtol=1e-9, atol=1e-12)


def test_sogclr_of_two_modalities_has_libauc_s_direction_on_a_first_batch_only() -> None:
    loss, average = (
        SogCLRLoss(SAMPLES, temperature=0.5, gamma=0.3, average="plain", two_way=True).double(),
        Average(0.3),
    )
    for step, samples in enumerate(STEPS[:2]):
        sides = batch(step)
        theirs = oracles_repositories.libauc_two_modalities(sides[0] @ sides[1].T, samples, average, temperature=0.5)
        ours, wanted = gradients(two_way(loss, sides, samples), sides), gradients(theirs, sides) * 2 / (SIZE - 1)
        assert torch.allclose(ours, wanted, rtol=1e-9, atol=1e-12) == (step == 0)


@pytest.mark.parametrize(("version", "factor"), [("v0", 2), ("v1", 2 * 0.5), ("v2", 2 * 0.5), ("v3", 2)])
def test_fastclip_s_gradient_is_twice_its_repository_s_times_the_temperature_in_v1_and_v2(
    version: str, factor: float
) -> None:
    given: dict[str, object] = {"temperature": 0.5, "gamma": 0.3, "gamma_schedule": "constant", "epsilon": 1e-3}
    given |= {"official": True} if version in ("v0", "v3") else {"weighted_pull": True}
    given |= {"temperature_lr": 1e-30} if version == "v2" else {}  # its temperatures stay equal
    given |= {"rho": 0.3} if version in ("v2", "v3") else {}
    loss, average = FastCLIPLoss(SAMPLES, version, **given).double(), Average(0.3)
    for step, samples in enumerate(STEPS):
        sides = batch(step)
        theirs = oracles_repositories.fastclip(
            sides[0] @ sides[1].T, samples, average, temperature=0.5, epsilon=1e-3, multiplied=version == "v3"
        )
        ours = gradients(two_way(loss, sides, samples), sides)
        torch.testing.assert_close(ours, factor * gradients(theirs, sides), rtol=1e-6, atol=1e-12)


def test_fastclip_v2_s_first_step_is_the_rate_times_a_sign_as_in_the_repository_s_first_epoch() -> None:
    loss = FastCLIPLoss(SAMPLES, "v2", rho=0.3, temperature_lr=0.004, gamma_schedule="constant", gamma=1.0).double()
    two_way(loss, batch(0), STEPS[0])
    moved = (loss.temperatures - 0.03)[:, STEPS[0]].abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.004), rtol=1e-5, atol=0)


def test_isogclr_is_not_its_repository_s_loss_of_two_modalities() -> None:
    sides = batch(0)
    given = {"temperature": 0.5, "gamma": 0.8, "two_way": True}
    ours = gradients(two_way(ISogCLRLoss(SAMPLES, **given).double(), sides, STEPS[0]), sides)
    theirs = gradients(
        oracles_repositories.isogclr_two_modalities(sides[0] @ sides[1].T, temperature=0.5, gamma=0.8), sides
    )
    factor = (ours * theirs).sum() / theirs.square().sum()
    assert (ours - factor * theirs).norm() > 0.05 * ours.norm()  # at no learning rate
