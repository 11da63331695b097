"""The shared layer of every loss: similarity, positives and negatives of a batch, made in one place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from pytorch_metric_learning.distances import BaseDistance, CosineSimilarity
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses.core.checks import check_embeddings, check_integers, is_integer, kind_of
from aurank.losses.core.common import in_common_precision, to_device_of, without_autocast
from aurank.losses.core.sets import ComparedLabels, Labels, Relation, positive_index, read_labels, relate

Mined = Sequence[Tensor] | nn.Module | None  # a miner's tuple, or the miner itself


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arguments of a loss: embeddings [batch, dim], labels (sets: [batch, class]), what was mined, …"""

    embeddings: Tensor
    labels: Tensor
    indices_tuple: Mined = None
    ref_emb: Tensor | None = None
    ref_labels: Tensor | None = None
    ids: Tensor | None = None
    ref_ids: Tensor | None = None
    batch_leads: bool = False
    shared: bool = False
    positives: Relation = "any"

    @property
    def is_self_set(self) -> bool:
        return self.ref_emb is None or self.ref_emb is self.embeddings

    @property
    def references(self) -> Tensor:
        return self.embeddings if self.ref_emb is None else self.ref_emb

    def relation(self) -> Tensor | None:
        """Return on the host how positive each reference is, as `relate` does; None where equal integers are."""
        if self.labels.ndim == 1 and not callable(self.positives):
            return None
        labels = self.labels.detach().cpu()
        ref_labels = labels if self.ref_labels is None else self.ref_labels.detach().cpu()
        return relate(self.positives, labels, ref_labels, is_self_set=self.is_self_set)

    def labels_for_pml(self) -> tuple[Any, Any]:
        if (relation := self.relation()) is None:
            return self.labels, self.ref_labels
        same = to_device_of(self.embeddings, relation > 0)
        return ComparedLabels(same), None if self.is_self_set else ComparedLabels(same.T)

    def itself(self, like: Tensor) -> Bool[Tensor, "query reference"] | None:
        """Return the mask of references that are the query itself, by index or by id; None if none can be."""
        size, is_query = len(self.embeddings), None
        if self.ids is not None and self.ref_ids is not None:
            ids, ref_ids = (to_device_of(like, each) for each in (self.ids, self.ref_ids))
            is_query = ids[:, None] == ref_ids
        if self.batch_leads:  # others of the batch are other images, or other views of the same: both count
            if is_query is None:
                is_query = like.new_zeros(size, len(self.references), dtype=torch.bool)
            is_query[:, :size] = False
            is_query.fill_diagonal_(True)
        return is_query

    def mined(self) -> "Inputs":
        """Return these, a miner among them replaced by what it finds in batch and references, outside of autocast."""
        if not isinstance(self.indices_tuple, nn.Module):
            return self
        query, reference = in_common_precision(self.embeddings.detach(), self.references.detach())
        labels, ref_labels = self.labels_for_pml()
        references = (None, None) if self.is_self_set else (reference, ref_labels)
        with without_autocast(query.device):
            try:
                return replace(self, indices_tuple=self.indices_tuple(query, labels, *references))
            except UserError:  # it needs one label a row: each query is asked for alone, its positives being of class 1
                pairs = []
            for row, same in enumerate(labels.same.long()):
                column = torch.arange(len(reference), device=query.device)
                column = column[column != row] if self.is_self_set else column
                mined = self.indices_tuple(query[row : row + 1], same.new_ones(1), reference[column], same[column])
                sides = enumerate(mined)  # queries are in 0 of three, in 0 and 2 of four
                pairs.append([part + row if side in (0, 2)[: len(mined) - 2] else column[part] for side, part in sides])
        return replace(self, indices_tuple=[torch.cat(parts) for parts in zip(*pairs, strict=True)])


