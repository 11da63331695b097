import warnings

import oracles
import pytest
import torch
from oracles import contrastive as oracles_contrastive
from pytorch_metric_learning import losses as pml
from testing import cases as two_way
from testing.equal import check_equal
from torch import Tensor

from aurank.errors import UserError
from aurank.losses import MultipleLosses, SogCLRLoss
from aurank.losses.global_contrastive._normalizer import Gamma

NUMBER = 6  # samples, of two views each
VIEWS = torch.arange(NUMBER).repeat(2)


def data() -> Tensor:
    """The views of all samples, view by view."""
    random = torch.Generator().manual_seed(0)
    images, noise = (torch.randn(rows, 5, generator=random, dtype=torch.float64) for rows in (NUMBER, 2 * NUMBER))
    return (images.repeat(2, 1) + 0.5 * noise).requires_grad_()


def make(**given: object) -> SogCLRLoss:
    return SogCLRLoss(NUMBER, **{"temperature": 0.3, **given}).double()


@pytest.mark.parametrize("average", ["relative", "plain"])
@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize("normalizer", ["view", "shared"])
def test_a_sequence_of_batches_equals_the_loop(normalizer: str, previous: bool, average: str) -> None:
    given = {"normalizer": normalizer, "previous_normalizer": previous, "average": average}
    loss = SogCLRLoss(30, temperature=0.2, gamma=0.7, **given).double()
    table: dict[int, float] = {}
    for step in range(5):
        random = torch.Generator().manual_seed(step)
        embeddings = torch.randn(16, 4, generator=random, dtype=torch.float64, requires_grad=True)
        labels, ids = (torch.randint(size, (16,), generator=random) for size in (5, 30))  # ids twice, and anew
        settings = {"temperature": 0.2, "gamma": 0.7, "shared": normalizer == "shared", "previous": previous}
        settings["plain"] = average == "plain"
        masks = oracles.masks(labels.tolist())
        found = oracles_contrastive.sogclr(oracles.cosine(embeddings), *masks, ids.tolist(), table, **settings)
        loss.eval()
        value = loss(embeddings, labels, ids=ids)
        assert value == loss.train()(embeddings, labels, ids=ids)  # evaluation gives what training would, and no more
        check_equal(value, oracles.mean(found), embeddings)
        expected = oracles_contrastive.log_normalizers(table, 30)[None]
        torch.testing.assert_close(loss.log_u, expected, rtol=0, atol=1e-10)
    assert 1 < len(table) < 30


def test_two_way_equals_the_loop_with_a_table_for_each_direction() -> None:
    loss = SogCLRLoss(20, temperature=0.2, gamma=0.6, two_way=True).double()
    tables: tuple[dict[int, float], ...] = ({}, {})
    for seed in range(3):
        given = two_way.batch(seed)
        similarity = oracles.cosine(given["embeddings"], given["ref_emb"])
        expected = similarity.new_zeros(())
        for table, scores, own, other in ((tables[0], similarity, "", "ref_"), (tables[1], similarity.T, "ref_", "")):
            masks = oracles.masks(given[f"{own}labels"].tolist(), given[f"{other}labels"].tolist())
            ids = given[f"{own}ids"].tolist()
            expected = expected + oracles.mean(
                oracles_contrastive.sogclr(scores, *masks, ids, table, temperature=0.2, gamma=0.6)
            )
        check_equal(loss(**given), expected, given["embeddings"], given["ref_emb"])
    for row, table in zip(loss.log_u, tables, strict=True):
        torch.testing.assert_close(row, oracles_contrastive.log_normalizers(table, 20), rtol=0, atol=1e-10)


def test_the_cosine_schedule_falls_from_1_to_gamma_by_epochs() -> None:
    loss = make(gamma=0.2, gamma_schedule="cosine")
    (part,) = (part for part in loss.modules() if hasattr(part, "set_progress"))
    values = []
    for step in range(8):
        part.set_progress(step=step, steps=8, epoch=step // 2, epochs=4.0)
        values.append(loss.gamma())
    assert values == pytest.approx([1, 1, 0.6, 0.6, 0.2, 0.2, 0.2, 0.2])
    constant = Gamma(0.3)
    constant.set_progress(step=7, steps=8, epoch=3, epochs=4.0)
    assert constant() == 0.3


def test_a_schedule_that_is_never_told_warns_once() -> None:
    loss = make(gamma_schedule="cosine")
    loss.eval()(data(), VIEWS)
    loss.train()
    with pytest.warns(UserWarning, match=r"stays at 1.*set_progress"):
        loss(data(), VIEWS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(data(), VIEWS)


class AnyLoss(pml.CrossBatchMemory):
    @staticmethod
    def supported_losses() -> list[str]:
        return ["SogCLRLoss"]


def test_pml_s_wrappers_and_trainers_work_where_labels_are_the_ids_and_say_what_to_do_where_not() -> None:
    embeddings = data()
    expected = make()(embeddings, VIEWS)
    assert make()(embeddings, VIEWS, None) == expected  # a trainer's call
    both = pml.MultipleLosses([make(), pml.NTXentLoss()])
    assert both(embeddings, VIEWS) == expected + pml.NTXentLoss()(embeddings, VIEWS)
    memory = AnyLoss(make(), embedding_size=5, memory_size=40).double()
    assert memory(embeddings, VIEWS).isfinite()
    for wrapper in (both, memory):
        with pytest.raises(UserError, match="use MultipleLosses and CrossBatchMemory of aurank"):
            wrapper(embeddings, VIEWS // 3)
    ids = {"ids": VIEWS}
    of_classes = MultipleLosses([make(), pml.NTXentLoss()])(embeddings, VIEWS // 3, **ids)
    assert of_classes == make()(embeddings, VIEWS // 3, **ids) + pml.NTXentLoss()(embeddings, VIEWS // 3)
