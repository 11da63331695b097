"""How many negatives score above, and how many tie with, each positive: tiles of scores, counted in parallel.

The exact score of a query with each of its positives is a *threshold*. A tile of products decides every score that is
farther from each threshold than the product's error bound; the others are decided by exact scores. Where too many are
close (a collapsed model), the tile goes to the next tier: float64, then exact scores throughout. Hence a count never
depends on how it was found. Positives, and rows to be left out, are set to minus infinity, which nothing counts.
"""

import math
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from aurank.evaluation.engine.exact import ExactScores
from aurank.evaluation.engine.inputs import Vectors
from aurank.evaluation.engine.kernels import Counted, FusedKernel, Lines, make_kernel
from aurank.evaluation.engine.positives import Matching
from aurank.evaluation.engine.process_group import Team
from aurank.evaluation.engine.tiles import Plan, Round

Progress = Callable[[int, int], object]

# Where more than this part of a tile's pairs are close to a threshold, the next tier is cheaper than single scores.
NEAR = {torch.float32: 1 / 32, torch.float64: 1 / 8}


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Exact scores of each line's positives, increasing, with the gallery position of each."""

    scores: Float64[np.ndarray, " positive"]
    columns: Int64[np.ndarray, " positive"]
    offset: Int64[np.ndarray, " line_plus_one"]

    @property
    def at_least(self) -> Int64[np.ndarray, " positive"]:
        """Positives of the line that score at least as high, each one included."""
        line = np.repeat(np.arange(len(self.offset) - 1), np.diff(self.offset))
        new = np.ones(len(line), bool)
        new[1:] = (line[1:] != line[:-1]) | (self.scores[1:] != self.scores[:-1])
        start = np.maximum.accumulate(np.where(new, np.arange(len(line)), 0))
        return np.asarray(self.offset[line + 1] - start)


def find_thresholds(matching: Matching, exact: ExactScores, team: Team) -> Thresholds:
    """The Thresholds of a matching; of equal scores the one that stands first in the gallery comes last."""
    line = np.repeat(np.arange(len(matching.queries)), matching.num_positives)
    mine = team.part(len(line))
    scores = team.gather(exact.pairs(line[mine], matching.columns[mine]))
    order = np.lexsort((-matching.columns, scores, line))
    return Thresholds(scores[order], matching.columns[order], matching.offset)


