"""Probing a model's frozen embeddings: what ``aurank probe`` calls."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import PositiveInt

from aurank.commands.galleries.postprocess import training_images
from aurank.commands.run_options import PreparedModel, RunOptions, prepare_model
from aurank.data.checks.doctor import repeated_image
from aurank.data.manifest import first_seen
from aurank.embedding.embedded import Embedded
from aurank.embedding.image_selection import ImageSelection
from aurank.embedding.locations import split_name
from aurank.errors import UserError
from aurank.evaluation.inputs import numbered, require_one_of
from aurank.evaluation.probes import NEIGHBOURS, PROTOCOLS, ProbeResult, probe, split_labels

CLOSED = 0.5  # part of the tested classes from which on the training split's rows train


def probe_model(
    model: str,
    images: ImageSelection | None = None,
    *,
    protocols: Sequence[str] = PROTOCOLS,
    labels: Path | None = None,
    k: PositiveInt = NEIGHBOURS,
    seeds: Sequence[int] | None = None,
    out: Path | None = None,
    running: RunOptions | None = None,
) -> dict[str, ProbeResult]:
    """Return the result of each of the ``protocols``, "knn" and "linear_probe", on a model's frozen embeddings.

    Where at least half of the classes of the split chosen occur in the data's split "train", those rows train and the
    split tests. Else, and for saved embeddings, seeded halves of the classes of the split do.

    Args:
        model, labels: as for ``evaluate_model``.
        images: its ``data``, ``split`` and ``overrides``.
        protocols: knn or linear_probe; default: both.
        k: neighbours that vote; at most all there are.
        seeds: seeds of the draws, such as 0,1,2.
        out: folder for knn.json and linear_probe.json.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     labels = np.repeat(np.arange(4), 2)
        ...     np.savez(f"{folder}/rows.npz", embeddings=np.eye(4)[labels], labels=labels)
        ...     results = probe_model(f"embeddings:{folder}/rows.npz", protocols=["knn"], k=1)
        >>> results["knn"].metrics["1nn"]
        1.0
    """
    images, running = images or ImageSelection(), running or RunOptions()
    for name in protocols:
        require_one_of(PROTOCOLS, protocol=name)
    kind, file = split_name(model)
    train = None
    if kind == "embeddings":
        if images.given:
            reason = "saved embeddings bring their own labels"
            raise UserError(f"{images.given[0]} has no use with --model {model}: {reason}")
        tested, notes = Embedded.load(Path(file), labels), [f"model {model}"]
        numbers, *_ = numbered(tested.labels, None, name="label")
        tested = replace(tested, labels=np.asarray(numbers))
    else:
        tested, train, notes = _embed_sides(prepare_model(model, images, running, labels=labels))
    sides = [tested] if train is None else [train, tested]
    arrays = [array for side in sides for array in (side.embeddings, side.labels)]
    results = {}
    for name in protocols:
        try:
            result = probe(*arrays, protocol=name, k=k, seeds=seeds)
        except UserError as error:
            if name == "knn" or len(protocols) == 1:
                raise
            running.tell(f"no linear probe: {error}")
            continue
        results[name] = replace(result, notes=[*result.notes, *notes])
        if out is not None:
            results[name].save(out / f"{name}.json")
        running.finished(name, results[name])
    return results


def _embed_sides(prepared: PreparedModel) -> tuple[Embedded, Embedded | None, list[str]]:
    tested, training = prepared.dataset.manifest, training_images(prepared)
    shared = set(tested.classes) & set(() if training is None else training.classes)
    if len(shared) < CLOSED * len(tested.classes):
        training = None
    for manifest in (tested,) if training is None else (tested, training):
        if repeated := repeated_image(manifest):
            raise UserError(f"{repeated}: a probe could train and test on it; list it once")
    if training is None:
        split_labels(tested.labels)  # refused before the images are embedded
        embedded, notes = prepared.embed()
        return embedded, None, notes
    numbers = first_seen((*tested.classes, *training.classes))
    number_of = np.array([numbers[name] for name in training.classes], dtype=np.int64)
    split_labels(number_of[training.labels], tested.labels)
    train, train_notes = prepared.embed(training)
    test, test_notes = prepared.embed()
    notes = [f"training: {line}" for line in train_notes] + [f"test: {line}" for line in test_notes]
    return test, replace(train, labels=number_of[train.labels], classes=None), notes
