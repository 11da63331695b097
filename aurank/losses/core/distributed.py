"""One loss over the batches of all processes: rows are gathered, and their gradients find the way back."""

from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from aurank.errors import UserError
from aurank.losses.core.loss_inputs import Inputs, Mined

Distributed = Literal["auto"] | None


def world_size() -> int:
    """How many processes torch.distributed joins; 1 where it is not in use."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


class Gather:
    """Makes of each process's inputs those of all processes, the same in each of them.

    Each process then computes the loss of the whole batch, with its references, and the gradient of its own rows is
    multiplied by the number of processes, since data-parallel training averages the gradients of the weights: W
    processes with batch B / W get the gradient that one with batch B has. A miner is asked in the first process.

    mode: None leaves inputs as they are; "auto" gathers where torch.distributed joins several processes, unless a
    wrapper around the loss did so before.
    """

    def __init__(self, mode: Distributed) -> None:
        if mode not in (None, "auto"):
            raise UserError(f'distributed must be "auto" or None, got {mode!r}')
        self.mode = mode
        self.checked = False

    def __call__(self, inputs: Inputs) -> Inputs:
        """The inputs of all processes, and what a miner among them finds there."""
        return self.mine(self.batch(inputs))

    def mine(self, inputs: Inputs) -> Inputs:
        """The inputs, a miner among them replaced by what it finds: in the first process, where all have the same."""
        return mined_in_first(inputs) if inputs.shared else inputs.mined()

    def batch(self, inputs: Inputs) -> Inputs:
        """The inputs of all processes in the order of their ranks; a miner stays as it is.

        Errors: UserError when the processes disagree on what they pass and, in the first call, when all of them pass
        the same rows, which somebody must have gathered before.
        """
        if self.mode is None or inputs.shared or world_size() == 1:
            return inputs
        lengths = exchange_lengths(inputs)
        device = inputs.embeddings.device

        def gather(values: Tensor | None, column: int) -> Tensor | None:
            counts = [row[column] for row in lengths]
            return None if values is None else gather_rows(values.to(device), counts)

        def integers(values: Tensor | None, column: int) -> Tensor | None:
            return None if values is None else gather(values.long(), column)

        embeddings = gather(inputs.embeddings, 0)
        assert embeddings is not None
        ref_emb = embeddings if inputs.ref_emb is inputs.embeddings else gather(inputs.ref_emb, 1)
        labels = integers(inputs.labels, 0)
        assert labels is not None
        whole = replace(
            inputs,
            embeddings=embeddings,
            labels=labels,
            indices_tuple=gather_mined(inputs, lengths),
            ref_emb=ref_emb,
            ref_labels=integers(inputs.ref_labels, 1),
            ids=integers(inputs.ids, 0),
            ref_ids=integers(inputs.ref_ids, 1),
            shared=True,
        )
        if not self.checked:
            for name, rows, column in (("embeddings", embeddings, 0), ("ref_emb", ref_emb, 1)):
                refuse_copies(name, rows, [row[column] for row in lengths])
            self.checked = True
        return whole


def exchange_lengths(inputs: Inputs) -> list[list[int]]:
    """For each process the lengths of its embeddings, references and mined pairs; UserError where kinds differ."""
    mined = inputs.indices_tuple
    tensors = () if mined is None or isinstance(mined, nn.Module) else tuple(mined)
    if len(tensors) not in (0, 3, 4):
        raise UserError(f"indices_tuple must hold 3 (triplets) or 4 (pairs) tensors, got {len(tensors)}")
    kinds = {
        "a miner's indices_tuple of 3 or 4 tensors, or the miner itself": -1
        if isinstance(mined, nn.Module)
        else len(tensors),
        "ref_emb": int(inputs.ref_emb is not None) + int(inputs.ref_emb is inputs.embeddings),
        "ref_labels": int(inputs.ref_labels is not None),
        "ids": int(inputs.ids is not None),
        "ref_ids": int(inputs.ref_ids is not None),
    }
    own = [
        len(inputs.embeddings),
        0 if inputs.ref_emb is None else len(inputs.ref_emb),
        len(tensors[0]) if tensors else 0,
        len(tensors[-1]) if tensors else 0,
    ]
    mine = torch.tensor([*own, *kinds.values()], device=inputs.embeddings.device)
    everyone = [torch.zeros_like(mine) for _ in range(world_size())]
    distributed.all_gather(everyone, mine)
    rows: list[list[int]] = torch.stack(everyone).tolist()
    for place, name in enumerate(kinds, start=len(own)):
        if len({row[place] for row in rows}) > 1:
            raise UserError(f"the processes disagree on {name}: pass it in all of them or in none")
    return [row[: len(own)] for row in rows]


def gather_mined(inputs: Inputs, lengths: list[list[int]]) -> Mined:
    """The mined tuples of all processes, their indices moved to where the process's rows now are."""
    mined = inputs.indices_tuple
    if mined is None or isinstance(mined, nn.Module):
        return mined
    before = lengths[: distributed.get_rank()]
    anchor = sum(row[0] for row in before)
    reference = anchor if inputs.ref_emb is None else sum(row[1] for row in before)
    starts = (anchor, reference, reference) if len(mined) == 3 else (anchor, reference) * 2
    columns = (2, 2, 2) if len(mined) == 3 else (2, 2, 3, 3)
    return tuple(
        gather_rows(part.long().to(inputs.embeddings.device) + start, [row[column] for row in lengths])
        for part, start, column in zip(mined, starts, columns, strict=True)
    )


