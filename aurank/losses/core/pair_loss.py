"""The call that all losses have in common, and PairLoss: the only bridge between aurank's losses and PML."""

import inspect
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, Unpack

import torch
from jaxtyping import Float, Int64
from pytorch_metric_learning.distances import BaseDistance, CosineSimilarity
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.reducers import BaseReducer
from pytorch_metric_learning.regularizers import BaseRegularizer
from torch import Tensor

from aurank.errors import AurankWarning, UserError
from aurank.losses.core.checks import Number, require_whole
from aurank.losses.core.common import without_autocast
from aurank.losses.core.distributed import Gather
from aurank.losses.core.pairs import Inputs, Mined, Pairs, make_pairs, read_inputs
from aurank.losses.core.row_table import check_device
from aurank.losses.core.sets import ComparedLabels, Labels, Relation, check_relation
from aurank.names import named, signature


class NamesArguments(type):
    """The type of losses: they are made by other names of arguments too, and a misspelt or unused one is refused."""

    if not TYPE_CHECKING:  # a type checker judges the constructors

        def __call__(cls, *args: Any, **arguments: Any) -> Any:
            arguments = named(cls, arguments)
            parameters = signature(cls)[0]
            values = dict(zip(parameters, args, strict=False)) | arguments
            for (name, value), names in cls.unused.items():
                for unused in names if values.get(name, parameters[name].default) == value else ():
                    plain = tuple(values[unused]) if isinstance(values.get(unused), list) else values.get(unused)
                    if unused in values and plain != parameters[unused].default:
                        raise UserError(
                            f"{unused}={plain!r} has no effect with {name}={value!r}: leave out one of them"
                        )
            return super().__call__(*args, **arguments)

        @property
        def __signature__(cls) -> inspect.Signature:  # of the constructor, not of the call above
            constructor = inspect.signature(cls.__init__)
            return constructor.replace(parameters=list(constructor.parameters.values())[1:])


class TakesInputs(metaclass=NamesArguments):
    """The call that all losses here have in common: it reads the arguments, and hands them to `compute`."""

    aliases: ClassVar[Mapping[str, str]] = {}  # other names of constructors' arguments
    unused: ClassVar[Mapping[tuple[str, Any], tuple[str, ...]]] = {}  # what has no effect beside an argument's value
    two_way: bool = False
    positives: Relation = "any"
    gather: Gather

    if TYPE_CHECKING:
        __call__: Callable[..., Tensor]  # torch types the call of a module as Any

    @property
    def takes_references(self) -> bool:
        return True

    def forward(
        self,
        embeddings: Tensor,
        labels: Labels | None = None,
        indices_tuple: Mined = None,
        ref_emb: Tensor | None = None,
        ref_labels: Labels | None = None,
        *,
        ids: Tensor | None = None,
        ref_ids: Tensor | None = None,
    ) -> Any:
        """Return the loss of a batch, a scalar (whatever the reducer returns, where one is given).

        Args:
            embeddings: of the batch.
            labels: integers, or sets (bool, or lists of integers); on the host, they spare it from waiting for a GPU.
            indices_tuple: pairs or triplets from a PML miner, or the miner itself, which is then asked about what the
                loss sees.
            ref_emb: the references to rank; None: the batch itself without each query.
            ref_labels: of the references.
            ids: rows of the data set: they key state per sample, and leave a query out of references that hold it.
            ref_ids: of the references.

        Shape:
            embeddings [batch, dim], labels [batch] or [batch, class], ids [batch]; those of references alike.

        Raises:
            UserError: input that does not fit.
        """
        return self.compute(
            read_inputs(embeddings, labels, indices_tuple, ref_emb, ref_labels, ids=ids, ref_ids=ref_ids)
        )

    @abstractmethod
    def compute(self, inputs: Inputs) -> Any:
        """Return the loss of checked arguments."""


class PairLossOptions(TypedDict, total=False):
    positives: Relation
    distance: BaseDistance | None
    reducer: BaseReducer | None
    embedding_regularizer: BaseRegularizer | None
    embedding_reg_weight: Number
    distributed: bool


