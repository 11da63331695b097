"""What every loss promises to a pytorch-metric-learning pipeline. A new loss joins by a line of TABLE in cases.py."""

import copy
from itertools import cycle

import oracles
import pytest
import torch
from pytorch_metric_learning import distances, reducers, regularizers
from pytorch_metric_learning import losses as pml_losses
from testing.cases import COUNTS, FURTHER, TABLE, Case
from testing.equal import batch, check_equal
from testing.stateful import EVERY as MAKERS
from testing.stateful import PROXIES, same_state
from torch import Tensor, nn

from aurank.losses import LOSSES, MINERS, MultipleLosses

EACH = pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
EVERY = pytest.mark.parametrize("case", (TABLE | FURTHER).values(), ids=(TABLE | FURTHER).keys())
# one variant of each loss, for what variants share
PLAIN = {name.split()[0]: case for name, case in reversed(TABLE.items())}
ONE_OF_EACH = pytest.mark.parametrize("case", PLAIN.values(), ids=PLAIN.keys())


def expect(case: Case, *given: Tensor, **masks: object) -> Tensor:
    return oracles.total(terms_of(case, *given, **masks))


def terms_of(
    case: Case, embeddings: Tensor, labels: Tensor, references: Tensor | None = None, **masks: object
) -> dict[str, oracles.PerQuery | Tensor]:
    sides = oracles.masks(labels.tolist(), **masks)
    itself = {"include_self": references is None} if case.ranks_itself else {}
    return case.oracle(oracles.cosine(embeddings, references), *sides, labels.tolist(), **itself)


def test_every_loss_is_in_the_table() -> None:
    of_pml = {"circle", "contrastive", "triplet", "multi_similarity", *PROXIES}  # test_pml_losses.py, test_proxies.py
    unpaired = {"compatible", "distill"}  # test_saved_rows.py
    assert set(LOSSES) == {name.split()[0] for name in TABLE} | of_pml | unpaired


@EACH
def test_batch_and_references_equal_the_oracle(case: Case) -> None:
    (embeddings, labels), (references, ref_labels) = batch(), batch(seed=1)
    check_equal(case.make().double()(embeddings, labels), expect(case, embeddings, labels), embeddings)
    loss = case.make().double()(embeddings, labels, ref_emb=references, ref_labels=ref_labels)
    expected = expect(case, embeddings, labels, references, ref_labels=ref_labels.tolist())
    check_equal(loss, expected, embeddings, references)


@pytest.mark.parametrize("name", ["auroc", "info_nce", "pnp", "recall_at_k", "smooth_ap", "sup_ap"])
def test_a_small_temperature_leaves_value_and_gradient_finite_in_float32(name: str) -> None:
    embeddings, labels = batch()
    rows = embeddings.detach().float().requires_grad_()
    value = LOSSES[name](temperature=1e-6)(rows, labels)
    assert value.isfinite()
    assert torch.autograd.grad(value, rows)[0].isfinite().all()


@pytest.mark.parametrize(("name", "miner"), list(zip(PLAIN, cycle(MINERS))))
def test_a_miner_gives_the_loss_of_the_pairs_it_kept(name: str, miner: str) -> None:
    case, (embeddings, labels) = PLAIN[name], batch()
    mined = MINERS[miner]()(embeddings, labels)
    assert oracles.sides(*oracles.masks(labels.tolist(), mined=mined))  # else there would be nothing to compare
    loss = case.make().double()(embeddings, labels, mined)
    check_equal(loss, expect(case, embeddings, labels, mined=mined), embeddings)


@ONE_OF_EACH
def test_miners_that_find_nothing_give_zero(case: Case) -> None:
    embeddings, labels = batch()
    nothing = torch.empty(0, dtype=torch.int64)
    for number in (3, 4):
        assert case.make().double()(embeddings, labels, (nothing,) * number) == 0


