"""Cross-batch memory (XBM; Wang et al., CVPR 2020): embeddings of earlier batches as further references."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses.distributed import Distributed, Gather, refuse_gathering
from aurank.losses.inputs import Inputs, Mined, read_inputs
from aurank.losses.pairs import as_pairs, in_common_precision, to_device_of
from aurank.losses.pml import all_pairs, call_loss
from aurank.losses.state import FullPrecision

COUNTERS = ("position", "filled", "calls", "rows_seen")


class CrossBatchMemory(FullPrecision):
    """Any loss of aurank or PML against the batch and, from a certain step on, the newest rows of earlier batches.

    The references are the batch followed by the memory, `memory_size` rows in all, a query never among its own. The
    batch's rows keep their gradient as references, so that a memory no larger than the batch gives the loss within the
    batch; the memory's rows have none. In evaluation mode the memory is used but not written.

    With `ids`, references of a query's id are left out, so neither the other view of an image in the batch nor its
    older embedding is a positive. Without ids only the row itself is left out.

    loss: a loss of aurank or PML, or MultipleLosses of them. With `distributed`, its own must be None.
    embedding_dim: width of the embeddings.
    memory_size: rows of the memory, the batch included.
    start_at: calls in training mode before the memory is used; the batch alone is used until then. Embeddings change
        fast in the beginning: the paper starts after 1,000 steps, the SOPRC repository after 10,000 to 30,000.
    miner: a PML miner, asked for pairs of the batch with all references; or give the call's `indices_tuple` one. A
        tuple of indices, which can only be of the batch, narrows the pairs within it and takes all with the memory.
    official: True does as the authors' code and PML: the batch's rows too are references without gradient.
    distributed: as in `PairLoss`; every process then keeps the same memory, of all batches.

    State: the rows with their labels and ids as buffers; position, filling and calls as extra state.
    """

    embeddings: Tensor
    labels: Tensor
    ids: Tensor

    def __init__(
        self,
        loss: nn.Module,
        *,
        embedding_dim: int,
        memory_size: int = 1024,
        start_at: int = 0,
        miner: nn.Module | None = None,
        official: bool = False,
        distributed: Distributed = None,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("embedding_dim", embedding_dim, 1),
            ("memory_size", memory_size, 1),
            ("start_at", start_at, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"{name} must be a whole number >= {least}, got {value!r}")
        refuse_gathering("CrossBatchMemory", loss)
        self.loss = loss
        self.start_at = start_at
        self.miner = miner
        self.official = official
        self.gather = Gather(distributed)
        self.position = 0  # where the next row goes
        self.filled = 0
        self.calls = 0
        self.rows_seen = 0
        self.register_buffer("embeddings", torch.zeros(memory_size, embedding_dim))
        self.register_buffer("labels", torch.zeros(memory_size, dtype=torch.int64))
        self.register_buffer("ids", torch.zeros(memory_size, dtype=torch.int64))

    @property
    def memory_size(self) -> int:
        """Rows of the memory."""
        return len(self.embeddings)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: Mined = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        *,
        ids: Tensor | None = None,
        ref_ids: Tensor | None = None,
    ) -> Any:
        """The loss of a batch; arguments as in `PairLoss.forward`, without references of their own."""
        if ref_emb is not None or ref_labels is not None or ref_ids is not None:
            raise UserError("CrossBatchMemory brings its own references: leave out ref_emb, ref_labels and ref_ids")
        if self.miner is not None and indices_tuple is not None:
            raise UserError("indices_tuple was given, but CrossBatchMemory has its own miner: leave one of them out")
        inputs = read_inputs(embeddings, labels, self.miner if indices_tuple is None else indices_tuple, ids=ids)
        if embeddings.shape[1] != self.embeddings.shape[1]:
            width = self.embeddings.shape[1]
            raise UserError(f"embeddings must be as wide as embedding_dim={width}, got {embeddings.shape[1]}")
        miner = inputs.indices_tuple if isinstance(inputs.indices_tuple, nn.Module) else None
        inputs = self.gather.batch(inputs if miner is None else replace(inputs, indices_tuple=None))
        own = inputs if self.calls < self.start_at else self.with_memory(inputs)
        value = call_loss(self.loss, own if miner is None else self.gather.mine(replace(own, indices_tuple=miner)))
        if self.training:
            self.write(inputs)
        return value

    def with_memory(self, inputs: Inputs) -> Inputs:
        """The inputs with the batch and what of the memory stays beside it as references."""
        batch, memory = in_common_precision(inputs.embeddings, self._stored(self.embeddings, len(inputs.labels)))
        labels, ids = to_device_of(batch, inputs.labels.long()), to_device_of(batch, self._ids(inputs))
        whole = replace(
            inputs,
            indices_tuple=None,
            ref_emb=torch.cat([batch.detach() if self.official else batch, memory]),
            ref_labels=torch.cat([labels, self._stored(self.labels, len(labels))]),
            ids=ids,
            ref_ids=torch.cat([ids, self._stored(self.ids, len(labels))]),
        )
        mined = inputs.indices_tuple
        if mined is None or isinstance(mined, nn.Module):
            return whole
        outside = torch.arange(len(labels) + len(memory), device=batch.device) >= len(labels)
        with_memory = all_pairs(whole, outside.expand(len(labels), -1))
        pairs = zip((to_device_of(batch, part) for part in as_pairs(mined)), with_memory, strict=True)
        return replace(whole, indices_tuple=tuple(torch.cat(both) for both in pairs))

    @torch.no_grad()
    def write(self, inputs: Inputs) -> None:
        """Nothing; the batch takes the place of the oldest rows."""
        self.calls += 1
        ids = self._ids(inputs)
        self.rows_seen += len(ids)
        number = min(len(ids), self.memory_size)
        for place, rows in self._ring(self.position, number):
            for memory, values in ((self.embeddings, inputs.embeddings), (self.labels, inputs.labels), (self.ids, ids)):
                memory[place] = values[len(ids) - number :][rows].to(memory.device, memory.dtype)
        self.position = (self.position + number) % self.memory_size
        self.filled = min(self.filled + number, self.memory_size)

    def get_extra_state(self) -> dict[str, int]:
        """Where the memory stands."""
        return {name: getattr(self, name) for name in COUNTERS}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Nothing; takes over where another memory stood."""
        for name in COUNTERS:
            setattr(self, name, int(state[name]))

    def _ids(self, inputs: Inputs) -> Tensor:
        """The batch's ids; without any, numbers below 0 that no other row has."""
        if inputs.ids is not None:
            return inputs.ids.long()
        return -1 - self.rows_seen - torch.arange(len(inputs.labels))

    def _stored(self, memory: Tensor, batch: int) -> Tensor:
        """The newest rows of the memory, oldest first, as many as fit beside a batch of this size."""
        number = max(0, min(self.filled, self.memory_size - batch))
        parts = [memory[place] for place, _ in self._ring((self.position - number) % self.memory_size, number)]
        return torch.cat(parts) if parts else memory[:0]

    def _ring(self, start: int, number: int) -> list[tuple[slice, slice]]:
        """(places in the memory, which of `number` rows) for rows that begin at `start` and may go round the end."""
        first = min(number, self.memory_size - start)
        pieces = [(slice(start, start + first), slice(0, first)), (slice(0, number - first), slice(first, number))]
        return [(place, rows) for place, rows in pieces if rows.stop > rows.start]
