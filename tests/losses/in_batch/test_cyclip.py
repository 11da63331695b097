import oracles
import torch
from oracles import contrastive as oracles_contrastive
from oracles import temperatures as oracles_temperatures
from testing import cases as two_way
from testing.equal import check_equal
from torch import Tensor, nn

from aurank.losses import CLIPLoss, CyCLIPLoss

WEIGHTS = {"cross_modal": 0.5, "in_modal": 2.0}


def test_one_text_an_image_gives_the_formulas_of_the_paper() -> None:
    random = torch.Generator().manual_seed(0)
    images, texts = torch.randn(2, 6, 4, generator=random, dtype=torch.float64)
    order, labels = torch.randperm(6, generator=random), torch.arange(6)
    given = {"labels": labels, "ref_emb": texts[order], "ref_labels": labels[order]}
    loss = CyCLIPLoss(**WEIGHTS).double()(images, **given)
    one, other = nn.functional.normalize(images), nn.functional.normalize(texts)
    cross = (one @ other.T - (one @ other.T).T).square().sum() / 6
    within = (one @ one.T - other @ other.T).square().sum() / 6
    expected = CLIPLoss().double()(images, **given) + 0.5 * cross + 2.0 * within
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)


def consistency(queries: Tensor, references: Tensor, positive: oracles.Mask, negative: oracles.Mask) -> Tensor:
    similarity = oracles.cosine(queries, references)
    cross = oracles_temperatures.cross_modal(similarity, positive, negative)
    within = oracles_temperatures.in_modal(queries, references, positive, negative)
    return WEIGHTS["cross_modal"] * cross + WEIGHTS["in_modal"] * within


def test_any_rows_in_any_order_give_the_mean_of_both_ways() -> None:
    given = two_way.batch()
    loss = CyCLIPLoss(**WEIGHTS).double()
    (parameter,) = loss.parameters()
    expected = two_way.both_directions(
        given, lambda *sides: oracles_contrastive.sup_con(*sides, temperature=parameter.exp())
    )
    labels = given["labels"].tolist(), given["ref_labels"].tolist()
    sides = given["embeddings"], given["ref_emb"]
    for own in (0, 1):
        masks = oracles.masks(labels[own], labels[1 - own])
        expected = expected + consistency(sides[own], sides[1 - own], *masks)
    check_equal(loss(**given), expected / 2, given["embeddings"], given["ref_emb"], parameter)


def test_views_in_one_batch_are_each_other_s_partners() -> None:
    labels = [0, 1, 2, 3, 2, 0, 1, 3, 3]  # three views of one image
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(len(labels), 5, generator=random, dtype=torch.float64).requires_grad_()
    loss = CyCLIPLoss(two_way=False, **WEIGHTS).double()(rows, torch.tensor(labels))
    plain = CLIPLoss(two_way=False).double()(rows, torch.tensor(labels))
    expected = plain + consistency(rows, rows, *oracles.masks(labels))
    check_equal(loss, expected, rows)


def test_without_weights_it_is_clip() -> None:
    given = two_way.batch()
    assert CyCLIPLoss(cross_modal=0, in_modal=0).double()(**given) == CLIPLoss().double()(**given)


def test_a_row_without_a_partner_leaves_the_second_derivatives_numbers() -> None:
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 3, generator=random, dtype=torch.float64).requires_grad_()
    loss = CyCLIPLoss(two_way=False, **WEIGHTS).double().eval()
    labels = torch.tensor([0, 1, 0, 1, 2])  # the last has none
    assert torch.autograd.gradgradcheck(lambda rows: loss(rows, labels), (rows,))
    (gradient,) = torch.autograd.grad(loss(rows, labels), rows, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), rows)
    assert second.isfinite().all()
