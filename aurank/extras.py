"""Libraries that come with an extra of the installation, and one line that names the extra where one is missing."""

import importlib
import re
from collections import Counter
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


def import_library(module: str, purpose: str) -> Any:
    """Return the imported module; raise UserError with the extra to install if `purpose` needs it in vain."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{purpose} needs {_remedy(module)} ({error})") from error


def require_libraries(purpose: str, *modules: str) -> None:
    """Raise UserError with the extra to install if `purpose` needs a module that is not there; import none."""
    for module in modules:
        if find_spec(module) is None:
            raise UserError(f"{purpose} needs {_remedy(module)}")


def missing_library(error: BaseException) -> str | None:
    """Return what to install where a library of an extra is missing; None for other errors."""
    module = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    return f"this needs {_remedy(module)}" if _package_of(module) in _extras() else None


def _remedy(module: str) -> str:
    package = _package_of(module)
    extra = _extras().get(package)
    return f"{package}, which cannot be imported: pip install " + (f"'aurank[{extra}]'" if extra else package)


def _package_of(module: str) -> str:
    top = module.partition(".")[0]
    return _PACKAGES.get(top, top)


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
