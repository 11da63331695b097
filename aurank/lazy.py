"""Names that are imported when they are first used, so that a command loads only the libraries it needs."""

import importlib
import sys
from collections import UserDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar

from aurank.extras import missing_library

Component = TypeVar("Component")


class LazyTable(UserDict[str, Component]):
    """A table of components by name. Looking one up imports it; listing the names imports nothing.

    Args:
        package: what the modules below are relative to.
        homes: where each name's component is, as "module:attribute"; or where a table is, imported to list its names.
    """

    def __init__(self, package: str, homes: Mapping[str, str] | str) -> None:
        self.package, self.homes = package, homes

    @cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        return imported(self.homes, self.package) if isinstance(self.homes, str) else dict(self.homes)

    def __getitem__(self, name: str) -> Component:
        if isinstance(component := self.data[name], str):
            component = self.data[name] = imported(component, self.package)
        return component  # type: ignore[no-any-return]


def lazy_names(package: str, modules: Mapping[str, Sequence[str]]) -> tuple[Any, Any, list[str]]:
    """Return `__getattr__`, `__dir__` (PEP 562) and `__all__` of a package whose names are imported on first use.

    Args:
        modules: the public names in each module of the package.
    """
    module = sys.modules[package]
    homes = {name: f"{file}:{name}" for file, names in modules.items() for name in names}

    class Package(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            # importing the file compare.py names it in its package, where the function of that name stays
            if not (isinstance(value, ModuleType) and name in homes):
                super().__setattr__(name, value)

    def get_attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = imported(homes[name], package)
        setattr(module, name, value)
        return value

    module.__class__ = Package
    return get_attribute, lambda: sorted(module.__all__), list(homes)


def imported(home: str, package: str = "") -> Any:
    """Return what is at `home`, "module:attribute"."""
    module, _, attribute = home.partition(":")
    try:
        return attrgetter(attribute)(importlib.import_module(f".{module}" if package else module, package or None))
    except ModuleNotFoundError as error:
        if (remedy := missing_library(error)) is None:
            raise
        raise ModuleNotFoundError(remedy, name=error.name) from error
