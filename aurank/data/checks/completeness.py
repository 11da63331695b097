"""Whether a folder holds a benchmark as published: everything missing or different, together."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from aurank.data.readers.benchmarks.facts import BENCHMARKS, Benchmark
from aurank.data.readers.benchmarks.places import Place, disagreements, locate, nowhere
from aurank.data.readers.benchmarks.readers import (
    Reading,
    TestList,
    examine_inaturalist,
    examine_sop,
    examine_vehicleid,
)
from aurank.errors import UserError

_CHUNK = 2**22


@dataclass(frozen=True)
class Completeness:
    """What was found of a benchmark.

    `problems` are lines that each name one thing missing or different, and its remedy; `notes` name what is missing but
    never read; `confirmed` what was found as published.
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
        if not self.complete:
            lines += [
                f"  get it from: {benchmark.origin}",
                f"  expected layout: {benchmark.layout}",
                f"  terms: {benchmark.terms}",
            ]
            lines += [f"  remark: {benchmark.remark}"] if benchmark.remark else []
        return "\n".join(lines)


def check_benchmark(
    name: str,
    root: Path,
    *,
    path: str | None = None,
    checksums: bool = True,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Completeness:
    """Returns everything that a benchmark's folder lacks, or has otherwise than published.

    Args:
        name: sop, inaturalist2018 or vehicleid.
        root: the data folder; the benchmark is looked for below it as its reader does.
        path: the folder, or zip archive, below it where it lies elsewhere.
        checksums: compare the published md5 of the downloaded archives that lie in `root` or beside the images; the
            largest takes minutes.
        on_bytes: called with the bytes just compared and their number in all.

    Every listed image is looked for, none is decoded: `Manifest.doctor` does that. Raises UserError for another name.
    """
    if name not in BENCHMARKS:
        raise UserError(f"no benchmark {name!r} to check; expected one of {', '.join(BENCHMARKS)}")
    benchmark = BENCHMARKS[name]
    place = locate(benchmark, root, path)
    confirmed: list[str] = []
    problems: list[str] = []
    notes: list[str] = []
    if place is None:
        problems.append(nowhere(benchmark, root, path))
    else:
        problems += place.missing([file for file in benchmark.files if file.needed])
        notes += place.missing([file for file in benchmark.files if not file.needed])
        for reading in _readings(place, problems):
            _compare(reading, confirmed, problems)
    if checksums:
        _compare_archives(benchmark, root, place, confirmed, problems, on_bytes)
    where = str(root) if place is None else place.source.where
    return Completeness(benchmark, where, _once(confirmed), _once(problems), _once(notes))


def _readings(place: Place, problems: list[str]) -> list[Reading]:
    """Returns the benchmark as read, once for each of its test lists; what cannot be read goes to `problems`."""
    examine: dict[str, list[Callable[[Place], Reading]]] = {
        "sop": [examine_sop],
        "inaturalist2018": [examine_inaturalist],
        "vehicleid": [functools.partial(examine_vehicleid, test=size) for size in get_args(TestList)],
    }
    readings = []
    for read in examine[place.benchmark.name]:
        try:
            readings.append(read(place))
        except UserError as error:
            problems.append(str(error))
    return readings


def _compare(reading: Reading, confirmed: list[str], problems: list[str]) -> None:
    manifest = reading.manifest
    problems += reading.problems
    if manifest is None:
        return
    missing = [path for path in dict.fromkeys(manifest.paths) if not manifest.source.exists(path)]
    problems += disagreements(f"listed images that are not in {manifest.source.where}", missing)
    for split, images in manifest.split_sizes.items():
        classes = len(manifest.split(split).classes)
        confirmed.append(f"{split} list of {images:,} images of {classes:,} classes")


def _compare_archives(
    benchmark: Benchmark,
    root: Path,
    place: Place | None,
    confirmed: list[str],
    problems: list[str],
    on_bytes: Callable[[int, int], None] | None,
) -> None:
    folders = [root] if place is None else [root, place.path.parent, place.path]
    files = [folder / name for name in benchmark.archives for folder in folders]
    present = list(dict.fromkeys(file for file in files if file.is_file()))
    total = sum(file.stat().st_size for file in present)
    for file in present:
        expected, found = benchmark.archives[file.name], _md5(file, on_bytes, total)
        if found == expected:
            confirmed.append(f"{file} with the published md5")
        else:
            problems.append(f"{file} has md5 {found}, expected {expected}: fetch it again")


def _md5(file: Path, on_bytes: Callable[[int, int], None] | None, total: int) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            if on_bytes is not None:
                on_bytes(len(chunk), total)
    return digest.hexdigest()


def _once(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))
