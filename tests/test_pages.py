"""Every block of code and every command of README and docs runs, found by reading the pages."""

import argparse
import json
import re
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pytorch_metric_learning.miners import MultiSimilarityMiner
from ruamel.yaml import YAML
from testing.inputs import items
from testing.pages import LANGUAGES, ROOT, Block, blocks, commands, write_world
from testing.processes import Shell
from testing.runs import tiny_config
from testing.trees import publish_small_sizes

import aurank
from aurank.commands.benchmarks.benchmark import BenchmarkSpec
from aurank.config import load_config
from aurank.losses import SmoothAPLoss
from aurank.ranges import Range
from aurank.training import TrainResult, read_config

COMMANDS = commands()
# Words of a command that stand for what only its reader has; here they are small, and nothing is fetched.
STAND_INS = {
    r"timm:resnet18(,pretrained=false)?(,flip.*)?$": "timm:resnet18,pretrained=false,input_size=32\\2",
    r"timm:tf_efficientnet_lite0,input": "timm:test_efficientnet,pretrained=false,input",
    r"tf_efficientnet_lite0": "test_efficientnet",
    r"onnx:exported/onnx/model.onnx": "timm:local-dir:exported/timm",  # its graph takes long to write
    r"(image|input)_size=(128|192x96)(,resize=squash)?": r"\1_size=32",
    r"batch=1024$": "batch=64",
    r"micro_batch=64$": "micro_batch=16",
    r"^/data$": "published",
    r"^webdataset:.*": "webdataset:shards",
    r"\$AURANK_DATA\b": ".",
    r"^runs/search/best.yaml$": "mine.yaml",
    r"^aurank:runs/adapted/best$": "aurank:runs/mine/best",
}
SHELL = {"source", "export", "git", "pip", "python -m venv"}  # of the shell, nothing of aurank


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainResult]:
    folder = tmp_path_factory.mktemp("pages")
    return folder, write_world(folder)


@pytest.fixture
def inside(world: tuple[Path, TrainResult], monkeypatch: pytest.MonkeyPatch) -> TrainResult:
    """Make the folder of what the pages speak of the working directory; return the result of a run that is in it."""
    folder, result = world
    monkeypatch.chdir(folder)
    monkeypatch.setenv("AURANK_DATA", ".")
    monkeypatch.setenv("AURANK_CACHE", "cache")
    publish_small_sizes(monkeypatch)
    return result


def test_a_block_names_its_language_and_fits_a_screen() -> None:
    for block in blocks():
        assert block.language in LANGUAGES, f"{block}: write ```python, ```yaml, ```sh, or ```text for what is not run"
        longest = max(block.code.splitlines(), key=len)
        assert len(longest) <= 128, f"{block}: extra.css makes place for 128 characters at 1280 pixels"


