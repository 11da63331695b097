"""Probing a model's frozen embeddings: what ``aurank probe`` calls."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from pydantic import PositiveInt

from aurank.commands.evaluate import saved_embeddings
from aurank.commands.galleries.postprocess import training_images
from aurank.commands.run_options import PreparedModel, RunOptions, prepare_model
from aurank.data.manifest import first_seen
from aurank.embedding.image_selection import ALL, ImageSelection
from aurank.embedding.locations import split_name
from aurank.embedding.select_images import require_distinct
from aurank.errors import UserError
from aurank.evaluation.inputs import numbered
from aurank.evaluation.probes import NEIGHBOURS, PROTOCOLS, ProbeResult, draw_episodes, few_shot, probe, split_labels
from aurank.names import require_choice

EPISODES = re.compile(r"(omniglot-)?([1-9]\d*)way-([1-9]\d*)shot(-within|-unstructured)?")
CLOSED = 0.5  # part of the tested classes from which on the training split's rows train


def probe_model(
    model: str,
    images: ImageSelection | None = None,
    *,
    protocols: Sequence[str] = PROTOCOLS,
    labels: Path | None = None,
    k: PositiveInt = NEIGHBOURS,
    seeds: Sequence[int] | None = None,
    episodes: PositiveInt = 10_000,
    out: Path | None = None,
    running: RunOptions | None = None,
) -> dict[str, ProbeResult]:
    """Return the result of each of the ``protocols`` on a model's frozen embeddings; docs/probing.md describes them.

    Where at least half of the classes of the split chosen occur in the data's split "train", those rows train and the
    split tests. Else, and for saved embeddings, seeded halves of the classes of the split do.

    Args:
        model, labels: as for ``evaluate_model``.
        images: its ``data``, ``split`` and ``overrides``.
        protocols: knn and linear_probe (the default), or few-shot ones such as 5way-1shot, 20way-5shot-within (each
            episode within a super-category), omniglot-20way-1shot-within, omniglot-20way-1shot-unstructured.
        k: neighbours that vote; at most all there are.
        seeds: seeds of the draws, such as 0,1,2.
        episodes: of a few-shot protocol, drawn by each seed.
        out: folder for a file a protocol, such as knn.json.

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
    episodic = [name for name in protocols if EPISODES.fullmatch(name)]
    for name in protocols:
        require_choice("protocol", name, (*PROTOCOLS, "20way-1shot", *episodic))
    kind, file = split_name(model)
    prepared = None if kind == "embeddings" else prepare_model(model, images, running, labels=labels)
    rows: Any
    if prepared is None:
        rows, notes = saved_embeddings(model, file, labels, replace(images, usual=ALL))
    else:
        rows = prepared.dataset.manifest
        require_distinct(rows, prepared.data)  # else a probe could train and test on one image
    if rows.multi_label:
        raise UserError("a probe predicts one label a row, and rows here have several: aurank evaluate takes them")
    for name in episodic:  # refused before the images are embedded
        next(draw_episodes(**_episode_settings(name, rows)))
    if prepared is None:
        arrays = [rows.embeddings, numbered(rows.labels, None, name="label")[0]]
    elif len(episodic) < len(protocols):
        arrays, notes = _embed_sides(prepared)
    results = {}
    for name in protocols:
        try:
            if name in episodic:
                embedded, about = (rows, notes) if prepared is None else prepared.embed()
                settings = _episode_settings(name, embedded)
                result = few_shot(embedded.embeddings, **settings, episodes=episodes, seeds=seeds or (0,))
            else:
                result, about = probe(*arrays, protocol=name, k=k, seeds=seeds), notes
        except UserError as error:
            if name != "linear_probe" or len(protocols) == 1:
                raise
            running.tell(f"no linear probe: {error}")
            continue
        results[name] = replace(result, protocol=name, notes=[*result.notes, *about])
        if out is not None:
            results[name].save(out / f"{name}.json")
        running.finished(name, results[name])
    return results


def _episode_settings(name: str, rows: Any) -> dict[str, Any]:
    of_omniglot, ways, shots, suffix = cast("re.Match[str]", EPISODES.fullmatch(name)).groups()
    within, drawers = None, [re.search(r"_(\d\d)\.png$", str(path)) for path in rows.paths]  # of each alphabet
    if of_omniglot and None in drawers:
        raise UserError(f"{name} is measured on Omniglot, whose files end in _01.png to _20.png: leave omniglot- out")
    if suffix == "-within" and (within := rows.super_labels) is None:
        raise UserError(f"{name} draws classes of one super-category, and these rows have none: leave -within out")
    groups = np.array([int(drawer[1]) for drawer in drawers if drawer]) if of_omniglot and within is not None else None
    labels = np.asarray(numbered(rows.labels, None, name="label")[0])
    return {"labels": labels, "within": within, "groups": groups, "ways": int(ways), "shots": int(shots)}


def _embed_sides(prepared: PreparedModel) -> tuple[list[Any], list[str]]:
    """Return embeddings and labels of the training split, if it has enough of the classes, and of the tested one."""
    tested, training = prepared.dataset.manifest, training_images(prepared)
    sides = {"": tested}
    if training is not None and len({*tested.classes} & {*training.classes}) >= CLOSED * len(tested.classes):
        sides = {"training: ": training, "test: ": tested}
    numbers = first_seen([name for manifest in reversed(sides.values()) for name in manifest.classes])
    labels = []
    for manifest in sides.values():
        require_distinct(manifest, prepared.data)
        number_of = np.array([numbers[name] for name in manifest.classes], np.int64)
        labels.append(number_of[manifest.labels])
    split_labels(*labels)  # refused before the images are embedded
    arrays, notes = list[Any](), list[str]()
    for (title, manifest), row_labels in zip(sides.items(), labels, strict=True):
        embedded, about = prepared.embed(manifest)
        arrays += [embedded.embeddings, row_labels[embedded.ids]]
        notes += [title + line for line in about]
    return arrays, notes
