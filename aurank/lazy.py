"""Names that are imported when they are first used, so that a command loads only the libraries it needs."""

import ast
import importlib
import sys
from collections import UserDict
from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

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
        if isinstance(found := self.data[name], str):
            found = self.data[name] = imported(found, self.package)
        return found  # type: ignore[no-any-return]


def lazy_attributes(package: str) -> tuple[Any, Any]:
    """Return `__getattr__` and `__dir__` (PEP 562) for a package whose names are imported on first use.

    The names are those that its `__init__` imports under `if TYPE_CHECKING:`. A file of the package with the name of
    something public, such as compare.py, does not hide it.
    """
    module = sys.modules[package]
    homes = _homes_in(Path(str(module.__file__)).read_text(encoding="utf-8"))

    class Package(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            if not (isinstance(value, ModuleType) and name in homes):  # the import system names each file so
                super().__setattr__(name, value)

    def get_attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = imported(homes[name])
        setattr(module, name, value)
        return value

    module.__class__ = Package
    return get_attribute, lambda: sorted({*module.__all__, *{"__version__"} & vars(module).keys()})


def _homes_in(text: str) -> dict[str, str]:
    blocks = [one for one in ast.parse(text).body if isinstance(one, ast.If)]
    guarded = [block for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING"]
    imports = [one for block in guarded for one in block.body if isinstance(one, ast.ImportFrom)]
    own = [one for one in imports if str(one.module).startswith("aurank.")]
    return {alias.name: f"{one.module}:{alias.name}" for one in own for alias in one.names}


def imported(home: str, package: str = "") -> Any:
    """Return what is at `home`, "module:attribute"; a library that lacks is named with its extra."""
    module, _, attribute = home.partition(":")
    try:
        return attrgetter(attribute)(importlib.import_module(f".{module}" if package else module, package or None))
    except ModuleNotFoundError as error:
        from aurank.extras import missing_library

        if (text := missing_library(error)) is None:
            raise
        raise ModuleNotFoundError(text, name=error.name) from error
