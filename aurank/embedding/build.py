"""From a configuration to what embeds: the encoders of images and texts, the images and their transform."""

from collections.abc import Sequence
from typing import Any

import torch

from aurank.config import Config, DataConfig, ModelConfig
from aurank.config.components import build
from aurank.config.schema import NO_BACKBONE, Interpolation, NormaliseConfig, SavedFeatures, Transform
from aurank.data import TRANSFORMS, ImageDataset, Manifest, Pipeline, Tokeniser
from aurank.data.prepared import PreparedImages
from aurank.data.saved_embeddings import EmbeddingDataset, EmbeddingSource
from aurank.embedding.cache import Say
from aurank.embedding.locations import resolve_checkpoint
from aurank.embedding.settings import read_trained
from aurank.embedding.stored.checkpoint import image_weights, is_head, load_checkpoint, load_part, model_weights
from aurank.errors import UserError
from aurank.files import checked, reading
from aurank.models import Encoder, TextTower, TwoTower
from aurank.models.adapters.by_name import load_text_model
from aurank.models.adapters.towers import freeze_unused, preprocessing
from aurank.models.image_model import warn_of_small
from aurank.models.text_encoder import ProjectedText
from aurank.models.tuning import add_lora, checkpoint_gradients, freeze, merge_lora
from aurank.models.views import MeanOverViews, add_views
from aurank.sizes import size_in_bytes

# Keys that say how a backbone is shown images.
_OF_BACKBONE: dict[str, Any] = {
    "normalise": NormaliseConfig,
    "interpolation": Interpolation,
    "test_transform": Transform,
}
_USUAL = "in float32 of the images themselves"  # the usual precision, which notes do not mention
OWN_TEXTS = "transformer"  # our text model: random weights, own tokeniser


def build_transform(config: DataConfig, *, train: bool) -> Pipeline:
    component = config.train_transform if train else config.test_transform
    assert component is not None
    assert config.normalise is not None
    look = {"interpolation": config.interpolation, **vars(config.normalise), **component.params}
    sizes = {"image_size": config.image_size, "channels": config.channels, "resize": config.resize}
    key = f"data.{'train' if train else 'test'}_transform.params"
    pipeline: Pipeline = build(key, TRANSFORMS[component.name], sizes, look)
    return pipeline


def fill_preprocessing(config: Config, state: dict[str, Any] | None = None) -> Config:
    if state is None and config.model.init_from is not None:
        state = load_checkpoint(resolve_checkpoint(config.model.init_from))
        if is_head(state) and config.model.backbone != NO_BACKBONE:
            remedy = "start from the network that made its embeddings, by model.weights or model.pretrained"
            raise UserError(f"model.init_from: {config.model.init_from} is a head without a backbone; {remedy}")
    return with_preprocessing(config, None if state is None else read_trained(state["config"]))


def with_preprocessing(config: Config, saved: Config | None = None) -> Config:
    """Return the configuration with what it leaves open of how images are shown: as `saved` has it, or the backbone."""
    data, model = config.data, config.model
    if model.backbone == NO_BACKBONE:
        features = model.features if saved is None else saved.model.features
        return config.model_copy(update={"model": model.model_copy(update={"features": features})})
    if data.decoding is None:
        data = data.model_copy(update={"decoding": (saved and saved.data.decoding) or "reduced"})
    missing, look = [key for key in _OF_BACKBONE if getattr(data, key) is None], dict[str, Any]()
    if saved is not None:
        look = {key: getattr(saved.data, key) for key in missing}
    elif missing:
        remedy = "set data.normalise, data.interpolation and data.test_transform"
        with reading(f"model.backbone={model.backbone}", "how it was shown images", remedy=remedy):
            first: dict[str, Any] = {"pretrained": model.pretrained, "weights": model.weights}
            published = preprocessing(model.backbone, model.params, channels=data.channels, **first)
            look = {key: checked(published[key], kind) for key, kind in _OF_BACKBONE.items() if key in missing}
    return config.model_copy(update={"data": data.model_copy(update=look)})


