"""The text tower, a small transformer, and the two towers that put images and texts into one space."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from aurank.data import Tokeniser
from aurank.models.image_model import Tokenise


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.linear_norm = nn.LayerNorm(width)
        self.linear_in = nn.Linear(width, 4 * width)
        self.linear_out = nn.Linear(4 * width, width)

    def forward(
        self, features: Float[Tensor, "text length width"], mask: Bool[Tensor, "text length"]
    ) -> Float[Tensor, "text length width"]:
        split = self.attention_in(self.attention_norm(features)).unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each [text, head, length, width / heads]
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        features = features + self.attention_out(mixed.transpose(1, 2).flatten(2))
        changed: Tensor = self.linear_out(functional.gelu(self.linear_in(self.linear_norm(features))))
        return features + changed


class TextTower(nn.Module):
    """Unit-length embeddings of texts, from their tokens.

    Args:
        vocabulary: number of tokens; token 0 is padding, which no embedding depends on.
        length: most tokens of a text.
        layers, width, heads: of the transformer; `width` is a multiple of `heads`.

    Source: the text encoder of Radford et al., Learning transferable visual models from natural language supervision
        (ICML 2021), 2.4, with its initialisation; but attention looks both ways, and the mean over the tokens is
        projected in place of the end token.

    Example:
        >>> tower = TextTower(300, length=8, dim=4, layers=1, width=16, heads=2)
        >>> tower(torch.tensor([[1, 42, 2, 0]])).shape
        torch.Size([1, 4])
    """

    def __init__(
        self, vocabulary: int, *, length: int, dim: int, layers: int = 4, width: int = 256, heads: int = 4
    ) -> None:
        super().__init__()
        self.dim = dim
        self.length = length
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.empty(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, dim, bias=False)
        self._initialise(layers, width)

    def forward(self, tokens: Int64[Tensor, "text length"]) -> Float[Tensor, "text dim"]:
        mask = tokens != 0
        features = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            features = block(features, mask)
        with torch.autocast(tokens.device.type, enabled=False):
            features = self.norm(features.to(self.head.weight.dtype)) * mask[..., None]
            return functional.normalize(self.head(features.sum(1) / mask.sum(1, keepdim=True)), dim=-1)

    def _initialise(self, layers: int, width: int) -> None:
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions, std=0.01)
        nn.init.normal_(self.head.weight, std=width**-0.5)
        into_stream = width**-0.5 * (2 * layers) ** -0.5  # the sum over the layers keeps its scale
        for block in self.blocks:
            for name, layer in block.named_children():
                if isinstance(layer, nn.Linear):
                    widths = {"attention_in": width**-0.5, "linear_in": (2 * width) ** -0.5}
                    nn.init.normal_(layer.weight, std=widths.get(name, into_stream))
                    nn.init.zeros_(layer.bias)


class ProjectedText(nn.Module):
    """Unit-length embeddings of texts: the features, of that width, of another text model, linearly projected."""

    def __init__(self, model: nn.Module, *, width: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.model = model
        self.head = nn.Linear(width, dim, bias=False)
        nn.init.normal_(self.head.weight, std=width**-0.5)

    def forward(self, tokens: Int64[Tensor, "text length"]) -> Float[Tensor, "text dim"]:
        features = self.model(tokens)
        with torch.autocast(tokens.device.type, enabled=False):
            return functional.normalize(self.head(features.to(self.head.weight.dtype)), dim=-1)


class TwoTower(nn.Module):
    """Embeddings of images and of texts, to be compared with each other.

    Args:
        image: maps images to unit-length embeddings [image, dim].
        text: maps tokens to unit-length embeddings [text, dim].
        tokeniser: makes the tokens that `text` takes: a ``Tokeniser``, or a function of another library.

    Example:
        >>> from aurank.models import Encoder
        >>> text = TextTower(300, length=8, dim=4, layers=1, width=16, heads=2)
        >>> model = TwoTower(Encoder("test_resnet", dim=4, pretrained=False), text)
        >>> model.encode_text(torch.tensor([[1, 42, 2, 0]])).shape
        torch.Size([1, 4])
    """

    def __init__(self, image: nn.Module, text: nn.Module, tokeniser: Tokeniser | Tokenise | None = None) -> None:
        super().__init__()
        self.dim: Any = image.dim
        self.image = image
        self.text = text
        self.tokeniser = tokeniser if isinstance(tokeniser, Tokeniser) else None  # that a checkpoint keeps
        self.tokenise: Any = tokeniser

    def forward(self, batch: Tensor) -> Float[Tensor, "item dim"]:
        """Return embeddings of images, or of the tokens of texts."""
        return self.encode_image(batch) if batch.is_floating_point() else self.encode_text(batch)

    def encode_image(self, images: Float[Tensor, "image channel height width"]) -> Float[Tensor, "image dim"]:
        embeddings: Tensor = self.image(images)
        return embeddings

    def encode_text(self, tokens: Int64[Tensor, "text length"]) -> Float[Tensor, "text dim"]:
        embeddings: Tensor = self.text(tokens)
        return embeddings
