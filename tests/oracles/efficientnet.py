"""EfficientNets in the layout of EfficientNet-PyTorch: drawn weights, and the pooled features that they give."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

# Repeats, kernel, stride, expansion and channels of each stage: Table 1 of EfficientNet (ICML 2019).
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


@dataclass(frozen=True)
class Block:
    kernel: int
    stride: int
    expansion: int
    channels: int


def lite_blocks(width: float, depth: float) -> list[Block]:
    """Blocks of a lite network, whose first and last stage are never repeated."""
    blocks = []
    for stage, (repeats, kernel, stride, expansion, channels) in enumerate(STAGES):
        if stage not in (0, len(STAGES) - 1):
            repeats = -int(-repeats * depth // 1)
        rounded = int(channels * width + 4) // 8 * 8
        rounded += 8 if rounded < 0.9 * channels * width else 0
        blocks += [Block(kernel, stride if at == 0 else 1, expansion, rounded) for at in range(repeats)]
    return blocks


def draw(blocks: list[Block], *, squeeze: bool, generator: Generator) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}

    def normal(*shape: int) -> Tensor:
        fan_in = torch.Size(shape[1:]).numel()
        return torch.randn(shape, generator=generator) * (2 / fan_in) ** 0.5

    def convolution(name: str, outgoing: int, incoming: int, kernel: int, norm: str) -> None:
        weights[f"{name}.weight"] = normal(outgoing, incoming, kernel, kernel)
        for tensor in ("weight", "running_var"):
            weights[f"{norm}.{tensor}"] = torch.rand(outgoing, generator=generator) + 0.5
        for tensor in ("bias", "running_mean"):
            weights[f"{norm}.{tensor}"] = torch.randn(outgoing, generator=generator) / 10
        weights[f"{norm}.num_batches_tracked"] = torch.tensor(7)

    convolution("_conv_stem", 32, 3, 3, "_bn0")
    incoming = 32
    for number, block in enumerate(blocks):
        name, inner = f"_blocks.{number}", incoming * block.expansion
        if block.expansion > 1:
            convolution(f"{name}._expand_conv", inner, incoming, 1, f"{name}._bn0")
        convolution(f"{name}._depthwise_conv", inner, 1, block.kernel, f"{name}._bn1")
        if squeeze:
            for layer, shape in {"_se_reduce": (incoming // 4, inner), "_se_expand": (inner, incoming // 4)}.items():
                weights |= {
                    f"{name}.{layer}.weight": normal(*shape, 1, 1),
                    f"{name}.{layer}.bias": normal(shape[0], 4)[:, 0],
                }
        convolution(f"{name}._project_conv", block.channels, inner, 1, f"{name}._bn2")
        incoming = block.channels
    convolution("_conv_head", 1280, incoming, 1, "_bn1")
    return weights | {"_fc.weight": normal(1000, 1280), "_fc.bias": normal(1000, 4)[:, 0]}


def pooled_features(weights: dict[str, Tensor], blocks: list[Block], images: Tensor) -> Tensor:
    """Lite networks have ReLU6 and no squeeze; with a squeeze the activation is Swish, as in B0 to B7."""
    activate = F.silu if "_blocks.0._se_reduce.weight" in weights else F.relu6

    def layer(x: Tensor, name: str, norm: str, stride: int = 1) -> Tensor:
        weight = weights[f"{name}.weight"]
        kernel, size = weight.shape[-1], x.shape[-1]
        padding = max((-(-size // stride) - 1) * stride + kernel - size, 0)  # TensorFlow's "same"
        x = F.pad(x, (padding // 2, padding - padding // 2) * 2)
        x = F.conv2d(x, weight, stride=stride, groups=x.shape[1] // weight.shape[1])
        mean, variance, scale, shift = (
            weights[f"{norm}.{tensor}"] for tensor in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, variance, scale, shift, eps=1e-3)

    x = activate(layer(images, "_conv_stem", "_bn0", 2))
    for number, block in enumerate(blocks):
        name, shortcut = f"_blocks.{number}", x
        if block.expansion > 1:
            x = activate(layer(x, f"{name}._expand_conv", f"{name}._bn0"))
        x = activate(layer(x, f"{name}._depthwise_conv", f"{name}._bn1", block.stride))
        if f"{name}._se_reduce.weight" in weights:
            reduce, expand = (
                (weights[f"{name}.{part}.weight"], weights[f"{name}.{part}.bias"])
                for part in ("_se_reduce", "_se_expand")
            )
            gate = F.conv2d(activate(F.conv2d(x.mean((2, 3), keepdim=True), *reduce)), *expand)
            x = x * gate.sigmoid()
        x = layer(x, f"{name}._project_conv", f"{name}._bn2")
        if x.shape == shortcut.shape and block.stride == 1:
            x = x + shortcut
    return activate(layer(x, "_conv_head", "_bn1")).mean((2, 3))
