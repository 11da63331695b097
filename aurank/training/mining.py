"""The nearest images of each training image, under the weights as they stand: what hard negatives are chosen by."""

from collections.abc import Callable

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from jaxtyping import Int64
from torch import nn

from aurank.data import ImageDataset
from aurank.embedding.embed import embed
from aurank.evaluation.index.neighbours import neighbours


class NearestImages:
    """Called with a number, the rows of so many nearest other images of each training image, the same in each process.

    The main process embeds the whole set and searches it with faiss, exactly up to float32; the others wait.

    Args:
        data: makes the training images under the evaluation transform; called when they are first needed.
        batch, workers: as for `embed`.
    """

    def __init__(
        self,
        encoder: nn.Module,
        data: Callable[[], ImageDataset],
        images: int,
        *,
        accelerator: Accelerator,
        batch: int,
        workers: int = 0,
    ) -> None:
        self.encoder = encoder
        self.data = data
        self.images = images
        self.accelerator = accelerator
        self.batch = batch
        self.workers = workers
        self._built: ImageDataset | None = None

    def __call__(self, count: int) -> Int64[np.ndarray, "image count"]:
        """Rows, the nearest first; −1 where there are no more, and for images that could not be read."""
        table = np.full((self.images, count), -1, dtype=np.int64)
        if self.accelerator.is_main_process:
            if self._built is None:
                self._built = self.data()
            embedded = embed(self.encoder, self._built, batch=self.batch, workers=self.workers)
            device = self.accelerator.device
            place = device if device.type == "cuda" else "cpu"  # what faiss knows
            found = neighbours(embedded.embeddings, count, device=place).row
            # An entry that an index did not find names a row behind the last one.
            table[embedded.ids, : found.shape[1]] = np.append(embedded.ids, -1)[found]
        shared = broadcast(torch.from_numpy(table).to(self.accelerator.device))
        result: np.ndarray = shared.cpu().numpy()
        return result
