"""A data set as a table that the reader "table" reads: paths, labels and roles, the images left where they are."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aurank.data.checks.findings import DoctorReport
from aurank.data.manifest import Manifest
from aurank.data.sources import FolderSource, ZipSource
from aurank.errors import UserError
from aurank.files import write_text

_NAMED = 3  # classes in a message
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


def describe_cleaning(report: DoctorReport, fixes: Sequence[str]) -> str:
    """Return how many rows each name of FIXES leaves out, and which classes lose their last pair.

    Example:
        >>> from aurank.data import build_manifest
        >>> from aurank.data.checks.findings import Finding
        >>> photos = build_manifest(
        ...     "toy", FolderSource(Path("photos")), paths=["0.png", "1.png"], labels=["a", "a"], splits=["test"] * 2
        ... )
        >>> tiny = Finding("tiny images", 1, ("1.png",), False, rows=((1,),), fix="tiny", drop=(1,))
        >>> print(describe_cleaning(DoctorReport("toy", {}, (tiny,), photos), ["tiny", "dark"]))
        --fix leaves out 1 of 2 rows (tiny 1, dark 0)
        1 of 1 classes loses its last pair: 'a' in test
    """
    assert report.manifest is not None
    kept = report.kept(fixes)
    counts = ", ".join(f"{name} {len(report.left_out(name)):,}" for name in fixes)
    rows = f"{len(report.manifest) - len(kept):,} of {len(report.manifest):,} rows"
    before, after = classes_with_pairs(report.manifest), set(classes_with_pairs(kept))
    lost = [f"{name!r} in {split}" for split, name in before if (split, name) not in after]
    verb = "loses its last pair" if len(lost) == 1 else "lose their last pair"
    some = f": {', '.join(lost[:_NAMED])}" + (f", and {len(lost) - _NAMED:,} more" if len(lost) > _NAMED else "")
    return f"--fix leaves out {rows} ({counts})\n{len(lost):,} of {len(before):,} classes {verb}{some if lost else ''}"


def classes_with_pairs(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the splits and classes in which an image finds another of its class.

    In training any two are a pair; elsewhere a query, and a gallery row of another camera (group).

    Example:
        >>> from aurank.data import READERS
        >>> len(classes_with_pairs(READERS["digits"](None)))
        20
    """
    groups = np.full(len(manifest), -1) if manifest.groups is None else manifest.groups
    training = manifest.splits == "train"
    columns = [manifest.splits, manifest.labels, np.where(training, -1, groups)]
    columns += [manifest.is_query | training, manifest.is_gallery | training]
    sides: dict[tuple[str, int], list[tuple[int, bool, bool]]] = {}
    for split, label, *row in zip(*(column.tolist() for column in columns), strict=True):
        sides.setdefault((split, label), []).append((row[0], row[1], row[2]))
    found = []
    for (split, label), held in sides.items():
        gallery = Counter(group for group, _, is_gallery in held if is_gallery)
        others = (gallery.total() - (gallery[group] if group >= 0 else both) for group, query, both in held if query)
        if any(count > 0 for count in others):
            found.append((split, manifest.classes[label]))
    return found


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
    for name in (*manifest.paths, *manifest.classes):
        if name.encode("utf-8", "ignore").decode().strip() != name:
            what = "begins or ends with a space, or is no UTF-8"
            raise UserError(f"{name!r} of {manifest.name} {what}, which a table does not keep")
    if isinstance(source, FolderSource):
        return f"data.params.path={source.root.resolve()}"
    if isinstance(source, ZipSource):
        inside = f" data.params.images={source.prefix.rstrip('/')}" if source.prefix else ""
        return f"data.params.path={source.file.resolve()}{inside}"
    raise UserError(f"the images of {manifest.name} are in memory, so no table can name them; save them as files first")


def _cell(text: str) -> str:
    return f" {text}" if text.startswith(_FORMULA) else text
