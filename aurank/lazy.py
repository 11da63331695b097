"""Names and libraries that are imported when they are first used; a missing library names its extra."""

import importlib
import re
import sys
from collections import Counter, UserDict
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar

from aurank.errors import UserError

Component = TypeVar("Component")


class LazyTable(UserDict[str, Component]):
    """A table of components by name, imported when looked up from homes "module:attribute"."""

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
    """Return `__getattr__`, `__dir__` (PEP 562) and `__all__` of a package, from the public names of its modules."""
    module = sys.modules[package]
    homes = {name: f"{file}:{name}" for file, names in modules.items() for name in names}

    class Package(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            # importing the file compare.py names it in its package, where the function of that name stays
            if not (isinstance(value, ModuleType) and name in homes):
                super().__setattr__(name, value)

        def __reduce__(self) -> tuple[Any, ...]:  # cloudpickle, of Dask for one, knows plain modules alone
            return importlib.import_module, (package,)

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


# -- libraries of the extras ------------------------------------------------------------------------------------------

# Modules that are not named as their package.
_PACKAGES = {
    "cv2": "opencv-python-headless", "faiss": "faiss-cpu", "open_clip": "open-clip-torch", "ruamel": "ruamel.yaml",
    "milvus_lite": "milvus-lite", "python_multipart": "python-multipart", "PIL": "pillow", "sklearn": "scikit-learn",
    "lance": "pylance",
}  # fmt: skip


def import_library(module: str, purpose: str) -> Any:
    """Return the imported module; UserError with the extra to install if it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{purpose} needs {_remedy(module)} ({error})") from error


def require_libraries(purpose: str, *modules: str) -> None:
    """Raise UserError with the extra to install if a module is not there; import none."""
    for module in modules:
        if find_spec(module) is None:
            raise UserError(f"{purpose} needs {_remedy(module)}")


def missing_library(error: BaseException) -> str | None:
    """Return what to install where a library of an extra is missing; None for other errors."""
    text = f"this needs {_remedy(error.name or '')}" if isinstance(error, ModuleNotFoundError) else ""
    return text if "aurank[" in text else None


def _remedy(module: str) -> str:
    top = module.partition(".")[0]
    package = _PACKAGES.get(top, top)
    extra = _extras().get(package)
    return f"{package}, which cannot be imported: pip install " + (f"'aurank[{extra}]'" if extra else package)


@cache
def _extras() -> dict[str, str]:
    try:
        lines = requires("aurank") or []
    except PackageNotFoundError:  # a checkout that is not installed
        return {}
    matches = [re.match(r"([\w.-]+).*extra == ['\"](\w+)['\"]", line) for line in lines]
    pairs = [(match[1].lower(), match[2]) for match in matches if match is not None]
    sizes = Counter(extra for _, extra in pairs)  # of several extras, the one that brings the fewest packages
    return dict(sorted(pairs, key=lambda pair: -sizes[pair[1]]))
