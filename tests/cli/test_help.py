"""`--help` of every command: short enough for a terminal, with examples that the command takes."""

import re
import shlex

import pytest
from testing.processes import Shell

GROUPS = [(), ("index",), ("data",)]
NAMES = """train, adapt, tune, benchmark, profile, demo, average, export, config, ls, cp, evaluate, align, embed, mine,
pairs, probe, compare, calibrate, search, serve, init, doctor, index build, index add, index remove, data check,
data get, data prepare"""
COMMANDS = NAMES.replace("\n", " ").split(", ")


@pytest.fixture
def screen(aurank: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("COLUMNS", "80")
    return aurank


def test_every_command_is_named_with_a_whole_sentence(screen: Shell) -> None:
    found = []
    for group in GROUPS:
        _, text, _ = screen(*group, "--help")
        listed = text.split("Commands:\n")[1].splitlines()
        assert all(line.endswith(".") and not line.endswith("..") for line in listed)
        found += [" ".join((*group, line.split()[0])) for line in listed]
    assert set(found) - {"index", "data"} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_commands_and_lines_fit_a_terminal(command: str, screen: Shell) -> None:
    code, text, _ = screen(*command.split(), "--help")
    assert code == 0
    assert max(map(len, text.splitlines())) <= 80
    examples = re.findall(rf"^  (aurank {command}( .*)?)$", text, flags=re.MULTILINE)
    assert examples
    for example, _ in examples:
        options = {word for word in shlex.split(example) if word.startswith("--")}
        assert options <= set(re.findall(r"^  (--[\w-]+)", text, flags=re.MULTILINE))


@pytest.mark.parametrize("command", ["evaluate", "embed", "calibrate", "index build", "search"])
def test_many_options_stand_under_headings_those_used_most_first(command: str, screen: Shell) -> None:
    _, text, _ = screen(*command.split(), "--help")
    sections = dict(re.findall(r"^([A-Z][\w ]+):\n((?:  .*\n)+)", text, flags=re.MULTILINE))
    listed = {name: re.findall(r"^  (--[\w-]+)", body, flags=re.MULTILINE) for name, body in sections.items()}
    names = [option for options in listed.values() for option in options]
    assert len(names) == len(set(names)) == len(re.findall(r"^  --", text, flags=re.MULTILINE))
    listed["Options"].remove("--help")
    assert len(listed["Options"]) <= 11
    assert list(listed)[:2] == ["Positional arguments", "Options"]
    if command == "evaluate":
        names = ("model", "data", "split", "out", "labels", "metrics", "recall-at", "device", "batch")
        assert listed["Options"] == [f"--{name}" for name in names]
        assert set(listed["Which images"]) == {"--protocol", "--root"}
