"""Images on disk to batches: manifest, readers, transforms, samplers, loader."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_names

if TYPE_CHECKING:  # the names of these files
    from aurank.data.captions import *
    from aurank.data.checks.findings import *
    from aurank.data.dataset import *
    from aurank.data.loader import *
    from aurank.data.manifest import *
    from aurank.data.readers import *
    from aurank.data.readers.given import *
    from aurank.data.readers.published import *
    from aurank.data.readers.table import *
    from aurank.data.samplers import *
    from aurank.data.sources import *
    from aurank.data.transforms import *
else:
    NAMES = {
        "captions": ["Tokeniser"],
        "checks.findings": ["DoctorReport", "Finding"],
        "dataset": ["Batch", "ImageDataset", "view_keys"],
        "loader": ["BatchLoader"],
        "manifest": ["Manifest", "SPLITS", "build_manifest"],
        "readers": ["BENCHMARKS", "READERS"],
        "readers.given": ["from_dataset"],
        "readers.published": ["Completeness", "check_benchmark"],
        "readers.table": ["from_table"],
        "samplers": [
            "HardNegativeSampler",
            "HierarchicalSampler",
            "PKSampler",
            "SAMPLERS",
            "Sampler",
            "ShuffledSampler",
        ],
        "sources": ["ArraySource", "FolderSource", "ImageSource", "ZipSource", "open_source"],
        "transforms": ["Pipeline", "TRANSFORMS"],
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, NAMES)
