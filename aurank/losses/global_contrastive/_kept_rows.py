"""Rows of samples that are kept as they were, and images embedded anew in their place."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int64
from pytorch_metric_learning.distances import BaseDistance
from torch import Tensor

from aurank.errors import UserError
from aurank.losses.core.checks import check_width
from aurank.losses.core.distributed import gather_rows, world_size
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import RowTable, group_entries

NONE = -1
EmbedByIds = Callable[[Int64[Tensor, " image"]], Float[Tensor, "image dim"]]


class TaggedTable(RowTable):
    """Rows that are replaced, not averaged, each with a tag: an id or a label, −1 for none."""

    tags: Tensor

    def __init__(self, num_rows: int, width: int = 0) -> None:
        super().__init__(num_rows, width)
        self.register_buffer("tags", torch.full((num_rows,), NONE))

    @torch.no_grad()
    def put(
        self,
        index: Int64[Tensor, " entry"],
        tags: Int64[Tensor, " entry"],
        values: Float[Tensor, "entry width"],
        *,
        is_shared: bool,
    ) -> bool:
        values = values.detach().to(self.rows.dtype)
        if not is_shared and world_size() > 1:  # in one piece: float64 holds every id, and every float32
            both = torch.cat([tags[:, None].to(torch.float64), values.to(torch.float64)], dim=1)
            index, both = self.gathered(index, both, is_shared=False)
            tags, values = both[:, 0].to(torch.int64), both[:, 1:].to(self.rows.dtype)
        if len(index) == 0:
            return False
        if self.rows.shape[1] == 0:
            self.rows = self.rows.new_zeros(len(self.rows), values.shape[1])
        group, position = group_entries(index), torch.arange(len(index), device=index.device)
        last = torch.zeros_like(index).scatter_reduce_(0, group, position, "amax")[group]
        tags, values = tags[last], values[last]
        finite = values.isfinite().all(dim=1)
        before = self.tags[index]
        self.tags[index] = torch.where(finite, tags, before)
        self.write(index, values, finite)
        return True

    def check_width(self, embeddings: Float[Tensor, "batch dim"]) -> None:
        if width := self.rows.shape[1]:
            check_width(embeddings, "embedding_size", width)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        saved = state_dict.get(f"{prefix}rows")
        if saved is not None and 0 in (saved.shape[1], self.rows.shape[1]):  # one of them has not seen its width
            self.rows = self.rows.new_zeros(len(self.rows), saved.shape[1])
        super()._load_from_state_dict(state_dict, prefix, *arguments)


ROWS = 128  # at a time: a distance compares all with all, of which the diagonal is wanted


def row_similarity(
    distance: BaseDistance, query: Float[Tensor, "row dim"], reference: Float[Tensor, "row dim"]
) -> Float[Tensor, " row"]:
    both = zip(torch.split(query, ROWS), torch.split(reference, ROWS), strict=True)
    similarity = torch.cat([distance(*each).diagonal() for each in both])
    return similarity if distance.is_inverted else -similarity


def embedded_anew(
    reencode: EmbedByIds | None, ids: Int64[Tensor, " entry"], pairs: Pairs, *, name: str
) -> Float[Tensor, "entry dim"]:
    if reencode is None:
        raise UserError(
            f'{name} with out_of_batch="reencode" needs a callback that embeds images anew: set its attribute '
            'reencode to a function of ids that returns embeddings (aurank train does), or use "stored"'
        )
    rows, position = torch.unique(ids, return_inverse=True)
    like, processes = pairs.query.detach(), world_size() if pairs.is_shared else 1
    shards = rows.tensor_split(processes)
    shard = shards[torch.distributed.get_rank() if processes > 1 else 0].cpu()
    embeddings = (reencode(shard) if len(shard) else like[:0]).to(like)
    return (embeddings if processes == 1 else gather_rows(embeddings, [len(each) for each in shards]))[position]
