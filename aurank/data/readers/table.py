"""Tables of images, in files or as data frames: one, or one of queries and one of gallery images."""

import csv
import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from aurank.data.manifest import SPLITS, Manifest
from aurank.data.readers.listing import Row, build_listed, read_text
from aurank.data.readers.values import number_groups, read_label, require_filled
from aurank.data.sources import ImageSource, open_source
from aurank.errors import AurankWarning, UserError
from aurank.files import reading
from aurank.names import meant, nearest, plain_text, text_key, tidied

_REQUIRED = ("path", "label", "text", "split")  # those of them that a table has are filled in every line
_BOX, _FLAGS = ("x1", "y1", "x2", "y2"), ("is_query", "is_gallery")
_KNOWN = (*_REQUIRED, *_FLAGS, "group", "super_label", *_BOX)
_NEARLY = 0.76  # likeness of names: "groups" and "group" have 0.91, "query" and "is_query" 0.77
_MEANS = {"1": True, "true": True, "yes": True, "": True, "0": False, "false": False, "no": False}

Line = tuple[str, dict[str, str]]  # its place ("FILE, line 7"), and its values by column


def read_table(root: Path, *, file: str, path: str = ".", images: str = "", outside: bool = False) -> Manifest:
    """Return the images of a table: csv, parquet or feather.

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
        file: the table, in `path` or in `root`; parquet or feather if it ends so, otherwise csv in UTF-8 with a header.
        images: the folder in `path` that the column `path` starts from.
        outside: whether a path may leave that folder, by `..` or as an absolute one.

    Raises:
        UserError: names the line that is wrong, or a column whose name is nearly one of these.
    """
    archive = open_source(root / path)
    lines = list(_table_lines(archive if archive.exists(file) else open_source(root), file))
    return _of_lines(file, open_source(root / path, prefix=images), lines, outside=outside)


