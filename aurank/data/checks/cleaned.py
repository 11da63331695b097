"""A data set as a table that the reader "table" reads: paths, labels and roles, the images left where they are."""

import csv
import io
from pathlib import Path

from aurank.data.manifest import Manifest
from aurank.data.sources import FolderSource, ZipSource
from aurank.errors import UserError
from aurank.files import write_text

_FORMULA = ("=", "+", "-", "@")  # what a spreadsheet takes for the beginning of one


def write_table(manifest: Manifest, file: Path) -> str:
    """Write a data set as a csv table, and return how it is named to read it: "table:FILE" and overrides.

    No spreadsheet takes a cell for a formula: a path then begins with "./", another text with a space, and the reader
    takes both off.

    Raises:
        UserError: images in memory, no images, or a name that the reader would change.

    Example:
        >>> import tempfile
        >>> from aurank.data import build_manifest
        >>> toy = build_manifest("toy", FolderSource(Path("photos")), paths=["=1.png"], labels=["a"], splits=["test"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_table(toy, Path(folder, "clean.csv")).split()[1].split("=")[0]
        ...     print(Path(folder, "clean.csv").read_text())
        'data.params.path'
        path,label,split
        ./=1.png,a,test
        <BLANKLINE>
    """
    place = require_table(manifest, file)
    columns: dict[str, list[str]] = {
        "path": [f"./{path}" if path.startswith(_FORMULA) else path for path in manifest.paths],
        "label": [_cell(manifest.classes[label]) for label in manifest.labels.tolist()],
        "split": manifest.splits.tolist(),
    }
    for name, flags in (("is_query", manifest.is_query), ("is_gallery", manifest.is_gallery)):
        if not flags.all():
            columns[name] = [str(int(flag)) for flag in flags.tolist()]
    for name, numbers in (("group", manifest.groups), ("super_label", manifest.super_labels)):
        if numbers is not None:
            columns[name] = ["" if number < 0 else str(number) for number in numbers.tolist()]
    if manifest.boxes is not None:
        for name, values in zip(("x1", "y1", "x2", "y2"), manifest.boxes.T.tolist(), strict=True):
            columns[name] = ["" if value < 0 else str(value) for value in values]
    if manifest.texts is not None:
        columns["text"] = [_cell(text) for text in manifest.texts]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    write_text(file, text.getvalue())
    return f"table:{file} {place}"


def require_table(manifest: Manifest, file: Path) -> str:
    """Return the overrides by which a table at `file` finds the images; raise UserError where none could.

    Example:
        >>> from aurank.data import READERS
        >>> require_table(READERS["digits"](None), Path("clean.csv"))
        Traceback (most recent call last):
        aurank.errors.UserError: the images of digits are in memory, so no table can name them; save them as files first
    """
    source = manifest.source
    if not len(manifest):
        raise UserError(f"nothing of {manifest.name} would be left, so no table is written")
    if manifest.positives is not None:
        raise UserError(f"{manifest.name} lists which images belong together, which a table does not hold")
    odd = [name for name in (*manifest.paths, *manifest.classes) if name != name.strip()]
    if odd:
        raise UserError(f"{odd[0]!r} of {manifest.name} begins or ends with a space, which a table does not keep")
    if isinstance(source, FolderSource):
        return f"data.params.path={source.root.resolve()}"
    if isinstance(source, ZipSource):
        inside = f" data.params.images={source.prefix.rstrip('/')}" if source.prefix else ""
        return f"data.params.path={source.file.resolve()}{inside}"
    raise UserError(f"the images of {manifest.name} are in memory, so no table can name them; save them as files first")


def _cell(text: str) -> str:
    return f" {text}" if text.startswith(_FORMULA) else text
