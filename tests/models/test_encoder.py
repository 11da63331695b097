import pytest
import torch
from torch import nn

from aurank.models import Encoder, GeneralisedMean
from aurank.models.encoder import parameter_groups


@pytest.mark.parametrize(("pooling", "channels"), [("avg", 1), ("max", 5), ("gem", 3)])
def test_embeddings_have_unit_length_and_gradients(pooling: str, channels: int) -> None:
    encoder = Encoder("resnet10t", dim=16, channels=channels, pretrained=False, pooling=pooling)
    embeddings = encoder(torch.randn(4, channels, 32, 32))
    assert embeddings.shape == (4, 16)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(4))
    embeddings[:, 0].sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_generalised_mean_runs_from_average_to_maximum() -> None:
    features = torch.rand(2, 3, 4, 4)
    torch.testing.assert_close(GeneralisedMean(1.0)(features), features.mean(dim=(2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(GeneralisedMean(300.0)(features), features.amax(dim=(2, 3)), rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("backbone", "size", "params"),
    [
        ("test_resnet", 32, {}),
        ("mobilenetv3_small_050", 32, {}),  # a layer between feature map and vector, as vgg and efficientnet-like nets
        pytest.param("vgg11", 64, {}, marks=pytest.mark.slow),
        ("test_convnext", 32, {}),
        ("test_vit", 160, {}),
        ("levit_128s", 224, {}),
        ("deit_tiny_distilled_patch16_224", 224, {"global_pool": "token"}),
    ],
)
def test_a_backbone_of_any_family_gives_vectors_of_the_width_that_the_projection_takes(
    backbone: str, size: int, params: dict[str, str]
) -> None:
    encoder = Encoder(backbone, dim=8, channels=1, pretrained=False, params=params).eval()
    with torch.inference_mode():
        assert encoder(torch.randn(1, 1, size, size)).shape == (1, 8)


def test_embeddings_are_not_rounded_where_the_backbone_runs_in_half_precision() -> None:
    torch.manual_seed(0)
    for pooling in ("avg", "gem"):
        encoder = Encoder("resnet10t", dim=16, pretrained=False, pooling=pooling).eval()
        images = torch.randn(8, 3, 32, 32)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            embeddings = encoder(images)
        assert embeddings.dtype == torch.float32
        torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(8), rtol=0, atol=1e-6)
        assert not torch.equal(embeddings.bfloat16().float(), embeddings)
        # Rounded on the way, all the same: the backbone did run in half precision.
        assert not torch.equal(encoder(images), embeddings)
        assert encoder.double()(images.double()).dtype == torch.float64


def test_frozen_batch_norm_keeps_statistics_and_weights() -> None:
    encoder = Encoder("resnet10t", dim=8, pretrained=False, freeze_batch_norm=True).train()
    norms = [module for module in encoder.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [norm.running_mean.clone() for norm in norms]
    encoder(torch.randn(4, 3, 32, 32)).sum().backward()
    assert norms
    for norm, mean in zip(norms, before, strict=True):
        assert torch.equal(norm.running_mean, mean)
        assert norm.weight.grad is None


def test_parameter_groups_cover_every_trained_parameter_once() -> None:
    encoder = Encoder("resnet10t", dim=8, pretrained=False, pooling="gem", freeze_batch_norm=True)
    groups = parameter_groups(encoder, weight_decay=0.1, head_lr_multiplier=10.0)
    found = [parameter for group in groups for parameter in group["params"]]
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    assert len(found) == len(trained)
    assert {id(parameter) for parameter in found} == {id(parameter) for parameter in trained}
    for group in groups:
        decays = group["weight_decay"] > 0
        assert all((parameter.ndim > 1) == decays for parameter in group["params"])
        assert group["lr_multiplier"] == (10.0 if group["name"].startswith("head") else 1.0)


@pytest.mark.parametrize(("layers", "width", "hidden"), [(2, None, 512), (3, 24, 24), (4, 16, 16)])
def test_a_projection_of_several_layers_has_batch_norm_and_relu_between_them(
    layers: int, width: int | None, hidden: int
) -> None:
    encoder = Encoder("resnet10t", dim=8, pretrained=False, head_layers=layers, head_width=width)
    kinds = [type(module).__name__ for module in encoder.head]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU"] * (layers - 1) + ["Linear"]
    shapes = [tuple(module.weight.shape) for module in encoder.head if isinstance(module, nn.Linear)]
    assert shapes == [(hidden, 512), *[(hidden, hidden)] * (layers - 2), (8, hidden)]
    images = torch.randn(6, 3, 32, 32)
    features = encoder.backbone(images)
    for module in encoder.head:  # written out, as a slow equivalent
        if isinstance(module, nn.BatchNorm1d):
            features = (features - features.mean(0)) / (features.var(0, correction=0) + module.eps).sqrt()
        else:
            features = module(features)
    expected = features / features.norm(dim=1, keepdim=True)
    torch.testing.assert_close(encoder(images), expected, rtol=1e-4, atol=1e-5)
    groups = {group["name"]: group for group in parameter_groups(encoder, weight_decay=0.1, head_lr_multiplier=5.0)}
    assert len(groups["head"]["params"]) == layers
    assert groups["head_no_decay"]["lr_multiplier"] == 5.0
    assert encoder.head[1].training
    # The pretrained backbone's statistics are frozen, not those of a projection that starts afresh.
    assert Encoder("resnet10t", pretrained=False, freeze_batch_norm=True, head_layers=2).train().head[1].training


def test_a_discarded_projection_is_for_training_alone() -> None:
    kept, discarded = (
        Encoder("resnet10t", dim=8, pretrained=False, head_layers=2, discard_head=discard) for discard in (False, True)
    )
    discarded.load_state_dict(kept.state_dict())
    images = torch.randn(4, 3, 32, 32)
    assert torch.equal(discarded.train()(images), kept.train()(images))
    found = discarded.eval()(images)
    expected = discarded.backbone(images)
    torch.testing.assert_close(found, expected / expected.norm(dim=1, keepdim=True))
    assert kept.eval()(images).shape == (4, 8)
