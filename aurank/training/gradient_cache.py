"""The gradient cache: gradients of a large batch in the memory of a small one, for any training loop."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.training.random_state import random_state, restore_random_state


@dataclass(eq=False)
class FirstPass:
    """What the second pass repeats: chunks, the random state before each, buffers before all, and how they ran."""

    chunks: tuple[Tensor, ...]
    random: list[dict[str, Any]]
    buffers: list[Tensor]
    device: torch.device
    autocast: dict[str, Any]
    embeddings: Tensor


class GradientCache:
    """Gradients of a batch of any size in the memory that `micro_batch` images need.

    Source: Gao, Zhang, Han and Callan, Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup
    (arXiv 2101.06983). The loss of a batch depends on the weights only through the embeddings, so the gradient of the
    weights is a sum over images once the gradient of the embeddings is known:

    1. `embed`: embeddings of the whole batch, chunk by chunk, without a graph;
    2. the caller's loss and its backward pass: the gradient of the embeddings;
    3. `backward`: each chunk once more, with a graph, of which the derivative along that gradient is taken.

    Example:
        >>> cache = GradientCache(encoder, micro_batch=64)
        >>> embeddings = cache.embed(images)            # 4,096 images, on any device
        >>> loss(embeddings, labels, miner).backward()  # any loss; several, if they are added
        >>> cache.backward()
        >>> optimiser.step()

    Several batches may be embedded before, as two views of the same images; `backward` goes through all of them.

    The result is that of a plain step through the same chunks: the second pass repeats the first one's random numbers
    (dropout), buffers (running statistics, power iterations) and autocast, and both together leave random generators
    and buffers as one pass does. So it is that of a plain step of the whole batch unless a layer looks at several
    images at once: a batch norm that is not frozen takes its statistics over a chunk. Chunks are nearly equal and have
    at most `micro_batch` images, but never a single one, which such a layer could not take: with `micro_batch` 2, one
    of an odd batch's has 3.

    In half precision only the second pass needs a gradient scaler: `cache.backward(lambda value:
    scaler.scale(value).backward())`, or `cache.backward(accelerator.backward)`. The loss is never scaled. Under
    DistributedDataParallel, gradients are exchanged with the last chunk.

    Args:
        encoder: maps a chunk of images to its embeddings, one row for each; on one device.
        micro_batch: most images that are given to the encoder at a time, at least 2.
    """

    def __init__(self, encoder: nn.Module, micro_batch: int) -> None:
        if micro_batch < 2:
            raise UserError(f"micro_batch must be at least 2, got {micro_batch}")
        self.encoder = encoder
        self.micro_batch = micro_batch
        self._passes: list[FirstPass] = []

    def embed(self, images: Shaped[Tensor, "batch ..."]) -> Float[Tensor, "batch dim"]:
        """The embeddings of all images, in float32 at least, as a leaf that collects the loss's gradient.

        Images, or whatever else the encoder takes, such as texts as tokens.
        """
        if not len(images):
            raise UserError("the batch has no images")
        # Never chunks of one image, so at most half as many as images.
        chunks = images.tensor_split(max(1, min(-(-len(images) // self.micro_batch), len(images) // 2)))
        device = next((value.device for value in self.encoder.parameters()), images.device)
        autocast = autocast_of(device)
        buffers = [value.clone() for value in self.encoder.buffers()]
        random, parts = [], []
        with torch.no_grad():
            for chunk in chunks:
                random.append(random_state())
                parts.append(encode(self.encoder, chunk, device, autocast))
            embeddings = torch.cat(parts)
        if embeddings.dtype in (torch.float16, torch.bfloat16):
            embeddings = embeddings.float()
        self._passes.append(FirstPass(chunks, random, buffers, device, autocast, embeddings.requires_grad_()))
        return embeddings

    def backward(self, backward: Callable[[Tensor], object] = Tensor.backward) -> None:
        """Nothing; adds the gradient of the weights, given that of the embeddings which the loss's backward pass left.

        Args:
            backward: takes the backward pass from a scalar, once for each chunk.
        """
        passes, self._passes = [one for one in self._passes if one.embeddings.grad is not None], []
        if not passes:
            raise UserError(
                "there is no gradient of the embeddings: call embed, the loss and its backward() before, each time"
            )
        for first in passes:
            self._repeat(first, backward, is_last=first is passes[-1])

    def _repeat(self, first: FirstPass, backward: Callable[[Tensor], object], *, is_last: bool) -> None:
        assert first.embeddings.grad is not None
        gradients = torch.split(first.embeddings.grad, [len(chunk) for chunk in first.chunks])
        with self._repeating(first):
            for place, (chunk, gradient) in enumerate(zip(first.chunks, gradients, strict=True)):
                last = is_last and place == len(first.chunks) - 1
                with nullcontext() if last else getattr(self.encoder, "no_sync", nullcontext)():
                    restore_random_state(first.random[place])
                    embeddings = encode(self.encoder, chunk, first.device, first.autocast)
                    # Its derivative is that of the loss: the gradient is a constant here.
                    backward((embeddings.to(gradient.dtype) * gradient).sum())

    @contextmanager
    def _repeating(self, first: FirstPass) -> Iterator[None]:
        """A context that begins with the buffers of the first pass, and after which all is as it was before."""
        buffers, random = [value.clone() for value in self.encoder.buffers()], random_state()
        self._set_buffers(first.buffers)
        try:
            yield
        finally:
            self._set_buffers(buffers)
            restore_random_state(random)

    @torch.no_grad()
    def _set_buffers(self, values: list[Tensor]) -> None:
        for buffer, value in zip(self.encoder.buffers(), values, strict=True):
            buffer.copy_(value)


def encode(encoder: nn.Module, chunk: Tensor, device: torch.device, autocast: dict[str, Any]) -> Tensor:
    """The embeddings of a chunk, computed under these settings of autocast."""
    with torch.autocast(**autocast):
        # Older torch (its issue 65766) keeps a weight that was rounded without a graph while an outer autocast lasts.
        torch.clear_autocast_cache()
        embeddings: Tensor = encoder(chunk.to(device, non_blocking=True))
        return embeddings


def autocast_of(device: torch.device) -> dict[str, Any]:
    """The arguments of `torch.autocast` that are in force on a kind of device."""
    return {
        "device_type": device.type,
        "enabled": torch.is_autocast_enabled(device.type),
        "dtype": torch.get_autocast_dtype(device.type),
        "cache_enabled": torch.is_autocast_cache_enabled(),
    }
