"""The miniatures of the global contrastive losses: one file an experiment, and what they share."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # grocery_texts.py, which prepares data, is in tools