def with_features(config: Config, manifest: Manifest) -> Config:
    """Return the configuration of a head with the embeddings that it takes; UserError if it learnt on others."""
    source, learnt_on = manifest.source, config.model.features
    if config.model.backbone != NO_BACKBONE or not isinstance(source, EmbeddingSource):
        return config
    new = SavedFeatures(width=source.rows.shape[1], **({} if source.made_by is None else vars(source.made_by)))
    if learnt_on is not None:
        has_both = learnt_on.weights_sha256 and new.weights_sha256
        names = ["width", *(["weights_sha256", "preprocessing", "precision"] if has_both else [])]
        values = [(name, getattr(learnt_on, name) or _USUAL, getattr(new, name) or _USUAL) for name in names]
        differ = [f"{name} {now!r} in place of {before!r}" for name, before, now in values if before != now]
        if differ:
            raise UserError(
                f"{source.where} was made by {new.model or 'an unknown model'}, and the head was trained on embeddings "
                f"by {learnt_on.model or 'another'}: {', '.join(differ)}; embed the images like that"
            )
    return config.model_copy(update={"model": config.model.model_copy(update={"features": new})})


def build_dataset(
    config: DataConfig, manifest: Manifest, *, train: bool, seed: int = 0, prepared: PreparedImages | None = None
) -> ImageDataset:
    if isinstance(manifest.source, EmbeddingSource):
        return EmbeddingDataset(manifest)
    transform, prepared = build_transform(config, train=train), prepared or open_prepared(config)
    same: dict[str, Any] = {"reduced": train and config.decoding == "reduced", "prepared": prepared}
    same["cache_bytes"] = size_in_bytes(config.cache)
    same |= {name: getattr(config, name) for name in ("channels", "on_error", "max_pixels")}
    if prepared is not None:
        component = config.train_transform if train else config.test_transform
        assert component is not None
        warn_of_small(prepared, transform.needed_side or 0, component.name)
    return ImageDataset(manifest, transform, seed=seed, **same)


def open_prepared(config: DataConfig) -> PreparedImages | None:
    return None if config.prepared is None else PreparedImages(config.prepared.expanduser())


def build_encoder(config: ModelConfig, *, channels: int, load: bool = True, say: Say | None = None) -> Encoder:
    """Return the encoder to train; with ``load``, its pretrained weights or those of ``model.init_from``."""
    same = encoder_arguments(config)
    if not load or config.init_from is not None:
        same |= {"pretrained": False, "weights": None}
    encoder = Encoder(**same, channels=channels)
    if say is not None:
        for note in encoder.notes:
            say(note)
    if load and config.init_from is not None:
        _initialise(encoder, config.init_from, say)
    if config.freeze is not None:
        freeze(encoder, config.freeze)
    if config.lora is not None:
        add_lora(encoder, **vars(config.lora))
    if config.gradient_checkpointing:
        checkpoint_gradients(encoder, config.backbone)
    return encoder


def encoder_arguments(config: ModelConfig) -> dict[str, Any]:
    of_training = ("init_from", "text", "freeze", "lora", "gradient_checkpointing", "features", "head_start")
    arguments = {name: value for name, value in vars(config).items() if name not in of_training}
    return {**arguments, "width": None if config.features is None else config.features.width}


def describe_model(config: Config) -> str:
    """Return all that decides an embedding of a model that was trained here, beside its weights and the images."""
    first = ("pretrained", "weights", "freeze_batch_norm")  # they decide training, not an embedding
    model = {name: value for name, value in encoder_arguments(config.model).items() if name not in first}
    transform = "" if config.model.backbone == NO_BACKBONE else f" {build_transform(config.data, train=False)!r}"
    views = _views(config)
    return f"{model}{transform}{f' {views}' * (views != MeanOverViews())}"


