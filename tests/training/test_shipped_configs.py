"""The configurations that come with aurank: valid, documented, robust against edits, and ready to run."""

import importlib.util
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from accelerate.state import AcceleratorState
from testing.galleries import photos
from testing.runs import notices_of, tiny_config
from testing.trees import TRAINING_TREES, TREES, grocery_tree, omniglot_zip, publish_small_sizes, zip_tree
from torchvision.datasets import cifar, stl10

from aurank.config import shipped_configs
from aurank.embedding.embedded import evaluation_options, two_way_options
from aurank.errors import UserError
from aurank.training import read_config, rehearse

SHIPPED = shipped_configs()
DOCS = Path(__file__).parents[2] / "docs"
SETS = ("sop", "inaturalist", "vehicleid")  # each of them is a SET of the page
TEXT = (DOCS / "configurations.md").read_text(encoding="utf-8") + (DOCS / "papers.md").read_text(encoding="utf-8")
LINES = list(dict.fromkeys(re.findall(r"`(?:aurank train |(?=IN |IN100 |CIFAR |CC3M ))([^`]+)`", TEXT)))
SHORT = dict(re.findall(r"(\w+) (?:is short )?for\s+`aurank train ([^`]+)`", TEXT))
COMMANDS = [re.sub("^SET/", f"{name}/", line) for line in LINES for name in SETS[: 3 if line.startswith("SET/") else 1]]
COMMANDS = [re.sub(r"^\w+(?= )", lambda match: SHORT.get(match[0], match[0]), line) for line in COMMANDS]


