"""The gradient cache: gradients of a large batch in the memory of a small one, for any training loop."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.training.checkpoints.state import random_state, restore_random_state


@dataclass(eq=False)
class _FirstPass:
    """What the second pass repeats: chunks, the random state before each, buffers before all, device and autocast."""

    chunks: tuple[Tensor, ...]
    random: list[dict[str, Any]]
    buffers: list[Tensor]
    device: torch.device
    autocast: dict[str, Any]
    embeddings: Tensor


def split_into_chunks(images: Tensor, at_most: int) -> tuple[Tensor, ...]:
    """Return nearly equal chunks of at most so many images, but never a single one."""
    return images.tensor_split(max(1, min(-(-len(images) // at_most), len(images) // 2)))


class GradientCache:
    """Gradients of a batch of any size in the memory that `micro_batch` images need.

    The loss of a batch depends on the weights only through the embeddings, so the gradient of the weights is a sum over
    images once the gradient of the embeddings is known:

    1. `embed`: embeddings of the whole batch, chunk by chunk, without a graph;
    2. the caller's loss and its backward pass: the gradient of the embeddings;
    3. `backward`: each chunk once more, with a graph, of which the derivative along that gradient is taken.

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
        prepare: makes of a chunk, on the device, what the encoder takes, such as normalised images of uint8 pixels.

    Source: Gao, Zhang, Han and Callan, Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup
    (RepL4NLP 2021), https://arxiv.org/abs/2101.06983

    Example:
        >>> import torch
        >>> encoder = torch.nn.Linear(3, 2)
        >>> cache = GradientCache(encoder, micro_batch=64)
        >>> embeddings = cache.embed(torch.randn(256, 3))
        >>> embeddings.square().sum().backward()  # any loss; several, if they are added
        >>> cache.backward()
        >>> encoder.weight.grad.shape
        torch.Size([2, 3])
    """

    def __init__(
        self, encoder: nn.Module, micro_batch: int, *, prepare: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        if micro_batch < 2:
            raise UserError(f"micro_batch must be at least 2, got {micro_batch}")
        self.encoder = encoder
        self.micro_batch = micro_batch
        self.prepare = prepare
        self._passes: list[_FirstPass] = []

    def embed(self, images: Shaped[Tensor, "batch ..."]) -> Float[Tensor, "batch dim"]:
        """Return the embeddings of images, or of texts as tokens, in float32 at least, as a leaf with a gradient."""
        if not len(images):
            raise UserError("the batch has no images")
        chunks = split_into_chunks(images, self.micro_batch)
        device = next((value.device for value in self.encoder.parameters()), images.device)
        autocast = {
            "device_type": device.type,
            "enabled": torch.is_autocast_enabled(device.type),
            "dtype": torch.get_autocast_dtype(device.type),
            "cache_enabled": torch.is_autocast_cache_enabled(),
        }
        buffers = [value.clone() for value in self.encoder.buffers()]
        random, parts = [], []
        with torch.no_grad():
            for chunk in chunks:
                random.append(random_state())
                parts.append(self._encode(chunk, device, autocast))
            embeddings = torch.cat(parts)
        if embeddings.dtype in (torch.float16, torch.bfloat16):
            embeddings = embeddings.float()
        self._passes.append(_FirstPass(chunks, random, buffers, device, autocast, embeddings.requires_grad_()))
        return embeddings

    def backward(self, backward: Callable[[Tensor], object] = Tensor.backward) -> None:
        """Add the gradient of the weights, given that of the embeddings; ``backward`` is called once for each chunk."""
        passes, self._passes = [one for one in self._passes if one.embeddings.grad is not None], []
        if not passes:
            raise UserError(
                "there is no gradient of the embeddings: call embed, the loss and its backward() before, each time"
            )
        buffers, random = [value.clone() for value in self.encoder.buffers()], random_state()
        try:
            for first in passes:
                self._repeat(first, backward, is_last=first is passes[-1])
        finally:
            self._set_buffers(buffers)
            restore_random_state(random)

    def _repeat(self, first: _FirstPass, backward: Callable[[Tensor], object], *, is_last: bool) -> None:
        assert first.embeddings.grad is not None
        gradients = torch.split(first.embeddings.grad, [len(chunk) for chunk in first.chunks])
        self._set_buffers(first.buffers)
        for index, (chunk, gradient) in enumerate(zip(first.chunks, gradients, strict=True)):
            last = is_last and index == len(first.chunks) - 1
            with nullcontext() if last else getattr(self.encoder, "no_sync", nullcontext)():
                restore_random_state(first.random[index])
                embeddings = self._encode(chunk, first.device, first.autocast)
                # Its derivative is that of the loss: the gradient is a constant here.
                backward((embeddings.to(gradient.dtype) * gradient).sum())

    def _encode(self, chunk: Tensor, device: torch.device, autocast: dict[str, Any]) -> Tensor:
        with torch.autocast(**autocast):
            # Older torch (issue 65766) keeps a weight that was rounded without a graph while an outer autocast lasts.
            torch.clear_autocast_cache()
            chunk = chunk.to(device, non_blocking=True)
            embeddings: Tensor = self.encoder(chunk if self.prepare is None else self.prepare(chunk))
            return embeddings

    @torch.no_grad()
    def _set_buffers(self, values: list[Tensor]) -> None:
        for buffer, value in zip(self.encoder.buffers(), values, strict=True):
            buffer.copy_(value)