class PairLoss(TakesInputs, BaseMetricLossFunction):  # type: ignore[misc]  # PML ships no types
    """A PML loss that is one method, `per_query`, and optionally `extra_terms`, of the pairs of a batch.

    The loss is the mean over queries with at least one positive and one negative, or what a PML reducer makes of those
    queries' values ("element" losses); extra terms are reduced in the same way and added. A batch without such a query
    gives exactly 0 with zero gradient. Numbers are float32 inside autocast too, float64 for float64 embeddings.

    A subclass with extra terms sets `extra_names` before this constructor, in which PML makes one reducer per term.
    A subclass with `two_way` True is given the references as another modality of the same data, and asked for both
    directions: `per_query` again with the references as queries (`pairs.side` is 1); the loss is the sum of both.

    Args:
        positives: which sets of labels are positive: "any" (a label in common), "equal", a number in (0, 1] (a Jaccard
            index, labels in common / in all, of at least that), or "jaccard": as "any", the index being the weight in
            all "weighted means". Or a function of the labels of queries and of references, sets or integers on the
            host, that returns bool or weights in [0, 1], [query, reference].
        distance: similarity of embeddings; None: cosine.
        reducer: what makes a number of the queries' values; None: their mean.
        embedding_regularizer: PML's, added with `embedding_reg_weight`.
        distributed: whether to make the loss that of all processes' batches together, where torch.distributed joins
            several; the gradient is then that of one process with the whole batch.

    Example:
        >>> class Contrast(PairLoss):
        ...     def per_query(self, pairs):
        ...         return 1 - pairs.positives.mean(pairs.positives.similarity)
        >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> Contrast()(rows, torch.tensor([0, 0, 1])).item()
        0.0
    """

    extra_names: tuple[str, ...] = ()
    one_label: str = ""  # why it takes neither sets nor a function, and the remedy
    takes_weights: bool = True  # of positives

    def __init__(
        self,
        *,
        positives: Relation = "any",
        distance: BaseDistance | None = None,
        reducer: BaseReducer | None = None,
        embedding_regularizer: BaseRegularizer | None = None,
        embedding_reg_weight: Number = 1.0,
        distributed: bool = False,
    ) -> None:
        super().__init__(
            distance=CosineSimilarity() if distance is None else distance,
            reducer=reducer,
            embedding_regularizer=embedding_regularizer,
            embedding_reg_weight=embedding_reg_weight,
        )
        self.positives = check_relation(positives)
        self.gather = Gather(distributed)
        self._warned = False

    @abstractmethod
    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        """Return the loss of each query; those without a positive or a negative are left out later."""

    def extra_terms(self, pairs: Pairs) -> dict[str, Tensor]:
        return {}

    def compute(self, inputs: Inputs) -> Any:
        self.reset_stats()
        check_device(self, inputs.embeddings)
        if self.two_way and inputs.is_self_set:
            raise UserError(
                f"{type(self).__name__} with two_way=True contrasts two modalities: pass the other one, "
                "loss(images, labels, ref_emb=texts, ref_labels=labels), or make it with two_way=False for one"
            )
        inputs = self.prepared(self.gather(replace(inputs, positives=self.positives)))
        pairs = make_pairs(inputs, distance=self.distance, two_way=self.two_way)
        if self.one_label and pairs.host_positive is not None:
            raise UserError(f"{type(self).__name__} takes one label a row, no sets or function: {self.one_label}")
        if pairs.weight is not None and not self.takes_weights:
            raise UserError(f"{type(self).__name__} has no weights: set positives to any, equal or a number in (0, 1]")
        if self.training and inputs.indices_tuple is None and len(pairs.valid_rows) == 0:
            self._warn_of_no_pairs(pairs)
        with without_autocast(pairs.query.device):
            losses = [self._reduced(side) for side in ((pairs, pairs.other_way()) if self.two_way else (pairs,))]
        if isinstance(losses[0], dict):  # of a reducer that reduces nothing
            return losses[0] if len(losses) == 1 else dict(zip(("loss", "other_way"), losses, strict=True))
        return sum(losses[1:], losses[0])

    def prepared(self, inputs: Inputs) -> Inputs:
        return inputs

    def _warn_of_no_pairs(self, pairs: Pairs) -> None:
        if self._warned or torch.compiler.is_compiling():
            return
        self._warned = True
        labels = len(torch.unique(pairs.host_query_labels, dim=0))
        remedy = "draw several images of each of several labels"
        if pairs.own_references is not None:  # ids leave references out
            remedy = "references of a query's own id do not count: leave out ref_ids, or set two_way=True for texts"
        warnings.warn(
            f"no query of the batch has both a positive and a negative ({len(pairs.query)} queries of {labels} labels, "
            f"{len(pairs.reference)} references), so the loss is 0: {remedy}",
            AurankWarning,
            stacklevel=2,
        )

    def _reduced(self, pairs: Pairs) -> Any:
        # computed though no query may be valid: under torch.distributed the other ranks wait for this one's state
        terms = {"loss": self.per_query(pairs), **self.extra_terms(pairs)}
        rows, loss_dict = pairs.valid_rows, {}
        for name, values in terms.items():
            if len(rows) == 0:
                loss_dict[name] = self.zero_loss()
            elif values.ndim == 0:
                loss_dict[name] = {"losses": values, "indices": None, "reduction_type": "already_reduced"}
            else:
                element = {"losses": values[rows], "indices": rows, "reduction_type": "element", "divisor": len(rows)}
                loss_dict[name] = element
        self.add_embedding_regularization_to_loss_dict(loss_dict, pairs.query)
        labels: Any = pairs.query_labels if pairs.query_labels.ndim == 1 else ComparedLabels(pairs.positive)
        return self.reducer(loss_dict, pairs.query, labels)

    def _sub_loss_names(self) -> list[str]:
        return ["loss", *self.extra_names]


