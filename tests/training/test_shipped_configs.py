"""The configurations that come with aurank: valid, documented, robust against edits, and ready to run."""

import copy
import json
import random
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from testing.data_trees import REAL_DATA
from testing.yaml_text import read_yaml

from aurank import cli
from aurank.config import shipped_configs
from aurank.training import read_config, rehearse

SHIPPED = shipped_configs()
DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = re.findall(r"`aurank train ([^`]+)`", (DOCS / "configurations.md").read_text(encoding="utf-8"))
# One of each kind: another one has the same sections.
EDITED = ("digits/soprc", "grocery/text_sogclr", "grocery_unlabelled/isogclr", "inaturalist/soprc")
EDITS = 15
# One of each reader.
READ = (
    *("digits/soprc", "grocery/soprc", "grocery/text_sogclr", "omniglot/soprc"),
    *("sop/soprc", "inaturalist/soprc", "vehicleid/soprc"),
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*leaves out the loss.params")
def test_the_commands_of_the_page_on_configurations_resolve_each_to_another_one() -> None:
    found = {}
    for command in COMMANDS:
        name, *overrides = shlex.split(command)
        config = read_config(name, overrides)
        given = dict(override.split("=", 1) for override in overrides)
        assert config.loss.name == given.get("loss.name", config.loss.name)
        found[config.model_dump_json()] = command
    assert len(found) == len(COMMANDS) > 60
    shipped = {command.split()[0] for command in COMMANDS}
    assert shipped <= set(SHIPPED)
    assert {name.split("/")[0] for name in shipped} == {
        *("sop", "inaturalist", "vehicleid"),
        *("omniglot", "omniglot_unlabelled", "grocery"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITED)
def test_random_edits_of_one_key_end_valid_or_with_exit_code_2(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = read_yaml(SHIPPED[name].read_text(encoding="utf-8"))
    path = tmp_path / "edited.yaml"
    monkeypatch.setattr(sys, "argv", ["aurank", "config", str(path)])
    chance = random.Random(name)
    codes = {0: 0, 2: 0}
    for _ in range(EDITS):
        tree = copy.deepcopy(whole)
        done = edit_one_key(tree, chance)
        path.write_text(json.dumps(tree), encoding="utf-8")
        code = exit_code()
        captured = capsys.readouterr()
        assert code in codes, f"{done}: exit code {code}"
        assert "Traceback" not in captured.err, done
        assert (code == 0) == (captured.err == ""), f"{done}: {captured.err}"
        codes[code] += 1
    assert min(codes.values()) > 0, codes


@pytest.mark.slow
@pytest.mark.parametrize("name", READ)
def test_a_dry_run_works_where_the_data_is_and_else_says_what_is_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["aurank", "train", name, "--dry-run", f"data.root={tmp_path}"])
    code = exit_code()
    captured = capsys.readouterr()
    if name.startswith("digits"):
        assert code == 0
        assert "parameters" in captured.out
    else:
        assert code == 2
        assert str(tmp_path) in captured.err
        assert "data.root" in captured.err


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(not (REAL_DATA / "grocery_128.zip").is_file(), reason="no archive")
def test_a_dry_run_on_a_real_archive_counts_its_images() -> None:
    rehearsal = rehearse(read_config("grocery/soprc", [f"data.root={REAL_DATA}", "data.cache=0"]))
    assert rehearsal.images["test"] == 2943