def from_table(table: Any, *, root: Path | str = ".", images: str = "", outside: bool = False) -> Manifest:
    """Return the images of a data frame: of pandas, polars, pyarrow or any library with `__arrow_c_stream__`.

    Args:
        table: with the columns of `read_table`.
        root: the folder or zip archive of the images, or an address of fsspec.
        images, outside: as for `read_table`.

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
        held = pyarrow.table(table)
    held = held.select([name for name in held.column_names if not name.startswith("__index_level_")])  # of pandas
    lines = list(_lines_of("table", held.column_names, _arrow_rows(held, held.column_names)))
    return _of_lines("table", open_source(Path(root), prefix=images), lines, outside=outside)


def _of_lines(file: str, source: ImageSource, lines: Sequence[Line], *, outside: bool) -> Manifest:
    if not lines:
        raise UserError(f"{file} is empty: there is no line below its header")
    labelled = "label" in lines[0][1]
    for where, line in lines:
        if line["split"] not in SPLITS:
            raise UserError(f"{where}: split {line['split']!r} is not one of {', '.join(SPLITS)}")
    for column in _REQUIRED:
        if column != "text" or not labelled:
            require_filled(column, [where for where, line in lines if not line.get(column, "?")])
    texts = [tidied(line.get("text", "")) for _, line in lines]
    named: dict[str, str] = {}  # without labels a class is named by the first of its texts
    super_labels: Sequence[int | None] = _numbers(lines, "super_label")[0] or [None] * len(lines)
    rows = []
    for (where, line), text, super_label, box in zip(lines, texts, super_labels, _boxes(lines), strict=True):
        label = line["label"] if labelled else named.setdefault(text_key(text), text)
        path = PurePosixPath(line["path"]).as_posix()
        rows.append(Row(where, path, label, line["split"], super_label, box=box))
    groups, group_names = _numbers(lines, "group")
    more = {
        "is_query": _flags(lines, "is_query"),
        "is_gallery": _flags(lines, "is_gallery"),
        "groups": groups,
        "group_names": group_names,
        "texts": texts if all(texts) else None,
    }
    source.lines = file, {row.path: int(row.where.rpartition(" ")[2]) for row in reversed(rows)}
    return build_listed(PurePosixPath(file).stem, source, rows, one_label=labelled, outside=outside, **more)


def _boxes(lines: Sequence[Line]) -> list[tuple[int, int, int, int] | None]:
    lacking = [column for column in _BOX if column not in lines[0][1]]
    if len(lacking) == len(_BOX):
        return [None] * len(lines)
    if lacking:
        said = f"column {lacking[0]!r} of the boxes is missing"
        raise UserError(f"{lines[0][0]}: {said}; give {','.join(_BOX)}, or none of them")
    boxes: list[tuple[int, int, int, int] | None] = []
    for where, line in lines:
        given = [line[column] for column in _BOX]
        x1 = y1 = x2 = y2 = -1
        with suppress(ValueError, OverflowError):  # no number, NaN, infinity
            x1, y1, x2, y2 = (round(float(value)) for value in given)
        is_box = 0 <= x1 < x2 < 2**31 and 0 <= y1 < y2 < 2**31
        if any(given) and not is_box:
            expected = f"{','.join(_BOX)} in pixels from 0, x1 below x2 and y1 below y2"
            raise UserError(f"{where}: the box must be {expected}, got {','.join(given)}")
        boxes.append((x1, y1, x2, y2) if is_box else None)
    return boxes


def _table_lines(source: ImageSource, file: str) -> Iterator[Line]:
    if PurePosixPath(file).suffix.lower() in (".parquet", ".pq", ".feather", ".arrow"):
        return _lines_of(file, *_arrow(source, file))
    reader = csv.reader(io.StringIO(read_text(source, file), newline=""))
    with reading(file, "a csv table", remedy="mend its header"):
        header = [name.strip() for name in next(reader, [])]
    return _lines_of(file, header, ((reader.line_num, line) for line in reader))


def _lines_of(file: str, header: list[str], body: Iterator[tuple[int, Sequence[Any]]]) -> Iterator[Line]:
    if not header:
        raise UserError(f"{file} is empty; expected the header path,label,split, and a line for each image")
    what = "text" if "text" in header and "label" not in header else "label"
    wanted = ("path", what, "split")
    unknown = [name for name in header if name not in _KNOWN]
    if absent := next((name for name in wanted if name not in header), None):
        either, also = f"column {absent!r} is", ""
        if absent == "label":
            either, also = "columns 'label' and 'text' are both", " or path,text,split"
        separator = next((sign for sign in (";", "\t", "|") if sign in header[0]), None)
        remedy = "" if separator is None else f"; it is separated by {separator!r}: save it with commas"
        raise UserError(f"{file}: {either} missing; expected {','.join(wanted)}{also}, got {','.join(header)}{remedy}")
    if any(header.count(name) > 1 for name in _KNOWN):
        raise UserError(f"{file}: a column occurs twice in {','.join(header)}")
    for name in unknown:
        if likely := nearest(name, [column for column in _KNOWN if column not in header], cutoff=_NEARLY):
            remedy = "Rename it; if it is something else, give it another name"
            raise UserError(f"{file}: column {name!r} is not known{meant(likely)} {remedy}")
    if unknown:
        names = ", ".join(map(repr, unknown))
        told = f"{file}: ignored columns: {names}; those read are {', '.join(_KNOWN)}"
        warnings.warn(told, AurankWarning, stacklevel=2)
    with reading(file, "a csv table", remedy="mend it"):
        for number, line in body:
            if not line:
                continue
            where = f"{file}, line {number}"
            if len(line) != len(header):
                raise UserError(f"{where}: expected {len(header)} columns ({','.join(header)}), got {len(line)}")
            values = dict(zip(header, line, strict=True))
            if "label" in values:
                values["label"] = read_label(values["label"], where)
            yield where, {name: plain_text(value) for name, value in values.items()}


def _arrow(source: ImageSource, file: str) -> tuple[list[str], Iterator[tuple[int, list[Any]]]]:
    import pyarrow  # a third of a second that no other format needs
    import pyarrow.parquet

    data = source.read_bytes(file)
    suffix = PurePosixPath(file).suffix.lower()
    with reading(file, f"a {suffix[1:]} table", remedy="write the table anew"):
        if suffix in (".feather", ".arrow"):
            table = pyarrow.ipc.open_file(data).read_all()
            return table.column_names, _arrow_rows(table, table.column_names)
        schema = pyarrow.parquet.read_schema(pyarrow.BufferReader(data))
        wanted = [name for name in schema.names if name in _KNOWN]
        # A value that stands in many rows is then held once.
        texts = [one.name for one in schema if one.name in wanted and pyarrow.types.is_string(one.type)]
        content = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data), read_dictionary=texts)
        return schema.names, _arrow_rows(content.read(columns=wanted), schema.names)


def _arrow_rows(table: Any, header: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
    columns = {name: _values(table[name]) for name in table.column_names if name in _KNOWN}
    absent = [""] * table.num_rows  # of a column that is ignored
    return enumerate(map(list, zip(*(columns.get(name, absent) for name in header), strict=True)), start=1)


def _values(column: Any) -> Iterator[Any]:
    for chunk in column.chunks:
        if hasattr(chunk, "dictionary"):
            values = chunk.dictionary.to_pylist()
            yield from (None if index is None else values[index] for index in chunk.indices.to_pylist())
        else:
            yield from chunk.to_pylist()


def _flags(lines: Sequence[Line], column: str) -> list[bool] | None:
    if column not in lines[0][1]:
        return None
    for where, line in lines:
        if line[column].lower() not in _MEANS:
            raise UserError(f"{where}: {column} must be one of 1, 0, true, false, yes, no, got {line[column]!r}")
    return [_MEANS[line[column].lower()] for _, line in lines]


def _numbers(lines: Sequence[Line], column: str) -> tuple[list[int] | None, tuple[str, ...] | None]:
    if column not in lines[0][1]:
        return None, None
    return number_groups([line[column] for _, line in lines])
