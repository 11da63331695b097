"""What people look at: the pages and the files of a result."""

from typing import TYPE_CHECKING

from aurank.lazy import lazy_names

if TYPE_CHECKING:  # the names of these files
    from aurank.reporting.results import *
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, {"results": ["write_results"]})
