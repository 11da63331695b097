"""Every block of code and every command of README and docs runs, found by reading the pages."""

import argparse
import json
import re
import runpy
import sys
from collections.abc import Callable, Sequence
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
from testing.runs import tiny_config
from testing.trees import publish_small_sizes

import aurank
from aurank import cli
from aurank.commands.benchmarks.benchmark import BenchmarkSpec
from aurank.config.load import load_section
from aurank.losses import SmoothAPLoss
from aurank.ranges import Range
from aurank.training import TrainResult, read_config

COMMANDS = commands()
# Words of a command that stand for what only its reader has; here they are small, and nothing is fetched.
STAND_INS = {
    r"timm:resnet18(,pretrained=false)?$": "timm:resnet18,pretrained=false,input_size=32",
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


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Run `aurank` with these words; it has to end without an error."""
    monkeypatch.setattr(sys, "argv", ["aurank", *words])
    code: Any = 0
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code
    assert not code, " ".join(words)


def with_stand_ins(words: list[str]) -> list[str]:
    for pattern, replacement in STAND_INS.items():
        words = [re.sub(pattern, replacement, word) for word in words]
    return words


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_a_block_names_its_language_and_fits_a_screen(block: Block) -> None:
    assert block.language in LANGUAGES, "write ```python, ```yaml, ```sh, or ```text for what is not to be run"
    longest = max(block.code.splitlines(), key=len)
    assert len(longest) <= 128, f"docs/stylesheets/extra.css makes place for 128 characters at 1280 pixels: {longest}"


@pytest.mark.slow
@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(("place", "words"), COMMANDS, ids=[place for place, _ in COMMANDS])
def test_a_command_is_one(place: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = with_stand_ins(words)
    if words[0] == "torchrun":
        words = words[words.index("aurank") :]
    if words[0] == "aurank":
        run_aurank(words[1:], monkeypatch)
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    elif words[0] == "python" and words[1].endswith(".py"):
        understood(ROOT / words[1], words[2:], monkeypatch)
    else:
        assert words[0] in SHELL or " ".join(words[:3]) in SHELL, f"{place}: what runs {words[0]!r}?"


def run_aurank(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command of aurank: as it stands, those that train by resolving theirs, others with their own files."""
    if words[0] in ("train", "profile"):  # the dry run of a training is below
        options = words[2:]
        for name in ("--out", "--steps", "--trace"):
            while name in options:
                del options[options.index(name) : options.index(name) + 2]
        return run(monkeypatch, "config", words[1], *(word for word in options if not word.startswith("--")))
    if words[0] == "tune":
        words = [*words, "--list"]
    if words[0] == "benchmark":
        words = [*words, "--table"]
    if words[0] in ("demo", "serve"):  # the one takes minutes, the other ends when it is interrupted
        return run(monkeypatch, *words, "--help")
    if words[0] == "export":  # few images, and no graph, which takes long to write: tests/exporting does
        kept = ["hf" if word == "onnx" else word for word in words if word != "--int8"]
        words = [*kept, "--data", "folder:photos"]
    if words[0] == "compare" and "--data" in words:  # the reports here are of random rows
        at = words.index("--data")
        del words[at : at + 2]
    if words[0] == "init" and "--out" not in words:
        words = [*words, "--out", "mine.yaml"]
    if words[0] == "cp":
        Path(words[2]).unlink(missing_ok=True)
    if words[:2] == ["index", "build"] and "--to" in words:
        words[words.index("--to") + 1] = f"milvus:made{len(list(Path().glob('made*.db')))}.db#photos"
    if "--out" in words:  # a place of its own: what the other commands read is not replaced
        at = words.index("--out") + 1
        words[at] = f"made/{len(list(Path('made').glob('*')))}/{words[at]}"
    return run(monkeypatch, *words)


def understood(script: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a script exists and that its parser takes these words."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_end(parser: argparse.ArgumentParser, *given: Any) -> None:
        parse(parser, *given)
        raise SystemExit(0)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_end)
    monkeypatch.setattr(sys, "argv", [str(script), *words])
    monkeypatch.syspath_prepend(str(script.parent))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0


TRAININGS = [(place, words) for place, words in COMMANDS if "aurank" in words and "train" in words]


@pytest.mark.slow
@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(("place", "words"), TRAININGS, ids=[place for place, _ in TRAININGS])
def test_a_training_starts(place: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = with_stand_ins(words[words.index("aurank") + 1 :])
    small = ["sampler.batch=16", "data.workers=0"] if "micro_batch" not in " ".join(words) else []
    words = [word for word in words if word not in ("--resume", "--dry-run")]
    if not any("model.weights" in word for word in words):
        small.append("model.pretrained=false")  # nothing is fetched
    elif not any("model.backbone" in word for word in words):
        small.append("model.backbone=test_efficientnet")  # whose weights the file holds
    if "grocery/text_sogclr" in words:
        words_of_tool = ["grocery_texts.py", "GroceryStoreDataset-master.zip", "--out", "grocery_texts.csv"]
        monkeypatch.setattr(sys, "argv", words_of_tool)
        runpy.run_path(str(ROOT / "tools/grocery_texts.py"), run_name="__main__")
    run(monkeypatch, *words, *small, "--dry-run")


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
        assert load_section(BenchmarkSpec, Path("block.yaml")).methods
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


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # of PML's progress bar
@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({block.page for block in blocks("python")}))
def test_the_python_of_a_page_runs_from_above(page: str, inside: TrainResult, monkeypatch: pytest.MonkeyPatch) -> None:
    def rehearsed(config: str, out: str, overrides: Sequence[str]) -> TrainResult:
        read_config(config, overrides)  # a long training: its configuration is resolved, and a short one is there
        return inside

    given = names() | OWN_NAMES.get(page, dict)()
    given["__name__"] = "page"
    if page == "docs/training.md":
        monkeypatch.setattr(aurank, "train", rehearsed, raising=False)
    scope: dict[str, Any] = {}
    for block in blocks("python"):
        if block.page == page:
            scope |= given  # what an earlier block defined stays, but for what every block takes as given
            exec(compile("\n" * (block.line - 1) + block.code, page, "exec"), scope)

    if page == "docs/arrays.md":
        relevant = {tuple(line.split()[::2]) for line in Path("rows.qrels").read_text().splitlines()}
        first = [line.split() for line in Path("rows.run").read_text().splitlines() if line.split()[3] == "1"]
        hits = [(query, row) in relevant for query, _, row, *_ in first]
        assert (len(hits), np.mean(hits)) == (30, scope["report"].metrics["recall@1"])
    if page == "docs/pml.md":
        assert scope["after"]["mauprc_level0"] > scope["before"]["mauprc_level0"] + 0.05
        assert scope["loss"].has_been_filled


def test_the_first_lines_of_the_readme_run_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    first = next(block for block in blocks("python") if block.page == "README.md")
    assert len([line for line in first.code.splitlines() if line]) <= 10
    exec(compile(first.code, "README.md", "exec"), {})
    assert re.search(r"mauprc +0\.6\d+ → 0\.8\d+", capsys.readouterr().out)


def test_the_first_commands_of_the_readme_work_in_a_clone_that_was_never_released() -> None:
    first = [words for place, words in COMMANDS if place.startswith("README.md:")][:3]
    assert first == [["make", "demo"], ["make", "test"], ["pip", "install", ".[all]"]]


def test_the_readme_is_a_screen_and_a_half() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


HOW_TO = re.findall(
    r": (\w+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("- How to:")[1].split("- Reference:")[0]
)


@pytest.mark.parametrize("page", HOW_TO)
def test_a_how_to_page_is_one_task_of_700_words(page: str) -> None:
    assert len((ROOT / "docs" / page).read_text(encoding="utf-8").split()) <= 700