def refuse_copies(name: str, rows: Tensor | None, lengths: list[int]) -> None:
    """Nothing; UserError if every process brought the same rows."""
    if rows is None or len(set(lengths)) > 1 or lengths[0] == 0:
        return
    first, *others = torch.split(rows.detach(), lengths)
    if all(other.equal(first) for other in others):
        raise UserError(
            f"all {len(lengths)} processes passed the same {name}, so they were gathered before, or each process reads "
            'the same data: pass each its own part, or leave out distributed="auto"'
        )


def mined_in_first(inputs: Inputs) -> Inputs:
    """The inputs with what the first process's miner found: a miner may draw at random."""
    if not isinstance(inputs.indices_tuple, nn.Module):
        return inputs
    device = inputs.embeddings.device
    found = inputs.mined().indices_tuple if distributed.get_rank() == 0 else None
    tensors = [part.to(device) for part in found] if isinstance(found, tuple | list) else []
    sizes = torch.zeros(5, dtype=torch.int64, device=device)
    sizes[0] = len(tensors)
    for place, part in enumerate(tensors, start=1):
        sizes[place] = len(part)
    distributed.broadcast(sizes, 0)
    number, *lengths = sizes.tolist()
    if distributed.get_rank() != 0:
        tensors = [torch.empty(length, dtype=torch.int64, device=device) for length in lengths[:number]]
    for part in tensors:
        distributed.broadcast(part, 0)
    return replace(inputs, indices_tuple=tuple(tensors))


def gather_rows(local: Tensor, lengths: list[int]) -> Tensor:
    """The rows of all processes in the order of their ranks; `lengths` are their numbers. Differentiable."""
    gathered: Tensor = _GatherRows.apply(local, lengths)
    return gathered


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, lengths: list[int]) -> Tensor:
        ctx.lengths = lengths
        if max(lengths) == 0:
            return local.clone()
        padded = local.new_zeros(max(lengths), *local.shape[1:])
        padded[: len(local)] = local
        everyone = [torch.empty_like(padded) for _ in lengths]
        distributed.all_gather(everyone, padded)
        return torch.cat([rank[:length] for rank, length in zip(everyone, lengths, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "total ..."]) -> tuple[Tensor, None]:
        # every process computes the same loss, so its own rows' part of the gradient is all there
        own = distributed.get_rank()
        return torch.split(gradient, ctx.lengths)[own] * len(ctx.lengths), None