def read_inputs(
    embeddings: Tensor,
    labels: Labels | None,
    indices_tuple: Mined = None,
    ref_emb: Tensor | None = None,
    ref_labels: Labels | None = None,
    *,
    ids: Tensor | None = None,
    ref_ids: Tensor | None = None,
) -> Inputs:
    query_labels, reference_labels = read_labels(labels, ref_labels)
    check_embeddings("embeddings", embeddings, "labels", query_labels)
    if indices_tuple is not None and not isinstance(indices_tuple, nn.Module):
        as_pairs(indices_tuple)
    if ids is not None:
        check_integers("ids", ids, "embeddings", len(embeddings))
    if ref_emb is None:
        if ref_labels is not None or ref_ids is not None:
            raise UserError("ref_labels and ref_ids describe ref_emb, which was not given")
    elif ref_labels is not None or ref_emb is not embeddings:
        check_embeddings("ref_emb", ref_emb, "ref_labels", reference_labels)
        if query_labels.shape[1:] != reference_labels.shape[1:]:
            raise UserError(f"labels are {kind_of(query_labels)}, so ref_labels cannot be {kind_of(reference_labels)}")
        if ref_emb.shape[1] != embeddings.shape[1]:
            raise UserError(f"ref_emb must be as wide as embeddings, {embeddings.shape[1]}, got {ref_emb.shape[1]}")
        if ref_ids is not None:
            check_integers("ref_ids", ref_ids, "ref_emb", len(ref_emb))
    numbers = (query_labels, reference_labels, ids, ref_ids)
    as_int64: list[Any] = [each if each is None or each.ndim > 1 else each.long() for each in numbers]
    return Inputs(embeddings, as_int64[0], indices_tuple, ref_emb, *as_int64[1:])


Computed = TypeVar("Computed")

_OF_BOTH_SIDES = (("", ""), ("", "_labels"), ("", "_ids"), ("host_", "_labels"))  # fields of `Pairs`


