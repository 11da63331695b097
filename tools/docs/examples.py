"""For `make docs`: what griffe, which reads the source, does not see there."""

import importlib
import inspect
import re
from typing import Any

import griffe


class CodeInExamples(griffe.Extension):
    """Names the section Example as griffe does, which would quote its code, and tells it what is known at run time."""

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Take the public names of a package, which a table lists."""
        if mod.is_init_module:
            mod.exports = list(getattr(importlib.import_module(mod.path), "__all__", [])) or None

    def on_attribute_instance(self, *, attr: griffe.Attribute, agent: griffe.Visitor, **_: Any) -> None:
        """Take the docstring of a function that is made from a table."""
        made = getattr(importlib.import_module(attr.parent.path), attr.name, None) if attr.parent.is_module else None
        if inspect.isfunction(made) and made.__name__ == attr.name and made.__doc__:
            how: dict[str, Any] = {"parser": agent.docstring_parser, "parser_options": agent.docstring_options}
            attr.docstring = griffe.Docstring(made.__doc__, parent=attr, **how)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section in the docstring of anything documented."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
