"""Cross-batch memory (XBM; Wang et al., CVPR 2020): embeddings of earlier batches as further references."""

from dataclasses import replace
from typing import Any

import torch
from pytorch_metric_learning import losses as pml
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses.checks import check_device, require_module, require_whole
from aurank.losses.distributed import Distributed, Gather
from aurank.losses.inputs import Inputs, TakesInputs
from aurank.losses.keyed import KeyedLoss
from aurank.losses.pairs import as_pairs
from aurank.losses.pml import all_pairs, call_loss
from aurank.losses.precision import in_common_precision, to_device_of
from aurank.losses.state import FullPrecision, writes

COUNTERS = ("position", "filled", "calls")
UNKNOWN = -1  # the id of a row that came without one
TAKEN_BY_PML = {*pml.CrossBatchMemory.supported_losses(), "MultipleLosses"}  # losses of PML that know references


class CrossBatchMemory(TakesInputs, FullPrecision):
    """Any loss of aurank or PML against the batch and, from a certain step on, the newest rows of earlier batches.

    The references are the batch followed by the memory, `memory_size` rows in all, a query never among its own. The
    batch's rows keep their gradient as references, so that a memory no larger than the batch gives the loss within the
    batch; the memory's rows have none. In evaluation mode, and while gradients are disabled, the memory is used but not
    written. With `ids`, earlier embeddings of a query's own image are left out of its references.

    loss: a loss of aurank or PML, or MultipleLosses of them, that takes references. Only this memory can gather.
    embedding_dim: width of the embeddings.
    memory_size: rows of the memory, the batch included.
    start_at: calls in training mode before the memory is used; the batch alone is used until then. Embeddings change
        fast in the beginning: the paper starts after 1,000 steps, the SOPRC repository after 10,000 to 30,000.
    miner: a PML miner, asked for pairs of the batch with all references; or give the call's `indices_tuple` one. A
        tuple of indices, which can only be of the batch, narrows the pairs within it and takes all with the memory.
    official: True does as the authors' code and PML: the batch's rows too are references without gradient.
    distributed: as in `PairLoss`; every process then keeps the same memory, of all batches.

    State: the embeddings as a buffer; their labels and ids, on the host, and where the memory stands as extra state.
    """

    embeddings: Tensor

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
            require_whole(name, value, least=least)
        require_module("loss", loss)
        for part in loss.modules():
            if type(part).__module__.startswith(pml.__name__) and type(part).__name__ not in TAKEN_BY_PML:
                raise UserError(f"{type(part).__name__} of pytorch-metric-learning takes no references, so no memory")
            if not getattr(part, "takes_references", True):
                raise UserError(f"{type(part).__name__} takes no references as it was made, so no memory")
            if getattr(part, "two_way", False):
                raise UserError(
                    f"{type(part).__name__} has two_way=True, so its references are the other modality: set "
                    "two_way=False, or leave out the memory"
                )
            if distributed is None and isinstance(gather := getattr(part, "gather", None), Gather) and gather.mode:
                raise UserError(
                    'the loss in CrossBatchMemory has distributed="auto", but the memory must be filled from all '
                    'processes: give distributed="auto" to CrossBatchMemory'
                )
        self.loss = loss
        self.start_at = start_at
        self.miner = miner
        self.official = official
        self.gather = Gather(distributed)
        self.position = 0  # where the next row goes
        self.filled = 0
        self.calls = 0
        self.labels = torch.zeros(memory_size, dtype=torch.int64)  # on the host, where losses look at labels
        self.ids = torch.full((memory_size,), UNKNOWN)
        self.register_buffer("embeddings", torch.zeros(memory_size, embedding_dim))

    @property
    def memory_size(self) -> int:
        """Rows of the memory."""
        return len(self.embeddings)

    def of_inputs(self, inputs: Inputs) -> Any:
        """The loss of arguments that were read before; they bring no references of their own."""
        if inputs.ref_emb is not None:
            raise UserError("CrossBatchMemory brings its own references: leave out ref_emb, ref_labels and ref_ids")
        if self.miner is not None and inputs.indices_tuple is not None:
            raise UserError("indices_tuple was given, but CrossBatchMemory has its own miner: leave one of them out")
        if inputs.embeddings.shape[1] != self.embeddings.shape[1]:
            width = self.embeddings.shape[1]
            raise UserError(f"embeddings must be as wide as embedding_dim={width}, got {inputs.embeddings.shape[1]}")
        check_device(self, inputs.embeddings)
        mined = self.miner if inputs.indices_tuple is None else inputs.indices_tuple
        if getattr(mined, "pos_strategy", None) == "easy":
            raise UserError(
                "the miner takes the easiest positive, which among references is the query itself: give it "
                'pos_strategy="hard" or "all", or leave out the memory'
            )
        keyed = next((part for part in self.loss.modules() if isinstance(part, KeyedLoss)), None)
        if inputs.ids is None and keyed is not None:  # labels are ids then, so that earlier views are left out
            inputs = replace(inputs, ids=keyed.keys_of("labels", inputs.labels, "ids", None))
        inputs = self.gather.batch(replace(inputs, indices_tuple=mined))
        own = inputs if self.calls < self.start_at else self.with_memory(inputs)
        value = call_loss(self.loss, self.gather.mine(own))
        if writes(self):
            self.write(inputs)
        return value

    def with_memory(self, inputs: Inputs) -> Inputs:
        """The inputs with the batch and what of the memory stays beside it as references."""
        size, mined = len(inputs.labels), inputs.indices_tuple
        batch, memory = in_common_precision(inputs.embeddings, self._stored(self.embeddings, size))
        whole = replace(
            inputs,
            ref_emb=torch.cat([batch.detach() if self.official else batch, memory]),
            ref_labels=torch.cat([inputs.labels.long().cpu(), self._stored(self.labels, size)]),
            ref_ids=None if inputs.ids is None else torch.cat([inputs.ids.long().cpu(), self._stored(self.ids, size)]),
            batch_leads=True,
        )
        if mined is None or isinstance(mined, nn.Module):
            return whole
        itself, outside = whole.itself(), torch.arange(size + len(memory), device=batch.device) >= size
        assert itself is not None
        with_memory = all_pairs(whole, outside & ~itself)
        pairs = zip((to_device_of(batch, part) for part in as_pairs(mined)), with_memory, strict=True)
        return replace(whole, indices_tuple=tuple(torch.cat(both) for both in pairs))

    @torch.no_grad()
    def write(self, inputs: Inputs) -> None:
        """Nothing; the batch takes the place of the oldest rows."""
        self.calls += 1
        size = len(inputs.labels)
        number = min(size, self.memory_size)
        ids = inputs.labels.new_full((size,), UNKNOWN) if inputs.ids is None else inputs.ids
        for place, rows in self._ring(self.position, number):
            for memory, values in ((self.embeddings, inputs.embeddings), (self.labels, inputs.labels), (self.ids, ids)):
                memory[place] = values[size - number :][rows].to(memory.device, memory.dtype)
        self.position = (self.position + number) % self.memory_size
        self.filled = min(self.filled + number, self.memory_size)

    def get_extra_state(self) -> dict[str, Any]:
        """Labels, ids, and where the memory stands."""
        counters = {name: getattr(self, name) for name in COUNTERS}
        return {"labels": self.labels.clone(), "ids": self.ids.clone(), **counters}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Nothing; takes over where another memory stood."""
        self.labels, self.ids = state["labels"].cpu().clone(), state["ids"].cpu().clone()
        for name in COUNTERS:
            setattr(self, name, int(state[name]))

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
