"""Pages from templates: one file each, every text from outside escaped."""

from functools import cache
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("aurank.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["version"] = version("aurank")
    return environment


def render(template: str, **content: Any) -> str:
    """Return the page of a template in `templates/`, with its content; plain text is escaped, `trusted` text is not."""
    return _environment().get_template(template).render(**content)


def trusted(text: str) -> Markup:
    """Return text that a page takes as it is, such as a chart made here."""
    return Markup(text)
