"""Retrieval both ways between images and texts, and zero-shot classification, on the exact engine of `evaluate`."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from aurank.arrays import Arrays
from aurank.errors import UserError
from aurank.evaluation.evaluate import evaluate
from aurank.evaluation.inputs import Embeddings, Integers, as_matrix, integer_array
from aurank.evaluation.metrics import default_metrics, mean, sorted_cuts
from aurank.evaluation.report import Report
from aurank.files import write_text

DIRECTIONS = ("image_to_text", "text_to_image")
PROMPTS = ("a photo of {}", "a picture of {}", "a close-up photo of {}", "a photo of one {}", "a photo of many {}")


@dataclass(frozen=True, eq=False)
class TwoWayReport:
    """Retrieval of texts by images and of images by texts: one exact `Report` for each direction.

    Example:
        >>> two_way(np.eye(3), np.eye(3), [0, 1, 2], recall_at=(1,)).mean_recall
        1.0
    """

    image_to_text: Report
    text_to_image: Report

    @property
    def recall(self) -> dict[str, dict[int, float]]:
        """Recall@k of each direction, in [0, 1], by k."""
        return {name: getattr(self, name).recall for name in DIRECTIONS}

    @property
    def chance(self) -> dict[str, dict[int, float]]:
        """Return the expected mean recall of a gallery in random order."""
        return {name: {k: chance_recall(getattr(self, name), k) for k in self.recall[name]} for name in DIRECTIONS}

    @property
    def mean_recall(self) -> float:
        """Mean over both directions and every k; over 1, 5 and 10 it is what papers call mean recall."""
        return _named(self.recall)["mean_recall"]

    @property
    def metrics(self) -> dict[str, float]:
        """Every recall, as "image_to_text/recall@1" and so on, "mean_recall", and "mauprc" over all queries."""
        ap = np.concatenate([getattr(self, name).per_query["ap"] for name in DIRECTIONS])
        return {**_named(self.recall), "mauprc": mean(ap)}

    def __str__(self) -> str:
        chance = _named(self.chance)
        beside = {name: f"  (chance {value:.4f})" for name, value in chance.items()}
        lines = [f"{name:<24}  {value:.4f}{beside.get(name, '')}" for name, value in self.metrics.items()]
        lines.append(f"{self.image_to_text.num_queries:,} images; {self.text_to_image.num_queries:,} texts")
        return "\n".join([*lines, *self.image_to_text.notes])

    def save(self, folder: Path | str) -> None:
        """Write a report for each direction, and two_way.json with all metrics and chance, into the folder."""
        for name in DIRECTIONS:
            getattr(self, name).save(Path(folder) / f"{name}.json")
        chance = _named(self.chance)
        del chance["mean_recall"]
        content = {"metrics": self.metrics, "chance": chance}
        write_text(Path(folder) / "two_way.json", json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path | str) -> "TwoWayReport":
        """Return the report that `save` wrote; UserError where a direction is missing or something else."""
        return cls(**{name: Report.load(Path(folder) / f"{name}.json") for name in DIRECTIONS})


def two_way(
    images: Arrays,
    texts: Arrays,
    labels: Integers,
    *,
    image_ids: Integers | None = None,
    text_ids: Integers | None = None,
    recall_at: Iterable[int] = (1, 5, 10),
    **options: Any,
) -> TwoWayReport:
    """Return the report of how well images find their texts, and texts their images, among all of them.

    Row i of both is one pair. Texts with the label of any of an image's pairs are positives of the image, and it of
    them: give equal texts equal labels.

    Args:
        images, texts: embeddings [pair, dim].
        labels: what each pair shows.
        image_ids: rows of one id are one image, a single query and gallery row, whose embedding its first row gives.
        text_ids: the same for texts, so that a sentence that many images have is in the gallery once.
        options: those of `aurank.evaluate`, `metrics` aside.

    Source: recall@k both ways and its mean, Karpathy and Fei-Fei (CVPR 2015), https://arxiv.org/abs/1412.2306.
    Deviation: equal labels, not the pair alone, make a positive.

    Example:
        >>> report = two_way(np.eye(2), np.eye(2)[::-1], [0, 1], recall_at=(1,))
        >>> report.recall["text_to_image"], report.chance["text_to_image"]
        ({1: 0.0}, {1: 0.5})
    """
    images, texts = as_matrix(images, side="image"), as_matrix(texts, side="text")
    if len(images) != len(texts):
        raise UserError(f"{len(images)} images for {len(texts)} texts: row i of both must be one pair")
    shown = integer_array(labels, name="label", rows=len(images), side="image")
    image, text = _items(images, image_ids, name="image"), _items(texts, text_ids, name="text")
    how = "texts that recur stand as often as they do" if text_ids is None else "each distinct text stands once"
    note = f"{len(shown):,} pairs of {len(image[0]):,} images and {len(text[0]):,} texts; {how}"
    names = default_metrics(sorted_cuts(recall_at))  # by name: a mean over every k needs them all, however few items
    reports = []
    for query, gallery in ((image, text), (text, image)):
        relation = _relation(query, gallery, shown)
        report = evaluate(query[0], gallery=gallery[0], metrics=names, **relation, **options)
        reports.append(replace(report, notes=[*report.notes, note]))
    return TwoWayReport(*reports)


def chance_recall(report: Report, k: int) -> float:
    """Return the expected recall@k of a gallery in random order: the mean of 1 − C(negatives, k) / C(gallery, k)."""
    positives, negatives = report.per_query["num_positives"], report.per_query["num_negatives"]
    missed = np.ones(len(positives))
    for drawn in range(min(k, int(negatives.max(initial=0)) + 1)):
        missed *= np.maximum(negatives - drawn, 0) / (positives + negatives - drawn)
    return mean(1 - missed)


def prompts(classes: Sequence[str], templates: Sequence[str] = PROMPTS) -> list[str]:
    """Return each class in each template, class by class: row c · T + t of their embeddings is class c in template t.

    Example:
        >>> prompts(["cat", "dog"], ["a {}", "no {}"])
        ['a cat', 'no cat', 'a dog', 'no dog']
    """
    if not templates or not all("{}" in template for template in templates):
        expected = f"{{}} where the class stands, such as {PROMPTS[0]!r}"
        raise UserError(f"a template must hold {expected}; got {list(templates)}")
    return [template.replace("{}", name) for name in classes for template in templates]


def ensemble(embeddings: Float[Tensor, "class prompt dim"]) -> Float[Tensor, "class dim"]:
    """Return one embedding of each class: the mean of its prompts' unit-length embeddings, of unit length itself.

    Source: section 3.1.4 of Radford et al. (ICML 2021), https://arxiv.org/abs/2103.00020

    Example:
        >>> import torch
        >>> ensemble(torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]))
        tensor([[0.7071, 0.7071]])
    """
    return functional.normalize(functional.normalize(embeddings, dim=-1).mean(dim=1), dim=-1)


def zero_shot(
    images: Arrays,
    labels: Integers,
    prompts: Float[Tensor, "class prompt dim"],
    *,
    top: Iterable[int] = (1, 5),
    **options: Any,
) -> Report:
    """Return the report of the classification of images by texts alone; its recall@k is the top-k accuracy.

    An image is given the classes whose `ensemble` is nearest.

    Args:
        labels: for each image a row of `prompts`.
        prompts: the embeddings of each class in each of its prompts.
        options: those of `aurank.evaluate`, `metrics` and `recall_at` aside.

    Example:
        >>> import torch
        >>> images, texts = torch.eye(2), torch.eye(2)[:, None]
        >>> zero_shot(images, [0, 1], texts, top=(1,)).metrics
        {'recall@1': 1.0}
    """
    images = as_matrix(images, side="image")
    classes = integer_array(labels, name="label", rows=len(images), side="image")
    outside = classes[(classes < 0) | (classes >= len(prompts))]
    if len(outside):
        raise UserError(f"label {outside[0]} has no prompts: there are those of classes 0 to {len(prompts) - 1}")
    cuts = sorted_cuts(top)
    sides = (images, classes, ensemble(prompts.detach()), np.arange(len(prompts)))
    report = evaluate(*sides, metrics=[f"recall@{k}" for k in cuts], **options)
    chance = ", ".join(f"{chance_recall(report, k):.4f} for recall@{k}" for k in cuts)
    each = "1 prompt" if prompts.shape[1] == 1 else f"{prompts.shape[1]:,} prompts"
    note = f"zero-shot: {len(prompts):,} classes by {each} each; chance is {chance}"
    return replace(report, notes=[*report.notes, note])


def _items(
    embeddings: Embeddings, ids: Integers | None, *, name: str
) -> tuple[Embeddings, Int64[np.ndarray, " item"], Int64[np.ndarray, " pair"]]:
    """Return the distinct items of one side, the first pair that each is in, and the item of each pair."""
    if ids is None:
        every = np.arange(len(embeddings))
        return embeddings, every, every
    numbers = integer_array(ids, name="id", rows=len(embeddings), side=name)
    rows, item = np.unique(numbers, return_index=True, return_inverse=True)[1:]
    return embeddings[rows], rows, item.reshape(-1)


def _relation(query: Any, gallery: Any, labels: Int64[np.ndarray, " pair"]) -> dict[str, Any]:
    """Return which items of two sides belong together, each as `_items` gives it: by labels or as pairs."""
    from scipy.sparse import csr_array

    codes, flags = np.unique(labels, return_inverse=True)[1], np.ones(len(labels), np.bool_)
    left, right = (csr_array((flags, (item, codes))) for _, _, item in (query, gallery))
    if left.nnz == len(query[1]) and right.nnz == len(gallery[1]):
        return {"labels": labels[query[1]], "gallery_labels": labels[gallery[1]]}
    return {"positives": np.stack((left @ right.T).sorted_indices().nonzero(), axis=1)}


def _named(values: dict[str, dict[int, float]]) -> dict[str, float]:
    named = {f"{name}/recall@{k}": value for name, recalls in values.items() for k, value in recalls.items()}
    return {**named, "mean_recall": mean(list(named.values()))}
