"""A cosine is explained by its cells: in full where the network is linear in them, and said where it is not."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from oracles.cells import cosine_of_cells, layer_norm_of_mean
from PIL import Image
from testing.refusals import refused
from torch import nn

import aurank
from aurank.models import Encoder, ImageModel, explain
from aurank.models.encoder import start_at_pca
from aurank.models.image_model import standard_transform


def model_of(module: nn.Module, size: int | tuple[int, int] = 96) -> ImageModel:
    return ImageModel("mine", module.eval(), standard_transform(size=size, margin=1), "mine")


def encoder(backbone: str = "test_resnet", **options: Any) -> Encoder:
    torch.manual_seed(0)
    return Encoder(backbone, dim=8, pretrained=False, **options)


def noise(count: int, side: int = 96) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)


def cells_of(model: ImageModel, image: np.ndarray) -> np.ndarray:
    module: Any = model.module
    with torch.no_grad():
        features = module.backbone.forward_features(model.stack([image]))[0]
    return (features if features.ndim == 2 else features.flatten(1).T).double().numpy()


@pytest.mark.parametrize("backbone", ["test_resnet", "test_vit"])
def test_maps_are_the_sums_of_a_double_loop_over_cells_and_add_up_to_the_cosine(backbone: str) -> None:
    is_vit = backbone == "test_vit"
    params = {"global_pool": "avg", "img_size": 96} if is_vit else {}
    module = encoder(backbone, params=params)
    model, images, scaled = model_of(module), noise(3), lambda cells: cells
    prefix = 0
    if is_vit:
        norm = module.backbone.fc_norm
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        weight, bias = (value.detach().double().numpy() for value in (norm.weight, norm.bias))
        scaled, prefix = partial(layer_norm_of_mean, weight=weight, bias=bias, epsilon=norm.eps), 1
    head = [value.detach().double().numpy() for value in (module.head.weight, module.head.bias)]
    query, *others = (cells_of(model, image)[prefix:] for image in images)
    embeddings = model.encode(images, normalize_embeddings=True).astype(float)
    for row, why in enumerate(explain(model, images[0], list(images[1:]))):
        pairs = cosine_of_cells(query, others[row], *head, scaled)
        assert why.is_exact
        assert why.cosine == pytest.approx(embeddings[0] @ embeddings[row + 1], abs=1e-5)
        assert pairs.sum() == pytest.approx(why.cosine, abs=1e-5)
        assert why.share == pytest.approx(1, abs=1e-5)
        np.testing.assert_allclose(why.maps[0].ravel(), pairs.sum(axis=1), atol=1e-5)
        np.testing.assert_allclose(why.maps[1].ravel(), pairs.sum(axis=0), atol=1e-5)


@pytest.mark.parametrize(("corner", "other_corner"), [((0, 64), (64, 0)), ((64, 64), (0, 0))])
def test_a_patch_in_both_pictures_lights_up(corner: tuple[int, int], other_corner: tuple[int, int]) -> None:
    pictures = noise(40)
    patch = np.zeros((32, 32, 3), np.uint8)
    patch[::8] = patch[:, ::8] = (255, 160, 0)
    for picture, (top, left) in zip(pictures, (corner, other_corner), strict=False):
        picture[top : top + 32, left : left + 32] = patch
    module = encoder()
    model = model_of(module)
    with torch.no_grad():  # centred, so that what all noise has in common counts for nothing
        start_at_pca(module.head, module.pooled(model.stack(pictures)))
    why = explain(model, pictures[0], [pictures[1]])[0]
    for cells, (top, left) in zip(why.maps, (corner, other_corner), strict=True):
        row, column = np.unravel_index(cells.argmax(), cells.shape)
        assert (row, column) == (top // 32, left // 32)


@pytest.mark.parametrize(
    ("options", "share"),
    [({"pooling": "gem"}, 1), ({"pooling": "max"}, 1), ({"head_layers": 2}, None)],
    ids=["gem", "max", "two layers"],
)
def test_a_network_that_is_not_linear_in_its_cells_says_so(options: dict[str, Any], share: float | None) -> None:
    module = encoder(**options)
    for norm in module.head.modules():
        if isinstance(norm, nn.BatchNorm1d):
            nn.init.normal_(norm.bias, std=3)
    image, other = noise(2)
    for images in ([other], [image]):  # the picture itself too
        why = explain(model_of(module), image, images)[0]
        assert not why.is_exact
        assert str(why) == f"cosine {why.cosine:.3f}, explained {why.share:.0%}, linearised"
        assert why.share == pytest.approx(sum(cells.sum() for cells in why.maps) / 2 / why.cosine)
        assert (abs(why.share - 1) < 1e-4) == (share == 1)


BRANCHES = [f"timm:{name},pretrained=false" for name in ("crossvit_9_240", "pit_ti_224", "volo_d1_224")]


def test_a_mean_over_views_is_not_explained_in_full_by_one() -> None:
    images = noise(2, 64)
    plain, flipped = (aurank.load(f"timm:test_resnet,pretrained=false{views}") for views in ("", ",flip=true"))
    (whole,), (of_one_view,) = (explain(model, images[0], [images[1]]) for model in (plain, flipped))
    assert (whole.is_exact, of_one_view.is_exact) == (True, False)
    assert np.array_equal(whole.maps, of_one_view.maps)


@pytest.mark.parametrize("name", ["timm:test_vit,pretrained=false", "mine", *BRANCHES])
def test_a_network_without_cells_is_named(name: str) -> None:
    model = model_of(nn.Flatten(), 8) if name == "mine" else aurank.load(name)
    refused(f"^{name} has no cells", explain, model, noise(1)[0], [noise(1)[0]])


def test_cells_cover_what_the_network_sees_of_a_picture() -> None:
    picture = Image.new("RGB", (300, 100))
    picture.paste((255, 255, 255), (0, 0, 90, 100))  # the crop begins at 100
    picture.paste((200, 0, 0), (150, 0, 300, 100))
    why = explain(model_of(encoder(), (96, 96)), picture, [picture])[0]
    assert why.views.shape == (2, 96, 96)
    assert (why.views[0][:, :45] == 0).all()
    assert (why.views[0][:, 51:] > 250).all()
    assert explain(model_of(encoder(), (64, 160)), picture, [picture])[0].maps.shape == (2, 2, 5)
