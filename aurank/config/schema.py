"""What a configuration holds: every key with its type, range, default and one line of description."""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from aurank.config.components import Choices
from aurank.config.messages import LIST, ONE, shorten
from aurank.ranges import Range
from aurank.sizes import seconds, size_in_bytes

# The reader of saved embeddings, and what stands for the backbone that made them.
EMBEDDINGS, NO_BACKBONE = "embeddings", "none"


def _must(fits: Callable[[Any], object], expected: str) -> AfterValidator:
    def check(value: Any) -> Any:
        try:
            if fits(value):
                return value
        except ValueError:
            pass
        raise PydanticCustomError("expected", "Input should be {expected}", {"expected": expected})

    return AfterValidator(check)


# A bare number of bytes is a size too, and one of seconds a time.
_AsText = BeforeValidator(lambda value: str(value) if type(value) is int else value)
Size = Annotated[str, _AsText, _must(lambda text: size_in_bytes(text) >= 0, "a size such as 512MB, 1GiB or 0")]
PositiveSize = Annotated[str, _AsText, _must(size_in_bytes, "a size above 0 such as 512MB or 1GiB")]
Duration = Annotated[
    str, _AsText, _must(lambda text: seconds(text) >= 1, "a time of at least a second, such as 90s, 10min or 2h")
]
# Known to Accelerate.
Tracker = Literal["aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb"]
Rate = Annotated[float, Range(1e-5, 3e-2, log=True)]
Decay = Annotated[float, Range(1e-5, 1.0, log=True)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Scales = Annotated[tuple[Annotated[float, Field(gt=0, le=8)], ...], _must(len, "at least one number above 0")]
RecallAt = Annotated[
    tuple[Count, ...],
    _must(lambda values: values and len(set(values)) == len(values), "a list of different whole numbers >= 1"),
]
Interpolation = Literal["area", "nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
Ties = Literal["threshold", "optimistic", "pessimistic"]
RefuseOrKeep = Literal["refuse", "keep"]
Positives = Literal["any", "equal", "jaccard"] | Annotated[float, Field(gt=0, le=1)]
Names = Annotated[tuple[str, ...], Field(min_length=1)]
TextModel = Annotated[
    str,
    _must(
        re.compile("transformer$|(open_clip|transformers):").match, "transformer, open_clip:NAME or transformers:NAME"
    ),
]
_AsTuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
Freeze = Annotated[Names, _AsTuple, BeforeValidator(lambda value: ["backbone"] if value == "backbone" else value)]
Widths = Annotated[
    tuple[Count, ...],
    _must(
        lambda widths: widths and list(widths) == sorted(set(widths)),
        "a list of rising whole numbers >= 1, such as [64, 128]",
    ),
]
Params = Annotated[dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)]


def _sides(value: Any) -> Any:
    both = (value, value) if type(value) is int else tuple(value) if isinstance(value, list | tuple) else ()
    if len(both) != 2 or not all(type(side) is int and 1 <= side <= 8192 for side in both):
        expected = "a whole number from 1 to 8192, or two of them, [height, width]"
        raise PydanticCustomError("expected", "Input should be {expected}", {"expected": expected})
    return both[0] if both[0] == both[1] else both


Sides = Annotated[int | tuple[int, int], BeforeValidator(_sides)]


def key(default: Any, description: str, **limits: Any) -> Any:
    return Field(default=default, description=description, **limits)


class Strict(BaseModel):
    """A section that cannot be changed, refuses unknown keys, and takes no text for a number."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Component(Strict):
    """One entry of a table, and the arguments that it is built with.

    Example:
        >>> Component(name="soprc", params={"tau1": 0.1}).params
        {'tau1': 0.1}
    """

    model_config = ConfigDict(validate_default=True)
    table: ClassVar[str] = ""  # its key in the choices that `load_config` hands to the validation

    name: str = Field(description="Name of the component.")
    params: Params = key({}, "Arguments of its constructor.")

    @field_validator("name", "params")
    @classmethod
    def _fit(cls, value: Any, info: Any) -> Any:
        choices: Choices | None = (info.context or {}).get("choices", {}).get(cls.table)
        if choices is None:
            return value
        if info.field_name == "params":
            return choices.fit(info.data["name"], value) if "name" in info.data else value
        if value not in choices.table:
            options = ", ".join(map(repr, choices.table))
            raise PydanticCustomError("name", "Input should be one of {options}", {"options": options})
        return value


class Augmentation(Component):
    table = "data.train_transform"
    name: str = key("crop_flip", "Name of the component.")


class Transform(Component):
    table = "data.test_transform"
    name: str = key("center", "Name of the component.")


class Miner(Component):
    table = "miner"


class LossTerm(Component):
    """One loss of the sum that training minimises, and how its own parameters learn.

    Example:
        >>> LossTerm(name="proxy_anchor", weight=0.5, lr_multiplier=100.0).matryoshka is None
        True
    """

    table = "loss"
    weight: float = key(1.0, "Weight in the sum.", gt=0, le=1e9)
    miner: Miner | None = key(None, "Which pairs of a batch count for it; null: the top-level `miner`.")
    matryoshka: Widths | None = key(None, "Widths of embeddings whose losses are summed; null: the whole embedding.")
    lr_multiplier: float | None = key(None, "Rate of its own parameters; null: optim.temperature_lr.", gt=0, le=1e6)
    weight_decay: float = key(0.0, "Decay of its own vectors, such as proxies.", ge=0, le=1000)


class Schedule(Component):
    table = "optim.schedule"
    name: str = key("constant", "Name of the component.")


class NormaliseConfig(Strict):
    """Mean and deviation that normalise each channel of an image, whose values are from 0 to 1."""

    mean: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(min_length=1, description="Mean of each channel.")
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1, description="Deviation of each channel.")


class DataConfig(Component):
    """Which images, and what is done to them.

    Example:
        >>> DataConfig(name="digits").image_size
        224
    """

    table = "data"
    root: Path | None = key(None, "Folder of the data; null: $AURANK_DATA, else ./data.")
    prepared: Path | None = key(None, "Folder of aurank data prepare, to read images from; null: the originals.")
    image_size: Sides = key(224, "Pixels of what a model sees: one number, or [height, width].")
    channels: int = key(3, "Channels of an image: 1 grey, 3 colour.", ge=1, le=256)
    normalise: NormaliseConfig | None = key(None, "Mean and deviation of each channel; null: the backbone's.")
    resize: Literal["crop", "pad", "squash"] = key("crop", "Images of another shape: cut, given a border, or squeezed.")
    interpolation: Interpolation | None = key(None, "How images are resized; null: the backbone's, else by area.")
    decoding: Literal["reduced", "whole"] | None = key(
        None, "Training JPEGs: decoded smaller, or whole; null: reduced."
    )
    train_transform: Augmentation = Field(default_factory=Augmentation, description="Augmentation while training.")
    test_transform: Transform | None = key(None, "For validation and test; null: the backbone's, else center.")
    views: int = key(1, "Augmented views of each image in a training batch.", ge=1, le=16)
    train_labels: Literal["class", "image"] = key("class", "Positives are images of a class, or views of one image.")
    validation_fraction: float = key(0.1, "Training classes held out where the data has no split.", ge=0, le=0.5)
    validation_by: Literal["class", "super_category"] = key("class", "Held out: classes, or whole super-categories.")
    workers: int = key(0, "Processes that read images; 0 reads in the main one.", ge=0, le=1024)
    on_error: Literal["raise", "skip"] = key("raise", "A corrupt image stops the run, or is left out and counted.")
    max_pixels: int = key(128_000_000, "An image of more pixels counts as corrupt.", ge=1, le=178_956_970)
    repeated: RefuseOrKeep = key("refuse", "Images listed twice stop the run, or are kept.")
    odd_classes: RefuseOrKeep = key(
        "refuse", "Only two classes, or classes named like splits, stop the run, or are kept."
    )
    cache: Size = key("1GiB", "A set whose decoded images fit in this is kept in memory.")


class SamplerConfig(Component):
    table = "sampler"
    name: str = key("pk", "Sampler of the batches.")
    batch: int = key(112, "Images drawn for a batch, over all processes.", ge=2, le=10**6)


class TextConfig(Strict):
    """The encoder of texts; it and the encoder of images are trained to find each other's embeddings."""

    name: TextModel = key("transformer", "A transformer from random weights, or another library's, with its tokens.")
    layers: int = key(4, "Layers of the transformer.", ge=1, le=64)
    width: int = key(256, "Width of the transformer.", ge=1, le=8192)
    heads: int = key(4, "Attention heads, which divide the width.", ge=1, le=128)
    length: int = key(32, "Tokens of a text, its start and end included.", ge=3, le=4096)
    vocabulary: int = key(8192, "Tokens learnt from the texts, at most.", ge=259, le=10**6)


class LoraConfig(Strict):
    """Adapters of low rank beside layers of the backbone (peft); only they and the projection are trained."""

    rank: int = key(8, "Rank of an adapter.", ge=1, le=4096)
    alpha: float = key(16.0, "Adapters are multiplied by alpha / rank.", gt=0, le=1e6)
    targets: Names | None = key(None, "Ends of the names of layers; null: linear ones into attention.", min_length=1)


class SavedFeatures(Strict):
    """The embeddings that a head was trained on, as their file describes them."""

    width: Count = Field(description="Length of an embedding.")
    model: str | None = key(None, "The model that made them, as --model takes it; null: unknown.")
    weights_sha256: str | None = key(None, "Digest of its weights.")
    preprocessing: str | None = key(None, "How it preprocessed images, in words.")
    precision: str = key("", "What else changes the embeddings, in words: bf16, prepared images.")


class ModelConfig(Strict):
    """The encoder: backbone, pooling, projection.

    Example:
        >>> ModelConfig(backbone="resnet50").dim
        512
    """

    backbone: str = key("resnet18", "A timm model, open_clip:NAME, transformers:NAME; none: a head.", min_length=1)
    pretrained: bool = key(True, "Start from published weights (fetched once) or at random.")
    weights: str | None = key(None, "File or folder of weights of the backbone, in place of pretrained.", min_length=1)
    dim: int = key(512, "Length of an embedding, as the loss sees it.", ge=1, le=65536)
    head_layers: int = key(1, "Layers of the projection; 1 is linear.", ge=1, le=4)
    head_width: int | None = key(None, "Width between the projection's layers; null: the backbone's.", ge=1, le=65536)
    head_start: Literal["pca", "identity", "random"] | None = key(
        None, "First weights of a linear projection; null: pca or identity on saved embeddings, else random."
    )
    discard_head: bool = key(False, "Measure the output of the backbone; the projection serves the loss alone.")
    pooling: Literal["avg", "max", "gem"] = key("avg", "How a feature map becomes a vector.")
    freeze: Freeze | None = key(None, "Not trained: backbone, or names of its parameters; null: nothing.")
    lora: LoraConfig | None = key(None, "Train adapters in place of the backbone; null: none.")
    gradient_checkpointing: bool = key(False, "Compute activations again in the backward pass, to save memory.")
    freeze_batch_norm: bool = key(False, "Keep batch-norm statistics and weights as they are.")
    channels_last: bool = key(False, "Memory format: faster on recent GPUs, and for depthwise convolutions on CPUs.")
    init_from: str | None = key(None, "Checkpoint to take the first weights from.", min_length=1)
    params: Params = key({}, "Further arguments of timm.create_model.")
    text: TextConfig | None = key(None, "Encoder of texts, trained too; null: images alone.")
    features: SavedFeatures | None = key(None, "Of saved embeddings, filled in (data.name=embeddings).")


class OptimConfig(Component):
    table = "optim"
    name: str = key("adamw", "Optimiser.")
    lr: Rate = Field(gt=0, le=1000, description="Learning rate after the warm-up.")
    weight_decay: Decay = key(4e-4, "Decay of weights, not of norms and biases.", ge=0, le=1000)
    batch_rule: Literal["none", "linear", "sqrt"] = key("none", "Rate: lr, lr * images / 256 or lr * sqrt(images).")
    temperature_lr: float | None = key(None, "Learning rate of the loss's own parameters; null: lr.", gt=0, le=1000)
    head_lr_multiplier: float = key(1.0, "The projection learns at lr times this.", gt=0, le=1e6)
    layer_decay: float | None = key(None, "Rate of a layer over that of the next; null: one rate for all.", gt=0, le=1)
    schedule: Schedule = Field(default_factory=Schedule, description="The learning rate's course over the steps.")
    warmup_steps: int = key(0, "Steps over which the learning rate rises to lr.", ge=0, le=10**9)
    clip_norm: float | None = key(None, "Largest norm of the gradient; null: no clipping.", gt=0)


class TrainConfig(Strict):
    steps: Count = Field(description="Updates of the weights.")
    accumulate: int = key(1, "Batches whose gradients make one update.", ge=1, le=10**6)
    micro_batch: int | None = key(None, "Images encoded at a time, gradients cached; null: all.", ge=2, le=10**6)
    compile: bool = key(False, "Compile the encoder (torch.compile): a minute or more at first, then faster steps.")
    mixed_precision: Literal["no", "fp16", "bf16"] = key("no", "Precision of the encoder.")
    validate_every: Count = key(500, "Steps between validations; there is one after the last step too.")
    early_stopping: Count | None = key(None, "Stop after this many validations without improvement; null: never.")
    ema: float | None = key(None, "Decay of a moving average of the weights, such as 0.999; null: none.", gt=0, lt=1)
    log_every: Count = key(10, "Steps between lines of metrics.jsonl.")
    checkpoint_every: Count = key(500, "Steps between checkpoints; there is one after the last step too.")
    timeout: Duration = key("30min", "Longest wait for another process; longer than a validation takes.")
    trackers: list[Tracker] = key([], "Where else to log, such as tensorboard.")


class MemoryConfig(Strict):
    size: Count = Field(description="Embeddings that a batch is compared with, its own included.")
    start_at: int = key(0, "Steps before the memory is used.", ge=0, le=10**9)


class EvaluateConfig(Strict):
    recall_at: RecallAt = key((1, 10, 100, 1000), "The k of Recall@k and precision@k.")
    metrics: Names | None = key(None, "Names of docs/metrics.md beside mauprc; null: the usual ones.", min_length=1)
    positives: Positives | None = key(None, "Of several labels: any, equal, jaccard (null) or a least Jaccard index.")
    ties: Ties = key("threshold", "How equal scores count in average precision.")
    max_memory: PositiveSize = key("1GiB", "Bound on the memory of the ranks engine.")
    batch: int = key(256, "Images embedded at once.", ge=1, le=10**6)
    flip: bool = key(False, "Embed the mirror image of an image too, and take the mean.")
    scales: Scales = key((1.0,), "Sizes at which an image is embedded, times data.image_size; the mean is taken.")


OneOrMore = Annotated[
    Annotated[LossTerm, Tag(ONE)] | Annotated[tuple[LossTerm, ...], _must(len, "at least one loss"), Tag(LIST)],
    Discriminator(lambda value: LIST if isinstance(value, (list, tuple)) else ONE),
]


class DataSection(Strict):
    """The sections of a configuration that measuring a model needs."""

    seed: int = key(0, "Seed of all randomness.", ge=0, le=2**32 - 1)
    data: DataConfig = Field(description="Which images, and what is done to them.")
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig, description="How embeddings are measured.")


