"""Measuring a trained model of images and texts: what ``aurank pairs`` calls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aurank.commands.run_options import RunOptions
from aurank.embedding.build import build_dataset, describe_model, towers_of, with_preprocessing
from aurank.embedding.embedded import noted, two_way_options
from aurank.embedding.image_selection import ImageSelection
from aurank.embedding.image_text_pairs import (
    describe_groups,
    each_image_once,
    embed_pairs,
    has_one_label,
    reports_by_group,
    texts_of,
)
from aurank.embedding.locations import resolve_checkpoint, split_name
from aurank.embedding.select_images import select
from aurank.embedding.settings import read_trained
from aurank.embedding.stored.checkpoint import describe_average, load_checkpoint
from aurank.errors import UserError
from aurank.evaluation.report import Report
from aurank.evaluation.two_way import PROMPTS, TwoWayReport, prompts
from aurank.names import text_key


@dataclass(frozen=True, eq=False)
class PairsResult:
    """Retrieval both ways, of "all" pairs and by what training has seen of them, and images classified by class names.

    Example:
        >>> import numpy as np
        >>> from aurank.evaluation import two_way
        >>> result = PairsResult({"all": two_way(np.eye(2), np.eye(2), [0, 1], recall_at=(1,))}, zero_shot=None)
        >>> print(result)  # doctest: +ELLIPSIS
        two-way retrieval, all
        image_to_text/recall@1    1.0000  (chance 0.5000)
        ...
    """

    two_way: dict[str, TwoWayReport]
    zero_shot: Report | None

    def __str__(self) -> str:
        if self.zero_shot is None:
            return describe_groups(self.two_way)
        lines = [f"{f'recall@{k}':<24}  {value:.4f}" for k, value in self.zero_shot.recall.items()]
        return describe_groups(self.two_way, "\n".join(["zero-shot classification", *lines, *self.zero_shot.notes]))

    def save(self, folder: Path | str) -> None:
        """Write two_way/GROUP for each group, and zero_shot.json, into the folder."""
        for name, report in self.two_way.items():
            report.save(Path(folder) / "two_way" / name)
        if self.zero_shot is not None:
            self.zero_shot.save(Path(folder) / "zero_shot.json")


def evaluate_pairs(
    model: str,
    images: ImageSelection | None = None,
    *,
    templates: Sequence[str] | None = None,
    out: Path | None = None,
    running: RunOptions | None = None,
) -> PairsResult:
    """Return how well a model that was trained with model.text finds texts by images, and images by texts.

    Args:
        model: aurank:DIR/best of a run with model.text.
        images: its ``data``, ``split`` and ``overrides``: a table with a column text.
        templates: a sentence with {} for the name of a class of the column label, read with blanks for - and _; may be
            given repeatedly; default: ``aurank.evaluation.two_way.PROMPTS``.
        out: folder for two_way/GROUP and zero_shot.json.

    Example:
        `aurank.load_pairs` shows how such a model is trained; others have no encoder of texts.

        >>> evaluate_pairs("timm:resnet18")
        Traceback (most recent call last):
        aurank.errors.UserError: --model timm:resnet18: pairs need both encoders of a run with model.text, aurank:DIR/best
    """  # noqa: E501
    images, running = images or ImageSelection(), running or RunOptions()
    kind, location = split_name(model)
    if kind != "aurank":
        raise UserError(f"--model {model}: pairs need both encoders of a run with model.text, aurank:DIR/best")
    device = running.torch_device
    checkpoint = load_checkpoint(resolve_checkpoint(location))
    saved = read_trained(checkpoint["config"])
    towers = towers_of(checkpoint, saved, model)
    prompts([], PROMPTS if templates is None else templates)  # refuses those without a place for the class
    data, manifest, trained = select(images, checkpoint)
    texts = texts_of(manifest)
    has_classes = has_one_label(manifest) and any(  # a text for each image is no class
        text_key(manifest.classes[label]) != text_key(text) for label, text in zip(manifest.labels, texts, strict=True)
    )
    if templates is not None and not has_classes:
        reason = f"the images of {manifest.name} have no classes to tell apart"
        raise UserError(f"--prompt has no use here: {reason}; give its table a column label, one for each image")
    config = with_preprocessing(saved.model_copy(update={"data": data}), saved)
    train = None if images.split == "train" or trained is None else trained.split("train")
    running = replace(running, bf16=False)  # which towers do not take
    once = each_image_once(manifest, one_label=False)  # as `aurank evaluate` takes them: one cache
    module, shown = towers.to(device), build_dataset(config.data, once, train=False)
    batch = config.evaluate.batch if running.batch is None else running.batch  # 0 is refused where it is used
    how: dict[str, Any] = {"batch": batch, "workers": config.data.workers, "pairs": manifest}
    how |= {"progress": running.stage("embedding images"), "text_progress": running.stage("embedding texts")}
    how["cache"] = running.open_cache(model, towers.image, describe_model(config), shown)
    embedded = embed_pairs(module, shown, **how)
    options = {**two_way_options(config), "device": device, "progress": running.stage("ranking")}
    reports, zero_shot = reports_by_group(embedded, train, manifest, **options), None
    skipped = f"{len(manifest) - len(embedded.rows):,} of them skipped as unreadable"
    note = f"model {model}; {len(manifest):,} pairs of {manifest.name}, manifest {manifest.sha256[:16]}, {skipped}"
    notes = [note, *describe_average(checkpoint)]
    if shown.made_of:
        notes.append(f"embeddings{shown.made_of}")
    if has_classes:
        names = [name.replace("-", " ").replace("_", " ") for name in manifest.classes]
        zero_shot = embedded.zero_shot(towers, names, templates=templates or PROMPTS)
        zero_shot = noted(zero_shot, *notes)
    result = PairsResult({name: noted(report, *notes) for name, report in reports.items()}, zero_shot)
    if out is not None:
        result.save(out)
    return result
