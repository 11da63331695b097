"""The embedding model: a timm backbone, pooling, a projection and L2 normalisation."""

import importlib
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from aurank.errors import UserError
from aurank.models.adapters.loading import building
from aurank.models.adapters.names import FILLED, is_tower
from aurank.models.adapters.timm import load_file, require_known
from aurank.models.adapters.towers import ImageTower

Pooling = Literal["avg", "max", "gem"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
HEADS = ("head.", "image.head.", "text.head.")  # how names of a projection's parameters begin, of one tower or of two
_NONE = "none"  # the backbone of a head alone, whose inputs are saved embeddings
_POOLS = "; where timm refuses the pooling, model.params.global_pool=avg or token names one that it has"


class GeneralisedMean(nn.Module):
    """Generalised-mean pooling with a learnt power: 1 is the average, infinity the maximum.

    Source: Radenović et al., Fine-tuning CNN image retrieval with no human annotation (TPAMI 2019), Eq. 3,
        https://arxiv.org/abs/1711.02512.

    Example:
        >>> GeneralisedMean(power=1.0)(torch.tensor([[[[1.0, 3.0]]]])).tolist()
        [[2.0]]
    """

    def __init__(self, power: float = 3.0, floor: float = 1e-6) -> None:
        super().__init__()
        self.power = nn.Parameter(torch.tensor(float(power)))
        self.floor = floor

    def forward(self, features: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch channel"]:
        return features.clamp(min=self.floor).pow(self.power).mean(dim=(-2, -1)).pow(1.0 / self.power)


class Encoder(nn.Module):
    """Unit-length embeddings of images.

    Args:
        backbone: any timm model name: ``"resnet18"``, ``"hf-hub:timm/resnet18.a1_in1k"``; or the image tower of another
            library, as ``"transformers:facebook/dinov2-small"`` or
            ``"open_clip:ViT-B-32,pretrained=laion2b_s34b_b79k"``, with its own pooling and channels.
        channels: timm adapts pretrained weights of the first layer to any number.
        pretrained: load published weights (needs the network or a cache).
        weights: a local file or folder of weights of the backbone, in place of ``pretrained``: safetensors, or torch's
            read as data alone, with the names of its library or, for timm, of open_clip; ``notes`` says what was taken.
        pooling: ``"gem"`` needs a backbone with a feature map.
        head_layers: of the projection: 1 is linear; between more there are batch norm and ReLU; SimCLR has 2 (Chen et
            al., ICML 2020).
        head_width: width between those layers; None is the backbone's.
        discard_head: in evaluation mode, give the backbone's pooled features at unit length.
        freeze_batch_norm: the backbone's batch norms keep their running statistics and are not trained.
        channels_last: memory format of the convolutions; faster on recent GPUs, and for depthwise ones on CPUs.
        width: of saved embeddings, with the backbone ``"none"``.
        params: further arguments of ``timm.create_model``; ``global_pool`` among them takes the place of ``pooling``.

    Raises:
        UserError: for an unknown backbone, weights that cannot be had, or a pooling that does not fit.

    Example:
        >>> encoder = Encoder("test_resnet", dim=8, pretrained=False)
        >>> encoder(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        backbone: str = "resnet18",
        *,
        dim: int = 512,
        head_layers: int = 1,
        head_width: int | None = None,
        discard_head: bool = False,
        channels: int = 3,
        pretrained: bool = True,
        weights: str | None = None,
        pooling: Pooling = "avg",
        freeze_batch_norm: bool = False,
        channels_last: bool = False,
        width: int | None = None,
        params: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.discard_head = discard_head
        self.freeze_batch_norm = freeze_batch_norm
        self.held: list[nn.Module] = []  # batch norms of frozen parts, which keep their statistics
        self.backbone: Any = nn.Identity()
        self.notes: list[str] = []
        if backbone != _NONE:
            self.backbone, self.notes = _create_backbone(backbone, pretrained, weights, channels, pooling, params or {})
            # Some timm models have a layer between feature map and vector.
            width = int(getattr(self.backbone, "head_hidden_size", None) or self.backbone.num_features)
        self.pool: nn.Module = GeneralisedMean() if pooling == "gem" else nn.Identity()
        assert width is not None  # the configuration goes with saved embeddings
        self.head = projection(width, dim, layers=head_layers, hidden=head_width)
        self._memory_format = torch.contiguous_format
        lay_out(self, channels_last)
        if freeze_batch_norm:
            for module in self._batch_norms():
                module.requires_grad_(False)
        self.train()

    def forward(self, images: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch dim"]:
        pooled = self.pooled(images)
        with torch.autocast(images.device.type, enabled=False):
            features = pooled if self.discard_head and not self.training else self.head(pooled)
            return functional.normalize(features, dim=-1)

    def pooled(self, images: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch width"]:
        """Return what the projection is given."""
        features = self.backbone(images.contiguous(memory_format=self._memory_format))
        # Half precision has two or three digits: similarities would be rounded far above the differences that rank.
        with torch.autocast(images.device.type, enabled=False):
            pooled: Tensor = self.pool(features.to(next(self.head.parameters()).dtype))
            return pooled

    def train(self, mode: bool = True) -> "Encoder":
        super().train(mode)
        for module in self._batch_norms() if self.freeze_batch_norm else self.held:
            module.eval()
        return self

    def _batch_norms(self) -> list[nn.Module]:
        return [module for module in self.backbone.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


class Pooled(nn.Module):
    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        return self.encoder.pooled(images)


class EachPart(nn.Sequential):
    def __init__(self, model: nn.Module, *, compiled: bool = False) -> None:
        super().__init__(model)
        # The second size of a batch is compiled for all further ones.
        self._compiled: Callable[[Tensor], Tensor] | None = torch.compile(model.forward) if compiled else None

    def forward(self, batch: Tensor | tuple[Tensor, ...]) -> Float[Tensor, "item dim"]:
        model = self[0] if self._compiled is None or not self.training else self._compiled
        parts = [model(part) for part in (batch if isinstance(batch, tuple) else (batch,))]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def lay_out(module: nn.Module, channels_last: bool) -> None:
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    for part in module.modules():
        if isinstance(part, Encoder):
            part._memory_format = memory_format
    module.to(memory_format=memory_format)


def is_channels_last(module: nn.Module) -> bool:
    kernels = (value for value in module.parameters() if value.ndim == 4 and not value.is_contiguous())
    return any(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)


def projection(width: int, dim: int, *, layers: int = 1, hidden: int | None = None) -> nn.Module:
    if layers == 1:
        return nn.Linear(width, dim)
    widths = [width, *[hidden or width] * (layers - 1)]
    inner: list[nn.Module] = []
    for before, after in pairwise(widths):
        # Its bias would be taken off again by the batch norm.
        inner += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*inner, nn.Linear(widths[-1], dim))


@torch.no_grad()
def start_at_pca(head: nn.Linear, rows: Float[Tensor, "row width"]) -> None:
    mean = rows.double().mean(dim=0)
    centred = rows.double() - mean
    axes = torch.linalg.eigh(centred.T @ centred).eigenvectors.T.flip(0)[: head.out_features]
    largest = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True))
    axes *= largest.sign()  # an eigenvector has no sign of its own
    head.weight.copy_(axes)
    head.bias.copy_(-axes @ mean)


class _FeatureMap(nn.Module):
    """The last feature map [batch, channel, height, width] of a convolutional or hierarchical timm model."""

    def __init__(self, name: str, model: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.model = model
        self.num_features = int(model.num_features)  # type: ignore[arg-type]  # channels of the last feature map
        self.last = getattr(model, "output_fmt", "NCHW") == "NHWC"
        self.forward_head = nn.Identity()  # the second of the parts that timm's networks have

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model.forward_features(images)  # type: ignore[operator]
        if features.ndim != 4:
            raise UserError(
                f"model.pooling=gem needs a backbone with a feature map, but {self.name} gives tokens "
                f"{tuple(features.shape)}; use model.pooling=avg"
            )
        return features.permute(0, 3, 1, 2) if self.last else features

    forward_features = forward


def _create_backbone(
    name: str, pretrained: bool, weights: str | None, channels: int, pooling: Pooling, params: dict[str, Any]
) -> tuple[Any, list[str]]:
    if is_tower(name):
        tower = ImageTower(name, pretrained=pretrained, weights=weights)
        return tower, [f"model.weights: {text}" for text in tower.notes]
    require_known(name, params, of="model.params" if params else "model.backbone", filled=FILLED)
    is_map, fetched = pooling == "gem", pretrained and weights is None
    options = {"in_chans": channels, "num_classes": 0, **params, **({"global_pool": ""} if is_map else {})}
    options.setdefault("global_pool", pooling)
    settings = f"pooling={pooling!r}, channels={channels}, params={params}"
    # A name on a hub is looked up there, whatever becomes of its weights.
    with building(f"model.backbone={name} with {settings}", pretrained=fetched or ":" in name, remedy=_POOLS):
        model = importlib.import_module("timm").create_model(name, pretrained=fetched, **options)
    backbone = _FeatureMap(name, model) if is_map else model
    return backbone, [] if weights is None else [f"model.weights: {load_file(model, weights, name=name)}"]


def network_of(backbone: nn.Module) -> nn.Module:
    network = backbone.model if isinstance(backbone, _FeatureMap | ImageTower) else backbone
    if isinstance(backbone, ImageTower):
        network = getattr(network, "model", network)  # transformers' models stand in a wrapper
    return network


def parameter_groups(
    encoder: nn.Module,
    *,
    weight_decay: float,
    head_lr_multiplier: float = 1.0,
    scales: Mapping[nn.Parameter, float] | None = None,
) -> list[dict[str, Any]]:
    """Return optimiser groups: {backbone, head} × {decayed, not decayed}; one-dimensional parameters are not."""
    groups: dict[str, dict[str, Any]] = {}
    scales = scales or {}
    for name, parameter in encoder.named_parameters():
        if not parameter.requires_grad:
            continue
        head, scale = name.startswith(HEADS), scales.get(parameter, 1.0)
        decay = parameter.ndim > 1
        key = f"{'head' if head else 'backbone'}{'' if decay else '_no_decay'}{'' if scale == 1 else f'_{scale!r}'}"
        rates = {"weight_decay": weight_decay * decay, "lr_multiplier": head_lr_multiplier if head else scale}
        groups.setdefault(key, {"name": key, "params": [], **rates})["params"].append(parameter)
    return list(groups.values())