class Config(DataSection):
    """Everything that a run depends on; ``load_config`` builds it from a file.

    Example:
        >>> from aurank.config.schema import DataConfig, OptimConfig, TrainConfig
        >>> parts = {"data": DataConfig(name="digits"), "optim": OptimConfig(lr=0.1), "train": TrainConfig(steps=5)}
        >>> Config(loss=LossTerm(name="soprc"), **parts).sampler.batch
        112
    """

    sampler: SamplerConfig = Field(default_factory=SamplerConfig, description="Which images make a batch.")
    model: ModelConfig = Field(default_factory=ModelConfig, description="The encoder.")
    loss: OneOrMore = Field(description="The loss, or a list of losses whose weighted sum it is.")
    memory: MemoryConfig | None = key(None, "References kept from earlier batches (XBM); null: none.")
    miner: Miner | None = key(None, "Which pairs of a batch count; null: all.")
    optim: OptimConfig = Field(description="How a gradient moves the weights.")
    train: TrainConfig = Field(description="How long, how precise, what is written when.")

    @property
    def terms(self) -> tuple[LossTerm, ...]:
        """The losses whose weighted sum is trained, one or more."""
        return self.loss if isinstance(self.loss, tuple) else (self.loss,)

    @model_validator(mode="after")
    def _keys_agree(self, info: Any) -> "Config":
        context = info.context or {}
        wrong = [*_unused(self), *_contradictions(self, context.get("choices", {}).get("loss"))]
        wrong += context.get("complaints", lambda _: ())(self)
        errors = [
            InitErrorDetails(
                type=PydanticCustomError("contradiction", "{text}", {"text": text}), loc=(path,), input=None
            )
            for path, text in wrong
        ]
        if errors:
            raise ValidationError.from_exception_data("configuration", errors)
        return self