class cached_property(Generic[Computed]):
    """A property computed once, as that of functools without its lock, which compilers of graphs do not know."""

    def __init__(self, compute: Callable[[Any], Computed]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> Computed:
        value = self.compute(instance)
        instance.__dict__[self.compute.__name__] = value  # where it is found from now on
        return value


@dataclass(frozen=True, eq=False)
class Positives:
    """Each query's positives side by side, padded to the widest query; padding is False in `mask`.

    Example:
        >>> index, mask = torch.tensor([[1, 2], [0, 0]]), torch.tensor([[True, True], [True, False]])
        >>> positives = Positives(index, mask, similarity=torch.tensor([[0.5, 1.0], [0.25, 9.0]]))
        >>> positives.count.tolist(), positives.mean(positives.similarity).tolist()
        ([2, 1], [0.75, 0.25])
    """

    index: Int64[Tensor, "query width"]  # of the reference; ascending within a query
    mask: Bool[Tensor, "query width"]
    similarity: Float[Tensor, "query width"]  # padding holds some other reference's: always apply the mask
    weight: Float[Tensor, "query width"] | None = None  # in (0, 1], 0 for padding; None: 1 for all

    @cached_property
    def count(self) -> Int64[Tensor, " query"]:
        """Number of positives of each query."""
        return self.mask.sum(dim=1)

    @property
    def counted(self) -> Shaped[Tensor, "query width"]:
        """How much each counts: its weight, or the mask where all have 1."""
        return self.mask if self.weight is None else self.weight

    @cached_property
    def total(self) -> Shaped[Tensor, " query"]:
        """The sum of the weights of each query's positives, their number where all are 1; 1 for a query without any."""
        return self.counted.sum(dim=1) + (self.count == 0)

    def mean(self, values: Float[Tensor, "query width"]) -> Float[Tensor, " query"]:
        """Return the weighted mean of the values over each query's positives; 0 for a query without any."""
        return (values.masked_fill(~self.mask, 0) * self.counted).sum(dim=1) / self.total


@dataclass(frozen=True, eq=False)
class Pairs:
    """What a loss sees of a batch: every query against every reference; larger similarity is closer.

    Without references of their own the queries are the references, and none is paired with itself. `bounds` are the
    least and greatest possible similarity. Labels are also kept on the host, where a loss may look at their values.

    Example:
        >>> from aurank.losses.core.pairs import read_inputs
        >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> pairs = make_pairs(read_inputs(rows, torch.tensor([7, 7, 8])), distance=CosineSimilarity())
        >>> pairs.positive.int().tolist(), pairs.valid_rows.tolist()
        ([[0, 1, 0], [1, 0, 0], [0, 0, 0]], [0, 1])
    """

    query: Float[Tensor, "query dim"]
    reference: Float[Tensor, "reference dim"]
    similarity: Float[Tensor, "query reference"]
    positive: Bool[Tensor, "query reference"]
    negative: Bool[Tensor, "query reference"]
    query_labels: Shaped[Tensor, "query *class"]
    reference_labels: Shaped[Tensor, "reference *class"]
    query_ids: Int64[Tensor, " query"] | None
    reference_ids: Int64[Tensor, " reference"] | None
    host_query_labels: Shaped[Tensor, "query *class"]
    host_reference_labels: Shaped[Tensor, "reference *class"]
    valid_rows: Int64[Tensor, " valid"]  # queries with at least one positive and one negative
    is_self_set: bool  # the references are the queries, one by one
    is_shared: bool  # every process has these same pairs
    bounds: tuple[float, float]
    own_references: Bool[Tensor, "query reference"] | None  # True where one is the query itself; None in a self set
    valid_references: Int64[Tensor, " valid_reference"] | None = None  # valid_rows of the other way, if any
    side: int = 0  # 1 where these are the references' pairs with the queries
    weight: Float[Tensor, "query reference"] | None = None  # of a positive, in (0, 1]; None: 1 for all
    host_positive: Bool[Tensor, "query reference"] | None = None  # before miner and self; None: by equal integers

    @cached_property
    def itself(self) -> Bool[Tensor, "query reference"]:
        """True where the reference is the query: the same index, or the same id among references of their own."""
        if self.is_self_set:
            return torch.eye(len(self.query), dtype=torch.bool, device=self.query.device)
        return torch.zeros_like(self.positive) if self.own_references is None else self.own_references

    @cached_property
    def valid(self) -> Bool[Tensor, " query"]:
        """True for each query with at least one positive and one negative."""
        return torch.zeros_like(self.positive[:, 0]).index_fill_(0, self.valid_rows, True)

    @cached_property
    def positives(self) -> Positives:
        """The positives gathered side by side."""
        return self._gather(self.positive, without_self=self.is_self_set)

    @cached_property
    def positives_and_self(self) -> Positives:
        """The positives and, where it is among the references, the query itself, side by side."""
        return self._gather(self.positive | self.itself, without_self=False)

    @cached_property
    def negative_similarity(self) -> Float[Tensor, "query reference"]:
        """The similarity where the reference is a negative, minus infinity elsewhere."""
        with torch.enable_grad():  # kept for later users, so it must not lose its graph to a first one under no_grad
            return self.similarity.masked_fill(~self.negative, -torch.inf)

    @cached_property
    def negative_count(self) -> Int64[Tensor, " query"]:
        """Number of negatives of each query."""
        return self.negative.sum(dim=1)

    def other_way(self) -> "Pairs":
        """Return the references' pairs with the queries: the other direction of a two-way loss."""
        assert self.valid_references is not None
        twins = [(f"{kind}query{of}", f"{kind}reference{of}") for kind, of in _OF_BOTH_SIDES]
        twins += [("valid_rows", "valid_references")]
        swapped = {name: getattr(self, twin) for both in twins for name, twin in (both, both[::-1])}
        names = ("similarity", "positive", "negative", "weight", "host_positive")
        masks = {name: value.T for name in names if (value := getattr(self, name)) is not None}
        turned = replace(self, **swapped, **masks, side=1 - self.side)
        _ = turned.positives
        return turned

    def _gather(self, chosen: Bool[Tensor, "query reference"], *, without_self: bool) -> Positives:
        if self.host_positive is None:
            labels = self.host_query_labels, self.host_reference_labels
            index, mask = same_label_index(*labels, without_self=without_self)
        else:
            index, mask = positive_index(self.host_positive, without_self=without_self)
        index, mask = to_device_of(self.similarity, index), to_device_of(self.similarity, mask)
        mask = mask & chosen.gather(1, index)
        weight = None if self.weight is None else self.weight.gather(1, index) * mask
        with torch.enable_grad():  # as in negative_similarity
            return Positives(index, mask, self.similarity.gather(1, index), weight)


def make_pairs(inputs: Inputs, *, distance: BaseDistance, two_way: bool = False) -> Pairs:
    """Return the pairs of a batch, in float32 (float64 if the embeddings are), whatever autocast says.

    Positives share the query's label, negatives do not; of sets `inputs.positives` says it, and a positive may have a
    weight below 1. Without `ref_emb` a query is never its own reference; with it, a reference of the query's id is left
    out of both when `ids` and `ref_ids` are given. A miner's `indices_tuple` (pairs or triplets, indices into the batch
    and the references) only narrows both masks.

    Args:
        two_way: the references are another modality of the same data, so one of the query's id is no copy of it, but
            what it belongs to.

    Raises:
        UserError: references or mined indices that do not fit.

    Example:
        >>> from aurank.losses.core.pairs import read_inputs
        >>> rows, labels = torch.eye(2), torch.tensor([0, 1])
        >>> inputs = read_inputs(rows, labels, ref_emb=rows.clone(), ref_labels=labels)
        >>> make_pairs(inputs, distance=CosineSimilarity()).similarity.tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    inputs = inputs.mined()
    ids, ref_ids, is_self_set, mined = inputs.ids, inputs.ref_ids, inputs.is_self_set, inputs.indices_tuple
    query, reference = in_common_precision(inputs.embeddings, inputs.references)
    host_labels = inputs.labels.detach().cpu()
    host_ref_labels = host_labels if inputs.ref_labels is None else inputs.ref_labels.detach().cpu()
    if is_self_set and not torch.equal(host_labels, host_ref_labels):
        raise UserError("ref_labels differ from labels though ref_emb is embeddings: leave out ref_emb and ref_labels")

    with without_autocast(query.device):
        compared: Tensor = distance(query, None if is_self_set else reference)
    query_labels = to_device_of(query, host_labels)
    reference_labels = query_labels if is_self_set else to_device_of(query, host_ref_labels)
    query_ids = None if ids is None else to_device_of(query, ids)
    reference_ids = query_ids if is_self_set else None if ref_ids is None else to_device_of(query, ref_ids)

    relation, itself = inputs.relation(), None
    positive = query_labels[:, None] == reference_labels if relation is None else relation > 0
    negative, ways = ~positive, (1, 0)[: 1 + two_way]
    if is_self_set:
        positive.fill_diagonal_(False)
    elif not two_way and (itself := inputs.itself(positive)) is not None:
        positive, negative = positive & ~itself, negative & ~itself
    valid = [] if relation is None else [positive.any(dim) & negative.any(dim) for dim in ways]  # on the host
    positive, negative = to_device_of(query, positive), to_device_of(query, negative)
    itself = None if itself is None else to_device_of(query, itself)
    if mined is not None:
        assert not isinstance(mined, nn.Module)
        positive, negative = narrow(positive, negative, mined)
        valid = [(positive.any(dim) & negative.any(dim)).cpu() for dim in ways]
    elif relation is None:
        valid = valid_by_labels(inputs, host_labels, host_ref_labels, two_way=two_way)
    rows = [to_device_of(query, each.nonzero().squeeze(1)) for each in valid]
    pairs = Pairs(
        query=query,
        reference=reference,
        similarity=compared if distance.is_inverted else -compared,
        positive=positive,
        negative=negative,
        query_labels=query_labels,
        reference_labels=reference_labels,
        query_ids=query_ids,
        reference_ids=reference_ids,
        host_query_labels=host_labels,
        host_reference_labels=host_ref_labels,
        valid_rows=rows[0],
        valid_references=rows[1] if two_way else None,
        is_self_set=is_self_set,
        is_shared=inputs.shared,
        bounds=(-1.0, 1.0) if isinstance(distance, CosineSimilarity) else (-torch.inf, torch.inf),
        own_references=itself,
        weight=None if relation is None or relation.dtype == torch.bool else relation.to(query),
        host_positive=None if relation is None else relation > 0,
    )
    _ = pairs.positives  # gathered here, by the host's labels, so that `per_query` can be compiled as one graph
    return pairs


def same_label_index(
    query: Int64[Tensor, " query"], reference: Int64[Tensor, " reference"], *, without_self: bool
) -> tuple[Int64[Tensor, "query width"], Bool[Tensor, "query width"]]:
    ordered, order = reference.sort(stable=True)
    first, count = count_equal(query, ordered)
    count = count - int(without_self)
    offset = torch.arange(max(int(count.max()), 1))
    slot = first[:, None] + offset
    if without_self:
        position = torch.empty_like(order)
        position[order] = torch.arange(len(order))
        slot += slot >= position[:, None]
    return order[slot.clamp(max=len(order) - 1)], offset < count[:, None]


def count_equal(
    query: Int64[Tensor, " query"], ordered: Int64[Tensor, " reference"]
) -> tuple[Int64[Tensor, " query"], Int64[Tensor, " query"]]:
    first = torch.searchsorted(ordered, query)
    return first, torch.searchsorted(ordered, query, right=True) - first


def valid_by_labels(
    inputs: Inputs, labels: Int64[Tensor, " query"], ref_labels: Int64[Tensor, " reference"], *, two_way: bool
) -> list[Bool[Tensor, " row"]]:
    positives = count_equal(labels, ref_labels.sort().values)[1]
    negatives = len(ref_labels) - positives
    if two_way:
        same = count_equal(ref_labels, labels.sort().values)[1]
        return [(positives > 0) & (negatives > 0), (same > 0) & (same < len(labels))]
    leading = len(labels) if inputs.is_self_set or inputs.batch_leads else 0  # references that are the batch
    if inputs.ids is not None and inputs.ref_ids is not None and not inputs.is_self_set:
        ids, ref_ids = inputs.ids.cpu(), inputs.ref_ids.cpu()[leading:]
        codes = torch.unique(torch.cat([ids, ref_ids]), return_inverse=True)[1]
        classes = torch.unique(torch.cat([labels, ref_labels[leading:]]), return_inverse=True)[1]
        both = codes * len(classes) + classes  # one number per (id, label)
        same_id = count_equal(codes[: len(labels)], codes[len(labels) :].sort().values)[1]
        itself = count_equal(both[: len(labels)], both[len(labels) :].sort().values)[1]
        positives, negatives = positives - itself, negatives - (same_id - itself)
    return [(positives > int(leading > 0)) & (negatives > 0)]


def narrow(
    positive: Bool[Tensor, "query reference"], negative: Bool[Tensor, "query reference"], mined: Sequence[Tensor]
) -> tuple[Bool[Tensor, "query reference"], Bool[Tensor, "query reference"]]:
    mined = check_mined(mined, positive.shape)
    masks = [torch.zeros_like(positive), torch.zeros_like(negative)]
    for mask, rows, columns in zip(masks, mined[::2], mined[1::2], strict=True):
        cells = (to_device_of(mask, rows.long()), to_device_of(mask, columns.long()))
        mask.index_put_(cells, mask.new_ones(()))
    return positive & masks[0], negative & masks[1]


def as_pairs(mined: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the rows and columns of positives, then of negatives, that a miner's tuple names."""
    parts = list(mined) if isinstance(mined, Sequence) else [mined]
    pairs = (*parts[:2], parts[0], parts[2]) if len(parts) == 3 else parts
    vectors = all(isinstance(part, Tensor) and part.ndim == 1 and is_integer(part) for part in pairs)
    if len(pairs) != 4 or not vectors or any(len(pairs[side]) != len(pairs[side + 1]) for side in (0, 2)):
        expected = "3 (triplets) or 4 (pairs) tensors of integers that pair up one by one, or a miner"
        raise UserError(f"indices_tuple must hold {expected}; got {', '.join(map(kind_of, parts))}")
    return pairs


def check_mined(mined: Sequence[Tensor], shape: Sequence[int]) -> Sequence[Tensor]:
    mined = as_pairs(mined)
    sides = (*zip(("embeddings", "references"), shape, strict=True),) * 2
    outside = [(values < 0) | (values >= size) for values, (_, size) in zip(mined, sides, strict=True)]
    if torch.stack([wrong.any() for wrong in outside]).any():  # asked once: an accelerator has to be waited for
        values, wrong, (name, size) = next(each for each in zip(mined, outside, sides, strict=True) if each[1].any())
        raise UserError(
            f"indices_tuple holds {int(values[wrong][0])}, outside the {size} {name} (0..{size - 1}): "
            "mine in the batch and the references that the loss is given"
        )
    return mined
