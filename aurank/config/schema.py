"""What a configuration holds: every key with its type, range, default and one line of description."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from aurank.config.cross_checks import TEXT_SIZES, contradictions
from aurank.config.messages import KeyPath, describe, enumerated, one_of, resolve
from aurank.sizes import DURATION, SIZE, seconds, size_in_bytes

# The component that a section uses where its ``name`` is left out.
DEFAULT_NAMES = {
    "data.train_transform": "crop_flip",
    "data.test_transform": "center",
    "sampler": "pk",
    "optim": "adamw",
    "optim.schedule": "constant",
}

# Known to Accelerate.
TRACKERS = ("aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")


def _as_text(value: Any) -> Any:
    # A bare number of bytes is a size too, and one of seconds a time.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _positive_size(text: str) -> str:
    if size_in_bytes(text) < 1:
        raise PydanticCustomError("size", "nothing")
    return text


def _positive_time(text: str) -> str:
    if seconds(text) < 1:
        raise PydanticCustomError("time", "too short")
    return text


def _known_tracker(value: str) -> str:
    if value not in TRACKERS:
        raise PydanticCustomError("tracker", "not a tracker")
    return value


def _distinct(values: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(values)) < len(values):
        raise PydanticCustomError("distinct", "given twice")
    return values


Size = Annotated[
    str,
    BeforeValidator(_as_text),
    Field(pattern=SIZE, json_schema_extra={"expected": "a size such as 512MB or 1GiB, or a number of bytes"}),
]
PositiveSize = Annotated[
    Size,
    AfterValidator(_positive_size),
    Field(json_schema_extra={"expected": "a size above 0 such as 512MB or 1GiB, or a number of bytes"}),
]
Duration = Annotated[
    str,
    BeforeValidator(_as_text),
    AfterValidator(_positive_time),
    Field(
        pattern=DURATION,
        json_schema_extra={"expected": "a time of at least a second such as 90s, 10min or 2h, or a number of seconds"},
    ),
]
Tracker = Annotated[
    str, AfterValidator(_known_tracker), Field(json_schema_extra={"expected": one_of(TRACKERS), "enum": list(TRACKERS)})
]
RecallAt = Annotated[
    tuple[Annotated[int, Field(ge=1, le=10**9)], ...],
    AfterValidator(_distinct),
    Field(min_length=1, json_schema_extra={"expected": "a list of different whole numbers >= 1"}),
]


class Strict(BaseModel):
    """A section that cannot be changed, refuses unknown keys, and takes no text for a number."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Component(Strict):
    """One entry of a table, and the arguments that it is built with."""

    name: str = Field(description="Which one: a name from its table.")
    params: dict[str, Any] = Field(default_factory=dict, description="Its arguments, by the constructor's names.")


def _component(path: str) -> Callable[[], Component]:
    return lambda: Component(name=DEFAULT_NAMES[path])


class NormaliseConfig(Strict):
    """What is taken off the values of an image, from 0 to 1, and what they are divided by, for each channel."""

    mean: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(min_length=1, description="Mean of each channel.")
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1, description="Deviation of each channel.")


class DataConfig(Strict):
    """Which images, and what is done to them."""

    name: str = Field(description="Reader of the data set.")
    params: dict[str, Any] = Field(default_factory=dict, description="Arguments of the reader.")
    root: Path | None = Field(default=None, description="Folder of the data; null: $AURANK_DATA, else ./data.")
    image_size: int = Field(default=224, ge=1, le=8192, description="Height and width after the transform, in pixels.")
    channels: int = Field(default=3, ge=1, le=256, description="Channels of an image: 1 grey, 3 colour.")
    normalise: NormaliseConfig | None = Field(
        default=None, description="Mean and deviation of each channel; null: those that the backbone was trained with."
    )
    interpolation: Literal["area", "nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"] | None = Field(
        default=None,
        description="How images are resized; null: as for the backbone's pretrained weights, else by area.",
    )
    train_transform: Component = Field(
        default_factory=_component("data.train_transform"), description="Augmentation while training."
    )
    test_transform: Component = Field(
        default_factory=_component("data.test_transform"), description="Transform for validation and test."
    )
    views: int = Field(default=1, ge=1, le=16, description="Augmented views of each image in a training batch.")
    train_labels: Literal["class", "image"] = Field(
        default="class", description="Training images of a class are positives, or only the views of one image are."
    )
    validation_fraction: float = Field(
        default=0.1, ge=0, le=0.5, description="Share of the training classes held out where the data has no split."
    )
    workers: int = Field(default=0, ge=0, le=1024, description="Processes that read images; 0 reads in the main one.")
    on_error: Literal["raise", "skip"] = Field(
        default="raise", description="A corrupt image stops the run (raise), or is left out and counted (skip)."
    )
    max_pixels: int = Field(
        default=128_000_000, ge=1, le=178_956_970, description="An image of more pixels counts as corrupt."
    )
    repeated: Literal["refuse", "keep"] = Field(
        default="refuse", description="Images listed more than once stop the run (refuse), or count as others (keep)."
    )
    odd_classes: Literal["refuse", "keep"] = Field(
        default="refuse",
        description="Two classes, or ones named like splits, stop a run (refuse), or are right (keep).",
    )
    cache: Size = Field(default="1GiB", description="A set whose decoded images fit in this is kept in memory.")

    @property
    def cache_bytes(self) -> int:
        """``cache`` as a number of bytes."""
        return size_in_bytes(self.cache)


