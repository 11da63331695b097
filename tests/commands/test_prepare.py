"""`aurank data prepare` and what reads from its folder: training, measuring, embedding, the doctor."""

from pathlib import Path
from typing import Any

import pytest
from testing.runs import tiny_config
from testing.trees import write_tree

import aurank
from aurank.commands import embed_model, evaluate_model, prepare_data
from aurank.data import FolderSource
from aurank.embedding import ImageSelection
from aurank.errors import AurankWarning, UserError
from aurank.training import read_config, rehearse


def photos(root: Path) -> dict[str, Any]:
    """A configuration of large images: 4 classes of 4 images a split."""
    classes = [f"{split}/{split}{label}" for split in ("train", "val", "test") for label in range(4)]
    names = [f"{folder}/{number}.png" for folder in classes for number in range(4)]
    write_tree(root / "photos", names, height=60, width=80)
    transforms = {"train_transform": {"name": "random_crop"}, "test_transform": {"name": "center"}}
    data = {"name": "folder", "root": str(root / "photos"), "image_size": 32, "channels": 3, "cache": "0", **transforms}
    train = {"steps": 4, "validate_every": 2, "checkpoint_every": 2}
    return tiny_config(data=data, sampler={"batch": 8, "params": {"per_class": 2}}, train=train)


@pytest.mark.slow
def test_the_usual_side_is_what_the_larger_of_the_transforms_needs(tmp_path):
    config = photos(tmp_path)
    whole = "data.train_transform={name: crop_flip, params: {margin: null}}"
    for overrides, side in (([], 37), (["data.test_transform.params.margin=1.5"], 48), ([whole], 80)):
        result = prepare_data(config, tmp_path / f"out{side}", overrides)
        assert (result.how.short_side, result.images) == (side, 48)
        assert result.how.interpolation == "area"
    assert prepare_data(config, tmp_path / "out", short_side=20).how.short_side == 20


@pytest.mark.slow
def test_training_and_measuring_give_the_numbers_of_the_originals(tmp_path, monkeypatch):
    config, prepared = photos(tmp_path), f"data.prepared={tmp_path / 'out'}"
    prepare_data(config, tmp_path / "out")
    plain = aurank.train(config, tmp_path / "plain")
    looked_at: list[str] = []
    marks = FolderSource.marks
    monkeypatch.setattr(FolderSource, "marks", lambda source, paths: looked_at.extend(paths) or marks(source, paths))
    found = aurank.train(config, tmp_path / "found", overrides=[prepared])
    once, again = looked_at[:48], looked_at[48:]
    assert (len(set(once)), len(again)) == (48, 16)  # before the first step, and those of the test before it
    assert found.best == plain.best
    assert found.report.metrics == plain.report.metrics
    model, images = f"aurank:{tmp_path / 'found/best'}", str(tmp_path / "photos")
    for selection in (
        ImageSelection(),  # of the run, and so from the folder
        ImageSelection(f"folder:{images}"),  # named anew: the originals
        ImageSelection(f"folder:{images}", overrides=[prepared]),
    ):
        assert evaluate_model(model, selection).metrics == plain.report.metrics
    assert len(embed_model(model, ImageSelection()).labels) == 16
    rehearse(read_config(config, [prepared]))
    (tmp_path / "out/images.arrow").unlink()
    with pytest.raises(UserError, match="cannot be read as prepared images"):
        evaluate_model(model, ImageSelection())


@pytest.mark.slow
def test_a_run_goes_on_with_images_prepared_as_they_were(tmp_path):
    config, prepared = photos(tmp_path), [f"data.prepared={tmp_path / 'out'}"]
    prepare_data(config, tmp_path / "out")
    aurank.train(config, tmp_path / "run", overrides=prepared)
    aurank.train(config, tmp_path / "run", resume=True, overrides=prepared)
    with pytest.raises(UserError, match=r"data\.prepared: .* != null"):
        aurank.train(config, tmp_path / "run", resume=True)
    (tmp_path / "out").rename(tmp_path / "before")
    aurank.train(config, tmp_path / "run", resume=True, overrides=[f"data.prepared={tmp_path / 'before'}"])
    prepare_data(config, tmp_path / "out", short_side=40)
    with pytest.raises(UserError, match=r"\(.*prepared.* changed\)"):
        aurank.train(config, tmp_path / "run", resume=True, overrides=prepared)


@pytest.mark.slow
def test_a_side_that_is_too_small_for_the_transform_is_told(tmp_path):
    config = photos(tmp_path)
    prepare_data(config, tmp_path / "out", short_side=20)
    settings = read_config(config, [f"data.prepared={tmp_path / 'out'}"])
    said = r"data\.prepared: .* 20 pixels, and (random_crop|center) asks for 37; .*--short-side 37"
    with pytest.warns(AurankWarning, match=said):
        rehearse(settings)


def test_originals_are_never_written_to(tmp_path):
    config = photos(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for out in ("photos", "photos/prepared", ".", "photos/train/train0"):
        with pytest.raises(UserError, match=r"the originals are in .*photos; name a folder apart from theirs"):
            prepare_data(config, tmp_path / out)
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    with pytest.raises(UserError, match="name a folder apart"):
        prepare_data(config, tmp_path / "link/prepared")
    (tmp_path / "link").unlink()
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert {path for path in after if path != tmp_path} == {path for path in before if path != tmp_path}
    assert all(after[path] == before[path] for path in before if path.is_file())
