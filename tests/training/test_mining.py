"""Hard negatives in the loop: mined from the weights as they stand, in checkpoints, whatever the workers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from testing.photos import photos
from testing.tiny import tiny_config

import aurank
from aurank.data import HardNegativeSampler
from aurank.embedding.from_config import build_dataset, fill_preprocessing
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.training import read_config, rehearse
from aurank.training.build import build_splits
from aurank.training.run import training_group
from aurank.training.trainer import Trainer

HARD = {"name": "hard_negative", "params": {"per_class": 2, "refresh_every": 5, "num_neighbours": 7}}


def test_nearest_images_are_those_of_all_others_under_the_evaluation_transform(tmp_path: Path) -> None:
    photos(tmp_path, {f"{split}/{split}{label}": 4 for split in ("train", "val", "test") for label in "abcd"})
    (tmp_path / "train" / "trainb" / "1.png").write_bytes(b"broken")
    data = {"name": "folder", "root": str(tmp_path), "on_error": "skip", "channels": 3}
    config = fill_preprocessing(read_config(tiny_config(data=data, sampler=HARD)))
    data_set = build_dataset(config.data, build_splits(config).train, train=False)
    with training_group(config):
        trainer = Trainer(config, build_splits(config))
        assert isinstance(trainer.sampler, HardNegativeSampler)
        found = trainer.sampler.neighbours(20)
    assert trainer.model.training
    rows = [row for row in range(16) if row != 5]
    with torch.no_grad():
        embeddings = trainer.model.eval()(data_set.to_input(data_set.__getitems__(rows).image))
    similarity = (embeddings @ embeddings.T).fill_diagonal_(-2)
    nearest = torch.from_numpy(np.searchsorted(rows, found[rows][:, :14]))
    # Compared by similarity, since copies of an image are equally near.
    expected = similarity.sort(dim=1, descending=True).values[:, :-1]
    torch.testing.assert_close(similarity.gather(1, nearest), expected, rtol=0, atol=1e-5)
    assert nearest.sort(dim=1).values.diff(dim=1).min() >= 1
    assert (found[5] == -1).all()
    assert (found[:, 14:] == -1).all()


@pytest.mark.slow
def test_neighbours_are_mined_anew_every_so_many_steps_from_the_weights_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mined: list[tuple[int, int, np.ndarray]] = []
    original = HardNegativeSampler.refresh

    def refresh(self: HardNegativeSampler, epoch: int, batch: int) -> None:
        original(self, epoch, batch)
        mined.append((epoch, batch, self.state_dict()["nearest"].numpy()))

    monkeypatch.setattr(HardNegativeSampler, "refresh", refresh)
    sampler = {**HARD, "batch": 4}  # more than 30 batches an epoch
    config = tiny_config(sampler=sampler, train={"accumulate": 2, "steps": 13, "validate_every": 100})
    aurank.train(config, tmp_path / "out")
    assert [place[:2] for place in mined] == [(0, 0), (0, 10), (0, 20)]
    assert not np.array_equal(mined[0][2], mined[1][2])
    state = load_checkpoint(tmp_path / "out" / "last.safetensors")["sampler"]
    np.testing.assert_array_equal(state["nearest"].numpy(), mined[-1][2])
    assert len(state["shown"]) == 20


def test_a_rehearsal_needs_no_neighbours() -> None:
    assert rehearse(read_config(tiny_config(sampler=HARD))).loss > 0
