"""Training images embedded anew, with the current weights: for a loss that asks, and to find hard negatives."""

from collections.abc import Callable

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from jaxtyping import Float, Int64
from torch import Tensor, nn

from aurank.config import Config
from aurank.data import ImageDataset
from aurank.distributed import ProcessGroup
from aurank.embedding.embed import embed
from aurank.errors import UserError
from aurank.evaluation.index.neighbours import neighbours
from aurank.losses.core.training_protocols import Reencodes
from aurank.training.checkpoints.state import random_state, restore_random_state
from aurank.training.gradient_cache import split_into_chunks


class Reencode:
    """Embeds training images by their rows, not augmented, with the current weights.

    The encoder keeps its mode, its buffers (statistics of batch norms), and every random generator its state. In
    training mode batch norms take their statistics over the images asked for, `at_most` at a time, as they do over a
    batch; a single image is doubled, since one alone has none.

    Args:
        encoder: without the wrapper of several processes: each embeds what it asks for.
        dim: width of an embedding.
    """

    def __init__(self, encoder: nn.Module, data: ImageDataset, *, dim: int, at_most: int) -> None:
        self.encoder = encoder
        self.data = data
        self.dim = dim
        self.at_most = at_most

    @torch.no_grad()
    def __call__(self, ids: Int64[Tensor, " image"]) -> Float[Tensor, "image dim"]:
        """Return the embeddings of those rows, in their order; raise UserError if an image can no longer be read."""
        device = next(self.encoder.parameters()).device
        if not len(ids):
            return torch.empty(0, self.dim, device=device)
        batch = self.data.__getitems__(ids.tolist())
        if len(batch.id) < len(ids):
            lost = next(row for row in ids.tolist() if row not in batch.id)
            raise UserError(f"image {self.data.manifest.paths[lost]!r} was read before and cannot be read any more")
        assert isinstance(batch.image, Tensor)  # only augmentation makes several sizes
        images = batch.image if len(ids) > 1 else torch.cat([batch.image, batch.image])
        random = random_state()
        try:
            chunks = split_into_chunks(images, self.at_most)
            return torch.cat([self._embed(self.data.to_input(chunk.to(device))) for chunk in chunks])[: len(ids)]
        finally:
            restore_random_state(random)

    def _embed(self, images: Tensor) -> Tensor:
        # On copies: writing the old values back would spoil a backward pass that is still to come.
        buffers = {name: value.clone() for name, value in self.encoder.named_buffers()}
        embeddings: Tensor = torch.func.functional_call(self.encoder, buffers, (images,))
        return embeddings.float()


def offer_reencoding(modules: list[nn.Module], reencode: Reencode) -> None:
    """Give the callback to every module that wants it and has none yet."""
    for module in modules:
        if isinstance(module, Reencodes) and module.wants_reencode and module.reencode is None:
            module.reencode = reencode


def nearest_images(
    count: int,
    *,
    encoder: nn.Module,
    training_images: Callable[[], ImageDataset],
    accelerator: Accelerator,
    config: Config,
) -> Int64[np.ndarray, "image count"]:
    """Return the rows nearest to each training image with the current weights, the same in each process.

    The nearest stand first; −1 where there are no more, and for images that could not be read. The processes share the
    embedding; the main one searches the whole set with faiss, exactly up to float32, while the others wait.

    Args:
        training_images: returns them under the evaluation transform.
    """
    data, device = training_images(), accelerator.device
    table = np.full((len(data), count), -1, dtype=np.int64)
    group = ProcessGroup(None)
    group.broadcast(encoder.buffers())
    embedded = embed(encoder, data, batch=config.evaluate.batch, workers=config.data.workers, group=group)
    if accelerator.is_main_process:
        found = neighbours(embedded.embeddings, count, device=device if device.type == "cuda" else "cpu").row
        # An entry that an index did not find names a row behind the last one.
        table[embedded.ids, : found.shape[1]] = np.append(embedded.ids, -1)[found]
    shared: np.ndarray = broadcast(torch.from_numpy(table).to(device)).cpu().numpy()
    return shared
