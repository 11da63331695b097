"""One loss over the batches of all processes: rows are gathered, and their gradients find the way back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, distributed, nn

from aurank.errors import UserError
from aurank.losses.core.pairs import Inputs, Mined


def world_size() -> int:
    """Return how many processes torch.distributed joins; 1 where it is not in use."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def exchange(numbers: Sequence[int], device: torch.device) -> list[list[int]]:
    """Return the numbers of each process, in the order of ranks."""
    numbers_here = torch.tensor(numbers, device=device)
    everyone = [torch.zeros_like(numbers_here) for _ in range(world_size())]
    distributed.all_gather(everyone, numbers_here)
    rows: list[list[int]] = torch.stack(everyone).tolist()
    return rows


Shares = tuple[Sequence[Int64[Tensor, " row"]], Sequence[Int64[Tensor, " row"]]]  # labels and ids of each process


class Gather:
    """Makes of each process's inputs those of all processes, the same in each of them."""

    views = 1
    announced: Shares | None = None

    def __init__(self, distributed: bool) -> None:
        self.distributed = distributed
        self.checked = False

    def __call__(self, inputs: Inputs) -> Inputs:
        return self.ask_miner(self.batch(inputs))

    def ask_miner(self, inputs: Inputs) -> Inputs:
        return mined_in_first(inputs) if inputs.shared else inputs.mined()

    def batch(self, inputs: Inputs) -> Inputs:
        """Return the inputs of all processes, in the order of their ranks within a view; a miner stays as it is."""
        if not self.distributed or inputs.shared or world_size() == 1:
            return inputs
        paired = inputs.is_self_set or (inputs.ref_labels is inputs.labels and inputs.ref_ids is inputs.ids)
        is_of_batch = inputs.ids is not None and not isinstance(inputs.indices_tuple, Sequence) and paired
        if self.announced is not None and is_of_batch:
            return self._of_announced(inputs, self.announced)
        lengths = exchange_lengths(inputs)
        queries, references = ([row[side] for row in lengths] for side in (0, 1))
        views = 1 if isinstance(inputs.indices_tuple, Sequence) else self.views  # what was mined names rows of a rank

        def gather(values: Tensor | None, counts: list[int]) -> Any:
            if values is None:
                return None
            return gather_rows(values.to(inputs.embeddings.device), counts, views=views)

        embeddings = gather(inputs.embeddings, queries)
        is_own = inputs.ref_emb is inputs.embeddings
        gathered = replace(
            inputs,
            embeddings=embeddings,
            labels=gather(inputs.labels, queries),
            indices_tuple=gather_mined(inputs, lengths),
            ref_emb=embeddings if is_own else gather(inputs.ref_emb, references),
            ref_labels=gather(inputs.ref_labels, references),
            ids=gather(inputs.ids, queries),
            ref_ids=gather(inputs.ref_ids, references),
            shared=True,
        )
        if not self.checked:
            refuse_copies("embeddings", embeddings, queries, views)
            refuse_copies("ref_emb", gathered.ref_emb, references, views)
            self.checked = True
        return gathered

    def _of_announced(self, inputs: Inputs, announced: Shares) -> Inputs:
        lengths = [len(ids) for ids in announced[1]]
        assert len(inputs.embeddings) == lengths[distributed.get_rank()]
        labels, ids = (in_order(each, views=self.views) for each in announced)
        gathered = replace(inputs, labels=labels, ids=ids, shared=True)
        if inputs.is_self_set:
            embeddings = gather_rows(inputs.embeddings, lengths, views=self.views)
            return replace(gathered, embeddings=embeddings, ref_emb=None if inputs.ref_emb is None else embeddings)
        both = torch.cat([inputs.embeddings, inputs.references], dim=1)
        embeddings, references = gather_rows(both, lengths, views=self.views).chunk(2, dim=1)
        return replace(gathered, embeddings=embeddings, ref_emb=references, ref_labels=labels, ref_ids=ids)


