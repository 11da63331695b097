"""Arguments of components against the signatures of what they build, with and without building it."""

import enum
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
from testing.config_tables import MINIMAL, RankLoss

from aurank.config import Choices, ConfigError, load_config
from aurank.config.components import expectation, fit, signature


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def _check(factory: Callable[..., Any], params: dict[str, Any], **options: Any) -> Any:
    """The params as they come back, or the lines of the error."""
    choices = {"loss": Choices({"it": factory}, **options)}
    try:
        return load_config({**MINIMAL, "loss": {"name": "it", "params": params}}, choices=choices).loss.params
    except ConfigError as error:
        return error.errors


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (float, 1, 1.0),
        (float, 0.5, 0.5),
        (int, 3, 3),
        (bool, True, True),
        (str, "x", "x"),
        (int | None, None, None),
        (Optional[float], 2, 2.0),  # noqa: UP045
        (int | float, 2, 2),
        (tuple[float, float], [1, 2], (1.0, 2.0)),
        (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
        (list[int], [1], [1]),
        (Sequence[float], [1, 2], [1.0, 2.0]),
        (Mapping[str, int], {"a": 1}, {"a": 1}),
        (Literal["a", "b"], "a", "a"),
        (tuple[float, float] | bool, False, False),
        (tuple[float, float] | bool, [1, 2], (1.0, 2.0)),
        (Path, "a/b", Path("a/b")),
        (Colour, "red", Colour.RED),
        (Any, [1], [1]),
        (Real, 0.5, 0.5),
        (float | Callable[[int], int], 1, 1.0),
        (Iterable[int], [1, 2], [1, 2]),
        ("NotImported", 3, 3),
        (3, "an annotation that is no type", "an annotation that is no type"),
    ],
)
def test_a_fitting_value_becomes_what_the_annotation_wants(annotation: Any, value: Any, expected: Any) -> None:
    result, complaint = fit(value, annotation)
    assert complaint is None
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (float, "1", "got '1', expected a number; it is text, remove the quotes"),
        (float, True, "got true, expected a number"),
        (int, 1.0, "got 1.0, expected a whole number"),
        (int, "x", "got 'x', expected a whole number"),
        (bool, 1, "got 1, expected true or false"),
        (bool, "yes", "got 'yes', expected true or false"),
        (str, 1, "got 1, expected text"),
        (float | None, [], "got [], expected a number or null"),
        (tuple[float, float], [1], "got [1], expected a list of 2: a number, a number"),
        (list[int], [1, "a"], 'got [1, "a"], expected a list, each a whole number'),
        (list[int], "12", "got '12', expected a list, each a whole number"),
        (Literal["mean", "sum"], "men", "got 'men', expected one of mean, sum; did you mean 'mean'?"),
        (Literal["mean"] | None, "men", "got 'men', expected 'mean' or null"),
        (Colour, "rde", "got 'rde', expected one of red, blue; did you mean 'red'?"),
        (dict[str, int], 3, "got 3, expected a mapping"),
        (Real, "a", "got 'a', expected numbers.Real"),
        (Callable[[int], int], "os.system", "got 'os.system', expected collections.abc.Callable[[int], int]"),
        (float | Callable[[int], int], "x", "got 'x', expected"),
    ],
)
def test_a_value_that_does_not_fit_is_told_with_what_would(annotation: Any, value: Any, expected: str) -> None:
    result, complaint = fit(value, annotation)
    assert result == value
    assert complaint is not None
    assert complaint.startswith(expected)


def test_an_annotation_without_words_is_written_as_in_python() -> None:
    assert expectation(type(lambda: 0)) == ("function", [])
    assert expectation("NotImported") == ("a value", [])


def test_arguments_are_followed_into_the_classes_that_take_kwargs() -> None:
    named, more = signature(RankLoss)
    assert list(named) == ["class_counts", "tau1", "tau2", "prior", "semi_variance", "collect"]
    assert not more
    assert _check(RankLoss, {"collect": True}, filled=frozenset({"class_counts"})) == {"collect": True}


