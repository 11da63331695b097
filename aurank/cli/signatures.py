"""Parameters of functions and option classes, read from their source, because importing it takes seconds."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

_ENTRY = re.compile(r"^    ([\w, ]+): (.*(?:\n        .*)*)", re.MULTILINE)  # of a docstring's section Args


class Parameter(NamedTuple):
    """A parameter or field: its annotation as text, its default if that is a literal, its line in the docstring."""

    name: str
    annotation: str
    default: Any
    is_required: bool
    is_positional: bool
    help: str


@cache
def _module(name: str) -> ast.Module:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def defining_module(module: str, name: str) -> str:
    """Return the module that a module imports a name from; the module itself if it does not."""
    imports = [node for node in ast.walk(_module(module)) if isinstance(node, ast.ImportFrom)]
    homes = [node.module for node in imports for alias in node.names if alias.name == name]
    return str(homes[0]) if homes else module


def read_parameters(module: str, name: str) -> dict[str, Parameter]:
    """Return the parameters of a function, or the fields of a class, by name."""
    body, kinds = _module(module).body, (ast.FunctionDef, ast.ClassDef)
    for part in name.split("."):
        definition = next(node for node in body if isinstance(node, kinds) and node.name == part)
        body = definition.body
    docstring = ast.get_docstring(definition) or ""
    texts = {
        parameter: " ".join(text.split())
        for section in re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", docstring, re.MULTILINE)
        for names, text in _ENTRY.findall(section)
        for parameter in names.split(", ")
    }
    return {
        each.name: each._replace(help=_help(module, each.name, texts.get(each.name, "")))
        for each in _parameters(definition)
    }


def _help(module: str, parameter: str, text: str) -> str:
    """Return the text for a terminal; of "as for `other`" the text that the function `other` has."""
    if match := re.match(r"as for `+(?:aurank\.)?([\w.]+)`+", text):
        described = match[1]
        for package in ("aurank.commands", "aurank.training"):
            for file, names in import_module(package).NAMES.items():
                if described.partition(".")[0] in names:
                    return read_parameters(f"{package}.{file}", described)[parameter].help
    text = re.sub(r"(?<!`)`(\w+)`", lambda named: f"--{named[1].replace('_', '-')}", text).replace("`", "")
    return text[:1].upper() + text[1:] if re.match(r"\w+[ ,;]", text) else text


def _parameters(definition: ast.FunctionDef | ast.ClassDef) -> Iterator[Parameter]:
    if isinstance(definition, ast.ClassDef):
        for node in definition.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield _parameter(node.target.id, node.annotation, node.value or ast.Constant(None))
        return
    arguments = definition.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults + arguments.kw_defaults
    for argument, default in zip([*positional, *arguments.kwonlyargs], defaults, strict=True):
        yield _parameter(argument.arg, argument.annotation, default, is_positional=argument in positional)
    if arguments.kwarg is not None:
        yield _parameter(arguments.kwarg.arg, arguments.kwarg.annotation, None)


def _parameter(
    name: str, annotation: ast.expr | None, default: ast.expr | None, *, is_positional: bool = False
) -> Parameter:
    try:
        value = None if default is None else ast.literal_eval(default)
    except ValueError:  # only the function knows it
        value = None
    text = "" if annotation is None else ast.unparse(annotation).strip("'")
    return Parameter(name, text, value, default is None, is_positional, "")
