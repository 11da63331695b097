"""Runs and qrels, TREC's files of rankings and judgements: read and measured, and written for trec_eval and its kin.

As in trec_eval, scores decide the order and ranks are not read. Names are written with blanks as in URLs (%20).
"""

import contextlib
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from jaxtyping import Bool, Int64, Shaped

from aurank.errors import UserError
from aurank.evaluation.bootstrap import Resampling
from aurank.evaluation.engine.problem import NO_GROUP, Embeddings
from aurank.evaluation.engine.ranks import Ranks
from aurank.evaluation.index.neighbours import Index
from aurank.evaluation.metrics import check_names, mean, query_values, sorted_cuts, split_cut
from aurank.evaluation.report import RUN, Report
from aurank.files import reading, replacing, require_ordinary

Table = dict[str, dict[str, float]]  # a number for each document of each query


def read_run(path: Path) -> Table:
    return _read(path, columns=6, number=4, what="run (query Q0 document rank score tag)")


def read_qrels(path: Path) -> Table:
    return _read(path, columns=4, number=3, what="qrels (query 0 document relevance)")


def _read(path: Path, *, columns: int, number: int, what: str) -> Table:
    table: Table = {}
    require_ordinary(path)
    # A mark of the byte order is no part of the first name.
    with reading(path, f"a {what}"), path.open(encoding="utf-8-sig") as file:
        for count, line in enumerate(file, start=1):
            parts = line.split()
            if not parts:
                continue
            value = math.nan
            with contextlib.suppress(IndexError, ValueError):
                value = float(parts[number])
            is_line = len(parts) == columns and math.isfinite(value)
            if not is_line or parts[2] in table.get(parts[0], {}):
                wrong = "lists a document twice for a query" if is_line else f"is no line of a {what}"
                raise UserError(f"{path}, line {count}: {line.strip()[:80]!r} {wrong}")
            table.setdefault(parts[0], {})[parts[2]] = value
    if not table:
        raise UserError(f"{path} is empty: expected a {what}")
    return table


def evaluate_run(
    run: Table,
    qrels: Table,
    *,
    recall_at: Iterable[int] = (1, 10, 100, 1000),
    metrics: Iterable[str] | None = None,
    resampling: Resampling | None = None,
) -> Report:
    """Return the report of a run over the queries of which qrels name a relevant document, with relevance above 0.

    What the run does not list was never retrieved, so metrics are cut at most where the longest list ends, at depth D:
    `map@D(r)` and `mrr@D` are trec_eval's map and recip_rank, `coverage@k` its recall_k, and `ndcg@D` its ndcg_cut_D.
    Equal scores count against the run, as in `evaluate`; trec_eval goes by the documents' names.
    """
    depth = max(map(len, run.values()))
    cuts = tuple(k for k in sorted_cuts(recall_at) if k <= depth)
    usual = [f"{name}@{k}" for name in ("recall", "precision", "coverage") for k in cuts]
    names = check_names([*usual, f"map@{depth}(r)", f"ndcg@{depth}", f"mrr@{depth}"] if metrics is None else metrics)
    if deeper := [name for name in names if not 0 < split_cut(name)[1] <= depth]:
        raise UserError(
            f"{deeper[0]} cannot be told from a run whose longest list has {depth} documents: name metrics that are "
            f"cut at 1 to {depth}, such as map@{depth}(r)"
        )
    judged = {query: {name: grade for name, grade in grades.items() if grade > 0} for query, grades in qrels.items()}
    queries = [query for query, grades in judged.items() if grades]
    if not run.keys() & set(queries):
        counted = f"{len(queries)} of the {len(qrels)} queries of the qrels have a document with relevance above 0"
        raise UserError(f"{counted}, and the run names none of these: check that they belong together")
    documents = {name for table in (run, qrels) for names in table.values() for name in names}
    ranks = _ranks(run, {query: judged[query] for query in queries}, depth, len(documents))
    values = {name: query_values(ranks, name) for name in names}
    lacking = len(set(queries) - run.keys())
    notes = [f"of a run with up to {depth:,} documents a query: what it does not list counts as never retrieved"]
    notes += ["documents are those that run and qrels name"]
    notes += [f"{lacking:,} of the queries are not in the run, and count as 0"] if lacking else []
    return Report(
        metrics={name: mean(column) for name, column in values.items()},
        per_query={"query": ranks.query, "path": np.array(queries), "num_positives": ranks.num_positives, **values},
        num_queries=len(qrels),
        num_lone_queries=len(qrels) - len(queries),
        num_gallery=len(documents),
        ties="pessimistic",
        tie_bounds=None,
        distance=RUN,
        notes=notes,
    ).resampled(resampling)


