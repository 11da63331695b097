"""Data sets on disk to manifests: `READERS[name](root, **params)`; `path` is the folder or zip archive below `root`."""

from collections.abc import Callable, Mapping

from aurank.data.manifest import Manifest
from aurank.data.readers import benchmarks  # noqa: F401 - fills PUBLISHED
from aurank.data.readers.embeddings import read_embeddings
from aurank.data.readers.folders import read_digits, read_folder, read_omniglot, read_unlabelled
from aurank.data.readers.given import GIVEN, read_given, read_torchvision
from aurank.data.readers.listing import read_lists
from aurank.data.readers.parts import read_hf, read_webdataset
from aurank.data.readers.published import BENCHMARKS, PUBLISHED
from aurank.data.readers.table import read_table

READERS: Mapping[str, Callable[..., Manifest]] = {
    "omniglot": read_omniglot,
    "folder": read_folder,
    "unlabelled": read_unlabelled,
    "table": read_table,
    "lists": read_lists,
    "hf": read_hf,
    "webdataset": read_webdataset,
    "torchvision": read_torchvision,
    "digits": read_digits,
    "embeddings": read_embeddings,
    GIVEN: read_given,
    **PUBLISHED,
}

__all__ = ["BENCHMARKS", "READERS"]
