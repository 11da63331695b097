"""Images embedded anew for the losses and miners that want them."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from aurank.data import ImageDataset
from aurank.errors import UserError
from aurank.losses.core.training_protocols import Reencodes
from aurank.training.random_state import random_state, restore_random_state


class Reencode:
    """Embeds training images by their rows, not augmented, with the weights as they stand.

    The encoder runs in the mode that it is in, and neither its buffers (statistics of batch norms) nor any random
    generator is changed. In training mode batch norms take their statistics over the images asked for, `at_most` at a
    time, as they do over a batch; a single image stands there twice, since one alone has none.

    Args:
        encoder: as the loop runs it, without the wrapper of several processes: each embeds what it asks for.
        dim: width of an embedding.
    """

    def __init__(self, encoder: nn.Module, data: ImageDataset, *, dim: int, at_most: int) -> None:
        self.encoder = encoder
        self.data = data
        self.dim = dim
        self.at_most = at_most

    @torch.no_grad()
    def __call__(self, ids: Int64[Tensor, " image"]) -> Float[Tensor, "image dim"]:
        """The embeddings of those rows, in their order. UserError where an image cannot be read any more."""
        device = next(self.encoder.parameters()).device
        if not len(ids):
            return torch.empty(0, self.dim, device=device)
        batch = self.data.__getitems__(ids.tolist())
        if len(batch.id) < len(ids):
            lost = next(row for row in ids.tolist() if row not in batch.id)
            raise UserError(f"image {self.data.manifest.paths[lost]!r} was read before and cannot be read any more")
        assert isinstance(batch.image, Tensor)  # only augmentation makes several sizes
        images = batch.image if len(ids) > 1 else batch.image.repeat(2, 1, 1, 1)
        chunks = images.tensor_split(max(1, min(-(-len(images) // self.at_most), len(images) // 2)))
        random = random_state()
        try:
            return torch.cat([self._embedded(chunk.to(device)) for chunk in chunks])[: len(ids)]
        finally:
            restore_random_state(random)

    def _embedded(self, images: Tensor) -> Tensor:
        # On copies: writing the old values back would spoil a backward pass that is still to come.
        buffers = {name: value.clone() for name, value in self.encoder.named_buffers()}
        embeddings: Tensor = torch.func.functional_call(self.encoder, buffers, (images,))
        return embeddings.float()


def offer_reencoding(modules: list[nn.Module], reencode: Reencode) -> None:
    """Give the callback to every module that wants it and has none yet."""
    for module in modules:
        if isinstance(module, Reencodes) and module.wants_reencode and module.reencode is None:
            module.reencode = reencode
