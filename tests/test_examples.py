"""Every public name has an example, every example runs as it stands, and what a docstring names is there."""

import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import aurank
from aurank.names import signature

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def packages() -> Iterator[ModuleType]:
    """aurank and the packages below it that list public names."""
    yield aurank
    for found in pkgutil.walk_packages(aurank.__path__, "aurank."):
        if found.ispkg and found.name != "aurank.cli":
            module = importlib.import_module(found.name)
            if hasattr(module, "__all__"):
                yield module


def public() -> dict[str, Any]:
    """Every class and function that a package lists, by the module and name that define it."""
    found = {}
    for package in packages():
        for name in package.__all__:
            thing = getattr(package, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                found[f"{thing.__module__}.{name}"] = thing
    return dict(sorted(found.items()))


PUBLIC = public()
SLOW = {
    "aurank.commands.average.average_models",
    "aurank.commands.galleries.build_index.add_images",
    "aurank.commands.galleries.build_index.build_index",
    "aurank.commands.embed.embed_model",
    "aurank.commands.export.export_model",
    "aurank.commands.galleries.search.ImageIndex",
    "aurank.commands.galleries.search.search_photos",
    "aurank.embedding.stored.trained_model.load",
    "aurank.embedding.stored.trained_model.load_pairs",
    "aurank.training.dry_run.rehearse",
    "aurank.training.run.train",
}


def examples(thing: Any) -> list[doctest.DocTest]:
    """The examples in the docstrings of a function, or of a class and its methods."""
    module = importlib.import_module(thing.__module__)
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for test in finder.find(thing, thing.__name__, module, dict(vars(module))) if test.examples]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in PUBLIC]
)
def test_a_public_name_has_an_example_that_runs(name: str) -> None:
    tests = examples(PUBLIC[name])
    assert tests, f"{name} has no example: write two to five lines of >>> below 'Example:' in its docstring"
    for test in tests:
        said: list[str] = []
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
        assert not said, "".join(said)


def documented(thing: Any) -> list[str]:
    """The parameters that the section Args of a docstring names."""
    _, _, rest = inspect.cleandoc(thing.__doc__ or "").partition("\nArgs:\n")
    section = re.split(r"^\S", rest, maxsplit=1, flags=re.MULTILINE)[0]
    lines = re.findall(r"^    (\S[^:\n]*):", section, flags=re.MULTILINE)
    return [name.strip("* `") for line in lines for name in line.split(",")]


def with_methods(thing: Any) -> list[Any]:
    """A function, or a class with the public methods of its own."""
    own = vars(thing).items() if inspect.isclass(thing) else ()
    return [thing, *(inspect.unwrap(value) for name, value in own if inspect.isfunction(value) and name[0] != "_")]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_parameter_that_a_docstring_names_is_one(name: str) -> None:
    for thing in with_methods(PUBLIC[name]):
        taken = signature(thing)[0].keys() | inspect.signature(thing).parameters.keys()
        wrong = [parameter for parameter in documented(thing) if parameter not in taken]
        assert not wrong, f"{name}: the docstring of {thing.__qualname__} has {wrong} below 'Args:'"
