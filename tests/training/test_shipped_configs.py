"""The configurations that come with aurank: valid, documented, robust against edits, and ready to run."""

import copy
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from testing.data_trees import REAL_DATA

from aurank import cli
from aurank.config import ConfigError, shipped_configs
from aurank.training import read_config, rehearse

SHIPPED = shipped_configs()
EDITS = 10
THOROUGHLY = (
    "digits/soprc",
    "grocery/recall_at_k",
    "inaturalist/soprc",
    "omniglot/xbm",
    "sop/soprc",
    "vehicleid/auroc",
)
VALUES: list[Any] = [None, True, -1, 0, 1, 10**9, 0.5, -0.5, 1e300, "", "x", "1e-4", [], [1, "a"], {}, {"name": "x"}]


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, value in items for place in ((*path, key), *places(value, (*path, key)))]


def edit_one_key(tree: dict[str, Any], chance: random.Random) -> str:
    """Change one key of the tree in place; returns what was done."""
    *parents, last = chance.choice(places(tree))
    holder: Any = tree
    for key in parents:
        holder = holder[key]
    kind = chance.choice(["delete", "misspell", "value", "value", "extra"])
    value = chance.choice(VALUES)
    if kind == "delete":
        del holder[last]
    elif kind == "misspell" and isinstance(holder, dict):
        cut = chance.randrange(len(last))
        holder[last[:cut] + chance.choice(["", "x", "_"]) + last[cut + 1 :]] = holder.pop(last)
    elif kind == "extra" and isinstance(holder, dict):
        holder[chance.choice(["lr", "class_counts", "name", "params", "batchsize"])] = value
    else:
        holder[last] = value
    return f"{kind} {'.'.join(map(str, [*parents, last]))} {value!r}"


def exit_code() -> int:
    """Run the command in sys.argv; returns what it exits with."""
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_configuration_is_valid_and_its_header_says_what_to_expect(name: str) -> None:
    read_config(SHIPPED[name])
    header = [line for line in SHIPPED[name].read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    text = "\n".join(header)
    assert f"configs/{name}.yaml" in text or f"aurank train {name}" in text or "make demo" in text
    for word in ("mAUPRC", "seed", "core", "min"):
        assert word in text, f"{name}: the header does not mention {word}"


@pytest.mark.parametrize("name", SHIPPED)
def test_random_edits_of_one_key_end_valid_or_with_exit_code_2(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = yaml.safe_load(SHIPPED[name].read_text(encoding="utf-8"))
    path = tmp_path / "edited.yaml"
    monkeypatch.setattr(sys, "argv", ["aurank", "config", str(path)])
    chance = random.Random(name)
    codes = {0: 0, 2: 0}
    number = 100 if name in THOROUGHLY else 20
    for _ in range(number):
        tree = copy.deepcopy(whole)
        done = edit_one_key(tree, chance)
        path.write_text(yaml.safe_dump(tree), encoding="utf-8")
        code = exit_code()
        captured = capsys.readouterr()
        assert code in codes, f"{done}: exit code {code}"
        assert "Traceback" not in captured.err, done
        assert (code == 0) == (captured.err == ""), f"{done}: {captured.err}"
        codes[code] += 1
    assert min(codes.values()) >= number // 30, codes


def test_valid_edits_of_one_key_pass_a_dry_run_or_end_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = yaml.safe_load(SHIPPED["digits/soprc"].read_text(encoding="utf-8"))
    whole["data"]["image_size"] = 16
    path = tmp_path / "edited.yaml"
    path.write_text(yaml.safe_dump(whole), encoding="utf-8")
    unchanged = read_config(path)
    # Weights of their own need the network, which is none of an edit's faults.
    monkeypatch.setattr(sys, "argv", ["aurank", "train", str(path), "--dry-run", "model.pretrained=false"])
    chance = random.Random(1)
    codes = {0: 0, 2: 0}
    while sum(codes.values()) < EDITS:
        tree = copy.deepcopy(whole)
        done = edit_one_key(tree, chance)
        path.write_text(yaml.safe_dump(tree), encoding="utf-8")
        try:
            if read_config(path) == unchanged:
                continue
        except ConfigError:
            continue
        code = exit_code()
        captured = capsys.readouterr()
        assert code in codes, f"{done}: exit code {code}: {captured.err}"
        assert (code == 0) == (captured.err == ""), f"{done}: {captured.err}"
        assert captured.err.count("\n") <= 1, f"{done}: {captured.err}"
        codes[code] += 1
    assert codes[0] >= EDITS // 2, codes


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["optim.name=sgd", "optim.params.momentum=0.0"], "optim.params.momentum"),
        (["optim.name=adam", "optim.params.betas=[2.0, 0.9]"], "optim.params.betas"),
        (["optim.params.eps=-1.0"], "optim.params.eps"),
    ],
)
def test_an_argument_that_the_optimiser_refuses_is_a_mistake_of_the_configuration(
    overrides: list[str], key: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(key)}: got .*refused by"):
        read_config("digits/soprc", overrides)
    read_config("digits/soprc", ["optim.name=sgd", "optim.params.momentum=0.0", "optim.params.nesterov=false"])


@pytest.mark.parametrize("name", SHIPPED)
def test_a_dry_run_works_where_the_data_is_and_else_says_what_is_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["aurank", "train", name, "--dry-run", f"data.root={tmp_path}"])
    if read_config(name).data.name == "digits":
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 0
        assert "parameters" in capsys.readouterr().out
        return
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    complaint = capsys.readouterr().err
    assert str(tmp_path) in complaint
    assert "data.root" in complaint


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(not (REAL_DATA / "omniglot_full.zip").is_file(), reason="no archives")
@pytest.mark.parametrize(("name", "test_images"), [("omniglot/xbm", 13180), ("grocery/soprc", 2943)])
def test_a_dry_run_on_the_real_archives_counts_their_images(name: str, test_images: int) -> None:
    rehearsal = rehearse(read_config(name, [f"data.root={REAL_DATA}"]))
    assert rehearsal.images["test"] == test_images
