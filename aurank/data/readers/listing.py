"""Lists of images: their lines, rows, and the check against the images; lists as Stanford Online Products has them."""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import numpy as np

from aurank.data.manifest import Label, Manifest, build_manifest
from aurank.data.sources import ImageSource, open_source
from aurank.errors import UserError, refuse_first
from aurank.files import reading

NUMBER = r"(\d{1,18})"  # fits 64 bits
Role = Literal["both", "query", "gallery"]
_COLUMNS = ("image_id", "class_id", "super_class_id", "path")


class Row(NamedTuple):
    """One image as a list names it; `where` is the line that does, as "FILE, line 7"."""

    where: str
    path: str
    label: Label
    split: str
    super_label: int | None = None  # None in every row where the data set has none
    group: int | None = None  # such as the camera, likewise
    role: Role = "both"
    box: tuple[int, int, int, int] | None = None  # x1, y1, x2, y2 in pixels; None for the whole image


def read_text(source: ImageSource, file: str) -> str:
    if not source.exists(file):
        raise UserError(f"list file {file!r} is not in {source.where}")
    with reading(file, "UTF-8 text", remedy="save it as UTF-8"):
        return source.read_bytes(file).decode("utf-8-sig")


def read_fields(
    source: ImageSource, file: str, pattern: str, form: str, *, header: Sequence[str] = ()
) -> Iterator[tuple[str, tuple[str, ...]]]:
    numbered = enumerate(read_text(source, file).splitlines(), start=1)
    lines = ((f"{file}, line {number}", line.strip()) for number, line in numbered if line.strip())
    for position, (where, line) in enumerate(lines):
        is_header = position < len(header)
        if (match := re.fullmatch(header[position] if is_header else pattern, line)) is None:
            expected = f"the header {header[position]!r}" if is_header else form
            raise UserError(f"{where}: expected {expected}, got {line[:200]!r}")
        if not is_header:
            yield where, match.groups()


def read_mat(source: ImageSource, file: str, name: str) -> list[Any]:
    """Return the records of a structure array, or the texts of a cell array, of a Matlab file, which runs no code."""
    from scipy.io import loadmat  # a tenth of a second that few formats need

    content = loadmat(io.BytesIO(source.read_bytes(file)), simplify_cells=True, variable_names=[name])[name]
    return [content] if isinstance(content, dict) else list(np.ravel(content))


def build_listed(
    name: str, source: ImageSource, rows: Sequence[Row], *, one_label: bool = True, outside: bool = False, **more: Any
) -> Manifest:
    refuse_first(_problems(source, rows, one_label=one_label, outside=outside))
    columns: dict[str, Any] = {}
    if any(row.super_label is not None for row in rows):
        columns["super_labels"] = [-1 if row.super_label is None else row.super_label for row in rows]
    if any(row.group is not None for row in rows):
        columns["groups"] = [-1 if row.group is None else row.group for row in rows]
    if any(row.role != "both" for row in rows):
        columns["is_query"] = [row.role != "gallery" for row in rows]
        columns["is_gallery"] = [row.role != "query" for row in rows]
    if any(row.box is not None for row in rows):
        columns["boxes"] = [(-1, -1, -1, -1) if row.box is None else row.box for row in rows]
    columns |= {column: [getattr(row, column[:-1]) for row in rows] for column in ("paths", "labels", "splits")}
    return build_manifest(name, source, **columns, **more)


def _problems(source: ImageSource, rows: Sequence[Row], *, one_label: bool, outside: bool) -> Iterator[str]:
    first: dict[tuple[str, Any], Row] = {}
    for row in rows:
        climbs = ".." in row.path and ".." in PurePosixPath(row.path).parts
        if not outside and (climbs or row.path.startswith(("/", "\\"))):
            trusted = "write it relative to that folder, or, if you trust the list, set data.params.outside=true"
            yield f"{row.where}: path {row.path!r} leaves {source.where}; {trusted}"
        before = first.setdefault((row.path, row.box), row)
        if one_label and before.label != row.label:
            yield f"{row.where}: image {row.path!r} has label {row.label!r}, but {before.label!r} at {before.where}"
    if rows and not any(source.exists(path) for path, _ in first):
        image = f"first: {rows[0].path!r}, {rows[0].where}"
        remedy = "unpack the images there, or set data.params.path and data.params.images to where the paths start"
        yield f"none of the images listed is in {source.where} ({image}); {remedy}"


def read_lists(
    root: Path, *, train: str, test: str, images: str, val: str | None = None, path: str = ".", outside: bool = False
) -> Manifest:
    """Return the images of list files; a class is named by its folder where each has one of its own, else by its id.

    Args:
        train, test, val: the list files in `path`. The first line is the header
            `image_id class_id super_class_id path`, then one image a line, columns separated by blanks; ids are whole
            numbers, and a class has the same id in all files.
        images: the folder in `path` that the column `path` starts from.
        outside: whether a path may leave the folder of the images, by `..` or as an absolute one.

    Raises:
        UserError: names the file and the line that is wrong.
    """
    archive = open_source(root / path)
    files = {split: file for split, file in (("train", train), ("val", val), ("test", test)) if file is not None}
    rows = [row for split, file in files.items() for row in list_rows(archive, split, file)]
    name = PurePosixPath(path if path != "." else images).stem or "lists"
    named = class_folders(rows)
    return build_listed(name, open_source(root / path, prefix=images), rows, outside=outside, class_names=named)


def class_folders(rows: Iterable[Row]) -> dict[Any, str] | None:
    folders: dict[Any, str] = {}
    for row in rows:
        folder = PurePosixPath(row.path).parent.name.strip()
        if folder in ("", "..") or folders.setdefault(row.label, folder) != folder:
            return None
    return folders if len(set(folders.values())) == len(folders) else None


def list_rows(source: ImageSource, split: str, file: str) -> Iterator[Row]:
    pattern = rf"{NUMBER}\s+{NUMBER}\s+{NUMBER}\s+(.+)"  # a path may hold blanks
    form = f"{' '.join(_COLUMNS)}, numbers of at most 18 digits and a path"
    lines = read_fields(source, file, pattern, form, header=[r"\s+".join(_COLUMNS)])
    for where, (_, label, super_label, path) in lines:
        yield Row(where, path, label, split, int(super_label))
