"""What is published of each benchmark, as benchmarks.toml has it; readers that insist on it, and what differs."""

import dataclasses
import functools
import hashlib
import inspect
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from aurank.data.manifest import Manifest
from aurank.data.readers.listing import Row, build_listed
from aurank.data.sources import ImageSource, open_source
from aurank.errors import UserError
from aurank.names import require_choice


@dataclass(frozen=True)
class Benchmark:
    """The facts about one benchmark, which benchmarks.toml explains; `sizes` are numbers of images and of classes."""

    name: str
    title: str
    folders: Sequence[str]
    layout: str
    origin: str
    terms: str
    sizes: dict[str, Sequence[int]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    either: Mapping[str, str] = field(default_factory=dict)
    archives: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    unpack: str | None = None
    remark: str = ""
    source: str = ""


_FACTS = tomllib.loads(Path(__file__).with_name("benchmarks.toml").read_text("utf-8"))
_ALL = {name: Benchmark(name, **facts) for name, facts in _FACTS.items()}
BENCHMARKS: Mapping[str, Benchmark] = {name: about for name, about in _ALL.items() if about.sizes}
FETCHED: Mapping[str, Benchmark] = {name: about for name, about in _ALL.items() if about.addresses}

_EXAMPLES = 3
_CHUNK = 2**22


@dataclass(frozen=True, eq=False)
class Location:
    """A folder or archive that may hold a benchmark, and what was found there that is not as published."""

    benchmark: Benchmark
    path: Path
    prefix: str = ""
    problems: list[str] = field(default_factory=list)

    @functools.cached_property
    def source(self) -> ImageSource:
        return self.inside("")

    def inside(self, folder: str) -> ImageSource:
        return open_source(self.path, prefix=f"{self.prefix}/{folder}".strip("/"))

    def holds(self, file: str) -> bool:
        if not file.endswith("/"):
            return self.source.exists(file)
        return any(name.startswith(file) for name in self.source.names())

    def missing(self, files: Iterable[str]) -> list[str]:
        contents = {**self.benchmark.either, **self.benchmark.files}
        return [
            f"{file}, {contents[file]}, is missing: get it from {self.benchmark.origin}"
            for file in files
            if not self.holds(file)
        ]

    def require(self, files: Iterable[str], optional: Iterable[str] = ()) -> None:
        """Note which of `optional` are missing; raise a UserError, with a line for each, where any of `files` is."""
        self.problems.extend(self.missing(optional))
        if missing := self.missing(files):
            raise UserError("\n".join(missing))

    def part(self, name: str, rows: Iterable[Row], size: str = "") -> list[Row]:
        """Return the rows of one list or folder; note where their number is not the published one."""
        listed, expected = list(rows), tuple(self.benchmark.sizes[size or name])
        if (count := (len(listed), len({row.label for row in listed}))) != expected:
            self.problems.append(f"{name} has {describe_size(*count)}, expected {describe_size(*expected)}")
        return listed

    def build(
        self,
        *parts: Sequence[Row],
        images: str = "",
        class_names: Mapping[str, str] | None = None,
        pairs: Mapping[str, Sequence[tuple[int, int]]] | None = None,
    ) -> Manifest:
        """Return the manifest of some parts; `pairs` are of rows of the first part and of the second."""
        rows = [row for part in parts for row in part]
        manifest = build_listed(self.benchmark.name, self.inside(images), rows, class_names=class_names)
        shift = np.array([0, len(parts[0])])
        columns = {name: np.array(rows, np.int64).reshape(-1, 2) + shift for name, rows in (pairs or {}).items()}
        return dataclasses.replace(manifest, **columns)


def describe_size(images: int, classes: int) -> str:
    return f"{images:,} images of {classes:,} classes"


@dataclass(eq=False)
class PublishedReader:
    """The reader of a benchmark: finds it below the data folder, and insists on its published form.

    Its arguments are those of `read`, besides: `path`, the folder or archive below `root`, by default the usual ones;
    `complete`, False to read a part.
    """

    benchmark: Benchmark
    read: Callable[..., Manifest]
    each: str = ""  # the argument whose every value `check_benchmark` examines

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.read)  # its name and docstring
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("root", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Path),
            inspect.Parameter("path", kind, default=None, annotation=str | None),
            *[*inspect.signature(self.read).parameters.values()][1:],
            inspect.Parameter("complete", kind, default=True, annotation=bool),
        ]
        self.__signature__ = inspect.Signature(parameters, return_annotation=Manifest)

    def __call__(self, root: Path, *, path: str | None = None, complete: bool = True, **params: Any) -> Manifest:
        about = self.benchmark
        command = f"by `aurank data get {about.name}` or " if about.addresses else ""
        remedy = f"Get it {command}from {about.origin} (terms: {about.terms})"
        if (location := locate(about, root, path)) is None:
            problem = describe_absence(about, root, path)
        else:
            try:
                manifest = self.read(location, **params)
                if not (complete and location.problems):
                    return manifest
                remark = f" ({about.remark})" if about.remark else ""
                remedy = f"Get the rest from {about.origin}, or data.params.complete=false reads it as a part{remark}"
            except UserError as error:
                location.problems[:0] = str(error).splitlines()
            problem = f"{about.title} in {location.source.where} is not as published: {'; '.join(location.problems)}"
        raise UserError(
            f"{problem}. {remedy}; expected layout: {about.layout}; `aurank data check {about.name} --root {root}` "
            "lists all that is missing; data.root (or AURANK_DATA) names the folder that holds it"
        )


