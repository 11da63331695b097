"""Images on disk to batches: manifest, readers, transforms, samplers, loader."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_attributes

if TYPE_CHECKING:
    from aurank.data.captions import Tokeniser
    from aurank.data.checks.findings import DoctorReport, Finding
    from aurank.data.dataset import Batch, ImageDataset, view_keys
    from aurank.data.loader import BatchLoader
    from aurank.data.manifest import SPLITS, Manifest, build_manifest
    from aurank.data.readers import BENCHMARKS, READERS
    from aurank.data.readers.given import from_dataset
    from aurank.data.readers.published import Completeness, check_benchmark
    from aurank.data.readers.table import from_table
    from aurank.data.samplers import (
        SAMPLERS,
        HardNegativeSampler,
        HierarchicalSampler,
        PKSampler,
        Sampler,
        ShuffledSampler,
    )
    from aurank.data.sources import ArraySource, FolderSource, ImageSource, ZipSource, open_source
    from aurank.data.transforms import TRANSFORMS, MultiCrop, Pipeline
else:
    __getattr__, __dir__ = lazy_attributes(__name__)

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
    "HierarchicalSampler",
    "ImageDataset",
    "ImageSource",
    "Manifest",
    "MultiCrop",
    "PKSampler",
    "Pipeline",
    "Sampler",
    "ShuffledSampler",
    "Tokeniser",
    "ZipSource",
    "build_manifest",
    "check_benchmark",
    "from_dataset",
    "from_table",
    "open_source",
    "view_keys",
]
