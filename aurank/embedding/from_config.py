"""From a configuration to what embeds: the encoder, its images and their transform."""

from collections.abc import Callable
from typing import Any

from aurank.config import Config, DataConfig, ModelConfig
from aurank.data import TRANSFORMS, ImageDataset, Manifest, Pipeline
from aurank.embedding.checkpoint import image_weights, load_checkpoint, resolve_checkpoint
from aurank.embedding.choices import read_trained
from aurank.embedding.load_weights import describe_value
from aurank.embedding.preprocessing import with_preprocessing
from aurank.errors import UserError
from aurank.models import Encoder
from aurank.models.adapters.timm import without_file


def build_transform(config: DataConfig, *, train: bool) -> Pipeline:
    """The training or the evaluation pipeline; what the backbone wants has been filled in (`fill_preprocessing`)."""
    component = config.train_transform if train else config.test_transform
    assert config.normalise is not None
    assert config.interpolation is not None
    pipeline: Pipeline = TRANSFORMS[component.name](
        image_size=config.image_size,
        channels=config.channels,
        mean=config.normalise.mean,
        std=config.normalise.std,
        interpolation=config.interpolation,
        **component.params,
    )
    return pipeline


def fill_preprocessing(config: Config, state: dict[str, Any] | None = None) -> Config:
    """The configuration with the normalisation and interpolation of its backbone, unless it names its own.

    state: the checkpoint that a run resumes from, whose values it keeps; otherwise `model.init_from` may name one.
    """
    if state is None and config.model.init_from is not None:
        state = load_checkpoint(resolve_checkpoint(config.model.init_from))
    return with_preprocessing(config, None if state is None else read_trained(state["config"]))


def build_dataset(config: DataConfig, manifest: Manifest, *, train: bool, seed: int = 0) -> ImageDataset:
    """The images of a manifest under the training or the evaluation pipeline."""
    return ImageDataset(
        manifest,
        build_transform(config, train=train),
        channels=config.channels,
        seed=seed,
        on_error=config.on_error,
        cache_bytes=config.cache_bytes,
        max_pixels=config.max_pixels,
    )


def build_encoder(
    config: ModelConfig, *, channels: int, load: bool = True, say: Callable[[str], None] | None = None
) -> Encoder:
    """The encoder; with ``load``, its pretrained weights or those of ``model.init_from``.

    ``say`` is given a line where a checkpoint holds more than it takes.
    """
    encoder = Encoder(
        config.backbone,
        dim=config.dim,
        head_layers=config.head_layers,
        head_width=config.head_width,
        discard_head=config.discard_head,
        channels=channels,
        pretrained=config.pretrained and load and config.init_from is None,
        pooling=config.pooling,
        freeze_batch_norm=config.freeze_batch_norm,
        channels_last=config.channels_last,
        params=config.params if load and config.init_from is None else without_file(config.params),
    )
    if load and config.init_from is not None:
        _initialise(encoder, config.init_from, say)
    return encoder


def _initialise(encoder: Encoder, source: str, say: Callable[[str], None] | None) -> None:
    """Copy a checkpoint's weights; a projection of another shape starts afresh, a backbone that differs is refused."""
    checkpoint = load_checkpoint(resolve_checkpoint(source))
    if say is not None and checkpoint["config"].get("model", {}).get("text") is not None:
        say(f"model.init_from: {source} is of images and texts; its image encoder is taken, its text encoder is not")
    saved = image_weights(checkpoint)
    own = encoder.state_dict()
    fits = {name: value for name, value in saved.items() if name in own and own[name].shape == value.shape}
    lacking = [name for name in own if name not in fits and not name.startswith("head.")]
    if lacking:
        came, expected = (describe_value(held.get(lacking[0])) for held in (saved, own))
        raise UserError(
            f"model.init_from: {source} does not fit this backbone: {len(lacking)} tensors are missing or of another "
            f"shape, the first {lacking[0]!r} is {came}, expected {expected}; use the backbone, channels and pooling "
            "it was trained with"
        )
    if any(name not in fits for name in own):
        fits = {name: value for name, value in fits.items() if not name.startswith("head.")}  # all of it or nothing
        if say is not None:
            say(f"model.init_from: the projection of {source} has another shape; it begins anew, at random")
    encoder.load_state_dict(fits, strict=False)
