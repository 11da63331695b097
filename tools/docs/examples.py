"""For `make docs`: sections named Example hold code. griffe knows that of Examples only, and would quote them."""

import re
from typing import Any

import griffe


class CodeInExamples(griffe.Extension):
    """Names the sections as griffe does, before it parses them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section in the docstring of anything documented."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
