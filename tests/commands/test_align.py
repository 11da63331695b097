"""A map from an old model's rows to a new model's space, and galleries that take it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.linalg import orthogonal_procrustes
from sklearn.linear_model import Ridge
from testing.galleries import MODEL, small_index, write_photos

import aurank
from aurank.commands import ImageIndex, RunOptions, build_index, embed_to_folder, evaluate_model
from aurank.commands.galleries.align import align, fit_map, mapped_rows
from aurank.embedding import ImageSelection
from aurank.errors import UserError
from aurank.evaluation.postprocessing.steps import unit

CLASSES, PHOTOS, WIDTH = 20, 8, 6


def write_models(folder: Path, *, noise: float = 0.05, **changes: Any) -> tuple[Path, Path]:
    """Rows of an old model, and of a new one that turns them and adds noise, in another order; half is for training."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), PHOTOS)
    old = random.normal(size=(CLASSES, WIDTH))[labels] + 0.4 * random.normal(size=(len(labels), WIDTH))
    turn = np.linalg.qr(random.normal(size=(WIDTH, WIDTH)))[0]
    arrays = {"labels": labels, "splits": np.where(labels < CLASSES // 2, "train", "test")}
    arrays["paths"] = np.array([f"{row}.png" for row in range(len(labels))])
    order = random.permutation(len(labels))
    np.savez(folder / "old.npz", **{"embeddings": old, **arrays, **changes})
    new = {"embeddings": old @ turn + noise * random.normal(size=old.shape), **arrays}
    np.savez(folder / "new.npz", **{name: values[order] for name, values in new.items()})
    return folder / "old.npz", folder / "new.npz"


def test_maps_are_those_of_scipy_and_scikit_learn():
    random = np.random.default_rng(0)
    old, new = random.normal(size=(50, 6)), random.normal(size=(50, 6))
    np.testing.assert_allclose(fit_map(old, new, None), orthogonal_procrustes(old, new)[0].T, atol=1e-12)
    for width in (4, 9):
        wide = random.normal(size=(50, width))
        tall = fit_map(old, wide, None)
        np.testing.assert_allclose(tall @ tall.T if width < 6 else tall.T @ tall, np.eye(min(6, width)), atol=1e-12)
        alpha = 0.3 * (old**2).sum() / 6
        expected = Ridge(alpha=alpha, fit_intercept=False).fit(old, wide).coef_
        np.testing.assert_allclose(fit_map(old, wide, 0.3), expected, atol=1e-12)


def test_the_map_is_fitted_on_common_training_images_and_told(tmp_path):
    old, new = write_models(tmp_path, noise=0.0)
    text = align(old, new, out=tmp_path / "map.safetensors")
    assert text.startswith("80 images of split train; mAUPRC of 16 of them held out: Procrustes 1.0000, ridge")
    images = [f"{row}.png" for row in (159, 3)]
    plain, mapped, fitted = mapped_rows(old, tmp_path / "map.safetensors", images)
    assert fitted == 1
    saved = dict(np.load(new))
    wanted = [saved["embeddings"][saved["paths"].tolist().index(image)] for image in images]
    np.testing.assert_allclose(mapped, unit(wanted), atol=1e-6)
    np.testing.assert_allclose(plain, np.load(old)["embeddings"][[159, 3]], rtol=1e-6)
    np.testing.assert_array_equal(mapped_rows(old, None, images)[1], plain)


def test_what_is_kept_is_the_best_on_held_out_classes(tmp_path):
    old, new = write_models(tmp_path, noise=2.0)
    text = align(old, new, out=tmp_path / "map.safetensors")
    scores = {name: float(value) for name, value in (part.rsplit(" ", 1) for part in text.split(": ")[1].split(", "))}
    best = max(scores, key=scores.__getitem__)
    x, y = (np.load(file) for file in (old, new))
    rows = {path: row for row, path in enumerate(y["paths"].tolist())}
    train = x["splits"] == "train"
    order = [rows[path] for path in x["paths"][train].tolist()]
    strength = None if best == "Procrustes" else float(best.removeprefix("ridge "))
    expected = unit(x["embeddings"]) @ fit_map(unit(x["embeddings"][train]), unit(y["embeddings"][order]), strength).T
    mapped = mapped_rows(old, tmp_path / "map.safetensors", x["paths"].tolist())[1]
    np.testing.assert_allclose(mapped, expected, atol=1e-5)


def test_new_queries_are_ranked_on_the_mapped_old_gallery(tmp_path):
    old, new = write_models(tmp_path)
    align(old, new, out=tmp_path / "map.safetensors")
    options: dict[str, Any] = {"gallery_embeddings": old, "out": tmp_path / "out", "report": False, "overwrite": True}
    report = evaluate_model(f"embeddings:{new}", map_file=tmp_path / "map.safetensors", **options)
    y = np.load(new)
    test = y["splits"] == "test"
    names, labels = y["paths"][test].tolist(), y["labels"][test]
    plain, mapped, _ = mapped_rows(old, tmp_path / "map.safetensors", names)
    ids = {"ids": names, "gallery_ids": names}
    expected = aurank.evaluate(y["embeddings"][test], labels, mapped, labels, **ids)
    assert report.mauprc == pytest.approx(expected.mauprc, abs=1e-9)
    cells = {"new on new": aurank.evaluate(y["embeddings"][test], labels), "old on old": aurank.evaluate(plain, labels)}
    for name, cell in cells.items():
        change = report.mauprc - cell.mauprc
        (line,) = (note for note in report.notes if note.startswith(name))
        assert f"{name}: mAUPRC {cell.mauprc:.4f}, this {change:+.4f} [" in line
        assert "of 10 classes" in line
    assert not [note for note in report.notes if "too good" in note]
    assert evaluate_model(f"embeddings:{new}", **options).mauprc < 0.5 < report.mauprc


def test_figures_of_the_images_that_a_map_was_fitted_on_are_told(tmp_path):
    old, new = write_models(tmp_path, splits=np.repeat("test", CLASSES * PHOTOS))
    np.savez(new, **{**np.load(new), "splits": np.repeat("test", CLASSES * PHOTOS)})
    text = align(old, new, out=tmp_path / "map.safetensors")
    assert text.startswith("160 images, none of split train, so these are not to measure the map on; mAUPRC of 32 ")
    options: dict[str, Any] = {"gallery_embeddings": old, "map_file": tmp_path / "map.safetensors"}
    report = evaluate_model(f"embeddings:{new}", **options, out=tmp_path / "out")
    (note,) = (note for note in report.notes if "too good" in note)
    assert "map.safetensors was fitted on 160 of these 160 images, so the figures are too good: fit it on" in note
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "too good" in page
    assert "old on old" in page


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paths": np.array([f"{row}.jpg" for row in range(160)])}, "share 0 images of 0 classes; a map needs four"),
        ({"paths": np.array(["0.png"] * 160)}, r"old.npz: holds image '0.png' twice"),
        ({"embeddings": np.full((160, WIDTH), np.inf)}, r"old.npz: row 0 \('0.png'\) holds NaN or infinity"),
        ({"labels": np.zeros(160)}, "share 80 images of 1 classes"),
    ],
)
def test_models_of_other_images_are_one_line(changes, message, tmp_path):
    old, new = write_models(tmp_path, **changes)
    with pytest.raises(UserError, match=message) as refused:
        align(old, new, out=tmp_path / "map.safetensors")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "map.safetensors").exists()


