"""Losses whose rows have sets of labels: every way in which sets are positive, against slow loops over Python sets."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import oracles
import pytest
import torch
from oracles import contrastive as oracles_contrastive
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning import reducers
from pytorch_metric_learning.miners import MultiSimilarityMiner
from testing.cases import FURTHER, TABLE, Case
from testing.equal import check_equal
from testing.stateful import PROXIES, same_state
from torch import Tensor, nn
from torch.nn.functional import one_hot

from aurank.errors import UserError
from aurank.losses import (
    LOSSES,
    MINERS,
    CompatibleLoss,
    CrossBatchMemory,
    DistillLoss,
    HierarchicalAPLoss,
    InfoNCELoss,
    MultipleLosses,
    NegativeCacheLoss,
    PMLLoss,
    RecallAtKLoss,
    SmoothAPLoss,
    SogCLRLoss,
    SOPRCLoss,
    SupConLoss,
    contrastive,
)
from aurank.losses.core.pairs import as_pairs, read_inputs
from aurank.training import GradientCache

CLASSES = 6
MILD = {"distance_weighted": {"cutoff": 0.1, "nonzero_loss_cutoff": 3.0}}
MODES: list[str | float] = ["any", "equal", 0.5, "jaccard"]
STATELESS = {"moving_average": False, "prior": "batch"}
REFUSING = ("hierarchical_ap", "negative_cache", "soprc")  # they need one label for each row
UNWEIGHTED = ("blackbox_ap", "listwise_ap tie_aware")  # they take sets, and no weights
POOL = [{0}, {0, 1}, {1, 2, 3}, {3}, {2, 4, 5}, {0, 1, 5}]  # some meet, some are apart


def sets_of(number: int, seed: int) -> list[set[int]]:
    random = torch.Generator().manual_seed(seed)
    return [POOL[each] for each in torch.randint(len(POOL), (number,), generator=random).tolist()]


def as_lists(labels: Tensor) -> list[list[int]]:
    return [[label] for label in labels.tolist()]


def matrix(sets: list[set[int]]) -> Tensor:
    rows = torch.zeros(len(sets), CLASSES, dtype=torch.bool)
    for row, labels in enumerate(sets):
        for label in labels:
            rows[row, label] = True
    return rows


def rows(number: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(number, 6, generator=random, dtype=torch.float64).requires_grad_()


QUERY, REFERENCE = sets_of(14, 0), sets_of(11, 1)
IDS, REF_IDS = list(range(14)), [0, 20, 3, 21, 22, 23, 5, 24, 25, 26, 7]  # four references are a query's own


def call(loss: Any, references: bool) -> tuple[Tensor, list[Tensor]]:
    leaves = [rows(14, 0), rows(11, 1)][: 1 + references]
    given: dict[str, Any] = {"ids": torch.tensor(IDS)}
    if references:
        given |= {"ref_emb": leaves[1], "ref_labels": matrix(REFERENCE), "ref_ids": torch.tensor(REF_IDS)}
    return loss.double()(leaves[0], matrix(QUERY), **given), leaves


def related(positives: str | float, reference: list[set[int]] | None = None, **ids: list[int]) -> Any:
    """Weights of positives, and negatives."""
    return oracles.masks(QUERY, reference, weight=partial(oracles.weight_of, positives=positives), **ids)


def soprc_alone(similarity: Tensor, positive: oracles.Mask, negative: oracles.Mask, _: None) -> dict[str, Any]:
    """SOPRC by the batch alone: each query's own quantiles, its prior the share of its positives' weights."""
    sides = similarity, positive, negative
    quantiles = oracles.first_batch_quantiles(*sides, list(range(len(similarity))))
    prior = {row: sum(positive[row]) / (sum(positive[row]) + sum(negative[row])) for row in quantiles}
    extra = oracles.semi_variance(*sides, weights=(1.0, 5.0))
    return {"loss": oracles.soprc(*sides, quantiles=quantiles, prior=prior), "semi_variance": extra}


CASES = {name: case for name, case in TABLE.items() if name.split()[0] not in REFUSING}
CASES["soprc"] = Case(lambda **given: SOPRCLoss([3] * CLASSES, **STATELESS, **given), soprc_alone)
OF_PAIRS = ("circle", "contrastive", "multi_similarity", "triplet")
MAKERS = {name: case.make for name, case in (CASES | FURTHER).items() if not name.startswith("hierarchical_ap")}
MAKERS |= {name: LOSSES[name] for name in OF_PAIRS}
RULES = {name: "any" if name.startswith((*UNWEIGHTED, *OF_PAIRS)) else "jaccard" for name in MAKERS}


@pytest.mark.parametrize(
    ("name", "positives", "references"),
    [
        (name, mode, references)
        for name, case in CASES.items()
        for mode in dict.fromkeys((*MODES[:3], RULES[name]))
        for references in ([False] if case.ranks_itself else [False, True])  # the oracle ranks a query in its own batch
    ],
)
def test_positives_count_by_their_weights_as_in_the_oracle(name: str, positives: str | float, references: bool) -> None:
    case = CASES[name]
    loss, leaves = call(case.make(positives=positives), references)
    sides = related(positives, REFERENCE, ids=IDS, ref_ids=REF_IDS) if references else related(positives)
    assert len(oracles.sides(*sides)) > 3
    itself = {"include_self": True} if case.ranks_itself else {}
    check_equal(loss, oracles.total(case.oracle(oracles.cosine(*leaves), *sides, None, **itself)), *leaves)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("positives", ["any", "jaccard"])
def test_rows_of_one_label_are_what_integers_are_to_the_last_bit(name: str, positives: str | float) -> None:
    integers, ref_integers = torch.tensor([0, 3, 0, 2, 5, 0, 2, 1, 3, 0, 0, 2]), torch.tensor([2, 0, 3, 3, 0, 4])
    given = {"ids": torch.arange(12), "ref_ids": torch.tensor([20, 0, 21, 1, 22, 23])}
    queries, references = rows(12, 0).float(), rows(6, 1).float()
    found = []
    for read in (lambda labels: labels, lambda labels: one_hot(labels, CLASSES).bool(), as_lists):
        loss = MAKERS[name](positives=positives)
        values = [loss(queries, read(integers), ids=given["ids"])]
        values.append(loss(queries, read(integers), None, references, read(ref_integers), **given))
        mined = MultiSimilarityMiner()(queries, integers)
        values.append(loss(queries, read(integers), mined, ids=given["ids"]))
        found.append([*values, *torch.autograd.grad(sum(values), (queries, references))])
    for of_sets in found[1:]:
        assert all(one.equal(other) for one, other in zip(found[0], of_sets, strict=True))


def test_a_function_says_what_is_positive_of_sets_and_of_integers() -> None:
    sides = related("jaccard", REFERENCE, ids=IDS, ref_ids=REF_IDS)
    positive, negative = (torch.tensor(side, dtype=torch.float64) for side in sides)
    weights = positive.where((positive > 0) | (negative > 0), 1.0)  # of a query's own row too
    seen = []

    def stored(query: Tensor, reference: Tensor) -> Tensor:
        seen.append((query, reference))
        return weights

    leaves = [rows(14, 0), rows(11, 1)]
    for labels, ref_labels in ((matrix(QUERY), matrix(REFERENCE)), (torch.arange(14), torch.arange(11))):
        loss = SupConLoss(positives=stored)
        given = {"ids": torch.tensor(IDS), "ref_ids": torch.tensor(REF_IDS)}
        value = loss(leaves[0], labels, None, leaves[1], ref_labels, **given)
        terms = oracles_contrastive.sup_con(oracles.cosine(*leaves), *sides, temperature=0.1)
        check_equal(value, oracles.mean(terms), *leaves)
        assert seen[-1][0].equal(labels)
        assert seen[-1][1].equal(ref_labels)
    near = SupConLoss(positives=lambda query, reference: (query[:, None] - reference).abs().numpy() <= 1)
    chain = [[row, row + 1] for row in range(14)]  # a row shares a label with its neighbours
    values = near(leaves[0], torch.arange(14)), SupConLoss()(leaves[0], chain)
    assert values[0].equal(values[1])


def test_both_directions_of_two_modalities_use_one_relation() -> None:
    leaves = [rows(14, 0), rows(11, 1)]
    queries, references = matrix(QUERY), matrix(REFERENCE)
    both = InfoNCELoss(two_way=True, positives="jaccard")(leaves[0], queries, None, leaves[1], references)
    one_way = InfoNCELoss(positives="jaccard")
    there, back = (
        one_way(leaves[0], queries, None, leaves[1], references),
        one_way(leaves[1], references, None, leaves[0], queries),
    )
    check_equal(both, there + back, *leaves)


@pytest.mark.parametrize("references", [False, True], ids=["batch", "references"])
@pytest.mark.parametrize("name", MINERS)
def test_miners_find_pairs_of_sets(name: str, references: bool) -> None:
    leaves = [rows(14, 0), rows(11, 1)]
    others = {"ref_emb": leaves[1], "ref_labels": matrix(REFERENCE)} if references else {}
    miner = MINERS[name](**MILD.get(name, {}))
    for positives in ("any", "equal"):
        inputs = replace(read_inputs(leaves[0], matrix(QUERY), miner, **others), positives=positives)
        torch.manual_seed(0)
        mined = as_pairs(inputs.mined().indices_tuple)
        positive, negative = map(torch.tensor, related(positives, REFERENCE if references else None))
        assert len(mined[0])
        assert positive[mined[0], mined[1]].all()
        assert negative[mined[2], mined[3]].all()
    # rows of one label are what integers are
    integers = torch.tensor([0, 3, 0, 2, 5, 0, 2, 1, 3, 0, 0, 2, 5, 1]), torch.tensor([2, 0, 3, 3, 0, 4, 1, 0, 5, 5, 2])
    found = []
    for read in (lambda labels: labels, lambda labels: one_hot(labels, CLASSES).bool()):
        others = {"ref_emb": leaves[1], "ref_labels": read(integers[1])} if references else {}
        torch.manual_seed(0)
        found.append(read_inputs(leaves[0], read(integers[0]), miner, **others).mined().indices_tuple)
    assert name == "distance_weighted" or all(one.equal(other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("name", OF_PAIRS)
@pytest.mark.parametrize("positives", MODES[:3])
def test_losses_of_pml_take_the_pairs_of_sets(name: str, positives: str | float) -> None:
    leaves = [rows(14, 0), rows(11, 1)]
    for others in (None, REFERENCE):
        positive, negative = map(torch.tensor, related(positives, others))
        pairs = (*positive.nonzero().T, *negative.nonzero().T)
        references = {} if others is None else {"ref_emb": leaves[1], "ref_labels": matrix(others)}
        value = LOSSES[name](positives=positives)(leaves[0], matrix(QUERY), **references)
        arbitrary = {} if others is None else {"ref_emb": leaves[1], "ref_labels": torch.arange(11)}
        expected = LOSSES[name]()(leaves[0], torch.arange(14), pairs, **arbitrary)
        assert value.item() == pytest.approx(expected.item(), abs=1e-12)


@pytest.mark.parametrize("positives", MODES)
def test_old_rows_are_positive_by_sets_and_a_teacher_asks_for_no_labels(positives: str | float) -> None:
    saved, leaf, ids = rows(20, 5).detach(), rows(14, 0), torch.arange(14) + 3
    loss = CompatibleLoss(saved, 0.2, positives=positives).double()
    assert loss.state_dict() == {}
    sides = related(positives, QUERY)  # an image's own old row is positive
    similarity = oracles.cosine(leaf, loss.saved[ids])
    expected = oracles.mean(oracles_contrastive.sup_con(similarity, *sides, temperature=0.2))
    check_equal(loss(leaf, matrix(QUERY), ids=ids), expected, leaf)
    integers = torch.arange(14) % CLASSES
    of_sets, of_integers = (loss(leaf, each, ids=ids) for each in (one_hot(integers, CLASSES).bool(), integers))
    assert of_sets == of_integers
    teacher = DistillLoss(saved).double()
    assert teacher(leaf, matrix(QUERY), ids=ids) == teacher(leaf, integers, ids=ids)


def test_a_sum_asks_the_miner_about_each_loss_s_positives_and_passes_sets() -> None:
    embeddings, sets, miner = rows(14, 0), matrix(QUERY), MINERS["pair_margin"]()
    losses = [SupConLoss(positives="equal"), contrastive(positives=0.5), SmoothAPLoss(positives="jaccard")]
    value = MultipleLosses(losses)(embeddings, sets, miner)
    torch.testing.assert_close(value, sum(loss(embeddings, sets, miner) for loss in losses))
    raw = MultipleLosses([pml.ContrastiveLoss()])(embeddings, sets)
    assert raw == PMLLoss(pml.ContrastiveLoss())(embeddings, sets)


@pytest.mark.parametrize("name", MAKERS)
def test_a_memory_keeps_sets_and_resumes(name: str) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return MAKERS[name](positives=RULES[name])

    memory, restored = (CrossBatchMemory(make(), embedding_size=6, memory_size=20).double() for _ in range(2))
    first, second, ids = rows(14, 0), rows(11, 1), torch.arange(14)
    memory(first, matrix(QUERY), ids=ids)
    assert memory.label_memory[:14].equal(matrix(QUERY))
    restored.load_state_dict(memory.state_dict())
    plain = make().double()
    plain.load_state_dict(memory.loss.state_dict())
    expected = plain(
        second,
        matrix(REFERENCE),
        None,
        torch.cat([second, first[5:].detach()]),
        matrix(REFERENCE + QUERY[5:]),
        ids=ids[:11] + 20,
        ref_ids=torch.cat([ids[:11] + 20, ids[5:]]),
    )
    values = [each(second, matrix(REFERENCE), ids=ids[:11] + 20) for each in (memory, restored)]
    check_equal(values[0], expected, second, value=1e-12)
    assert values[0] == values[1]
    assert same_state(memory.state_dict(), restored.state_dict())
    with pytest.raises(
        UserError, match=r"labels of the memory are torch.bool of shape \[20, 6\], those of the batch torch.int64"
    ):
        memory(second, torch.arange(11) % 3, ids=ids[:11])
    memory.reset_queue()
    memory(second, torch.arange(11) % 3, ids=ids[:11])


def test_a_memory_asks_its_miner_about_sets() -> None:
    miner, ids = MINERS["pair_margin"](), torch.arange(14)
    memory = CrossBatchMemory(SupConLoss(positives=0.5), embedding_size=6, memory_size=40, miner=miner).double()
    first, second = rows(14, 0), rows(11, 1)
    memory(first, matrix(QUERY), ids=ids)
    value = memory(second, matrix(REFERENCE), ids=ids[:11] + 20)
    references = torch.cat([second, first.detach()]), matrix(REFERENCE + QUERY)
    given = {"ids": ids[:11] + 20, "ref_ids": torch.cat([ids[:11] + 20, ids])}
    expected = SupConLoss(positives=0.5)(second, matrix(REFERENCE), miner, *references, **given)
    assert value != SupConLoss(positives=0.5)(second, matrix(REFERENCE), None, *references, **given)
    check_equal(value, expected, second, value=1e-12)


@pytest.mark.parametrize("name", MAKERS)
def test_the_gradient_cache_has_the_gradient_of_the_whole_batch(name: str) -> None:
    encoder, images = nn.Linear(6, 6, dtype=torch.float64), rows(14, 3).detach()
    torch.manual_seed(0)
    loss = MAKERS[name](positives=RULES[name]).double()
    whole = deepcopy(loss)  # which has a state
    cache = GradientCache(encoder, micro_batch=4)
    given: dict[str, Any] = {"labels": matrix(QUERY), "ids": torch.arange(14)}
    torch.manual_seed(1)
    loss(cache.embed(images), **given).backward()
    cache.backward()
    torch.manual_seed(1)
    (expected,) = torch.autograd.grad(whole(encoder(images), **given), encoder.weight)
    assert expected.abs().max() > 0
    torch.testing.assert_close(encoder.weight.grad, expected, rtol=1e-10, atol=1e-12)


def by_parity(query: Tensor, reference: Tensor) -> Tensor:
    return query[:, None] % 2 == reference % 2


ROWS, SETS, OTHERS, OTHER_SETS = rows(14, 0), matrix(QUERY), rows(11, 1), matrix(REFERENCE)
EMPTY = SETS & (torch.arange(14) != 3)[:, None]
NEEDS_ONE = "PML needs one label for each row"
IDS_OF_ROWS = torch.arange(14)


def sup_con(labels: Any, *references: Any, embeddings: Tensor = ROWS, **options: Any) -> Tensor:
    return SupConLoss(**options)(embeddings, labels, None, *references)


def graded(name: str, *given: Any, **options: Any) -> Tensor:
    return LOSSES[name](*given, positives="jaccard", **options)(ROWS, SETS)


BAD: list[tuple[str, Callable[[], object]]] = [
    # sets
    ("labels: row 3 has no label", lambda: sup_con(EMPTY)),
    ("labels: row 1 has no label", lambda: sup_con([[2], []], embeddings=ROWS[:2])),
    ("ref_labels: row 3 has no label", lambda: sup_con(SETS, ROWS + 1, EMPTY)),
    (r"or bool \[row, class\], got torch.int64 of shape \[14, 6\]", lambda: sup_con(SETS.long())),
    (r"14 integers.* got torch.bool of shape \[9, 6\]", lambda: sup_con(SETS[:9])),
    (r"whole numbers >= 0 for each row, got \[0, -1\]", lambda: sup_con([[1], [0, -1]], embeddings=ROWS[:2])),
    ("whole numbers >= 0 for each row, got 4", lambda: sup_con([4, 5], embeddings=ROWS[:2])),
    ("whole numbers >= 0 for each row, got .mug.", lambda: sup_con(["mug", "cup"], embeddings=ROWS[:2])),
    (
        r"labels are .*\[14, 6\], so ref_labels cannot be .*\[11, 5\]",
        lambda: sup_con(SETS, OTHERS, OTHER_SETS[:, :5] | True),
    ),
    ("labels are torch.bool .* ref_labels cannot be torch.int64", lambda: sup_con(SETS, OTHERS, torch.arange(11))),
    # what says which are positive
    (r"positives must be a number in \(0, 1\], got 1.5", lambda: sup_con(SETS, positives=1.5)),
    (r"positives must be a number in \(0, 1\], got 0", lambda: contrastive(positives=0)),
    (r"of shape \[14, 14\], got \[14\] from", lambda: sup_con(SETS, positives=lambda q, r: q.any(1))),
    (r"\[0, 1\] .* got \[14, 14\] from 0.* to 3", lambda: sup_con(SETS, positives=lambda q, r: q.int() @ r.int().T)),
    ("from nan to nan", lambda: sup_con(IDS_OF_ROWS, positives=lambda q, r: torch.full((14, 14), torch.nan))),
    # what a loss needs
    ("labels are sets, so ids must say which rows", lambda: SogCLRLoss(20)(ROWS, SETS)),
    (
        "pass ref_ids beside ids",
        lambda: SogCLRLoss(20, two_way=True)(ROWS, SETS, None, OTHERS, OTHER_SETS, ids=IDS_OF_ROWS),
    ),
    ("labels are sets, so ids must", lambda: CrossBatchMemory(SogCLRLoss(20), 6).double()(ROWS, SETS)),
    ("SOPRCLoss takes one label a row, .* moving_average=False", lambda: SOPRCLoss([3] * 6)(ROWS, SETS)),
    ("SOPRCLoss takes one label a row", lambda: SOPRCLoss([3] * 6, moving_average=False)(ROWS, SETS)),
    ("SOPRCLoss takes one label", lambda: SOPRCLoss([3] * 14, positives=by_parity)(ROWS, IDS_OF_ROWS)),
    ("HierarchicalAPLoss takes one label .* take sup_ap", lambda: HierarchicalAPLoss()(ROWS, SETS)),
    ("NegativeCacheLoss takes one label", lambda: NegativeCacheLoss(20)(ROWS, SETS, ids=IDS_OF_ROWS)),
    ("RecallAtKLoss takes one .* similarity_mixup=False", lambda: RecallAtKLoss(similarity_mixup=True)(ROWS, SETS)),
    ("BlackBoxAPLoss has no weights", lambda: graded("blackbox_ap")),
    ("ListwiseAPLoss has no weights", lambda: graded("listwise_ap", tie_aware=True)),
    ("SOPRCLoss has no weights", lambda: graded("soprc", [3] * 6, **STATELESS, official=True)),
    ("SemiVarianceLoss has no weights", lambda: graded("semi_variance", official=True)),
    *((NEEDS_ONE, partial(PMLLoss(loss), ROWS, SETS)) for loss in (pml.NPairsLoss(), pml.FastAPLoss())),
    *((NEEDS_ONE, partial(LOSSES[name](CLASSES, 6).double(), ROWS, SETS)) for name in PROXIES),
    (NEEDS_ONE, lambda: sup_con(SETS, reducer=reducers.ClassWeightedReducer(torch.ones(6)))),
]


@pytest.mark.parametrize(("message", "call"), BAD)
def test_what_cannot_be_is_refused_in_one_line(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
