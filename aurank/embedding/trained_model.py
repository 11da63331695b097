"""Trained models from their checkpoints."""

from pathlib import Path

from torch import nn

from aurank.data import Pipeline
from aurank.embedding.checkpoint import image_weights, load_checkpoint, resolve_checkpoint
from aurank.embedding.choices import read_trained
from aurank.embedding.from_config import (
    build_encoder,
    build_transform,
)
from aurank.embedding.image_text_pairs import Tokenise
from aurank.embedding.load_weights import load_weights
from aurank.embedding.towers import towers_of
from aurank.models import TwoTower


def load(path: Path | str) -> tuple[nn.Module, Pipeline]:
    """The encoder of a checkpoint in evaluation mode, and the transform of its evaluation images.

    Of two towers it is that of the images; `aurank.training.load_pairs` gives both.

    Args:
        path: ``DIR/best``, ``DIR/last`` (with or without ``.pt``), or ``DIR`` for its best.

    Example:
        >>> model, transform = aurank.load("runs/soprc/best")
        >>> embedding = model(transform(image)[None])   # image: Pillow's, or uint8 [height, width, channel]
    """
    checkpoint = load_checkpoint(resolve_checkpoint(path))
    config = read_trained(checkpoint["config"])
    encoder = build_encoder(config.model, channels=config.data.channels, load=False)
    load_weights(encoder, image_weights(checkpoint), path)
    return encoder.eval(), build_transform(config.data, train=False)


def load_pairs(path: Path | str) -> tuple[TwoTower, Tokenise, Pipeline]:
    """The towers of a checkpoint in evaluation mode, what makes tokens of texts, and the transform of images.

    Args:
        path: ``DIR/best``, ``DIR/last`` (with or without ``.pt``), or ``DIR`` for its best.

    Example:
        >>> model, tokenise, transform = load_pairs("runs/text_sogclr/best")
        >>> with torch.inference_mode():
        ...     similarity = model.encode_image(transform(image)[None]) @ model.encode_text(tokenise(["a pear"])).T
    """
    checkpoint = load_checkpoint(resolve_checkpoint(path))
    config = read_trained(checkpoint["config"])
    towers = towers_of(checkpoint, config, str(path))
    return towers.module.eval(), towers.tokenise, build_transform(config.data, train=False)