@pytest.fixture(autouse=True)
def without_accelerator() -> None:
    """Forget the precision that an earlier test chose: the process keeps one."""
    AcceleratorState._reset_state(reset_partial_state=False)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_configuration_is_valid_and_its_header_says_what_to_expect(name):
    read_config(SHIPPED[name])
    header = [line for line in SHIPPED[name].read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    text = "\n".join(header)
    assert f"configs/{name}.yaml" in text or f"aurank train {name}" in text or "make demo" in text
    for word in ("mAUPRC", "seed", "core", "min"):
        assert word in text, f"{name}: the header does not mention {word}"


# Data of every shipped configuration, in the official layouts, and what makes a network short and of random weights
SMALL = ["model.pretrained=false", "sampler.batch=16", "optim.warmup_steps=0", "data.workers=0"]
SMALL_TEXT = ["model.text={layers: 1, width: 32, heads: 2, length: 8, vocabulary: 300}"]
OWN_SMALL = {
    "cc3m/neuclip": ["model.params.img_size=64", *SMALL_TEXT],
    "cc3m/isogclr": ["loss.params.rho=1", *SMALL_TEXT],
    "cifar/isogclr": ["model.head_width=16"],
    "inaturalist/soprc": ["sampler.params.remainder=repeat"],
    "inaturalist/smooth_ap": ["sampler.params.remainder=repeat"],
    "omniglot/head": ["model.dim=8"],
    "grocery/head": ["model.dim=8"],
}


@pytest.fixture(scope="module")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for write in (*(TREES[name] for name in ("sop", "inaturalist2018", "vehicleid")), *TRAINING_TREES):
        write(root)
    omniglot_zip(root / "omniglot_full.zip")
    groceries = grocery_tree(root)
    zip_tree(groceries, root / f"{groceries.name}.zip", prefix=f"{groceries.name}/")
    tool = Path(__file__).parents[2] / "tools/grocery_texts.py"
    subprocess.run([sys.executable, tool, f"{groceries}.zip", "--out", root / "grocery_texts.csv"], check=True)
    for name in ("omniglot_lite0_64", "grocery_lite0_128"):
        rows = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
        splits = np.repeat(["train", "test"], 32)
        np.savez(root / f"{name}.npz", embeddings=rows, labels=np.arange(64) // 8, splits=splits)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_configuration_passes_a_dry_run_on_a_small_tree(name, small_data, monkeypatch):
    publish_small_sizes(monkeypatch)
    for module in (cifar, stl10):
        monkeypatch.setattr(module, "check_integrity", lambda path, md5: True)
    published = read_config(name)
    size = min(64, published.data.image_size)
    small = [*SMALL, f"data.root={small_data}", "data.validation_fraction=0", *OWN_SMALL.get(name, [])]
    if published.data.name != "embeddings":
        small.append(f"data.image_size={size}")
    if published.sampler.name == "pk":
        small.append("sampler.params.per_class=2")
    rehearsal = rehearse(read_config(name, small))
    assert rehearsal.views == published.data.views
    assert math.isfinite(rehearsal.loss)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*leaves out the loss.params")
def test_the_commands_of_the_page_on_configurations_resolve_each_to_another_one():
    found = {}
    for command in COMMANDS:
        name, *overrides = shlex.split(command)
        config = read_config(name, overrides)
        given = dict(override.split("=", 1) for override in overrides)
        assert config.loss.name == given.get("loss.name", config.loss.name)
        found[config.model_dump_json()] = command
    assert len(found) == len(COMMANDS) == 60
    shipped = {command.split()[0] for command in COMMANDS}
    assert shipped <= set(SHIPPED)
    assert {name.split("/")[0] for name in shipped} == {
        *("sop", "inaturalist", "vehicleid"),
        *("omniglot", "omniglot_unlabelled", "grocery", "imagenet", "cifar", "stl10", "cc3m"),
    }


PAGE = Path(__file__).parents[2] / "docs/configurations.md"
SECTION = PAGE.read_text(encoding="utf-8").split("## Fine-tuning published networks")[1]
RECIPES = [shlex.split(command) for command in re.findall(r"`aurank train ([^`]+)`", SECTION)]
SIZES = {"vit_small_patch14": 56, "vit_base_patch16": 64}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=[" ".join(recipe[1:3])[:60] for recipe in RECIPES])
def test_a_recipe_takes_two_steps(recipe):
    config = read_config(recipe[0], recipe[1:])
    if ":" in config.model.backbone:
        pytest.skip("its configuration is fetched")
    if config.model.lora is not None and importlib.util.find_spec("peft") is None:
        pytest.skip("peft is not installed")
    transformer = next((size for name, size in SIZES.items() if config.model.backbone.startswith(name)), None)
    size = transformer or 64
    small = [*SMALL, f"data={{name: digits, image_size: {size}, channels: 3, validation_fraction: 0.0}}"]
    if transformer is not None:
        small += ["model.params.depth=2", f"model.params.img_size={size}"]
    rehearsal = rehearse(read_config(recipe[0], [*recipe[1:], *small]))
    total, trained = rehearsal.parameters
    assert 0 < trained < total + (config.model.freeze is None and config.model.lora is None)


def test_a_miner_and_a_rehearsal_work_from_the_configuration():
    config = {**tiny_config("smooth_ap", memory={"size": 40}), "miner": {"name": "multi_similarity"}}
    rehearsal = rehearse(read_config(config))
    assert rehearsal.images == {"train": 149, "validation": 31, "test": 180}
    assert rehearsal.classes == {"train": 8, "validation": 2, "test": 10}
    assert f"parameters  {373176:>9} (373176 trained)" in str(rehearsal)
    assert (rehearsal.batch, rehearsal.batches_per_epoch) == (15, 10)  # the last class has fewer images
    assert rehearsal.memory["activations"] > rehearsal.batch * 16 * 16 * 4
    assert rehearsal.memory["images"] == 360 * 16 * 16
    assert rehearsal.memory["moving average"] == 0
    assert "GiB" in str(rehearsal)


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_split_in_which_no_query_has_a_positive_is_refused(tmp_path, split):
    counts = {f"{name}/{name}{label}": 4 for name in ("train", "val", "test") for label in "abcd"}
    photos(tmp_path, {place: 1 if place.startswith(split) else count for place, count in counts.items()})
    config = read_config(tiny_config(data={"name": "folder", "root": str(tmp_path)}))
    name = {"val": "validation", "test": "test"}[split]
    with pytest.raises(UserError, match=f"the {name} split of .* cannot be measured: none of its 4 queries"):
        rehearse(config)


@pytest.mark.slow
def test_unreadable_images_are_passed_over_where_they_are_skipped(tmp_path):
    photos(tmp_path, {f"{name}/{name}{label}": 4 for name in ("train", "val", "test") for label in "abcd"})
    for broken in tmp_path.glob("*/*/[012].png"):
        if broken.parent.name[-1] in "ab" or broken.name == "0.png":
            broken.write_bytes(b"broken")
    sections = {"data": {"name": "folder", "root": str(tmp_path), "on_error": "skip"}}
    assert rehearse(read_config(tiny_config(**sections))).images["test"] == 16
    for broken in tmp_path.glob("train/*/*.png"):
        broken.write_bytes(b"broken")
    with pytest.raises(UserError, match=r"readable|can be read"):
        rehearse(read_config(tiny_config(**sections)))


@pytest.mark.slow
def test_a_batch_that_the_classes_cannot_fill_is_told_by_rehearsal_and_run(tmp_path):
    photos(tmp_path / "photos", {f"{split}/{split}{label}": 4 for split in ("train", "test") for label in "ab"})
    data = {"name": "folder", "root": str(tmp_path / "photos"), "validation_fraction": 0}
    config = read_config(tiny_config(data=data, train={"steps": 3}))
    said = "batches have 8 images in place of sampler.batch=16: that is all that the sampler can draw from 8 training"
    assert said in str(rehearse(config))
    (notice,) = notices_of(config, tmp_path / "out")
    assert notice.startswith(said)
    assert said not in str(rehearse(read_config(tiny_config())))


def test_a_folder_that_holds_no_training_classes_is_met_with_the_remedy(tmp_path):
    photos(tmp_path, dict.fromkeys("abcd", 4))
    data = {"name": "folder", "root": str(tmp_path), "validation_fraction": 0}
    with pytest.raises(UserError, match=r"no images in split 'train'.*set data\.params\.test_fraction"):
        rehearse(read_config(tiny_config(data=data)))
    with pytest.raises(UserError, match=r"no images in split 'test'.*set data\.params\.test_fraction"):
        rehearse(read_config(tiny_config(data={**data, "params": {"test_fraction": 0}})))


def test_metrics_are_chosen_in_a_configuration():
    config = read_config("digits/soprc", ["evaluate.metrics=[mrr@10,coverage@5]"])
    assert evaluation_options(config)["metrics"] == ("mauprc", "mrr@10", "coverage@5")
    assert "metrics" not in two_way_options(config)
    assert "metrics" not in evaluation_options(read_config("digits/soprc"))
    with pytest.raises(UserError, match=r"evaluate\.metrics: unknown metric 'mr@10', .*did you mean 'mrr@10'"):
        read_config("digits/soprc", ["evaluate.metrics=[mr@10]"])
