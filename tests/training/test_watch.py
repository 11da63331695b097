"""Losses that are looked at every so many steps, as on a GPU."""

import pytest
import torch
from packaging.version import Version
from testing.runs import SUM, assert_equal, tiny_config, train_and_listen
from testing.stateful import Unread
from torch import nn

import aurank
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.training import watch as watching
from aurank.training.watch import LossWatch

CPU = torch.device("cpu")


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """No number is looked at before its time, as where the host would wait for it."""
    monkeypatch.setattr(watching, "READ_AT_ONCE", ())


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(("kind", "bad"), [(torch.optim.SGD, float("nan")), (torch.optim.AdamW, float("inf"))])
def test_no_update_follows_a_bad_loss_and_a_look_finds_it(kind, bad):
    weight = nn.Parameter(torch.ones(3))
    optimiser = kind([weight], 0.1, fused=True)
    watch, kept = LossWatch(CPU, optimiser, every=10), []
    for value in (1.0, 2.0, bad, 3.0, bad):
        watch.add(torch.tensor(value), {"part": torch.tensor(value)})
        watch.share(None)
        weight.grad = torch.full((3,), value)
        assert not watch.guard()
        optimiser.step()
        kept.append(weight.detach().clone())
    assert not kept[0].equal(kept[1])
    assert all(after.equal(kept[1]) for after in kept[2:])
    losses, terms, is_bad = watch.look()
    assert is_bad
    assert losses[:2] == terms["part"][:2] == [1.0, 2.0]
    assert len(losses) == len(terms["part"]) == 3


@pytest.mark.usefixtures("late")
def test_a_gradient_scaler_leaves_out_the_update_that_follows_a_bad_loss():
    weight = nn.Parameter(torch.ones(3))
    optimiser, scaler = torch.optim.AdamW([weight], 0.1, fused=True), torch.amp.GradScaler("cpu")
    watch, kept = LossWatch(CPU, optimiser, every=10), []
    for value in (1.0, float("inf"), 3.0):
        watch.add(torch.tensor(value), {})
        watch.share(None)
        scaler.scale(watch.marked(weight.sum())).backward()
        watch.guard()
        scaler.step(optimiser)
        scaler.update()
        optimiser.zero_grad()
        kept.append(weight.detach().clone())
    assert not kept[0].equal(torch.ones(3))
    assert kept[0].equal(kept[1])
    assert kept[0].equal(kept[2])


@pytest.mark.usefixtures("late")
def test_an_optimiser_that_cannot_leave_out_an_update_is_looked_at_in_each_step():
    weight = nn.Parameter(torch.ones(3))
    plain = torch.optim.AdamW([weight], 0.1, fused=False)
    watch = LossWatch(CPU, plain, every=10)
    watch.add(torch.tensor(float("nan")), {})
    watch.share(None)
    assert watch.guard()
    assert watch.look()[2]


@pytest.mark.skipif(Version(torch.__version__) < Version("2.10"), reason="older ones ask for the GPU that is faked")
def test_until_a_look_nothing_of_the_device_is_read():
    with Unread():
        optimiser = torch.optim.AdamW([nn.Parameter(torch.ones(3))], 0.1, fused=True)
        watch = LossWatch(torch.device("cuda"), optimiser, every=10)
        for _ in range(3):
            loss = torch.ones(()).to("cuda")
            watch.add(loss, {})
            watch.share(None)
            assert watch.marked(loss).device.type == "cuda"
            assert not watch.guard()
        with pytest.raises(Exception, match=r"data-dependent|_local_scalar_dense|copies numbers"):
            watch.look()


@pytest.mark.slow
def test_a_run_that_is_looked_at_late_is_the_same_to_the_last_bit(tmp_path, monkeypatch):
    train = {"steps": 5, "log_every": 3, "checkpoint_every": 4, "accumulate": 2, "ema": 0.5}
    config = tiny_config(SUM, optim={"clip_norm": 0.5}, train=train)
    aurank.train(config, tmp_path / "soon")
    monkeypatch.setattr(watching, "READ_AT_ONCE", ())
    told = train_and_listen(config, tmp_path / "late")[1]["step"]
    assert (tmp_path / "soon/metrics.jsonl").read_bytes() == (tmp_path / "late/metrics.jsonl").read_bytes()
    for name in ("last.safetensors", "best.safetensors"):
        assert_equal(load_checkpoint(tmp_path / "soon" / name), load_checkpoint(tmp_path / "late" / name), ("python",))
    assert [values["loss"] > 0 and values["images_per_second"] > 0 for values in told] == [True] * 5
