"""No loss makes the host wait for the device, where labels and ids are on the host."""

import pytest
import torch
from testing.stateful import EVERY, PROXIES

from aurank.losses import LOSSES

LABELS = torch.tensor([0] * 5 + [1] * 2 + [2] * 6 + [3] + [4] * 3 + [5])
IDS = torch.arange(len(LABELS))

# Of everything else nothing is read; docs/losses.md has the same list.
WAIT = {
    "cross_batch_memory": "how full it is is read",
    "several": "it holds a memory",
    "emc2 reencode": "images are embedded anew by their ids, which are read for that",
    "negative_cache refresh": "images are embedded anew by their ids, which are read for that",
    **dict.fromkeys(("circle", "contrastive", "multi_similarity", "triplet", *PROXIES), "PML's own loss"),
}


def test_every_loss_is_tried() -> None:
    assert {name.split()[0] for name in EVERY} >= LOSSES.keys()
    assert WAIT.keys() <= EVERY.keys()


@pytest.mark.parametrize("name", ["isogclr", "smooth_ap", "sup_con"])
def test_a_step_of_sets_reads_nothing_of_the_device(name: str) -> None:
    given = {"num_samples": len(LABELS)} if name == "isogclr" else {}
    loss, rows = LOSSES[name](positives="jaccard", **given).to("meta"), torch.randn(len(LABELS), 6, device="meta")
    sets = torch.nn.functional.one_hot(LABELS) + torch.nn.functional.one_hot(IDS % 6) > 0
    references = {"ref_emb": rows.clone(), "ref_labels": sets.flip(0), "ref_ids": IDS}
    for others in ({}, references):
        assert loss(rows.clone().requires_grad_(), sets, ids=IDS, **others).is_meta


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EVERY.keys() - WAIT.keys()))
def test_a_step_reads_nothing_of_the_device(name: str) -> None:
    # a tensor on the meta device has no values: reading one, as .item() or nonzero() would, raises
    loss, rows = EVERY[name]().to("meta"), torch.randn(len(LABELS), 6).to("meta").requires_grad_()
    references = {"ref_emb": rows.detach().clone(), "ref_labels": LABELS.clone(), "ids": IDS, "ref_ids": IDS}
    for given in ({}, {"ids": IDS}, references):
        if given and not hasattr(loss, "gather"):
            continue  # it brings its references itself
        if "ref_emb" in given and not loss.takes_references:
            continue
        value = loss(rows, LABELS, **given)
        value.backward()
        assert value.shape == ()
    assert rows.grad.is_meta
