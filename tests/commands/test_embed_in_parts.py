from pathlib import Path

import pytest
from PIL import Image

from aurank.commands import RunOptions, embed_model, embed_to_folder
from aurank.embedding import ImageSelection
from aurank.embedding.embedded import Embedded

MODEL = "timm:test_vit,pretrained=false"
HOW = RunOptions(batch=4, device="cpu")


@pytest.fixture
def images(tmp_path: Path) -> ImageSelection:
    for row in range(11):
        path = tmp_path / "photos" / f"class {row % 3}" / f"{row:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (20 * row, 50, 250 - 20 * row)).save(path)
    return ImageSelection(f"folder:{tmp_path / 'photos'}", split="all")


def test_parts_hold_what_one_file_holds(images: ImageSelection, tmp_path: Path) -> None:
    embed_model(MODEL, images, running=HOW).save(tmp_path / "rows.npz")
    embed_to_folder(MODEL, images, out=tmp_path / "parts", shard_rows=4, running=HOW)
    whole, parts = (Embedded.load(tmp_path / name) for name in ("rows.npz", "parts"))
    assert (parts.embeddings[:] == whole.embeddings).all()
    assert parts.paths.tolist() == whole.paths.tolist()
    assert str(parts.made_by) == str(whole.made_by)