def test_functions_partials_and_classes_without_constructors_have_their_own_arguments() -> None:
    class Bare: ...

    class Open:
        def __init__(self, known: int = 1, **others: Any) -> None: ...

    def positional(a: int, /, b: int, *more: int, c: int = 0) -> None: ...

    assert signature(Bare) == ({}, False)
    assert list(signature(positional)[0]) == ["b", "c"]
    assert list(signature(partial(positional, 1, c=3))[0]) == ["b", "c"]
    assert signature(Open)[1]
    assert _check(Open, {"known": 2, "anything": [1]}) == {"known": 2, "anything": [1]}
    assert _check(Bare, {"a": 1}) == ["loss.params.a: unknown key (got 1), expected no key here"]


def test_an_annotation_that_cannot_be_evaluated_is_not_checked() -> None:
    def odd(value: "NotImported", count: int = 1) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert _check(odd, {"value": "x", "count": 2}) == {"value": "x", "count": 2}


def test_a_missing_argument_is_told_with_its_type_and_a_filled_one_is_not_missing() -> None:
    def needs(labels: list[int], size: int, mode: Literal["a", "b"]) -> None: ...

    assert _check(needs, {}, filled=frozenset({"labels"})) == [
        "loss.params.size: missing, expected a whole number: 'it' needs it",
        "loss.params.mode: missing, expected one of a, b: 'it' needs it",
    ]


def test_nothing_is_built_without_a_trial_or_after_a_mistake() -> None:
    def never(value: int = 0) -> None:
        raise AssertionError

    assert _check(never, {"value": 3}) == {"value": 3}
    assert _check(never, {"value": "x"}, trial={}) == ["loss.params.value: got 'x', expected a whole number"]


def test_a_trial_gives_only_the_arguments_that_are_taken() -> None:
    taken: list[Any] = []

    def build(sizes: list[int], *, value: float = 0.0) -> None:
        taken.append((sizes, value))

    filled = frozenset({"sizes", "other"})
    assert _check(build, {"value": 2}, filled=filled, trial={"sizes": [1], "other": 3}) == {"value": 2.0}
    assert taken == [([1], 2.0)]


def test_an_impossible_value_is_told_under_its_key() -> None:
    errors = _check(RankLoss, {"tau1": 1, "tau2": -2}, filled=frozenset({"class_counts"}), trial={"class_counts": [1]})
    assert errors == ["loss.params.tau2: got -2, refused by 'it': tau2 must be > 0, got -2.0"]


def test_values_that_are_impossible_only_together_are_told_under_what_the_message_names() -> None:
    def build(low: float = 0.0, high: float = 9.0, *, words: str = "low and high") -> None:
        if low > high:
            raise ValueError(f"got {words}\nthe wrong way round")

    together = {"low": 3, "high": 2}
    assert _check(build, together, trial={}) == [
        "loss.params.low: got 3, refused by 'it': got low and high the wrong way round"
    ]
    assert _check(build, {**together, "words": "them"}, trial={}) == [
        "loss.params: got these values, refused by 'it': got them the wrong way round"
    ]


@pytest.mark.parametrize(
    "error", [KeyError("a"), RuntimeError("b\nc"), OverflowError(), MemoryError(), AssertionError("d")]
)
def test_whatever_a_constructor_raises_becomes_one_line(error: Exception) -> None:
    def build(value: int) -> None:
        warnings.warn("heard by nobody", stacklevel=1)
        raise error

    (line,) = _check(build, {"value": 1}, trial={})
    assert line.startswith(f"loss.params.value: got 1, refused by 'it': {type(error).__name__}")
    assert "\n" not in line


def test_a_section_without_a_table_is_not_checked() -> None:
    config = load_config({**MINIMAL, "loss": {"name": "any", "params": {"x": [1]}}}, choices={})
    assert config.loss.params == {"x": [1]}
