"""Names that are imported when they are first used, so that a command loads only the libraries it needs."""

import importlib
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from threading import Lock
from types import ModuleType
from typing import Any, TypeVar

Component = TypeVar("Component")
_removing = Lock()


class LazyTable(UserDict[str, Component]):
    """A table of components by name. Looking one up imports it; listing the names imports nothing.

    Args:
        package: what the modules below are relative to.
        homes: where each name's component is, as "module:attribute".
    """

    def __init__(self, package: str, homes: Mapping[str, str]) -> None:
        super().__init__()
        self.package, self.homes = package, homes
        self.data: dict[str, Any] = dict(homes)

    def __getitem__(self, name: str) -> Component:
        if isinstance(found := self.data[name], str):
            found = self.data[name] = _imported(self.package, found)
        return found  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self)})"


def lazy_attributes(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` (PEP 562) for a package whose names are imported on first use.

    Args:
        package: its `__name__`.
        homes: where each name comes from, as "module:attribute", relative to the package; a dot in front makes it
            relative to the package around this one.
    """
    module = sys.modules[package]

    def get_attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = _imported(package, homes[name])
        setattr(module, name, value)
        return value

    return get_attribute, lambda: sorted({*vars(module), *homes})


@contextmanager
def without(name: str) -> Iterator[None]:
    """Put off the import of the module `name`, which what is imported inside asks for, until an attribute is used.

    Other threads may import it meanwhile: they get the module, or what stands in for it, which works as well.
    """
    if name in sys.modules:
        yield
        return
    stand_in = ModuleType(name)

    def remove() -> None:
        with _removing:  # else a second thread might remove the module itself
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]

    def get_attribute(attribute: str) -> Any:
        remove()
        return getattr(importlib.import_module(name), attribute)

    stand_in.__getattr__ = get_attribute  # type: ignore[method-assign]
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        remove()


def _imported(package: str, home: str) -> Any:
    module, _, attribute = home.partition(":")
    try:
        return attrgetter(attribute)(importlib.import_module(f".{module}", package))
    except ModuleNotFoundError as error:
        from aurank.extras import missing_library

        if (text := missing_library(error)) is None:
            raise
        raise ModuleNotFoundError(text, name=error.name) from error