def exchange_lengths(inputs: Inputs) -> list[list[int]]:
    mined = inputs.indices_tuple
    is_miner = isinstance(mined, nn.Module)
    tensors = () if mined is None or isinstance(mined, nn.Module) else tuple(mined)
    kinds = {
        "a miner's indices_tuple of 3 or 4 tensors, or the miner itself": -1 if is_miner else len(tensors),
        "labels as sets of equally many classes": sum(inputs.labels.shape[1:]),
        "ref_emb": int(inputs.ref_emb is not None) + int(inputs.ref_emb is inputs.embeddings),
        **{name: int(getattr(inputs, name) is not None) for name in ("ref_labels", "ids", "ref_ids")},
    }
    lengths = [len(part) for part in (tensors[0], tensors[-1])] if tensors else [0, 0]
    lengths = [len(inputs.embeddings), 0 if inputs.ref_emb is None else len(inputs.ref_emb), *lengths]
    rows = exchange([*lengths, *kinds.values()], inputs.embeddings.device)
    for column, name in enumerate(kinds, start=len(lengths)):
        if len({row[column] for row in rows}) > 1:
            raise UserError(f"the processes disagree on {name}: pass it in all of them or in none")
    return [row[: len(lengths)] for row in rows]


def gather_mined(inputs: Inputs, lengths: list[list[int]]) -> Mined:
    mined = inputs.indices_tuple
    if mined is None or isinstance(mined, nn.Module):
        return mined
    before = lengths[: distributed.get_rank()]
    query = sum(row[0] for row in before)
    reference = query if inputs.ref_emb is None else sum(row[1] for row in before)
    starts = (query, reference, reference) if len(mined) == 3 else (query, reference) * 2
    columns = (2, 2, 2) if len(mined) == 3 else (2, 2, 3, 3)
    return tuple(
        gather_rows(part.long().to(inputs.embeddings.device) + start, [row[column] for row in lengths])
        for part, start, column in zip(mined, starts, columns, strict=True)
    )


def refuse_copies(name: str, rows: Tensor | None, lengths: list[int], views: int) -> None:
    if rows is None or len(set(lengths)) > 1 or lengths[0] == 0:
        return
    first, *later = torch.unflatten(rows.detach(), 0, (views, -1)).tensor_split(len(lengths), dim=1)
    if all(copy.equal(first) for copy in later):
        raise UserError(
            f"all {len(lengths)} processes passed the same {name}, so they were gathered before, or each process reads "
            "the same data: pass each its own part, or leave out distributed=True"
        )


def mined_in_first(inputs: Inputs) -> Inputs:
    if not isinstance(inputs.indices_tuple, nn.Module):
        return inputs
    device = inputs.embeddings.device
    mined = inputs.mined().indices_tuple if distributed.get_rank() == 0 else None
    parts = [part.to(device).long() for part in mined] if isinstance(mined, Sequence) else []
    lengths = torch.tensor([*map(len, parts), *[-1] * (4 - len(parts))], device=device)
    distributed.broadcast(lengths, 0)
    sizes = [length for length in lengths.tolist() if length >= 0]
    indices = torch.cat(parts) if parts else torch.empty(sum(sizes), dtype=torch.int64, device=device)
    if len(indices):
        distributed.broadcast(indices, 0)
    return replace(inputs, indices_tuple=torch.split(indices, sizes))


def gather_rows(local: Tensor, lengths: list[int], *, views: int = 1) -> Tensor:
    if max(lengths) == 0:
        return local.clone()
    padded = local.new_zeros(max(lengths), *local.shape[1:])
    padded[: len(local)] = local.detach()
    everyone = [torch.empty_like(padded) for _ in lengths]
    distributed.all_gather(everyone, padded)
    rows = [rank[:length] for rank, length in zip(everyone, lengths, strict=True)]
    if local.requires_grad:
        local_rows = rows[distributed.get_rank()] = local.view_as(local)
        local_rows.register_hook(lambda gradient: gradient * len(lengths))  # type: ignore[no-untyped-call]
    return in_order(rows, views=views)


def in_order(parts: Sequence[Tensor], *, views: int) -> Tensor:
    if views == 1:
        return torch.cat(list(parts))
    by_view = [torch.unflatten(part, 0, (views, len(part) // views)) for part in parts]
    return torch.cat(by_view, dim=1).flatten(0, 1)
