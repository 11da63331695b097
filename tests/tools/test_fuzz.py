"""Damaged and hostile input of every kind, for some seconds: each ends in a result or in one clear error."""

import random
from pathlib import Path

import pytest
from fuzz import OUTCOMES, fuzz, run_case
from fuzzing.damage import damage_bytes, damage_text, damage_tree
from fuzzing.formats import FORMATS
from fuzzing.kinds import KINDS, Kind, seal

from aurank.errors import UserError
from aurank.files import read_bundle, write_bundle


@pytest.mark.slow
def test_damaged_input_finds_nothing() -> None:
    counts, found = fuzz(6, kinds=("config", "table", "faiss", "steps", "lines"))
    assert not found, "\n".join(found)
    assert all(row.total() for row in counts.values())


def refuse() -> None:
    raise UserError("no")


def crash() -> None:
    raise RecursionError


@pytest.mark.parametrize(
    ("command", "outcome"), [(lambda: 1, "fine"), (refuse, "one line"), (crash, "traceback"), ("ls", "fine")]
)
def test_a_case_ends_as_its_worst_command_does(
    command: object, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = True

    def read() -> object:
        return 0 if whole or isinstance(command, str) else command()  # type: ignore[operator]

    kind = Kind(
        lambda: Path("a.txt").write_text("a,b\n1,2\n"), (read, command if isinstance(command, str) else read), "a.txt"
    )
    monkeypatch.setitem(KINDS, "table", kind)
    monkeypatch.chdir(tmp_path)
    assert run_case("table", 7, seed=0, root=tmp_path).outcome == "fine"
    whole = False
    assert run_case("table", 7, seed=0, root=tmp_path).outcome == outcome
    monkeypatch.chdir("/")


def test_another_result_of_files_with_checksums_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Kind(lambda: Path("a.txt").write_text("a,b\n1,2\n"), (Path("a.txt").read_bytes,), "a.txt", is_sealed=True)
    monkeypatch.setitem(KINDS, "table", kind)
    monkeypatch.chdir(tmp_path)
    outcomes = {run_case("table", case, seed=0, root=tmp_path).outcome for case in range(60)}
    monkeypatch.chdir("/")
    assert outcomes == {"fine", "traceback", "wrong"}
    assert outcomes < set(OUTCOMES)


def test_a_damaged_file_with_sums_written_anew_is_read(tmp_path: Path) -> None:
    file = tmp_path / "folder/a.safetensors"
    write_bundle(file, {"count": 3}, "a number")
    file.write_bytes(file.read_bytes().replace(b": 3}", b": 4}"))
    with pytest.raises(UserError, match="checksum"):
        read_bundle(file, dict[str, int], "a number")
    seal(tmp_path / "folder")
    assert read_bundle(file, dict[str, int], "a number") == {"count": 4}


def test_damage_is_the_same_for_the_same_chance() -> None:
    tree = {"a": [1, {"b": 2}], "c": "x"}
    for damage, content in ((damage_bytes, bytes(range(50))), (damage_text, "a,b\n1,2\n"), (damage_tree, tree)):
        first, second = (repr([damage(content, random.Random(seed)) for seed in range(30)]) for _ in range(2))
        assert first == second
        assert len({repr(damage(content, random.Random(seed))) for seed in range(30)}) > 10
    assert tree == {"a": [1, {"b": 2}], "c": "x"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config", "parts", "resume", "onnx"])
def test_a_file_that_is_opened_and_written_again_says_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    KINDS[name].make()
    files = [path for path in Path(KINDS[name].damaged).rglob("*") if path.suffix in FORMATS]
    assert files or Path(KINDS[name].damaged).suffix in FORMATS
    for path in files:
        content, (read, write) = path.read_bytes(), FORMATS[path.suffix]
        assert repr(read(write(read(content), content))) == repr(read(content))