PUBLISHED: dict[str, PublishedReader] = {}


def published(name: str, each: str = "") -> Callable[[Callable[..., Manifest]], PublishedReader]:
    return lambda read: PUBLISHED.setdefault(name, PublishedReader(BENCHMARKS[name], read, each))


def locate(benchmark: Benchmark, root: Path, path: str | None = None) -> Location | None:
    locations = [
        Location(benchmark, root / folder, prefix)
        for folder in (benchmark.folders if path is None else [path])
        for prefix in ((benchmark.folders[0], "") if folder.endswith(".zip") else ("",))
        if (root / folder).exists()
    ]
    for location in locations:
        if any(map(location.holds, (*benchmark.files, *benchmark.either))):
            return location
    return next((location for location in locations if path is not None or location.path != root), None)


def describe_absence(benchmark: Benchmark, root: Path, path: str | None = None) -> str:
    tried = [root / folder for folder in benchmark.folders] if path is None else [root / path]
    return f"{benchmark.title} is not there: none of {', '.join(map(str, tried))} holds it"


@dataclass(frozen=True)
class Completeness:
    """What was found of a benchmark.

    Attributes:
        problems: lines that each name one thing missing or different, and its remedy.

    Example:
        >>> from aurank.data import BENCHMARKS
        >>> print(Completeness(BENCHMARKS["sop"], "sop", ()))
        Stanford Online Products in sop: complete
    """

    benchmark: Benchmark
    where: str
    problems: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether everything that aurank reads is there and as published."""
        return not self.problems

    def __str__(self) -> str:
        about = self.benchmark
        state = "complete" if self.complete else f"not complete, {len(self.problems)} to mend"
        lines = [f"{about.title} in {self.where}: {state}"]
        if not self.complete:
            lines += [f"  missing or different: {text}" for text in self.problems]
            lines += [f"  get it from: {about.origin}", f"  expected layout: {about.layout}", f"  terms: {about.terms}"]
            lines += [f"  remark: {about.remark}"] if about.remark else []
        return "\n".join(lines)


def file_md5(file: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            if on_bytes is not None:
                on_bytes(len(chunk))
    return digest.hexdigest()


def check_benchmark(
    name: str,
    root: Path,
    *,
    path: str | None = None,
    checksums: bool = True,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Completeness:
    """Return everything that a benchmark's folder lacks, or has otherwise than published.

    Every listed image is looked for, none is decoded: `examine` of the doctor does that.

    Args:
        name: a published set, such as sop or market1501.
        root: the data folder; the benchmark is looked for below it as its reader does.
        path: the folder, or zip archive, below it where it lies elsewhere.
        checksums: also compare the published md5 of the archives that lie in `root` or beside the images.
        on_bytes: called with the bytes just compared and their number in all.

    Raises:
        UserError: for another name.

    Example:
        >>> check_benchmark("sop", Path("nowhere")).complete
        False
    """
    reader = PUBLISHED[require_choice("the published set", name, PUBLISHED)]
    benchmark = reader.benchmark
    location = locate(benchmark, root, path)
    if location is None:
        problems, where = [describe_absence(benchmark, root, path)], str(root)
    else:
        problems, where = location.problems, location.source.where
        problems += location.missing(benchmark.files)
        values = get_args(inspect.signature(reader.read).parameters[reader.each].annotation) if reader.each else ()
        for params in [{reader.each: value} for value in values] or [{}]:
            try:
                manifest = reader.read(location, **params)
            except UserError as error:
                problems += str(error).splitlines()
                continue
            source = manifest.source
            if absent := [image for image in dict.fromkeys(manifest.paths) if not source.exists(image)]:
                more = f"; and {len(absent) - _EXAMPLES:,} more" if len(absent) > _EXAMPLES else ""
                examples = f"{'; '.join(absent[:_EXAMPLES])}{more}"
                problems.append(f"listed images that are not in {source.where}: {len(absent):,} ({examples})")
    if checksums:
        folders = [root] if location is None else [root, location.path.parent, location.path]
        files = dict.fromkeys(folder / archive for archive in benchmark.archives for folder in folders)
        present = [file for file in files if file.is_file()]
        total = sum(file.stat().st_size for file in present)
        for file in present:
            md5 = file_md5(file, None if on_bytes is None else lambda count: on_bytes(count, total))
            if md5 != (expected := benchmark.archives[file.name]):
                problems.append(f"{file} has md5 {md5}, expected {expected}: fetch it again")
    return Completeness(benchmark, where, tuple(dict.fromkeys(problems)))
