"""A part of a data set as a table, which the reader of that name takes."""

import csv
import io
from pathlib import Path

from aurank.data import Manifest
from aurank.files import write_text


def write_table(part: Manifest, file: Path) -> Path:
    """The file, absolute, which then lists the images of a manifest."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(("path", "label", "split"))
    for path, label, split in zip(part.paths, part.labels, part.splits, strict=True):
        writer.writerow((path, part.classes[label], split))
    write_text(file, written.getvalue())
    return file.resolve()