class SamplerConfig(Strict):
    """Which images make a batch."""

    name: str = Field(default=DEFAULT_NAMES["sampler"], description="Sampler of the batches.")
    batch: int = Field(default=112, ge=2, le=10**6, description="Images drawn for a batch, over all processes.")
    params: dict[str, Any] = Field(default_factory=dict, description="Arguments of the sampler.")


class TextConfig(Strict):
    """The encoder of texts beside that of images: both are trained to find each other's."""

    name: str = Field(
        default="transformer",
        pattern=r"^(transformer|(open_clip|transformers):.+)$",
        description="A transformer from random weights, or a text model of another library, with its own tokens.",
        json_schema_extra={"expected": "transformer, open_clip:NAME or transformers:NAME"},
    )
    layers: int = Field(default=TEXT_SIZES["layers"], ge=1, le=64, description="Layers of the transformer.")
    width: int = Field(default=TEXT_SIZES["width"], ge=1, le=8192, description="Width of the transformer.")
    heads: int = Field(
        default=TEXT_SIZES["heads"], ge=1, le=128, description="Attention heads, which divide the width."
    )
    length: int = Field(
        default=TEXT_SIZES["length"], ge=3, le=4096, description="Tokens of a text, its start and end included."
    )
    vocabulary: int = Field(
        default=TEXT_SIZES["vocabulary"], ge=259, le=10**6, description="Tokens learnt from the texts, at most."
    )


class ModelConfig(Strict):
    """The encoder: backbone, pooling, projection."""

    backbone: str = Field(default="resnet18", min_length=1, description="Name of a timm model.")
    pretrained: bool = Field(default=True, description="Start from timm's weights (fetched once) or at random.")
    dim: int = Field(default=512, ge=1, le=65536, description="Length of an embedding, as the loss sees it.")
    head_layers: int = Field(default=1, ge=1, le=4, description="Layers of the projection; 1 is linear.")
    head_width: int | None = Field(
        default=None, ge=1, le=65536, description="Width between the projection's layers; null: the backbone's."
    )
    discard_head: bool = Field(
        default=False, description="Evaluate what the backbone gives, the projection being for the loss alone."
    )
    pooling: Literal["avg", "max", "gem"] = Field(default="avg", description="How a feature map becomes a vector.")
    freeze_batch_norm: bool = Field(default=False, description="Keep batch-norm statistics and weights as they are.")
    channels_last: bool = Field(default=False, description="Memory format that is faster for convolutions on a GPU.")
    init_from: str | None = Field(default=None, min_length=1, description="Checkpoint to take the first weights from.")
    params: dict[str, Any] = Field(default_factory=dict, description="Further arguments of timm.create_model.")
    text: TextConfig | None = Field(default=None, description="Encoder of texts, trained too; null: images alone.")


class OptimConfig(Strict):
    """How a gradient moves the weights."""

    name: str = Field(default=DEFAULT_NAMES["optim"], description="Optimiser.")
    lr: float = Field(gt=0, le=1000, description="Learning rate after the warm-up.")
    weight_decay: float = Field(default=4e-4, ge=0, le=1000, description="Decay of weights, not of norms and biases.")
    batch_rule: Literal["none", "linear", "sqrt"] = Field(
        default="none", description="The rate is lr, lr * batch / 256 or lr * sqrt(batch), images of an update counted."
    )
    temperature_lr: float | None = Field(
        default=None, gt=0, le=1000, description="Learning rate of the loss's own parameters; null: lr."
    )
    head_lr_multiplier: float = Field(default=1.0, gt=0, le=1e6, description="The projection learns at lr times this.")
    params: dict[str, Any] = Field(default_factory=dict, description="Further arguments of the optimiser.")
    schedule: Component = Field(
        default_factory=_component("optim.schedule"), description="The learning rate's course over the steps."
    )
    warmup_steps: int = Field(default=0, ge=0, le=10**9, description="Steps over which the learning rate rises to lr.")
    clip_norm: float | None = Field(default=None, gt=0, description="Largest norm of the gradient; null: no clipping.")