def _unused(config: Config) -> Iterator[tuple[str, str]]:
    data, model = config.data, config.model
    for applies, keys, reason in (
        (
            data.name == EMBEDDINGS,
            "data.views data.train_labels data.normalise data.interpolation data.decoding data.prepared data.channels "
            "data.train_transform data.test_transform data.image_size data.resize model.pooling model.params "
            "model.text model.freeze_batch_norm model.channels_last model.discard_head model.weights model.freeze "
            "model.lora model.gradient_checkpointing optim.layer_decay",
            f"data.name={EMBEDDINGS} holds what a backbone gave of images",
        ),
        (
            model.backbone.startswith(("open_clip:", "transformers:")),
            "model.pooling model.params data.channels",
            f"{model.backbone} has pooling, channels and options of its own, which follow its name after commas",
        ),
        (model.init_from is not None, "model.weights", "model.init_from brings all weights"),
        (model.head_layers > 1, "model.head_start", f"a projection of {model.head_layers} layers starts at random"),
        (model.lora is not None, "model.freeze", "with model.lora all but the adapters is frozen already"),
        (
            "backbone" in (model.freeze or ()),
            "model.discard_head model.gradient_checkpointing optim.layer_decay",
            "model.freeze=backbone trains the projection alone",
        ),
        (
            model.text is not None,
            "data.views data.train_labels memory model.discard_head model.head_start",
            "with model.text, images and texts are compared by their projections",
        ),
        (
            model.text is not None and model.text.name != "transformer",
            "model.text.layers model.text.width model.text.heads model.text.length model.text.vocabulary",
            f"{model.text and model.text.name} brings its own",
        ),
    ):
        for path in keys.split() if applies else ():
            value = attrgetter(path)(config)
            if value != known_keys()[path].get_default(call_default_factory=True):
                yield path, f"got {shorten(repr(value))}, which has no use: {reason}; leave it out"


