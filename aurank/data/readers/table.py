"""Readers of list files: tables (csv, parquet) and lists in the column format of Stanford Online Products."""

import csv
import dataclasses
import io
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from aurank.arrays import claims_too_much
from aurank.data.captions import text_key, tidied
from aurank.data.manifest import SPLITS, Manifest, build_manifest, first_seen
from aurank.data.sources import FolderSource, ImageSource, open_source
from aurank.errors import UserError, first_line

_TABLE_COLUMNS = ("path", "label", "text", "split")
_TABLE_OPTIONAL = ("is_query", "is_gallery", "group", "super_label")
_LIST_HEADER = "image_id class_id super_class_id path"
DIGITS = 18  # of a number that fits 64 bits
_FLAGS = {"1": True, "true": True, "yes": True, "": True, "0": False, "false": False, "no": False}

Line = tuple[str, dict[str, str]]  # where it stands ("FILE, line 7"), and its values by column


def table(root: Path, *, file: str, path: str = ".", images: str = "", outside: bool = False) -> Manifest:
    """Returns the rows of a csv or parquet table.

    Columns: `path,label,split[,is_query,is_gallery,group,super_label]`, or with a text of each image
    `path,text,split[,label,…]`.

    Args:
        root: the data folder.
        file: the table, in `path` or in `root`; parquet if it ends so, otherwise csv in UTF-8 with a header.
        path: the folder or zip below `root` that holds the images.
        images: the folder in `path` that the column `path` starts from.
        outside: whether a path may leave that folder, by `..` or as an absolute one.

    Labels, groups and super-labels are any text; an empty group or super-label means none (−1), an empty flag true.
    Splits are train, val and test. Other columns are passed over. Texts are kept as `tidied` leaves them. Where they
    stand without labels, texts equal but for case are one class, which the first of them names, and an image may have
    rows with different texts. Beside labels some may be empty: the data set then has none. Raises UserError naming the
    line that is wrong.
    """
    archive = open_source(root / path)
    lines = list(_table_lines(archive if archive.exists(file) else FolderSource(root), file))
    return _of_lines(PurePosixPath(file).stem, open_source(root / path, prefix=images), lines, outside=outside)


def two_tables(query: Path, gallery: Path, *, root: Path | None = None, outside: bool = False) -> Manifest:
    """Return the images of both tables, each once and all "test", marked as query, gallery or both.

    Columns: those of `table`, of which `split`, `is_query` and `is_gallery` have no use. A group is the same on both
    sides where it is written alike. Paths start at `root`, by default the folder of the tables; `outside` as there.

    Raises UserError for a table that cannot be read, an image that is twice on one side, or one that has another label
    or group on the other side.
    """
    if root is None and query.resolve().parent != gallery.resolve().parent:
        raise UserError(f"{query} and {gallery} lie in different folders; say where their paths start with --root")
    source = open_source((root or query.parent).resolve())
    remedy = "name the folder that the paths start at with --root"
    lines: list[Line] = []
    sides: list[dict[str, Line]] = []
    for file in (query, gallery):
        if not file.is_file():
            raise UserError(f"no table {file}; expected csv or parquet with the columns path,label")
        rows: dict[str, Line] = {}
        for where, values in _table_lines(FolderSource(file.parent), file.name, splits=False):
            path = PurePosixPath(values["path"]).as_posix()
            if path in rows:
                raise UserError(f"{where}: {file} lists image {path!r} twice; list each image once")
            used = {name: value for name, value in values.items() if name in ("path", "label", "text", "group")}
            rows[path] = where, {**used, "split": "test"}
        check_listing(
            source, [where for where, _ in rows.values()], list(rows), [""] * len(rows), outside=outside, remedy=remedy
        )
        lines += rows.values()
        sides.append(rows)
    headers = [set(rows[next(iter(rows))][1]) for rows in sides if rows]
    if len({"label" in header for header in headers}) > 1:
        raise UserError(f"of {query} and {gallery} one has a column label and the other has none; write it into both")
    if "group" in set().union(*headers):
        for _, values in lines:
            values.setdefault("group", "")
    for path in sides[0].keys() & sides[1].keys():
        for name in ("label", "group"):
            one, other = (rows[path][1].get(name) for rows in sides)
            if one != other:
                raise UserError(f"image {path!r} has {name} {one!r} in {query} and {other!r} in {gallery}")
    whole = _of_lines(f"{query.stem} in {gallery.stem}", source, lines, outside=outside)
    row_of = {path: row for row, path in reversed(list(enumerate(whole.paths)))}
    once = whole.select(sorted(row_of.values()))
    flags = [np.array([path in rows for path in once.paths]) for rows in sides]
    return dataclasses.replace(once, is_query=flags[0], is_gallery=flags[1])


