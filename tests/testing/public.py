"""The public names of aurank with their signatures, one line a name; run as a script, write them into the list."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

LIST = Path(__file__).parents[1] / "public_names.txt"
ROOMS = [
    "losses",
    "evaluation",
    "data",
    "models",
    "config",
    "training",
    "embedding",
    "commands",
    "reporting",
    "serving",
]


def public_names() -> list[str]:
    """Return a line for each name in `__all__` of a room and for what a class adds to public bases."""
    packages = [importlib.import_module(name) for name in (*(f"aurank.{room}" for room in ROOMS), "aurank")]
    public = {f"{package.__name__}.{name}": getattr(package, name) for package in packages for name in package.__all__}
    classes = {id(value): name for name, value in public.items() if inspect.isclass(value)}
    found = []
    for name, value in public.items():
        found.append(line(name, value))
        if classes.get(id(value)) == name and value.__module__.startswith("aurank."):
            above = [base for base in value.__mro__[1:] if id(base) in classes]
            homes = [base for base in value.__mro__ if not any(issubclass(each, base) for each in above)]
            found += {line(f"{name}.{member}", each) for member, each in members(homes)}
    return sorted(found)


def members(kinds: list[type]) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that classes define themselves; fields are in the signature."""
    for kind in (each for each in kinds if each.__module__.startswith("aurank.")):
        for name, value in vars(kind).items():
            if not name.startswith("_") and hasattr(value, "__get__"):
                yield name, getattr(value, "__func__", value)


def line(name: str, value: Any) -> str:
    """Return a name with its parameters and their defaults, without types, or with the entries of a table."""
    if isinstance(value, Mapping):
        return f"{name}: {', '.join(map(str, value))}"
    return name + signature(value) if callable(value) else name


def signature(value: Callable[..., Any]) -> str:
    """Return the parameters and their defaults, the same on every version of Python."""
    if fields := getattr(value, "model_fields", None):  # of pydantic, whose versions sign a factory differently
        given = ((name, "<factory>" if each.default_factory else repr(each.default)) for name, each in fields.items())
        return f"(*, {', '.join(name + f'={default}' * (default != 'PydanticUndefined') for name, default in given)})"
    signed = inspect.signature(value)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signed.parameters.values()]
    return re.sub(r" at 0x\w+", "", str(inspect.Signature(plain)))


if __name__ == "__main__":
    LIST.write_text("\n".join(public_names()) + "\n", encoding="utf-8")