@ONE_OF_EACH
def test_references_equal_the_concatenated_batch_with_self_removed(case: Case) -> None:
    (embeddings, labels), (memory, memory_labels) = batch(), batch(seed=1)
    everything, all_labels = torch.cat([embeddings, memory]), torch.cat([labels, memory_labels])
    ids, all_ids = torch.arange(len(labels)), torch.arange(len(all_labels))
    loss = case.make(reducer=reducers.DoNothingReducer()).double()
    if not case.joins_queries:
        loss(*batch(seed=2), ids=ids)
    loss.eval()  # the same state for both
    whole = loss(everything, all_labels, ids=all_ids)
    with_ids = loss(embeddings, labels, ref_emb=everything, ref_labels=all_labels, ids=ids, ref_ids=all_ids)
    positive = (labels[:, None] == all_labels) & (ids[:, None] != all_ids)
    pairs = (*positive.nonzero().T, *(labels[:, None] != all_labels).nonzero().T)
    found = [with_ids]
    if not case.names_references:  # pairs alone do not tell which one is a chain's state
        found.append(loss(embeddings, labels, pairs, everything, all_labels, ids=ids))
    for name, term in whole.items():
        if term["indices"] is None:  # one value for the batch, and the whole is another batch
            values = [each[name]["losses"] for each in found]
            torch.testing.assert_close(values[0], values[-1], rtol=0, atol=1e-12)
            continue
        own = term["indices"] < len(labels)
        for other in (each[name] for each in found):
            assert other["indices"].equal(term["indices"][own])
            torch.testing.assert_close(other["losses"], term["losses"][own], rtol=0, atol=1e-12)


@ONE_OF_EACH
def test_pml_s_cross_batch_memory_gives_the_loss_against_its_memory(case: Case) -> None:
    class AnyLoss(pml_losses.CrossBatchMemory):
        @staticmethod
        def supported_losses() -> list[str]:
            return [type(loss).__name__]

    loss, fresh = case.make().double(), case.make().double()
    memory = AnyLoss(loss, embedding_size=6, memory_size=40).double()
    (first, first_labels), (second, labels) = batch(seed=1), batch(seed=2)
    loss.eval()
    memory(first, first_labels)
    loss.train()
    kept, kept_labels = torch.cat([first, second]).detach(), torch.cat([first_labels, labels])
    ids, ref_ids = torch.arange(19, 38), torch.arange(38)
    expected = fresh(second, labels, ref_emb=kept, ref_labels=kept_labels, ids=ids, ref_ids=ref_ids)
    torch.testing.assert_close(memory(second, labels), expected, rtol=0, atol=1e-12)


@ONE_OF_EACH
def test_reducers_get_the_losses_of_the_valid_queries(case: Case) -> None:
    embeddings, labels = batch()
    terms = terms_of(case, embeddings, labels)
    weights = torch.linspace(1, 2, len(COUNTS), dtype=torch.float64)
    ways = {
        reducers.MeanReducer(): oracles.mean,
        reducers.SumReducer(): lambda values: sum(values.values()),
        reducers.DivisorReducer(): oracles.mean,
        reducers.PerAnchorReducer(): oracles.mean,
        reducers.ClassWeightedReducer(weights): lambda values: oracles.mean(
            {row: value * weights[labels[row]] for row, value in values.items()}
        ),
        reducers.ThresholdReducer(low=0.05): lambda values: oracles.mean(
            {row: value for row, value in values.items() if value > 0.05}
        ),
    }
    for reducer, reduce in ways.items():
        loss = case.make(reducer=reducer).double()(embeddings, labels)
        torch.testing.assert_close(loss, oracles.total(terms, reduce), rtol=0, atol=1e-10)


@ONE_OF_EACH
def test_a_regularizer_is_added_and_leaves_the_reducer_alone(case: Case) -> None:
    embeddings, labels = batch()
    given = {"reducer": reducers.SumReducer(), "embedding_reg_weight": 0.5}
    plain = case.make(reducer=reducers.SumReducer()).double()(embeddings, labels)
    loss = case.make(embedding_regularizer=regularizers.LpRegularizer(), **given).double()(embeddings, labels)
    torch.testing.assert_close(loss, plain + 0.5 * regularizers.LpRegularizer()(embeddings), rtol=0, atol=1e-10)


class NegatedLp(distances.BaseDistance):
    def __init__(self) -> None:
        super().__init__(is_inverted=True)

    def compute_mat(self, query: Tensor, reference: Tensor) -> Tensor:
        return -torch.cdist(query, reference)


@ONE_OF_EACH
def test_a_distance_and_its_negative_as_similarity_give_the_same_loss(case: Case) -> None:
    embeddings, labels = batch()
    one, other = (case.make(distance=each).double() for each in (distances.LpDistance(), NegatedLp()))
    loss = one(embeddings, labels)
    torch.testing.assert_close(loss, other(embeddings, labels), rtol=0, atol=1e-12)
    loss.backward()
    assert embeddings.grad.isfinite().all()


