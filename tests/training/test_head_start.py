"""Where a linear projection starts: principal components, the identity, or at random."""

from typing import Any

import numpy as np
import pytest
import torch
from testing.galleries import WIDTH, head_config, rows, write_rows
from testing.runs import tiny_config
from torch import nn

from aurank.errors import UserError
from aurank.models.encoder import start_at_pca
from aurank.training import read_config
from aurank.training.trainer import build_trainer


def started(config: dict[str, Any], *overrides: str) -> nn.Linear:
    head = build_trainer(read_config(config, overrides)).task.encoder.head
    assert isinstance(head, nn.Linear)
    return head


def test_pca_is_that_of_a_singular_value_decomposition():
    given = np.random.default_rng(0).normal(size=(50, 6)) * [5, 4, 3, 2, 1, 0.1] + 7
    head = nn.Linear(6, 3)
    start_at_pca(head, torch.from_numpy(given).float())
    centred = given - given.mean(axis=0)
    axes = np.linalg.svd(centred)[2][:3]
    axes *= np.sign(axes[np.arange(3), np.abs(axes).argmax(axis=1)])[:, None]
    assert head(torch.from_numpy(given).float()).detach().numpy() == pytest.approx(centred @ axes.T, abs=1e-4)


def test_fewer_rows_than_components_still_give_an_orthonormal_start():
    head = nn.Linear(8, 6)
    start_at_pca(head, torch.randn(3, 8, generator=torch.Generator().manual_seed(0)))
    assert torch.allclose(head.weight @ head.weight.T, torch.eye(6), atol=1e-6)


def test_a_head_on_saved_rows_starts_at_their_training_rows_components_or_at_the_identity(tmp_path):
    config = head_config(write_rows(tmp_path / "rows.npz"), data={"validation_fraction": 0.0})
    held = rows()
    training = torch.from_numpy(held["embeddings"][held["splits"] == "train"])
    expected = nn.Linear(WIDTH, 4)
    start_at_pca(expected, training)
    for overrides in ((), ("model.head_start=pca",)):
        assert torch.equal(started(config, *overrides).weight, expected.weight)
        assert torch.equal(started(config, *overrides).bias, expected.bias)
    assert torch.equal(started(config, f"model.dim={WIDTH}").weight, torch.eye(WIDTH))
    for overrides in (("model.head_start=random",), (f"model.dim={WIDTH + 1}",)):
        first, second = (started(config, *overrides, f"seed={seed}").weight for seed in (0, 1))
        assert not torch.equal(first, second)


def test_the_projection_of_a_network_starts_at_the_components_of_its_pooled_features():
    config = tiny_config(model={"head_start": "pca", "dim": 4})
    trainer = build_trainer(read_config(config))
    encoder, images = trainer.task.encoder.eval(), trainer.train_data
    with torch.no_grad():
        every = images.__getitems__(range(len(images)))
        projected = encoder.head(encoder.pooled(images.to_input(every.image)))
    spread = torch.cov(projected.T.double())
    assert projected.mean(dim=0).abs().max() < 1e-3 * projected.std()
    assert (spread - spread.diag().diag()).abs().max() < 1e-3 * spread.diag().max()
    assert started(tiny_config(model={"dim": 4})).bias.abs().max() > 0  # random


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model.head_start=identity",), r"identity needs model.dim of 16, the width of the backbone, got 4"),
        (("model.head_start=pca", "model.dim=17"), r"pca needs model.dim of at most 16"),
        (("model.head_start=pca", "model.head_layers=2"), r"a projection of 2 layers starts at random"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        started(head_config(write_rows(tmp_path / "rows.npz")), *overrides)
