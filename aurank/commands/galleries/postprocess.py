"""Post-processing of a model: its text or file, fitted on the images that the model may learn from."""

from pathlib import Path

import numpy as np

from aurank.commands.run_options import PreparedModel
from aurank.data import Manifest
from aurank.data.shards import read_saved
from aurank.embedding.image_selection import read_whole
from aurank.embedding.image_text_pairs import each_image_once
from aurank.errors import UserError
from aurank.evaluation.postprocessing import PostProcessing
from aurank.files import reading


def read_steps(postprocess: str | None, fit_on: Path | None, distance: str) -> PostProcessing | None:
    """Return the steps that a text names, or that a file holds, fitted on the rows of `fit_on` where that is given."""
    if postprocess is None:
        if fit_on is not None:
            raise UserError(f"--fit-on {fit_on} goes with --postprocess, whose steps are fitted on it")
        return None
    is_file = postprocess.endswith(".safetensors")
    steps = PostProcessing.load(postprocess) if is_file else PostProcessing.parse(postprocess, distance=distance)
    if fit_on is None:
        return steps
    if steps.is_fitted:
        raise UserError(f"--fit-on {fit_on} has no use: no step of {postprocess!r} has anything to learn")
    content = read_saved(fit_on)
    with reading(fit_on, "embeddings"):
        rows = np.asarray(content["embeddings"])
    if (splits := content.get("splits")) is not None and splits.shape == rows.shape[:1]:
        rows = rows[splits == "train"]
    return steps.fit(rows)


def training_images(prepared: PreparedModel) -> Manifest | None:
    """Return the images of the split "train" that are not measured, each once, or None where there are none.

    Read anew: of a configuration that holds classes out for validation, the splits would lack their training rows.
    """
    paths = set(prepared.dataset.manifest.paths)
    manifest = read_whole(prepared.data)
    rows = np.array([path not in paths for path in manifest.paths]) & (manifest.splits == "train")
    return each_image_once(manifest.select(rows)) if rows.any() else None


def fitted_on_training(steps: PostProcessing, prepared: PreparedModel) -> PostProcessing:
    if steps.is_fitted:
        return steps
    training = training_images(prepared)
    if training is None:
        raise UserError(
            f"the post-processing {str(steps)!r} is fitted on training images, and {prepared.dataset.manifest.name} "
            "has none beside those that are measured: give their embeddings with --fit-on FILE"
        )
    return steps.fit(prepared.embed(training)[0].embeddings)
