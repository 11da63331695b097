"""The tools are scripts: their folder is on the path when they run, and so it is here."""

import sys
from pathlib import Path

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