def _contradictions(config: Config, losses: Choices | None) -> Iterator[tuple[str, str]]:
    data, model, memory, sampler, steps = config.data, config.model, config.memory, config.sampler, config.train.steps
    late = {"optim.warmup_steps": (config.optim.warmup_steps, steps // 10)}
    if memory is not None:
        late["memory.start_at"] = (memory.start_at, 0)
        batch = sampler.batch * data.views
        if memory.size <= batch:
            expected = f"expected more than sampler.batch * data.views = {batch}: a batch is part of the memory"
            yield "memory.size", f"got {memory.size}, {expected}"
    for path, (value, better) in late.items():
        if value >= steps:
            remedy = f"set {path}={better} or raise train.steps"
            yield path, f"got {value}, expected less than train.steps = {steps}; {remedy}"
    if data.train_labels == "image":
        if sampler.name in ("pk", "hard_negative", "hierarchical"):
            reason = "draws images of one class, but data.train_labels=image gives each a label of its own"
            yield "sampler.name", f"got {sampler.name!r}, which {reason}; set sampler.name=shuffled"
        if data.views == 1:
            yield "data.views", "got 1, expected at least 2: the views of an image are its positives"
    if (model.backbone == NO_BACKBONE) != (data.name == EMBEDDINGS):
        expected = f"data.name={EMBEDDINGS} goes with model.backbone={NO_BACKBONE} and with no other"
        yield "model.backbone", f"got {model.backbone!r} for data.name={data.name}, but {expected}"
    names = [term.name for term in config.terms]
    for number, term in enumerate(config.terms):
        path = f"loss[{number}]" if isinstance(config.loss, tuple) else "loss"
        if names.count(term.name) > 1:
            yield f"{path}.name", f"got {term.name!r} more than once; list a loss once, with the weight of all"
        if term.matryoshka is not None and term.matryoshka[-1] > model.dim:
            yield f"{path}.matryoshka", f"got {term.matryoshka[-1]}, expected at most model.dim = {model.dim}"
        if term.params.get("two_way") is (model.text is None):
            expected = "with model.text images and texts are compared both ways, without it there are no texts"
            yield f"{path}.params.two_way", f"got {term.params['two_way']}: {expected}; leave it out"
        if losses is not None and model.text is not None and "two_way" not in losses.arguments(term.name):
            options = ", ".join(name for name in losses.table if "two_way" in losses.arguments(name))
            yield (
                f"{path}.name",
                f"got {term.name!r}, which compares images alone; with model.text take {options}",
            )


@cache
def known_keys() -> dict[str, FieldInfo]:
    """Return pydantic's field of every key of ``Config`` by its dotted path, sections too, in their order.

    Example:
        >>> known_keys()["optim.lr"].description
        'Learning rate after the warm-up.'
    """
    return dict(_keys(Config, ""))


def _keys(annotation: Any, path: str) -> Iterator[tuple[str, FieldInfo]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield path + name, field
            yield from _keys(field.annotation, f"{path}{name}.")
    for part in get_args(annotation):
        yield from _keys(part, path)