def _of_lines(name: str, source: ImageSource, lines: Sequence[Line], *, outside: bool = False) -> Manifest:
    """Return the manifest of the lines of a table."""
    for where, line in lines:
        if line["split"] not in SPLITS:
            raise UserError(f"{where}: split {line['split']!r} is not one of {', '.join(SPLITS)}")
    for column in _TABLE_COLUMNS:
        empty = [where for where, line in lines if not line.get(column, "?")]
        if empty and (column != "text" or "label" not in lines[0][1]):
            more = f", and in {len(empty) - 1:,} more line{'s' if len(empty) > 2 else ''}" if len(empty) > 1 else ""
            raise UserError(f"{empty[0]}: {column} is empty{more}")
    written = [tidied(line.get("text", "")) for _, line in lines]
    texts = written if all(written) else None
    labelled = not lines or "label" in lines[0][1]
    labels = [line["label"] for _, line in lines] if labelled else _named_by_first(written)
    paths = [PurePosixPath(line["path"]).as_posix() for _, line in lines]
    check_listing(source, [where for where, _ in lines], paths, labels, one_label=labelled, outside=outside)
    return build_manifest(
        name,
        source,
        paths=paths,
        labels=labels,
        splits=[line["split"] for _, line in lines],
        is_query=_flags(lines, "is_query"),
        is_gallery=_flags(lines, "is_gallery"),
        groups=_numbers(lines, "group"),
        super_labels=_numbers(lines, "super_label"),
        texts=texts,
    )


def lists(
    root: Path, *, train: str, test: str, images: str, val: str | None = None, path: str = ".", outside: bool = False
) -> Manifest:
    """Returns the rows of list files in the column format of Stanford Online Products.

    Args:
        root: the data folder.
        train, test, val: the list files in `path`. The first line is the header
            `image_id class_id super_class_id path`, then one image a line, columns separated by blanks; ids are whole
            numbers, and a class has the same id in all files.
        images: the folder in `path` that the column `path` starts from.
        path: the folder or zip below `root`.
        outside: whether a path may leave the folder of the images, by `..` or as an absolute one.

    The class name is its id as written. Raises UserError naming the file and line that is wrong.
    """
    archive = open_source(root / path)
    source = open_source(root / path, prefix=images)
    rows: list[tuple[str, str, list[str]]] = []
    for split, file in (("train", train), ("val", val), ("test", test)):
        if file is not None:
            rows += [(split, where, fields) for where, fields in _list_lines(archive, file)]
    paths = [fields[3] for _, _, fields in rows]
    labels = [fields[1] for _, _, fields in rows]
    check_listing(source, [where for _, where, _ in rows], paths, labels, outside=outside)
    return build_manifest(
        PurePosixPath(path if path != "." else images).stem or "lists",
        source,
        paths=paths,
        labels=labels,
        splits=[split for split, _, _ in rows],
        super_labels=[int(row[2]) for _, _, row in rows],
    )


def _list_lines(source: ImageSource, file: str) -> Iterator[tuple[str, list[str]]]:
    """Returns, line by line, where it stands and its four fields."""
    lines = read_text(source, file).splitlines()
    if not lines or lines[0].split() != _LIST_HEADER.split():
        raise UserError(f"{file}, line 1: expected the header {_LIST_HEADER!r}, got {lines[0] if lines else ''!r}")
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        fields = line.split(maxsplit=3)  # a path may hold blanks
        if len(fields) != 4:
            raise UserError(f"{where}: expected 4 columns ({_LIST_HEADER}), got {len(fields)}: {line!r}")
        for name, value in zip(_LIST_HEADER.split()[:3], fields, strict=False):
            if not value.isdecimal() or len(value) > DIGITS:
                at_most = f" of at most {DIGITS} digits" if len(value) > DIGITS else ""
                raise UserError(f"{where}: {name} must be a whole number{at_most}, got {value!r}")
        yield where, [*fields[:3], fields[3].strip()]


def _table_lines(source: ImageSource, file: str, *, splits: bool = True) -> Iterator[Line]:
    """Returns, line by line, where it stands and its values by column, checked to be complete.

    `splits=False`: there may be no column split.
    """
    if PurePosixPath(file).suffix.lower() in (".parquet", ".pq"):
        header, body = _parquet(source, file)
    else:
        reader = csv.reader(io.StringIO(read_text(source, file), newline=""))
        try:
            header = [name.strip() for name in next(reader, [])]
        except csv.Error as error:
            raise UserError(f"{file}, line 1: not a csv table that can be read ({error})") from None
        body = ((reader.line_num, line) for line in reader)
    what = "text" if "text" in header and "label" not in header else "label"
    wanted = ("path", what, "split") if splits else ("path", what)
    missing = [name for name in wanted if name not in header]
    if missing:
        either = "columns 'label' and 'text' are both" if missing[0] == "label" else f"column {missing[0]!r} is"
        raise UserError(
            f"{file}: {either} missing; expected {','.join(wanted)}"
            f"{' or path,text' + ',split' * splits if missing[0] == 'label' else ''}, got {','.join(header)}"
        )
    known = [name for name in header if name in _TABLE_COLUMNS + _TABLE_OPTIONAL]
    if len(known) > len(set(known)):
        raise UserError(f"{file}: a column occurs twice in {','.join(header)}")
    try:
        for number, line in body:
            if not line:
                continue
            where = f"{file}, line {number}"
            if len(line) != len(header):
                raise UserError(f"{where}: expected {len(header)} columns ({','.join(header)}), got {len(line)}")
            yield where, dict(zip(header, (value.strip() for value in line), strict=True))
    except csv.Error as error:
        raise UserError(f"{file}: not a csv table that can be read ({error})") from None


