"""The folder of an index: what is damaged, of another model or version is refused; a killed change leaves the old."""

import json
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from testing.galleries import MODEL, small_index, write_photo, write_photos

import aurank
from aurank.commands import ImageIndex, add_images, build_index, remove_images
from aurank.embedding import ImageSelection
from aurank.embedding import index_folder as files
from aurank.errors import AurankError, UserError
from aurank.files import claimed, content_sha256


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    small_index(write_photos(folder / "photos", classes=2, images=3), folder / "index", postprocess="binary")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "index", tmp_path / "index"))


def use(folder: Path) -> None:
    ImageIndex.open(folder).load_model()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


FILES = [
    *("rows-*/embeddings.npy", "rows-*/vectors.npy", "rows-*/images.parquet", "rows-*/index.faiss"),
    *("rows-*/index.faiss.json", "rows-*/postprocessing.safetensors", "model-*/model.safetensors", "index.json"),
]


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink], ids=["cut", "flipped", "gone"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_what_was_written_is_refused(name, damage, folder):
    (path,) = folder.glob(name)
    damage(path)
    with pytest.raises(UserError) as refused:
        use(folder)
    assert "\n" not in str(refused.value)
    assert path.name in str(refused.value) or "no index at" in str(refused.value)


def rewritten(folder: Path, **changes: Any) -> None:
    """Change what index.json says, with its checksum."""
    path = folder / "index.json"
    content = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    content["checksum"] = content_sha256(content)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 1}, "is not an image index"),
        ({"format": "other"}, "is not an image index"),
        ({"count": None}, r"index\.json: .*count"),
        ({"model": {"name": 5}}, r"index\.json: .*model"),
    ],
)
def test_an_index_of_another_version_is_refused(changes, said, folder):
    rewritten(folder, **changes)
    with pytest.raises(UserError, match=said):
        use(folder)


def test_another_model_is_refused(folder):
    (path,) = folder.glob("model-*/model.safetensors")
    name_there = path.relative_to(folder).as_posix()
    tensors = load_file(path)
    name = next(name for name, value in tensors.items() if value.dtype == torch.float32)
    save_file({**tensors, name: tensors[name] + 1}, path)
    about = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    rewritten(folder, files={**about["files"], name_there: files.file_sha256(path)})
    with pytest.raises(UserError, match="has other weights than when"):
        use(folder)
    shutil.copyfile(next(Path(folder).glob("rows-*/embeddings.npy")), path)
    rewritten(folder, files={**about["files"], name_there: files.file_sha256(path)})
    with pytest.raises(UserError, match="cannot be read as a stored model"):
        use(folder)


def test_an_index_that_cannot_be_replaced_stays(made, folder, monkeypatch):
    before = sorted(path.as_posix() for path in folder.rglob("*"))
    monkeypatch.setattr(files, "write_text", Mock(side_effect=AurankError("cannot save: No space left on device")))
    with pytest.raises(AurankError, match="No space left"):
        build_index(MODEL, ImageSelection(f"folder:{made / 'photos'}"), out=folder, overwrite=True)
    assert sorted(path.as_posix() for path in folder.rglob("*")) == before
    use(folder)


def test_a_disk_without_room_for_the_model_is_one_line(made, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    model = aurank.load(MODEL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # the weights have 1.2 MB
    try:
        for write in (lambda: small_index(made / "photos", tmp_path / "out"), lambda: model.save(tmp_path / "out")):
            with pytest.raises(AurankError, match=r"^cannot save .*model\.safetensors: .*File too large"):
                write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


KILLED = """
import os, signal, sys
from pathlib import Path
from aurank.commands import remove_images
from aurank.embedding import index_folder
module, _, function = sys.argv[2].rpartition(".")
kill = lambda *given, **further: os.kill(os.getpid(), signal.SIGKILL)
setattr(getattr(index_folder, module) if module else index_folder, function, kill)
remove_images(Path(sys.argv[1]), ["c0/0.png"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("place", "left"), [("write_text", 6), ("storable_texts", 6), ("shutil.rmtree", 5)])
def test_a_killed_change_leaves_the_old_index_or_the_new(place, left, folder):
    ended = subprocess.run([sys.executable, "-c", KILLED, str(folder), place], timeout=100, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(list(folder.glob("rows-*"))) == 2
    assert len(ImageIndex.open(folder)) == left
    use(folder)
    remove_images(folder, ["c1/0.png"])
    assert len(list(folder.glob("rows-*"))) == 1
    assert len(ImageIndex.open(folder)) == left - 1


def test_one_process_at_a_time_changes_an_index(folder):
    with claimed(folder):
        with pytest.raises(UserError, match=r"the index .* is in use by another process; wait"):
            remove_images(folder, ["c0/0.png"])
        with pytest.raises(UserError, match="is in use"):
            add_images(folder, ImageSelection("folder:photos"))
    assert remove_images(folder, ["c0/0.png"]).count == 5


def test_who_reads_while_the_index_is_changed_gets_the_new_one(folder, monkeypatch):
    old = files.read_about(folder)
    remove_images(folder, ["c0/0.png"])
    said = iter([old])
    read = lambda given: next(said, None) or files.read_about(given)  # noqa: E731
    monkeypatch.setattr("aurank.commands.galleries.search.read_about", read)
    assert len(ImageIndex.open(folder)) == 5


def test_an_index_is_never_replaced_unasked(made, folder, tmp_path):
    images = ImageSelection(f"folder:{made / 'photos'}")
    with pytest.raises(UserError, match="holds an index already: add images with aurank index add, or"):
        build_index(MODEL, images, out=folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").touch()
    with pytest.raises(UserError, match="holds other files"):
        build_index(MODEL, images, out=tmp_path / "other", overwrite=True)
    with pytest.raises(UserError, match=r"thesis\.tex"):
        build_index(MODEL, images, out=tmp_path / "other/thesis.tex")
    build_index("timm:test_resnet,pretrained=false,input_size=32", images, out=folder, overwrite=True)
    assert ImageIndex.open(folder).about["model"]["name"].startswith("timm:test_resnet")
    assert len(list(folder.glob("model-*"))) == len(list(folder.glob("rows-*"))) == 1


def test_what_cannot_be_added_is_refused(made, folder, tmp_path):
    for images, said in (
        (ImageSelection(), "say which images to embed"),
        (ImageSelection(f"folder:{made / 'photos'}", overrides=["data.image_size=8"]), "brings its own preprocessing"),
        (ImageSelection(f"folder:{tmp_path}", split="val"), "no file of the folder 'index'"),
    ):
        with pytest.raises(UserError, match=said):
            add_images(folder, images)
    with pytest.raises(UserError, match="no index at"):
        add_images(tmp_path / "none", ImageSelection(f"folder:{made / 'photos'}"))
    assert not (tmp_path / "none").exists()
    write_photo(tmp_path / "more/c5/0.png", 9)
    (tmp_path / "more/c5/1.png").write_bytes(b"broken")
    more = f"folder:{tmp_path / 'more'}"
    with pytest.raises(UserError, match="cannot be decoded"):
        add_images(folder, ImageSelection(more))
    assert len(ImageIndex.open(folder)) == 6
    change = add_images(folder, ImageSelection(more, overrides=["data.on_error=skip"]))
    assert (change.added, change.unreadable, change.count) == (["c5/0.png"], ["c5/1.png"], 7)