def test_a_gallery_of_other_images_or_widths_is_one_line(tmp_path):
    old, new = write_models(tmp_path)
    align(old, new, out=tmp_path / "map.safetensors")
    with pytest.raises(UserError, match=r"old.npz lacks 1 of 2 images, such as 'x.png'"):
        mapped_rows(old, None, ["0.png", "x.png"])
    with pytest.raises(UserError, match=r"new.npz: cannot be read as a map of aurank align"):
        mapped_rows(old, new, ["0.png"])
    np.savez(tmp_path / "wide.npz", **{**np.load(old), "embeddings": np.ones((160, 9))})
    with pytest.raises(UserError, match=r"map.safetensors: cannot be read as a map of the rows of .*wide.npz"):
        mapped_rows(tmp_path / "wide.npz", tmp_path / "map.safetensors", ["0.png"])


def test_a_damaged_gallery_is_refused_before_an_image_is_embedded(tmp_path, monkeypatch):
    old, _ = write_models(tmp_path, embeddings=np.full((160, WIDTH), np.nan))
    photos = ImageSelection(f"folder:{write_photos(tmp_path / 'photos')}", split="all")
    monkeypatch.setattr("aurank.commands.run_options.embed", lambda *_, **__: pytest.fail("an image was embedded"))
    with pytest.raises(UserError, match=r"old.npz: row 0 .* holds NaN"):
        evaluate_model(MODEL, photos, gallery_embeddings=old, out=tmp_path / "out")


def test_an_index_takes_no_rows_of_another_width_than_its_model_gives(tmp_path):
    photos = write_photos(tmp_path / "photos")
    paths = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.png"))
    rows = {"embeddings": np.eye(len(paths), 7) + 1, "labels": np.arange(len(paths)), "paths": np.array(paths)}
    np.savez(tmp_path / "old.npz", **rows, splits=np.repeat("train", len(paths)))
    images, old = ImageSelection(f"folder:{photos}"), tmp_path / "old.npz"
    with pytest.raises(UserError, match=r"old.npz: 7 wide, the model \d+: map by aurank align"):
        build_index(MODEL, images, out=tmp_path / "index", gallery_embeddings=old)


@pytest.mark.slow
def test_an_index_of_an_old_model_is_searched_by_a_new_one_without_embedding(tmp_path, monkeypatch):
    photos = write_photos(tmp_path / "photos")
    images = ImageSelection(f"folder:{photos}", split="all")
    small_index(photos, tmp_path / "index")
    new = "timm:test_resnet,pretrained=false"
    for model, name in ((MODEL, "old.npz"), (new, "new.npz")):
        embed_to_folder(model, images, out=tmp_path / name)
    align(tmp_path / "old.npz", tmp_path / "new.npz", out=tmp_path / "map.safetensors")
    monkeypatch.setattr("aurank.commands.run_options.embed", lambda *_, **__: pytest.fail("an image was embedded"))
    for gallery in ("index", "old.npz"):
        how: dict[str, Any] = {"gallery_embeddings": tmp_path / gallery, "map_file": tmp_path / "map.safetensors"}
        build_index(new, images, out=tmp_path / f"new-{gallery}", running=RunOptions(device="cpu"), **how)
        index = ImageIndex.open(tmp_path / f"new-{gallery}")
        paths = index.images["path"].tolist()
        expected = mapped_rows(tmp_path / gallery, tmp_path / "map.safetensors", paths)[1]
        np.testing.assert_allclose(index.rows.embeddings, expected, atol=1e-6)
        with Image.open(photos / paths[0]) as photo:
            assert index.search([photo], k=3)[0][0].path in paths
