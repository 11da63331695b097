"""Thresholds of any model, or by a saved report: what ``aurank calibrate`` calls."""

from pathlib import Path
from typing import Any

from aurank.commands.evaluate import embed_chosen, saved_embeddings
from aurank.commands.run_options import RunOptions, split_name
from aurank.embedding.select_images import ImageSelection
from aurank.errors import UserError
from aurank.evaluation.calibration.calibrate import Aim, Calibration, calibrate


def calibrate_model(
    model: str,
    images: ImageSelection | None = None,
    *,
    precision: float | None = None,
    false_match_rate: float | None = None,
    labels: Path | None = None,
    running: RunOptions | None = None,
    **options: Any,
) -> Calibration:
    """Return the lowest threshold with a precision, or a false-match rate, over all pairs of the images chosen.

    Args:
        model: as for ``evaluate_model``, ranked lists excepted.
        images: as for ``evaluate_model``.
        precision: the part of the matches that has to be right.
        false_match_rate: instead of it, the part of the negative pairs that may match.
        labels: for ``embeddings:FILE.npy``: the file of their labels.
        running: how the model is run.
        options: `distance` and `max_memory` of ``aurank.evaluate``.

    Raises:
        UserError: for options that do not go together, and whatever ``aurank.evaluation.calibrate`` refuses.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/rows.npz", embeddings=[[1.0, 0.0], [0.9, 0.1], [0.8, 0.6]], labels=[5, 5, 6])
        ...     calibrate_model(f"embeddings:{folder}/rows.npz", precision=1.0).threshold
        0.99
    """
    aim = Aim(precision, false_match_rate)
    images, running = images or ImageSelection(), running or RunOptions()
    kind, what = split_name(model)
    images.check()
    protocol = images.find_protocol()
    if protocol is not None and protocol.seeds:
        raise UserError(f"--protocol {protocol.name} draws several galleries, and each would have its own threshold")
    given = {**options, "device": running.torch_device}
    if kind == "embeddings":
        embedded, _ = saved_embeddings(model, Path(what), labels, images, protocol)
    elif labels is not None:
        raise UserError(f"--labels {labels} has no use with --model {model}: the labels come with the images")
    else:
        given, embedded, *_ = embed_chosen(model, images, protocol, running, given)
    used = {name: value for name, value in given.items() if name in ("distance", "max_memory", "device")}
    return calibrate(embedded.problem(), **vars(aim), **used, progress=running.stage("counting pairs"))
