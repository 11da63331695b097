"""The gradient cache: gradients of a large batch in the memory of a small one, for any training loop."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.training.state import random_state, restore_random_state

Repeat = Callable[[Callable[[Tensor], object], bool], None]  # runs the backward of a chunk; True for the last one


def split_into_chunks(images: Tensor, at_most: int) -> tuple[Tensor, ...]:
    """Return nearly equal chunks of at most so many images, but never a single one."""
    return images.tensor_split(max(1, min(-(-len(images) // at_most), len(images) // 2)))


class GradientCache:
    """Gradients of a batch of any size in the memory that `micro_batch` images need.

    1. `embed`: embeddings of the whole batch, chunk by chunk, without a graph;
    2. the caller's loss and its backward pass: the gradient of the embeddings;
    3. `backward`: each chunk once more, with a graph, of which the derivative along that gradient is taken.

    Several batches may be embedded before `backward`, such as two views of the same images. The result is that of a
    plain step through the same chunks: random numbers, buffers and autocast are those of the first pass. So it is that
    of the whole batch unless a layer, such as a batch norm that is trained, looks at several images at once. Chunks are
    nearly equal and never a single image: with `micro_batch` 2, one of an odd batch has 3.

    In half precision only the second pass needs a gradient scaler: `cache.backward(lambda value:
    scaler.scale(value).backward())`, or `cache.backward(accelerator.backward)`. Under DistributedDataParallel,
    gradients are exchanged with the last chunk.

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
        self.encoder = encoder
        self.micro_batch = micro_batch
        self.prepare = prepare
        self._passes: list[tuple[Tensor, Repeat]] = []

    def embed(self, images: Shaped[Tensor, "batch ..."]) -> Float[Tensor, "batch dim"]:
        """Return the embeddings of images, or of texts as tokens, in float32 at least, as a leaf with a gradient."""
        chunks = split_into_chunks(images, self.micro_batch)
        device = next((value.device for value in self.encoder.parameters()), images.device)
        autocast: dict[str, Any] = {
            "device_type": device.type,
            "enabled": torch.is_autocast_enabled(device.type),
            "dtype": torch.get_autocast_dtype(device.type),
            "cache_enabled": torch.is_autocast_cache_enabled(),
        }

        def encode(chunk: Tensor) -> Tensor:
            with torch.autocast(**autocast):
                # torch (issue 65766) caches half-precision weights without a graph while an outer autocast lasts.
                torch.clear_autocast_cache()
                chunk = chunk.to(device, non_blocking=True)
                rows: Tensor = self.encoder(chunk if self.prepare is None else self.prepare(chunk))
                return rows

        buffers = [value.clone() for value in self.encoder.buffers()]
        states, parts = [], []
        with torch.no_grad():
            for chunk in chunks:
                states.append(random_state())
                parts.append(encode(chunk))
            embeddings = torch.cat(parts)
        if embeddings.dtype in (torch.float16, torch.bfloat16):
            embeddings = embeddings.float()

        def repeat(backward: Callable[[Tensor], object], is_last: bool) -> None:
            assert embeddings.grad is not None
            self._set_buffers(buffers)
            gradients = torch.split(embeddings.grad, [len(chunk) for chunk in chunks])
            for number, (chunk, gradient, state) in enumerate(zip(chunks, gradients, states, strict=True), start=1):
                exchanges = is_last and number == len(chunks)
                with nullcontext() if exchanges else getattr(self.encoder, "no_sync", nullcontext)():
                    restore_random_state(state)
                    # The gradient is a constant here, so this sum has the derivative of the loss.
                    backward((encode(chunk).to(gradient.dtype) * gradient).sum())

        self._passes.append((embeddings.requires_grad_(), repeat))
        return embeddings

    def backward(self, backward: Callable[[Tensor], object] = Tensor.backward) -> None:
        """Add the gradient of the weights, given that of the embeddings; ``backward`` is called once for each chunk."""
        repeats = [repeat for embeddings, repeat in self._passes if embeddings.grad is not None]
        self._passes = []
        if not repeats:
            raise UserError(
                "there is no gradient of the embeddings: call embed, the loss and its backward() before, each time"
            )
        buffers, random = [value.clone() for value in self.encoder.buffers()], random_state()
        try:
            for repeat in repeats:
                repeat(backward, repeat is repeats[-1])
        finally:
            self._set_buffers(buffers)
            restore_random_state(random)

    @torch.no_grad()
    def _set_buffers(self, values: list[Tensor]) -> None:
        for buffer, value in zip(self.encoder.buffers(), values, strict=True):
            buffer.copy_(value)
