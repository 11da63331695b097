"""Trained models from their checkpoints."""

from pathlib import Path
from typing import Any

from torch import nn

from aurank.config import Config
from aurank.data import Pipeline
from aurank.embedding.checkpoint import image_weights, load_checkpoint, load_weights, model_weights, resolve_checkpoint
from aurank.embedding.choices import read_trained
from aurank.embedding.from_config import OWN_TEXTS, Towers, build_towers, build_transform, trained_encoder
from aurank.embedding.image_text_pairs import Tokenise
from aurank.errors import UserError
from aurank.models import Encoder, TwoTower
from aurank.models.tuning import merge_lora


def load(path: Path | str) -> tuple[nn.Module, Pipeline]:
    """The encoder of a checkpoint in evaluation mode, and the transform of its evaluation images.

    Of two towers it is that of the images; `load_pairs` gives both.

    Args:
        path: ``DIR/best``, ``DIR/last`` (with or without ``.pt``), or ``DIR`` for its best.

    Example:
        >>> import tempfile
        >>> import aurank
        >>> from PIL import Image
        >>> config = {
        ...     "data": {"name": "digits", "image_size": 8, "channels": 1}, "sampler": {"batch": 16},
        ...     "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8}, "loss": {"name": "smooth_ap"},
        ...     "optim": {"lr": 1e-3}, "train": {"steps": 1},
        ... }
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = aurank.train(config, f"{folder}/run")
        ...     model, transform = aurank.load(f"{folder}/run/best")
        >>> model(transform(Image.new("L", (20, 30)))[None]).shape  # or an array, uint8 [height, width, channel]
        torch.Size([1, 8])
    """
    checkpoint = load_checkpoint(resolve_checkpoint(path))
    config = read_trained(checkpoint["config"])
    return encoder_of(checkpoint, config, str(path)).eval(), build_transform(config.data, train=False)


def load_pairs(path: Path | str) -> tuple[TwoTower, Tokenise, Pipeline]:
    """The towers of a checkpoint in evaluation mode, what makes tokens of texts, and the transform of images.

    Args:
        path: ``DIR/best``, ``DIR/last`` (with or without ``.pt``), or ``DIR`` for its best.

    Example:
        >>> import tempfile
        >>> import aurank
        >>> from PIL import Image
        >>> rows = ["path,text,split"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for colour in ("red", "blue"):
        ...         Image.new("RGB", (8, 8), colour).save(f"{folder}/{colour}.png")
        ...         rows += [f"{colour}.png,a {colour} square,{split}" for split in ("train", "test")]
        ...     _ = Path(folder, "pairs.csv").write_text("\\n".join(rows))
        ...     data = {"name": "table", "root": folder, "params": {"file": "pairs.csv"}, "validation_fraction": 0}
        ...     config = {
        ...         "data": {**data, "image_size": 8}, "sampler": {"name": "shuffled", "batch": 2},
        ...         "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8, "text": {"layers": 1}},
        ...         "loss": {"name": "clip"}, "optim": {"lr": 1e-3}, "train": {"steps": 1},
        ...     }
        ...     _ = aurank.train(config, f"{folder}/run")
        ...     model, tokenise, transform = aurank.load_pairs(f"{folder}/run/best")
        >>> image, text = transform(Image.new("RGB", (20, 30), "red"))[None], tokenise(["a red square", "red"])
        >>> (model.encode_image(image) @ model.encode_text(text).T).shape
        torch.Size([1, 2])
    """
    checkpoint = load_checkpoint(resolve_checkpoint(path))
    config = read_trained(checkpoint["config"])
    towers = towers_of(checkpoint, config, str(path))
    return towers.module.eval(), towers.tokenise, build_transform(config.data, train=False)


def encoder_of(checkpoint: dict[str, Any], config: Config, name: str) -> Encoder:
    """The encoder of images of a checkpoint that was read, with the weights to evaluate."""
    return trained_encoder(config.model, image_weights(checkpoint), name, channels=config.data.channels)


def require_texts(config: Config, name: str) -> None:
    """Raise UserError where the run of that name has no text tower."""
    if config.model.text is None:
        remedy = "measure it with aurank evaluate, or train a model of both by setting model.text"
        raise UserError(f"{name} was trained on images alone: model.text is null in its configuration; {remedy}")


def towers_of(checkpoint: dict[str, Any], config: Config, name: str) -> Towers:
    """The towers of a checkpoint that was read, with the weights to evaluate; UserError where it has none."""
    require_texts(config, name)
    assert config.model.text is not None
    if checkpoint["tokeniser"] is None and config.model.text.name == OWN_TEXTS:
        raise UserError(f"{name} lacks the tokeniser of its texts; use last.pt or best.pt of a run")
    towers = build_towers(config, saved=checkpoint["tokeniser"], load=False)
    load_weights(towers.module, model_weights(checkpoint), name)
    if config.model.lora is not None:
        merge_lora(towers.module)
    return towers
