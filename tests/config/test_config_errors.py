"""Wrong configurations: all mistakes of each at once, with what was expected and what was meant."""

from collections.abc import Sequence

import pytest
from testing.config_tables import CHOICES, MINIMAL, VALID
from testing.yaml_text import dump_yaml, read_yaml

from aurank.config import ConfigError, load_config, messages


def errors_of(edits: str, overrides: Sequence[str] = ()) -> list[str]:
    """The errors of the valid configuration with the mappings in ``edits`` laid over it."""

    def lay(under: dict[str, object], over: dict[str, object]) -> None:
        for key, value in over.items():
            below = under.get(key)
            if isinstance(below, dict) and isinstance(value, dict):
                lay(below, value)
            else:
                under[key] = value

    tree = read_yaml(VALID)
    lay(tree, read_yaml(edits))
    with pytest.raises(ConfigError) as caught:
        load_config(tree, overrides, choices=CHOICES)
    assert all("\n" not in line for line in caught.value.errors)
    return caught.value.errors


WRONG = {
    "misspelt keys at any depth": (
        "{modle: {dim: 3}, optim: {lrr: 0.1, schedule: {parms: {}}}, data: {train_transform: {nme: x}},"
        " train: {step: 5}}",
        {
            "modle: unknown key": "did you mean 'model'?",
            "optim.lrr: unknown key (got 0.1)": "did you mean 'optim.lr'?",
            "optim.schedule.parms: unknown key": "did you mean 'optim.schedule.params'?",
            "data.train_transform.nme: unknown key (got 'x')": "did you mean 'data.train_transform.name'?",
            "train.step: unknown key (got 5)": "did you mean 'train.steps'?",
        },
    ),
    "keys in the wrong section": (
        "{lr: 0.1, per_class: 4, train: {batch: 3, warmup_steps: 1}, loss: {tau1: 0.1}, sampler: {params: {dim: 3}}}",
        {
            "lr: unknown key (got 0.1)": "did you mean 'optim.lr'?",
            "per_class: unknown key": "did you mean 'sampler.params.per_class'?",
            "train.batch: unknown key": "did you mean 'sampler.batch' or 'evaluate.batch'?",
            "train.warmup_steps: unknown key": "did you mean 'optim.warmup_steps'?",
            "loss.tau1: unknown key": "did you mean 'loss.params.tau1'?",
            "sampler.params.dim: unknown key": "did you mean 'model.dim'?",
        },
    ),
    "the words of other programs": (
        "{optimizer: adam, optim: {learning_rate: 1}, train: {epochs: 3}, sampler: {batch_size: 4},"
        " model: {embedding_size: 1}}",
        {
            "optimizer: unknown key": "did you mean 'optim'?",
            "optim.learning_rate: unknown key": "did you mean 'optim.lr'?",
            "train.epochs: unknown key": "did you mean 'train.steps'?",
            "sampler.batch_size: unknown key": "did you mean 'sampler.batch'?",
            "model.embedding_size: unknown key": "did you mean 'model.dim'?",
        },
    ),
    "wrong types": (
        "{seed: 1.5, optim: {lr: '0.1'}, model: {pretrained: 1, dim: [3]}, train: {steps: many},"
        " evaluate: {recall_at: 5}, data: 3}",
        {
            "seed: got 1.5": "expected a whole number >= 0",
            "optim.lr: got '0.1'": "expected a number > 0 and <= 1000; it is text, remove the quotes",
            "model.pretrained: got 1": "expected true or false",
            "model.dim: got [3]": "expected a whole number >= 1",
            "train.steps: got 'many'": "expected a whole number >= 1",
            "evaluate.recall_at: got 5": "expected a list of different whole numbers >= 1",
            "data: got 3": "expected a mapping with the keys name,",
        },
    ),
    "impossible values": (
        "{optim: {lr: -0.1, weight_decay: .nan, clip_norm: .inf}, data: {validation_fraction: 0.7},"
        " sampler: {batch: 1}, train: {ema: 1.5}}",
        {
            "optim.lr: got -0.1": "expected a number > 0",
            "optim.weight_decay: got NaN": "expected a finite number",
            "optim.clip_norm: got Infinity": "expected a finite number",
            "data.validation_fraction: got 0.7": "expected a number >= 0 and <= 0.5",
            "sampler.batch: got 1": "expected a whole number >= 2",
            "train.ema: got 1.5": "expected a number > 0 and < 1 or null",
        },
    ),
    "misspelt choices": (
        "{loss: {name: rnk}, data: {name: tabel, on_error: skp}, sampler: {name: PK},"
        " train: {mixed_precision: fp-16, trackers: [wandbb]}}",
        {
            "loss.name: got 'rnk', expected one of rank, smooth": "did you mean 'rank'?",
            "data.name: got 'tabel'": "did you mean 'table'?",
            "data.on_error: got 'skp', expected one of raise, skip": "did you mean 'skip'?",
            "sampler.name: got 'PK'": "did you mean 'pk'?",
            "train.mixed_precision: got 'fp-16'": "did you mean 'fp16'?",
            "train.trackers[0]: got 'wandbb'": "did you mean 'wandb'?",
        },
    ),
    "wrong arguments of components": (
        "{loss: {params: {tau_1: 1, tau1: x, prior: frequent, semi_variance: [1, 2, 3]}}, miner: {params: {margn: 1}}}",
        {
            "loss.params.tau_1: unknown key (got 1), expected one of tau1, tau2,": "did you mean 'loss.params.tau1'?",
            "loss.params.tau1: got 'x'": "expected a number",
            "loss.params.prior: got 'frequent', expected one of scaled, frequency": "did you mean 'frequency'?",
            "loss.params.semi_variance: got [1, 2, 3]": "expected a list of 2: a number, a number or null",
            "miner.params.margn: unknown key": "did you mean 'miner.params.margin'?",
        },
    ),
    "arguments that the program fills in": (
        "{loss: {params: {class_counts: [3, 4]}}, sampler: {params: {batch: 8, seed: 1}}, "
        " data: {train_transform: {params: {image_size: 3}}}, optim: {params: {lr: 0.1}}}",
        {
            "loss.params.class_counts: got [3, 4]": "but it is filled in from the data; remove it",
            "sampler.params.batch: got 8": "but it is filled in from 'sampler.batch'; remove it",
            "sampler.params.seed: got 1": "but it is filled in from 'seed'; remove it",
            "data.train_transform.params.image_size: got 3": "filled in from 'data.image_size'; remove it",
            "optim.params.lr: got 0.1": "filled in from 'optim.lr'; remove it",
        },
    ),
    "values that a constructor refuses": (
        "{loss: {params: {tau1: -1, tau2: 1}}, miner: {params: {margin: wide}}, data: {params: {file: null}}}",
        {
            "loss.params.tau1: got -1, refused by 'rank'": "tau1 must be > 0, got -1.0",
            "miner.params.margin: got 'wide', refused by 'margin'": "",
            "data.params.file: got null": "expected text",
        },
    ),
    "keys that contradict each other, beside other mistakes": (
        "{optim: {warmup_steps: 100, lr: fast}, sampler: {params: {per_class: 9}}}",
        {
            "optim.lr: got 'fast'": "expected a number",
            "optim.warmup_steps: got 100": "than train.steps = 100; set optim.warmup_steps=10 or raise train.steps",
            "sampler.batch: got 16": "expected at least 2 * sampler.params.per_class = 18",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_configuration_yields_all_its_errors_with_suggestions(name: str) -> None:
    edits, expected = WRONG[name]
    errors = errors_of(edits)
    for start, end in expected.items():
        assert [line for line in errors if line.startswith(start) and end in line], (start, errors)
    assert len(errors) == len(expected), errors


def test_contradictions_are_found_in_an_otherwise_right_configuration() -> None:
    assert errors_of("optim: {schedule: {params: {milestones: [50, 100]}}, warmup_steps: 100}") == [
        "optim.warmup_steps: got 100, expected less than train.steps = 100; "
        "set optim.warmup_steps=10 or raise train.steps",
        "optim.schedule.params.milestones: got 100, expected steps less than train.steps = 100; set "
        "optim.schedule.params.milestones=[50] or raise train.steps",
    ]


LARGE = {
    "{train: {micro_batch: 17}}": "train.micro_batch: got 17, expected at most sampler.batch = 16, or null",
    "{memory: {size: 16}}": "memory.size: got 16, expected more than sampler.batch = 16: a batch is part of the memory",
    "{memory: {size: 17, start_at: 100}}": "memory.start_at: got 100, expected less than train.steps = 100; "
    "set memory.start_at=0 or raise train.steps",
}


@pytest.mark.parametrize("edits", LARGE)
def test_what_makes_batches_larger_must_fit_them(edits: str) -> None:
    assert errors_of(edits) == [LARGE[edits]]
    assert errors_of(edits, ["seed=-1"])[1:] == [LARGE[edits]]
    assert load_config(MINIMAL, ["train.micro_batch=112", "memory.size=113", "memory.start_at=99"], choices=CHOICES)


def test_what_makes_batches_larger_must_fit_their_views() -> None:
    seen = "sampler.batch * data.views = 48"
    assert errors_of("{data: {views: 3}, train: {micro_batch: 49}, memory: {size: 48}}") == [
        f"train.micro_batch: got 49, expected at most {seen}, or null",
        f"memory.size: got 48, expected more than {seen}: a batch is part of the memory",
    ]
    overrides = ["data.views=2", "train.micro_batch=224", "memory.size=225"]
    assert load_config(MINIMAL, overrides, choices=CHOICES)


@pytest.mark.parametrize("sampler", ["{}", "{name: pk}", "{name: hard_negative, params: {per_class: 4}}"])
def test_labels_of_images_want_views_and_batches_of_any_images(sampler: str) -> None:
    source = {**MINIMAL, "sampler": read_yaml(sampler)}
    with pytest.raises(ConfigError) as caught:
        load_config(source, ["data.train_labels=image"], choices=CHOICES)
    name = source["sampler"].get("name", "pk")
    assert caught.value.errors[-2:] == [
        f"sampler.name: got '{name}', which draws images of one class, but data.train_labels=image gives each a label "
        "of its own; set sampler.name=shuffled",
        "data.views: got 1, expected at least 2: with data.train_labels=image the views of an image are its positives",
    ]
    right = ["data.train_labels=image", "data.views=2", "sampler.name=shuffled"]
    assert load_config(MINIMAL, right, choices=CHOICES).data.train_labels == "image"


def test_a_run_made_shorter_is_right_with_the_overrides_that_its_errors_name() -> None:
    schedule = {"name": "multi_step", "params": {"milestones": [50, 80]}}
    optim = {"lr": 0.1, "warmup_steps": 10, "schedule": schedule}
    source = {**MINIMAL, "optim": optim, "memory": {"size": 113, "start_at": 20}}
    with pytest.raises(ConfigError) as caught:
        load_config(source, ["train.steps=7"], choices=CHOICES)
    remedies = [line.split("; set ")[1].removesuffix(" or raise train.steps") for line in caught.value.errors]
    assert remedies == ["optim.warmup_steps=0", "optim.schedule.params.milestones=[]", "memory.start_at=0"]
    assert load_config(source, ["train.steps=7", *remedies], choices=CHOICES).train.steps == 7


def test_small_crops_are_no_larger_than_large_ones() -> None:
    path = "data.train_transform.params"
    wrong = ["data.train_transform.name=multi_crop", "data.image_size=64", "data.views=3"]
    with pytest.raises(ConfigError) as caught:
        load_config(MINIMAL, wrong, choices=CHOICES)
    assert caught.value.errors == [
        f"{path}.local_size: got 96, expected at most data.image_size = 64, the side of the large crops; "
        f"set {path}.local_size=27",
    ]
    for right in (["data.views=2"], [f"{path}.local_size=64"], ["data.train_transform.name=crop_flip"]):
        load_config(MINIMAL, [*wrong, *right], choices=CHOICES)


def test_a_memory_needs_its_size() -> None:
    assert errors_of("{memory: {start_at: 3}}") == ["memory.size: missing, expected a whole number >= 1"]


@pytest.mark.parametrize("params", ["{per_class: 4}", "{}", "null"])
def test_a_batch_that_is_no_multiple_of_the_images_of_a_class_is_refused(params: str) -> None:
    expected = "expected a multiple of sampler.params.per_class = 4, such as 112 or 116"
    assert errors_of(f"sampler: {{name: pk, batch: 113, params: {params}}}") == [f"sampler.batch: got 113, {expected}"]
    assert errors_of(f"{{sampler: {{name: pk, batch: 113, params: {params}}}, optim: {{lr: fast}}}}")[1:] == [
        f"sampler.batch: got 113, {expected}"
    ]


def test_a_default_takes_part_in_contradictions_beside_other_mistakes() -> None:
    source = {"data": {"name": "digits"}, "sampler": {"params": {"per_class": 60}}, "train": {"steps": 0}}
    with pytest.raises(ConfigError) as caught:
        load_config(source, choices=CHOICES)
    starts = [line.split(":")[0] for line in caught.value.errors]
    assert starts == ["loss.name", "optim.lr", "train.steps", "sampler.batch"]


def test_missing_keys_say_what_was_expected() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"optim": None, "data": {"name": "table"}}, choices=CHOICES)
    assert caught.value.errors == [
        "loss.name: missing, expected one of rank, smooth",
        "optim.lr: missing, expected a number > 0 and <= 1000",
        "train.steps: missing, expected a whole number >= 1",
        "data.params.file: missing, expected text: 'table' needs it",
    ]


def test_a_component_given_as_text_shows_how_to_write_it() -> None:
    assert errors_of("loss: smooth") == [
        "loss: got 'smooth', expected a mapping with the keys name and params, or a list of such; "
        "write loss.name=smooth"
    ]


def test_a_bad_item_is_told_once_and_hides_nothing_else() -> None:
    errors = errors_of("{loss: {params: {semi_variance: [1, .nan]}}, other: {deep: .nan}, optim: {lr: 0}}")
    assert [line.split(":")[0] for line in errors] == [
        "loss.params.semi_variance[1]",
        "other.deep",
        "optim.lr",
        "other",
    ]


def test_strange_keys_and_long_values_stay_on_one_short_line() -> None:
    errors = errors_of(dump_yaml({"a\nb": "x" * 500, "c" * 500: 1, "model": {"dim": ["y\n" * 300]}}))
    assert len(errors) == 3
    assert all(len(line) < 300 for line in errors)


def test_mistakes_in_overrides_and_in_the_file_come_together() -> None:
    errors = errors_of(
        "optim: {lr: 0}", ["steps", "=3", "a..b=1", "train.steps=[", "seed.x=1", "train.steps.y=2", "lr=2"]
    )
    starts = {
        "override 'steps': expected key.path=value, for example optim.lr=1e-4",
        "override '=3': expected key.path=value",
        "override 'a..b=1': expected key.path=value",
        "override 'train.steps=[': expected the node content, but found",
        "override 'seed.x=1': seed.x: seed is 7, not a mapping; set seed as a whole",
        "override 'train.steps.y=2': train.steps.y: train.steps is 100, not a mapping",
        "optim.lr: got 0",
        "override 'lr=2': lr: unknown key (got 2)",
    }
    assert len(errors) == len(starts)
    assert all(any(line.startswith(start) for line in errors) for start in starts), errors


def test_of_thousands_of_mistakes_the_first_are_told_and_none_costs_more_than_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up = []
    monkeypatch.setattr(messages, "nearest", lambda name, *_, **__: looked_up.append(name) or [])
    tree = {**MINIMAL, "loss": {**MINIMAL["loss"], "params": {f"b{row}": 1 for row in range(5_000)}}}
    with pytest.raises(ConfigError) as caught:
        load_config(tree | {f"a{row}": 1 for row in range(5_000)}, choices=CHOICES)
    assert str(caught.value).startswith("10,000 errors\n  a0: unknown key")
    assert caught.value.errors[-1] == "and 9,900 more"
    assert len(caught.value.errors) == 101
    assert len(looked_up) <= 200
