"""Early checks: what options name is looked at before anything heavy is imported."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aurank.errors import UserError
from aurank.files import require_writable
from aurank.lazy import require_libraries

if TYPE_CHECKING:
    from aurank.embedding import ImageSelection


def _exists(path: Path | str) -> bool:
    with suppress(OSError):  # of a name that no file can have
        # An address is looked at by what reads it, an override by what it changes.
        return re.match(r"milvus:|data\.\w+.*=|.*:/", str(path)) is not None or Path(path).exists()
    return False


def require_exists(*paths: Path | str, remedy: str = "correct the path") -> None:
    for path in paths:
        if not _exists(path):
            raise UserError(f"{path}: there is no such file or folder in {Path.cwd()}; {remedy}")


def require_search(index: str) -> None:
    is_milvus = index.startswith("milvus:")
    require_libraries(*("a gallery in Milvus", "pymilvus") if is_milvus else ("a search by faiss", "faiss"))


_CHECKS: dict[str, Callable[[Any], None]] = {
    **dict.fromkeys(("labels", "fit_on", "negatives", "embeddings", "ranges", "file", "images"), require_exists),
    **dict.fromkeys(("reports", "with_photos"), lambda files: require_exists(*files)),
    "without": lambda files: require_exists(*files, remedy="leave out words by --text and a weight below 0"),
    "index": require_search,
    "html": lambda page: require_writable(page, suffix=".html", option="--html"),
    "trace": lambda trace: require_writable(trace, suffix=".json", option="--trace"),
}


def check_values(values: Mapping[str, Any]) -> None:
    """Raise UserError for the first value of an option that names nothing; values are by parameter."""
    from aurank.embedding.locations import require_index, require_model_name

    for name, value in values.items():
        if name == "folder" and not value.startswith("milvus:"):
            require_index(Path(value))
        elif name == "photos" and not any(photo == "-" or _exists(photo) for photo in value):
            require_exists(*value)
        elif name == "model":
            require_model_name(value)
            kind, _, file = value.partition(":")
            if kind in ("embeddings", "onnx") and not _exists(file):
                require_exists(file.partition(",")[0])  # options may follow
            require_exists(*re.findall(",weights=([^,]*)", value))
        elif name in _CHECKS:
            _CHECKS[name](value)
    if "folder" in values:
        require_search(values["folder"])


def check_images(images: "ImageSelection") -> None:
    images.find_protocol()
    if isinstance(images.data, str) and images.overrides:
        check_overrides(images.data, images.overrides)


def check_overrides(data: str, overrides: Sequence[str]) -> None:
    """Raise UserError for overrides of images, READER:PATH or a configuration, that nobody knows."""
    from aurank.embedding.settings import read_data

    with warnings.catch_warnings(action="ignore"):  # the command itself warns
        read_data(data, overrides)
