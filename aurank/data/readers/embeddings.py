"""Saved embeddings, as ``aurank embed`` writes them: a head is trained on them as on images."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aurank.data.manifest import Manifest, build_manifest
from aurank.data.readers.values import number_groups, read_label, require_filled
from aurank.errors import UserError, refuse_first
from aurank.files import reading

_BLOCK = 4096  # rows that are looked at at once


def read_embeddings(root: Path, *, file: str, labels: str | None = None, splits: str | None = None) -> Manifest:
    """Return the rows of a file of embeddings.

    Args:
        file: what ``aurank embed --split all`` writes, or an ``.npz`` or ``.npy`` of other programs, in `root`.
        labels: a file of their labels, in `root`, where `file` holds none.
        splits: a file of one text a row, train, val or test, likewise.
    """
    from aurank.data.saved_embeddings import EmbeddingSource, MadeBy, read_arrays  # it has torch

    path = root / file
    further = {"labels": labels, "splits": splits}
    content = read_arrays(path, **{name: None if file is None else root / file for name, file in further.items()})
    rows, paths = content["embeddings"], content["paths"].tolist()
    if not any(paths):
        paths = [f"row {row}" for row in content["ids"].tolist()]
    with np.errstate(over="ignore"):
        rows = rows if rows.dtype == np.float32 else rows.astype(np.float32)

    def problems() -> Iterator[str]:
        if "splits" not in content:
            yield (
                "holds no array 'splits', which says what each row is for; write it with aurank embed --split all, or "
                "name a file of train, val and test in data.params.splits"
            )
        if again := next((name for name, times in Counter(paths).items() if times > 1), None):
            yield f"holds image {again!r} twice; embed each image once"
        for start in range(0, len(rows), _BLOCK):
            for row in (start + np.flatnonzero(~np.isfinite(rows[start : start + _BLOCK]).all(axis=1))).tolist():
                yield (
                    f"row {row} ({paths[row]!r}) holds NaN or infinity; look at it with aurank doctor --embeddings "
                    f"{path}, and embed it again or leave it out"
                )

    refuse_first(problems(), str(path))
    names = content["classes"].tolist() if "classes" in content else []
    labels_of = [read_label(label, f"{path}, row {row}", names) for row, label in enumerate(content["labels"].tolist())]
    if content.get("multi_label"):
        labels_of = [tuple(str(label).split("|")) for label in labels_of]
    require_filled("label", [f"{path}, row {row}" for row, label in enumerate(labels_of) if not label])
    super_labels, groups = content.get("super_labels"), content["groups"]
    made_by = MadeBy.parse(str(content["made_by"]), str(path)) if "made_by" in content else None
    with reading(path, "saved embeddings"):
        return build_manifest(
            path.stem,
            EmbeddingSource(rows, paths, where=str(path), made_by=made_by),
            paths=paths,
            labels=labels_of,
            splits=content["splits"].tolist(),
            is_query=content["is_query"].tolist(),
            is_gallery=content["is_gallery"].tolist(),
            groups=groups.tolist() if (groups != -1).any() else None,
            group_names=None if (cameras := content.get("group_names")) is None else tuple(cameras.tolist()),
            super_labels=None if super_labels is None else number_groups(super_labels.tolist())[0],
        )


def rows_of_images(saved: Any, images: Sequence[str]) -> np.ndarray:
    if lacking := [name for name in images if name not in saved.entries]:
        raise UserError(f"{saved.where} lacks {len(lacking):,} of {len(images):,} images, such as {lacking[0]!r}")
    return np.asarray(saved.rows[[saved.entries[name] for name in images]])