@ONE_OF_EACH
def test_several_losses_add_up_in_pml_s_wrapper_and_in_aurank_s(case: Case) -> None:
    embeddings, labels = batch()
    other = pml_losses.ContrastiveLoss()
    expected = 2 * case.make().double()(embeddings, labels) + 3 * other(embeddings, labels)
    for wrapper in (pml_losses.MultipleLosses, MultipleLosses):
        total = wrapper([case.make().double(), other], weights=[2, 3])(embeddings, labels)
        torch.testing.assert_close(total, expected, rtol=0, atol=1e-12)


@EVERY
def test_autocast_leaves_numbers_in_float32(case: Case) -> None:
    embeddings, labels = batch()
    rows = embeddings.detach().bfloat16().requires_grad_()
    plain = case.make()(rows, labels)
    (gradient,) = torch.autograd.grad(plain, rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = case.make()(rows, labels)
    (cast,) = torch.autograd.grad(loss, rows)
    assert loss.dtype == torch.float32
    assert loss == plain
    assert cast.dtype == torch.bfloat16
    assert cast.equal(gradient)
    wide = case.make()(rows.detach().double(), labels)
    assert loss.item() == pytest.approx(wide.item(), abs=1e-3)  # SOPRC's steps of width 0.001 see float32's rounding


@EVERY
def test_double_keeps_value_and_state_in_float64_and_half_precision_leaves_them_in_float32(case: Case) -> None:
    loss = case.make().double()
    embeddings, labels = batch()
    assert loss(embeddings, labels).dtype == torch.float64
    assert case.make()(embeddings.half(), labels).dtype == torch.float32
    assert all(state.dtype == torch.float64 for state in loss.buffers() if state.is_floating_point())
    assert all(state.dtype == torch.float32 for state in case.make().half().buffers() if state.is_floating_point())


@EVERY
def test_no_valid_query_gives_exactly_zero_with_zero_gradient(case: Case) -> None:
    embeddings, order = batch([0, 1, 2, 3])
    loss = case.make().double()
    before = copy.deepcopy(loss.state_dict())
    with pytest.warns(UserWarning, match="no query of the batch has both a positive and a negative"):
        value = loss(embeddings, order)
    value.backward()
    assert value == 0
    for labels in ([0, 0, 0, 0], [5]):  # without a negative; alone; said once
        assert loss(*batch(labels)) == 0
    assert not embeddings.grad.any()
    assert same_state(loss.state_dict(), before)


def one_of_each(labels: Tensor) -> list[int]:
    """A row of each label: of large and small classes, and of those without a positive."""
    return [labels.tolist().index(label) for label in labels.unique().tolist()]


@ONE_OF_EACH
def test_references_that_are_not_a_number_give_a_loss_that_is_not(case: Case) -> None:
    (embeddings, labels), (references, ref_labels) = batch(), batch(seed=1)
    for row in one_of_each(ref_labels):
        spoilt = references.detach().clone()
        spoilt[row] = torch.nan
        assert case.make().double()(embeddings, labels, ref_emb=spoilt, ref_labels=ref_labels).isnan()


def made(name: str) -> nn.Module:
    torch.manual_seed(0)  # of proxies and centres
    return MAKERS[name]()


@pytest.mark.parametrize(("name", "wrong"), [*((name, torch.nan) for name in LOSSES), ("smooth_ap", torch.inf)])
def test_a_row_that_is_not_finite_gives_a_loss_and_a_gradient_that_are_not(name: str, wrong: float) -> None:
    # training stops at such a loss; where nobody looks, a gradient of zeros would let it go on unnoticed
    embeddings, labels = batch()
    spoilt, row = embeddings.detach().float(), labels.tolist().index(1)
    spoilt[row] = wrong
    value = made(name)(spoilt.requires_grad_(), labels)
    assert value.isnan()
    assert torch.autograd.grad(value, spoilt)[0][row].isnan().all()


@pytest.mark.parametrize("name", LOSSES)
def test_labels_of_any_integer_type_are_those_of_int64(name: str) -> None:
    embeddings, labels = batch()
    assert made(name)(embeddings, labels.to(torch.uint8)) == made(name)(embeddings, labels)
