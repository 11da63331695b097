"""The rehearsal finds what a long run would fail at, and what it will need."""

from pathlib import Path

import pytest
from testing.photos import photos
from testing.tiny import tiny_config

import aurank
from aurank.errors import UserError
from aurank.training import read_config, rehearse


def test_a_miner_and_a_rehearsal_work_from_the_configuration() -> None:
    rehearsal = rehearse(read_config({**tiny_config("smooth_ap"), "miner": {"name": "multi_similarity"}}))
    assert rehearsal.images == {"train": 149, "validation": 31, "test": 180}
    assert rehearsal.classes == {"train": 8, "validation": 2, "test": 10}
    assert rehearsal.parameters == rehearsal.trained_parameters == 373176
    assert (rehearsal.batch, rehearsal.batches_per_epoch) == (15, 10)  # the last class has fewer images
    assert rehearsal.memory["activations"] > rehearsal.batch * 16 * 16 * 4
    assert rehearsal.memory["images"] == 360 * 16 * 16
    assert rehearsal.memory["moving average"] == 0
    assert "GiB" in str(rehearsal)


@pytest.mark.slow
def test_a_bound_on_memory_that_is_too_low_to_measure_is_refused() -> None:
    with pytest.raises(UserError, match="max_memory is 1000 bytes"):
        rehearse(read_config(tiny_config(evaluate={"max_memory": "1KB"})))


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_split_in_which_no_query_has_a_positive_is_refused(tmp_path: Path, split: str) -> None:
    counts = {f"{name}/{name}{label}": 4 for name in ("train", "val", "test") for label in "abcd"}
    photos(tmp_path, {place: 1 if place.startswith(split) else count for place, count in counts.items()})
    config = read_config(tiny_config(data={"name": "folder", "root": str(tmp_path)}))
    name = {"val": "validation", "test": "test"}[split]
    with pytest.raises(UserError, match=f"the {name} split of .* cannot be measured: none of its 4 queries"):
        rehearse(config)


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["0", "1GiB"])
def test_unreadable_images_are_passed_over_where_they_are_skipped(tmp_path: Path, cache: str) -> None:
    photos(tmp_path, {f"{name}/{name}{label}": 4 for name in ("train", "val", "test") for label in "abcd"})
    for broken in tmp_path.glob("*/*/[012].png"):
        if broken.parent.name[-1] in "ab" or broken.name == "0.png":
            broken.write_bytes(b"broken")
    sections = {"data": {"name": "folder", "root": str(tmp_path), "on_error": "skip", "cache": cache}}
    assert rehearse(read_config(tiny_config(**sections))).images["test"] == 16
    for broken in tmp_path.glob("train/*/*.png"):
        broken.write_bytes(b"broken")
    with pytest.raises(UserError, match=r"readable|can be read"):
        rehearse(read_config(tiny_config(**sections)))


@pytest.mark.slow
def test_a_batch_that_the_classes_cannot_fill_is_told_by_rehearsal_and_run(tmp_path: Path) -> None:
    photos(tmp_path / "photos", {f"{split}/{split}{label}": 4 for split in ("train", "test") for label in "ab"})
    data = {"name": "folder", "root": str(tmp_path / "photos"), "validation_fraction": 0}
    config = read_config(tiny_config(data=data, train={"steps": 3}))
    said = "batches have 8 images in place of sampler.batch=16: that is all that the sampler can draw from 8 training"
    assert said in str(rehearse(config))
    notices: list[str] = []
    aurank.train(config, tmp_path / "out", listener=lambda kind, values: notices.extend(
        [values["text"]] if kind == "notice" else []))  # fmt: skip
    assert len(notices) == 1
    assert notices[0].startswith(said)
    assert said not in str(rehearse(read_config(tiny_config())))


def test_a_folder_that_holds_no_training_classes_is_met_with_the_remedy(tmp_path: Path) -> None:
    photos(tmp_path, dict.fromkeys("abcd", 4))
    data = {"name": "folder", "root": str(tmp_path), "validation_fraction": 0}
    with pytest.raises(UserError, match=r"no images in split 'train'.*set data\.params\.test_fraction below 1"):
        rehearse(read_config(tiny_config(data=data)))
    with pytest.raises(UserError, match=r"no images in split 'test'.*set data\.params\.test_fraction above 0"):
        rehearse(read_config(tiny_config(data={**data, "params": {"test_fraction": 0}})))
    rows = [f"{label}/{number}.png,{label},train" for label in "abcd" for number in range(4)]
    (tmp_path / "mine.csv").write_text("\n".join(["path,label,split", *rows]), encoding="utf-8")
    table = {**data, "name": "table", "params": {"file": "mine.csv"}}
    with pytest.raises(
        UserError, match=r"'test'.*; write test into the column split of mine\.csv for some of its classes"
    ):
        rehearse(read_config(tiny_config(data=table)))
