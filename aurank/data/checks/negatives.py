"""Tables of mined negatives: written, read, given to a sampler as neighbours, and looked at as the doctor does."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from aurank.data.checks.findings import Finding, finding_of
from aurank.data.shards import storable_texts
from aurank.errors import UserError
from aurank.files import reading, replacing

Table = Mapping[str, Any]  # columns of pairs, those of a query together and the nearest first
TEXTS = ("query", "negative", "query_label", "negative_label")


def write_negatives(table: Table, file: Path) -> None:
    import pyarrow.parquet

    columns = {name: storable_texts(list(table[name])) if name in TEXTS else table[name] for name in table}
    with replacing(file) as opened:
        pyarrow.parquet.write_table(pyarrow.table(columns), opened)


def read_negatives(file: Path) -> Table:
    """Return the columns of a Parquet table of negatives; UserError for a file that is none."""
    import pyarrow.parquet

    with reading(file, "a table of hard negatives", remedy="aurank mine writes one"):
        kinds = dict.fromkeys(TEXTS, "binary") | {"margin": "float64", "is_suspect": "bool"}
        table = pyarrow.parquet.read_table(file, columns=[*kinds])
        columns = {name: table[name].cast(kind) for name, kind in kinds.items()}
        texts = {name: np.array([*map(os.fsdecode, columns.pop(name).to_pylist())], object) for name in TEXTS}
        return texts | {name: values.to_numpy() for name, values in columns.items()}


def mined_neighbours(table: Table, paths: Sequence[str]) -> Int64[np.ndarray, "image k"]:
    """Return the rows of each image's negatives, the nearest first, then −1; suspect images are left out."""
    rows = _rows_among(table, paths)
    query, negative = rows[(rows >= 0).all(axis=1) & ~np.isin(rows, rows[table["is_suspect"], 1]).any(axis=1)].T
    order = np.argsort(query, kind="stable")
    rank = np.arange(len(query)) - np.searchsorted(query[order], query[order])
    neighbours = np.full((len(paths), int(rank.max(initial=0)) + 1), -1)
    neighbours[query[order], rank] = negative[order]
    return neighbours


def examine_negatives(table: Table, paths: Sequence[str]) -> list[Finding]:
    """Return suspect images with the queries they are near, and classes taken for each other with the hardest pair."""
    rows, margin = _rows_among(table, paths), table["margin"]
    _, negative, label, negative_label = (table[name] for name in TEXTS)
    near, classes = dict[str, list[int]](), dict[str, list[int]]()
    nearer = np.flatnonzero((margin <= 0) & (rows >= 0).all(axis=1))
    for pair in nearer[np.argsort(margin[nearer], kind="stable")].tolist():
        classes.setdefault(" and ".join(sorted((label[pair], negative_label[pair]))), []).append(pair)
        if table["is_suspect"][pair]:
            near.setdefault(negative[pair], []).append(pair)
    suspects = [
        f"{path}: labelled {negative_label[pairs[0]]}, looks like {label[pairs[0]]}" for path, pairs in near.items()
    ]
    groups = [[int(rows[pairs[0], 1]), *rows[pairs, 0].tolist()] for pairs in near.values()]
    dropped = [row for row, path in enumerate(paths) if path in near]
    most = sorted(classes.items(), key=lambda confusion: -len(confusion[1]))
    names = [f"{both}, {len(pairs):,} pairs, least margin {margin[pairs[0]]:.3f}" for both, pairs in most]
    confused = finding_of("confused", names, [rows[pairs[0]].tolist() for _, pairs in most])
    return [finding_of("suspect", suspects, groups, dropped), replace(confused, examples=tuple(names[:10]))]


def _rows_among(table: Table, paths: Sequence[str]) -> Int64[np.ndarray, "pair 2"]:
    """Return the rows of queries and negatives among paths, −1 for others; UserError where no pair is there."""
    row_of = {path: row for row, path in reversed(list(enumerate(paths)))}
    rows = np.array([[row_of.get(path, -1) for path in table[name]] for name in TEXTS[:2]], np.int64).T
    if not (rows >= 0).all(axis=1).any():
        theirs = next(iter(table["query"]), None)
        raise UserError(f"the hard negatives are of other images, such as {theirs!r}; this data has {paths[0]!r}")
    return rows
