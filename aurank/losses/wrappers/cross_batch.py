"""Cross-batch memory (XBM; Wang et al., CVPR 2020): embeddings of earlier batches as further references."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_triplets
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses.core.checks import check_width, kind_of, require_whole
from aurank.losses.core.common import in_common_precision, to_device_of
from aurank.losses.core.distributed import Gather
from aurank.losses.core.pair_loss import KeyedLoss, TakesInputs
from aurank.losses.core.pairs import Inputs, Mined, check_mined, read_inputs
from aurank.losses.core.row_table import FullPrecision, check_device, writes
from aurank.losses.wrappers.multiple import MultipleLosses, takes_references
from aurank.losses.wrappers.pml import all_pairs, call_loss

UNKNOWN = -1  # the id of a row that came without one
TAKEN_BY_PML = {*pml_losses.CrossBatchMemory.supported_losses(), "MultipleLosses"}  # losses of PML that know references


class CrossBatchMemory(TakesInputs, FullPrecision):
    """Any loss of aurank or PML against the batch and, from a certain step on, the newest rows of earlier batches.

    The references are the batch followed by the memory, `memory_size` rows in all, a query never among its own. The
    batch's rows keep their gradient as references, so that a memory no larger than the batch gives the loss within the
    batch; the memory's rows have none. In evaluation mode, and while gradients are disabled, the memory is used but not
    written. Rows that are not finite are never stored. With `ids`, earlier embeddings of a query's own image are left
    out of its references.

    State: four buffers: `embedding_memory`, `label_memory`, `id_memory` (−1 for a row without one), and `counters`: the
    next row, the rows in use, the calls in training mode.

    Args:
        loss: a loss of aurank or PML, or MultipleLosses of them, that takes references. Only this memory can gather.
        memory_size: rows of the memory, the batch included.
        miner: a PML miner, asked for pairs of the batch with all references; or give the call's `indices_tuple` one. A
            tuple of indices, which can only be of the batch, is added to what the miner finds, as in PML; without a
            miner it narrows the pairs within the batch and takes all with the memory.
        start_at: calls in training mode before the memory is used, since embeddings change fast in the beginning. The
            paper starts after 1,000 steps, the SOPRC repository after 10,000 to 30,000.
        distributed: as in `PairLoss`; every process then keeps the same memory, of all batches. With False each keeps
            its own, or, inside of DistributedDataParallel, which hands out the first process's buffers, that of the
            first.

    Source:
        Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020. https://arxiv.org/abs/1912.06798
        PML's batch rows have no gradient as references; the authors' code adds the loss within the batch.

    Example:
        >>> from aurank.losses import SmoothAPLoss
        >>> loss = CrossBatchMemory(SmoothAPLoss(), embedding_size=2, memory_size=100)
        >>> for labels in (torch.tensor([0, 0, 1]), torch.tensor([1, 2, 2])):
        ...     value = loss(torch.randn(3, 2, requires_grad=True), labels)
        >>> loss.queue_idx, loss.label_memory[:6].tolist(), loss.has_been_filled
        (6, [0, 0, 1, 1, 2, 2], False)
    """

    embedding_memory: Tensor
    label_memory: Tensor
    id_memory: Tensor
    counters: Tensor

    def __init__(
        self,
        loss: nn.Module,
        embedding_size: int,
        memory_size: int = 1024,
        miner: nn.Module | None = None,
        *,
        start_at: int = 0,
        distributed: bool = False,
    ) -> None:
        super().__init__()
        require_whole("embedding_size", embedding_size)
        require_whole("memory_size", memory_size)
        self.start_at = require_whole("start_at", start_at, least=0)
        self.loss = loss
        refuse_unfit(loss, gathers=distributed)
        self.miner = miner
        self.gather = Gather(distributed)
        self.register_buffer("embedding_memory", torch.zeros(memory_size, embedding_size))
        self.register_buffer("label_memory", torch.zeros(memory_size, dtype=torch.int64))
        self.register_buffer("id_memory", torch.full((memory_size,), UNKNOWN))
        self.register_buffer("counters", torch.zeros(3, dtype=torch.int64))

    @property
    def memory_size(self) -> int:
        """Rows of the memory."""
        return len(self.embedding_memory)

    @property
    def embedding_size(self) -> int:
        """Width of the embeddings."""
        return self.embedding_memory.shape[1]

    @property
    def queue_idx(self) -> int:
        """Where the next row goes."""
        return int(self.counters[0])

    @property
    def has_been_filled(self) -> bool:
        """Whether every row of the memory is in use."""
        return int(self.counters[1]) == self.memory_size

    def reset_queue(self) -> None:
        """Empty the memory, and count calls from 0 again."""
        for buffer, value in zip(self._buffers_kept(), (0, 0, UNKNOWN, 0), strict=True):
            buffer.fill_(value)

    def forward(  # type: ignore[override]  # PML's fourth argument is another one for a memory
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: Mined = None,
        enqueue_mask: Tensor | None = None,
        *,
        ids: Tensor | None = None,
    ) -> Any:
        """Return the loss of a batch, as of any loss here."""
        inputs = read_inputs(embeddings, labels, indices_tuple, ids=ids)
        return self._loss(inputs if enqueue_mask is None else with_keys(inputs, enqueue_mask))

    def compute(self, inputs: Inputs) -> Any:
        if inputs.ref_emb is not None:
            raise UserError("CrossBatchMemory brings its own references: leave out ref_emb, ref_labels and ref_ids")
        return self._loss(inputs)

    def _loss(self, inputs: Inputs) -> Any:
        check_width(inputs.embeddings, "embedding_size", self.embedding_size)
        check_device(self, inputs.embeddings)
        inputs = replace(inputs, positives=getattr(self.loss, "positives", "any"))
        self._fit_labels(inputs.labels)
        miner = self._miner(inputs)
        keyed = next((part for part in self.loss.modules() if isinstance(part, KeyedLoss)), None)
        if inputs.ids is None and keyed is not None:  # labels are ids then, so that earlier views are left out
            inputs = replace(inputs, ids=keyed.ids_of("labels", inputs.labels, "ids", None))
            if inputs.ref_labels is not None:
                inputs = replace(inputs, ref_ids=keyed.ids_of("labels", inputs.ref_labels, "ids", None))
        inputs = self.gather.batch(inputs)
        extended = self.with_memory(inputs)
        if miner is not None:
            extended = self.gather.ask_miner(replace(extended, indices_tuple=miner))
            if isinstance(inputs.indices_tuple, Sequence):
                mined = extended.indices_tuple
                assert isinstance(mined, Sequence)
                indices = [part.to(mined[0].device) for part in inputs.indices_tuple]
                alike = check_mined(indices, (len(inputs.labels),) * 2)
                if len(mined) == 3:
                    alike = convert_to_triplets(indices, inputs.labels)
                both = tuple(torch.cat(parts) for parts in zip(mined, alike, strict=True))
                extended = replace(extended, indices_tuple=both)
        value = call_loss(self.loss, extended)
        if writes(self):
            self.write(inputs)
        return value

    def _miner(self, inputs: Inputs) -> nn.Module | None:
        call_miner = inputs.indices_tuple if isinstance(inputs.indices_tuple, nn.Module) else None
        if self.miner is not None and call_miner is not None:
            raise UserError("indices_tuple was given a miner, but CrossBatchMemory has one: leave one of them out")
        miner = call_miner if self.miner is None else self.miner
        inner = []
        if isinstance(self.loss, MultipleLosses):
            losses = self.loss.losses
            inner = [each for name, each in self.loss.miners.items() if takes_references(losses[name])]
        if inputs.ref_emb is None and any(getattr(each, "pos_strategy", None) == "easy" for each in (miner, *inner)):
            raise UserError(
                "the miner takes the easiest positive, which among references is the query itself: give it "
                'pos_strategy="hard" or "all", or leave out the memory'
            )
        return miner

    def with_memory(self, inputs: Inputs) -> Inputs:
        """Return the inputs with references: the batch, or its keys, and the memory's rows that stay beside it."""
        labels, ids, counters = (buffer.cpu() for buffer in self._buffers_kept()[1:])
        position, filled, calls = counters.tolist()
        has_keys, used = inputs.ref_emb is not None, calls >= self.start_at
        if not has_keys and not used:
            return inputs
        first, first_labels, first_ids = rows_to_store(inputs)
        size = len(first_labels)
        if has_keys:  # another view of the query's image is no copy of it
            first_ids = torch.full((size,), UNKNOWN)
        number = max(0, min(filled, self.memory_size - size)) * used
        start = (position - number) % self.memory_size

        def stored(memory: Tensor) -> Tensor:  # what does not fit at the end begins again at the top
            end = min(number, self.memory_size - start)
            return torch.cat([memory[start : start + end], memory[: number - end]])

        first, memory = in_common_precision(first, stored(self.embedding_memory))
        extended = replace(
            inputs,
            ref_emb=torch.cat([first, memory]),
            ref_labels=torch.cat([first_labels.cpu(), stored(labels)]),
            ref_ids=None if first_ids is None or inputs.ids is None else torch.cat([first_ids.cpu(), stored(ids)]),
            batch_leads=not has_keys,
        )
        if size + len(memory) == 0:
            raise UserError("enqueue_mask is False for every row and the memory is empty: there is no reference")
        mined = inputs.indices_tuple
        if has_keys or self.miner is not None or not isinstance(mined, Sequence):
            return extended
        indices = (to_device_of(first, part) for part in check_mined(mined, (size, size)))
        itself, outside = extended.itself(first), torch.arange(size + len(memory), device=first.device) >= size
        assert itself is not None
        pairs = zip(indices, all_pairs(extended, outside & ~itself), strict=True)
        return replace(extended, indices_tuple=tuple(torch.cat(both) for both in pairs))

    @torch.no_grad()
    def write(self, inputs: Inputs) -> None:
        """Replace the oldest rows by the finite rows of the batch, or its keys."""
        memories = self._buffers_kept()[:3]
        rows, labels, ids = rows_to_store(inputs)
        parts = rows, labels, torch.full((len(rows),), UNKNOWN) if ids is None else ids
        values = [to_device_of(old, new.detach()).to(old.dtype) for old, new in zip(memories, parts, strict=True)]
        finite = values[0].isfinite().all(dim=1)
        newest = finite.to(torch.uint8).argsort(stable=True)[-self.memory_size :]  # the finite ones last, in order
        is_stored, number = finite[newest], min(len(finite), self.memory_size)
        position, filled, calls = self.counters.unbind()
        stored = is_stored.sum()
        slots = (position - (number - stored) + torch.arange(number, device=finite.device)) % self.memory_size
        for memory, new in zip(memories, values, strict=True):
            old = memory[slots]
            memory[slots] = torch.where(is_stored.view(-1, *[1] * (old.ndim - 1)), new[newest], old)
        after = (position + stored) % self.memory_size, (filled + stored).clamp(max=self.memory_size), calls + 1
        self.counters.copy_(torch.stack(after))

    def _fit_labels(self, labels: Tensor) -> None:
        if (old := self.label_memory).shape[1:] != labels.shape[1:]:
            if int(self.counters[1]):
                raise UserError(f"labels of the memory are {kind_of(old)}, those of the batch {kind_of(labels)}")
            self.label_memory = old.new_zeros(len(old), *labels.shape[1:], dtype=labels.dtype)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        self._fit_labels(state_dict.get(f"{prefix}label_memory", self.label_memory))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def _buffers_kept(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.embedding_memory, self.label_memory, self.id_memory, self.counters


def refuse_unfit(loss: nn.Module, *, gathers: bool) -> None:
    parts = loss.modules()
    if isinstance(loss, MultipleLosses) and (
        ranking := [each for each in loss.losses.values() if takes_references(each)]
    ):
        parts = itertools.chain(*(each.modules() for each in ranking))  # the others see the batch alone
    for part in parts:
        name, is_ours = type(part).__name__, isinstance(part, TakesInputs)
        of_pml = type(part).__module__.startswith(pml_losses.__name__) and name not in TAKEN_BY_PML
        if of_pml or (isinstance(part, TakesInputs) and (part.two_way or not part.takes_references)):
            made = " with two_way=True" if is_ours and part.two_way else ""
            raise UserError(
                f"{name}{made} takes no references of the images' own, so it has no use for a memory: leave out the "
                "memory, or list a loss beside it that ranks references"
            )
        if isinstance(part, TakesInputs) and part.gather.distributed and not gathers:
            raise UserError(
                "the loss in CrossBatchMemory has distributed=True, but the memory must be filled from all "
                "processes: give distributed=True to CrossBatchMemory"
            )


def with_keys(inputs: Inputs, is_key: Tensor) -> Inputs:
    rows = len(inputs.embeddings)
    is_mask = isinstance(is_key, Tensor) and is_key.dtype == torch.bool and is_key.shape == (rows,)
    if not is_mask or is_key.all():
        raise UserError(
            f"enqueue_mask must be {rows} of True and False, one per embedding, False for the queries, got "
            f"{kind_of(is_key)}{', True for all' * is_mask}; CrossBatchMemory brings its own references"
        )
    if isinstance(inputs.indices_tuple, Sequence):
        raise UserError("indices_tuple and enqueue_mask were both given: leave one of them out")

    def take(values: Tensor | None, mask: Tensor) -> Any:
        return None if values is None else values[mask.to(values.device)]

    return replace(
        inputs,
        embeddings=take(inputs.embeddings, ~is_key),
        labels=take(inputs.labels, ~is_key),
        ids=take(inputs.ids, ~is_key),
        ref_emb=take(inputs.embeddings.detach(), is_key),
        ref_labels=take(inputs.labels, is_key),
        ref_ids=take(inputs.ids, is_key),
    )


def rows_to_store(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor | None]:
    if inputs.ref_emb is None or inputs.ref_labels is None:
        return inputs.embeddings, inputs.labels, inputs.ids
    return inputs.ref_emb, inputs.ref_labels, inputs.ref_ids
