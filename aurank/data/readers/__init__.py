"""Data sets on disk to manifests. A reader is `reader(root, **params) -> Manifest`; READERS names them all.

`root` is the data folder, `path` the folder or zip archive below it that holds the data set.
"""

from collections.abc import Callable, Mapping

from aurank.data.manifest import Manifest
from aurank.data.readers.digits import read_digits
from aurank.data.readers.embeddings import read_embeddings
from aurank.data.readers.facts import BENCHMARKS
from aurank.data.readers.folder import read_folder, read_unlabelled
from aurank.data.readers.landmarks import read_gld, read_roxford, read_rparis
from aurank.data.readers.lists import read_lists
from aurank.data.readers.omniglot import read_omniglot
from aurank.data.readers.products import (
    read_cars,
    read_cub,
    read_inaturalist,
    read_inshop,
    read_sop,
    read_vehicleid,
)
from aurank.data.readers.reid import read_market, read_msmt, read_veri, read_wild
from aurank.data.readers.table import read_table

READERS: Mapping[str, Callable[..., Manifest]] = {
    "omniglot": read_omniglot,
    "folder": read_folder,
    "unlabelled": read_unlabelled,
    "table": read_table,
    "lists": read_lists,
    "digits": read_digits,
    "embeddings": read_embeddings,
    "sop": read_sop,
    "inaturalist2018": read_inaturalist,
    "vehicleid": read_vehicleid,
    "cub200": read_cub,
    "cars196": read_cars,
    "inshop": read_inshop,
    "market1501": read_market,
    "msmt17": read_msmt,
    "veri776": read_veri,
    "veriwild": read_wild,
    "roxford5k": read_roxford,
    "rparis6k": read_rparis,
    "gldv2": read_gld,
}

__all__ = ["BENCHMARKS", "READERS"]