class TrainConfig(Strict):
    """How long, how precise, what is written when."""

    steps: int = Field(ge=1, le=10**9, description="Updates of the weights.")
    accumulate: int = Field(default=1, ge=1, le=10**6, description="Batches whose gradients make one update.")
    micro_batch: int | None = Field(
        default=None,
        ge=2,
        le=10**6,
        description="Images of a process that the encoder sees at a time, its gradients cached; null: all of a batch.",
    )
    mixed_precision: Literal["no", "fp16", "bf16"] = Field(default="no", description="Precision of the encoder.")
    validate_every: int = Field(
        default=500, ge=1, le=10**9, description="Steps between validations; there is one after the last step too."
    )
    early_stopping: int | None = Field(
        default=None, ge=1, le=10**9, description="Stop after this many validations without improvement; null: never."
    )
    ema: float | None = Field(
        default=None, gt=0, lt=1, description="Decay of a moving average of the weights, such as 0.999; null: none."
    )
    log_every: int = Field(default=10, ge=1, le=10**9, description="Steps between lines of metrics.jsonl.")
    checkpoint_every: int = Field(
        default=500, ge=1, le=10**9, description="Steps between checkpoints; there is one after the last step too."
    )
    keep_last: int = Field(
        default=1,
        ge=1,
        le=100,
        description="Checkpoints kept to resume from: last.pt, and before it last.1.pt, last.2.pt, …",
    )
    timeout: Duration = Field(
        default="30min", description="Of several processes, how long one waits for another: longer than a validation."
    )
    trackers: list[Tracker] = Field(default_factory=list, description="Where else to log, such as tensorboard.")


class MemoryConfig(Strict):
    """References kept from earlier batches (XBM)."""

    size: int = Field(ge=1, le=10**9, description="Embeddings that a batch is compared with, its own included.")
    start_at: int = Field(default=0, ge=0, le=10**9, description="Steps before the memory is used.")


class EvaluateConfig(Strict):
    """How embeddings are measured."""

    recall_at: RecallAt = Field(default=(1, 10, 100, 1000), description="The k of Recall@k and precision@k.")
    metrics: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="Names of docs/metrics.md beside mauprc; null: the usual ones."
    )
    ties: Literal["threshold", "optimistic", "pessimistic"] = Field(
        default="threshold", description="How equal scores count in average precision."
    )
    max_memory: PositiveSize = Field(default="1GiB", description="Bound on the memory of the ranks engine.")
    batch: int = Field(default=256, ge=1, le=10**6, description="Images embedded at once.")


class _Agreeing(Strict):
    """Sections whose keys must agree with each other."""

    @model_validator(mode="after")
    def _agree(self) -> "_Agreeing":
        def look(path: str) -> Any:
            value: Any = self
            for key in path.split("."):
                value = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
            return value

        found = [
            InitErrorDetails(
                type=PydanticCustomError("contradiction", "{text}", {"text": text}),
                loc=tuple(path.split(".")),
                input=look(path),
            )
            for path, text in contradictions(look)
        ]
        if found:
            raise ValidationError.from_exception_data("Config", found)
        return self


class Config(_Agreeing):
    """Everything that a run depends on."""

    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="Seed of all randomness.")
    data: DataConfig = Field(description="Which images, and what is done to them.")
    sampler: SamplerConfig = Field(default_factory=SamplerConfig, description="Which images make a batch.")
    model: ModelConfig = Field(default_factory=ModelConfig, description="The encoder.")
    loss: Component = Field(description="The loss.")
    memory: MemoryConfig | None = Field(
        default=None, description="References kept from earlier batches (XBM); null: none."
    )
    miner: Component | None = Field(default=None, description="Which pairs of a batch count; null: all.")
    optim: OptimConfig = Field(description="How a gradient moves the weights.")
    train: TrainConfig = Field(description="How long, how precise, what is written when.")
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig, description="How embeddings are measured.")


class DataSection(_Agreeing):
    """The data section alone: what measuring a model needs of a configuration."""

    data: DataConfig = Field(description="Which images, and what is done to them.")


@dataclass(frozen=True)
class Key:
    """A key: what it accepts in words, the choices of an enumeration, its default (None: none), what it is for."""

    expected: str
    options: tuple[str, ...]
    default: Any
    description: str


@cache
def known_keys() -> dict[KeyPath, Key]:
    """Every key of ``Config`` by its path, sections too, in their order; documentation and messages are made of it."""
    schema = Config.model_json_schema()
    definitions = schema.get("$defs", {})
    found: dict[KeyPath, Key] = {}

    def visit(section: Mapping[str, Any], path: KeyPath) -> None:
        for name, child in resolve(section, definitions).get("properties", {}).items():
            expected = describe(child, definitions) or "a value"
            options, default = tuple(enumerated(child, definitions)), child.get("default")
            # pydantic leaves out a description that the section's own docstring repeats.
            description = child.get("description") or resolve(child, definitions).get("description", "")
            found[(*path, name)] = Key(expected, options, default, description)
            visit(child, (*path, name))

    visit(schema, ())
    return found
