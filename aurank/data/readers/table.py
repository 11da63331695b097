"""Tables of images, in files or as data frames: one, or one of queries and one of gallery images."""

import csv
import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from aurank.data.manifest import Manifest
from aurank.data.readers.listing import Row, build_listed, read_text
from aurank.data.readers.values import name_by_texts, number_groups, read_label, require_filled
from aurank.data.sources import ImageSource, open_source
from aurank.errors import AurankWarning, UserError
from aurank.files import reading
from aurank.names import meant, nearest, plain_text, require_choice, tidied

_BOX, _FLAGS = ("x1", "y1", "x2", "y2"), ("is_query", "is_gallery")
_KNOWN = ("path", "label", "text", "split", *_FLAGS, "group", "super_label", *_BOX)
_NEARLY = 0.76  # likeness of names: "groups" and "group" have 0.91, "query" and "is_query" 0.77
_MEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}

Line = tuple[str, dict[str, Any]]  # where it is ("FILE, line 7"), and its values by column


def read_table(
    root: Path, *, file: str, path: str = ".", images: str = "", outside: bool = False, separator: str | None = None
) -> Manifest:
    """Return the images of a table: csv or parquet.

    Columns: `path,label,split[,is_query,is_gallery,group,super_label,x1,y1,x2,y2]`, or with a text of each image
    `path,text,split[,label,…]`. Others are ignored, and named in a warning.

    x1,y1,x2,y2 are a box in the order of Pascal VOC: the upright image is cut to it before any transform, from pixel
    x1,y1 (the first is 0,0) up to x2,y2, which lie just outside. Fractions are rounded; empty in all four means the
    whole image. An image may have several rows with different boxes, each of its own label.

    Labels, groups and super-labels are any text. A label that is missing (empty, NaN) is refused; a group or
    super-label that is missing or −1 means none; a flag that is missing means true; 1.0 is 1. Splits are train, val and
    test. Texts are kept as `tidied` leaves them. Without labels, texts equal but for case are
    one class, which the first of them names, and an image may have rows with different texts. Beside labels some texts
    may be empty: the data set then has none.

    Args:
        file: the table, in `path` or in `root`; parquet if it ends so, otherwise csv in UTF-8 with a header.
        images: the folder in `path` that the column `path` starts from.
        outside: whether a path may leave that folder, by `..` or as an absolute one.
        separator: what stands between the labels of an image that has several: "|" reads a|b as a and b.

    Raises:
        UserError: names the line that is wrong, or a column whose name is nearly one of these.
    """
    archive = open_source(root / path)
    lines = list(_file_lines(archive if archive.exists(file) else open_source(root), file))
    return _of_lines(file, open_source(root / path, prefix=images), lines, outside, separator)


def from_table(
    table: Any, *, root: Path | str = ".", images: str = "", outside: bool = False, separator: str | None = None
) -> Manifest:
    """Return the images of a data frame: of pandas, polars, pyarrow or any library with `__arrow_c_stream__`.

    Args:
        table: with the columns of `read_table`; a label may be a list.
        root: the folder or zip archive of the images.
        images, outside, separator: as for `read_table`.

    Raises:
        UserError: names the row that is wrong, counted from 1.

    Example:
        >>> import pyarrow
        >>> frame = pyarrow.table({"path": ["README.md"], "label": ["text"], "split": ["test"]})
        >>> from_table(frame)
        Manifest('table': 1 images of 1 classes; test 1)
    """
    import pyarrow

    with reading("table", "a data frame", remedy="give one of pandas, polars or pyarrow"):
        frame = pyarrow.table(table)
    frame = frame.select([name for name in frame.column_names if not name.startswith("__index_level_")])  # of pandas
    lines = list(_arrow_lines("table", frame, frame.column_names))
    return _of_lines("table", open_source(Path(root), prefix=images), lines, outside, separator)


