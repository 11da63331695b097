"""Probing a model's frozen embeddings: what ``aurank probe`` calls."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aurank.commands.galleries.postprocess import training_images
from aurank.commands.run_options import PreparedModel, RunOptions, prepare_model
from aurank.data import Manifest
from aurank.data.checks.doctor import repeated_image
from aurank.data.manifest import first_seen
from aurank.embedding.embed import Embedded
from aurank.embedding.evaluation_options import noted
from aurank.embedding.named import ImageSelection, split_name
from aurank.errors import UserError
from aurank.evaluation.engine.problem import integer_array, numbered
from aurank.evaluation.probes import CHECKS, PROBES, ProbeResult, split_labels

CLOSED = 0.5  # part of the tested classes from which on the training split's rows train


def probe_model(
    model: str,
    images: ImageSelection | None = None,
    *,
    protocols: Sequence[str] = tuple(PROBES),
    labels: Path | None = None,
    k: int | None = None,
    seeds: Sequence[int] | None = None,
    running: RunOptions | None = None,
) -> dict[str, ProbeResult]:
    """Return the result of each of the ``protocols``, "knn" and "linear_probe", on a model's frozen embeddings.

    Where at least half of the classes of the split chosen occur in the data's split "train", those rows train and the
    split tests. Else, and for saved embeddings, seeded halves of the classes of the split do.

    Args:
        model, labels: as for ``evaluate_model``.
        images: its ``data``, ``split`` and ``overrides``.
        k, seeds: as for ``aurank.evaluation.knn`` and ``linear_probe``.

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
    if not protocols or set(protocols) - PROBES.keys() or len(set(protocols)) < len(protocols):
        raise UserError(f"--protocol: expected {' or '.join(PROBES)}, each once; got {', '.join(protocols) or 'none'}")
    if images.find_protocol() is not None:
        raise UserError(f"{images.given[0]} has no use here: a probe takes its rows from the splits of --data")
    if k is not None and "knn" not in protocols:
        raise UserError(f"--k {k} goes with --protocol knn")
    options: dict[str, dict[str, Any]] = {name: {} for name in protocols}
    if "knn" in options:
        options["knn"] = {"k": k, "device": running.torch_device}
    kind, what = split_name(model)
    if kind == "embeddings":
        if images.given:
            given = images.given[0]
            raise UserError(f"{given} has no use with --model {model}: saved embeddings bring their own labels")
        tested, train, notes = Embedded.load(Path(what), labels), None, [f"model {model}"]
        numbers, *_ = numbered(tested.labels, None, name="label")
        numbers = integer_array(np.asarray(numbers), name="label", rows=len(tested.labels), side="probed")
        tested = replace(tested, labels=numbers)
        _check_probes(options, numbers, None, seeds, running)
    else:
        tested, train, notes = _embed_sides(prepare_model(model, images, running, labels=labels), options, seeds)
    sides = [tested] if train is None else [train, tested]
    arrays = [array for side in sides for array in (side.embeddings, side.labels)]
    results = {}
    for name, chosen in options.items():
        if seeds is not None and (train is None or name != "knn"):
            chosen["seeds"] = seeds
        progress = running.stage(name.replace("_", " "))
        results[name] = noted(PROBES[name](*arrays, ids=sides[0].ids, progress=progress, **chosen), *notes)
        running.finished(name, results[name])
    return results


def _check_probes(
    options: dict[str, dict[str, Any]],
    labels: np.ndarray,
    test_labels: np.ndarray | None,
    seeds: Sequence[int] | None,
    running: RunOptions,
) -> None:
    if seeds is not None and test_labels is not None and "linear_probe" not in options:
        raise UserError(f"--seeds {','.join(map(str, seeds))}: k-NN draws nothing where a training split is given")
    split = split_labels(labels, test_labels, seeds=seeds)
    for name, given in list(options.items()):
        try:
            CHECKS[name](split, **{option: given[option] for option in given.keys() - {"device"}})
        except UserError as error:
            if name != "linear_probe" or len(options) == 1:
                raise
            del options[name]
            running.tell(f"no linear probe: {error}")


def _embed_sides(
    prepared: PreparedModel, options: dict[str, dict[str, Any]], seeds: Sequence[int] | None
) -> tuple[Embedded, Embedded | None, list[str]]:
    tested = prepared.dataset.manifest
    _require_once(tested)
    training = training_images(prepared)
    shared = set(tested.classes) & set(() if training is None else training.classes)
    if training is None or len(shared) < CLOSED * len(tested.classes):
        _check_probes(options, tested.labels, None, seeds, prepared.run)
        embedded, notes = prepared.embed()
        return embedded, None, notes
    _require_once(training)
    numbers = first_seen((*tested.classes, *training.classes))
    own = np.array([numbers[name] for name in training.classes], dtype=np.int64)
    _check_probes(options, own[training.labels], tested.labels, seeds, prepared.run)
    train, train_notes = prepared.embed(training)
    test, test_notes = prepared.embed()
    notes = [f"training: {line}" for line in train_notes] + [f"test: {line}" for line in test_notes]
    return test, replace(train, labels=own[train.labels], classes=None), notes


def _require_once(manifest: Manifest) -> None:
    if repeated := repeated_image(manifest):
        raise UserError(f"{repeated}: a probe could train and test on it; list it once")