def _ranks(run: Table, judged: Table, depth: int, documents: int) -> Ranks:
    higher, tied, at_least, grades = [], [], [], []
    for query, relevant in judged.items():
        listed = run.get(query, {})
        positives = np.sort([-listed[name] for name in relevant if name in listed])
        negatives = np.sort([-score for name, score in listed.items() if name not in relevant])
        ahead, level = (np.searchsorted(negatives, positives, side=side) for side in ("left", "right"))
        missed = len(relevant) - len(positives)
        higher += [*ahead.tolist(), *[depth] * missed]
        tied += [*(level - ahead).tolist(), *[0] * missed]
        at_least += [*np.searchsorted(positives, positives, side="right").tolist(), *[len(relevant)] * missed]
        # Of equal scores the least relevant first; what is not listed is behind all, in whatever order.
        order = sorted(relevant, key=lambda name: (-listed.get(name, -math.inf), relevant[name]))
        grades += [relevant[name] for name in order]
    whole = np.arange(len(judged))
    return Ranks(
        query=whole,
        labels=whole,
        num_negatives=np.full(len(judged), depth),
        offset=np.cumsum([0, *map(len, judged.values())]),
        positive=np.zeros(len(higher), np.int64),
        higher=np.array(higher, dtype=np.int64),
        tied=np.array(tied, dtype=np.int64),
        at_least=np.array(at_least, dtype=np.int64),
        num_queries=len(judged),
        num_gallery=documents,
        relevance=np.array(grades, dtype=np.float64),
    )


def run_names(names: Iterable[Any]) -> list[str]:
    """Return the names as runs and qrels hold them; UserError unless they are all different."""
    texts = [str(name).encode("utf-8", "backslashreplace").decode() for name in names]
    written = [re.sub(r"[\s%]", lambda blank: quote(blank[0]), text) for text in texts]
    if len(set(written)) < len(written) or not all(written):
        raise UserError("a run needs a name for each row, all different: give paths or ids")
    return written


def write_run(
    run: Path,
    qrels: Path,
    embeddings: Embeddings,
    labels: Shaped[np.ndarray, " row"],
    names: Iterable[Any],
    *,
    is_query: Bool[np.ndarray, " row"],
    is_gallery: Bool[np.ndarray, " row"],
    groups: Int64[np.ndarray, " row"],
    distance: str = "cosine",
    depth: int = 1000,
) -> None:
    written = run_names(names)
    queries, gallery = np.flatnonzero(is_query), np.flatnonzero(is_gallery)

    def others(query: int, rows: Int64[np.ndarray, " place"]) -> Int64[np.ndarray, " kept"]:
        own = (labels[rows] == labels[query]) & (groups[rows] == groups[query]) & (groups[query] != NO_GROUP)
        return np.asarray(rows[~own & (rows != query)])

    camera = groups[gallery] != NO_GROUP
    pairs = np.stack([np.unique(labels, return_inverse=True)[1][gallery], groups[gallery]], axis=1)[camera]
    hidden = int(np.unique(pairs, axis=0, return_counts=True)[1].max(initial=0))
    index = Index.build(embeddings[gallery], "Flat", distance=distance, device="cpu")
    with replacing(run) as file:
        for rows, found in index.search_batches(embeddings[queries], min(depth + hidden + 1, len(gallery))):
            for line, query in enumerate(queries[rows].tolist()):
                score = dict(zip(gallery[found.row[line]].tolist(), found.similarity[line].tolist(), strict=True))
                kept = others(query, gallery[found.row[line]])[:depth]
                file.writelines(
                    f"{written[query]} Q0 {written[row]} {rank} {score[row]:.9g} aurank\n".encode()
                    for rank, row in enumerate(kept.tolist(), start=1)
                )
    order = np.argsort(labels[gallery], kind="stable")
    ordered = labels[gallery][order]
    with replacing(qrels) as file:
        for query in queries.tolist():
            first, last = (np.searchsorted(ordered, labels[query], side=side) for side in ("left", "right"))
            relevant = others(query, gallery[order[first:last]]).tolist()
            file.writelines(f"{written[query]} 0 {written[row]} 1\n".encode() for row in relevant)
