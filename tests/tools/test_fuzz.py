"""Damaged and hostile input of every kind, for some seconds: each ends in a result or in one clear error."""

import random

import pytest
from fuzz import KINDS, fuzz, run_case
from fuzzing import subjects
from fuzzing.damage import damage_bytes, damage_text, damage_tree


@pytest.mark.slow
def test_damaged_input_finds_nothing() -> None:
    tried, finds = fuzz(8)
    assert not finds, "\n".join(map(str, finds))
    assert tried > len(KINDS)


@pytest.mark.parametrize("failure", [ValueError("no"), RecursionError(), MemoryError(), SystemExit(1)])
def test_whatever_is_not_an_error_of_aurank_is_a_find(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setitem(subjects.SUBJECTS, "table", fail)
    assert type(failure).__name__ in (run_case("table", 7, seed=0) or "")
    monkeypatch.setitem(subjects.SUBJECTS, "table", lambda *_: None)
    assert run_case("table", 7, seed=0) is None


def test_damage_is_the_same_for_the_same_chance() -> None:
    tree = {"a": [1, {"b": 2}], "c": "x"}
    for damage, content in ((damage_bytes, bytes(range(50))), (damage_text, "a,b\n1,2\n"), (damage_tree, tree)):
        first, second = (repr([damage(content, random.Random(seed)) for seed in range(30)]) for _ in range(2))
        assert first == second
        assert len({repr(damage(content, random.Random(seed))) for seed in range(30)}) > 10
    assert tree == {"a": [1, {"b": 2}], "c": "x"}
