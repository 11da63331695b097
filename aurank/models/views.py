"""Test-time views: an embedding as the mean over an image, its mirror image, and both in other sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

from aurank.files import reading


@dataclass(frozen=True)
class MeanOverViews:
    """A forward hook: in evaluation mode rows become the mean of the unit embeddings of all views, at unit length.

    As a hook it leaves the names of the weights alone, whatever the network is, and exported graphs hold the views.
    """

    flip: bool = False
    scales: Sequence[float] = (1.0,)

    def __call__(self, network: nn.Module, inputs: tuple[Tensor], rows: Tensor) -> Tensor:
        if network.training:
            return rows
        images, total = inputs[0], torch.zeros_like(rows)
        for scale in self.scales:
            size = [max(1, round(scale * side)) for side in images.shape[-2:]]
            scaled = images if scale == 1 else interpolate(images, size=size, mode="bilinear", align_corners=False)
            for view in (scaled, scaled.flip(-1)) if self.flip else (scaled,):
                total = total + normalize(rows if view is images else network.forward(view), dim=-1)
        return normalize(total, dim=-1)


def add_views(network: nn.Module, views: MeanOverViews, example: Tensor) -> None:
    """Let a network embed images by views; `example`: a batch that it takes, with which other sizes are tried."""
    network.register_forward_hook(views)
    with reading(str(views), "views of this network", remedy="leave out what it does not take"), torch.inference_mode():
        training = network.training
        network.eval()(example)
        network.train(training)