def encoder_of(checkpoint: dict[str, Any], config: Config, name: str) -> Encoder:
    as_it_is = config.model.model_copy(update={"freeze": None, "gradient_checkpointing": False})
    encoder = build_encoder(as_it_is, channels=config.data.channels, load=False)
    load_part(encoder.load_state_dict, image_weights(checkpoint), name)
    if config.model.lora is not None:
        merge_lora(encoder)
    embed_by_views(encoder, config)
    return encoder


def embed_by_views(encoder: Encoder, config: Config) -> None:
    """Let an encoder embed as the section `evaluate` of its configuration says: evaluate.flip, evaluate.scales."""
    if (views := _views(config)) != MeanOverViews():
        if config.model.backbone == NO_BACKBONE:
            raise UserError("evaluate.flip and evaluate.scales are for images; a head is given saved embeddings")
        size = build_transform(config.data, train=False).size
        add_views(encoder, views, torch.zeros(1, config.data.channels, *size))


def _views(config: Config) -> MeanOverViews:
    return MeanOverViews(config.evaluate.flip, config.evaluate.scales)


def _initialise(encoder: Encoder, source: str, say: Say | None) -> None:
    notes = []
    checkpoint = load_checkpoint(resolve_checkpoint(source))
    if checkpoint["config"].get("model", {}).get("text") is not None:
        notes.append(f"{source} is of images and texts; its image encoder is taken, its text encoder is not")
    trained = read_trained(checkpoint["config"])
    is_plain = trained.model.lora is None
    saved = image_weights(checkpoint) if is_plain else encoder_of(checkpoint, trained, source).state_dict()
    state = encoder.state_dict()
    fits = {name: value for name, value in saved.items() if name in state and state[name].shape == value.shape}
    lacking = [name for name in state if name not in fits]
    if network := [name for name in lacking if not name.startswith("head.")]:
        raise UserError(
            f"model.init_from: {source} does not fit this backbone: {len(network)} tensors are missing or of another "
            f"shape, the first {network[0]!r}; use the backbone, channels and pooling it was trained with"
        )
    if lacking:
        fits = {name: value for name, value in fits.items() if not name.startswith("head.")}  # all or nothing
        notes.append(f"the projection of {source} has another shape; it begins anew, at random")
    encoder.load_state_dict(fits, strict=False)
    if say is not None:
        for note in notes:
            say(f"model.init_from: {note}")


def build_towers(
    config: Config,
    texts: Sequence[str] = (),
    *,
    saved: dict[str, Any] | None = None,
    load: bool = True,
    say: Say | None = None,
) -> TwoTower:
    settings, dim = config.model.text, config.model.dim
    assert settings is not None
    image = build_encoder(config.model, channels=config.data.channels, load=load, say=say)
    embed_by_views(image, config)
    if settings.name != OWN_TEXTS:
        module, tokenise = load_text_model(settings.name, weights=load)
        width = freeze_unused(module, tokenise(["a text"])).shape[1]
        return TwoTower(image, ProjectedText(module, width=width, dim=dim), tokenise).train()
    if saved is None:
        tokeniser = Tokeniser.learn(texts, length=settings.length, vocabulary=settings.vocabulary)
    else:
        with reading("the checkpoint's 'tokeniser'", "one", remedy="use last.safetensors or best.safetensors of a run"):
            tokeniser = Tokeniser(**saved)
    sizes = {name: getattr(settings, name) for name in ("length", "layers", "width", "heads")}
    return TwoTower(image, TextTower(tokeniser.vocabulary, dim=dim, **sizes), tokeniser)


def towers_of(checkpoint: dict[str, Any], config: Config, name: str) -> TwoTower:
    if config.model.text is None:
        remedy = "measure it with aurank evaluate, or train a model of both by setting model.text"
        raise UserError(f"{name} was trained on images alone: model.text is null in its configuration; {remedy}")
    towers = build_towers(config, saved=checkpoint["tokeniser"], load=False)
    load_part(towers.load_state_dict, model_weights(checkpoint), name)
    if config.model.lora is not None:
        merge_lora(towers)
    return towers
