"""Several views of each image, and training without labels, through the whole loop."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testing.galleries import photos
from testing.runs import records, tiny_config, train_and_listen, trainer_of

import aurank
from aurank.commands import evaluate_model
from aurank.data import HardNegativeSampler
from aurank.embedding import ImageSelection
from aurank.embedding.build import build_dataset, fill_preprocessing
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.models import Encoder
from aurank.training import read_config, rehearse
from aurank.training.build import build_splits
from aurank.training.loop import Loop
from aurank.training.run import training_group
from aurank.training.state import Progress
from aurank.training.trainer import Trainer

CROPS: dict[str, Any] = {"views": 4, "train_transform": {"name": "simclr", "params": {"blur": 0}}}
OWN_LABELS: dict[str, Any] = {"views": 2, "train_labels": "image"}
SHUFFLED = {"name": "shuffled", "params": {}}


@pytest.mark.parametrize("micro_batch", [None, 8])
def test_the_encoder_sees_all_views_and_the_loss_their_labels_and_ids(tmp_path, micro_batch):
    trainer, seen, given = trainer_of(tiny_config(data=CROPS, train={"micro_batch": micro_batch})), [], []

    def see(encoder: Encoder, inputs: tuple[torch.Tensor]) -> None:
        seen.extend([len(inputs[0])] * torch.is_grad_enabled())

    trainer.task.encoder.register_forward_pre_hook(see)
    keep = lambda _, inputs, named: given.append((*inputs[:2], named["ids"]))  # noqa: E731
    trainer.loss.register_forward_pre_hook(keep, with_kwargs=True)
    loop = Loop(trainer, tmp_path, {}, progress=Progress())
    loop.step(loop.batches())
    loop.metrics.close()
    ((embeddings, labels, ids),) = given
    rows = ids[: len(ids) // 4]
    assert len(rows) in (15, 16)
    assert len(rows.unique()) == len(rows)
    assert torch.equal(ids, rows.repeat(4))
    assert labels.tolist() == trainer.splits.train.labels[ids].tolist()
    assert embeddings.shape == (4 * len(rows), 8)
    assert sum(seen) == 4 * len(rows)
    assert len(seen) == (1 if micro_batch is None else 8)


@pytest.mark.slow
def test_labels_of_images_are_rows_and_what_is_measured_stays_by_class(tmp_path):
    config = read_config(tiny_config("smooth_ap", data=OWN_LABELS, sampler=SHUFFLED, train={"steps": 3}))
    by_class = build_splits(read_config(tiny_config()))
    splits = build_splits(config)
    assert splits.train.paths == by_class.train.paths
    assert splits.train.labels.tolist() == list(range(len(splits.train)))
    assert splits.manifest.sha256 == by_class.manifest.sha256
    for name in ("val", "test"):
        assert np.array_equal(getattr(splits, name).labels, getattr(by_class, name).labels)
    result = aurank.train(config, tmp_path / "out")
    assert result.report.num_queries == len(splits.test)
    assert {record["step"] for record in records(tmp_path / "out", "val")} == {3}


def unlabelled_photos(root: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    photos(root, {"one": 9, "two/deep": 9, "test": 2})
    data = {"name": "unlabelled", "root": str(root), **OWN_LABELS}
    return tiny_config("smooth_ap", **{"data": data, "sampler": {**SHUFFLED, "batch": 8}, **sections})


@pytest.mark.slow
def test_a_folder_without_labels_is_trained_on_without_being_measured(tmp_path):
    config = unlabelled_photos(tmp_path / "photos", train={"steps": 6, "validate_every": 4, "checkpoint_every": 6})
    notice = "photos has no test split: nothing is measured at the end, best is the newest checkpoint"
    rehearsal = rehearse(read_config(config))
    assert rehearsal.images == {"train": 20}
    assert notice in rehearsal.notices
    result, told = train_and_listen(config, tmp_path / "out")
    assert told["notice"] == [{"text": notice}]
    assert (result.report, result.best, result.steps, result.stopped_by) == (None, {}, 6, None)
    assert not {"testing", "tested"} & set(told)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    files = {"config.yaml", "metrics.jsonl", "timing.json", "report.html"}
    assert names == {*files, "last.safetensors", "best.safetensors"}
    assert load_checkpoint(tmp_path / "out" / "best.safetensors")["progress"]["step"] == 6
    # Measured elsewhere, on images that have classes.
    photos(tmp_path / "classes", {"a": 2, "b": 2, "c": 2})
    classes = ImageSelection(data=f"folder:{tmp_path / 'classes'}")
    assert evaluate_model(f"aurank:{tmp_path}/out/best", classes).num_queries == 6
    assert aurank.train(config, tmp_path / "out", resume=True).report is None


@pytest.mark.slow
def test_a_discarded_projection_of_several_layers_is_trained_and_not_measured(tmp_path):
    model = {"head_layers": 3, "head_width": 16, "discard_head": True}
    config = tiny_config("smooth_ap", model=model, train={"steps": 3, "ema": 0.5}, memory={"size": 100})
    result = aurank.train(config, tmp_path / "out")
    assert load_checkpoint(tmp_path / "out" / "last.safetensors")["loss"]["embedding_memory"].shape == (100, 8)
    image_model = aurank.load(tmp_path / "out" / "best")
    encoder, transform = image_model.module, image_model.transform
    assert encoder(transform(np.zeros((20, 20, 1), np.uint8))[None]).shape == (1, 96)  # the width of the backbone
    report = evaluate_model(f"aurank:{tmp_path / 'out' / 'best'}")
    assert report.metrics == result.report.metrics


HARD = {"name": "hard_negative", "params": {"per_class": 2, "refresh_every": 5, "num_neighbours": 7}}


def test_nearest_images_are_those_of_all_others_under_the_evaluation_transform(tmp_path):
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
    # Compared by similarity, since images may be equally near.
    expected = similarity.sort(dim=1, descending=True).values[:, :-1]
    torch.testing.assert_close(similarity.gather(1, nearest), expected, rtol=0, atol=1e-5)
    assert nearest.sort(dim=1).values.diff(dim=1).min() >= 1
    assert (found[5] == -1).all()
    assert (found[:, 14:] == -1).all()


@pytest.mark.slow
def test_neighbours_are_mined_anew_every_so_many_steps_from_the_weights_of_then(tmp_path, monkeypatch):
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


def test_a_rehearsal_needs_no_neighbours():
    assert rehearse(read_config(tiny_config(sampler=HARD))).loss > 0
