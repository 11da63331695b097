"""Shapes and types of every annotated function are checked while the tests run."""

import os

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")

from jaxtyping import install_import_hook

install_import_hook("aurank", "beartype.beartype")
