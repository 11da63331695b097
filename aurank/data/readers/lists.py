"""Lists in the column format of Stanford Online Products."""

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from aurank.data.manifest import Manifest
from aurank.data.readers.lines import NUMBER, Row, build_listed, read_fields
from aurank.data.sources import ImageSource, open_source

_COLUMNS = ("image_id", "class_id", "super_class_id", "path")


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
    pattern = rf"{NUMBER}\s+{NUMBER}\s+{NUMBER}\s+(.+)"  # a path may hold blanks
    form = f"{' '.join(_COLUMNS)}, numbers of at most 18 digits and a path"
    lines = read_fields(source, file, pattern, form, header=[r"\s+".join(_COLUMNS)])
    for where, (_, label, super_label, path) in lines:
        yield Row(where, path, label, split, int(super_label))
