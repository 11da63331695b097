"""Retrieval grids: which queries are worth a look, and the list of each."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aurank.errors import UserError
from aurank.evaluation.report import FIRST, Report
from aurank.names import meant, nearest
from aurank.reporting.pictures import Pictures

SEED = 0
_EXPLAINED = 2  # queries of a grid


def make_grids(
    report: Report, pictures: Pictures, *, queries: int = 8, classes: Sequence[str] = ()
) -> list[dict[str, Any]]:
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
        of_class = by_ap[np.isin(by_ap, (report.tags or {}).get(name, np.flatnonzero(names == name)))]
        if not len(of_class):
            hint = meant(nearest(name, sorted(set(names.tolist())), most=3))
            raise UserError(f"no query of class {name!r} was measured{hint}")
        explained = f"the worst {count} of {len(of_class):,}" if len(of_class) > count else "all of them, worst first"
        chosen.append((f"Class {name}", explained, of_class[:count]))
    return [
        {"title": title, "explained": text, "rows": grid_rows(report, indices.tolist(), pictures)}
        for title, text, indices in chosen
    ]


def query_names(report: Report) -> np.ndarray:
    return _text(report.per_query, len(report.per_query["query"]), "class", "label")


def gallery_names(report: Report) -> np.ndarray:
    return _text(report.gallery, report.num_gallery, "class", "label")


def _text(columns: Mapping[str, np.ndarray], rows: int, *names: str) -> np.ndarray:
    """Return the first of these columns as text, empty texts if there is none."""
    return next((columns[name].astype(np.str_) for name in names if name in columns), np.full(rows, ""))


def grid_rows(report: Report, indices: Sequence[int], pictures: Pictures) -> list[dict[str, Any]]:
    values, lists, count = report.per_query, report.neighbours, report.num_gallery
    query_columns = [_text(values, len(values["query"]), name) for name in ("path", "group")]
    gallery_columns = [_text(report.gallery, count, name) for name in ("path", "group")]
    names, labels = query_names(report), gallery_names(report)
    rows = list[dict[str, Any]]()
    for index in indices:
        path, group = (str(column[index]) for column in query_columns)
        query = {"path": path, "label": str(names[index]), "picture": pictures.of(path), "group": group}
        hits = list[dict[str, Any]]()
        facts = {name: int(values[name][index]) for name in ("first_rank", "num_positives")}
        listed: list[tuple[int, float, bool, int, bool]] = []
        if lists is not None:
            columns = (column[index].tolist() for column in (lists.row, lists.score, lists.is_positive))
            entries = enumerate(zip(*columns, strict=True), 1)
            listed = [(row, score, is_right, rank, False) for rank, (row, score, is_right) in entries if row >= 0]
            if FIRST[0] in values and not lists.is_positive[index].any():
                row, score = (values[name][index] for name in FIRST)
                listed.append((int(row), float(score), True, facts["first_rank"], True))  # after the list: none in it
        for row, score, is_right, rank, is_apart in listed:
            path, group = (str(column[row]) for column in gallery_columns)
            hit = {"path": path, "label": str(labels[row]), "picture": pictures.of(path), "group": group}
            hits.append({**hit, "score": score, "is_right": is_right, "rank": rank, "is_apart": is_apart})
        first = {hit["is_right"]: (hit["rank"], hit["path"]) for hit in reversed(hits)}
        alike = pictures.explained(str(query["path"]), dict(sorted(first.values()))) if len(rows) < _EXPLAINED else []
        row = {"query": query, "hits": hits, "row": int(values["query"][index]), "ap": float(values["ap"][index])}
        rows.append({**row, **facts, "alike": alike})
    return rows
