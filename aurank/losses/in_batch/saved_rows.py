"""Losses against saved rows of the same images: those of a teacher, or of an old model whose gallery stays."""

from dataclasses import replace
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from aurank.errors import UserError
from aurank.losses.core.checks import Number, SoftmaxTemperature, check_width, require_number
from aurank.losses.core.common import in_common_precision, to_device_of, without_autocast
from aurank.losses.core.distributed import Gather
from aurank.losses.core.pair_loss import PairLossOptions, TakesInputs
from aurank.losses.core.pairs import Inputs
from aurank.losses.core.row_table import FullPrecision
from aurank.losses.in_batch.contrastive import SupConLoss

SavedRows = Float[Tensor, "sample dim"] | str  # text: the file that a configuration names, read before the loss is made


class ComparesSavedRows(TakesInputs):
    takes_references = False
    saved: Tensor  # at unit length; no part of a checkpoint

    def _with_rows(self: Any, inputs: Inputs, width: int) -> Inputs:
        inputs = self.gather.batch(inputs)
        if inputs.ids is None or not inputs.is_self_set:
            raise UserError(f"{type(self).__name__} compares a batch with saved rows: pass ids, and no ref_emb")
        check_width(inputs.embeddings, "embedding_size", width)
        rows = self.saved[to_device_of(self.saved, inputs.ids)]
        return replace(inputs, ref_emb=rows, ref_labels=inputs.labels.clone(), ref_ids=None)


class DistillLoss(ComparesSavedRows, FullPrecision):
    """cosine · (1 − cos(W·x, t)) + similarity · KL(p‖q) of each image x and its teacher's row t, the mean over images.

    q is the softmax of the cosines of x with the rest of the batch over the temperature, p that of the teacher's rows.
    Other views of the image are left out of both, since the teacher has one row for all. Labels do not matter.

    Args:
        teacher: its row of each training image; in a configuration a file or folder of ``aurank embed``.
        embedding_size: width of the embeddings. Where it is not the teacher's, W is learnt, from an orthogonal start.
        cosine, similarity: weights of the terms; 0 leaves one out.
        temperature: of both softmaxes.

    Source: the second term is CompRess (NeurIPS 2020), https://arxiv.org/abs/2010.14713, there over a memory.

    Example:
        >>> loss, labels, images = DistillLoss(torch.eye(3)), torch.zeros(3, dtype=int), torch.arange(3)
        >>> loss(torch.eye(3), labels, ids=images), loss(-torch.eye(3), labels, ids=images)
        (tensor(0.), tensor(2.))
    """

    def __init__(
        self,
        teacher: SavedRows,
        embedding_size: int | None = None,
        *,
        cosine: Number = 1.0,
        similarity: Number = 1.0,
        temperature: SoftmaxTemperature = 0.05,
        distributed: bool = False,
    ) -> None:
        super().__init__()
        self.register_buffer("saved", normalize(torch.as_tensor(teacher).float()), persistent=False)
        width = self.saved.shape[1]
        self.embedding_size = embedding_size or width
        self.cosine, self.similarity = cosine, similarity
        self.temperature, self.gather = require_number("temperature", temperature), Gather(distributed)
        shape = (width, self.embedding_size)
        self.map = None if self.embedding_size == width else nn.Parameter(nn.init.orthogonal_(torch.empty(shape)))

    def compute(self, inputs: Any) -> Tensor:
        inputs = self._with_rows(inputs, self.embedding_size)
        student, teacher = in_common_precision(inputs.embeddings, inputs.references)
        itself = to_device_of(student, inputs.ids[:, None] == inputs.ids)
        with without_autocast(student.device):
            mapped = student if self.map is None else student @ self.map.to(student.dtype).T
            distance = 1 - (normalize(mapped) * teacher).sum(dim=1)
            log_p, log_q = (
                (rows @ rows.T / self.temperature).masked_fill(itself, -torch.inf).log_softmax(dim=1)
                for rows in (teacher, normalize(student))
            )
            divergence = (log_p.exp() * (log_p - log_q)).masked_fill(itself, 0).sum(dim=1)
            return (self.cosine * distance + self.similarity * divergence).mean()


class CompatibleLoss(ComparesSavedRows, SupConLoss):
    """SupCon of new embeddings among old rows: a query's positives are the old rows of its class, its own among them.

    Args:
        old: the old model's row of each training image; in a configuration a file, as a `teacher`.
        temperature: τ.
        embedding_size: width of the embeddings, which must be that of the old rows.

    Source: Shen et al., Towards backward-compatible representation learning (CVPR 2020), Eq. 3,
        https://arxiv.org/abs/2003.11942. There new embeddings go through the old model's classifier, or the mean old
        rows of classes that it lacks; here old rows of the batch take its place, as a gallery holds them.

    Example:
        >>> images = torch.arange(3)  # of three classes
        >>> round(CompatibleLoss(torch.eye(3), 1.0)(torch.eye(3), images, ids=images).item(), 4)  # −log(e / (e + 2))
        0.5514
    """

    def __init__(
        self,
        old: SavedRows,
        temperature: SoftmaxTemperature = 0.1,
        *,
        embedding_size: int | None = None,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(temperature, **options)
        self.register_buffer("saved", normalize(torch.as_tensor(old).float()), persistent=False)
        if embedding_size not in (None, width := self.saved.shape[1]):
            raise UserError(f"old rows are {width} wide and the embeddings {embedding_size}: set model.dim={width}")

    def compute(self, inputs: Inputs) -> Any:
        return super().compute(self._with_rows(inputs, self.saved.shape[1]))
