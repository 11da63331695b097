"""Distillation and compatibility: the oracle's values, whose row is whose, and what is refused before training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles import contrastive as oracles_contrastive
from testing.equal import batch, check_equal
from testing.runs import few_digits, tiny_config
from torch import Tensor

import aurank
from aurank.config import Config, ConfigError
from aurank.data.dataset import with_own_labels
from aurank.errors import UserError
from aurank.losses import CompatibleLoss, CrossBatchMemory, DistillLoss, MultipleLosses, SmoothAPLoss
from aurank.training import read_config
from aurank.training.build import build_loss

SAMPLES = 40


def saved(width: int = 6, *, seed: int = 9) -> Tensor:
    return torch.randn(SAMPLES, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ids_of(number: int) -> Tensor:
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(1))[:number]


def exact(loss: Any) -> Any:
    """The loss with its rows in float64, in which the oracle computes."""
    loss.saved = torch.nn.functional.normalize(saved(loss.saved.shape[1]))
    return loss.double()


@pytest.mark.parametrize(("cosine_weight", "similarity"), [(1, 1), (0.3, 0), (0, 2.0)])
def test_distillation_is_the_oracles(cosine_weight: float, similarity: float) -> None:
    rows, labels = batch()
    ids = ids_of(len(rows))
    ids[3] = ids[7]  # two views of an image
    loss = exact(DistillLoss(saved(), cosine=cosine_weight, similarity=similarity, temperature=0.3))
    expected = oracles_contrastive.distilled(
        rows, saved()[ids], ids.tolist(), cosine=cosine_weight, similarity=similarity, temperature=0.3
    )
    check_equal(loss(rows, labels, ids=ids), expected, rows)
    assert loss(rows, labels * 0, ids=ids) == loss(rows, labels, ids=ids)


def test_a_teacher_of_another_width_is_met_through_a_map_that_learns() -> None:
    rows, labels = batch()
    ids = ids_of(len(rows))
    loss = exact(DistillLoss(saved(11), 6, similarity=0))
    (name, matrix), *others = loss.named_parameters()
    assert (name, tuple(matrix.shape), others) == ("map", (11, 6), [])
    torch.testing.assert_close(matrix.T @ matrix, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-6)
    teacher = saved(11)[ids]
    mapped = rows @ matrix.T
    expected = oracles_contrastive.distilled(mapped, teacher, ids.tolist(), cosine=1, similarity=0, temperature=1)
    check_equal(loss(rows, labels, ids=ids), expected, rows, matrix)
    assert list(loss.state_dict()) == ["map"]  # of a data set the rows would fill the checkpoint
    similar = exact(DistillLoss(saved(11), 6, cosine=0))(rows, labels, ids=ids)
    expected = oracles_contrastive.distilled(rows, teacher, ids.tolist(), cosine=0, similarity=1, temperature=0.05)
    check_equal(similar, expected, rows)


def test_a_student_that_is_its_teacher_has_nothing_to_learn_and_one_image_has_no_others() -> None:
    teacher, ids = saved(), torch.arange(SAMPLES)
    assert exact(DistillLoss(teacher))(teacher, ids, ids=ids).abs() < 1e-12
    row = teacher[:1].clone().requires_grad_()
    views = exact(DistillLoss(teacher, cosine=0))(torch.cat([row, 2 * row + 1]), ids[:2], ids=ids[[0, 0]])
    assert views == 0
    assert not torch.autograd.grad(views, row)[0].any()


def test_beside_another_loss_and_in_a_memory_they_see_the_batch_alone() -> None:
    rows, labels = batch()
    ids = ids_of(len(rows))
    parts = {"new": SmoothAPLoss(), "teacher": exact(DistillLoss(saved())), "old": exact(CompatibleLoss(saved()))}
    loss = CrossBatchMemory(MultipleLosses(parts, weights={"old": 0.5}), embedding_size=6, memory_size=60).double()
    for _ in range(2):
        loss(rows, labels, ids=ids)
    for name, weight in (("teacher", 1), ("old", 0.5)):
        torch.testing.assert_close(loss.loss.last_terms[name], weight * parts[name](rows, labels, ids=ids).detach())
    with pytest.raises(UserError, match=r"DistillLoss takes no references .* so it has no use for a memory"):
        CrossBatchMemory(parts["teacher"], embedding_size=6)


def test_calls_without_ids_with_references_or_of_another_width_are_refused() -> None:
    rows, labels = batch()
    ids = ids_of(len(rows))
    for loss in (DistillLoss(saved()), CompatibleLoss(saved())):
        for call in ({}, {"ids": ids, "ref_emb": rows.clone(), "ref_labels": labels}):
            with pytest.raises(UserError, match="compares a batch with saved rows: pass ids, and no ref_emb"):
                loss(rows, labels, **call)
        with pytest.raises(UserError, match="as wide as embedding_size=6, got 5"):
            loss(rows[:, :5], labels, ids=ids)
    with pytest.raises(UserError, match=r"old rows are 6 wide and the embeddings 5: set model.dim=6"):
        CompatibleLoss(saved(), embedding_size=5)


# -- from a configuration --------------------------------------------------------------------------------------------


def write_teacher(file: Path, **changes: Any) -> np.ndarray:
    """Rows of the digits, last first, and none of the first test image."""
    digits = few_digits()
    chosen = np.arange(1, len(digits))[::-1]
    rows = np.random.default_rng(0).normal(size=(len(digits), 8)).astype(np.float32)
    arrays = {"embeddings": rows[chosen], "labels": digits.labels[chosen], "splits": digits.splits[chosen]}
    arrays["paths"] = np.array(digits.paths)[chosen]
    np.savez(file, **{**arrays, **changes})
    return rows


def config_of(file: Path, name: str = "distill", **sections: Any) -> Config:
    argument = {"distill": "teacher", "compatible": "old"}[name]
    loss = [{"name": "sup_con"}, {"name": name, "params": {argument: str(file)}}]
    return read_config(tiny_config(loss=loss, data={"validation_fraction": 0.0}, **sections))


@pytest.fixture
def training() -> Any:
    digits = few_digits()
    return digits.select(np.arange(1, len(digits))).split("train")


def test_rows_are_those_of_the_training_images_by_their_paths(tmp_path: Path, training: Any) -> None:
    rows = write_teacher(tmp_path / "rows.npz")
    position = {path: row for row, path in enumerate(few_digits().paths)}
    wanted = torch.from_numpy(rows[[position[path] for path in training.paths]])
    for images in (training, with_own_labels(training)):
        for name in ("distill", "compatible"):
            loss: Any = build_loss(config_of(tmp_path / "rows.npz", name), images)
            torch.testing.assert_close(loss.losses[name].saved, torch.nn.functional.normalize(wanted))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paths": np.array([f"{row}.png" for row in range(359)])}, "lacks 179 of 179 images, such as "),
        ({"paths": np.array(["a"] * 359)}, "holds image 'a' twice"),
        ({"embeddings": np.full((359, 8), np.nan)}, "row 0 .* holds NaN or infinity"),
        ({"embeddings": np.ones((359, 7))}, "old rows are 7 wide and the embeddings 8: set model.dim=7"),
        ({"embeddings": np.ones(359)}, "embeddings has shape"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line_before_training(
    changes: Any, message: str, tmp_path: Path, training: Any
) -> None:
    write_teacher(tmp_path / "rows.npz", **changes)
    with pytest.raises(UserError, match=message) as refused:
        build_loss(config_of(tmp_path / "rows.npz", "compatible"), training)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", [3, None, ["rows.npz"], {"file": "rows.npz"}])
def test_what_is_no_file_is_refused_in_words_of_a_configuration(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^loss.params.teacher: got .*, expected an object of Python or a valid str"):
        read_config(tiny_config(loss={"name": "distill", "params": {"teacher": value}}))


def test_a_run_does_not_go_on_with_other_rows(tmp_path: Path) -> None:
    digits = few_digits()
    digits = digits.select(np.arange(1, len(digits)))
    rows = write_teacher(tmp_path / "rows.npz")
    aurank.train(config_of(tmp_path / "rows.npz"), tmp_path / "run", dataset=digits, page=False)
    write_teacher(tmp_path / "rows.npz", embeddings=2 * rows[1:])
    with pytest.raises(UserError, match=r"trained on other images of .* \(teacher changed\); point .* the same rows"):
        aurank.train(config_of(tmp_path / "rows.npz"), tmp_path / "run", resume=True, dataset=digits)
