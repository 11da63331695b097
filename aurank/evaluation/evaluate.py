"""One call from embeddings and labels to a report."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Float64, Shaped

from aurank.arrays import Arrays
from aurank.distributed import ProcessGroup
from aurank.errors import OptionRule, UserError, check_options
from aurank.evaluation.bootstrap import Resampling
from aurank.evaluation.calibration import pooled_metrics
from aurank.evaluation.engine.nearest import nearest_rows
from aurank.evaluation.engine.ranks import RankBlocks, Ranks, RankSource, query_columns
from aurank.evaluation.index.approximate import describe_index, index_report
from aurank.evaluation.index.neighbours import Index
from aurank.evaluation.inputs import (
    Devices,
    Integers,
    ProgressCallback,
    RetrievalProblem,
    as_array,
    as_matrix,
    choose_devices,
    group_texts,
    note_of_equal_rows,
    numbered,
    require_at_least,
)
from aurank.evaluation.metrics import (
    MACRO,
    POINTS,
    TIES,
    Classes,
    MeanCurve,
    average,
    average_precision,
    check_names,
    default_metrics,
    first_rank,
    hierarchical_names,
    last_rank,
    mean,
    pooled_names,
    query_values,
    sorted_cuts,
    split_cut,
)
from aurank.evaluation.postprocessing.postprocessing import Codes, PostProcessing, Processed
from aurank.evaluation.relevance import Rule, graded, hierarchical_values, matched
from aurank.evaluation.report import FIRST, Report
from aurank.evaluation.shards import require_equal
from aurank.names import require_choice

BOUNDS = ("pessimistic", "optimistic")  # the rules for ties with the lowest and the highest values
HIERARCHICAL_METRICS, POOLED_METRICS = "a metric of super-categories", "a metric of all pairs"
LIST_STEP, RESCORED_CODES = "a step that scores lists anew", "rescored codes"


class EvaluateOptions(TypedDict, total=False):
    """How embeddings are measured: arguments of `aurank.evaluate`; a checkpoint's configuration says those left out.

    Attributes:
        metrics: metrics in place of the usual ones, such as mauprc,mrr@10.
        recall_at: the k of Recall@k and precision@k, such as 1,10,100.
        distance: cosine (the default), dot or euclidean.
        positives: how sets of labels make positives: any, equal, jaccard (the default) or a least index such as 0.5.
        ties: how equal scores count: threshold (the default), optimistic or pessimistic.
        index: measure a faiss index too, such as IVF1024,Flat.
        backend: what counts: auto (the default), numba or torch; to the same digits.
        max_memory: bound on the working memory, such as 1GiB.
        neighbours: nearest images to keep of each query; with a page 10, else none.
        resampling: asks for bootstrap intervals.
        codes: asks for coarser embeddings too.
        progress: called as progress(done, total) while queries are ranked.
    """

    metrics: Iterable[str] | None
    recall_at: Iterable[int]
    distance: str
    positives: str | float | None
    ties: str
    index: str | None
    backend: str
    max_memory: str | int
    neighbours: int
    resampling: Resampling | None
    codes: Codes | None
    progress: ProgressCallback | None


RULES = (
    OptionRule(HIERARCHICAL_METRICS, needs=("super_labels",)),
    OptionRule(LIST_STEP, excludes=(HIERARCHICAL_METRICS, POOLED_METRICS), why="other pairs keep their scores"),
    OptionRule(RESCORED_CODES, excludes=(HIERARCHICAL_METRICS, POOLED_METRICS), why="other pairs keep their scores"),
    OptionRule("index", excludes=(LIST_STEP,), why="an index is measured by its own lists"),
    OptionRule("positives by labels", excludes=('distributed="shards"',), why="each process needs the labels of all"),
    OptionRule("codes", excludes=("steps by neighbours",), why="a code is made of a single row"),
    OptionRule(
        "several processes",
        excludes=(HIERARCHICAL_METRICS, "index", "neighbours", "postprocess", "codes"),
        why="call evaluate on one rank, with distributed=False",
    ),
)


def evaluate(
    embeddings: Arrays,
    labels: Integers | None = None,
    gallery: Arrays | None = None,
    gallery_labels: Integers | None = None,
    *,
    ids: Integers | None = None,
    gallery_ids: Integers | None = None,
    groups: Integers | None = None,
    gallery_groups: Integers | None = None,
    super_labels: Integers | None = None,
    gallery_super_labels: Integers | None = None,
    positives: Integers | Rule | None = None,
    relevance: Integers | None = None,
    ignore: Integers | None = None,
    junk: Integers | None = None,
    distance: str = "cosine",
    recall_at: Iterable[int] = (1, 10, 100, 1000),
    metrics: Iterable[str] | None = None,
    ties: str = "threshold",
    resampling: Resampling | None = None,
    postprocess: PostProcessing | str | None = None,
    codes: Codes | None = None,
    neighbours: int = 0,
    index: str | Index | None = None,
    backend: str = "auto",
    device: Devices = None,
    max_memory: int | str = "1GiB",
    distributed: bool | str | None = None,
    progress: ProgressCallback | None = None,
) -> Report:
    """Return the report of how well embeddings retrieve what belongs to them, over the full gallery.

    Equal labels make a positive, or sets of labels that meet. Without a gallery the set is its own, and each row is
    left out of its own result. Queries without a positive are skipped and counted. `ids`, `groups`, `positives`,
    `ignore`, `junk` and their gallery sides are the fields of `RetrievalProblem`; here labels, ids and groups may be
    text as well. `device`, `max_memory`, `distributed` and `progress` are as for `positive_ranks`.

    Args:
        embeddings: queries [query, dim] of any real type: tensors, arrays of NumPy (memory-mapped too) and of other
            libraries (by `__dlpack__` or `__array__`), data frames, lists.
        labels: an integer or text for each row; or sets of such: lists, or a matrix of truth values [row, class].
        groups: such as the camera of each row; none where it is −1, None, NaN or "". So are super_labels.
        super_labels: the super-category of each row, for metrics such as h_ap and super:mauprc.
        positives: pairs (query row, gallery row); or how labels make them: by "any" common label, "equal" sets, a least
            Jaccard index, "jaccard" (the default of sets: it is the gain in nDCG), or a function of the labels of
            queries and of the gallery, which returns for each pair a truth value or a gain from 0 to 1.
        relevance: for each pair in `positives` a number above 0, its gain in nDCG; other metrics count pairs alike.
        distance: "cosine", "dot" or "euclidean".
        recall_at: every k for recall@k and precision@k; those beyond the gallery are left out, and a note says so.
        metrics: names of docs/metrics.md, in place of the usual ones; there k may exceed the gallery.
        ties: how average precision treats equal scores: "threshold", or "optimistic" and "pessimistic", its bounds.
        resampling: asks for bootstrap intervals by class.
        postprocess: steps to measure behind, such as "query_expansion:k=5, k_reciprocal"; those that learn are fitted
            before. `report.postprocessing["plain"]` has the metrics without.
        codes: widths and precisions to measure beside (`report.codes`); of embeddings behind `postprocess`.
        neighbours: length of each query's list of nearest gallery rows to keep (`report.neighbours`), in one process.
        index: a faiss factory string, or an Index that holds the gallery, to be measured beside the exact numbers.
        backend: "auto", "numba" or "torch"; all count the same digits.

    Raises:
        UserError: (a ValueError) for what cannot be evaluated, no query with a positive included.

    Example:
        >>> import aurank, numpy as np
        >>> rows = np.array([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1], [0.0, 1.0]])
        >>> report = aurank.evaluate(rows, ["cat", "cat", "dog", "dog"], recall_at=(1,))
        >>> round(report.mauprc, 4), report.metrics["recall@1"]
        (0.4583, 0.0)
    """
    require_choice("ties", ties, TIES)
    require_at_least(0, neighbours=neighbours)
    names, cuts = None if metrics is None else check_names(metrics, labelled=labels is not None), sorted_cuts(recall_at)
    sets, listed, grades = matched(labels, gallery_labels, positives, relevance)
    if sets:
        labels, gallery_labels = (*(side.texts() for side in sets), None)[:2]
    steps = PostProcessing.parse(postprocess, distance=distance) if isinstance(postprocess, str) else postprocess
    group = ProcessGroup(distributed)
    options = {
        HIERARCHICAL_METRICS: bool(hierarchical_names(names)),
        POOLED_METRICS: bool(pooled_names(names)),
        LIST_STEP: steps is not None and steps.list_step is not None,
        RESCORED_CODES: codes is not None and codes.rescore is not None,
        "steps by neighbours": steps is not None and not steps.is_of_rows,
        "several processes": group.size > 1,
        "neighbours": neighbours > 0,
        "positives by labels": listed is not None and listed is not positives,
        'distributed="shards"': distributed == "shards",
    }
    arguments = {"super_labels": super_labels, "index": index, "postprocess": steps, "codes": codes}
    check_options({**options, **{name: value is not None for name, value in arguments.items()}}, RULES)
    if steps is not None:
        steps.check_ready(distance)
    if group.size > 1:
        require_equal(group, relevance=grades)
    labels, gallery_labels, classes = numbered(labels, gallery_labels, name="label", gather=group.all_gather)
    grouping: dict[str, Any] = {"gather": group.all_gather, "may_lack": True}
    above, gallery_above, _ = numbered(super_labels, gallery_super_labels, name="super_label", **grouping)
    groups, gallery_groups, group_names = numbered(groups, gallery_groups, name="group", **grouping)
    ids, gallery_ids, _ = numbered(ids, gallery_ids, name="id", gather=group.all_gather)
    embeddings = as_matrix(embeddings, side="query")
    gallery = None if gallery is None else as_matrix(gallery, side="gallery")
    plain_problem = RetrievalProblem(
        embeddings, labels, gallery, gallery_labels, ids, gallery_ids, groups, gallery_groups, listed, ignore, junk
    )
    devices = choose_devices(device, embeddings)
    first = devices[0]
    counting: dict[str, Any] = {"backend": backend, "device": devices, "progress": progress, "max_memory": max_memory}

    def measured(
        problem: RetrievalProblem, processed: Processed | None = None, resampling: Resampling | None = None
    ) -> tuple[RankBlocks, Report]:
        ranks = RankBlocks(problem, distance=distance, distributed=distributed, **counting)
        if not len(ranks.query):
            remedy = "no other row there has a query's label; check that labels and embeddings belong together"
            if positives is not None and problem.positives is positives:
                remedy = "the pairs in positives are none, or all left out"
            counts = f"{ranks.num_queries} queries has a positive among the {ranks.num_gallery} gallery rows"
            raise UserError(f"none of the {counts}: {remedy}")
        if processed is not None:
            ranks = processed.finish(ranks, max_memory=max_memory, progress=progress)
        notes = []
        if grades is not None and problem.positives is not None:
            ranks = ranks.changed(graded(problem.positives, grades, ranks.num_gallery))
            notes.append("nDCG is of graded relevance, with linear gain")
        fitting = fitting_cuts(cuts, ranks)
        if names is None and fitting != cuts:
            beyond = ", ".join(str(k) for k in cuts if k not in fitting)
            notes.append(f"recall and precision at {beyond} are left out: no gallery is that large")
        pooled: dict[str, float] = {}
        if of_pairs := pooled_names(names):
            how: dict[str, Any] = {"device": first, "max_memory": max_memory, "distributed": distributed}
            pooled, few = pooled_metrics(problem, of_pairs, distance=distance, **how)
            notes += few
        columns: dict[str, np.ndarray] = {}
        if above is not None:
            how = {"ties": ties, "distance": distance, **counting}
            columns = hierarchical_values(problem, (above, gallery_above), ranks.query, names or (), **how)
        query_labels = None if problem.labels is None else ranks.labels
        report = build_report(
            ranks,
            recall_at=cuts,
            ties=ties,
            distance=distance,
            labels=query_labels if query_labels is None or classes is None else classes[query_labels],
            metrics=names,
            pooled=pooled,
            columns=columns,
            notes=notes,
            resampling=resampling,
        )
        return ranks, replace(report, tags=sets[0].tags(ranks.query)) if sets else report

    problem, processed = plain_problem, None
    ranks, report = measured(problem, resampling=None if steps else resampling)
    hits = report.per_query["query"], report.per_query["first_positive"]
    remarks = [] if group.size > 1 or gallery is None else note_of_equal_rows(problem, *hits)
    if not report.per_query["num_negatives"].any():
        remarks.append("no query has a negative (one class alone?), so every order is perfect by definition")
    if steps is not None:
        processed, plain = steps.apply(problem, device=str(first)), report.metrics
        problem = processed.problem
        ranks, report = measured(problem, processed, resampling)
        about = {"steps": str(steps), "transductive": steps.transductive, "fitted_rows": steps.fitted_rows}
        report = replace(report, postprocessing={**about, "plain": plain}, notes=[*report.notes, steps.note])
    if codes is not None:
        shown = names or [name for name in report.metrics if name == "mauprc" or name.startswith("recall@")]
        table = []
        for code, coded in codes.each(problem, distance=distance, device=str(first)):
            values = measured(coded.problem, coded)[1].metrics
            table.append({**code, "metrics": {name: values[name] for name in shown}})
        report = replace(report, codes=table)
    if neighbours:
        memory: dict[str, Any] = {"max_memory": max_memory, "progress": progress}
        if processed is None:
            nearest = nearest_rows(problem, neighbours, distance=distance, device=first, **memory)
        else:
            nearest = processed.nearest(neighbours, **memory)
        columns = labels if gallery is None else gallery_labels
        of_rows = None if columns is None else as_array(columns)
        facts = {} if of_rows is None else {"label": of_rows if classes is None else classes[of_rows]}
        report = replace(report, neighbours=nearest, gallery=facts)
    if groups is not None and group.size == 1:
        gallery_texts = None if gallery_groups is None else group_texts(gallery_groups, group_names)
        report = report.named(groups=group_texts(groups, group_names), gallery_groups=gallery_texts)
    if index is not None:
        named_cuts = tuple(sorted({k for name in names or () if (k := split_cut(name.removeprefix(MACRO))[1])}))
        index_cuts = named_cuts or fitting_cuts(cuts, ranks) or cuts
        exact = {"mauprc": mean(report.per_query["ap"])}
        exact |= {f"recall@{k}": mean((report.per_query["first_rank"] <= k).astype(np.float64)) for k in index_cuts}
        how: dict[str, Any] = {"ties": ties, "distance": distance, "device": first, "progress": progress}
        near = index_report(problem, exact, index=index, recall_at=index_cuts, **how)
        report = replace(report, approximation=near, notes=[*report.notes, describe_index(near)])
    return replace(report, notes=[*report.notes, *remarks])


def fitting_cuts(recall_at: tuple[int, ...], ranks: RankSource) -> tuple[int, ...]:
    longest = int((ranks.num_positives + ranks.num_negatives).max())
    return tuple(k for k in recall_at if k <= longest)


def build_report(
    ranks: RankSource,
    *,
    recall_at: tuple[int, ...] = (1, 10, 100, 1000),
    ties: str = "threshold",
    distance: str = "cosine",
    labels: Shaped[np.ndarray, " query"] | None = None,
    metrics: Iterable[str] | None = None,
    pooled: Mapping[str, float] = MappingProxyType({}),
    columns: Mapping[str, Float64[np.ndarray, " query"]] = MappingProxyType({}),
    notes: Iterable[str] = (),
    resampling: Resampling | None = None,
) -> Report:
    """Return the report of ranks, with metrics `pooled` over all pairs and `columns` that ranks do not tell."""
    requested = default_metrics(fitting_cuts(recall_at, ranks)) if metrics is None else metrics
    names = check_names(requested, labelled=labels is not None)
    of_query = dict.fromkeys(["mauprc", *(name.removeprefix(MACRO) for name in names if name not in pooled)])
    curve = MeanCurve(POINTS, len(ranks.query), ties=ties)

    def compute(block: Ranks) -> dict[str, np.ndarray]:
        curve.add(block)
        values = {name: query_values(block, name, ties=ties) for name in of_query if name not in columns}
        values |= {rule: average_precision(block, ties=rule) for rule in BOUNDS}
        if block.best_score is not None:
            values |= {"first_positive": block.positive[block.offset[:-1]], "first_score": block.best_score}
        return {**values, "first_rank": first_rank(block), "last_rank": last_rank(block)}

    computed = query_columns(ranks, compute)
    values = {name: columns[name] if name in columns else computed[name] for name in of_query}
    classes = None if labels is None else Classes.of(labels)
    report = Report(
        metrics={
            name: pooled[name] if name in pooled else average(name, values[name.removeprefix(MACRO)], classes)
            for name in names
        },
        per_query={
            "query": ranks.query,
            **({} if labels is None else {"label": labels}),
            "num_positives": ranks.num_positives,
            "num_negatives": ranks.num_negatives,
            "first_rank": computed["first_rank"],
            "last_rank": computed["last_rank"],
            **{name: computed[name] for name in FIRST if name in computed},
            "ap": values["mauprc"],
            **{name: column for name, column in values.items() if name != "mauprc"},
        },
        num_queries=ranks.num_queries,
        num_lone_queries=ranks.num_lone_queries,
        num_gallery=ranks.num_gallery,
        distance=distance,
        ties=ties,
        tie_bounds=(mean(computed[BOUNDS[0]]), mean(computed[BOUNDS[1]])),
        notes=list(notes),
        curve=curve.curve(),
    )
    if resampling is None:
        return report
    try:
        return report.with_intervals(resampling.resamples, resampling.seed, resampling.level)
    except UserError as error:  # a single class: the other numbers remain
        return replace(report, notes=[*report.notes, f"no intervals: {error}"])
