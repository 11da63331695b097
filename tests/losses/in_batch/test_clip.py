import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles import contrastive as oracles_contrastive
from oracles import temperatures as oracles_temperatures
from testing import cases as two_way
from testing.equal import check_equal, two_views
from torch import Tensor, nn

from aurank.losses import CLIPLoss, SigLIPLoss


def logits(images: Tensor, texts: Tensor) -> Tensor:
    return nn.functional.normalize(images) @ nn.functional.normalize(texts).T


def test_clip_of_one_text_an_image_is_the_mean_of_torch_s_cross_entropies() -> None:
    images, texts, labels = two_views()
    loss = CLIPLoss().double()(images, labels, ref_emb=texts, ref_labels=labels)
    scores = logits(images, texts) / 0.07
    expected = (nn.functional.cross_entropy(scores, labels) + nn.functional.cross_entropy(scores.T, labels)) / 2
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)  # the parameter is float32


def test_siglip_of_one_text_an_image_is_the_sum_over_all_pairs_by_the_batch() -> None:
    images, texts, labels = two_views()
    loss = SigLIPLoss().double()(images, labels, ref_emb=texts, ref_labels=labels)
    scores = 10 * logits(images, texts) - 10
    expected = -nn.functional.logsigmoid((2 * torch.eye(6) - 1) * scores).sum() / 6
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("loss", "oracle"),
    [(CLIPLoss(0.25), oracles_contrastive.sup_con), (SigLIPLoss(0.25, -2.0), oracles_temperatures.sigmoid)],
)
def test_any_rows_in_any_order_give_the_mean_of_both_ways(loss: nn.Module, oracle: Callable[..., Any]) -> None:
    given = two_way.batch()
    parameter, *bias = loss.double().parameters()
    named = {"bias": bias[0]} if bias else {}
    expected = two_way.both_directions(given, lambda *sides: oracle(*sides, temperature=parameter.exp(), **named))
    check_equal(loss(**given), expected / 2, given["embeddings"], given["ref_emb"], parameter, *bias)


def test_clip_s_logit_scale_stays_at_most_100() -> None:
    loss = CLIPLoss().double()
    (parameter,) = loss.parameters()
    assert parameter.item() == pytest.approx(math.log(0.07))
    parameter.data.fill_(-9.0)
    loss(**two_way.batch())
    assert parameter.item() == pytest.approx(-math.log(100))


@pytest.mark.parametrize("make", [CLIPLoss, SigLIPLoss])
def test_parameters_stay_float32_and_can_be_fixed(make: type[nn.Module]) -> None:
    assert all(parameter.dtype == torch.float32 for parameter in make().bfloat16().parameters())
    fixed = make(learn_temperature=False) if make is CLIPLoss else make(learnable=False)
    assert list(fixed.parameters()) == []
    given = two_way.batch()
    torch.testing.assert_close(fixed(**given), make().double()(**given), rtol=1e-6, atol=0)
