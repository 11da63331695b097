"""What comes with which extra of the installation, and one line that names it where a library is missing."""

import importlib
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from typing import Any

from aurank.errors import UserError

# Modules that are not named as their package.
_PACKAGES = {
    "cv2": "opencv-python-headless", "faiss": "faiss-cpu", "open_clip": "open-clip-torch", "ruamel": "ruamel.yaml",
    "milvus_lite": "milvus-lite", "python_multipart": "python-multipart", "PIL": "pillow", "sklearn": "scikit-learn",
}  # fmt: skip


def import_library(module: str, what: str) -> Any:
    """Return the imported module; UserError, naming the extra to install, where `what` needs it in vain."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{what} needs {_how_to_get([module])} ({error})") from error


def require_libraries(what: str, *modules: str) -> None:
    """Raise UserError, naming the extra to install, where `what` needs modules that are not there; import none."""
    if missing := [module for module in modules if find_spec(module) is None]:
        raise UserError(f"{what} needs {_how_to_get(missing)}")


def missing_library(error: BaseException) -> str | None:
    if not isinstance(error, ModuleNotFoundError) or error.name is None or extra_of(error.name) is None:
        return None
    return f"this needs {_how_to_get([error.name])}"


def _how_to_get(modules: Iterable[str]) -> str:
    packages = [_package_of(module) for module in modules]
    extra = next(filter(None, map(extra_of, modules)), None)
    wanted = " ".join(packages) if extra is None else f"'aurank[{extra}]'"
    return f"{', '.join(packages)}, which cannot be imported: pip install {wanted}"


def _package_of(module: str) -> str:
    top = module.partition(".")[0]
    return _PACKAGES.get(top, top)


def extra_of(module: str) -> str | None:
    return _extras().get(_package_of(module))


@cache
def _extras() -> dict[str, str]:
    try:
        lines = requires("aurank") or []
    except PackageNotFoundError:  # a checkout that is not installed
        return {}
    found = [re.match(r"([\w.-]+).*extra == ['\"](\w+)['\"]", line) for line in lines]
    listed = [(match[1].lower(), match[2]) for match in found if match is not None]
    sizes = Counter(extra for _, extra in listed)  # of several the one that brings the fewest others
    return dict(sorted(listed, key=lambda one: -sizes[one[1]]))
