"""What is done to images before a model sees them; TRANSFORMS names all transforms."""

from aurank.data.transforms.base import Pipeline
from aurank.data.transforms.standard import (
    Affine,
    Center,
    CropFlip,
    MultiCrop,
    RandomCrop,
    Resize,
    SimCLR,
    Timm,
    TransformersCenter,
)

TRANSFORMS: dict[str, type[Pipeline]] = {
    "crop_flip": CropFlip,
    "random_crop": RandomCrop,
    "affine": Affine,
    "simclr": SimCLR,
    "multi_crop": MultiCrop,
    "center": Center,
    "transformers_center": TransformersCenter,
    "timm": Timm,
    "resize": Resize,
}

__all__ = ["TRANSFORMS", "MultiCrop", "Pipeline"]
