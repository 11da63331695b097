"""Embeddings of images that are not in the batch: similarity to them row by row, and how they are embedded anew."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from aurank.errors import UserError
from aurank.losses.core.checks import kind_of
from aurank.losses.core.distributed import gather_rows, world_size
from aurank.losses.core.from_pml import BaseDistance
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.training_protocols import EmbedByIds

ROWS = 128  # at a time: a distance compares all with all, of which the diagonal is wanted


def row_similarity(
    distance: BaseDistance, query: Float[Tensor, "row dim"], other: Float[Tensor, "row dim"]
) -> Float[Tensor, " row"]:
    """Return the similarity of each query to the other of its own row, by any PML distance."""
    both = zip(torch.split(query, ROWS), torch.split(other, ROWS), strict=True)
    similarity = torch.cat([distance(*each).diagonal() for each in both])
    return similarity if distance.is_inverted else -similarity


def embedded_anew(
    reencode: EmbedByIds | None, ids: Int64[Tensor, " entry"], pairs: Pairs, *, name: str
) -> Float[Tensor, "entry dim"]:
    """Return images of the data set as the encoder embeds them now, with their graph if they come with one.

    Each image is embedded once, and each by one of the processes where all of them have the same pairs. The host waits
    for the ids. UserError without a callback, or where it returns something else; `name` is who asks.
    """
    if reencode is None:
        raise UserError(
            f'{name} with out_of_batch="reencode" needs a callback that embeds images anew: set its attribute '
            'reencode to a function of ids that returns embeddings (aurank train does), or use "stored"'
        )
    rows, place = torch.unique(ids, return_inverse=True)
    like, world = pairs.query.detach(), world_size() if pairs.is_shared else 1
    parts = rows.tensor_split(world)
    own = parts[torch.distributed.get_rank() if world > 1 else 0].cpu()
    embeddings = reencode(own) if len(own) else like.new_zeros(0, like.shape[1])
    if not isinstance(embeddings, Tensor) or embeddings.shape != (len(own), like.shape[1]):
        raise UserError(
            f"reencode must return embeddings of shape [{len(own)}, {like.shape[1]}] for {len(own)} ids, "
            f"got {kind_of(embeddings)}"
        )
    embeddings = embeddings.to(like)
    return (embeddings if world == 1 else gather_rows(embeddings, [len(part) for part in parts]))[place]
