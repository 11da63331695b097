"""The embedding model: a timm backbone, pooling, a linear projection and L2 normalisation."""

import difflib
from typing import Any, Literal

import timm
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from aurank.errors import UserError

Pooling = Literal["avg", "max", "gem"]
POOLINGS: tuple[Pooling, ...] = ("avg", "max", "gem")


class GeneralisedMean(nn.Module):
    """Generalised-mean pooling with a learnt power: 1 is the average, infinity the maximum.

    Source: Radenović et al., Fine-tuning CNN image retrieval with no human annotation (TPAMI 2019), Eq. 3.
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
        backbone: any timm model name, ``"resnet18"`` or ``"vit_small_patch16_224"``.
        dim: width of the embedding.
        channels: image channels; timm adapts pretrained weights of the first layer to any number.
        pretrained: load timm's published weights (needs the network or timm's cache).
        pooling: ``"avg"``, ``"max"`` or ``"gem"``; ``"gem"`` needs a backbone with a feature map.
        freeze_batch_norm: batch-norm layers keep their running statistics and are not trained, as all the
            experiments of the SOPRC paper do with pretrained backbones.
        channels_last: memory format of the convolutions; faster on recent GPUs.
        params: further arguments of ``timm.create_model``.

    Raises:
        UserError: for an unknown backbone, weights that cannot be had, or a pooling that does not fit.
    """

    def __init__(
        self,
        backbone: str = "resnet18",
        *,
        dim: int = 512,
        channels: int = 3,
        pretrained: bool = True,
        pooling: Pooling = "avg",
        freeze_batch_norm: bool = False,
        channels_last: bool = False,
        params: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.freeze_batch_norm = freeze_batch_norm
        self.backbone = _create_backbone(backbone, pretrained, channels, pooling, params or {})
        self.pool: nn.Module = GeneralisedMean() if pooling == "gem" else nn.Identity()
        self.head = nn.Linear(int(self.backbone.num_features), dim)
        self._memory_format = torch.channels_last if channels_last else torch.contiguous_format
        if channels_last:
            self.to(memory_format=torch.channels_last)
        if freeze_batch_norm:
            for module in self._batch_norms():
                module.requires_grad_(False)
        self.train()

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch dim"]:
        features = self.backbone(images.contiguous(memory_format=self._memory_format))
        return functional.normalize(self.head(self.pool(features)), dim=-1)

    def train(self, mode: bool = True) -> "Encoder":
        super().train(mode)
        if self.freeze_batch_norm:
            for module in self._batch_norms():
                module.eval()
        return self

    def _batch_norms(self) -> list[nn.Module]:
        return [module for module in self.backbone.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


class _FeatureMap(nn.Module):
    """The last feature map [batch, channel, height, width] of a convolutional or hierarchical timm model."""

    def __init__(self, name: str, model: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.model = model
        self.num_features = int(model.num_features)  # type: ignore[arg-type]
        self.last = getattr(model, "output_fmt", "NCHW") == "NHWC"

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model.forward_features(images)  # type: ignore[operator]
        if features.ndim != 4:
            raise UserError(
                f"model.pooling=gem needs a backbone with a feature map, but {self.name} gives tokens "
                f"{tuple(features.shape)}; use model.pooling=avg"
            )
        return features.permute(0, 3, 1, 2) if self.last else features


def _create_backbone(name: str, pretrained: bool, channels: int, pooling: Pooling, params: dict[str, Any]) -> Any:
    if not timm.is_model(name.split(".")[0]):
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else "; timm.list_models() names them all"
        raise UserError(f"model.backbone: timm has no model {name!r}{hint}")
    pool = "" if pooling == "gem" else pooling
    try:
        model = timm.create_model(
            name, pretrained=pretrained, in_chans=channels, num_classes=0, global_pool=pool, **params
        )
    except (TypeError, AssertionError, ValueError) as error:
        raise UserError(
            f"model: timm cannot build {name!r} with pooling={pooling!r}, params={params}: {error}"
        ) from error
    except Exception as error:
        if not pretrained:
            raise
        raise UserError(
            f"model.pretrained: the weights of {name!r} could not be loaded ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}); connect to the network once, or set model.pretrained=false"
        ) from error
    return _FeatureMap(name, model) if pooling == "gem" else model


def parameter_groups(encoder: Encoder, *, weight_decay: float, head_lr_multiplier: float = 1.0) -> list[dict[str, Any]]:
    """Optimiser groups: {backbone, head} × {decayed, not decayed}; empty ones are left out.

    Norms, biases and other one-dimensional parameters are not decayed. Each group carries its ``name`` and an
    ``lr_multiplier`` (1 for the backbone, ``head_lr_multiplier`` for the projection) for the learning rate.
    """
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in encoder.named_parameters():
        if not parameter.requires_grad:
            continue
        head = name.startswith("head.")
        decay = parameter.ndim > 1
        key = f"{'head' if head else 'backbone'}{'' if decay else '_no_decay'}"
        group = groups.setdefault(
            key,
            {
                "name": key,
                "params": [],
                "weight_decay": weight_decay if decay else 0.0,
                "lr_multiplier": head_lr_multiplier if head else 1.0,
            },
        )
        group["params"].append(parameter)
    return list(groups.values())
