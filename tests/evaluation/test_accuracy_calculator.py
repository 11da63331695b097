"""The calculator equals PML's wherever PML's is right, stays right where it is not, and works inside PML's testers."""

from typing import Any

import faiss
import numpy as np
import pytest
import torch
from pytorch_metric_learning import testers
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as Original
from pytorch_metric_learning.utils.inference import CustomKNN, FaissKNN
from sklearn.metrics import average_precision_score
from torch.utils.data import TensorDataset

from aurank.evaluation import AccuracyCalculator

SHARED = (
    "precision_at_1",
    "r_precision",
    "mean_average_precision",
    "mean_average_precision_at_r",
    "mean_reciprocal_rank",
)
CPU = torch.device("cpu")


def clusters(seed: int = 0, classes: int = 10, each: int = 6, dim: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of any length, some labels of one row alone, classes of different size."""
    chance = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    embeddings = 2 * chance.normal(size=(classes, dim))[labels] + chance.normal(size=(len(labels), dim))
    labels[::11] = 3
    labels[:2] = [100, 101]
    shuffled = chance.permutation(len(labels))
    return torch.from_numpy(embeddings[shuffled].astype(np.float32)), torch.from_numpy(labels[shuffled])


def calls() -> dict[str, tuple[Any, ...]]:
    query, labels = clusters()
    other, other_labels = clusters(1)
    return {
        "own": (query, labels),
        "reference": (query, labels, other, other_labels),
        "included": (query, labels, torch.cat([query, other]), torch.cat([labels, other_labels]), True),
        "itself": (query, labels, query, labels, True),
        "arrays": (query.numpy(), labels.numpy(), other.numpy(), other_labels.numpy()),
    }


@pytest.mark.parametrize("call", calls())
@pytest.mark.parametrize(
    "mode", [{}, {"avg_of_avgs": True}, {"return_per_class": True}], ids=["mean", "macro", "class"]
)
@pytest.mark.parametrize("k", [None, "max_bin_count", 1, 4, 20])
def test_it_equals_pml_where_pml_is_right(k: Any, mode: dict[str, bool], call: str) -> None:
    ours = AccuracyCalculator(include=SHARED, k=k, **mode).get_accuracy(*calls()[call])
    theirs = Original(include=SHARED, k=k, device=CPU, **mode).get_accuracy(*calls()[call])
    assert set(ours) == set(SHARED)
    for name, value in theirs.items():
        # PML takes reciprocal ranks in float32.
        assert ours[name] == pytest.approx(value, abs=1e-7 if name == "mean_reciprocal_rank" else 1e-12), name


@pytest.mark.parametrize(
    ("distance", "search"),
    [
        ("euclidean", FaissKNN()),
        ("dot", FaissKNN(index_init_fn=faiss.IndexFlatIP)),
        ("cosine", CustomKNN(CosineSimilarity())),
    ],
)
def test_each_distance_equals_the_search_of_pml(distance: str, search: Any) -> None:
    call = calls()["reference"]
    k = 20 if isinstance(search, CustomKNN) else None  # PML's search fails for k = None
    expected = Original(include=SHARED, knn_func=search, k=k, device=CPU).get_accuracy(*call)
    found = AccuracyCalculator(include=SHARED, distance=distance, k=k).get_accuracy(*call)
    assert found == pytest.approx(expected, abs=1e-7)


def test_recall_and_mauprc_equal_slow_counting() -> None:
    query, labels = clusters()
    names = ("mauprc", "recall_at_1", "recall_at_3", "recall_at_1000", "precision_at_3")
    calculator = AccuracyCalculator(include=names, k=2)
    found = calculator.get_accuracy(query, labels)
    precision, hits, three = [], [], []
    for row in range(len(query)):
        keep = [other for other in range(len(query)) if other != row]
        relevant = (labels[keep] == labels[row]).numpy()
        if relevant.any():
            scores = -((query[keep].double() - query[row].double()) ** 2).sum(dim=1).numpy()
            precision.append(average_precision_score(relevant, scores))
            nearest = relevant[np.argsort(-scores)]
            hits.append([nearest[0], nearest[:3].any()])
            three.append(nearest[:3].sum() / 3)
    assert found["mauprc"] == pytest.approx(np.mean(precision), abs=1e-12)
    assert [found["recall_at_1"], found["recall_at_3"]] == pytest.approx(np.mean(hits, axis=0).tolist())
    assert found["recall_at_1000"] == 1.0
    assert found["precision_at_3"] == pytest.approx(np.mean(three))
    assert calculator.per_query["mauprc"] == pytest.approx(np.array(precision), abs=1e-12)
    assert calculator.per_query["recall_at_1"].tolist() == [float(first) for first, _ in hits]
    lone = {100, 101}
    assert [row for row in range(len(labels)) if int(labels[row]) not in lone] == calculator.per_query["query"].tolist()
    assert labels[calculator.per_query["query"]].tolist() == calculator.per_query["label"].tolist()


def test_large_labels_do_not_collide_as_they_do_in_pml() -> None:
    query, labels = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) // 6
    small = AccuracyCalculator(include=SHARED).get_accuracy(query, labels)
    large = AccuracyCalculator(include=SHARED).get_accuracy(query, labels + 2**30)
    assert large == small
    assert small["precision_at_1"] < 0.5
    assert Original(include=("precision_at_1",), device=CPU).get_accuracy(query, labels + 2**30) == {
        "precision_at_1": 1.0
    }


@pytest.mark.parametrize("mode", [{}, {"avg_of_avgs": True}, {"return_per_class": True}])
def test_queries_without_any_positive_give_nan_as_in_pml(mode: dict[str, bool]) -> None:
    query = clusters()[0][:4]
    labels = torch.tensor([5, 6, 6, 7])
    ours = AccuracyCalculator(include=SHARED, **mode)
    found = ours.get_accuracy(query, labels, query, labels + 10)
    theirs = Original(include=SHARED, device=CPU, **mode).get_accuracy(query, labels, query, labels + 10)
    for name in SHARED:
        assert np.array_equal(found[name], theirs[name], equal_nan=True), name
    assert len(ours.per_query["query"]) == len(ours.per_query["r_precision"]) == 0


@pytest.mark.filterwarnings("ignore")  # of PML and its libraries
def test_a_pml_tester_reports_the_same_numbers() -> None:
    data = {name: TensorDataset(*clusters(seed)) for seed, name in enumerate(("train", "test", "held"))}
    splits = [("train", ["train"]), ("test", ["test", "train"]), ("held", ["train"])]
    results = []
    for calculator in (AccuracyCalculator(include=SHARED), Original(include=SHARED, device=CPU)):
        tester = testers.GlobalEmbeddingSpaceTester(
            accuracy_calculator=calculator, dataloader_num_workers=0, data_device=CPU
        )
        results.append(tester.test(data, 1, torch.nn.Identity(), splits_to_eval=splits))
    ours, theirs = results
    assert set(ours) == set(data)
    for split in data:
        assert set(ours[split]) == {"epoch", *(f"{name}_level0" for name in SHARED)}
        assert ours[split] == pytest.approx(theirs[split], abs=1e-7)