class KeyedLossOptions(PairLossOptions, total=False):
    views: int


class KeyedLoss(PairLoss):
    """A loss whose state is keyed by `ids`, rows 0 … num_samples − 1 of the data set."""

    def __init__(self, num_samples: int, *, views: int = 2, **options: Unpack[PairLossOptions]) -> None:
        super().__init__(**options)
        self.num_samples = require_whole("num_samples", num_samples)
        self.views = require_whole("views", views)

    def prepared(self, inputs: Inputs) -> Inputs:
        ids = self.ids_of("labels", inputs.labels, "ids", inputs.ids)
        if not self.two_way:
            return replace(inputs, ids=ids)
        if inputs.ids is not None and inputs.ref_ids is None:
            raise UserError(
                f"{type(self).__name__} with two_way=True keys the state of both sides: pass ref_ids beside ids"
            )
        assert inputs.ref_labels is not None
        ref_ids = self.ids_of("ref_labels", inputs.ref_labels, "ref_ids", inputs.ref_ids)
        return replace(inputs, ids=ids, ref_ids=ref_ids)

    def ids_of(self, labels_name: str, labels: Tensor, ids_name: str, ids: Tensor | None) -> Int64[Tensor, " row"]:
        """Return the ids of one side, on the host; UserError where they are unclear, or outside of the data set."""
        if ids is None and labels.ndim == 2:
            raise UserError(f"{labels_name} are sets, so {ids_name} must say which rows of the data set these are")
        numbers = (labels if ids is None else ids).detach().cpu()
        if ids is None:
            values, counts = torch.unique(numbers, return_counts=True)
            if int(counts.max()) > self.views:
                raise UserError(
                    f"{labels_name}: label {int(values[counts.argmax()])} occurs {int(counts.max())} times, more than "
                    f"views={self.views}: without ids, {type(self).__name__} takes labels for rows of the data set: "
                    "say which row each is, loss(embeddings, labels, ids=batch.id), or set views (PML's wrappers drop "
                    "ids: use MultipleLosses and CrossBatchMemory of aurank.losses)"
                )
        outside = numbers[(numbers < 0) | (numbers >= self.num_samples)]
        if len(outside):
            source = f"{labels_name}, taken for ids," if ids is None else ids_name
            raise UserError(
                f"{source} hold {int(outside[0])}, outside the {self.num_samples} rows of {type(self).__name__} "
                f"(0..{self.num_samples - 1}): pass rows of the training set, and its size as num_samples"
            )
        return numbers


def query_ids(pairs: Pairs) -> Int64[Tensor, " query"]:
    assert pairs.query_ids is not None
    return pairs.query_ids
