"""Whether a folder holds a benchmark as published: everything missing or different, together."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from aurank.data.readers import BENCHMARKS
from aurank.data.readers.inaturalist import examine_inaturalist
from aurank.data.readers.published import Benchmark, Place, Reading, describe_absence, locate, summarise
from aurank.data.readers.sop import examine_sop
from aurank.data.readers.vehicleid import TestList, examine_vehicleid
from aurank.errors import UserError

_CHUNK = 2**22
# What is read of each benchmark, once for each of its test lists.
_EXAMINE: Mapping[str, Sequence[Callable[[Place], Reading]]] = {
    "sop": [examine_sop],
    "inaturalist2018": [examine_inaturalist],
    "vehicleid": [functools.partial(examine_vehicleid, test=size) for size in get_args(TestList)],
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
        lines += [f"  found: {text}" for text in self.confirmed]
        lines += [f"  missing or different: {text}" for text in self.problems]
        lines += [f"  not needed: {text}" for text in self.notes]
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
        name: sop, inaturalist2018 or vehicleid.
        root: the data folder; the benchmark is looked for below it as its reader does.
        path: the folder, or zip archive, below it where it lies elsewhere.
        checksums: compare the published md5 of the downloaded archives that lie in `root` or beside the images; the
            largest takes minutes.
        on_bytes: called with the bytes just compared and their number in all.

    Every listed image is looked for, none is decoded: `Manifest.doctor` does that.

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
        problems += place.missing(file for file in benchmark.files if file.needed)
        notes += place.missing(file for file in benchmark.files if not file.needed)
        for examine in _EXAMINE[name]:
            try:
                _compare(examine(place), confirmed, problems)
            except UserError as error:
                problems.append(str(error))
    if checksums:
        folders = [root] if place is None else [root, place.path.parent, place.path]
        _compare_archives(benchmark, folders, confirmed, problems, on_bytes or (lambda done, total: None))
    where = str(root) if place is None else place.source.where
    once = [tuple(dict.fromkeys(lines)) for lines in (confirmed, problems, notes)]
    return Completeness(benchmark, where, *once)


def _compare(reading: Reading, confirmed: list[str], problems: list[str]) -> None:
    manifest = reading.manifest
    problems += reading.problems
    if manifest is None:
        return
    missing = [path for path in dict.fromkeys(manifest.paths) if not manifest.source.exists(path)]
    problems += summarise(f"listed images that are not in {manifest.source.where}", missing)
    for split, images in manifest.split_sizes.items():
        classes = len(manifest.split(split).classes)
        confirmed.append(f"{split} list of {images:,} images of {classes:,} classes")


def _compare_archives(
    benchmark: Benchmark,
    folders: Sequence[Path],
    confirmed: list[str],
    problems: list[str],
    on_bytes: Callable[[int, int], None],
) -> None:
    files = [folder / name for name in benchmark.archives for folder in folders]
    present = list(dict.fromkeys(file for file in files if file.is_file()))
    total = sum(file.stat().st_size for file in present)
    for file in present:
        digest = hashlib.md5(usedforsecurity=False)
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                on_bytes(len(chunk), total)
        expected, found = benchmark.archives[file.name], digest.hexdigest()
        if found == expected:
            confirmed.append(f"{file} with the published md5")
        else:
            problems.append(f"{file} has md5 {found}, expected {expected}: fetch it again")
