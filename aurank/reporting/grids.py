"""Retrieval grids: which queries are worth a look, and what each of them finds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aurank.errors import UserError
from aurank.evaluation.report import FIRST, Report
from aurank.names import meant, nearest
from aurank.reporting.pictures import Pictures

SEED = 0


@dataclass(frozen=True)
class Item:
    path: str
    label: str
    picture: str | None
    score: float | None = None  # None: the query
    is_right: bool = False
    place: int = 0  # from 1 in the list
    group: str = ""  # such as its camera
    is_apart: bool = False  # behind the list shown: the first positive of a query that finds none in it


@dataclass(frozen=True)
class GridRow:
    query: Item
    found: list[Item]
    ap: float
    row: int
    first_rank: int
    num_positives: int


@dataclass(frozen=True)
class Grid:
    title: str
    explained: str
    rows: list[GridRow]


def make_grids(report: Report, pictures: Pictures, *, queries: int = 8, classes: Sequence[str] = ()) -> list[Grid]:
    names = query_names(report)
    by_ap = np.argsort(report.per_query["ap"], kind="stable")
    count = min(queries, len(by_ap))
    middle = max(0, (len(by_ap) - count) // 2)
    random = np.sort(np.random.default_rng(SEED).permutation(len(by_ap))[:count])
    chosen = [
        ("Worst queries", "lowest average precision first", by_ap[:count]),
        ("Median queries", "half of all queries are worse than these, half are better", by_ap[middle : middle + count]),
        ("Random queries", f"drawn with seed {SEED}", random),
    ]
    for name in classes:
        of_class = np.flatnonzero(names == name)
        if not len(of_class):
            known = sorted(set(names.tolist()))
            raise UserError(f"no query of class {name!r} was measured{meant(nearest(name, known, most=3))}")
        of_class = of_class[np.argsort(report.per_query["ap"][of_class], kind="stable")]
        explained = f"the worst {count} of {len(of_class):,}" if len(of_class) > count else "all of them, worst first"
        chosen.append((f"Class {name}", explained, of_class[:count]))
    return [Grid(title, text, grid_rows(report, some.tolist(), pictures)) for title, text, some in chosen]


def query_names(report: Report) -> np.ndarray:
    return _text(report.per_query, len(report.per_query["query"]), "class", "label")


def gallery_names(report: Report) -> np.ndarray:
    return _text(report.gallery, report.num_gallery, "class", "label")


def _text(columns: dict[str, np.ndarray], rows: int, *names: str) -> np.ndarray:
    for name in names:
        if name in columns:
            return columns[name].astype(np.str_)
    return np.full(rows, "")


def grid_rows(report: Report, indices: Sequence[int], pictures: Pictures) -> list[GridRow]:
    names, others = query_names(report), gallery_names(report)
    own, there_by = _text(report.per_query, len(names), "group"), _text(report.gallery, report.num_gallery, "group")
    values, lists, paths = report.per_query, report.neighbours, report.gallery.get("path")
    rows = []
    for index in indices:
        path = str(values["path"][index]) if "path" in values else ""
        query, found = Item(path, str(names[index]), pictures.of(path), group=str(own[index])), list[Item]()
        numbers = [int(values[name][index]) for name in ("query", "first_rank", "num_positives")]
        listed: list[tuple[int, float, bool, int, bool]] = []
        if lists is not None:
            here = (column[index].tolist() for column in (lists.row, lists.score, lists.is_positive))
            listed = [(*one, place, False) for place, one in enumerate(zip(*here, strict=True), 1) if one[0] >= 0]
            if FIRST[0] in values and not lists.is_positive[index].any():
                row, score = (values[name][index] for name in FIRST)
                listed.append((int(row), float(score), True, numbers[1], True))
        for row, score, is_right, place, is_apart in listed:
            there = "" if paths is None else str(paths[row])
            named = (there, str(others[row]), pictures.of(there))
            found.append(Item(*named, score, is_right, place, str(there_by[row]), is_apart))
        rows.append(GridRow(query, found, float(values["ap"][index]), *numbers))
    return rows
