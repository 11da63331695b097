"""An index of embeddings that were saved before: the same as one that embeds its images itself, a part at a time."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aurank.commands import RunOptions, build_index, embed_model, embed_to_folder
from aurank.embedding import ImageSelection
from aurank.errors import UserError
from aurank.files import claimed

MODEL = "timm:test_vit,pretrained=false"
HOW = RunOptions(batch=4, device="cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos, and their embeddings in parts and in one file."""
    folder, chance = tmp_path_factory.mktemp("saved"), np.random.default_rng(0)
    for row in range(11):
        path = folder / "photos" / f"class {row % 3}" / f"{row:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(chance.integers(0, 255, (9, 9, 3), dtype=np.uint8)).save(path)
    images = ImageSelection(f"folder:{folder / 'photos'}", split="all")
    embed_to_folder(MODEL, images, out=folder / "parts", shard_rows=4, running=HOW)
    embed_model(MODEL, images, running=HOW).save(folder / "rows.npz")
    return folder


@pytest.mark.parametrize("name", ["parts", "rows.npz"])
def test_it_is_the_index_of_the_images(saved: Path, tmp_path: Path, name: str) -> None:
    images = ImageSelection(f"folder:{saved / 'photos'}")
    plain = build_index(MODEL, images, out=tmp_path / "plain", running=HOW)
    again = build_index(MODEL, images, out=tmp_path / "again", embeddings=saved / name, running=HOW)
    assert plain is not None
    assert again is not None
    files = [next((tmp_path / one).glob("rows-*/embeddings.npy")).read_bytes() for one in ("plain", "again")]
    assert files[0] == files[1]
    for column, values in plain.images.items():
        assert values.tolist() == again.images[column].tolist(), column
    photos = sorted((saved / "photos").rglob("*.png"))[:4]
    assert again.search(photos, k=3) == plain.search(photos, k=3)
    assert [hits[0].path for hits in again.search(photos, k=1)] == [
        str(p.relative_to(saved / "photos")) for p in photos
    ]


def test_an_approximate_one_is_measured_by_them(saved: Path, tmp_path: Path) -> None:
    images = ImageSelection(f"folder:{saved / 'photos'}")
    found = [
        build_index(MODEL, images, out=tmp_path / name, factory="IVF2,Flat", embeddings=given, running=HOW)
        for name, given in (("plain", None), ("again", saved / "parts"))
    ]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].about["recall"] == found[1].about["recall"]


