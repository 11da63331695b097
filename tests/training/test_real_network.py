"""A network trained on ImageNet, on real photos: a configuration and an adapter see the same features."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from aurank.embedding.build import build_dataset, build_encoder, fill_preprocessing
from aurank.embedding.embed import embed
from aurank.embedding.embedded import Embedded
from aurank.embedding.select_images import read_manifest
from aurank.models.adapters.by_name import load_model
from aurank.models.image_model import ModelImages
from aurank.training.components import read_config

pytestmark = pytest.mark.data

DATA = Path(os.environ.get("AURANK_DATA", "data"))
WEIGHTS = DATA.parent / "models" / "tf_efficientnet_lite0.safetensors"
CLASSES = 12


@pytest.mark.slow
def test_frozen_features_of_a_configuration_are_those_of_the_adapter() -> None:
    if not (WEIGHTS.is_file() and (DATA / "GroceryStoreDataset-master.zip").is_file()):
        pytest.skip(f"{WEIGHTS} and GroceryStoreDataset-master.zip are not there")
    overrides = ["data.image_size=128", f"data.root={DATA}", "model.backbone=tf_efficientnet_lite0"]
    overrides += [f"model.weights={WEIGHTS}", "model.discard_head=true"]
    config = fill_preprocessing(read_config("grocery/soprc", overrides))
    test = read_manifest(config.data, seed=0).split("test")
    rows = [np.flatnonzero(test.labels == label)[:6] for label in range(CLASSES)]
    photos = test.select(np.concatenate(rows))
    model = load_model(f"timm:tf_efficientnet_lite0,weights={WEIGHTS},input_size=128")
    own = embed(build_encoder(config.model, channels=3), build_dataset(config.data, photos, train=False))
    adapters = embed(model.module, ModelImages(photos, model))
    first, second = (torch.nn.functional.normalize(torch.from_numpy(one.embeddings), dim=1) for one in (own, adapters))
    # A crop may begin half a pixel beside timm's: both round it.
    assert float((first * second).sum(1).min()) > 0.95
    imagenet = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    changed = [f"data.normalise={{mean: {imagenet['mean']}, std: {imagenet['std']}}}", "data.interpolation=area"]
    before = fill_preprocessing(read_config("grocery/soprc", [*overrides, *changed]))
    other = embed(build_encoder(config.model, channels=3), build_dataset(before.data, photos, train=False))

    def mauprc(embedded: Embedded) -> float:
        return embedded.evaluate(recall_at=(1,)).mauprc

    assert abs(mauprc(own) - mauprc(adapters)) < 0.01
    assert mauprc(own) > mauprc(other) + 0.01