@pytest.mark.slow
@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(("place", "words"), COMMANDS, ids=[place for place, _ in COMMANDS])
def test_a_command_is_one(
    place: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for pattern, replacement in STAND_INS.items():
        words = [re.sub(pattern, replacement, word) for word in words]
    if words[0] == "torchrun":
        words = words[words.index("aurank") :]
    if words[0] == "aurank":
        Shell(monkeypatch, capsys).done(*rehearsed(words[1:]))
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    elif words[0] == "python" and words[1].endswith(".py"):
        understood(ROOT / words[1], words[2:], monkeypatch)
    else:
        assert words[0] in SHELL or " ".join(words[:3]) in SHELL, f"{place}: what runs {words[0]!r}?"


def rehearsed(words: list[str]) -> list[str]:
    """Return a command of aurank as it runs here: in seconds, and without replacing what other commands read."""
    command, options = words[0], words[1:]
    if command in ("demo", "adapt", "serve"):  # the first two take minutes, the other ends when it is interrupted
        return [*words, "--help"]
    if command == "profile":
        return ["config", words[1], *(word for word in options[1:] if "=" in word)]
    if command == "train":
        return [*(word for word in words if word not in ("--resume", "--dry-run")), *small(words), "--dry-run"]
    if command == "tune":
        words = [*words, "--list"]
    if command == "export":  # few images, and no graph, which takes long to write: tests/exporting does
        words = ["hf" if word == "onnx" else word for word in words if word != "--int8"] + ["--data", "folder:photos"]
    if command == "compare" and "--data" in words:  # the reports here are of random rows
        at = words.index("--data")
        words = words[:at] + words[at + 2 :]
    if command == "init" and "--out" not in words:
        words = [*words, "--out", "mine.yaml"]
    if command == "cp":
        Path(words[2]).unlink(missing_ok=True)
    if words[:2] == ["index", "build"] and "--to" in words:
        words[words.index("--to") + 1] = f"milvus:made{len(list(Path().glob('made*.db')))}.db#photos"
    if "--out" in words:
        at = words.index("--out") + 1
        words[at] = f"made/{len(list(Path('made').glob('*')))}/{words[at]}"
    return words


def small(words: list[str]) -> list[str]:
    """Return the overrides with which a training's dry run is short and fetches nothing."""
    overrides = [] if "train.micro_batch=16" in words else ["sampler.batch=16", "data.workers=0"]
    if not any("model.weights" in word for word in words):
        overrides.append("model.pretrained=false")
    elif not any("model.backbone" in word for word in words):
        overrides.append("model.backbone=test_efficientnet")  # whose weights the file holds
    return overrides


def understood(script: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a script exists and that its parser takes these words."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_end(parser: argparse.ArgumentParser, *arguments: Any) -> None:
        parse(parser, *arguments)
        raise SystemExit(0)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_end)
    monkeypatch.setattr(sys, "argv", [str(script), *words])
    monkeypatch.syspath_prepend(str(script.parent))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_a_configuration_is_one(block: Block) -> None:
    sections = YAML(typ="safe").load(block.code)
    if {"data", "loss", "optim", "train"} <= sections.keys():
        Path("block.yaml").write_text(block.code, encoding="utf-8")
        read_config(Path("block.yaml"))
    elif "methods" in sections:
        Path("block.yaml").write_text(block.code, encoding="utf-8")
        assert load_config(Path("block.yaml"), choices={}, schema=BenchmarkSpec).methods
    elif any("." in name for name in sections):  # of aurank tune --ranges
        assert all(value is None or Range.read(value) for value in sections.values())
    else:  # a section, to be put into a configuration
        read_config("omniglot/soprc", [f"{name}={json.dumps(value)}" for name, value in sections.items()])


def names() -> dict[str, Any]:
    """Return what the blocks of Python take as given, embeddings and labels above all, under the pages' names."""
    torch.manual_seed(0)
    labels = torch.arange(60) // 10
    embeddings = (torch.randn(60, 512) + 2 * labels[:, None]).requires_grad_()
    rows, encoder = embeddings.detach().numpy(), torch.nn.Linear(512, 16)
    return {
        "embeddings": embeddings,
        "labels": labels,
        "rows": torch.arange(60),
        "dataset": range(60),
        "class_counts": torch.full((6,), 10),
        "miner": MultiSimilarityMiner(),
        "loss": SmoothAPLoss(),
        "encoder": encoder,
        "optimiser": torch.optim.SGD(encoder.parameters(), lr=0.1),
        "cameras": np.arange(60) % 2,
        "queries": rows[::2],
        "query_labels": labels[::2],
        "gallery": rows[1::2],
        "gallery_labels": labels[1::2],
        "train": rows[::2],
        "train_labels": labels[::2],
        "test": rows[1::2],
        "test_labels": labels[1::2],
        "images": embeddings[:6].detach(),
        "captions": embeddings[6:18].detach(),
        "pairs": np.stack([np.arange(12) // 2, np.arange(12)], axis=1),
        "show": lambda done, total: None,
    }


# What a page means by a name where it is something else than above.
OWN_NAMES: dict[str, Callable[[], dict[str, Any]]] = {
    "docs/data.md": lambda: {
        "train_set": items("train"),
        "test_set": items("test"),
        "config": tiny_config(data={"channels": 3, "image_size": 8, "validation_fraction": 0}),
        "frame": pyarrow.table({"path": ["class0/0.png"], "label": ["a"], "split": ["test"]}),
    },
    "docs/memory.md": lambda: {"images": torch.randn(60, 512)},
    "docs/losses.md": lambda: {
        "embeddings": torch.randn(60, 128, requires_grad=True),
        "rows": torch.arange(30).repeat(2),  # two views of each image
        "labels": torch.arange(30).repeat(2) // 5,
        "pairs": range(60),
        "images": torch.randn(60, 16),
        "texts": torch.randn(60, 16),
        "text_labels": torch.arange(60),
        "text_rows": torch.arange(60),
    },
    "docs/galleries.md": lambda: {
        "gallery": np.random.default_rng(0).normal(size=(2048, 16)).astype(np.float32),
        "queries": np.random.default_rng(1).normal(size=(200, 16)).astype(np.float32),
    },
}


# No dependencies, not even of the tests; whoever has them runs the blocks that import them:
# pip install lancedb qdrant-client, then pytest tests/test_pages.py
ENGINES = ("lancedb", "qdrant_client")


def lacking(block: Block) -> list[str]:
    """Return the engines that a block imports and that are not installed."""
    imported = re.findall(r"^(?:import|from) (\w+)", block.code, flags=re.MULTILINE)
    return [name for name in imported if name in ENGINES and find_spec(name) is None]


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # of PML's progress bar
@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({block.page for block in blocks("python")}))
def test_the_python_of_a_page_runs_from_above(page: str, inside: TrainResult, monkeypatch: pytest.MonkeyPatch) -> None:
    def rehearsed(config: str, out: str, overrides: Sequence[str]) -> TrainResult:
        read_config(config, overrides)  # a long training: its configuration is resolved, and a short one is there
        return inside

    provided = names() | OWN_NAMES.get(page, dict)()
    provided["__name__"] = "page"
    if page == "docs/training.md":
        monkeypatch.setattr(aurank, "train", rehearsed, raising=False)
    scope: dict[str, Any] = {}
    missing = [name for block in blocks("python") if block.page == page for name in lacking(block)]
    for block in blocks("python"):
        if block.page == page and not lacking(block):
            scope |= provided  # what an earlier block defined stays, but for what every block takes as given
            exec(compile("\n" * (block.line - 1) + block.code, page, "exec"), scope)

    if page == "docs/arrays.md":
        relevant = {tuple(line.split()[::2]) for line in Path("rows.qrels").read_text().splitlines()}
        first = [line.split() for line in Path("rows.run").read_text().splitlines() if line.split()[3] == "1"]
        hits = [(query, row) in relevant for query, _, row, *_ in first]
        assert (len(hits), np.mean(hits)) == (30, scope["report"].metrics["recall@1"])
    if page == "docs/pml.md":
        assert scope["after"]["mauprc_level0"] > scope["before"]["mauprc_level0"] + 0.05
        assert scope["loss"].has_been_filled
    if page == "docs/databases.md":
        found = {name: scope[name] for name in ("of_lance", "of_qdrant") if name in scope}
        assert found == dict.fromkeys(found, 1.0)
    if missing:
        pytest.skip(f"the other blocks ran; not installed: {', '.join(missing)}")


def test_the_first_lines_of_the_readme_run_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    first = next(block for block in blocks("python") if block.page == "README.md")
    assert len([line for line in first.code.splitlines() if line]) <= 10
    exec(compile(first.code, "README.md", "exec"), {})
    assert re.search(r"mauprc +0\.6\d+ → 0\.8\d+", capsys.readouterr().out)


def test_the_readme_is_short_and_begins_with_what_works_in_a_clone() -> None:
    first = [words for place, words in COMMANDS if place.startswith("README.md:")][:3]
    assert first == [["make", "demo"], ["make", "test"], ["pip", "install", ".[all]"]]
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 750


def test_a_how_to_page_is_one_task_of_700_words() -> None:
    how_to = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("- How to:")[1].split("- Reference:")[0]
    pages = [ROOT / "docs" / name for name in re.findall(r": (\w+\.md)", how_to)]
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in pages}
    assert {name: count for name, count in words.items() if count > 700} == {}
    assert len((ROOT / "docs/results.md").read_text(encoding="utf-8").split()) <= 2500


def test_what_the_architecture_names_is_there() -> None:
    files = [path for room in ("aurank", "tests", "docs") for path in (ROOT / room).rglob("*") if path.is_file()]
    source = "\n".join(path.read_text(encoding="utf-8") for path in files if path.suffix in (".py", ".toml"))
    paths = {f"/{path.relative_to(ROOT).as_posix()}" for path in files}
    paths |= {f"{path.rpartition('/')[0]}/" for path in paths}
    for name in set(re.findall(r"`([^`\s]+)`", (ROOT / "docs/architecture.md").read_text(encoding="utf-8"))):
        if re.fullmatch(r"[\w./]+(/|\.(py|toml|md))", name):
            assert any(path.endswith(f"/{name}") for path in paths), name
        elif re.fullmatch(r"[\w.]+", name):
            assert re.search(rf"\b{name.rpartition('.')[2]}\b", source), name