def test_embeddings_of_another_model_or_of_other_images_are_refused(saved: Path, tmp_path: Path) -> None:
    images = ImageSelection(f"folder:{saved / 'photos'}")
    with pytest.raises(UserError, match="was made by timm:test_vit,pretrained=false, with other weights"):
        build_index("timm:test_resnet,pretrained=false", images, out=tmp_path / "a", embeddings=saved / "parts")
    np.savez(tmp_path / "mine.npz", embeddings=np.eye(2), labels=[0, 1])
    with pytest.raises(UserError, match="does not say what it was made of"):
        build_index(MODEL, images, out=tmp_path / "b", embeddings=tmp_path / "mine.npz")
    more = tmp_path / "photos"
    shutil.copytree(saved / "photos", more)
    (more / "class 0" / "99.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"lacks 1 of 12 images, such as 'class 0/99\.png': embed them again"):
        build_index(MODEL, ImageSelection(f"folder:{more}"), out=tmp_path / "c", embeddings=saved / "parts")
    said: list[str] = []
    skipping = ImageSelection(f"folder:{more}", overrides=["data.on_error=skip"])
    how = RunOptions(batch=4, device="cpu", say=said.append)
    made = build_index(MODEL, skipping, out=tmp_path / "d", embeddings=saved / "parts", running=how)
    assert made is not None
    assert len(made) == 11
    assert "skipped, unreadable: 1 of 12 images (class 0/99.png)" in said


@pytest.mark.parametrize("name", ["parts", "rows.npz"])
def test_embeddings_of_other_files_of_the_same_names_are_refused(saved: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(saved / "photos", tmp_path / "photos")
    Image.new("RGB", (9, 9), "red").save(tmp_path / "photos" / "class 1" / "04.png")
    images = ImageSelection(f"folder:{tmp_path / 'photos'}")
    with pytest.raises(UserError, match=r"1 of 11 images are other files than were .*'class 1/04\.png'"):
        build_index(MODEL, images, out=tmp_path / "index", embeddings=saved / name, running=HOW)


@pytest.mark.parametrize("name", ["parts", "rows.npz"])
def test_a_file_that_was_replaced_while_others_were_embedded_is_another(saved: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(saved / "photos", tmp_path / "photos")
    first = next(path for path in sorted((tmp_path / "photos").rglob("*.png")))

    def replace_first(stage: str, done: int, total: int) -> None:
        Image.new("RGB", (9, 9), "red").save(first)  # its batch is done by then

    images, how = ImageSelection(f"folder:{tmp_path / 'photos'}", split="all"), replace(HOW, listener=replace_first)
    if name == "parts":
        embed_to_folder(MODEL, images, out=tmp_path / name, shard_rows=4, running=how)
    else:
        embed_model(MODEL, images, running=how).save(tmp_path / name)
    with pytest.raises(UserError, match=r"1 of 11 images are other files than were .*'class 0/00\.png'"):
        build_index(MODEL, images, out=tmp_path / "index", embeddings=tmp_path / name, running=HOW)


def test_rows_in_another_order_than_their_paths_are_refused(saved: Path, tmp_path: Path) -> None:
    images = ImageSelection(f"folder:{saved / 'photos'}")
    with np.load(saved / "rows.npz") as content:
        columns = dict(content)
    order = np.array([0, 2, 1, *range(3, 11)])
    np.savez(tmp_path / "swapped.npz", **{**columns, "embeddings": columns["embeddings"][order]})
    with pytest.raises(UserError, match=r"2 of 11 rows are not what was embedded of their images, .*'class 0/03\.png'"):
        build_index(MODEL, images, out=tmp_path / "a", embeddings=tmp_path / "swapped.npz", running=HOW)
    of_rows = {name: values[order] for name, values in columns.items() if len(np.atleast_1d(values)) == len(order)}
    np.savez(tmp_path / "sorted.npz", **{**columns, **of_rows})  # every column in the same new order
    made = build_index(MODEL, images, out=tmp_path / "b", embeddings=tmp_path / "sorted.npz", running=HOW)
    assert made is not None
    assert np.array_equal(made.rows.embeddings, columns["embeddings"])
    del columns["sums"]  # which files of before lack
    np.savez(tmp_path / "old.npz", **columns)
    with pytest.raises(UserError, match="does not say what it was made of: write it with aurank embed"):
        build_index(MODEL, images, out=tmp_path / "c", embeddings=tmp_path / "old.npz", running=HOW)


@pytest.mark.parametrize("name", ["parts", "rows.npz"])
def test_it_is_told_how_rows_are_matched_to_images(saved: Path, tmp_path: Path, name: str) -> None:
    said: list[str] = []
    images, how = ImageSelection(f"folder:{saved / 'photos'}"), replace(HOW, say=said.append)
    build_index(MODEL, images, out=tmp_path / "index", embeddings=saved / name, running=how)
    assert [line for line in said if "length and time" in line and str(saved / name) in line]


def test_embeddings_in_bfloat16_are_no_others(saved: Path, tmp_path: Path) -> None:
    images = ImageSelection(f"folder:{saved / 'photos'}", split="all")
    embed_model(MODEL, images, running=replace(HOW, bf16=True)).save(tmp_path / "rows.npz")
    with pytest.raises(UserError, match="was made in bf16, and here it is in float32 of the images themselves"):
        build_index(MODEL, images, out=tmp_path / "index", embeddings=tmp_path / "rows.npz", running=HOW)


def test_two_do_not_embed_into_one_folder(saved: Path, tmp_path: Path) -> None:
    images = ImageSelection(f"folder:{saved / 'photos'}", split="all")
    with (
        claimed(tmp_path / "parts"),
        pytest.raises(UserError, match=r"parts is in use by another process; wait for it"),
    ):
        embed_to_folder(MODEL, images, out=tmp_path / "parts", running=HOW)
