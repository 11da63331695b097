"""Lists in the column format of Stanford Online Products."""

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from aurank.data.manifest import Manifest
from aurank.data.readers._rows import DIGITS, Row, build_listed, is_number, read_lines
from aurank.data.sources import ImageSource, open_source
from aurank.errors import UserError

_HEADER = "image_id class_id super_class_id path"


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


def class_folders(rows: Iterable[Row]) -> dict[str, str] | None:
    """Return the folder that holds all images of a class, by its id; None unless each has one that no other has.

    Only the last name of a folder counts: a class may lie in both train/shoes and test/shoes.
    """
    found: dict[str, str] = {}
    for row in rows:
        folder = PurePosixPath(row.path).parent.name.strip()
        if folder in ("", "..") or found.setdefault(row.label, folder) != folder:
            return None
    return found if len(set(found.values())) == len(found) else None


def list_rows(source: ImageSource, split: str, file: str) -> Iterator[Row]:
    """Yield the rows of one list file."""
    lines = read_lines(source, file)
    where, header = next(lines, (f"{file}, line 1", ""))
    if header.split() != _HEADER.split():
        raise UserError(f"{where}: expected the header {_HEADER!r}, got {header!r}")
    for where, line in lines:
        fields = line.split(maxsplit=3)  # a path may hold blanks
        if len(fields) != 4:
            raise UserError(f"{where}: expected 4 columns ({_HEADER}), got {len(fields)}: {line!r}")
        for name, value in zip(_HEADER.split()[:3], fields, strict=False):
            if not is_number(value):
                at_most = f" of at most {DIGITS} digits" if len(value) > DIGITS else ""
                raise UserError(f"{where}: {name} must be a whole number{at_most}, got {value!r}")
        yield Row(where, fields[3], fields[1], split, int(fields[2]))
