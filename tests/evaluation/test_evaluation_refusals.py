"""What evaluation refuses: each call, and the name that its message holds."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from testing.listing import ranks_of, read

import aurank
from aurank.errors import UserError
from aurank.evaluation import (
    AccuracyCalculator,
    Codes,
    Index,
    PostProcessing,
    Resampling,
    RetrievalProblem,
    calibrate,
    few_shot,
    metrics,
    probe,
    prompts,
    two_way,
    zero_shot,
)
from aurank.evaluation.evaluate import build_report
from aurank.evaluation.postprocessing import GallerySearch, processed_gallery

ROWS, LABELS = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32), np.arange(60) // 2
PROBLEM = RetrievalProblem(ROWS, LABELS)
BAD = np.where(np.arange(60)[:, None] == 7, np.nan, ROWS)
ZERO = np.where(np.arange(60)[:, None] == 3, np.float32(0), ROWS)
POORLY = np.array([[1.0, 0.0], [0.8, 0.6], [1.0, 0.01], [0.8, 0.61]])
SEARCH = GallerySearch(Index.build(ROWS, device="cpu"), ROWS, ROWS)


def evaluate(**options: Any) -> Any:
    return aurank.evaluate(ROWS, LABELS, **options)


def fit(text: str, rows: np.ndarray = ROWS) -> PostProcessing:
    return PostProcessing.parse(text).fit(rows)


def super_labels(**options: Any) -> Any:
    return evaluate(**{"metrics": ["h_ap"], "super_labels": LABELS // 5, **options})


def index(factory: str = "Flat", rows: np.ndarray = ROWS, **options: Any) -> Index:
    return Index.build(rows, factory, device="cpu", **options)


def accuracy(*arrays: Any) -> Any:
    return AccuracyCalculator().get_accuracy(*arrays)


FOUR = np.eye(4, dtype=np.float32)
PAIR = [[0, 1]]
CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"labels": [0, 0, 1]}, "query labels have shape .3,"),
    ({"labels": [0.0, 0.0, 1.0, 1.0]}, "query labels are float64"),
    ({"labels": np.array([2**63, 1, 1, 1], np.uint64)}, "query labels are uint64"),
    ({"labels": ["a", "a", "b", 1]}, "query labels are <U21"),
    ({"labels": None}, "labels are missing"),
    ({"gallery": FOUR, "gallery_labels": list("abcd")}, "some labels are text"),
    ({"labels": [0, 1, 2, 3]}, "none of the 4 queries has a positive"),
    ({"embeddings": np.where(FOUR > 2, FOUR, np.nan)}, "row 0 of the query embeddings holds NaN"),
    ({"embeddings": FOUR * [[1], [1], [0], [1]]}, "row 2 of the query embeddings is all zeros"),
    ({"embeddings": FOUR[0]}, "query embeddings have type float32 and shape"),
    ({"embeddings": FOUR.astype(str)}, "query embeddings have type <U"),
    ({"gallery": FOUR}, "labels and gallery_labels belong"),
    ({"gallery": FOUR[:, :2], "gallery_labels": [0] * 4}, "4 columns and the gallery has 2"),
    ({"gallery": FOUR, "gallery_labels": [0] * 4, "ids": [1, 2, 3, 4]}, "ids and gallery_ids"),
    ({"gallery": FOUR, "gallery_labels": [0] * 4, "groups": [1, 2, 3, 4]}, "groups and gallery_groups"),
    ({"gallery": FOUR, "gallery_labels": [0] * 4, "ids": [1, 1, 3, 4], "gallery_ids": range(4)}, "query ids name .* 1"),
    ({"embeddings": np.ma.masked_equal(FOUR, 1)}, "query embeddings are a masked array with 4 entries"),
    ({"positives": [[0, 4]]}, "positives names gallery row 4"),
    ({"ignore": [0, 1]}, "pairs in ignore have shape"),
    ({"junk": [4]}, "junk names gallery row 4"),
    ({"junk": [True] * 4}, "all 4 gallery rows are junk"),
    ({"relevance": [1.0]}, "relevance .*each pair in positives"),
    ({"positives": PAIR, "relevance": [1.0, 2.0]}, "relevance has shape"),
    ({"positives": PAIR, "relevance": [0]}, "a number above 0 for each pair"),
    ({"positives": PAIR * 2, "relevance": [1, 1]}, "positives names a pair twice"),
    ({"recall_at": (0,)}, "recall_at"),
    ({"distance": "manhattan"}, "distance must be one of cosine, dot, euclidean"),
    ({"ties": "random"}, "ties must be one of"),
    ({"max_memory": "lots"}, "max_memory"),
    ({"device": "quantum"}, "device must name"),
    ({"neighbours": -1}, "neighbours must be 0 or more"),
]
REFUSED: dict[str, list[tuple[Callable[[], Any], str]]] = {
    "evaluate": [
        (partial(aurank.evaluate, **{"embeddings": FOUR, "labels": [0, 0, 1, 1], **change}), message)
        for change, message in CHANGES
    ],
    "metrics": [
        (lambda: metrics.average_precision(ranks_of([read("+ -")]), ties="lucky"), "ties .*'lucky'"),
        (lambda: build_report(ranks_of([read("+ -")]), metrics=["macro:mauprc"]), "macro:"),
        (lambda: metrics.check_names(["mauprc", "recal@20"]), "'recal@20'.*did you mean 'recall@20'"),
        (lambda: metrics.check_names(["map@10"]), r"'map@10'.* did you mean 'map@10\(r\)' or .*'map@10\(min\)'"),
        (lambda: metrics.check_names(["macro:nDCG@5x"]), "'macro:nDCG@5x'.*did you mean 'ndcg@5'"),
        (lambda: metrics.check_names(["recall@0"]), "'recall@0'.*did you mean 'recall@1'"),
        (lambda: metrics.check_names(["fid"]), r"'fid'.*recall@\{k\}.*macro:NAME"),
        (lambda: evaluate(metrics=["tpr@fpr=1"]), "unknown metric .* a rate between 0 and 1"),
        (lambda: evaluate(metrics=["macro:tpr@fpr=1e-3"]), "and no prefix"),
        (lambda: evaluate(metrics=["tpr@fpr=0.1"], postprocess="k_reciprocal"), "a metric of all pairs"),
        (lambda: evaluate(metrics=["tpr@fpr=0.1"]).with_intervals(), "add mauprc"),
    ],
    "super-categories": [
        (lambda: super_labels(super_labels=None), "needs super_labels"),
        (lambda: super_labels(super_labels=np.arange(60)), "super_labels of query 0"),
        (lambda: super_labels(gallery_super_labels=LABELS), "gallery_super_labels"),
        (lambda: super_labels(positives=[(0, 1)]), "positives"),
        (lambda: super_labels(postprocess="k_reciprocal"), "a metric of super-categories"),
    ],
    "names": [
        (lambda: aurank.evaluate(ROWS[:4], np.array(["a", "a", "", ""])), r"missing \(''\)"),
        (lambda: aurank.evaluate(ROWS[:4], np.array(["a", "a", "nan", "nan"])), r"missing \('nan'\)"),
    ],
    "intervals": [
        (lambda: Resampling(resamples=99), "resamples .* 99"),
        (lambda: Resampling(level=0.999), "0.999 and 1000"),
        (lambda: aurank.evaluate(ROWS, LABELS * 0).with_intervals(), "2 classes or more .* 1 class"),
    ],
    "two_way": [
        (lambda: two_way(ROWS[:4], ROWS[:3], [0, 1, 2, 3]), "4 images for 3 texts"),
        (lambda: two_way(ROWS[:4], ROWS[:4], [0, 1, 2, 3], text_ids=[0, 1]), "text ids"),
        (lambda: zero_shot(ROWS[:2], [0, 7], torch.from_numpy(ROWS[:7, None])), "label 7"),
        (lambda: prompts(["cat"], ["a photo"]), r"\['a photo'\]"),
    ],
    "post-processing": [
        (lambda: PostProcessing.parse("whitn"), "'whitn'.* 'whiten'"),
        (lambda: PostProcessing.parse("whiten:dims=4"), "of whiten .*'dims'.* 'dim'"),
        (lambda: PostProcessing.parse("whiten:dim=4.5"), "whiten: dim: .*'4.5'"),
        (lambda: PostProcessing.parse("query_expansion, center"), "come first"),
        (lambda: PostProcessing.parse("query_expansion", distance="dot"), "query_expansion .* dot"),
        (lambda: fit("whiten:dim=8", ROWS[:6]), "whiten:dim=8: .* 5 of 8"),
        (lambda: fit("whiten", BAD), "row 7 of the training"),
        (lambda: PostProcessing.parse("whiten").apply(PROBLEM), "'whiten' has to be fitted"),
        (lambda: fit("whiten", ROWS[:, :5]).apply(PROBLEM), "whiten .* width 5, .* 8"),
        (lambda: PostProcessing.parse("truncate:dim=9").apply(PROBLEM), "truncate: dim .* 9"),
        (lambda: evaluate(postprocess=PostProcessing.parse("binary"), distance="dot"), "cosine, not for dot"),
        (lambda: evaluate(postprocess="k_reciprocal", index="Flat"), "index"),
        (lambda: evaluate(postprocess="query_expansion", codes=Codes()), "codes"),
        (lambda: evaluate(codes=Codes(dims=(17,))), "truncate: dim .* 17"),
        (lambda: Codes(precisions=("int4",)), "'int4'"),
        (lambda: processed_gallery(fit("query_expansion, database_augmentation"), ROWS), "before query_expansion"),
        (lambda: SEARCH.nearest(ROWS[:, :7], 3), "7 columns and the gallery has 8"),
    ],
    "probe": [
        (lambda: probe(ROWS, LABELS * 0), "2 training rows or more: there are 1$"),
        (lambda: probe(ROWS, LABELS * 0, ROWS, LABELS), "1 training rows or more: there are 1"),
        (lambda: probe(ROWS, LABELS, ROWS, LABELS + 99), "none of them is among the test rows"),
        (lambda: probe(ROWS, LABELS[:9]), "training labels have shape .9,."),
        (lambda: probe(ROWS, LABELS, ROWS), "test_labels"),
        (lambda: probe(ROWS, LABELS, BAD, LABELS), "row 7 of the test .*NaN"),
        (lambda: probe(ZERO, LABELS), "row 3 of the training .* all zeros"),
        (lambda: probe(ROWS, LABELS, protocol="linear_probe"), "single training row"),
        (lambda: few_shot(ROWS, LABELS, within=LABELS, ways=2), "it needs 2 classes of one super-category of 2 images"),
        (lambda: few_shot(ROWS, LABELS, groups=LABELS, ways=2), "it needs 2 classes, by two cameras, of 2 images"),
        (lambda: few_shot(BAD, LABELS), "row 7 of the test .*NaN"),
    ],
    "calibrate": [
        (lambda: calibrate(PROBLEM), "precision None"),
        (lambda: calibrate(PROBLEM, precision=0.9, false_match_rate=0.1), "precision 0.9 and false-match rate 0.1"),
        (lambda: calibrate(PROBLEM, false_match_rate=1.0), "rate 1.0"),
        (lambda: calibrate(PROBLEM, false_match_rate=1e-7), "3,480 negative pairs is 0.00029"),
        (lambda: calibrate(RetrievalProblem(POORLY, [0, 0, 1, 1]), precision=0.9), "0.9: .* 0.4000, at 0.8"),
        (lambda: calibrate(RetrievalProblem(POORLY, [0, 0, 1, 1]), false_match_rate=0.13), "rate=0.13"),
        (lambda: calibrate(RetrievalProblem(POORLY, [0, 1, 2, 3]), precision=0.9), "no query has a positive"),
    ],
    "index": [
        (lambda: Index(8, "Rubbish", device="cpu"), "'Rubbish' cannot be made for 8 dimensions"),
        (lambda: Index(8, "PQ3", device="cpu"), "multiple of"),
        (lambda: Index(8, "Flat; nprobe=3", device="cpu"), "nprobe"),
        (lambda: Index(8, "IVF4,Flat", device="cpu").add(ROWS), "not trained"),
        (lambda: index().search(ROWS[:, :5], 3), "5 columns and the index has 8"),
        (lambda: index("IVF4,Flat; nprobe=0").search(ROWS, 3), "nprobe > 0"),
        (lambda: index("IVF512,Flat"), "trained on 60 rows"),
        (lambda: index("IVF4,PQ4x4", training_rows=3), "trained on 3 rows"),
        (lambda: index().search(ROWS, 0), "k must be 1 or more, got 0"),
        (lambda: Index(8, device="cpu").search(ROWS, 3), "the index is empty"),
        (lambda: Index(8, distance="cos", device="cpu"), "distance .* cosine"),
        (lambda: index("IDMap,Flat"), "cannot be added.*IDMap"),
        (lambda: Index(8, device="cuda:99"), "device 'cuda:99'"),
    ],
    "accuracy": [
        (lambda: AccuracyCalculator(include=("recal_at_1",)), "include .*'recal_at_1', .*did you mean 'recall_at_1'"),
        (lambda: AccuracyCalculator(k=0), "k must be .*got 0"),
        (lambda: accuracy(ROWS, LABELS, ROWS[::-1], LABELS[::-1], True), "first rows of the reference"),
        (lambda: accuracy(ROWS, LABELS, ROWS), "reference labels"),
        (lambda: accuracy(ROWS, torch.from_numpy(LABELS).float() + 2**24), "query labels are float32 .* 16777216"),
        (lambda: accuracy(ROWS, LABELS[1:]), "for 60 query embeddings"),
        (lambda: accuracy(BAD, LABELS, np.concatenate([BAD, ROWS]), [*LABELS, *LABELS], True), "row 7 of the query"),
    ],
}


@pytest.mark.parametrize("subject", REFUSED)
def test_a_mistake_is_told_in_one_line_that_names_it(subject: str) -> None:
    for call, name in REFUSED[subject]:
        with pytest.raises(UserError, match=name) as caught:
            call()
        assert "\n" not in str(caught.value)