def _of_lines(file: str, source: ImageSource, lines: Sequence[Line], outside: bool, separator: str | None) -> Manifest:
    columns = lines[0][1].keys() if lines else {"label"}
    labelled = "label" in columns
    if separator is not None and not any((separator or "|") in str(line.get("label")) for _, line in lines):
        warnings.warn(f"{file}: no label holds the separator {separator or '|'!r}", AurankWarning, stacklevel=2)
    for where, line in lines if labelled else ():
        line["label"] = read_label(line["label"], where, separator=separator)
    for column in ("path", "label", "split") if labelled else ("path", "text", "split"):
        require_filled(column, [where for where, line in lines if not line[column]])
    texts = [tidied(line.get("text", "")) for _, line in lines]
    labels = [line["label"] for _, line in lines] if labelled else name_by_texts(texts)
    numbered = {
        name: number_groups([line[name] for _, line in lines]) for name in ("group", "super_label") if name in columns
    }
    super_labels: Sequence[int | None] = numbered.get("super_label", ([None] * len(lines),))[0]
    rows = []
    for (where, line), label, super_label in zip(lines, labels, super_labels, strict=True):
        box = _box(where, line) if "x1" in columns else None
        rows.append(Row(where, PurePosixPath(line["path"]).as_posix(), label, line["split"], super_label, box=box))
    groups, group_names = numbered.get("group", (None, None))
    flags: dict[str, list[bool]] = {}
    for name in _FLAGS:
        for where, line in lines if name in columns else ():
            value = require_choice(f"{where}: {name}", line[name].lower() or "yes", _MEANS)
            flags.setdefault(name, []).append(_MEANS[value])
    more = {**flags, "groups": groups, "group_names": group_names, "texts": texts if all(texts) else None}
    return build_listed(PurePosixPath(file).stem, source, rows, one_label=labelled, outside=outside, **more)


def _box(where: str, line: Mapping[str, str]) -> tuple[int, int, int, int] | None:
    values = [line[column] for column in _BOX]
    if not any(values):
        return None
    with suppress(ValueError, OverflowError):  # text that is no number; NaN and infinity, which round() refuses
        x1, y1, x2, y2 = (round(float(value)) for value in values)
        if 0 <= x1 < x2 < 2**31 and 0 <= y1 < y2 < 2**31:
            return x1, y1, x2, y2
    expected = f"{','.join(_BOX)} in pixels from 0, x1 below x2 and y1 below y2"
    raise UserError(f"{where}: the box must be {expected}, got {','.join(values)}")


def _check_header(file: str, header: Sequence[str]) -> None:
    required: tuple[str, ...] = ("path", "text" if "text" in header and "label" not in header else "label", "split")
    required += _BOX if set(_BOX) & set(header) else ()
    unknown = [name for name in header if name not in _KNOWN]
    problem = ""
    if absent := next((name for name in required if name not in header), None):
        missing = "columns 'label' and 'text' are both" if absent == "label" else f"column {absent!r} is"
        separator = next((sign for sign in (";", "\t", "|") if sign in "".join(header[:1])), None)
        remedy = "" if separator is None else f"; it is separated by {separator!r}: save it with commas"
        problem = f"{missing} missing; expected {','.join(required)}, got {','.join(header)}{remedy}"
    elif any(header.count(name) > 1 for name in _KNOWN):
        problem = f"a column occurs twice in {','.join(header)}"
    else:
        absent_columns = [column for column in _KNOWN if column not in header]
        for name in unknown:
            if likely := nearest(name, absent_columns, cutoff=_NEARLY):
                remedy = "Rename it; if it is something else, give it another name"
                problem = f"column {name!r} is not known{meant(likely)} {remedy}"
    if problem:
        raise UserError(f"{file}: {problem}")
    if unknown:
        message = f"{file}: ignored columns: {', '.join(map(repr, unknown))}; those read are {', '.join(_KNOWN)}"
        warnings.warn(message, AurankWarning, stacklevel=2)


def _lines(file: str, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[Line]:
    for number, row in rows:
        where = f"{file}, line {number}"
        values = {name: row[name] for name in _KNOWN if name in row}
        yield where, {name: value if name == "label" else plain_text(value) for name, value in values.items()}


def _arrow_lines(file: str, table: Any, header: Sequence[str]) -> Iterator[Line]:
    _check_header(file, header)
    return _lines(file, enumerate(table.select([name for name in header if name in _KNOWN]).to_pylist(), start=1))


def _csv_rows(file: str, text: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    with reading(file, "a csv table", remedy="mend it"):
        reader = csv.DictReader(io.StringIO(text, newline=""))
        reader.fieldnames = header = [name.strip() for name in reader.fieldnames or []]
        _check_header(file, header)
        for row in reader:
            if None in row or None in row.values():
                raise UserError(f"{file}, line {reader.line_num}: expected {len(header)} columns ({','.join(header)})")
            yield reader.line_num, row


def _file_lines(source: ImageSource, file: str) -> Iterator[Line]:
    if PurePosixPath(file).suffix.lower() not in (".parquet", ".pq"):
        return _lines(file, _csv_rows(file, read_text(source, file)))
    import pyarrow  # a third of a second that no other format needs
    import pyarrow.parquet

    data = source.read_bytes(file)
    with reading(file, "a parquet table", remedy="write the table anew"):
        header = pyarrow.parquet.read_schema(pyarrow.BufferReader(data)).names
        columns = [name for name in header if name in _KNOWN]
        return _arrow_lines(file, pyarrow.parquet.read_table(pyarrow.BufferReader(data), columns=columns), header)
