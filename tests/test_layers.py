"""The structure of the tree: data flows one way, heavy libraries have one home, files stay small."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "aurank").rglob("*.py"))

# A file imports only from layers to its left, or from its own. The longest matching prefix names a file's layer.
LAYERS = [
    ("aurank.errors", "aurank.arrays", "aurank.files", "aurank.names", "aurank.sizes"),
    ("aurank.config",),
    ("aurank.data",),
    ("aurank.models",),
    ("aurank.losses",),
    ("aurank.evaluation",),
    ("aurank.evaluation.embed", "aurank.evaluation.protocols", "aurank.evaluation.cache"),
    ("aurank.reporting",),
    ("aurank.training",),
    ("aurank", "aurank.cli", "aurank.__main__"),
]
# Beyond order: these layers know nothing of the named ones although they stand to their left.
BLIND = {
    "aurank.losses": ("aurank.config", "aurank.data", "aurank.models"),
    "aurank.evaluation": ("aurank.config", "aurank.data", "aurank.models", "aurank.losses"),
    "aurank.data": ("aurank.config",),
    "aurank.models": ("aurank.config", "aurank.data"),
}
HOMES = {
    "pytorch_metric_learning": ("aurank.losses", "aurank.evaluation.accuracy_calculator"),
    "timm": ("aurank.models",),
    "albumentations": ("aurank.data",),
    "yaml": ("aurank.config",),
    "faiss": ("aurank.evaluation",),
    "accelerate": ("aurank.training",),
    "matplotlib": ("aurank.reporting",),
    "typer": ("aurank.cli",),
    "rich": ("aurank.cli",),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def layer(name: str) -> tuple[int, str]:
    matches = [
        (len(prefix), place, prefix) for place, row in enumerate(LAYERS) for prefix in row if within(name, prefix)
    ]
    _, place, prefix = max(matches)
    return place, prefix


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_a_file_imports_only_from_its_left(path: Path) -> None:
    own, prefix = layer(module_name(path))
    for name in imports(path):
        if not within(name, "aurank"):
            continue
        assert layer(name)[0] <= own, f"{path} imports {name}, which stands to its right"
        forbidden = BLIND.get(prefix, ())
        assert not any(within(name, other) for other in forbidden), f"{path} must know nothing of {name}"


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_a_library_is_imported_in_its_one_home(path: Path) -> None:
    for name in imports(path):
        homes = HOMES.get(name.split(".")[0])
        at_home = homes is None or any(within(module_name(path), home) for home in homes)
        assert at_home, f"{path} imports {name}, whose home is {homes}"


@pytest.mark.parametrize("path", [*FILES, *sorted((ROOT / "tests").rglob("*.py"))], ids=lambda path: path.name)
def test_a_file_has_at_most_400_lines(path: Path) -> None:
    count = len(path.read_text(encoding="utf-8").splitlines())
    assert count <= 400, f"{path} has {count} lines; split it"


def prints_or_exits(path: Path) -> set[str]:
    """What of print, exit, sys.exit, os._exit, breakpoint and SystemExit a file calls or raises."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        named = node.func if isinstance(node, ast.Call) else node.exc if isinstance(node, ast.Raise) else None
        if named is not None:
            found.add(ast.unparse(named.func if isinstance(named, ast.Call) else named))
    return found & {"print", "exit", "quit", "breakpoint", "sys.exit", "os._exit", "SystemExit"}


def test_only_the_command_line_prints_or_exits() -> None:
    for path in FILES:
        if not within(module_name(path), "aurank.cli") and module_name(path) != "aurank.__main__":
            assert not prints_or_exits(path), path


@pytest.mark.parametrize(
    "line", ["print(1)", "exit()", "sys.exit(2)", "os._exit(1)", "raise SystemExit", "raise SystemExit(2)"]
)
def test_every_way_to_print_or_to_exit_is_seen(line: str, tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_text(f"def f():\n    {line}\n", encoding="utf-8")
    assert prints_or_exits(path)


def test_every_place_names_the_same_oldest_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    oldest = project["project"]["requires-python"].removeprefix(">=")
    assert oldest == "3.11"  # where typing.Unpack came
    assert project["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    assert project["tool"]["mypy"]["python_version"] == oldest
    assert f"Python ≥ {oldest}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"Programming Language :: Python :: {oldest}" in project["project"]["classifiers"]


def test_the_package_lists_its_names_before_they_are_first_used() -> None:
    import aurank

    assert set(aurank.__all__) <= set(dir(aurank))
