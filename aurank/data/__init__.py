"""Images on disk to batches: manifest, readers, transforms, samplers, loaders."""

from aurank.data.captions import Tokeniser
from aurank.data.checks.completeness import Completeness, check_benchmark
from aurank.data.checks.doctor import DoctorReport, Finding
from aurank.data.dataset import Batch, ImageDataset, augmentation_seed, keys
from aurank.data.loader import BatchLoader, loader
from aurank.data.manifest import SPLITS, Manifest, build_manifest
from aurank.data.readers import BENCHMARKS, READERS
from aurank.data.samplers.hard_negative import HardNegativeSampler
from aurank.data.samplers.pk import PKSampler, Sampler, ShuffledSampler
from aurank.data.sources import ArraySource, FolderSource, ImageSource, ZipSource, open_source
from aurank.data.transforms.standard import Affine, Center, CropFlip, Pipeline, RandomCrop, Resize
from aurank.data.transforms.views import MultiCrop, SimCLR

SAMPLERS: dict[str, type[Sampler]] = {
    "pk": PKSampler,
    "hard_negative": HardNegativeSampler,
    "shuffled": ShuffledSampler,
}

TRANSFORMS: dict[str, type[Pipeline]] = {
    "crop_flip": CropFlip,
    "random_crop": RandomCrop,
    "affine": Affine,
    "simclr": SimCLR,
    "multi_crop": MultiCrop,
    "center": Center,
    "resize": Resize,
}

__all__ = [
    "BENCHMARKS",
    "READERS",
    "SAMPLERS",
    "SPLITS",
    "TRANSFORMS",
    "ArraySource",
    "Batch",
    "BatchLoader",
    "Completeness",
    "DoctorReport",
    "Finding",
    "FolderSource",
    "HardNegativeSampler",
    "ImageDataset",
    "ImageSource",
    "Manifest",
    "MultiCrop",
    "PKSampler",
    "Pipeline",
    "Sampler",
    "ShuffledSampler",
    "SimCLR",
    "Tokeniser",
    "ZipSource",
    "augmentation_seed",
    "build_manifest",
    "check_benchmark",
    "keys",
    "loader",
    "open_source",
]
