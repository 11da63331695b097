"""Models by name: what they compute, how they see images, and what is said where they cannot be had."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from testing.galleries import graph
from testing.refusals import refused
from torch import nn

from aurank.errors import UserError
from aurank.models.adapters.by_name import load_model, load_text_model


def picture(height: int = 40, width: int = 50) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to start a command in, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    path = list(sys.path)
    yield tmp_path
    assert sys.path == path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_timm_model_embeds_as_timm_would_under_its_own_transform() -> None:
    model = load_model("timm:resnet10t,pretrained=false")
    reference = timm.create_model("resnet10t", pretrained=False, num_classes=0).eval()
    reference.load_state_dict(model.module.state_dict())
    settings: Any = timm.data.resolve_data_config({}, model=reference)
    expected = timm.data.create_transform(**settings)(picture())
    seen = model.transform(picture())
    assert torch.equal(seen, expected)
    assert seen.shape == settings["input_size"]
    with torch.inference_mode():
        assert torch.equal(model.module(seen[None]), reference(expected[None]))
    largest = load_model("timm:resnet10t,pretrained=false,global_pool=max,in_chans=1")
    assert (model.channels, largest.channels) == (3, 1)
    assert model.description != largest.description
    assert largest.module.global_pool.pool_type == "max"  # type: ignore[union-attr]


def test_height_by_width_and_resize_follow_the_name_of_a_timm_model() -> None:
    plain = load_model("timm:test_resnet,pretrained=false,input_size=40x24")
    assert plain.transform(picture()).shape == (3, 40, 24)
    squashed = load_model("timm:test_resnet,pretrained=false,input_size=40x24,resize=squash")
    own = {**timm.data.resolve_data_config({}, model=squashed.module), "input_size": (3, 40, 24)}
    expected = timm.data.create_transform(**own | {"crop_mode": "squash", "crop_pct": 1.0})(picture())
    assert torch.equal(squashed.transform(picture()), expected)
    assert squashed.description != plain.description  # which a cache knows it by
    module = load_model("timm:test_vit,pretrained=false,img_size=48x32,resize=pad").module
    assert module(torch.zeros(1, 3, 48, 32)).shape == (1, 64)


def test_random_weights_are_the_same_every_time_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    first = load_model("timm:resnet10t,pretrained=false").module.state_dict()
    after = torch.rand(3)
    torch.manual_seed(6)
    second = load_model("timm:resnet10t,pretrained=false").module.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), after)


@pytest.mark.slow
def test_ones_own_code_runs_only_when_allowed(modules: Path) -> None:
    (modules / "mine.py").write_text(
        "import pathlib, torch\npathlib.Path('ran').touch()\n"
        "def build(width=4):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 224 * 224, width))\n"
        "def pair():\n    return torch.nn.Flatten(), lambda image: torch.full((1, 2, 2), float(image.width))\n"
        "def wrong():\n    return 3\ndef broken():\n    raise KeyError('weights')\n"
    )
    refused("if you trust it, add --allow-code", load_model, "python:mine:build")
    assert not (modules / "ran").exists()
    model = load_model("python:mine:build,width=7", allow_code=True)
    assert model.module(model.transform(picture())[None]).shape == (1, 7)
    own = load_model("python:mine:pair", allow_code=True)
    assert "0x" not in own.description
    assert own.module(own.transform(picture(width=9))[None]).tolist() == [[9.0] * 4]
    refused(r"expected an nn.Module, or one and a transform, got int", load_model, "python:mine:wrong", allow_code=True)
    refused(r"python:mine:broken: .*'weights' is missing", load_model, "python:mine:broken", allow_code=True)
    (modules / "mine.py").write_text((modules / "mine.py").read_text() + "# changed\n")
    del sys.modules["mine"]
    assert load_model("python:mine:build,width=7", allow_code=True).description != model.description


@pytest.mark.slow
def test_ones_own_code_is_told_apart_by_the_modules_that_it_imports(modules: Path) -> None:
    (modules / "pooling.py").write_text("def pool(images): return images.flatten(1)\n")
    (modules / "pooled.py").write_text(
        "import torch\nfrom pooling import pool\n"
        "class Pooled(torch.nn.Module):\n    def forward(self, images): return pool(images)\n"
    )

    def description() -> str:
        for name in ("pooling", "pooled"):
            sys.modules.pop(name, None)
        return load_model("python:pooled:Pooled", allow_code=True).description

    first = description()
    assert description() == first
    (modules / "pooling.py").write_text("def pool(images): return images.mean((2, 3))  # another length\n")
    assert description() != first


def test_an_onnx_file_says_its_image_size_and_takes_a_normalisation(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    model = load_model(f"{graph(file, dtype='FLOAT')},mean=0.5,std=0.5,margin=1")
    white = model.transform(Image.new("RGB", (30, 20), "white"))
    assert white.shape == (3, 4, 4)
    assert model.module(white[None]).tolist() == [[1.0, 1.0, 1.0]]
    for shape, option, message in (
        ((4, 3, 4, 4), "", r"takes \[4, 3, 4, 4\] of .*: export it with a batch of any size"),
        ((4, 3, 4, 8), "", r"expected \[batch, channel, height, width\]"),
        (("batch", 3, 4, 4), ",size=16", r"fails on images \[1, 3, 16, 16\] \(.*[Ii]nvalid dimensions"),
        (("batch", 3, 4, 4), ",scale=3", "unknown option 'scale'"),
        (("batch", 3, 4, 4), ",std=0", "std evaluated to zero"),
        (("batch", 3, 4, 4), None, r"cannot be read as an ONNX model \(.*\); copy or"),
    ):
        name = f"{graph(file, dtype='FLOAT', shape=shape)}{option or ''}"
        file.write_bytes(b"other" if option is None else file.read_bytes())
        refused(message, load_model, name)
    wide = load_model(f"{graph(file, dtype='FLOAT', shape=('batch', 3, 4, 8))},resize=squash,mean=0,std=1")
    assert wide.transform(picture()).shape == (3, 4, 8)
    single = load_model(graph(file, dtype="FLOAT", shape=(1, 3, 4, 4)))
    with pytest.raises(UserError, match=r"Got: 2 Expected: 1.*; where it takes one at a time, add --batch 1"):
        single.module(torch.stack([white, white]))


def made(path: Path, nodes: list[Any], outputs: dict[str, Any], dtype: str = "FLOAT") -> str:
    """Write an ONNX graph of images [batch, 3, 4, 4] with these outputs, and return its name."""
    onnx = pytest.importorskip("onnx")
    kinds, helper = onnx.TensorProto, onnx.helper
    images = helper.make_tensor_value_info("images", getattr(kinds, dtype), ["batch", 3, 4, 4])
    declared = [
        helper.make_tensor_value_info(name, kinds.FLOAT16 if dtype == "FLOAT16" else kinds.FLOAT, shape)
        for name, shape in outputs.items()
    ]
    parts = [helper.make_node(kind, given, [output], **options) for kind, given, output, options in nodes]
    graph = helper.make_graph(parts, "made", [images], declared)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return f"onnx:{path}"


MEAN = ("ReduceMean", ["images"], "pooled", {"axes": [2, 3], "keepdims": 0})
TOKENS = ("ReduceMean", ["images"], "last_hidden_state", {"axes": [3], "keepdims": 0})


def test_the_output_of_a_graph_is_chosen_by_name_and_rank_or_asked_for(tmp_path: Path) -> None:
    tokens, vector = {"last_hidden_state": ["batch", 3, 4]}, ["batch", 3]
    copies = [("Identity", ["pooled"], name, {}) for name in ("logits", "image_embeds")]
    images = torch.rand(2, 3, 4, 4)

    def embedded(name: str) -> torch.Tensor:
        return load_model(name).module(images)

    file = tmp_path / "model.onnx"
    for outputs in (
        {**tokens, "pooled": vector},
        {**tokens, "pooled": vector, "image_embeds": vector, "logits": vector},
    ):
        found = embedded(made(file, [TOKENS, MEAN, *copies], outputs))
        torch.testing.assert_close(found, images.mean(dim=(2, 3)))
    name = made(file, [TOKENS, MEAN, *copies], {"logits": vector, "pooled": vector})
    listed = r"output=…; the graph has logits \['batch', 3\], pooled \['batch', 3\]"
    for odd in (name, f"{name},output=other"):
        refused(listed, load_model, odd)
    torch.testing.assert_close(embedded(f"{name},output=pooled"), images.mean(dim=(2, 3)))
    name = made(file, [TOKENS], tokens)
    refused(r"hidden_state is \[1, 3, 4\], not a vector .* add output=last_hidden_state", load_model, name)
    assert embedded(f"{name},output=last_hidden_state").shape == (2, 12)


def test_a_graph_whose_embeddings_depend_on_the_batch_is_refused(tmp_path: Path) -> None:
    centred = ("Sub", ["pooled", "mean"], "embedding", {})
    nodes = [MEAN, ("ReduceMean", ["pooled"], "mean", {"axes": [0], "keepdims": 1}), centred]
    model = load_model(made(tmp_path / "model.onnx", nodes, {"embedding": ["batch", 3]}))
    refused(r"depends on the others of its batch; .*model\.eval\(\).*--batch 1", model.module, torch.rand(5, 3, 4, 4))
    assert model.module(torch.rand(1, 3, 4, 4)).shape == (1, 3)


class Clip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.visual = nn.Linear(1000, 1000)
        self.weight = nn.Parameter(torch.ones(3))

    def encode_image(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(2, 3))

    def encode_text(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.float().sum(1, keepdim=True) * self.weight


def test_open_clip_takes_weights_by_tag_only_and_gives_either_tower(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def create(model: str, pretrained: str | None, **others: Any) -> nn.Module:
        asked.append((pretrained, others))
        return Clip().train()

    library = ModuleType("open_clip")
    vars(library).update(
        create_model=create,
        create_model_and_transforms=lambda model, **given: (
            create(model, **given),
            None,
            lambda _: torch.ones(3, 4, 4),
        ),
        get_tokenizer=lambda model: lambda texts: torch.tensor([[len(text), 1] for text in texts]),
        list_pretrained=lambda: [("ViT-B-32", "laion2b")],
    )
    monkeypatch.setitem(sys.modules, "open_clip", library)
    for call, name in ((load_model, "open_clip:ViT-B-32"), (load_text_model, "open_clip:ViT-B-32,pretrained=true")):
        refused("name the weights, as in pretrained=laion2b, or pretrained=false", call, name)
    model = load_model("open_clip:ViT-B-32,pretrained=false")
    assert model.module(model.transform(picture())[None]).tolist() == [[1.0] * 3]
    module, tokenise = load_text_model("open_clip:ViT-B-32,pretrained=laion2b")
    assert module(tokenise(["owl", "a cat"])).tolist() == [[4.0] * 3, [6.0] * 3]
    assert not module.training
    assert sum(parameter.numel() for parameter in module.parameters()) == 3
    load_text_model("open_clip:ViT-B-32,pretrained=laion2b", weights=False)
    assert asked == [(None, {}), ("laion2b", {}), (None, {"pretrained_hf": False})]


class Bert(nn.Module):
    """Each token's state is its number, and 100 more where it was told that there is none."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        states = (input_ids + 100 * (1 - attention_mask)).float()[..., None].expand(-1, -1, 2)
        return SimpleNamespace(last_hidden_state=states)