def _parquet(source: ImageSource, file: str) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    # Imported here: it takes a third of a second that no other format needs.
    import pyarrow
    import pyarrow.parquet

    data = source.read_bytes(file)
    try:
        schema = pyarrow.parquet.read_schema(pyarrow.BufferReader(data))
        wanted = [name for name in schema.names if name in _TABLE_COLUMNS + _TABLE_OPTIONAL]
        # A value that stands in many rows is then held once.
        texts = [one.name for one in schema if one.name in wanted and pyarrow.types.is_string(one.type)]
        content = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data), read_dictionary=texts)
        about, rows = content.metadata, content.metadata.num_rows
        claimed = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
        if rows > len(data) or claims_too_much(claimed, len(data)):
            raise UserError(f"{file} claims {rows:,} rows, {claimed:,} bytes, in {len(data):,}; write the table anew")
        found = content.read(columns=wanted)
        columns = dict(zip(found.column_names, map(_texts, found.columns), strict=True))
    except (UserError, MemoryError):
        raise
    # A damaged file fails anywhere: ArrowException, OSError, UnicodeDecodeError, ValueError, …
    except Exception as error:
        raise UserError(f"{file}: not a parquet table that can be read ({first_line(error)})") from None
    absent = [""] * rows  # of a column that is passed over
    lines = zip(*(columns.get(name, absent) for name in schema.names), strict=True)
    return schema.names, enumerate(map(list, lines), start=1)


def _texts(column: Any) -> list[str]:
    """Return the values of a column of a parquet table as text, "" where there is none."""
    texts: list[str] = []
    for chunk in column.chunks:
        if hasattr(chunk, "dictionary"):
            values = [str(value) for value in chunk.dictionary.to_pylist()]
            texts += ["" if place is None else values[place] for place in chunk.indices.to_pylist()]
        else:
            texts += ["" if value is None else str(value) for value in chunk.to_pylist()]
    return texts


def read_text(source: ImageSource, file: str) -> str:
    if not source.exists(file):
        raise UserError(f"list file {file!r} is not in {source.where}")
    try:
        return source.read_bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text ({error}); save it as UTF-8") from None


def check_listing(
    source: ImageSource,
    wheres: Sequence[str],
    paths: Sequence[str],
    labels: Sequence[str],
    *,
    one_label: bool = True,
    outside: bool = False,
    remedy: str = "set data.params.path and data.params.images to where the paths start",
) -> None:
    """Raises UserError where one image has two labels, or where none is found: the paths then start elsewhere.

    So also where a path leaves the folder of the images: what a list of someone else's names is not read.
    `one_label=False`: an image may have several. `outside=True`: paths may leave the folder.
    """
    for where, path in zip(wheres, paths, strict=True):
        if not outside and (path.startswith(("/", "\\")) or ".." in PurePosixPath(path).parts):
            raise UserError(
                f"{where}: path {path!r} leaves {source.where}; write it relative to that folder, or, if you trust the "
                "list, set data.params.outside=true"
            )
    seen: dict[str, int] = {}
    for row, path in enumerate(paths if one_label else ()):
        before = seen.setdefault(path, row)
        if labels[before] != labels[row]:
            raise UserError(
                f"{wheres[row]}: image {path!r} has label {labels[row]!r}, but {labels[before]!r} at {wheres[before]}"
            )
    if paths and not any(source.exists(path) for path in paths):
        raise UserError(
            f"none of the images listed is in {source.where} (first: {paths[0]!r}, {wheres[0]}); unpack the images "
            f"there, or {remedy}"
        )


def _named_by_first(texts: Sequence[str]) -> list[str]:
    """Returns for each text the first one that counts as the same."""
    first: dict[str, str] = {}
    return [first.setdefault(text_key(text), text) for text in texts]


def _flags(lines: Sequence[Line], column: str) -> list[bool] | None:
    if not lines or column not in lines[0][1]:
        return None
    for where, line in lines:
        if line[column].lower() not in _FLAGS:
            raise UserError(f"{where}: {column} must be one of 1, 0, true, false, yes, no, got {line[column]!r}")
    return [_FLAGS[line[column].lower()] for _, line in lines]


def _numbers(lines: Sequence[Line], column: str) -> list[int] | None:
    """Returns the column as whole numbers: as written if all are, else counted as first seen; −1 where empty."""
    if not lines or column not in lines[0][1]:
        return None
    values = [line[column] for _, line in lines]
    filled = [value for value in values if value]
    if all(value.isdecimal() and len(value) <= DIGITS for value in filled):
        return [int(value) if value else -1 for value in values]
    numbers = first_seen(filled)
    return [numbers[value] if value else -1 for value in values]