def edges(
    side: Vectors, scores: Float64[np.ndarray, " threshold"], dtype: torch.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper edges of thresholds, between which a product of `dtype` decides nothing."""
    error, kind = side.distance.error(side.dim, dtype), torch.empty(0, dtype=dtype).numpy().dtype
    middle = scores / side.distance.factor
    return (middle - error).astype(kind), (middle + error).astype(kind)


@dataclass(eq=False)
class Task:
    """All that a tile needs, and the sums that it adds to."""

    matching: Matching
    queries: Vectors
    gallery: Vectors
    exact: ExactScores
    thresholds: Thresholds
    plan: Plan
    backend: str
    higher: Int64[np.ndarray, " positive"] = field(init=False)
    tied: Int64[np.ndarray, " positive"] = field(init=False)
    edges: tuple[np.ndarray, np.ndarray] = field(init=False)  # for float32 products
    lock: threading.Lock = field(default_factory=threading.Lock)
    rechecked: Int64[np.ndarray, " one"] = field(default_factory=lambda: np.zeros(1, np.int64))

    def __post_init__(self) -> None:
        self.higher, self.tied = (np.zeros(len(self.thresholds.scores), np.int64) for _ in range(2))
        self.edges = edges(self.queries, self.thresholds.scores, torch.float32)

    def lines(self, rows: slice, dtype: torch.dtype | None) -> Lines:
        """Thresholds of these lines with edges around them for products of `dtype`; no room at all for None (exact)."""
        offset = self.thresholds.offset[rows.start : rows.stop + 1]
        scores = self.thresholds.scores[offset[0] : offset[-1]]
        if dtype is None:
            return Lines(offset - offset[0], scores, scores)
        if dtype == torch.float32:
            return Lines(offset - offset[0], *(edge[offset[0] : offset[-1]] for edge in self.edges))
        return Lines(offset - offset[0], *edges(self.queries, scores, dtype))

    def add(self, rows: slice, above: np.ndarray, tied: np.ndarray, rechecked: int) -> None:
        """Adds what a tile has counted for these lines."""
        here = slice(self.thresholds.offset[rows.start], self.thresholds.offset[rows.stop])
        with self.lock:
            self.higher[here] += above
            self.tied[here] += tied
            self.rechecked[0] += rechecked


class Worker:
    """One thread's device, kernel and memory."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self.task = task
        self.device = device
        self.kernel = make_kernel(task.backend)
        self.memory = torch.empty(0, dtype=torch.uint8, device=device)

    def tile(self, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Memory for scores of this shape, the same for every tile: fresh pages cost more than the product."""
        size = shape[0] * shape[1] * dtype.itemsize
        if len(self.memory) < size:
            self.memory = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self.memory[:size].view(dtype).view(shape)

    def count(self, rows: slice, columns: slice, left: Tensor, right: Tensor) -> None:
        """Adds to the task what these lines and gallery positions, given by their float32 features, say."""
        sides, matching = [False], self.task.matching
        if matching.symmetric and rows != columns:
            sides.append(True)  # the tile's columns are lines too
        for dtype in (torch.float32, torch.float64, None):
            if dtype is not None and math.isinf(self.task.queries.distance.error(self.task.queries.dim, dtype)):
                continue
            if dtype == torch.float32 and isinstance(self.kernel, FusedKernel) and not has_extra(matching, rows):
                sides = self.fuse(self.kernel, rows, columns, left, right, sides)
            else:
                scores = self.scores(rows, columns, dtype, left, right)
                leave_out(matching, rows, columns, scores)
                sides = [side for side in sides if not self.read_off(rows, columns, scores, dtype, transposed=side)]
            if not sides:
                return

    def fuse(
        self, kernel: FusedKernel, rows: slice, columns: slice, left: Tensor, right: Tensor, sides: list[bool]
    ) -> list[bool]:
        """The sides that could not be counted by products that are never kept."""
        matching, dtype = self.task.matching, torch.float32
        edges = np.stack([matching.first[rows], matching.last[rows]]) - columns.start
        left_out = np.clip(edges, 0, columns.stop - columns.start)
        places = [(columns, rows) if side else (rows, columns) for side in sides]
        lines = [self.task.lines(mine, dtype) for mine, _ in places]
        room = int(len(left) * len(right) * NEAR[dtype])
        found = kernel.multiply_and_count(left, right, left_out, lines, room=room)
        for place, one, counted in zip(places, lines, found, strict=True):
            if counted is not None:
                self.task.add(place[0], counted.above, self.settle(*place, one, counted), len(counted.threshold))
        return [side for side, counted in zip(sides, found, strict=True) if counted is None]

    def scores(self, rows: slice, columns: slice, dtype: torch.dtype | None, left: Tensor, right: Tensor) -> Tensor:
        """Products of features, or exact scores without a dtype."""
        task, shape = self.task, (rows.stop - rows.start, columns.stop - columns.start)
        if dtype == torch.float32:
            return torch.mm(left, right.T, out=self.tile(shape, dtype))
        if dtype is not None:
            first = task.queries.features(rows, dtype, gallery=False).to(self.device)
            second = task.gallery.features(columns, dtype, gallery=True).to(self.device)
            return torch.mm(first, second.T, out=self.tile(shape, dtype))
        scores = self.tile(shape, torch.float64)
        task.exact.tile(rows, columns, scores)
        return scores

    def read_off(
        self, rows: slice, columns: slice, scores: Tensor, dtype: torch.dtype | None, *, transposed: bool
    ) -> bool:
        """Whether the scores could be counted for one side of the tile: not if too many are close to a threshold."""
        mine, others = (columns, rows) if transposed else (rows, columns)
        lines = self.task.lines(mine, dtype)
        if not len(lines.low):
            return True
        room = None if dtype is None else int(scores.numel() * NEAR[dtype])
        counted = self.kernel.count(scores, lines, transposed=transposed, room=room)
        if counted is None:
            return False
        if dtype is None:
            self.task.add(mine, counted.above, counted.near, scores.numel())
        else:
            self.task.add(mine, counted.above, self.settle(mine, others, lines, counted), len(counted.threshold))
        return True

    def settle(self, mine: slice, others: slice, lines: Lines, counted: Counted) -> np.ndarray:
        """Adds the near pairs that are above by their exact score; returns the number that tie with each threshold."""
        at = counted.threshold
        tied = np.zeros_like(counted.near)
        if len(at):
            line = np.searchsorted(lines.offset, at, side="right") - 1
            exact = self.task.exact.pairs(line + mine.start, counted.other + others.start)
            start = self.task.thresholds.offset[mine.start]
            threshold = self.task.thresholds.scores[at + start]
            np.add.at(counted.above, at[exact > threshold], 1)
            np.add.at(tied, at[exact == threshold], 1)
        return tied


def has_extra(matching: Matching, rows: slice) -> bool:
    """Whether these lines leave out more than a range of the gallery."""
    return bool(matching.extra_offset[rows.start] < matching.extra_offset[rows.stop])


def leave_out(matching: Matching, rows: slice, columns: slice, scores: Tensor) -> None:
    """Sets to minus infinity the scores of positives and of whatever else a line does not compete with."""
    first, last = matching.first[rows], matching.last[rows]
    # Lines stand in the order of their classes, so a tile far from them is seen from its corners.
    if first[0] < columns.stop and last[-1] > columns.start:
        tile = scores if scores.is_cuda else scores.numpy()  # a view that costs less to write to
        edges = np.flatnonzero(np.diff(first)) + 1
        for top, bottom in zip([0, *edges.tolist()], [*edges.tolist(), len(first)], strict=True):
            start, stop = max(int(first[top]) - columns.start, 0), max(int(last[top]) - columns.start, 0)
            tile[top:bottom, start:stop] = -math.inf
    offset = matching.extra_offset[rows.start : rows.stop + 1]
    if offset[0] < offset[-1]:
        place = matching.extra[offset[0] : offset[-1]]
        line = np.repeat(np.arange(len(first)), np.diff(offset))
        inside = (place >= columns.start) & (place < columns.stop)
        where = [torch.from_numpy(index[inside]).to(scores.device) for index in (line, place - columns.start)]
        scores[where[0], where[1]] = -math.inf


def count_all(task: Task, team: Team, devices: list[torch.device], progress: Progress | None) -> None:
    """Fills the task's sums: this member's part of the tiles of every round, then the sums of the whole team."""
    slots: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for slot in range(task.plan.workers):
        slots.put(Worker(task, devices[slot % len(devices)]))
    panels = Panels(task, devices)

    def run(place: Round, tile: tuple[slice, slice]) -> None:
        worker = slots.get()
        try:
            rows, columns = tile
            left, right = panels.left[worker.device], panels.right[worker.device]
            here = slice(rows.start - place.left.start, rows.stop - place.left.start)
            there = slice(columns.start - place.right.start, columns.stop - place.right.start)
            worker.count(rows, columns, left[here], right[there])
        finally:
            slots.put(worker)

    done, threads = 0, torch.get_num_threads()  # the number is each thread's own, so the pool's have to be told
    with ThreadPoolExecutor(task.plan.workers, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        try:
            for place in task.plan.rounds():
                panels.load(place)
                jobs = [pool.submit(run, place, tile) for tile in team.share(place.tiles)]
                for job in jobs:
                    job.result()
                team.meet()
                done += len(place.tiles)
                if progress is not None:
                    progress(done, task.plan.num_tiles)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    for counts in (task.higher, task.tied, task.rechecked):
        team.add(counts)


class Panels:
    """float32 features of a round's two sides on every device, kept while the rounds that follow need them."""

    def __init__(self, task: Task, devices: list[torch.device]) -> None:
        self.task = task
        self.devices = set(devices)
        self.left: dict[torch.device, Tensor] = {}
        self.right: dict[torch.device, Tensor] = {}
        self.places: tuple[slice, slice] | None = None
        self.buffers: dict[bool, Tensor] = {}  # by side; panels made anew would leave holes in the heap

    def load(self, place: Round) -> None:
        """Makes the features of this round's sides that are not there already."""
        if self.places == (place.left, place.right):
            return
        self.right = {}  # let go of the old before the new is made
        if self.places is None or self.places[0] != place.left:
            self.left = {}
            self.left = self._features(self.task.queries, place.left, gallery=False)
        shared = self.task.matching.symmetric and place.left == place.right and self.task.queries.distance.shared
        self.right = self.left if shared else self._features(self.task.gallery, place.right, gallery=True)
        self.places = place.left, place.right

    def _features(self, side: Vectors, rows: slice, *, gallery: bool) -> dict[torch.device, Tensor]:
        count, width = rows.stop - rows.start, side.distance.width(side.dim)
        kept = self.buffers.get(gallery)
        if kept is None or len(kept) < count:
            kept = self.buffers[gallery] = torch.empty((count, width), dtype=torch.float32, device=side.device)
        features = side.features(rows, torch.float32, gallery=gallery, out=kept[:count])
        return {device: features.to(device) for device in self.devices}
