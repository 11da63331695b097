"""A model of one's own code."""

import hashlib
import importlib
import json
import site
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from aurank.errors import UserError
from aurank.files import reading
from aurank.models.adapters.loading import describe_adapter
from aurank.models.adapters.names import Options
from aurank.models.image_model import ImageModel, standard_transform


def python_model(name: str, model_id: str, options: Options, allow_code: bool) -> ImageModel:
    module_name, _, function = model_id.partition(":")
    # As `python -m` would: one's own module usually lies in the folder that the command is given in.
    sys.path.insert(0, str(Path.cwd()))
    try:
        with reading(name, "python:package.module:function", remedy="correct the name or the function"):
            module = importlib.import_module(module_name)
            built = getattr(module, function)(**options)
    finally:
        sys.path.remove(str(Path.cwd()))
    model, transform = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(model, nn.Module) or not (transform is None or callable(transform)):
        raise UserError(f"{name}: expected an nn.Module, or one and a transform, got {type(built).__name__}")
    transform = transform or standard_transform()
    description = f"{describe_adapter(torch, model_id, options, transform)} code {_code_sha256(module)}"
    return ImageModel(name, model, transform, description)


def _code_sha256(module: ModuleType) -> str:
    """Return a digest of the files of all modules that are neither installed nor aurank's."""
    folders = [*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()]
    installed = [Path(folder).resolve() for folder in folders]
    files: dict[str, str] = {}
    for name, loaded in list(sys.modules.items()):
        file = getattr(loaded, "__file__", None)
        if not file or (loaded is not module and name.partition(".")[0] in ("__main__", "aurank")):
            continue
        path = Path(file).resolve()
        # A few modules of torch name a file that is not there.
        if path.is_file() and not any(path.is_relative_to(folder) for folder in installed):
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()
