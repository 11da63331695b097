"""Rows of a table in host memory, fetched for a batch to where it is computed, and sent back when they have changed."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


class Staging:
    """The rows that one batch reads and writes, on its device.

    Neither way makes the host wait: copies go through pinned memory, and what was sent back is only asked for when the
    next batch is fetched, a step later.

    rows, seen: the table. ids: rows of it, on the host; repetitions are fetched once.
    """

    def __init__(
        self,
        rows: Float[Tensor, "row width"],
        seen: Bool[Tensor, " row"],
        ids: Int64[Tensor, " entry"],
        device: torch.device,
    ) -> None:
        self.device = device
        self.host_ids = torch.unique(ids)
        self.ids = self._send(self.host_ids)
        self.rows, self.seen = self._send(rows[self.host_ids]), self._send(seen[self.host_ids])
        self.returning: tuple[Tensor, Tensor] | None = None
        self.event: torch.cuda.Event | None = None

    def places(self, index: Int64[Tensor, " entry"]) -> Int64[Tensor, " entry"]:
        """Where rows of the table are among those fetched; every one asked for has to be."""
        return torch.searchsorted(self.ids, index)

    def send_back(self) -> None:
        """Nothing; the rows as they are now set out for the host."""
        rows, seen = (self._host_like(values).copy_(values, non_blocking=True) for values in (self.rows, self.seen))
        self.returning = rows, seen
        if self.device.type == "cuda":
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record()

    def returned(self) -> tuple[Tensor, Tensor] | None:
        """The rows that were sent back and whether they are seen, on the host, once; None where none were."""
        if self.event is not None:
            self.event.synchronize()
        found, self.returning, self.event = self.returning, None, None
        return found

    def _send(self, values: Tensor) -> Tensor:
        if self.device.type != "cuda":
            return values.to(self.device)
        return values.pin_memory().to(self.device, non_blocking=True)

    def _host_like(self, values: Tensor) -> Tensor:
        return torch.empty(values.shape, dtype=values.dtype, pin_memory=self.device.type == "cuda")
