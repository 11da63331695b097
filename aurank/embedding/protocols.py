"""Named protocols of the benchmarks: which images are queries and gallery, and a checksum over what was measured."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aurank.data import READERS, Manifest
from aurank.data.manifest import pairs_among
from aurank.errors import UserError

if TYPE_CHECKING:  # finding a protocol must not import torch
    from aurank.embedding.embedded import Embedded
    from aurank.evaluation import Report

# Part of every checksum: raise it when a protocol measures something else.
VERSION = 1
LIST_SIZES = ("small", "medium", "large")


@dataclass(frozen=True)
class Protocol:
    """How one benchmark is measured: by default, every test image is a query against all the others."""

    name: str
    reader: str  # reader of the images; its split "test" is measured
    recall_at: tuple[int, ...]
    params: Mapping[str, Any] = field(default_factory=dict)  # arguments of the reader
    roles: bool = False  # the reader gives query and gallery flags, cameras and perhaps positives
    metrics: tuple[str, ...] | None = None  # default metrics

    def manifest(self, root: Path, **params: Any) -> Manifest:
        return READERS[self.reader](root, **self.params, **params).split("test")

    def checksum(self, images: "Embedded | Manifest") -> str:
        """Return 16 digits over protocol, images and positives, in any order and numbering."""
        paths = [str(path) for path in images.paths]
        ordered = np.array(sorted(range(len(paths)), key=paths.__getitem__), dtype=np.int64)
        numbers: dict[int, int] = {}  # number of each label, by its first path
        classes = [numbers.setdefault(label, len(numbers)) for label in np.asarray(images.labels)[ordered].tolist()]
        definition = {"version": VERSION, "name": self.name, "recall_at": self.recall_at, "draws": []}
        digest = hashlib.sha256(json.dumps(definition).encode())
        digest.update(json.dumps([[paths[row] for row in ordered.tolist()], classes]).encode())
        groups = np.full(len(paths), -1) if images.groups is None else images.groups
        for column in (images.is_query, images.is_gallery, groups) if self.roles else ():
            digest.update(np.asarray(column)[ordered].astype("<i8").tobytes())
        for listed in (images.positives, images.ignored) if self.roles else ():
            if listed is not None:
                among = pairs_among(np.asarray(listed), ordered, len(ordered))
                digest.update(b"pairs" + among[np.lexsort(among.T[::-1])].astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def require_same(self, embedded: "Embedded", manifest: Manifest) -> None:
        one_sided = set(self._paths(embedded)) ^ set(manifest.paths)
        wrong = "their classes, or who is query or gallery, or groups, differ (labels, is_query, is_gallery)"
        if one_sided:
            wrong = f"{len(one_sided):,} images are in one of both alone, such as {min(one_sided)!r}"
        if one_sided or self.checksum(embedded) != self.checksum(manifest):
            remedy = "embed its images anew with `aurank embed`, or leave --protocol out"
            raise UserError(f"the embeddings are not those of protocol {self.name}: {wrong}; {remedy}")

    def evaluate(self, embedded: "Embedded", **options: Any) -> "Report":
        """Return the exact Report of embedded test images under this protocol, with its name and checksum."""
        if "recall_at" in options:
            raise UserError(f"protocol {self.name} sets recall_at itself, to {self.recall_at}; leave it out")
        options["recall_at"] = self.recall_at
        options["metrics"] = options.get("metrics") or self.metrics
        is_one_set = bool(embedded.is_query.all() and embedded.is_gallery.all() and (embedded.groups == -1).all())
        if is_one_set if self.roles else not is_one_set:
            roles = "has queries apart from the gallery" if self.roles else "takes every image as query and gallery"
            remedy = "`aurank embed` writes is_query, is_gallery and groups of a protocol with the embeddings"
            raise UserError(f"protocol {self.name} {roles}, and the embeddings say otherwise; {remedy}")
        self._paths(embedded)
        information: dict[str, Any] = {"name": self.name, "checksum": self.checksum(embedded)}
        information |= {"params": dict(self.params)} if self.params else {}
        return replace(embedded.evaluate(**options), protocol=information)

    def _paths(self, embedded: "Embedded") -> list[str]:
        paths = [str(path) for path in embedded.paths.tolist()]
        if "" in paths or len(set(paths)) < len(paths):
            message = f"protocol {self.name} needs the path of every image, each once, to say what was measured"
            raise UserError(f"{message}; `aurank embed` writes them with the embeddings")
        return paths


# Sources: Song et al. (CVPR 2016), section 6, for SOP, CUB and Cars; Liu et al., DeepFashion (CVPR 2016); Brown et al.
# (ECCV 2020) for VehicleID, where Liu et al. (CVPR 2016) draw a gallery with one image of each vehicle: their numbers
# cannot be compared. Zheng et al. (ICCV 2015) and the docstrings of the readers for sets with cameras.
_REVISITED = ("trapezoid_ap", *(f"precision@{k}(last)" for k in (1, 5, 10)), "mauprc")
_NAMED = [
    Protocol("sop", "sop", (1, 10, 100, 1000)),
    Protocol("inaturalist2018", "inaturalist2018", (1, 4, 16, 32)),
    Protocol("grocery", "grocery", (1, 10, 100)),
    *(Protocol(f"vehicleid-{size}", "vehicleid", (1, 5), {"test": size}) for size in LIST_SIZES),
    *(Protocol(name, name, (1, 2, 4, 8)) for name in ("cub200", "cars196")),
    Protocol("inshop", "inshop", (1, 10, 20, 30, 40, 50), roles=True),
    *(Protocol(name, name, (1, 5, 10), roles=True) for name in ("market1501", "veri776")),
    *(
        Protocol(f"{name}-{kind}", name, (1, 5, 10), {"difficulty": kind}, roles=True, metrics=_REVISITED)
        for name in ("roxford5k", "rparis6k")
        for kind in ("easy", "medium", "hard")
    ),
]
PROTOCOLS: dict[str, Protocol] = {protocol.name: protocol for protocol in _NAMED}
