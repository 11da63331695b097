"""Post-processing of `evaluate_model`: fitted on the training images, or on a file of embeddings."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aurank.commands import evaluate_model
from aurank.embedding import ImageSelection
from aurank.errors import UserError

MODEL = "timm:test_vit,pretrained=false"
GENERATOR = np.random.default_rng(0)
ROWS, LABELS = GENERATOR.normal(size=(40, 6)) + np.arange(40)[:, None] % 8, np.arange(40) % 8


@pytest.fixture
def saved(tmp_path: Path) -> str:
    np.savez(tmp_path / "rows.npz", embeddings=ROWS, labels=LABELS)
    np.savez(tmp_path / "train.npz", embeddings=ROWS[:25], labels=LABELS[:25])
    return f"embeddings:{tmp_path / 'rows.npz'}"


def write_table(folder: Path, *, splits: tuple[str, ...]) -> ImageSelection:
    """Six small images of three classes in each split, listed in a table."""
    lines = ["path,label,split"]
    for split in splits:
        for number in range(6):
            name = f"{split}{number}.png"
            Image.fromarray(GENERATOR.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / name)
            lines.append(f"{name},class{number // 2},{split}")
    (folder / "images.csv").write_text("\n".join(lines), encoding="utf-8")
    return ImageSelection(f"table:{folder / 'images.csv'}", split="test")


@pytest.mark.slow
def test_a_model_is_fitted_on_the_training_images_alone(tmp_path: Path) -> None:
    images = write_table(tmp_path, splits=("train", "test"))
    report = evaluate_model(MODEL, images, postprocess="center")
    assert report.postprocessing["fitted_rows"] == 6
    assert report.num_gallery == 6


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"postprocess": "whiten"}, "has to be fitted on training rows: .* or --fit-on FILE"),
        ({"fit_on": Path("train.npz")}, "--fit-on train.npz goes with --postprocess"),
        ({"postprocess": "query_expansion", "fit_on": Path("train.npz")}, "no step of 'query_expansion' has anything"),
        ({"postprocess": "missing.safetensors"}, "missing.safetensors: cannot be read"),
    ],
)
def test_what_cannot_be_met_is_refused(
    given: dict[str, object], said: str, saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        evaluate_model(saved, **given)  # type: ignore[arg-type]
