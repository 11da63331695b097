"""The gradient cache: the gradients of a plain step, in the memory of one chunk."""

import contextlib

import numpy as np
import pytest
import torch
from pytorch_metric_learning.miners import MultiSimilarityMiner
from testing.runs import assert_equal, tiny_config
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses import SmoothAPLoss
from aurank.training import GradientCache, read_config, rehearse
from aurank.training.state import random_state

LABELS = torch.arange(6).repeat_interleave(4)


class Encoder(nn.Module):
    """Layers that act on each image alone; ``stateful`` adds those that draw, look at the batch, or keep state."""

    def __init__(self, *, stateful: bool) -> None:
        super().__init__()
        more = [nn.BatchNorm2d(5), nn.Dropout(0.3)] if stateful else []
        last = nn.Linear(5 * 9, 4)
        self.layers = nn.Sequential(
            nn.Conv2d(2, 5, 3), nn.GroupNorm(1, 5), *more, nn.Tanh(), nn.Flatten(),
            nn.utils.parametrizations.spectral_norm(last) if stateful else last,
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            images = images + 0.01 * np.random.rand()  # noqa: NPY002
        return nn.functional.normalize(self.layers(images), dim=1)


def make_encoder(*, stateful: bool, dtype: torch.dtype = torch.float64) -> Encoder:
    torch.manual_seed(0)
    return Encoder(stateful=stateful).to(dtype)


def images(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(len(LABELS), 2, 5, 5, dtype=dtype, generator=torch.Generator().manual_seed(1))


def seed_all() -> None:
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)


def ranking_loss(embeddings: Tensor) -> Tensor:
    loss: Tensor = SmoothAPLoss(temperature=0.1)(embeddings, LABELS, MultiSimilarityMiner())
    return loss * (1 + torch.rand(()))  # a loss may draw as well


def plain(encoder: nn.Module, batch: Tensor, chunks: int) -> Tensor:
    """The embeddings of a plain step, whose gradients are added to the encoder's."""
    embeddings = torch.cat([encoder(chunk) for chunk in batch.tensor_split(chunks)])
    ranking_loss(embeddings).backward()
    return embeddings.detach()


def cached(encoder: nn.Module, batch: Tensor, micro_batch: int) -> Tensor:
    cache = GradientCache(encoder, micro_batch)
    embeddings = cache.embed(batch)
    ranking_loss(embeddings).backward()
    cache.backward()
    return embeddings.detach()


def assert_same_gradients(encoder: nn.Module, other: nn.Module, tolerance: float) -> None:
    for (name, left), (_, right) in zip(encoder.named_parameters(), other.named_parameters(), strict=True):
        assert left.grad is not None, name
        assert right.grad is not None, name
        assert (left.grad - right.grad).abs().max() <= tolerance * right.grad.abs().max(), name


@pytest.mark.parametrize(("micro_batch", "chunks"), [(2, 12), (5, 5), (6, 4), (99, 1)])
def test_gradients_dropout_batch_norm_and_power_iterations_are_as_in_a_plain_pass_of_the_same_chunks(
    micro_batch, chunks
):
    encoder, other = (make_encoder(stateful=True) for _ in range(2))
    for step in range(3):
        seed_all()
        found = cached(encoder, images() + step, micro_batch)
        after = random_state()
        seed_all()
        expected = plain(other, images() + step, chunks)
        assert torch.equal(found, expected)
        assert_same_gradients(encoder, other, 1e-12)
        for (name, left), (_, right) in zip(encoder.named_buffers(), other.named_buffers(), strict=True):
            assert torch.equal(left, right), name
        # Checking types in this process draws from Python's own generator; nothing of the cache does.
        assert_equal(after, random_state(), ignore=("python",))
    assert encoder.layers[2].num_batches_tracked == 3 * chunks


@pytest.mark.parametrize("around_all", [True, False])
def test_autocast_is_repeated_in_the_second_pass(around_all):
    """A weight rounded without a graph, which autocast keeps, would leave the second pass without its gradient."""
    encoder, other = (make_encoder(stateful=False, dtype=torch.float32) for _ in range(2))

    def autocast() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16)  # one that is entered twice would not be left again

    seed_all()
    with autocast() if around_all else contextlib.nullcontext():
        cache = GradientCache(encoder, 6)
        with autocast():
            embeddings = cache.embed(images(torch.float32))
        assert embeddings.dtype == torch.float32
        ranking_loss(embeddings).backward()
        cache.backward()
    seed_all()
    with autocast() if around_all else contextlib.nullcontext():
        with autocast():
            embeddings = torch.cat([other(chunk) for chunk in images(torch.float32).tensor_split(4)])
        ranking_loss(embeddings.float()).backward()
    assert_same_gradients(encoder, other, 1e-2)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("batch", "micro_batch", "sizes"), [(10, 4, [4, 3, 3]), (9, 8, [5, 4]), (7, 2, [3, 2, 2]), (1, 2, [1])]
)
def test_chunks_are_nearly_equal_and_never_of_a_single_image(batch, micro_batch, sizes):
    seen: list[int] = []
    encoder = nn.Linear(3, 2)
    encoder.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    cache = GradientCache(encoder, micro_batch)
    cache.embed(torch.randn(batch, 3)).square().sum().backward()
    cache.backward()
    assert seen == sizes * 2


def test_what_cannot_be_done_is_refused():
    cache = GradientCache(nn.Linear(3, 2), 2)
    with pytest.raises(UserError, match="no gradient of the embeddings: call embed"):
        cache.backward()
    cache.embed(torch.randn(4, 3))
    with pytest.raises(UserError, match="no gradient of the embeddings"):
        cache.backward()


@pytest.mark.slow
def test_a_rehearsal_counts_the_activations_of_one_chunk():
    plain, cached, small = (
        rehearse(read_config(tiny_config(sampler={"batch": batch}, train={"micro_batch": micro_batch})))
        for batch, micro_batch in ((32, None), (32, 8), (8, None))
    )
    # Beside the weights, which a backward pass needs as well.
    used = [part.memory["activations"] - part.memory["weights"] for part in (plain, cached, small)]
    assert used[0] > 3 * used[1]
    assert used[1] == pytest.approx(used[2], rel=0.2)  # the loss counts as well
    assert cached.loss == pytest.approx(plain.loss, rel=0.5)
