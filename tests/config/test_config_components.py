"""Arguments of components against the signatures of what they build."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from testing.configs import MINIMAL, RankLoss

from aurank.config import Choices, ConfigError, load_config
from aurank.config.components import build
from aurank.errors import UserError
from aurank.names import signature


def _check(factory: Callable[..., Any], params: dict[str, Any], filled: Sequence[str] = ()) -> Any:
    """The params as they come back, or the lines of the error."""
    choices = {"loss": Choices({"it": factory}, frozenset(filled))}
    try:
        return load_config({**MINIMAL, "loss": {"name": "it", "params": params}}, choices=choices).loss.params
    except ConfigError as error:
        return error.errors


def _taking(annotation: Any) -> Callable[..., Any]:
    def factory(value: Any) -> None: ...

    factory.__annotations__["value"] = annotation
    return factory


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (float, 1, 1.0),
        (tuple[float, float], [1, 2], (1.0, 2.0)),
        (tuple[float, float] | bool, False, False),
        (Path, "a/b", Path("a/b")),
        (float | Callable[[int], int], 1, 1.0),
        ("NotImported", 3, 3),
    ],
)
def test_a_fitting_value_becomes_what_the_annotation_wants(annotation: Any, value: Any, expected: Any) -> None:
    result = _check(_taking(annotation), {"value": value})["value"]
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, 1.0, "got 1.0, expected a valid integer"),
        (float | int | None, "x", "got 'x', expected a valid number or a valid integer"),
        (Literal["mean", "sum"], "men", "got 'men', expected 'mean' or 'sum'; did you mean 'mean'?"),
    ],
)
def test_a_value_that_does_not_fit_is_told_with_what_would(annotation: Any, value: Any, expected: str) -> None:
    (line,) = _check(_taking(annotation), {"value": value})
    assert line.startswith(f"loss.params.value: {expected}")


def test_arguments_are_followed_into_the_classes_that_take_kwargs() -> None:
    named, is_open = signature(RankLoss)
    assert list(named) == ["class_counts", "tau1", "tau2", "prior", "semi_variance", "collect"]
    assert not is_open
    assert _check(RankLoss, {"collect": True}, ["class_counts"]) == {"collect": True}


def test_functions_partials_and_classes_without_constructors_have_their_own_arguments() -> None:
    class Bare: ...

    class Open:
        def __init__(self, known: int = 1, **others: Any) -> None: ...

    def positional(a: int, /, b: int, *more: int, c: int = 0) -> None: ...

    def odd(value: "NotImported", count: int = 1) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert signature(Bare) == ({}, False)
    assert list(signature(positional)[0]) == ["b", "c"]
    assert list(signature(partial(positional, 1, c=3))[0]) == ["b", "c"]
    assert _check(Open, {"known": 2, "anything": [1]}) == {"known": 2, "anything": [1]}
    assert _check(odd, {"value": "x", "count": 2}) == {"value": "x", "count": 2}
    (line,) = _check(Bare, {"a": 1})
    assert line.startswith("loss.params.a: unknown key (got 1)")


def test_a_missing_argument_is_told_and_one_that_the_program_fills_in_is_no_key() -> None:
    def needs(labels: list[int], size: int) -> None: ...

    assert _check(needs, {}, ["labels"]) == ["loss.params.size: missing"]
    (line,) = _check(needs, {"size": 1, "labels": [1]}, ["labels"])
    assert line.startswith("loss.params.labels: unknown key (got [1]), expected one of size")


def test_building_takes_what_the_constructor_knows_and_names_the_key_of_what_it_refuses() -> None:
    loss = build("loss.params", RankLoss, {"class_counts": [1], "seed": 3}, {"tau1": 0.5})
    assert isinstance(loss, RankLoss)
    with pytest.raises(UserError, match=r"^loss\.params: .*tau1.*tau1 must be > 0"):
        build("loss.params", RankLoss, {"class_counts": [1]}, {"tau1": -1})

    def full(value: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        build("loss.params", full, {}, {"value": 1})


def test_a_section_without_a_table_is_not_checked() -> None:
    params = {"x": [1]}
    component = {"name": "any", "params": params}
    config = load_config({**MINIMAL, "loss": component, "optim": {"lr": 1, "schedule": component}}, choices={})
    assert config.loss.params == config.optim.schedule.params == params
