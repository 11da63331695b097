"""Pages from templates: one file each, every text from outside escaped."""

import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

_ENDING = 30  # characters that are shown of a longer name, or as many as tell names apart


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
    environment.filters |= {"breakable": breakable, "duration": duration}
    return environment


def render(template: str, **content: Any) -> str:
    """Return the page of a template in `templates/`, with its content; plain text is escaped, `Markup` is not."""
    return _environment().get_template(template).render(**content)


def breakable(name: str) -> Markup:
    return Markup(re.sub(r"([/_.-])", r"\1<wbr>", str(escape(name))))


def duration(seconds: float) -> str:
    for size, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def endings(names: Sequence[str]) -> list[str]:
    longest = max(map(len, names), default=0)
    enough = (length for length in range(_ENDING, longest) if len({name[-length:] for name in names}) == len({*names}))
    length = next(enough, longest) + 1  # one character more than tells the names apart
    return [name if len(name) <= length else f"…{name[-length:]}" for name in names]
