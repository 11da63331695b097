"""Whether a folder holds a benchmark as published: everything missing or different, together."""

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from aurank.data.manifest import Manifest
from aurank.data.readers.facts import BENCHMARKS, Benchmark
from aurank.data.readers.landmarks import Difficulty, Usage, examine_gld, examine_revisited
from aurank.data.readers.products import (
    TestList,
    examine_cars,
    examine_cub,
    examine_inaturalist,
    examine_inshop,
    examine_sop,
    examine_vehicleid,
)
from aurank.data.readers.published import Place, Reading, describe_absence, locate, summarise
from aurank.data.readers.reid import WildList, examine_folders, examine_msmt, examine_wild
from aurank.errors import UserError

_CHUNK = 2**22
# What is read of each benchmark, once for each of its test lists.
_EXAMINE: Mapping[str, Sequence[Callable[[Place], Reading]]] = {
    "sop": [examine_sop],
    "inaturalist2018": [examine_inaturalist],
    "vehicleid": [functools.partial(examine_vehicleid, test=size) for size in get_args(TestList)],
    "cub200": [examine_cub],
    "cars196": [examine_cars],
    "inshop": [examine_inshop],
    "market1501": [examine_folders],
    "msmt17": [examine_msmt],
    "veri776": [examine_folders],
    **{
        name: [functools.partial(examine_revisited, difficulty=kind) for kind in get_args(Difficulty)]
        for name in ("roxford5k", "rparis6k")
    },
    "gldv2": [functools.partial(examine_gld, usage=usage) for usage in get_args(Usage)],
    "veriwild": [functools.partial(examine_wild, test=size) for size in get_args(WildList)],
}


@dataclass(frozen=True)
class Completeness:
    """What was found of a benchmark.

    Attributes:
        confirmed: what was found as published.
        problems: lines that each name one thing missing or different, and its remedy.
        notes: what is missing but never read.

    Example:
        >>> from aurank.data import BENCHMARKS
        >>> print(Completeness(BENCHMARKS["sop"], "sop", ("the test list",), (), ()))
        Stanford Online Products in sop: complete
          found: the test list
    """

    benchmark: Benchmark
    where: str
    confirmed: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether everything that aurank reads is there and as published."""
        return not self.problems

    def __str__(self) -> str:
        benchmark = self.benchmark
        state = "complete" if self.complete else f"not complete, {len(self.problems)} to mend"
        lines = [f"{benchmark.title} in {self.where}: {state}"]
        found = {"found": self.confirmed, "missing or different": self.problems, "not needed": self.notes}
        lines += [f"  {what}: {text}" for what, texts in found.items() for text in texts]
        about = {"get it from": "origin", "expected layout": "layout", "terms": "terms", "remark": "remark"}
        if not self.complete:
            lines += [f"  {what}: {text}" for what, name in about.items() if (text := getattr(benchmark, name))]
        return "\n".join(lines)


def check_benchmark(
    name: str,
    root: Path,
    *,
    path: str | None = None,
    checksums: bool = True,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Completeness:
    """Return everything that a benchmark's folder lacks, or has otherwise than published.

    Args:
        name: of `BENCHMARKS`, such as sop.
        root: the data folder; the benchmark is looked for below it as its reader does.
        path: the folder, or zip archive, below it where it lies elsewhere.
        checksums: compare the published md5 of the downloaded archives that lie in `root` or beside the images; the
            largest takes minutes.
        on_bytes: called with the bytes just compared and their number in all.

    Every listed image is looked for, none is decoded: `examine` of the doctor does that.

    Raises:
        UserError: for another name.

    Example:
        >>> check_benchmark("sop", Path("nowhere")).complete
        False
    """
    if name not in BENCHMARKS:
        raise UserError(f"no benchmark {name!r} to check; expected one of {', '.join(BENCHMARKS)}")
    benchmark = BENCHMARKS[name]
    place = locate(benchmark, root, path)
    confirmed: list[str] = []
    problems: list[str] = []
    notes: list[str] = []
    if place is None:
        problems.append(describe_absence(benchmark, root, path))
    else:
        problems += place.missing(benchmark.files)
        notes += place.missing(benchmark.never_read)
        for examine in _EXAMINE[name]:
            try:
                reading = examine(place)
            except UserError as error:
                problems.append(str(error))
                continue
            problems += reading.problems
            if (manifest := reading.manifest) is not None:
                missing = [path for path in dict.fromkeys(manifest.paths) if not manifest.source.exists(path)]
                problems += summarise(f"listed images that are not in {manifest.source.where}", missing)
                confirmed += _sizes(manifest)
    if checksums:
        folders = [root] if place is None else [root, place.path.parent, place.path]
        files = [folder / archive for archive in benchmark.archives for folder in folders]
        present = [file for file in dict.fromkeys(files) if file.is_file()]
        for file, digest in zip(present, _md5(present, on_bytes), strict=True):
            if digest == (expected := benchmark.archives[file.name]):
                confirmed.append(f"{file} with the published md5")
            else:
                problems.append(f"{file} has md5 {digest}, expected {expected}: fetch it again")
    where = str(root) if place is None else place.source.where
    return Completeness(benchmark, where, *(tuple(dict.fromkeys(lines)) for lines in (confirmed, problems, notes)))


def _sizes(manifest: Manifest) -> Iterator[str]:
    """Yield how many images and classes each split has, queries and gallery apart where a split has both."""
    for split in manifest.split_sizes:
        found = manifest.split(split)
        both = found.is_query & found.is_gallery
        sides = {"": both, " query": found.is_query & ~both, " gallery": found.is_gallery & ~both}
        for side, rows in sides.items():
            if rows.any():
                classes = len(np.unique(found.labels[rows]))
                yield f"{split}{side} list of {int(rows.sum()):,} images of {classes:,} classes"


def _md5(files: Sequence[Path], on_bytes: Callable[[int, int], None] | None) -> Iterator[str]:
    """Yield the md5 of each file."""
    total = sum(file.stat().st_size for file in files)
    for file in files:
        digest = hashlib.md5(usedforsecurity=False)
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                if on_bytes is not None:
                    on_bytes(len(chunk), total)
        yield digest.hexdigest()
