import torch
from torch import Tensor, nn

from aurank.models import Encoder
from aurank.models.encoder import EachPart
from aurank.models.text_encoder import ProjectedText, TextTower, TwoTower


def tower(**given: int) -> TextTower:
    torch.manual_seed(0)
    return TextTower(50, **{"length": 8, "dim": 6, "layers": 2, "width": 16, "heads": 2, **given})


def rows(*texts: list[int], length: int = 8) -> Tensor:
    return torch.tensor([text + [0] * (length - len(text)) for text in texts])


def test_texts_have_unit_length_and_every_parameter_a_gradient() -> None:
    model = tower()
    embeddings = model(torch.randint(1, 50, (5, 8)))
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(5))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        half = model(torch.randint(1, 50, (5, 8)))
    assert half.dtype == torch.float32
    assert not torch.equal(half.bfloat16().float(), half)
    embeddings[:, 0].sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_an_embedding_does_not_depend_on_padding_nor_on_the_other_texts() -> None:
    model = tower().double()
    alone = model(rows([1, 7, 2], length=3))
    together = model(rows([1, 7, 2], [1, 9, 9, 9, 9, 9, 2]))
    torch.testing.assert_close(together[:1], alone, rtol=0, atol=1e-12)
    model.tokens.weight.data[0] = 100.0
    torch.testing.assert_close(model(rows([1, 7, 2])), alone, rtol=0, atol=1e-12)


def test_one_layer_is_the_transformer_of_torch() -> None:
    """torch's own pre-norm layer, given the same weights, is the oracle."""
    model = tower(layers=1).double()
    block = model.blocks[0]
    layer = nn.TransformerEncoderLayer(16, 2, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    layer = layer.double()
    names = {
        "self_attn.in_proj_weight": block.attention_in.weight,
        "self_attn.in_proj_bias": block.attention_in.bias,
        **{f"self_attn.out_proj.{kind}": getattr(block.attention_out, kind) for kind in ("weight", "bias")},
        **{f"linear1.{kind}": getattr(block.linear_in, kind) for kind in ("weight", "bias")},
        **{f"linear2.{kind}": getattr(block.linear_out, kind) for kind in ("weight", "bias")},
        **{f"norm1.{kind}": getattr(block.attention_norm, kind) for kind in ("weight", "bias")},
        **{f"norm2.{kind}": getattr(block.linear_norm, kind) for kind in ("weight", "bias")},
    }
    layer.load_state_dict({name: value.detach() for name, value in names.items()})
    tokens = rows([1, 7, 9, 2], [1, 9, 7, 4, 5, 3, 3, 2])
    features = layer(model.tokens(tokens) + model.positions, src_key_padding_mask=tokens == 0)
    kept = [model.norm(row[mask]).mean(0) for row, mask in zip(features, tokens != 0, strict=True)]
    expected = nn.functional.normalize(model.head(torch.stack(kept)), dim=-1)
    torch.testing.assert_close(model(tokens), expected, rtol=0, atol=1e-12)


def test_the_features_of_another_text_model_are_projected() -> None:
    other = nn.Sequential(nn.Embedding(50, 5), nn.Flatten())
    model = ProjectedText(other, width=40, dim=6)
    tokens = torch.randint(1, 50, (3, 8))
    expected = nn.functional.normalize(other(tokens) @ model.head.weight.T, dim=1)
    torch.testing.assert_close(model(tokens), expected)
    assert TwoTower(Encoder("resnet10t", dim=6, pretrained=False), model).dim == 6


def test_both_sides_in_one_call_are_images_then_texts() -> None:
    model = TwoTower(Encoder("resnet10t", dim=6, pretrained=False), tower()).eval()
    images, tokens = torch.randn(2, 3, 32, 32), rows([1, 7, 2], [1, 2], [1, 4, 2])
    both = EachPart(model)
    expected = torch.cat([model.encode_image(images), model.encode_text(tokens)])
    assert torch.equal(both((images, tokens)), expected)
    assert torch.equal(both(tokens), model.encode_text(tokens))
    assert torch.equal(both(images), model.encode_image(images))
    both.train()
    both((images, tokens))[:, 0].sum().backward()
    assert all(parameter.grad is not None for parameter in both.parameters())
