"""The call that all losses have in common."""

from typing import Any

from torch import Tensor

from aurank.losses.core.distributed import Gather
from aurank.losses.core.loss_inputs import Inputs, Mined, read_inputs


class TakesInputs:
    """The call that all losses here have in common: it reads the arguments, and hands them to `compute`.

    Attributes:
        two_way: the references are another modality of the same data.
        gather: brings together the batches of all processes.
    """

    two_way: bool = False
    gather: Gather

    @property
    def takes_references(self) -> bool:
        """Whether the loss takes references of their own; no memory can wrap one that does not."""
        return True

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
        """Return the loss of a batch, a scalar (whatever the reducer returns, where one is given).

        Args:
            embeddings: of the batch.
            labels: integers; on the host, they spare the host from waiting for a GPU.
            indices_tuple: pairs or triplets from a PML miner, or the miner itself, which is then asked about what the
                loss sees.
            ref_emb: the references to rank; None: the batch itself without each query.
            ref_labels: of the references.
            ids: rows of the data set: they key state per sample, and leave a query out of references that hold it.
            ref_ids: of the references.

        Shape:
            embeddings [batch, dim], labels and ids [batch]; ref_emb [reference, dim], its labels and ids [reference].

        Raises:
            UserError: input that does not fit.
        """
        return self.compute(
            read_inputs(embeddings, labels, indices_tuple, ref_emb, ref_labels, ids=ids, ref_ids=ref_ids)
        )

    def compute(self, inputs: Inputs) -> Any:
        """Return the loss of arguments that were read before."""
        raise NotImplementedError
