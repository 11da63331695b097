"""Text models by name, with stand-ins for the packages that bring them."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.models.adapters.by_name import load_text_model


@pytest.mark.parametrize("name", ["clip", "open_clip:", "timm:resnet18"])
def test_an_unknown_name_is_told_what_there_is(name: str) -> None:
    with pytest.raises(UserError, match=r"no model .* expected one of open_clip:…, transformers:…"):
        load_text_model(name)


class Clip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.visual = nn.Linear(1000, 1000)
        self.weight = nn.Parameter(torch.ones(3))

    def encode_text(self, tokens: Tensor) -> Tensor:
        return tokens.float().sum(1, keepdim=True) * self.weight


def test_open_clip_gives_the_text_tower_and_its_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def create(model: str, **arguments: Any) -> nn.Module:
        asked.append({"model": model, **arguments})
        return Clip().train()

    def tokeniser_of(model: str) -> Any:
        return lambda texts: torch.tensor([[len(text), 1] for text in texts])

    library = ModuleType("open_clip")
    vars(library).update(
        create_model=create, get_tokenizer=tokeniser_of, list_pretrained=lambda: [("ViT-B-32", "laion2b")]
    )
    monkeypatch.setitem(sys.modules, "open_clip", library)
    module, tokenise = load_text_model("open_clip:ViT-B-32,pretrained=laion2b")
    assert asked == [{"model": "ViT-B-32", "pretrained": "laion2b"}]
    assert module(tokenise(["owl", "a cat"])).tolist() == [[4.0] * 3, [6.0] * 3]
    assert not module.training
    assert sum(parameter.numel() for parameter in module.parameters()) == 3
    with pytest.raises(UserError, match="name the weights, as in pretrained=laion2b"):
        load_text_model("open_clip:ViT-B-32")
    load_text_model("open_clip:ViT-B-32,pretrained=laion2b", weights=False)
    assert asked[1:] == [{"model": "ViT-B-32", "pretrained": None, "pretrained_hf": False}]


class Bert(nn.Module):
    """Each token's state is its number, and 100 more where it was told that there is none."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        states = (input_ids + 100 * (1 - attention_mask)).float()[..., None].expand(-1, -1, 2)
        return SimpleNamespace(last_hidden_state=states)


class Projected(Bert):
    def __init__(self) -> None:
        super().__init__()
        self.vision_model = nn.Linear(1000, 1000)
        self.visual_projection = nn.Linear(1000, 2)
        self.text_projection = nn.Linear(2, 2)

    def get_text_features(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return torch.stack([input_ids.sum(1), attention_mask.sum(1)], dim=1).float()


class Tokens:
    """Numbers of letters; padding is number 7, which may also stand in a text."""

    pad_token_id, model_max_length = 7, 10**30

    def __init__(self, masked: bool = True) -> None:
        self.masked = masked

    def __call__(self, texts: list[str], max_length: int, **_: Any) -> dict[str, Tensor]:
        rows = [[ord(letter) - ord("a") for letter in text][:max_length] for text in texts]
        found = {"input_ids": torch.tensor([row + [7] * (max_length - len(row)) for row in rows])}
        if self.masked:
            found["attention_mask"] = torch.tensor([[1] * len(row) + [0] * (max_length - len(row)) for row in rows])
        return found


def transformers_with(monkeypatch: pytest.MonkeyPatch, model: nn.Module, tokens: Tokens) -> None:
    library = ModuleType("transformers")
    vars(library).update(
        AutoTokenizer=SimpleNamespace(from_pretrained=lambda what, **_: tokens),
        AutoModel=SimpleNamespace(from_pretrained=lambda what, **_: model, from_config=lambda config, **_: model),
        AutoConfig=SimpleNamespace(from_pretrained=lambda what, **_: (what, {})),
    )
    monkeypatch.setitem(sys.modules, "transformers", library)


def test_tokens_of_transformers_keep_what_is_text_and_what_is_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers_with(monkeypatch, Bert(), Tokens())
    module, tokenise = load_text_model("transformers:some/model,length=5")
    tokens = tokenise(["ah", "abcdefgh"])
    assert tokens.tolist() == [[1, 8, 0, 0, 0], [1, 2, 3, 4, 5]]
    # The mean over 0 and 7, the padding's number in a text; over 0 … 4.
    assert module(tokens).tolist() == [[3.5, 3.5], [2.0, 2.0]]
    assert tokenise(["a"]).shape == (1, 5)
    transformers_with(monkeypatch, Projected(), Tokens())
    module, tokenise = load_text_model("transformers:some/model,pretrained=false,length=4")
    assert module(tokenise(["ah"])).tolist() == [[0.0 + 7 + 7 + 7, 2.0]]
    assert list(module.state_dict()) == ["model.text_projection.weight", "model.text_projection.bias"]


def test_a_model_that_has_learnt_to_see_its_padding_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers_with(monkeypatch, Projected(), Tokens(masked=False))
    module, tokenise = load_text_model("transformers:some/model,length=4")
    assert module(tokenise(["ab"])).tolist() == [[0.0 + 1 + 7 + 7, 4.0]]
    assert load_text_model("transformers:some/model")[1](["ab"]).shape == (1, 77)


def test_options_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens()
    transformers_with(monkeypatch, Bert(), tokens)
    with pytest.raises(UserError, match="length must be a whole number above 0, got 'long'"):
        load_text_model("transformers:some/model,length=long")
    tokens.pad_token_id = None  # type: ignore[assignment]
    with pytest.raises(UserError, match="no padding token"):
        load_text_model("transformers:some/model")