class Projected(Bert):
    def __init__(self) -> None:
        super().__init__()
        self.vision_model = nn.Linear(1000, 1000)
        self.visual_projection = nn.Linear(1000, 2)
        self.text_projection = nn.Linear(2, 2)

    def get_text_features(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return torch.stack([input_ids.sum(1), attention_mask.sum(1)], dim=1).float()


class Tokens:
    """Numbers of letters; padding is number 7, which may also stand in a text."""

    pad_token_id, model_max_length, all_special_tokens = 7, 10**30, ()

    def __len__(self) -> int:
        return 26

    def __init__(self, masked: bool = True) -> None:
        self.masked = masked

    def __call__(self, texts: list[str], max_length: int, **_: Any) -> dict[str, torch.Tensor]:
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
    rows = tokenise(["ah", "abcdefgh"])
    assert rows.tolist() == [[1, 8, 0, 0, 0], [1, 2, 3, 4, 5]]
    # The mean over 0 and 7, the padding's number in a text; over 0 … 4.
    assert module(rows).tolist() == [[3.5, 3.5], [2.0, 2.0]]
    transformers_with(monkeypatch, Projected(), Tokens())
    module, tokenise = load_text_model("transformers:some/model,pretrained=false,length=4")
    assert module(tokenise(["ah"])).tolist() == [[0.0 + 7 + 7 + 7, 2.0]]
    assert list(module.state_dict()) == ["model.text_projection.weight", "model.text_projection.bias"]
    transformers_with(monkeypatch, Projected(), Tokens(masked=False))  # it has learnt to see its padding
    module, tokenise = load_text_model("transformers:some/model,length=4")
    assert module(tokenise(["ab"])).tolist() == [[0.0 + 1 + 7 + 7, 4.0]]
    assert load_text_model("transformers:some/model")[1](["ab"]).shape == (1, 77)
