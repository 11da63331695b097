"""Why a model finds two images alike: their cosine as a sum over the cells of their feature maps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from aurank.data.photos import Photo, read_photo
from aurank.errors import UserError
from aurank.models.encoder import Encoder
from aurank.models.image_model import ImageModel


@dataclass(frozen=True, eq=False)
class Explanation:
    """What each cell of two images adds to their cosine, and the `share` of the cosine that the cells add up to.

    Attributes:
        is_exact: whether an embedding is linear in its cells, and `share` 1; otherwise the maps are a linearisation.
        maps: [image, row of cells, column of cells]; negative where a cell makes the images less alike.
        views: what the network sees, in grey, uint8 [image, height, width]; the cells divide it evenly.

    Example:
        >>> print(Explanation(0.8, 1.0, True, np.full((2, 2, 2), 0.2), np.zeros((2, 32, 32), np.uint8)))
        cosine 0.800, explained in full
    """

    cosine: float
    share: float
    is_exact: bool
    maps: np.ndarray
    views: np.ndarray

    def __str__(self) -> str:
        how = "in full" if self.is_exact else f"{self.share:.0%}, linearised"
        return f"cosine {self.cosine:.3f}, explained {how}"


def explain(model: ImageModel, query: Photo, images: Sequence[Photo]) -> list[Explanation]:
    """Return why a query and each of some images are alike.

    With average pooling and a linear head an embedding is a sum over cells, z = Σ (W f_c + b) / C, so a cosine is one
    over pairs of cells, and a map has the sums of its rows. Any other head is linearised at the image: gradient times
    activation of the cells. A mean over mirror images and sizes is explained by its first view, which is not exact
    either. A layer norm behind the pooling divides an image by a number, here a constant.

    Raises:
        UserError: a photo cannot be read, or the network is not timm's, or takes its embedding from a class token.

    Source: the overall activation map of Zhu, Yang, Chen, Visual explanation for deep metric learning (TIP 2021),
        https://arxiv.org/abs/1909.12977; a bias is shared evenly among the cells.

    Example:
        >>> import aurank
        >>> model = aurank.load("timm:test_resnet,pretrained=false")
        >>> noise = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)
        >>> why = aurank.explain(model, noise[0], [noise[1]])[0]
        >>> why.is_exact, why.maps.shape, np.allclose(why.maps.sum(axis=(1, 2)), why.cosine)
        (True, (2, 5, 5), True)
    """
    encoder, network, last = model.module.eval(), cast("Any", model.module), list[nn.Module]()
    if isinstance(encoder, Encoder):  # whose unit length is left out
        network, last = encoder.backbone, [encoder.pool, *([] if encoder.discard_head else [encoder.head])]
    why_not = "its embedding comes from a class token, or it is no network of timm"
    without_cells = UserError(f"{model.name} has no cells to explain a cosine by: {why_not}")
    if not hasattr(network, "forward_head"):
        raise without_cells
    shown = model.stack([read_photo(photo, model.channels) for photo in (query, *images)])
    batch = shown.to(next(network.parameters()).device)
    with torch.no_grad():
        embeddings = model.module(batch).double()
        features = network.forward_features(batch)
    if not isinstance(features, Tensor):  # of several branches, which have class tokens
        raise without_cells
    axis = -1 if features.ndim == 3 or getattr(network, "output_fmt", "") == "NHWC" else 1  # of channels
    cells = features.movedim(axis, -1)
    odd = torch.arange(cells[0, ..., 0].numel()).to(cells).view(cells.shape[1:-1]).unsqueeze(-1) % 2
    cells = torch.cat([cells, *(cells[:1] * mask for mask in (0, odd, 1 - odd))]).requires_grad_()
    with _ConstantScale():
        outputs = nn.Sequential(*last)(network.forward_head(cells.movedim(-1, axis)))
    constant, half, other_half = outputs[-3:].detach()
    is_linear = (half + other_half - constant - outputs[0]).norm() < 1e-4 * outputs[0].norm()
    alone = functional.normalize(outputs[:-3].detach().double(), dim=1)  # of one view
    is_exact = bool(is_linear and (functional.normalize(embeddings, dim=1) - alone).norm(dim=1).max() < 1e-4)
    grey = shown.mean(dim=1)
    low, high = grey.amin(dim=(1, 2), keepdim=True), grey.amax(dim=(1, 2), keepdim=True)
    views = (255 * (grey - low) / (high - low)).nan_to_num().byte().numpy()
    explanations = []
    for row in range(1, len(shown)):
        sides = outputs[[0, row]]
        others = sides.detach().flip(0)
        (gradient,) = torch.autograd.grad((sides * others).sum(), cells, retain_graph=True)
        products = (gradient * cells.detach()).sum(dim=-1)[[0, row]]
        if products.ndim == 2:  # tokens, row by row, behind those of no place
            products = products[:, getattr(network, "num_prefix_tokens", 0) :]
            height = round((products.shape[1] * shown.shape[-2] / shown.shape[-1]) ** 0.5)
            if not height or products.shape[1] % height:  # a class token that is not counted
                raise without_cells
            products = products.reshape(2, height, -1)
        if products[0].numel() == 1 or not products.any():
            raise without_cells
        maps = products + (others @ constant).view(2, 1, 1) / products[0].numel()
        maps = (maps / others.norm(dim=1).prod()).double().cpu()
        cosine = functional.cosine_similarity(embeddings[0], embeddings[row], dim=0).item()
        pair = maps.numpy(), views[[0, row]]
        explanations.append(Explanation(cosine, maps.sum().item() / 2 / cosine, is_exact, *pair))
    return explanations


class _ConstantScale(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_scaled if function is functional.layer_norm else function)(*args, **(kwargs or {}))


def _scaled(values: Tensor, shape: Any, weight: Any = 1, bias: Any = 0, eps: float = 1e-5) -> Any:
    variance, mean = torch.var_mean(values, tuple(range(-len(shape), 0)), correction=0, keepdim=True)
    scale = (variance.detach() + eps).rsqrt()
    scale[-3:] = scale[:1]  # the last three have a part of its cells
    return (values - mean) * scale * weight + bias
